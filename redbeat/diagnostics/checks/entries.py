"""Checks of one entry after the other: whether it can be used, and whether it will ever run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from redbeat.config.ping_urls import is_allowed, parse_ping_url
from redbeat.diagnostics.checks.context import Context, Row, some_of
from redbeat.diagnostics.findings import Finding, Severity, found
from redbeat.diagnostics.why import since_of
from redbeat.entries.calendar_loading import Unusable
from redbeat.entries.failures import failure_of, sha1_of
from redbeat.entries.saving import why_never
from redbeat.log.text import closed, counted, printable, shorten
from redbeat.schedules.codec import decoder_of
from redbeat.schedules.occurrences import next_run
from redbeat.schedules.timezones import in_utc, shown
from redbeat.store.downgrades import read_downgraded
from redbeat.store.records import Stored

#: how much of a wrong text is shown
EXCERPT_LENGTH = 80

_SECRET = re.compile(r'("ping_url"\s*:\s*")((?:[^"\\]|\\.)*)')
#: where the JSON decoder has found an error
_PLACE = re.compile(r"\(char (\d+)\)")
_FIELD = re.compile(r"(definition|meta|policy): (?:(\w+):)?")


def check_hash(_context: Context, row: Row) -> Iterator[Finding]:
    """Find a member of the schedule whose hash is gone."""
    if not row.stored.exists:
        yield found("missing-hash", row.key, target=row.member)


def check_usable(context: Context, row: Row) -> Iterator[Finding]:
    """Find entries that are quarantined, or will be when they are due, and runs that couldn't be sent."""
    failure, problem = failure_of(row.stored), row.problem if row.stored.exists else ""
    if failure is not None and failure.attempts and not problem:
        reason = closed(_own_part(failure.reason, row.key))
        yield found("failing", row.name, attempts=failure.attempts, reason=reason)
        return
    since = ""
    if failure is not None and failure.definition_sha1 == sha1_of(row.stored):
        problem = problem or closed(failure.reason)
        since = f" It has been out of use since {since_of(failure)}."
    if problem:
        problem, is_known = (
            _own_part(problem, row.key),
            context.has_tasks or not _is_of_unknown_kind(row.stored),
        )
        severity = Severity.ERROR if is_known else Severity.WARNING  # the application may have registered it
        remedy = "Correct it" if row.stored.is_hash else "Delete the key"
        excerpt = excerpt_of(row.stored, problem)
        words = {"problem": problem, "remedy": remedy, "since": since}
        yield found("quarantined", row.name, severity=severity, excerpt=excerpt, **words)


def _is_of_unknown_kind(stored: Stored) -> bool:
    """Return True if an application may have registered the type of the entry's schedule."""
    try:
        kind = json.loads(stored.definition or "")["schedule"]["__type__"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return False
    return isinstance(kind, str) and decoder_of(kind) is None


def check_calendar(_context: Context, row: Row) -> Iterator[Finding]:
    """Find entries whose calendar is missing or broken."""
    calendar = None if row.entry is None else row.entry.policy.calendar
    if isinstance(calendar, Unusable) and failure_of(row.stored) is None:
        yield found("calendar", row.name, reason=calendar.reason)


def check_typos(_context: Context, row: Row) -> Iterator[Finding]:
    """Find keys that resemble known ones, or are called like one and are not usable."""
    if row.entry is not None:
        for typos in filter(None, (row.entry.typos, getattr(row.entry.schedule, "typos", ""))):
            yield found("unknown-key", row.name, keys=typos)


def check_future(context: Context, row: Row) -> Iterator[Finding]:
    """Find enabled entries that never run again."""
    entry, score, now = row.entry, row.stored.score, context.now
    if entry is None or score is None or row.is_quarantined or not entry.is_enabled_at(now):
        return
    if isinstance(entry.policy.calendar, Unusable) or 0 <= score <= now.timestamp():
        return  # another check reports it, or beat is about to send it
    is_over, since = entry.policy.is_finished(entry.total_run_count), in_utc(entry.last_run_at or now)
    try:
        following = None if is_over else next_run(entry.schedule, entry.policy, now, since)
        if following is not None:
            if score < 0:
                yield found("never-again", row.name, score=score, time=shown(following))
            return
        has_time = next_run(entry.schedule, entry.policy.unbounded(), now, since) is not None
        why = why_never(entry, now)
    except (ValueError, OverflowError, RuntimeError) as exc:
        yield found("no-time", row.name, said=str(exc).rstrip("."))
        return
    if score < 0:
        yield found("never-again/over", row.name, why=why)
    elif not entry.total_run_count and not has_time:
        yield found("no-time/never-ran", row.name)


def check_ping_host(context: Context, row: Row) -> Iterator[Finding]:
    """Find an entry whose ``ping_url`` these settings don't allow."""
    entry = row.entry
    if entry is not None and entry.policy.ping_url is not None and entry.is_enabled_at(context.now):
        url = parse_ping_url(entry.policy.ping_url)
        if not is_allowed(url, context.config.ping_hosts):
            # without the application its settings aren't known
            severity = Severity.WARNING if context.has_tasks else Severity.NOTE
            yield found("ping-host", row.name, severity=severity, host=url.authority)


def check_downgraded(context: Context) -> Iterator[Finding]:
    """Report the entries that are taken out for celery-redbeat 2.x."""
    if names := sorted(map(context.name_of, read_downgraded(context.store))):
        words = f"{counted(len(names))} ({some_of(names)})"
        yield found("downgraded", context.store.parts[0].downgraded, names=words)


def excerpt_of(stored: Stored, reason: str) -> str:
    """Return the part of the stored text that ``reason`` is about, on one line; '': not known."""
    field = _FIELD.search(reason)
    if field is None:
        return ""
    # stars, as many as they hide, so that places in the text stay the same
    text = _SECRET.sub(lambda secret: secret[1] + "*" * len(secret[2]), getattr(stored, field[1]) or "")
    wrong = _PLACE.search(reason)
    place = int(wrong[1]) - EXCERPT_LENGTH // 2 if wrong else text.find(f'"{field[2]}"')
    place = max(place, 0) if len(text) > EXCERPT_LENGTH else 0
    cut = text[place : place + EXCERPT_LENGTH]
    excerpt = printable(re.sub(r"[ \t\r\n]+", " ", cut).strip())
    return ("…" if place else "") + excerpt + ("…" if text[place + len(cut) :] else "")


def _own_part(reason: str, key: str) -> str:
    """Return ``reason`` without the key that it begins with: a finding names it already."""
    return shorten(reason.removeprefix(f"{printable(key)}: "), 300)
