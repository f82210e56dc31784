"""``.. rooms::``, ``.. rooms-picture::`` and ``.. scripts::``: what the package consists of.

All of it is made of the layers in pyproject.toml, of docstrings and of the headers of scripts.
"""

from __future__ import annotations

import ast
import html
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from settings import Table, escape
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "redbeat"
SCRIPTS = PACKAGE / "store" / "scripts"


# of the picture, in pixels
WIDTH, GAP, LINE_HEIGHT, LETTER_WIDTH = 720, 6, 17, 6.4


def layers() -> list[list[str]]:
    """The rooms and the modules beside them, layer by layer from the top, as pyproject.toml has them."""
    contract = (ROOT / "pyproject.toml").read_text("utf-8").partition("layers = [")[2].partition("]")[0]
    return [re.split(r" [:|] ", row) for row in re.findall(r'"(.+?)"', contract)]


def room_names() -> list[str]:
    """The rooms and the modules beside them from top to bottom."""
    return [name for layer in layers() for name in layer]


def docstring_of(module: Path) -> str:
    """What a module's or a room's docstring says."""
    path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""


def first_sentence_of(text: str) -> str:
    """The first paragraph, in one line, without the full stop."""
    return " ".join(text.partition("\n\n")[0].split()).rstrip(".")


def modules_of(room: Path) -> list[str]:
    """The names of a room's modules, and of the rooms within it."""
    inside = [path for path in room.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in inside if not path.stem.startswith("__"))


def headers() -> dict[str, str]:
    """Each script's name to what its header says it does."""
    found = {}
    for path in sorted(SCRIPTS.glob("*.lua")):
        header = re.match(r"((?:--.*\n)+)", path.read_text("utf-8"))
        lines = [line.removeprefix("--").strip() for line in header[1].splitlines()] if header else []
        end = next((n for n, line in enumerate(lines) if not line or line.startswith("Returns")), len(lines))
        found[path.stem] = " ".join(lines[:end]).partition(": ")[2]
    return found


class Rooms(Table):
    """Each room: what it owns and never does, then its modules."""

    def lines(self) -> Iterator[str]:
        for name in room_names():
            room = PACKAGE / name
            yield f"``{name}{'/' if room.is_dir() else '.py'}``"
            yield from (f"    {line}" for line in docstring_of(room).splitlines())
            yield ""
            if room.is_dir():
                for module in modules_of(room):
                    yield f"    - ``{module}``: {first_sentence_of(docstring_of(room / module))}"
                yield ""


def picture() -> str:
    """The layers as SVG, a box for each room; its colours are the page's, light or dark."""
    boxes: list[str] = []
    top = 0
    for layer in layers():
        width = (WIDTH - GAP * (len(layer) - 1)) / len(layer)
        sentences = [first_sentence_of(docstring_of(PACKAGE / name)).replace("``", "") for name in layer]
        texts = [textwrap.wrap(sentence, int((width - 20) / LETTER_WIDTH)) for sentence in sentences]
        height = (max(map(len, texts)) + 1) * LINE_HEIGHT + 12
        for place, (name, lines) in enumerate(zip(layer, texts, strict=True)):
            left = place * (width + GAP)
            box = f'x="{left:.0f}" y="{top}" width="{width:.0f}" height="{height}" rx="4"'
            boxes.append(f'<rect class="rooms-box" {box}/>')
            for number, line in enumerate([name, *lines]):
                at = f'x="{left + 10:.0f}" y="{top + 19 + number * LINE_HEIGHT}"'
                style = "rooms-text" if number else "rooms-name"
                boxes.append(f'<text class="{style}" {at}>{html.escape(line)}</text>')
        top += height + GAP
    title = "The rooms of redbeat/, in layers: each imports only what is below it"
    return (
        f'<svg class="rooms" role="img" viewBox="0 0 {WIDTH} {top - GAP}" xmlns="http://www.w3.org/2000/svg">'
        f"<title>{title}</title>{''.join(boxes)}</svg>"
    )


class RoomsPicture(SphinxDirective):
    """The layers, drawn."""

    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(ROOT / "pyproject.toml"))
        for room in (PACKAGE / name for name in room_names()):
            self.env.note_dependency(str(room / "__init__.py" if room.is_dir() else room.with_suffix(".py")))
        return [nodes.raw("", picture(), format="html")]


class Scripts(Table):
    """Each script: what it does."""

    def lines(self) -> Iterator[str]:
        for name, text in headers().items():
            yield f"``{name}``"
            yield f"    {escape(text[:1].upper() + text[1:])}"
            yield ""


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("rooms", Rooms)
    app.add_directive("rooms-picture", RoomsPicture)
    app.add_directive("scripts", Scripts)
    return {"parallel_read_safe": True}
