"""What is remarkable about an entry's next runs: where clocks change, and which days are left out. Pure.

Invariant: runs that are only shown cost no more than runs that are computed: nothing here counts through all
that a calendar excludes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.schedules import schedule

from redbeat.entries.wording import label_of, local_time, offset_of
from redbeat.schedules.durations import seconds_in_words
from redbeat.schedules.exclusions import NEVER_FREE
from redbeat.schedules.occurrences import next_run, phase_before, zone_of

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: how many exclusions are told of between two runs
MOST_EXCLUSIONS = 5

_INSTANT = timedelta(microseconds=1)


class Mark(NamedTuple):
    """Something that is worth telling of a run.

    Attributes:
        kind: 'clocks' (they change between the run before it and this one), 'twice' (its wall time comes
            twice), 'skipped' (clocks skip the times before it), or 'excluded' (a calendar leaves out runs
            before it).
        words: a phrase.
    """

    kind: str
    words: str


def zone_for(entry: RedBeatSchedulerEntry) -> tzinfo:
    """Return the time zone that the schedule of ``entry`` goes by."""
    zone: tzinfo = entry.app.timezone if entry.schedule is None else zone_of(entry.schedule, entry.policy)
    return zone


def marks_of(
    entry: RedBeatSchedulerEntry, runs: Sequence[datetime], zone: tzinfo, since: datetime
) -> list[list[Mark]]:
    """Return the marks of each of an entry's next runs.

    Arguments:
        zone: in which they are shown.
        since: when the first exclusion may have begun: now.
    """
    changes = clock_changes([(entry, due) for due in runs], zone)
    found, before = [], since
    for due, words in zip(runs, changes, strict=True):
        marks = [Mark("excluded", one) for one in _exclusions(entry, before, due)]
        marks += [Mark("clocks", one) for one in words]
        found.append([*marks, *_marks_of_time(entry, due)])
        before = due
    return found


def _exclusions(entry: RedBeatSchedulerEntry, begin: datetime, end: datetime) -> Iterator[str]:
    """Yield which days its calendar excludes between two times, as far as the schedule has runs on them."""
    policy, own = entry.bounds(), zone_for(entry)
    calendar, bare = policy.calendar, policy.with_calendar(None)
    anchor = phase_before(entry.schedule, policy, end, begin) or begin
    at, told = begin, 0
    while calendar is not None:
        try:
            due = next_run(entry.schedule, bare, at, anchor)
        except ValueError:  # its times can't be computed, which is told elsewhere
            return
        if due is None or due >= end:
            return
        free = calendar.end_of_exclusion(due, own)
        if free is None:  # the entry's pause, say, leaves it out
            at = due
            continue
        if free >= NEVER_FREE:
            return
        if told == MOST_EXCLUSIONS:
            yield "and more"
            return
        days = [f"{moment.astimezone(own):%Y-%m-%d}" for moment in (due, free - _INSTANT)]
        yield f"{policy.exclude} excludes {' to '.join(dict.fromkeys(days))}"
        at, told = free - _INSTANT, told + 1


def _marks_of_time(entry: RedBeatSchedulerEntry, due: datetime) -> Iterator[Mark]:
    rule = entry.schedule
    if type(rule) is schedule and not rule.relative:
        return  # an interval knows of no clock
    own = zone_for(entry)
    local, before = local_time(due, own), local_time(due - _INSTANT, own)
    offset, was = local.utcoffset(), before.utcoffset()
    if local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset():
        which = "second" if local.fold else "first"
        yield Mark("twice", f"{local:%H:%M} comes twice in {label_of(own)}: this is the {which}")
    elif offset is not None and was is not None and offset > was:
        skipped = f"{local - (offset - was):%H:%M} to {local:%H:%M}"
        words = f"{label_of(own)} skips {skipped}: times in between count as this one"
        yield Mark("skipped", words)


def clock_changes(runs: Iterable[tuple[Any, datetime]], zone: tzinfo) -> Iterator[list[str]]:
    """Yield for each run, in words, how clocks have changed since the run before it in the list.

    Those of ``zone``, in which they are shown, and those that the entries go by.
    """
    listed = list(runs)
    zones = {label_of(one): one for one in (zone, *(zone_for(entry) for entry, _ in listed))}
    before = listed[0][1] if listed else None
    for _, due in listed:
        changes = []
        for label, one in zones.items():
            local = local_time(due, one)
            was, now = local_time(before or due, one).utcoffset(), local.utcoffset()
            if was is not None and now is not None and was != now:
                way = "forward" if now > was else "back"
                by = seconds_in_words(abs((now - was).total_seconds()))
                changes.append(f"clocks go {way} here: {label} by {by}, to {offset_of(local)}")
        yield changes
        before = due
