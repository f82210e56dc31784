"""The JSON that stands in the documentation, as it stands there."""

from __future__ import annotations

import re
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
