"""What the package imports is there once it is installed: what it declares, and what Celery brings along."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import distributions, requires
from pathlib import Path

import redbeat

BROUGHT_BY_CELERY = {"amqp", "billiard", "click", "kombu"}
#: for type checkers only; for who moves from django-celery-beat, who is told what to install; and what Django
#: brings along
OPTIONAL = {"typing_extensions", "sqlalchemy", "asgiref"}


def test_the_package_imports_what_it_declares() -> None:
    imported: set[str] = set()
    for path in Path(redbeat.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom):
                imported.add(str(node.module))
            elif isinstance(node, ast.Import):
                imported |= {name.name for name in node.names}
    foreign = {name.split(".")[0] for name in imported} - sys.stdlib_module_names - {"redbeat"}
    declared = {re.split(r"[^\w-]", line)[0].lower() for line in requires("celery-redbeat") or ()}
    # not packages_distributions(): in Python 3.10 it knows those alone that have a top_level.txt
    provided = {
        file.parts[0].removesuffix(".py")
        for one in distributions()
        if one.metadata["Name"].lower().replace("_", "-") in declared
        for file in one.files or ()
    }
    undeclared = foreign - provided
    assert undeclared == BROUGHT_BY_CELERY | OPTIONAL
