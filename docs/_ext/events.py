"""Directives that write the events of the log, and their fields, from ``redbeat.log.events``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import redbeat.log.events
from redbeat.log.events import EVENTS, FIELDS

SOURCE = str(redbeat.log.events.__file__)


def describe_table(widths: str, rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield from (".. list-table::", "   :header-rows: 1", f"   :widths: {widths}", "")
    for row in rows:
        for number, cell in enumerate(row):
            yield f"   {' ' if number else '*'} - {cell}"
    yield ""


class EventsTable(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(SOURCE)
        events: list[tuple[str, ...]] = [("Event", "Level", "It says", "When")]
        for event in EVENTS.values():
            fields = ", ".join(f"``{field}``" for field in event.fields)
            events.append((f"``{event.name}``", " or ".join(event.levels), fields, event.meaning))
        fields = [("Field", "What it is"), *((f"``{name}``", f"{text}.") for name, text in FIELDS.items())]
        node = nodes.container()
        lines = [*describe_table("26 12 26 36", events), *describe_table("25 75", fields)]
        self.state.nested_parse(StringList(lines, SOURCE), self.content_offset, node)
        return node.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("redbeat-events", EventsTable)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
