"""JSON and files in the documentation, as they stand there."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

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
