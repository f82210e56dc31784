"""The JSON and the files that stand in the documentation, as they stand there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = ("README.rst", "docs/data-model.rst")

_BLOCK = re.compile(r"^\.\. code-block:: json\n((?:\n| +\S.*\n)+)", re.MULTILINE)


def json_examples() -> list[Any]:
    """Each ``.. code-block:: json``, a parameter for a test with the id file:line."""
    examples = []
    for document in DOCUMENTS:
        text = (ROOT / document).read_text("utf-8")
        for block in _BLOCK.finditer(text):
            line = text[: block.start()].count("\n") + 1
            examples.append(pytest.param(block[1], id=f"{Path(document).name}:{line}"))
    return examples


_FILE = re.compile(
    r"^\.\. code-block:: \w+\n   :caption: (at the end of )?(\S+)\n\n((?:    ?.*\n|   .*\n|\n)+)",
    re.MULTILINE,
)


def write_files(document: str, directory: Path) -> list[Path]:
    """Write each ``.. code-block::`` that has a ``:caption:`` as the file it names; return their paths.

    What is for the end of a file is added to it.
    """
    written = []
    for is_end, name, block in _FILE.findall((ROOT / document).read_text("utf-8")):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text("utf-8") if is_end else ""
        path.write_text(before + textwrap.dedent(block).strip() + "\n", "utf-8")
        written.append(path)
    return written
