"""JSON, files and JSON Schemas in the documentation, as they stand there."""

from __future__ import annotations

import json
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest
from jsonschema import Draft202012Validator

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.rst", "docs/data-model.rst")

_JSON = re.compile(r"^\.\. code-block:: json\n((?:\n| +\S.*\n)+)", re.MULTILINE)
_FILE = re.compile(
    r"^\.\. code-block:: \w+\n   :caption: (at the end of )?(\S+)\n\n((?:    ?.*\n|   .*\n|\n)+)",
    re.MULTILINE,
)


def json_examples() -> list[Any]:
    """Return each ``.. code-block:: json``: a parameter for a test with the id file:line."""
    texts = {Path(document).name: (ROOT / document).read_text("utf-8") for document in DOCUMENTS}
    return [
        pytest.param(block[1], id=f"{name}:{text[: block.start()].count(chr(10)) + 1}")
        for name, text in texts.items()
        for block in _JSON.finditer(text)
    ]


def write_files(document: str, directory: Path) -> list[Path]:
    """Write each ``.. code-block::`` that has a ``:caption:`` as the file it names; return their paths.

    A block "at the end of" a file is appended to it.
    """
    written = []
    for is_end, name, block in _FILE.findall((ROOT / document).read_text("utf-8")):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if is_end else "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(block).strip() + "\n")
        written.append(path)
    return written


# -- JSON Schemas

NAMES = ("definition", "policy", "meta", "history-record", "error", "entry")


@cache
def schema_of(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((ROOT / "docs" / "schema" / f"{name}.json").read_text("utf-8"))
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
