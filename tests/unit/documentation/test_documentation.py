"""The documentation as a whole: what its search finds, its groups, which version it is of."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from redbeat.cli.session import INTERRUPTED
from redbeat.keys import RESERVED_BEGINNINGS, RESERVED_NAMES
from redbeat.process import exit_codes as exits
from redbeat.web.pages.rendering import navigation
from tests.support.dashboard_pictures import PAGES

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PYPROJECT = (ROOT / "pyproject.toml").read_text("utf-8")

_TITLE = re.compile(r"^(\S.*)\n([=~^-])\2{3,}$", re.MULTILINE)


def titles() -> list[str]:
    """Of all pages and sections: a search shows these first."""
    return [found[1] for page in DOCS.glob("*.rst") for found in _TITLE.finditer(page.read_text("utf-8"))]


@pytest.mark.parametrize(
    "word",
    [
        *("overlap", "prometheus", "sentry", "audit", "django", "fastapi", "testing", "pidfile"),
        *("shards", "scale"),
    ],
)
def test_what_people_look_for_is_in_a_title(word: str) -> None:
    assert [title for title in titles() if word in title.lower()]


def test_each_page_is_in_one_group_of_the_index() -> None:
    index = (DOCS / "index.rst").read_text("utf-8")
    groups = re.findall(r":caption: (\w+)\n(?:   :.*\n)*\n((?:   .*\n)+)", index)
    assert [name for name, _ in groups] == ["Start", "Use", "Operate", "Reference"]
    listed = sorted(page for _, pages in groups for page in pages.split())
    assert listed == sorted(page.stem for page in DOCS.glob("*.rst") if page.stem != "index")


def test_the_changelog_begins_with_the_version_that_is_built() -> None:
    [version] = re.findall(r'^version = "(.+)"$', PYPROJECT, re.MULTILINE)
    changelog = (ROOT / "CHANGELOG.rst").read_text("utf-8")
    [_, first, *_] = [found[1] for found in _TITLE.finditer(changelog)]
    assert first.split()[0] == version


def test_the_project_has_urls_for_whoever_has_found_it_installed() -> None:
    urls = PYPROJECT.split("[project.urls]")[1].split("[")[0]
    names = set(re.findall(r"^(\w+) = ", urls, re.MULTILINE))
    assert names >= {"Documentation", "Source", "Changelog", "Issues"}


def test_examples_are_folded_and_not_cut_off() -> None:
    assert 'html_css_files = ["examples.css"]' in (DOCS / "conf.py").read_text("utf-8")
    rule = re.search(r"\.highlight pre \{([^}]*)\}", (DOCS / "_static" / "examples.css").read_text("utf-8"))
    assert rule
    assert "white-space: pre-wrap" in rule[1]


def test_each_room_says_what_it_owns_and_what_it_never_does() -> None:
    rooms = sorted((ROOT / "redbeat").glob("*/__init__.py"))
    assert len(rooms) > 10
    for room in rooms:
        said = ast.get_docstring(ast.parse(room.read_text("utf-8"))) or ""
        assert re.search(r"^Never: .+\.$", said, re.MULTILINE), room


def test_the_table_of_exit_codes_is_that_of_the_program() -> None:
    page = (DOCS / "cli.rst").read_text("utf-8")
    table = re.search(r"^====  =+\n((?:\d+ .*\n)+)====  =+$", page, re.MULTILINE)
    assert table
    documented = {int(line.split()[0]) for line in table[1].splitlines()}
    named = {code for name, code in vars(exits).items() if name.isupper() and type(code) is int}
    assert documented == {0, 1, INTERRUPTED, *named}


def test_the_table_of_keys_names_each_of_them() -> None:
    page = (DOCS / "data-model.rst").read_text("utf-8")
    names = {*RESERVED_NAMES, *RESERVED_BEGINNINGS}
    assert sorted(name for name in names if f"``redbeat:{name}" not in page) == []


def test_each_page_of_the_dashboard_has_its_picture_in_both_themes_and_the_readme_has_two() -> None:
    shown = re.findall(r"^\.\. screenshot:: (\S+)$", (DOCS / "web.rst").read_text("utf-8"), re.MULTILINE)
    assert sorted(shown) == sorted(PAGES)
    in_navigation = {link.label.lower() for link in navigation("", "/")}
    assert in_navigation - {"calendars"} | {"calendar", "entry", "edit"} <= {*shown}
    pictures = {f"web-{name}-{theme}.webp" for name in shown for theme in ("light", "dark")}
    taken = {path.name: path.stat().st_size for path in (DOCS / "_static").glob("web-*.webp")}
    assert taken.keys() == pictures
    assert min(taken.values()) > 5_000
    readme = (ROOT / "README.rst").read_text("utf-8")
    assert len({*re.findall(r"^\.\. image:: docs/_static/(web-\S+)$", readme, re.MULTILINE)} & pictures) == 2
