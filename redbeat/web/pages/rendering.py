"""HTML made of the templates, which extend ``base.html`` and use the macros of ``macros.html``.

Invariant: whatever a template shows is escaped for HTML, and what doesn't print (control characters, marks
that change the direction of text) is shown as an escape. Only ``as_typed`` keeps such characters, for the
values of form fields. A name that a template has not been given is an error, not an empty place.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from secrets import token_urlsafe
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from redbeat.entries.wording import clock, label_of, one_line, relative, when_in
from redbeat.log.text import printable_json, printable_lines
from redbeat.schedules.durations import lasting_in_words, length_in_words, seconds_in_words
from redbeat.schedules.timezones import in_utc
from redbeat.web.assets import mark_of
from redbeat.web.pages.looks import NOTICE_ICONS, draw_sparkline, look_of

#: the cookie in which redbeat.js tells the name of the viewer's time zone, percent-encoded
ZONE_COOKIE = "redbeat-zone"

#: the pages of the navigation: label, path below the root, icon, key after g
_PAGES = (
    ("Overview", "/", "pulse", "o"),
    ("Entries", "/entries", "list", "e"),
    ("Timeline", "/timeline", "heat", "t"),
    ("Runs", "/runs", "play", "r"),
    ("Later", "/later", "clock", "l"),
    ("Doctor", "/doctor", "doctor", "d"),
    ("Files", "/files", "file", "f"),
    ("Calendars", "/calendars", "calendar", "c"),
    ("Routes", "/routes", "branch", "u"),
    ("Audit", "/audit", "shield", "a"),
)
#: where pages are that belong to one of these, and don't stand below it
_BESIDE = {"/entries": "/entry", "/calendars": "/calendar"}


class Link(NamedTuple):
    """A page in the navigation."""

    label: str
    url: str
    icon: str
    key: str
    current: bool


def navigation(root: str, path: str) -> list[Link]:
    """Return the pages, with the one marked to which ``path``, the part of a URL below ``root``, belongs."""

    def is_current(start: str) -> bool:
        if start == "/":
            return path in (start, "")
        return f"{path}/".startswith((f"{start}/", f"{_BESIDE.get(start, start)}/"))

    return [Link(label, f"{root}{start}", icon, key, is_current(start)) for label, start, icon, key in _PAGES]


@functools.cache
def environment() -> Environment:
    """The templates, and what they may use besides what they are given."""
    made = Environment(
        loader=PackageLoader("redbeat.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "as_typed": _as_typed,
        "clock": _clock,
        "exact": _exact,
        "iso": _iso,
        "json_text": _json_text,
        "lasting_in_words": lasting_in_words,
        "length_in_words": length_in_words,
        "look": look_of,
        "notice_icon": NOTICE_ICONS.__getitem__,
        "one_line": one_line,
        "pairs": _pairs,
        "relative": _relative,
        "seconds_in_words": seconds_in_words,
        "spaced": _spaced,
        "sparkline": lambda outcomes: draw_sparkline(tuple(outcomes)),
        "spaced_pair": lambda word: (word, _spaced(word)),
        "zone_label": label_of,
    }
    made.globals["static"] = _static
    made.globals["one_time"] = partial(token_urlsafe, 12)
    return made


def _printed(value: Any) -> Any:
    """What ``{{ ... }}`` shows of a value."""
    is_text = isinstance(value, str) and not isinstance(value, Markup)
    return printable_lines(value) if is_text else value


def _as_typed(value: object) -> Markup:
    """Escaped for HTML only: the value of a form field comes back as it was, if it can be sent at all."""
    return escape(str(value).encode("utf-8", "replace").decode("utf-8"))


def _spaced(word: str) -> str:
    """``never_started`` as people write it."""
    return word.replace("_", " ").replace("-", " ")


def _pairs(fields: Mapping[str, object] | Iterable[tuple[str, object]]) -> Iterable[tuple[str, object]]:
    """The fields of a form; one name may come several times, where they are given as pairs."""
    return fields.items() if isinstance(fields, Mapping) else fields


def _json_text(value: object) -> str:
    return printable_json(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def _iso(moment: datetime) -> str:
    return in_utc(moment).isoformat().replace("+00:00", "Z")


@pass_context
def _relative(context: Context, moment: datetime | None) -> str:
    return relative(moment, context["now"])


@pass_context
def _exact(context: Context, moment: datetime) -> str:
    return when_in(moment, context["zone"])


@pass_context
def _clock(context: Context, moment: datetime) -> str:
    return clock(moment, context["zone"])


@pass_context
def _static(context: Context, name: str) -> str:
    """The URL of a static file. It changes with the file, so that browsers may keep it for good."""
    return f"{context['root']}/static/{name}?v={mark_of(name)}"
