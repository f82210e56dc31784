"""The directive ``.. redbeat-performance::``: the tables and the picture that ``make bench`` published.

``figures`` and ``targets`` name a table of ``_static/performance.json``, ``machine`` is where it was
measured, ``picture`` is ``_static/performance.png``. Nothing published: one sentence says so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from settings import escape
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

STATIC = Path(__file__).parents[1] / "_static"
JSON = STATIC / "performance.json"
PICTURE = STATIC / "performance.png"

ALTERNATIVE = (
    "Two plots with logarithmic axes: messages a second against entries due, and the time of an idle tick "
    "against entries stored."
)


def table_lines(table: dict[str, Any]) -> list[str]:
    """Return a ``list-table`` with the header and the rows."""
    widths = " ".join(["30", *["12"] * (len(table["header"]) - 1)])
    lines = [".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", ""]
    for row in [table["header"], *table["rows"]]:
        first, *others = map(escape, row)
        lines += [f"   * - {first}", *(f"     - {cell}" for cell in others)]
    return [*lines, ""]


def machine_lines(found: dict[str, Any]) -> list[str]:
    """Return a sentence about the machine."""
    machine = found["machine"]
    versions = ", ".join(f"{name} {machine[name]}" for name in ("celery", "kombu", "redis-py"))
    sentence = (
        f"Measured on {found['date']}: {machine['processors']} processors, {escape(machine['server'])}, "
        f"Python {machine['python']}, {versions}."
    )
    return [sentence, ""]


class Performance(SphinxDirective):
    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(JSON))
        node = nodes.container()
        self.state.nested_parse(StringList(self.lines(), str(JSON)), self.content_offset, node)
        return node.children

    def lines(self) -> list[str]:
        what = self.arguments[0]
        if not (JSON.exists() and PICTURE.exists()):
            return ["Nothing is published yet: ``make bench ARGS=--publish``.", ""]
        if what == "picture":
            return [f".. image:: _static/{PICTURE.name}", f"   :alt: {ALTERNATIVE}", ""]
        found = json.loads(JSON.read_text("utf-8"))
        return machine_lines(found) if what == "machine" else table_lines(found["tables"][what])


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("redbeat-performance", Performance)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
