"""Tests go by behaviour: where one needs a private name, its line says why.

Ruff's SLF001 sees ``made._name``; here are the names that stand in texts, and those that are imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[2]
REPLACING = {"setattr", "delattr", "patch", "object"}


def private_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and re.split(r"\W", ast.unparse(node.func))[-1] in REPLACING:
            names = [str(given.value) for given in node.args if isinstance(given, ast.Constant)]
        for name in names:
            if re.fullmatch(r"(.*\.)?_[a-z]\w*", name):
                yield node.lineno, name


def test_a_private_name_that_a_test_replaces_or_imports_has_a_reason_beside_it() -> None:
    found = []
    for path in TESTS.rglob("*.py"):
        text = path.read_text("utf-8")
        lines = text.splitlines()
        found += [
            f"{path.relative_to(TESTS)}:{number}: {name}"
            for number, name in private_names(ast.parse(text))
            if "  # " not in lines[number - 1]
        ]
    assert found == []
