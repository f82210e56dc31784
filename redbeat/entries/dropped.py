"""Runs that aren't sent, as after an outage: which they are, how many, and why. Pure.

Invariant: a number that isn't known is left out. Counting them doesn't take longer than planning a run.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import takewhile
from typing import Any

from celery.schedules import crontab

from redbeat.history import record_of
from redbeat.policy.misfires import Choice
from redbeat.policy.policy import Policy
from redbeat.process.memory import Memory
from redbeat.schedules.codec import cronspecs
from redbeat.schedules.crontab import count_of_crontab
from redbeat.schedules.occurrences import cron, is_interval, last_runs, runs_after, runs_back, zone_of
from redbeat.schedules.timezones import shown
from redbeat.store.records import score_text

_INSTANT = timedelta(microseconds=1)

#: how many runs are counted one by one at most, and for how much processor time: after an outage all entries
#: are late, and none should wait long for another's count
MAX_COUNTED, MAX_SECONDS = 5000, 0.005

#: the last run and the count of a crontab in an outage, as thousands of entries may share both
_counted = Memory[Any, tuple[datetime, int | None]](limit=1024)


@dataclass(frozen=True)
class Dropped:
    """Consecutive runs that aren't sent.

    Attributes:
        first, last: the due times of the first and the last of them, UTC.
        count: how many there are; None: too many to count.
        why: the reason, as a phrase.
        is_merged: another run is sent that stands for them.
        reason: in one word, one of ``redbeat.store.figures.REASONS``.
    """

    first: datetime
    last: datetime
    count: int | None
    why: str
    is_merged: bool = False
    reason: str = "late"

    @property
    def counted(self) -> str:
        """What is counted of them, as a commit has it; where there are too many, as many as were counted."""
        word = "merged" if self.is_merged else f"skipped/{self.reason}"
        return f" {word}={MAX_COUNTED if self.count is None else self.count}"

    @property
    def record(self) -> str:
        """Their record in the entry's history."""
        first, last = score_text(self.first.timestamp()), score_text(self.last.timestamp())
        outcome = "merged" if self.is_merged else "skipped"
        return record_of(first, outcome, last=last, why=self.why, count=self.count)

    def describe(self, name: str) -> str:
        """Return the sentence that beat logs about them, as runs of the entry ``name``."""
        done = "Merged" if self.is_merged else "Skipped"
        if self.first == self.last:
            return f"{done} the run of {name} that was due at {shown(self.first)}: {self.why}."
        runs = "runs" if self.count is None else f"{self.count} runs"
        return f"{done} {runs} of {name}, from {shown(self.first)} to {shown(self.last)}: {self.why}."


def dropped_by(
    schedule_: Any, bounds: Policy, choice: Choice, nominal: datetime, sent: datetime | None, now: datetime
) -> Iterator[Dropped]:
    """Yield the runs from ``nominal`` to ``now`` that ``choice`` leaves out, the earliest first.

    Arguments:
        sent: the due time of the run that is sent; None: there is none.
    """
    in_time = choice.in_time
    if in_time is None or nominal < in_time:
        end = now if in_time is None else in_time - _INSTANT
        yield dropped_until(schedule_, bounds, nominal, end, choice.why_late)
    if in_time is None or sent is None:
        return
    covered = f"covered by the run of {shown(sent)}"
    if in_time < sent:
        why, is_merged = choice.why_left_out or covered, not choice.why_left_out
        end = sent - _INSTANT
        yield dropped_until(schedule_, bounds, in_time, end, why, is_merged=is_merged, reason="misfire")
    if choice.stands_until is not None and sent < choice.stands_until:
        first = next(runs_after(schedule_, bounds, sent, sent))
        yield dropped_until(schedule_, bounds, first, choice.stands_until, covered, is_merged=True)


def dropped_until(
    schedule_: Any,
    bounds: Policy,
    first: datetime,
    end: datetime,
    why: str,
    *,
    is_merged: bool = False,
    reason: str = "late",
) -> Dropped:
    """Return the runs from ``first``, which is the first of them, to ``end``."""
    if is_even(schedule_, bounds):
        more = max((end - first) // schedule_.run_every, 0)
        return Dropped(first, first + more * schedule_.run_every, more + 1, why, is_merged, reason)
    crontab_ = crontab_key(schedule_, bounds)
    found = None if crontab_ is None else _counted.get((crontab_, first, end))
    if found is None:
        found = _count_until(schedule_, bounds, first, end)
        if crontab_ is not None:
            _counted[crontab_, first, end] = found
    return Dropped(first, *found, why, is_merged, reason)


def is_even(schedule_: Any, policy: Policy) -> bool:
    """Return True if the runs are an interval apart, wherever the first one is."""
    is_free = policy.exclude is None and policy.calendar is None
    return is_free and is_interval(schedule_) and not schedule_.relative


def crontab_key(schedule_: Any, policy: Policy) -> Hashable | None:
    """Return what the runs of a crontab depend on; None: on a calendar, too, or it isn't a crontab."""
    if type(schedule_) not in (crontab, cron) or policy.exclude is not None or policy.calendar is not None:
        return None
    fields = [spec if isinstance(spec, (int, str)) else tuple(spec) for spec in cronspecs(schedule_)]
    expression = getattr(schedule_, "expression", None)
    return (*fields, expression, zone_of(schedule_, policy), policy.start_time, policy.end_time)


def _count_until(
    schedule_: Any, bounds: Policy, first: datetime, end: datetime
) -> tuple[datetime, int | None]:
    """Return the last of the runs from ``first`` to ``end``, and how many there are; None: too many."""
    last, count, deadline = first, 1, time.thread_time() + MAX_SECONDS
    try:
        back = runs_back(schedule_, bounds, first, end)
        if back is not None and isinstance(schedule_, crontab) and bounds.calendar is None:
            last = next(takewhile(lambda due: due > first, back), first)
            return last, count + count_of_crontab(schedule_, first, last, zone_of(schedule_, bounds))
        # counting backwards takes a tenth of the time
        runs = runs_after(schedule_, bounds, first, first) if back is None else back
        for due in takewhile(lambda due: first < due <= end, runs):
            last, count = max(last, due), count + 1
            if count > MAX_COUNTED or time.thread_time() > deadline:
                if back is None:
                    last = last_runs(schedule_, bounds, last, end, 1)[0][-1]
                return last, None
        return last, count
    except ValueError:  # a rule that is too sparse, say
        return first, None
