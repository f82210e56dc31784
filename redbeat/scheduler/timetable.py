"""What follows from a due time, computed once for all entries with the same schedule and policy. Pure.

Invariant: a memo never changes a decision. Everything here depends on the schedule, the policy with its
calendar, the settings that the policy leaves open, the due time, and the time of planning.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redbeat.decoder import moment_json
from redbeat.entries.dropped import Dropped, dropped_by
from redbeat.history import sent_record
from redbeat.policy.misfires import choose_run, rules_of
from redbeat.policy.policy import Policy
from redbeat.runs.limits import Tracking
from redbeat.scheduler.decisions import counted, records_of
from redbeat.schedules.occurrences import first_run, next_run
from redbeat.schedules.timezones import EPOCH, FIRST_DAY, moment_of
from redbeat.store.records import TrackedRun, score_text

#: own times after a last run that are remembered; when there are more, all are forgotten
MAX_OWN_TIMES = 10_000

#: the score of an entry that never runs again
NEVER = score_text(-1.0)


@dataclass(slots=True)
class Turn:
    """What follows from one due time.

    Attributes:
        at: due time of the run that is sent, UTC; None: none is.
        nominal: the same in UNIX seconds, as the server writes them.
        due: the same in ISO 8601, as in the header ``redbeat_due``.
        ran_at: what becomes last_run_at.
        following: the next due time after it; None: never.
        new_score: the same as the server writes it, without jitter.
        dropped: missed runs that are not sent.
        records: history records of these runs and of the run that is sent; () if there are none.
        counted: what is counted of them.
        run: what is noted of the run while it is in progress; None: it is not tracked.
        valid_until: until when all of this holds, UNIX seconds.
    """

    at: datetime | None
    nominal: str
    due: str
    ran_at: datetime
    ran_at_json: str
    following: datetime | None
    new_score: str
    dropped: tuple[Dropped, ...]
    records: tuple[str, ...]
    counted: str
    run: TrackedRun | None
    valid_until: float


class Timetable:
    """One schedule with one policy.

    Arguments:
        bounds: the policy with its calendar.
        defaults: the app's settings for those fields that the policy leaves open.
        is_tracked: its runs are tracked.
    """

    def __init__(self, schedule: Any, bounds: Policy, defaults: Policy, *, is_tracked: bool) -> None:
        self.schedule = schedule
        self.bounds = bounds
        self.tracking = Tracking(bounds) if is_tracked else None
        self._rules = rules_of(schedule, bounds, defaults)
        patience = self._rules.patience_seconds
        self._patience_seconds = math.inf if patience is None else patience
        self._moment = EPOCH
        self._turns: dict[tuple[str, bool], Turn] = {}
        self._own_times: dict[tuple[datetime, bool], datetime | None] = {}

    def turn(self, nominal: str, moment: datetime, *, is_retried: bool = False) -> Turn:
        """Return what follows from the due time ``nominal``, UNIX seconds as the server writes them.

        Arguments:
            moment: the time of planning, by the server's clock.
            is_retried: the run could not be sent before; it keeps its due time unless it is too late for it.
        """
        if moment is not self._moment:
            self._turns.clear()
            self._moment = moment
        found = self._turns.get((nominal, is_retried))
        if found is None:
            found = self._turns[nominal, is_retried] = self._compute(nominal, is_retried)
        return found

    def _compute(self, nominal: str, is_retried: bool) -> Turn:
        at, moment = moment_of(float(nominal)), self._moment
        choice = choose_run(self.schedule, self.bounds, at, moment, self._rules)
        following = choice.following
        due, due_text = at, nominal
        if choice.due is not None and choice.due != at and not (is_retried and choice.first == at):
            due, due_text = choice.due, score_text(choice.due.timestamp())
        sent = None if choice.due is None else due
        dropped: tuple[Dropped, ...] = ()
        if not (at == choice.due == choice.in_time and choice.stands_until is None):
            dropped = tuple(dropped_by(self.schedule, self.bounds, choice, at, sent, moment))
        records = records_of(dropped) if dropped else ()
        following_at = math.inf if following is None else following.timestamp()
        new_score = NEVER if following is None else score_text(following_at)
        if sent is None:
            texts = "", "", choice.ran_at, ""
            return Turn(None, *texts, following, new_score, dropped, records, counted(dropped), None, 0.0)
        run = None if self.tracking is None else self.tracking.run(due_text, new_score, records)
        return Turn(
            due,
            due_text,
            due.isoformat(timespec="microseconds"),
            choice.ran_at,
            moment_json(choice.ran_at),
            following,
            new_score,
            dropped,
            (*records, sent_record(due_text)) if records else (),
            counted(dropped),
            run,
            min(following_at, float(due_text) + self._patience_seconds),  # another is due, or it is too late
        )

    def own_time(self, last_run: datetime, *, has_run: bool) -> datetime | None:
        """Return the first due time after ``last_run``; None: there is none.

        Arguments:
            has_run: False: the entry has never run, and was saved then.
        """
        key = last_run, has_run
        if key not in self._own_times:
            if len(self._own_times) >= MAX_OWN_TIMES:
                self._own_times.clear()
            since = max(last_run, FIRST_DAY)
            if has_run:
                found = next_run(self.schedule, self.bounds, since, since)
            else:
                found = first_run(self.schedule, self.bounds, since)
            self._own_times[key] = found and max(found, EPOCH)  # a negative score would mean never
        return self._own_times[key]
