"""HTML made of templates: everything is escaped, times are the viewer's, links keep below the root."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from jinja2 import UndefinedError

from redbeat.web.pages import rendering
from redbeat.web.pages.rendering import Frame, navigation, render
from redbeat.web.warming import warm_up
from tests.support.gallery import SOURCE, page

NOW = datetime(2026, 3, 28, 23, 30, tzinfo=timezone.utc)
TEMPLATES = Path(rendering.__file__).parents[1] / "templates"
DOCS = Path(__file__).parents[3] / "docs" / "web.rst"
#: a name, an attribute's value, a note: whatever somebody may have written
BAD = "\"'><script>alert(1)</script>\u202e\x1b[31m\u2028{{ 7 * 7 }}"


def frame(**fields: Any) -> Frame:
    given = {"root": "", "nav": navigation("", "/"), "user": "ada", "csrf_token": "a-token", "now": NOW}
    return Frame(**{**given, **fields})


def made(source: str, **context: Any) -> str:
    """What a template of this source shows."""
    template = rendering.environment().from_string('{% import "macros.html" as ui with context %}' + source)
    told = {"zone": ZoneInfo("Europe/Berlin"), "now": NOW, "root": "/red", "csrf_token": "a-token"}
    return template.render(told | context).strip()


@pytest.mark.parametrize(
    "source",
    [
        "{{ bad }}",
        "{{ ui.badge(bad) }}",
        "{{ ui.badge('due', label=bad, title=bad) }}",
        "{{ ui.notice('info', bad) }}",
        "{{ ui.tile(bad, bad, bad, url=bad) }}",
        "{{ ui.empty(bad, bad) }}",
        "{{ ui.diff([('+', bad), (bad, bad)]) }}",
        "{{ ui.code(bad, 'id', bad) }}",
        "{{ ui.code([bad]|json_text, 'id', bad) }}",
        "{{ ui.tabs(bad, [(bad, bad)], bad) }}",
        "{{ ui.sparkline([bad]) }}",
        "{{ ui.button(bad, about=bad, shape='play', only_icon=true, more={'data-id': bad}) }}",
        "{{ ui.link_button(bad, bad, more={'title': bad}) }}",
        "{% call ui.panel(bad, id=bad) %}{{ bad }}{% endcall %}",
        "{% call ui.table_region(bad) %}{{ bad }}{% endcall %}",
        "{{ ui.pagination(bad, bad, bad) }}",
    ],
)
def test_what_somebody_has_written_is_shown_and_nothing_more(source: str) -> None:
    html = made(source, bad=BAD)
    assert "<script" not in html
    assert not re.search("[\u202e\x1b\u2028]", html)
    assert "{{ 7 * 7 }}" in html
    assert re.search(r'="[^"]*"', html) is None or "\"'" not in html


@pytest.mark.parametrize(
    "source",
    [
        "{{ ui.field('name', 'Name', bad) }}",
        "{{ ui.text_area('name', 'Name', bad) }}",
        "{{ ui.select('name', 'Name', [bad], bad) }}",
        "{{ ui.post_button('/x', 'Go', {'name': bad}) }}",
        "{{ ui.post_button('/x', 'Go', [('name', bad), ('name', bad)]) }}",
        "{{ ui.confirm_form('/x', 'Sure?', 'Go', [('name', bad)]) }}",
    ],
)
def test_the_value_of_a_field_is_escaped_for_html_and_stays_what_it_is(source: str) -> None:
    html = made(source, bad=BAD)
    assert "<script" not in html
    assert "\u202e\x1b[31m\u2028" in html


def test_a_form_that_posts_has_the_token() -> None:
    for source in ("{{ ui.post_button('/x', 'Go') }}", "{{ ui.confirm_form('/x', 'Sure?', 'Go') }}"):
        assert '<input type="hidden" name="csrf_token" value="a-token">' in made(source)


def test_a_time_is_relative_with_the_exact_one_in_the_viewers_zone() -> None:
    due = NOW + timedelta(hours=2)  # clocks change in between
    assert made("{{ ui.time_tag(due) }}", due=due) == (
        '<time datetime="2026-03-29T01:30:00Z" data-relative'
        ' title="2026-03-29 03:30:00 Europe/Berlin">in 2 h</time>'
    )
    assert made("{{ ui.time_tag(none, otherwise='at once') }}") == '<span class="muted">at once</span>'
    assert "2026-03-29 03:30:00 Europe/Berlin</time>" in made("{{ ui.time_tag(due, both=true) }}", due=due)


def test_a_sparkline_says_what_it_shows() -> None:
    html = made("{{ ui.sparkline(['failed'] * 30 + ['succeeded'] * 19 + ['never_started']) }}")
    assert 'aria-label="Last 20: 19 succeeded, 1 never started"' in html
    assert "".join(re.findall(r' d="([^"]*)"', html)).count("M") == 20
    assert re.findall(r'class="(tone-\w+)"', html) == ["tone-good", "tone-danger"]
    assert "No runs yet" in made("{{ ui.sparkline([]) }}")


def test_the_navigation_marks_the_page_that_one_is_on() -> None:
    def marked(path: str) -> list[str]:
        return [link.label for link in navigation("/red", path) if link.current]

    assert marked("/") == marked("") == ["Overview"]
    assert marked("/entries") == marked("/entries/billing.report/edit") == ["Entries"]
    assert marked("/entriesx") == []
    links = navigation("/red", "/")
    assert all(link.url.startswith("/red/") for link in links)
    assert len({link.key for link in links}) == len(links)


def test_the_documentation_lists_the_keys() -> None:
    listed = re.findall(r"(?m)^``(\S.*?)`` +(\w+)", DOCS.read_text("utf-8").partition("What you see")[2])
    assert [(key, label) for key, label in listed if key.startswith("g ")] == [
        (f"g {link.key}", link.label) for link in navigation("", "/")
    ]
    assert [key for key, _ in listed if not key.startswith("g ")] == ["/", "t", "?"]


def test_every_link_of_the_frame_keeps_below_the_root() -> None:
    html = render("base.html", frame(root="/red", nav=navigation("/red", "/")), title="Overview")
    assert all(url.startswith(("/red/", "#")) for url in re.findall(r'(?:href|src)="([^"]*)"', html))
    static = re.findall(r'"/red/static/([\w./-]+)\?v=([0-9a-f]{12})"', html)
    assert {name for name, _ in static} == {
        "icon.svg", "redbeat.css", "redbeat.js", "theme.js", "vendor/htmx.min.js",
    }  # fmt: skip


def test_the_stream_is_loaded_where_pages_are_live_and_there_only() -> None:
    for is_live in (True, False):
        html = render("base.html", frame(is_live=is_live), title="Overview")
        assert ("vendor/sse.min.js" in html) == ('hx-ext="sse"' in html) == is_live


def test_the_frame_escapes_what_it_is_told() -> None:
    html = render("base.html", frame(user=BAD, csrf_token=BAD, is_read_only=True), title=BAD)
    assert "<script>" not in html
    assert "\u202e" not in html
    assert "read-only" in html


def test_what_a_template_was_not_given_is_an_error() -> None:
    with pytest.raises(UndefinedError, match="'title' is undefined"):
        render("base.html", frame())


def test_ids_are_given_once_on_a_page() -> None:
    ids = re.findall(r'\sid="([^"]+)"', page())
    assert [one for one in set(ids) if ids.count(one) > 1] == []


def test_each_macro_is_told_of() -> None:
    source = (TEMPLATES / "macros.html").read_text("utf-8")
    shown = set(re.findall(r"ui\.(\w+)", SOURCE))
    macros = set(re.findall(r"{% macro (\w+)\(", source))
    assert shown <= macros
    inner = {"around", "attributes", "described", "navigation", "confirm_form", "icon", "checkbox"}
    inner |= {"live", "stream", "news", "soon", "takes", "reload", "once"}
    assert macros - shown - inner == set()


def test_every_template_is_compiled_before_anybody_comes() -> None:
    warm_up().join()
    assert warm_up() is warm_up()
    ready = {name for _, name in rendering.environment().cache or ()}
    assert ready >= set(rendering.environment().list_templates(["html"]))
