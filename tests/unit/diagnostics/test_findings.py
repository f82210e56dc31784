"""The table of findings, and the places that fill it in."""

from __future__ import annotations

import ast
from pathlib import Path
from string import Formatter

import redbeat.diagnostics
from redbeat.diagnostics import fixes
from redbeat.diagnostics.findings import FIXABLE, TEXTS, Diagnosis, Severity, found

CALLS = [
    node
    for path in Path(redbeat.diagnostics.__file__).parent.rglob("*.py")
    for node in ast.walk(ast.parse(path.read_text()))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "found"
]


def test_each_finding_has_all_values_of_its_text() -> None:
    for call in CALLS:
        given = {one.arg for one in call.keywords}
        if isinstance(call.args[0], ast.Constant) and None not in given:  # no **values
            text = TEXTS[call.args[0].value]
            needed = {name for _, name, _, _ in Formatter().parse(text.problem + text.advice) if name}
            assert needed <= given, call.args[0].value


def test_each_row_says_what_is_wrong_and_what_to_do() -> None:
    assert all(text.problem and text.advice for text in TEXTS.values())
    assert fixes.FIXES.keys() == FIXABLE


def test_findings_are_grouped_the_worst_first_and_repeated_subjects_are_told_once() -> None:
    diagnosis = Diagnosis()
    diagnosis.add(found("orphan-key", f"key{number}", owner="old") for number in range(10_002))
    diagnosis.add(found("unknown-task", "one", task="a", hint="") for _ in range(2))
    groups = [(group.severity, group.kind, group.count) for group in diagnosis.groups()]
    assert groups == [(Severity.WARNING, "unknown-task", 1), (Severity.NOTE, "orphan-key", 10_002)]
    assert diagnosis.counts() == {"warning": 1, "note": 10_002}
    assert diagnosis.to_dict()["more"] == {"orphan-key": 2}
