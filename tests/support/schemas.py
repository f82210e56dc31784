"""The JSON Schemas of RedBeat, ready to ask."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from jsonschema import Draft202012Validator

FOLDER = Path(__file__).parents[2] / "docs" / "schema"
NAMES = ("definition", "policy", "meta", "history-record", "error", "entry")


@cache
def schema_of(name: str) -> dict[str, Any]:
    """The schema of one kind of document."""
    schema: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return schema


@cache
def validator_of(name: str) -> Draft202012Validator:
    return Draft202012Validator(schema_of(name))


def find_fault(name: str, text: str) -> str | None:
    """What the schema, or JSON itself, has against `text`; None: nothing."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as exc:
        return f"no JSON: {exc}"
    return find_fault_in(name, value)


def find_fault_in(name: str, value: Any) -> str | None:
    """What the schema has against `value`, plain JSON; None: nothing."""
    try:
        error = next(validator_of(name).iter_errors(value), None)
    except RecursionError:
        return "too deep"
    return error and f"{error.json_path}: {error.message}"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")
