"""The directive that lists what each operation of the REST interface takes, from ``redbeat.web.api``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import redbeat.web.api.resources
from redbeat.web.api.kinds import Field
from redbeat.web.api.operations import Operation
from redbeat.web.api.resources import OPERATIONS

ROOM = Path(redbeat.web.api.resources.__file__).parent


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


class Parameters(SphinxDirective):
    """``.. rest-parameters::``"""

    def run(self) -> list[nodes.Node]:
        for source in ROOM.glob("*.py"):
            self.env.note_dependency(str(source))
        lines = [line for one in OPERATIONS for line in describe_operation(one)]
        node = nodes.container()
        self.state.nested_parse(StringList(lines, str(ROOM)), self.content_offset, node)
        return node.children


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("rest-parameters", Parameters)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
