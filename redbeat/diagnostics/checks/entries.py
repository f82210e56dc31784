"""Checks of one entry after the other: whether it can be used, and whether it will ever run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime

from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.checks.finding import Finding, Repair, Severity
from redbeat.entries.calendar_loading import Unusable
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import failure_of, sha1_of
from redbeat.entries.saving import why_never
from redbeat.log.text import printable, shorten
from redbeat.schedules.occurrences import next_run
from redbeat.schedules.timezones import in_utc, shown, time_of
from redbeat.store.records import Stored

#: how much of a wrong text is shown
EXCERPT_LENGTH = 80

_UNKNOWN_KIND = "is no object with one of the __type__"
_SECRET = re.compile(r'("ping_url"\s*:\s*")((?:[^"\\]|\\.)*)')
_FIELD = re.compile(r"(definition|meta|policy): (?:(\w+):)?")


def check_hash(_context: Context, row: Row) -> Iterator[Finding]:
    """Find a member of the schedule whose hash is gone."""
    if row.stored.exists:
        return
    yield Finding(
        Severity.ERROR,
        "missing-hash",
        row.key,
        "It is in the schedule, but its hash is gone: deleted by hand, or evicted by the server.",
        "Save the entry again; --fix takes what is left out of the schedule.",
        repair=Repair("drop", row.key, row.member),
    )


def check_usable(context: Context, row: Row) -> Iterator[Finding]:
    """Find entries that are quarantined, or will be when they are due, and runs that couldn't be sent."""
    failure, name = failure_of(row.stored), context.name_of(row.key)
    is_about_this = failure is not None and failure.definition_sha1 == sha1_of(row.stored)
    since = f" It has been out of use since {_shown(failure.since)}." if failure and is_about_this else ""
    if row.problem and row.stored.exists:
        severity, problem = Severity.ERROR, _own_part(row.problem, row.key)
        advice = f"{'Correct it' if row.stored.is_hash else 'Delete the key'} and save it again.{since}"
        if _UNKNOWN_KIND in row.problem and not context.has_tasks:
            severity = Severity.WARNING
            advice = "If the application registers that kind of schedule, nothing is wrong: use celery -A."
        yield Finding(severity, "quarantined", name, problem, advice, excerpt_of(row.stored, problem))
    elif failure is not None and failure.attempts:
        yield Finding(
            Severity.ERROR,
            "failing",
            name,
            f"Its run couldn't be sent, {failure.attempts} times so far: "
            f"{_sentence(failure.reason, row.key)}",
            "Correct its options or arguments; beat tries again every minute.",
        )
    elif failure is not None and is_about_this:
        advice = f"Correct what the reason names, and save it again.{since}"
        excerpt = excerpt_of(row.stored, _own_part(failure.reason, row.key))
        problem = _sentence(failure.reason, row.key)
        yield Finding(Severity.ERROR, "quarantined", name, problem, advice, excerpt)


def check_calendar(context: Context, row: Row) -> Iterator[Finding]:
    """Find entries whose calendar is missing or broken."""
    if row.entry is None or failure_of(row.stored) is not None:
        return
    calendar = row.entry.policy.calendar
    if isinstance(calendar, Unusable):
        yield Finding(
            Severity.ERROR,
            "calendar",
            context.name_of(row.key),
            f"It can't run: {calendar.reason}",
            "Save the calendar, or remove the entry's exclude.",
        )


def check_typos(context: Context, row: Row) -> Iterator[Finding]:
    """Find keys that resemble known ones, or are called like one and are not usable."""
    if row.entry is None:
        return
    for typos in (row.entry.typos, getattr(row.entry.schedule, "typos", "")):
        if typos:
            yield Finding(
                Severity.WARNING,
                "unknown-key",
                context.name_of(row.key),
                f"It has keys that are ignored: {typos}.",
                "Correct them; until then they count as missing.",
            )


