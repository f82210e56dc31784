"""What a schedule does in a span of time: every run of all its entries, in order.

Invariant: runs are computed one by one as they are asked for, so a span may be of any length.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from heapq import heapify, heappop, heapreplace
from typing import Any

from celery import Celery

from redbeat.config.suggestions import did_you_mean
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryError
from redbeat.scheduler.startup import read_statics
from redbeat.schedules.occurrences import Excluded
from redbeat.schedules.timezones import instant_of, time_of
from redbeat.testing.course import Course
from redbeat.testing.outages import Outages
from redbeat.testing.overlap import DurationOf
from redbeat.testing.trace import SimulatedRun

#: a time: aware, or in a zone that the function says; a text is in ISO 8601
Time = datetime | str

#: how long a run takes: a number of seconds, or None: no worker ever begins it
Duration = float | timedelta | None
Durations = Mapping[str, Duration] | Callable[[SimulatedRun], Duration]


def simulate(
    app_or_entries: Celery | RedBeatSchedulerEntry | Iterable[RedBeatSchedulerEntry],
    start: Time,
    end: Time,
    *,
    durations: Durations | None = None,
    outages: Iterable[tuple[Time, Time]] = (),
    calendars: Mapping[str, Excluded] | None = None,
) -> Iterator[SimulatedRun]:
    """Yield what becomes of each run from ``start`` to ``end``, both included, by its nominal time.

    Each time that an entry's schedule names is one run, also where it isn't sent: then ``why`` says why. It
    is decided by beat's own functions, without Redis, a clock or a broker. Beat's log is written, too,
    where runs are missed.

    An entry that was never saved, and has no ``last_run_at``, is taken to be saved at ``start``: an
    interval has its first run one interval later. Before that, all runs are taken to have been sent in
    time.

    Arguments:
        app_or_entries: an app, for the entries of its code (``beat_schedule``); or an entry, or several,
            such as ``RedBeatSchedulerEntry.list(app)`` returns. None of them is changed.
        start, end: datetimes, or texts such as '2026-03-29' or '2026-03-29 07:30'; naive ones are in the
            app's time zone.
        durations: how long runs take, for ``overlap`` and ``max_runtime``: from names of entries to seconds
            or timedeltas, or a function that is called with each run that is sent. None as a duration: no
            worker ever begins it. Runs of an entry that isn't named take no time.
        outages: spans in which no beat leads, each (from, to), for ``misfire`` and the like.
        calendars: from names to calendars, for ``exclude``; those that are missing are read from Redis.

    Raises:
        EntryError: an entry can't be used, or couldn't be saved.
        ValueError: another argument can't be used.
    """
    entries = _entries(app_or_entries)
    zone = entries[0].app.timezone if entries else timezone.utc
    begin, last = instant("start", start, zone), instant("end", end, zone)
    if last < begin:
        raise ValueError(f"end: {end} is before start, {start}.")
    away = Outages((instant("outages", one, zone), instant("outages", other, zone)) for one, other in outages)
    duration_of = None if durations is None else _duration_of(durations, entries)
    courses = [Course(entry, begin, last, away, calendars or {}, duration_of) for entry in entries]
    return _merged([course.runs() for course in courses])


def entries_of(app: Celery) -> dict[str, RedBeatSchedulerEntry]:
    """Return the entries of an app's code, by their names: those that beat stores at its start.

    Raises:
        EntryError: one of them can't be made.
    """
    return {name: _made(app, name, fields) for name, fields in read_statics(app).items()}


def _entries(given: Any) -> list[RedBeatSchedulerEntry]:
    """Return the entries that ``given`` is or has, by their names."""
    if isinstance(given, Celery):
        given = entries_of(given).values()
    is_several = isinstance(given, Iterable) and not isinstance(given, (str, Mapping, RedBeatSchedulerEntry))
    entries = list(given) if is_several else [given]
    for entry in entries:
        if not isinstance(entry, RedBeatSchedulerEntry):
            raise ValueError(f"simulate takes a Celery app, an entry or several entries, not {entry!r}.")
    return sorted(entries, key=lambda entry: str(entry.name))


def _made(app: Celery, name: str, fields: Any) -> RedBeatSchedulerEntry:
    """Return what beat makes of an item of ``beat_schedule``."""
    if isinstance(fields, RedBeatSchedulerEntry):
        return fields
    try:
        return RedBeatSchedulerEntry(**{**fields, "name": name, "app": app})
    except TypeError as exc:
        raise EntryError(f"{name}: {exc}", name) from exc


def _merged(courses: list[Iterator[SimulatedRun]]) -> Iterator[SimulatedRun]:
    """Yield the runs of all ``courses`` by their nominal times; at the same time by the order of courses."""
    heads = [
        (run.due, place, run, runs)
        for place, runs in enumerate(courses)
        if (run := next(runs, None)) is not None
    ]
    heapify(heads)
    while heads:
        _, place, run, runs = heads[0]
        yield run
        following = next(runs, None)
        if following is None:
            heappop(heads)
        else:
            heapreplace(heads, (following.due, place, following, runs))


def instant(argument: str, given: Any, zone: tzinfo) -> datetime:
    """Return the time ``given`` in UTC; a naive one is in ``zone``, as an entry's times are.

    Raises:
        ValueError: it is no time; the message begins with the name of the ``argument``.
    """
    try:
        moment = time_of(given) if isinstance(given, str) else given
    except ValueError as exc:
        raise ValueError(f"{argument}: {given!r} is no time; write it as '2026-12-24 18:00'.") from exc
    if not isinstance(moment, datetime):
        raise ValueError(
            f"{argument}: must be a datetime or a text such as '2026-12-24 18:00', not {given!r}."
        )
    return instant_of(moment, zone) if moment.tzinfo is None else moment.astimezone(timezone.utc)


def _duration_of(durations: Durations, entries: list[RedBeatSchedulerEntry]) -> DurationOf:
    if callable(durations):
        ask = durations
        return lambda run: _duration(run.name, ask(run))
    names = [str(entry.name) for entry in entries]
    for unknown in durations.keys() - set(names):
        hint = did_you_mean(unknown, names)
        raise ValueError(f"durations: none of the entries is called {unknown!r}.{hint}")
    checked = {name: _duration(name, given) for name, given in durations.items()}
    return lambda run: checked.get(run.name, timedelta(0))


def _duration(name: str, given: Any) -> timedelta | None:
    if given is None or (isinstance(given, timedelta) and given >= timedelta(0)):
        return given
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    if not is_number or not 0 <= given < math.inf:
        raise ValueError(
            f"durations: {name}: must be a timedelta, a number of seconds from 0 on, or None, not {given!r}."
        )
    return timedelta(seconds=given)
