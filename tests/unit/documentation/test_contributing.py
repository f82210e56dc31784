"""What contributors read: all that is named there exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CONTRIBUTING = (ROOT / "CONTRIBUTING.rst").read_text("utf-8")
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))

#: a literal that is a file or a folder of the tree
PATH = re.compile(r"\.?[\w./-]*/[\w./-]*|[\w.-]+\.(?:rst|toml|yaml)")
#: one that is a name in Python
NAME = re.compile(r"[A-Z]\w+")


def steps() -> list[str]:
    """The steps of all four kinds of change."""
    return re.findall(r"^#\. ((?:.+\n(?:   .+\n)*))", CONTRIBUTING.partition("Step by step")[2], re.MULTILINE)


def literals_of(text: str) -> list[str]:
    return [" ".join(found.split()) for found in re.findall(r"``(.+?)``", text, re.DOTALL)]


@pytest.mark.parametrize("document", ["CONTRIBUTING.rst", "SECURITY.rst"])
def test_each_path_exists(document: str) -> None:
    paths = [one for one in literals_of((ROOT / document).read_text("utf-8")) if PATH.fullmatch(one)]
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_name_is_in_a_file_that_its_step_names() -> None:
    for step in steps():
        literals = literals_of(step)
        files = [ROOT / one for one in literals if PATH.fullmatch(one) and (ROOT / one).is_file()]
        texts = "\n".join(path.read_text("utf-8") for path in files)
        for name in filter(NAME.fullmatch, literals):
            assert re.search(rf"^(?:class |def )?{name}\b", texts, re.MULTILINE), f"{name} in {step}"


def test_each_command_of_make_exists() -> None:
    named = re.findall(r"(?:``|^    )make ([a-z-]+)", CONTRIBUTING, re.MULTILINE)
    assert {"check", "test", "demo"} <= set(named) <= TARGETS


def test_the_picture_of_the_rooms_has_each_room_of_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    import layout

    named = re.findall(r'class="rooms-name"[^>]*>(\w+)<', layout.picture())
    rooms = {path.parent.name for path in (ROOT / "redbeat").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "redbeat").glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(rooms | modules)
    assert ".. rooms-picture::" in (ROOT / "docs" / "index.rst").read_text("utf-8")