def _look_ahead(entry: RedBeatSchedulerEntry, now: datetime, since: datetime) -> tuple[datetime | None, bool]:
    """Return its next time, and whether its schedule has one, whatever its policy says."""
    is_over = entry.policy.is_finished(entry.total_run_count)
    following = None if is_over else next_run(entry.schedule, entry.policy, now, since)
    bare = entry.policy.unbounded()
    return following, following is not None or next_run(entry.schedule, bare, now, since) is not None


def check_future(context: Context, row: Row) -> Iterator[Finding]:
    """Find enabled entries that never run again."""
    entry, score = row.entry, row.stored.score
    if entry is None or score is None or row.is_quarantined or not entry.is_enabled_at(context.now):
        return
    if isinstance(entry.policy.calendar, Unusable) or 0 <= score <= context.now.timestamp():
        return  # another check reports it, or beat is about to send it
    name, since = context.name_of(row.key), in_utc(entry.last_run_at or context.now)
    try:
        following, has_time = _look_ahead(entry, context.now, since)
        why = why_never(entry, context.now) if following is None else ""
    except (ValueError, OverflowError, RuntimeError) as exc:
        yield Finding(
            Severity.ERROR,
            "no-time",
            name,
            f"Its next time can't be computed: {str(exc).rstrip('.')}.",
            "Give it another schedule.",
        )
        return
    if score < 0 and following is not None:
        yield Finding(
            Severity.WARNING,
            "never-again",
            name,
            f"It never runs again, as its score is {score:g}, though its schedule has a time at "
            f"{shown(following)}.",
            "If that isn't intended, save it with another schedule or policy, or set its score.",
        )
    elif score < 0:
        yield Finding(
            Severity.NOTE,
            "never-again",
            name,
            f"It never runs again: {why}",
            "Delete it where nobody needs it any more.",
        )
    elif following is None and not has_time and not entry.total_run_count:
        yield Finding(
            Severity.WARNING,
            "no-time",
            name,
            "Its schedule has no time after now, and it has never run.",
            "Give it another schedule, or delete it.",
        )
    elif following is None and not entry.policy.is_finished(entry.total_run_count):
        yield Finding(
            Severity.NOTE,
            "last-run",
            name,
            f"After what is due next it never runs again: {why}",
            "Nothing, if that is intended.",
        )


def excerpt_of(stored: Stored, reason: str) -> str:
    """Return the part of the stored text that ``reason`` is about, on one line; '': not known."""
    said = _FIELD.search(reason)
    if said is None:
        return ""
    text = _SECRET.sub(_stars, getattr(stored, said[1]) or "")
    place = 0
    try:
        json.loads(text)
    except json.JSONDecodeError as exc:
        place = max(exc.pos - EXCERPT_LENGTH // 2, 0)
    except (ValueError, RecursionError):
        pass
    else:
        words = [said[2], *re.findall(r"\b(\w+):", reason)] if said[2] else []
        found = [text.find(f'"{word}"') for word in dict.fromkeys(filter(None, words))]
        place = max([0, *found[:1]])
    if len(text) <= EXCERPT_LENGTH:
        place = 0
    cut = text[place : place + EXCERPT_LENGTH]
    shown = printable(re.sub(r"[ \t\r\n]+", " ", cut).strip())
    return ("…" if place else "") + shown + ("…" if text[place + len(cut) :] else "")


def _stars(found: re.Match[str]) -> str:
    return found[1] + "*" * len(found[2])  # as long, so that places in the text stay the same


def _shown(time: str) -> str:
    """Return a time that beat has stored as text for a sentence; unchanged if somebody else wrote it."""
    try:
        return shown(in_utc(time_of(time)))
    except (ValueError, OverflowError):
        return printable(time[:30])


def _own_part(reason: str, key: str) -> str:
    """Return ``reason`` without the key that it begins with: a finding names it already."""
    return shorten(reason.removeprefix(f"{printable(key)}: "), 300)


def _sentence(reason: str, key: str) -> str:
    words = _own_part(reason, key)
    return words if words.endswith((".", "...")) else f"{words}."


ENTRY_CHECKS = (check_hash, check_usable, check_calendar, check_typos, check_future)
