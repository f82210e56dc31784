"""The runs to come of one entry, and its runs between two times. Pure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import chain, dropwhile, islice, takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from redbeat.entries.due import anchor_of, first_after_pause, paused_until, retry_of
from redbeat.entries.wording import clock, one_line, relative
from redbeat.errors import EntryError
from redbeat.log.text import printable
from redbeat.policy.policy import Policy
from redbeat.schedules.occurrences import (
    FIRST_OCCURRENCE_GRACE,
    first_run,
    phase_before,
    runs_after,
    zone_of,
)
from redbeat.schedules.timezones import FIRST_DAY, find_time_problem, in_utc

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

Item = TypeVar("Item")

#: how much processor time the runs of one entry may take in a list of many entries; seconds
MAX_SECONDS = 1.0
_INSTANT = timedelta(microseconds=1)
_END = datetime.max.replace(tzinfo=timezone.utc)


def next_runs(
    entry: RedBeatSchedulerEntry,
    count: int,
    after: datetime | None,
    tz: tzinfo | None,
    now: datetime | None = None,
) -> list[datetime]:
    """Return the next runs of ``entry``, at most ``count``; see its method of the same name.

    ``now``: by the server's clock; None: by this machine's.
    """
    since = None if after is None else _checked(entry, "after", after)
    runs = islice(_runs(entry, since, rests=True, now=now), count)
    shown_in = tz or zone_of(entry.schedule, entry.policy)
    return [due.astimezone(shown_in) for due in runs]


def runs_between(entry: RedBeatSchedulerEntry, begin: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the runs of ``entry`` from ``begin`` to ``end``, both included."""
    first, last = _checked(entry, "the first time", begin), in_utc(end)
    shown_in = zone_of(entry.schedule, entry.policy)
    for due in takewhile(lambda due: due <= last, _runs(entry, max(first, FIRST_DAY) - _INSTANT)):
        yield due.astimezone(shown_in)


def runs_from(
    entry: RedBeatSchedulerEntry, due: datetime, after: datetime | None = None
) -> Iterator[datetime]:
    """Yield the run that ``entry`` has in Redis, at ``due``, and those that its schedule has after it.

    With ``after`` the later ones; those before it count among the runs that a policy allows.

    Raises:
        EntryError: they can't be computed, or take too much processor time.
    """
    limit = 1 if entry.policy.one_off else entry.policy.max_runs
    if limit is None and after is not None and after >= due:
        yield from in_time(entry, runs_between(entry, after + _INSTANT, _END))
        return
    runs = chain([due], runs_between(entry, due + _INSTANT, _END))
    left = None if limit is None else max(limit - entry.total_run_count, 0)
    every = in_time(entry, islice(runs, left))
    yield from every if after is None else dropwhile(lambda run: run <= after, every)


def in_time(entry: RedBeatSchedulerEntry, runs: Iterable[Item]) -> Iterator[Item]:
    """Yield the ``runs`` of ``entry`` while they take less than ``MAX_SECONDS`` of processor time together.

    Raises:
        EntryError: they take more.
    """
    until = time.thread_time() + MAX_SECONDS
    for run in runs:
        yield run
        if time.thread_time() > until:
            words = f"its schedule has more of them than {MAX_SECONDS:g} s of processor time suffice for."
            raise EntryError(words, entry.key)


def reason_of(entry: RedBeatSchedulerEntry, exc: Exception) -> str:
    """Return the name of ``entry``, and why its runs can't be computed."""
    return f"{one_line(entry.name)}: {one_line(str(exc).removeprefix(f'{printable(entry.key)}: '))}"


def _checked(entry: RedBeatSchedulerEntry, name: str, moment: datetime) -> datetime:
    problem = find_time_problem(moment, first_year=1)
    if problem:
        raise EntryError(f"{entry.key}: {name} {problem}", entry.key)
    return in_utc(moment)


def _runs(
    entry: RedBeatSchedulerEntry,
    after: datetime | None,
    *,
    rests: bool = False,
    now: datetime | None = None,
) -> Iterator[datetime]:
    """Yield the runs of ``entry`` later than ``after``; None: from now on, beginning with its first one.

    ``rests``: leave out those before the end of its pause, or before a run is tried again that couldn't be
    sent.

    Raises:
        EntryError: they can't be computed.
    """
    policy = entry.bounds()
    limit = 1 if policy.one_off else policy.max_runs
    left = None if limit is None else max(limit - entry.total_run_count, 0)
    try:
        start = _start_of(entry, policy, after, rests, now or datetime.now(timezone.utc))
        if start is not None:
            later = runs_after(entry.schedule, policy, start.since, start.anchor)
            yield from islice(chain(filter(None, [start.first]), later), left)
    except EntryError:
        raise
    except ValueError as exc:
        raise EntryError(f"{entry.key}: its next run can't be computed: {exc}", entry.key) from exc


class _Start(NamedTuple):
    """Where the runs of an entry begin: with ``first``, if any, and then those later than ``since``."""

    first: datetime | None
    since: datetime
    anchor: datetime | None


def _start_of(
    entry: RedBeatSchedulerEntry, policy: Policy, after: datetime | None, rests: bool, now: datetime
) -> _Start | None:
    """Return where the runs of ``entry`` begin; see ``_runs``. None: it has none after its pause."""
    never_ran_at = _score_of_new(entry)
    anchor = never_ran_at if entry.last_run_at is None else anchor_of(entry)
    first, until = None, paused_until(entry)
    if rests and until is not None and until > now and (after is None or after < until):
        after = until - _INSTANT
        if entry.last_run_at is not None:
            first = first_after_pause(entry, policy)
            return None if first is None else _Start(first, first, anchor)
    retry = retry_of(entry.stored) if rests and entry.stored is not None else None
    if retry is not None and entry.is_enabled_at(now) and (after is None or after < retry):
        return _Start(retry, max(retry, now), anchor)  # it stands for the runs until now
    if after is None:
        after = now
        if never_ran_at is not None:
            first = never_ran_at
        elif entry.last_run_at is not None and not entry.total_run_count:
            first = first_run(entry.schedule, policy, in_utc(entry.last_run_at))
    if first is not None and first > after - FIRST_OCCURRENCE_GRACE:  # beat is about to send it
        return _Start(first, first, first)
    if anchor is not None and anchor > after:
        anchor = phase_before(entry.schedule, policy, anchor, after)
    return _Start(None, after, anchor)


def _score_of_new(entry: RedBeatSchedulerEntry) -> datetime | None:
    """Return when an entry that was stored without a last run is sent first; None: it had a last run."""
    if entry.last_run_at is not None or entry.stored is None or not entry.stored.score:
        return None
    due: datetime | None = entry.next_due_at
    return due


def next_run_in_words(
    entry: RedBeatSchedulerEntry, zone: tzinfo, now: datetime, tell: Callable[[datetime, tzinfo], str] = clock
) -> tuple[str, str]:
    """Return when beat sends ``entry`` next, and the time until then, or ''; or why it doesn't."""
    due = entry.next_due_at
    if due is None:
        state = entry.state
        return state if state in ("paused", "disabled", "quarantined") else "never", ""
    if due.timestamp() == 0:
        return "at once", ""  # a score of 0 isn't a date
    return tell(due, zone), relative(due, now)
