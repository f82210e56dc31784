"""A directive that writes the table of the fields of an entry's policy: ``.. redbeat-fields::``."""

from __future__ import annotations

from collections.abc import Iterator

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import redbeat.policy.policy
from redbeat.policy.fields import Kind
from redbeat.policy.policy import ROWS

SOURCE = str(redbeat.policy.policy.__file__)


def lines() -> Iterator[str]:
    for name, row in ROWS.items():
        allowed = ", ".join(f"``{value}``" for value in row.values) or f"{row.kind.words}"
        unit = "" if row.kind is Kind.COUNT else " characters"
        most = f", {row.most}{unit} at the most" if row.most is not None else ""
        yield f"``{name}``: {allowed}{most}"
        yield f"    {row.help}"


class FieldsTable(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(SOURCE)
        node = nodes.container()
        self.state.nested_parse(StringList([*lines()], SOURCE), self.content_offset, node)
        return node.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("redbeat-fields", FieldsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
