"""What a file would change, for people: green, yellow and red, with the fields that differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import tzinfo
from typing import Any

from redbeat.cli.session import Session
from redbeat.entries.fields import shown_value
from redbeat.entries.wording import one_line, when_in
from redbeat.manifest.diff import Difference
from redbeat.manifest.plan import Plan
from redbeat.schedules.timezones import time_of

#: how many entries are shown of each kind, and how many days of each calendar; --json has all of them
MAX_SHOWN = 200
MAX_DAYS_SHOWN = 10

#: fields that are times
_TIMES = ("start_time", "end_time", "paused_until", "last_run_at", "next_run")

#: a line and its style
_Line = tuple[str, str]


def show_difference(session: Session, plan: Plan) -> None:
    """Print what carrying ``plan`` out would change."""
    difference, calendars, zone = plan.difference, plan.calendars.difference, session.zone
    for sign, style, parts in (
        ("+", "green", {name: _lines(fields, zone, "green") for name, fields in difference.added.items()}),
        ("~", "yellow", {name: _changes(fields, zone) for name, fields in difference.changed.items()}),
        ("-", "red", {name: _lines(fields, zone, "red") for name, fields in difference.removed.items()}),
        ("+", "green", _calendars({name: _new(fields) for name, fields in calendars.added.items()})),
        ("~", "yellow", _calendars(calendars.changed)),
        ("-", "red", _calendars({name: _gone(fields) for name, fields in calendars.removed.items()})),
    ):
        for name, lines in list(parts.items())[:MAX_SHOWN]:
            session.say(f"{sign} {one_line(name)}", f"bold {style}")
            for line, line_style in lines:
                session.say(line, line_style, indent=4)
        if len(parts) > MAX_SHOWN:
            session.say(f"{sign} and {len(parts) - MAX_SHOWN} more; --json has all of them", style)
    session.say(_summary(difference))
    if calendars or calendars.same or calendars.left:
        session.say(f"Calendars: {_summary(calendars)}")
    left = [*map(one_line, difference.left), *(f"calendar {one_line(name)}" for name in calendars.left)]
    if left and not plan.is_pruned:
        more = f" and {len(left) - 5} more" if len(left) > 5 else ""
        session.note(f"Not in the file any more, and stays without --prune: {', '.join(left[:5])}{more}.")
    for warning in plan.warnings:
        session.note(one_line(warning))


def _summary(difference: Difference) -> str:
    """Return how many entries or calendars would be changed, a sentence."""
    return (
        f"{len(difference.added)} to add, {len(difference.changed)} to change, "
        f"{len(difference.removed)} to remove, {len(difference.same)} the same."
    )


def _new(fields: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    return {day: (None, label) for day, label in fields.items()}


def _gone(fields: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    return {day: (label, None) for day, label in fields.items()}


def _calendars(changes: Mapping[str, Mapping[str, tuple[Any, Any]]]) -> dict[str, list[_Line]]:
    """Return the lines about calendars: the days that are added and removed, up to a number."""
    shown: dict[str, list[_Line]] = {}
    for name, fields in changes.items():
        days = [(day, *pair) for day, pair in sorted(fields.items()) if day[:1].isdigit()]
        others = {what: pair for what, pair in fields.items() if not what[:1].isdigit()}
        lines = [_field_line(what, old, new) for what, (old, new) in others.items()]
        lines += [_day_line(*day) for day in days[:MAX_DAYS_SHOWN]]
        if len(days) > MAX_DAYS_SHOWN:
            lines.append((f"and {len(days) - MAX_DAYS_SHOWN} more; --json has all of them", "yellow"))
        shown[f"calendar {name}"] = lines
    return shown


def _field_line(what: str, before: str | None, after: str | None) -> _Line:
    if not before or not after:  # the calendar is new, or is removed
        return f"{what}: {_shown(after or before)}", "green" if after else "red"
    return f"{what}: {_shown(before)} -> {_shown(after)}", "yellow"


def _day_line(day: str, before: str | None, after: str | None) -> _Line:
    if before is None or after is None:
        sign, style = ("+", "green") if before is None else ("-", "red")
        label = before if after is None else after
        return f"{sign} {one_line(day)}{f': {_shown(label)}' if label else ''}", style
    return f"~ {one_line(day)}: {_shown(before) or 'no label'} -> {_shown(after) or 'no label'}", "yellow"


def _lines(fields: Mapping[str, Any], zone: tzinfo, style: str) -> list[_Line]:
    return [(f"{field}: {_field_shown(field, value, zone)}", style) for field, value in fields.items()]


def _changes(fields: Mapping[str, tuple[Any, Any]], zone: tzinfo) -> list[_Line]:
    return [
        (f"{field}: {_field_shown(field, before, zone)} -> {_field_shown(field, after, zone)}", "yellow")
        for field, (before, after) in fields.items()
    ]


def _field_shown(field: str, value: Any, zone: tzinfo) -> str:
    """Return ``value``; a time in ``zone``, a secret masked."""
    value = shown_value(field, value)
    if field not in _TIMES or not isinstance(value, str):
        return _shown(value)
    try:
        moment = time_of(value)
    except ValueError:
        return _shown(value)
    return _shown(value) if moment.tzinfo is None else when_in(moment, zone)


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
