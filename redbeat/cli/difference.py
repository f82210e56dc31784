"""What a file would change, for people: green, yellow and red, with the fields that differ."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from redbeat.cli.session import Session
from redbeat.cli.words import one_line
from redbeat.plans import Plan

__all__ = ["show_difference"]

#: so many entries are shown of each kind; --json has all of them
MAX_SHOWN = 200


def show_difference(session: Session, plan: Plan) -> None:
    """Print what carrying ``plan`` out would change."""
    difference = plan.difference
    for sign, style, entries in (
        ("+", "green", {name: _lines(fields) for name, fields in difference.added.items()}),
        ("~", "yellow", {name: _changes(fields) for name, fields in difference.changed.items()}),
        ("-", "red", {name: _lines(fields) for name, fields in difference.removed.items()}),
        ("+", "green", {f"calendar {name}": [] for name in plan.calendars}),
    ):
        for name, lines in list(entries.items())[:MAX_SHOWN]:
            session.say(f"{sign} {one_line(name)}", f"bold {style}")
            for line in lines:
                session.say(f"    {line}", style)
        if len(entries) > MAX_SHOWN:
            session.say(f"{sign} and {len(entries) - MAX_SHOWN} more; --json has all of them", style)
    session.say(_summary(plan))
    if difference.left:
        names = ", ".join(map(one_line, difference.left[:5]))
        more = f" and {len(difference.left) - 5} more" if len(difference.left) > 5 else ""
        session.note(f"Not in the file any more, and stays without --prune: {names}{more}.")
    for warning in plan.warnings:
        session.note(one_line(warning))


def _summary(plan: Plan) -> str:
    """Return how many entries would be changed, a sentence."""
    difference = plan.difference
    return (
        f"{len(difference.added)} to add, {len(difference.changed)} to change, "
        f"{len(difference.removed)} to remove, {len(difference.same)} the same."
    )


def _lines(fields: Mapping[str, Any]) -> list[str]:
    return [f"{field}: {_shown(value)}" for field, value in fields.items()]


def _changes(fields: Mapping[str, tuple[Any, Any]]) -> list[str]:
    return [f"{field}: {_shown(before)} -> {_shown(after)}" for field, (before, after) in fields.items()]


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
