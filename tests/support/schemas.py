"""The JSON Schemas of `docs/schema`."""

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
    schema: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return schema


def find_fault(name: str, text: str) -> str | None:
    """Return why `text` is not valid JSON of this schema; None: it is."""
    try:
        return find_fault_in(name, json.loads(text, parse_constant=_refuse))
    except (ValueError, RecursionError) as exc:
        return f"invalid JSON: {exc}"


def find_fault_in(name: str, value: Any) -> str | None:
    """Return what is wrong with `value`, plain JSON; None: nothing."""
    error = next(Draft202012Validator(schema_of(name)).iter_errors(value), None)
    return error and f"{error.json_path}: {error.message}"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)
