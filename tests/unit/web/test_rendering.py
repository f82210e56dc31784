"""HTML made of templates: escaped, in the viewer's zone, with links below the root; and charts."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from redbeat.web.pages import rendering
from redbeat.web.pages.rendering import navigation

NOW = datetime(2026, 3, 28, 23, 30, tzinfo=timezone.utc)


#: a name, an attribute's value, a note: whatever somebody may have written
BAD = "\"'><script>alert(1)</script>\u202e\x1b[31m\u2028{{ 7 * 7 }}"


STATIC = Path(__file__).parents[3] / "redbeat" / "web" / "static"


ROW = re.compile(r"   \* - (\S+)\n     - .*\n     - .*\n     - .*, (\S+)\n     - ([0-9a-f]{64})\n")


def framed(**fields: Any) -> str:
    """An empty page with its frame."""
    given = {
        "root": "", "nav": navigation("", "/"), "user": "ada", "home": "", "csrf_token": "a-token",
        "now": NOW, "rights": [], "until": None, "is_read_only": False, "is_live": False,
        "zone": timezone.utc, "is_zone_guessed": False, "can_log_out": False, "title": "Overview",
    }  # fmt: skip
    return rendering.environment().get_template("base.html").render(given | fields)


def made(source: str, **context: Any) -> str:
    """What a template of this source shows."""
    template = rendering.environment().from_string('{% import "macros.html" as ui with context %}' + source)
    told = {"zone": ZoneInfo("Europe/Berlin"), "now": NOW, "root": "/red", "csrf_token": "a-token"}
    return template.render(told | context).strip()


@pytest.mark.parametrize(
    "source",
    [
        "{{ bad }}", "{{ ui.badge(bad) }}", "{{ ui.badge('due', label=bad, title=bad) }}",
        "{{ ui.notice('info', bad) }}", "{{ ui.tile(bad, bad, bad, url=bad) }}", "{{ ui.empty(bad, bad) }}",
        "{{ ui.diff([('+', bad), (bad, bad)]) }}", "{{ ui.code([bad]|json_text, 'id', bad) }}",
        "{{ ui.code(bad, 'id', bad) }}", "{{ ui.tabs(bad, [(bad, bad)], bad) }}", "{{ ui.sparkline([bad]) }}",
        "{{ ui.button(bad, about=bad, shape='play', only_icon=true, more={'data-id': bad}) }}",
        "{{ ui.link_button(bad, bad, more={'title': bad}) }}",
        "{% call ui.panel(bad, id=bad) %}{{ bad }}{% endcall %}",
        "{% call ui.table_region(bad) %}{{ bad }}{% endcall %}", "{{ ui.pagination(bad, bad, bad) }}",
    ],
)  # fmt: skip
def test_text_is_escaped_in_every_macro(source: str) -> None:
    html = made(source, bad=BAD)
    assert not re.search("<script|[\u202e\x1b\u2028]", html)
    assert "{{ 7 * 7 }}" in html
    assert re.search(r'="[^"]*"', html) is None or "\"'" not in html


@pytest.mark.parametrize(
    "source",
    [
        "{{ ui.field('name', 'Name', bad) }}", "{{ ui.text_area('name', 'Name', bad) }}",
        "{{ ui.select('name', 'Name', [bad], bad) }}", "{{ ui.post_button('/x', 'Go', {'name': bad}) }}",
        "{{ ui.confirm_form('/x', 'Sure?', 'Go', [('name', bad)]) }}",
    ],
)  # fmt: skip
def test_value_of_a_field_is_escaped_and_kept(source: str) -> None:
    html = made(source, bad=BAD)
    assert "<script" not in html
    assert "\u202e\x1b[31m\u2028" in html


def test_form_that_posts_has_the_token() -> None:
    for source in ("{{ ui.post_button('/x', 'Go') }}", "{{ ui.confirm_form('/x', 'Sure?', 'Go') }}"):
        assert '<input type="hidden" name="csrf_token" value="a-token">' in made(source)


def test_time_is_relative_with_the_exact_one_in_the_zone_of_the_viewer() -> None:
    due = NOW + timedelta(hours=2)  # clocks change in between
    assert made("{{ ui.time_tag(due) }}", due=due) == (
        '<time datetime="2026-03-29T01:30:00Z" data-relative'
        ' title="2026-03-29 03:30:00 Europe/Berlin">in 2 h</time>'
    )


def test_links_of_the_frame_stay_below_the_root() -> None:
    html = framed(root="/red", nav=navigation("/red", "/"))
    assert all(url.startswith(("/red/", "#")) for url in re.findall(r'(?:href|src)="([^"]*)"', html))
    static = re.findall(r'"/red/static/([\w./-]+)\?v=([0-9a-f]{12})"', html)
    assert {name for name, _ in static} == {
        "icon.svg", "redbeat.css", "redbeat.js", "theme.js", "vendor/htmx.min.js",
    }  # fmt: skip


def test_frame_escapes_user_and_title() -> None:
    html = framed(user=BAD, csrf_token=BAD, title=BAD)
    assert not re.search("<script>|\u202e", html)


def test_scripts_and_styles_load_nothing_from_elsewhere_and_evaluate_nothing() -> None:
    for name in ("redbeat.css", "redbeat.js", "theme.js", "icon.svg"):
        text = (STATIC / name).read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|@import|url\(|\beval\(|new Function|innerHTML|\.style\b", text), name


def test_templates_have_no_inline_script_or_style() -> None:
    for path in (STATIC.parent / "templates").rglob("*.html"):
        text = path.read_text("utf-8")
        found = re.findall(
            r"<style|\sstyle=|\son[a-z]+=|hx-on|<script(?! src=\"\{\{ static\()|javascript:|https?://|\|safe",
            text,
        )
        assert found == [], path.name


def test_vendored_file_is_as_published_and_has_its_licence() -> None:
    vendor = STATIC / "vendor"
    rows = ROW.findall((vendor / "VENDORED.rst").read_text("utf-8"))
    for file, licence, digest in rows:
        assert sha256((vendor / file).read_bytes()).hexdigest() == digest
        assert "Permission to use, copy, modify" in (vendor / licence).read_text("utf-8")
    named = {name for file, licence, _ in rows for name in (file, licence)}
    assert {path.name for path in vendor.iterdir()} == named | {"VENDORED.rst"}
