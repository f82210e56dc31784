"""When entries with one schedule and one policy run, computed once for all that are due at the same time.

Owns what a plan needs to know of a schedule where nothing special has happened: the run is sent as of its due
time, none was missed, and the score is the schedule's own time. Invariant: :meth:`Timetable.turn` returns
what ``plan_run`` decides, or None where it would decide anything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery.schedules import schedule as interval

from redbeat.beat.tracking import Tracking
from redbeat.decoder import moment_json
from redbeat.entries.due import ROUNDING
from redbeat.history import sent_record
from redbeat.policy.expiry import expiry_of
from redbeat.policy.misfires import patience_of, recorded
from redbeat.policy.policy import Policy
from redbeat.process.containment import let_through
from redbeat.schedules.occurrences import first_run, next_run
from redbeat.schedules.timezones import moment_of
from redbeat.store.records import TrackedRun, score_text

_NO_TIME = timedelta(0)


@dataclass(slots=True)
class Turn:
    """The run that is due at one time.

    Attributes:
        at: its due time, UTC.
        due: the same in ISO 8601, as in the message's header ``redbeat_due``.
        new_score: the next due time as the server writes it.
        ran_at, ran_at_json: what becomes last_run_at.
        record: what is added to the history.
        valid_until: when this doesn't hold any more: another run is due then, or it is too late for this one,
            or for its message; UNIX seconds.
        is_whole: the due time is a whole second, and may be a score that celery-redbeat 2.x has cut.
        expires: when its message expires by the policy, UTC; None: never. An entry's own option ``expires``
            may be earlier.
        expiration_seconds: how long after now that is; None: never.
        run: what is noted of it; None: it isn't tracked.
    """

    at: datetime
    due: str
    new_score: str
    ran_at: datetime
    ran_at_json: str
    record: str
    valid_until: float
    is_whole: bool
    expires: datetime | None
    expiration_seconds: float | None
    run: TrackedRun | None
    _agreed: dict[tuple[datetime, bool], bool] | None = None


class Timetable:
    """One schedule with one policy.

    Arguments:
        schedule: an interval or a crontab.
        policy: without bounds, jitter and calendar.
        defaults: the app's settings for those fields that ``policy`` leaves open.
        is_tracked: its runs are tracked.
    """

    def __init__(self, schedule: Any, policy: Policy, defaults: Policy, *, is_tracked: bool = False) -> None:
        self._tracking = Tracking(policy) if is_tracked else None
        self._schedule = schedule
        self._policy = policy
        way = policy.misfire or defaults.misfire or "latest"
        self._is_each = way == "all"
        patience, _ = patience_of(policy, defaults, way)
        self._patience = None if patience is None else timedelta(seconds=patience)
        is_interval = type(schedule) is interval and not schedule.relative
        #: how far apart its runs are, from each due time to the next; None: that isn't a constant
        self._every: timedelta | None = (
            schedule.run_every if is_interval and schedule.run_every > _NO_TIME else None
        )
        self._turns: dict[str, Turn | None] = {}
        self._now = math.nan
        self._moment = moment_of(0)

    def turn(self, nominal: str, now: float) -> Turn | None:
        """Return the run that is due at ``nominal``, UNIX seconds as the server writes them.

        Arguments:
            now: the server's clock, UNIX seconds.
        """
        if now != self._now:
            self._turns.clear()
            self._now, self._moment = now, moment_of(now)
        elif nominal in self._turns:
            return self._turns[nominal]
        try:
            turn = self._compute(nominal)
        except BaseException as exc:  # noqa: BLE001 - plan_run raises it again, for the entry that it is about
            let_through(exc)
            turn = None
        self._turns[nominal] = turn
        return turn

    def _compute(self, nominal: str) -> Turn | None:
        seconds = float(nominal)
        at, now = moment_of(seconds), self._moment
        if self._patience is not None and at < now - self._patience:
            return None
        following = at + self._every if self._every else next_run(self._schedule, self._policy, at, at)
        if following is None or following <= now:
            return None
        policy = self._policy
        if policy.expires_after is not None and at.timestamp() + policy.expires_after <= self._now:
            return None  # Celery warns of it
        ran_at = at if self._is_each else recorded(self._schedule, at, now)
        expires, left = expiry_of(policy, at, self._now, policy.message_queue_seconds)
        latest = following if self._patience is None else min(following, at + self._patience)
        if expires is not None:
            latest = min(latest, expires)
        new_score = score_text(following.timestamp())
        return Turn(
            at,
            at.isoformat(timespec="microseconds"),
            new_score,
            ran_at,
            moment_json(ran_at),
            sent_record(nominal),
            latest.timestamp(),
            seconds.is_integer(),
            expires,
            left,
            None if self._tracking is None else self._tracking.run(nominal, new_score),
        )

    def agrees(self, turn: Turn, last_run: datetime, *, has_run: bool) -> bool:
        """Return True if the schedule makes an entry that ran at ``last_run`` due at that turn, or earlier.

        Raises:
            Exception: that can't be computed.
        """
        if turn._agreed is None:  # noqa: SLF001 - the two are one thing
            turn._agreed = {}  # noqa: SLF001
        known = turn._agreed.get((last_run, has_run))  # noqa: SLF001
        if known is None:
            known = turn.at <= last_run <= self._moment
            if not known:
                first = last_run + self._every if self._every else self._first_after(last_run, has_run)
                known = first is not None and first - turn.at <= ROUNDING
            turn._agreed[last_run, has_run] = known  # noqa: SLF001
        return known

    def _first_after(self, last_run: datetime, has_run: bool) -> datetime | None:
        if has_run:
            return next_run(self._schedule, self._policy, last_run, last_run)
        return first_run(self._schedule, self._policy, last_run)
