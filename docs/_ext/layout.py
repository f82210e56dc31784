"""``.. rooms::`` and ``.. scripts::``: what the package consists of, from its own docstrings and headers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from settings import Table, escape
from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "redbeat"
SCRIPTS = PACKAGE / "store" / "scripts"


def room_names() -> list[str]:
    """The rooms and the modules beside them from top to bottom, as the contract of imports has them."""
    contract = (ROOT / "pyproject.toml").read_text("utf-8").partition("layers = [")[2].partition("]")[0]
    return [name for row in re.findall(r'"(.+?)"', contract) for name in row.split(" : ")]


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


class Scripts(Table):
    """Each script: what it does."""

    def lines(self) -> Iterator[str]:
        for name, text in headers().items():
            yield f"``{name}``"
            yield f"    {escape(text[:1].upper() + text[1:])}"
            yield ""


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("rooms", Rooms)
    app.add_directive("scripts", Scripts)
    return {"parallel_read_safe": True}
