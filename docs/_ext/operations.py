"""Directives that list the operations of the REST interface and what each takes, from ``redbeat.web.api``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import redbeat.operations
import redbeat.web.api.resources
from redbeat.web.api.operations import Operation
from redbeat.web.api.parameters import Field
from redbeat.web.api.resources import OPERATIONS

ROOM = Path(redbeat.web.api.resources.__file__).parent
OPERATIONS_ROOM = Path(redbeat.operations.__file__).parent


def describe_operation(operation: Operation) -> Iterator[str]:
    """Yield the entry of one operation in a definition list; nothing if it takes nothing."""
    lines = [*map(_described, operation.query)]
    body = operation.body
    if body is not None and body.is_file:
        lines.append(f"The body is a file: {', '.join(f'``{media}``' for media in body.media)}.")
    elif body is not None and body.component:
        what = "an entry" if body.component.startswith("Entry") else "an object"
        lines.append(f"The body is {what}, the schema ``{body.component}`` of the description.")
    elif body is not None:
        lines += [_described(field, " in the body") for field in body.fields]
    lines += [f"Header ``{header}``." for header in operation.headers]
    if lines:
        yield f"``{operation.method} {operation.path}``"
        yield from (f"    | {line}" for line in lines)
        yield ""


def _described(field: Field, place: str = "") -> str:
    about = field.about.replace("*", r"\*").rstrip()
    needed = ", needed" if field.is_needed else ""
    return f"``{field.name}``{place}{needed}: {about}"


def list_operations() -> Iterator[str]:
    """Yield the table of all operations."""
    yield from (".. list-table::", "   :header-rows: 1", "   :widths: auto", "")
    yield from ("   * - request", "     - right", "     - command", "     - what it does")
    for one in OPERATIONS:
        yield f"   * - ``{one.method} {one.path}``"
        yield f"     - {one.right.value}"
        yield f"     - {one.verb and f'``{one.verb}``'}"
        yield f"     - {one.about.rstrip('.')}"
    yield from ("   * - ``GET /openapi.json``", "     - read", "     -", "     - Describe all operations", "")


class OfOperations(SphinxDirective):
    """A directive with lines made from the operations."""

    def lines(self) -> Iterable[str]:
        raise NotImplementedError

    def run(self) -> list[nodes.Node]:
        for source in (*ROOM.glob("*.py"), *OPERATIONS_ROOM.glob("*.py")):
            self.env.note_dependency(str(source))
        node = nodes.container()
        self.state.nested_parse(StringList([*self.lines()], str(ROOM)), self.content_offset, node)
        return node.children


class Table(OfOperations):
    """``.. rest-operations::``"""

    def lines(self) -> Iterable[str]:
        return list_operations()


class Parameters(OfOperations):
    """``.. rest-parameters::``"""

    def lines(self) -> Iterable[str]:
        return (line for one in OPERATIONS for line in describe_operation(one))


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("rest-operations", Table)
    app.add_directive("rest-parameters", Parameters)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
