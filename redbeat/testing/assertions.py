"""Whether an entry runs when it should, and if not, a text that shows where the two differ."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, tzinfo
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.schedules.occurrences import Excluded, is_interval, zone_of
from redbeat.testing.simulation import Durations, Time, instant, simulate
from redbeat.testing.trace import SimulatedRun

#: how many differences are shown at most, and how many runs beside one that are as expected
MAX_SHOWN, MAX_BESIDE = 20, 2


class _Line(NamedTuple):
    """One run: '-' for one that is missing, '+' for one that isn't expected, ' ' for one that is."""

    sign: str
    due: datetime
    why: str = ""

    def text(self, zone: tzinfo) -> str:
        why = f"   {self.why}" if self.why else ""
        return f"{self.sign} {_shown(self.due, zone)}{why}"


def assert_runs(
    entry: RedBeatSchedulerEntry,
    expected: Iterable[Time],
    *,
    start: Time | None = None,
    end: Time | None = None,
    durations: Durations | None = None,
    outages: Iterable[tuple[Time, Time]] = (),
    calendars: Mapping[str, Excluded] | None = None,
) -> None:
    """Make sure that the runs of ``entry`` that are sent from ``start`` to ``end`` are those ``expected``.

    All naive times are in the time zone that the entry goes by.

    Arguments:
        expected: the nominal times of all of them: datetimes, or texts such as '2026-03-29 07:30'.
        start, end: both included; by default the first and the last of ``expected``. A new interval is then
            taken to have begun one interval before the first, and with a ``start`` to be saved then.
        durations, outages, calendars: as of :func:`simulate`.

    Raises:
        AssertionError: they aren't. It lists those that are missing, with the reason, and those that weren't
            expected.
        EntryError: the entry can't be used, or couldn't be saved.
        ValueError: another argument can't be used.
    """
    __tracebackhide__ = True
    if not isinstance(entry, RedBeatSchedulerEntry):
        raise ValueError(f"assert_runs takes a RedBeatSchedulerEntry, not {entry!r}.")
    if isinstance(expected, str):
        raise ValueError(f"expected: must be a list; write [{expected!r}].")
    zone = zone_of(entry.schedule, entry.policy)
    wanted = sorted(instant("expected", one, zone) for one in expected)
    for earlier, later in pairwise(wanted):
        if earlier == later:
            raise ValueError(
                f"expected: {_shown(earlier, zone)} is given twice; an entry runs once at a time."
            )
    if not wanted and (start is None or end is None):
        raise ValueError("expected: is empty, so give start and end: in which time should nothing run?")
    if start is None and wanted:
        entry = _begun_before(entry, wanted[0])
    begin = wanted[0] if start is None else instant("start", start, zone)
    last = wanted[-1] if end is None else instant("end", end, zone)
    spans = [(instant("outages", one, zone), instant("outages", other, zone)) for one, other in outages]
    for one in wanted:
        if not begin <= one <= last:
            raise ValueError(f"expected: {_shown(one, zone)} isn't between start and end.")
    runs = simulate(entry, begin, last, durations=durations, outages=spans, calendars=calendars)
    lines = list(_compared(wanted, runs))
    if any(line.sign != " " for line in lines):
        raise AssertionError(_told(entry, zone, begin, last, lines))


def _begun_before(entry: RedBeatSchedulerEntry, first: datetime) -> RedBeatSchedulerEntry:
    """Return ``entry``, and if it is a new interval, one whose first run is at ``first``."""
    rule: Any = entry.schedule
    is_steady = is_interval(rule) and not rule.relative
    if (
        not is_steady
        or entry.stored is not None
        or entry.has_last_run_at
        or entry.policy.start_time is not None
    ):
        return entry
    begun = copy.copy(entry)
    begun.last_run_at, begun.has_last_run_at = first - rule.run_every, True
    return begun


def _compared(wanted: list[datetime], runs: Iterator[SimulatedRun]) -> Iterator[_Line]:
    """Yield a line for each run that is wanted or sent, until there are more differences than are shown."""
    place = differences = 0
    for run in runs:
        while place < len(wanted) and wanted[place] < run.due:
            yield _Line("-", wanted[place], "its schedule has no such time")
            place, differences = place + 1, differences + 1
        is_wanted = place < len(wanted) and wanted[place] == run.due
        if is_wanted:
            place += 1
        if is_wanted and run.is_sent:
            yield _Line(" ", run.due)
        elif is_wanted:
            yield _Line("-", run.due, f"{run.outcome}: {run.why}")
            differences += 1
        elif run.is_sent:
            yield _Line("+", run.due, run.why)
            differences += 1
        if differences > MAX_SHOWN:
            return
    yield from (_Line("-", due, "its schedule has no such time") for due in wanted[place:])


def _told(
    entry: RedBeatSchedulerEntry, zone: tzinfo, begin: datetime, end: datetime, lines: list[_Line]
) -> str:
    """Return what is to be said of ``lines``: those that differ, with some beside them."""
    different = [place for place, line in enumerate(lines) if line.sign != " "]
    told, is_all = different[:MAX_SHOWN], len(different) <= MAX_SHOWN
    shown = {near for place in told for near in range(place - MAX_BESIDE, place + MAX_BESIDE + 1)}
    last = len(lines) if is_all else told[-1] + 1
    texts: list[str] = []
    for is_shown, group in groupby(range(last), key=shown.__contains__):
        places = list(group)
        if is_shown:
            texts += [lines[place].text(zone) for place in places]
        else:
            texts.append(f"  ... {len(places)} as expected")
    if not is_all:
        texts.append("  ... and more")
    head = f"{entry.name} ({entry.describe()}) doesn't run as expected"
    span = f"from {_shown(begin, zone)} to {_shown(end, zone)}"
    return "\n".join([f"{head} {span} (- is missing, + isn't expected):", *texts])


def _shown(moment: datetime, zone: tzinfo) -> str:
    local = moment.astimezone(zone)
    fraction = f".{local.microsecond:06d}".rstrip("0") if local.microsecond else ""
    return f"{local:%a %Y-%m-%d %H:%M:%S}{fraction} {local:%z}"
