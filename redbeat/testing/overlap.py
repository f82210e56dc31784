"""Which run of an entry is in progress, until when it holds others back, and which one waits for it. No
Redis.

What holds a run back is decided in a script (``store/scripts/find_hold.lua``), and again here: a test
compares the two, with a real beat. Invariant: of each run all is known when it is returned, but for its end
where the next one may replace it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from redbeat.policy.policy import Policy
from redbeat.scheduler.bounds import why_dropped
from redbeat.schedules.timezones import shown
from redbeat.testing.outages import Outages
from redbeat.testing.trace import SimulatedRun, left_out

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: returns how long a run takes; None: no worker ever begins it
DurationOf = Callable[[SimulatedRun], timedelta | None]

_INSTANT = timedelta(microseconds=1)


class Overlap:
    """The runs in progress of one entry.

    Arguments:
        entry: as it was given.
        outages: when no beat leads.
        duration_of: None: durations aren't known, and nothing holds anything back.

    Attributes:
        waiting: the run that waits for the one in progress, as it ends; None: none does.
        freed_at: when what it waits for ends.
        released_at: when it goes.
    """

    def __init__(
        self, entry: RedBeatSchedulerEntry, outages: Outages, duration_of: DurationOf | None, start: datetime
    ) -> None:
        self._entry, self._outages, self._duration_of = entry, outages, duration_of
        self._in_progress: SimulatedRun | None = None
        self.waiting: SimulatedRun | None = None
        self.freed_at = self.released_at = start

    @property
    def _policy(self) -> Policy:
        return self._entry.policy

    @property
    def is_known(self) -> bool:
        """Whether it is known how long runs take."""
        return self._duration_of is not None

    def send(self, due: datetime, at: datetime, why: str = "") -> SimulatedRun:
        """Return the run due at ``due`` that is sent at ``at``, and is the one in progress from then on."""
        run = SimulatedRun(self._entry.name, due, "sent", at, why, None, self._entry)
        if self._duration_of is None:
            return run
        policy, duration = self._policy, self._duration_of(run)
        if duration is None:
            ends_at = at + timedelta(seconds=policy.queue_seconds)
            run = run._replace(outcome="never_started", ends_at=ends_at)
        else:
            ends_at, overdue_at = at + duration, self._overdue_at(at)
            run = run._replace(outcome="succeeded", ends_at=ends_at)
            if policy.revoke_overdue and overdue_at is not None and ends_at > overdue_at:
                why = f"it took longer than max_runtime ({policy.max_runtime:g} s)"
                run = run._replace(outcome="revoked", ends_at=overdue_at, why=why)
        self._in_progress = run
        return run

    def _overdue_at(self, began_at: datetime) -> datetime | None:
        """Return when beat finds that a run takes too long; None: it may take any time."""
        if self._policy.max_runtime is None:
            return None
        at = began_at + timedelta(seconds=self._policy.max_runtime)
        return self._outages.end_around(at) or at

    def _held_until(self, run: SimulatedRun) -> datetime:
        """Return until when ``run``, which was sent, holds others back."""
        assert run.sent_at is not None  # noqa: S101 - it was sent,
        assert run.ends_at is not None  # noqa: S101 - so it ends
        # beat sends what is due before it looks who takes too long
        if run.outcome == "revoked":
            return run.ends_at + _INSTANT
        overdue_at = None if run.outcome == "never_started" else self._overdue_at(run.sent_at)
        return run.ends_at if overdue_at is None else min(run.ends_at, overdue_at + _INSTANT)

    def hold(self, entry: RedBeatSchedulerEntry, due: datetime, at: datetime) -> SimulatedRun | None:
        """Return what becomes of a run that another one holds back when beat looks at it; None: none does.

        Arguments:
            entry: as it is by then.
        """
        other, overlap = self._in_progress, self._policy.overlap
        if self.waiting is not None:
            return left_out(self._entry, due, f"another run waits already, that of {shown(self.waiting.due)}")
        if overlap == "allow" or other is None or other.sent_at is None or at >= self._held_until(other):
            return None
        if overlap == "replace" and other.outcome != "never_started":
            return self._wait(entry, due, at)  # until the other one is terminated: that takes no time here
        doing = "was on its queue" if other.outcome == "never_started" else "was at work"
        why = f"the run of {shown(other.due)} {doing} since {shown(other.sent_at)}"
        if overlap == "skip":
            return left_out(self._entry, due, why)
        if overlap not in ("buffer_one", "replace"):
            raise ValueError(f"overlap {overlap!r} can't be simulated.")
        return self._wait(entry, due, self._held_until(other), f"it has waited: {why}")

    def _wait(
        self, entry: RedBeatSchedulerEntry, due: datetime, until: datetime, why: str = ""
    ) -> SimulatedRun:
        """Let a run wait until the one in progress has ended; return what becomes of it then."""
        at = self._outages.end_around(until) or until
        self.freed_at, self.released_at = until, at
        dropped = why_dropped(entry, due, at)
        self.waiting = left_out(self._entry, due, dropped) if dropped else self.send(due, at, why)
        return self.waiting

    def release(self, at: datetime) -> SimulatedRun | None:
        """Let the run go that waits, if its time has come; return it if it was sent."""
        if self.waiting is None or at < self.released_at:
            return None
        released, self.waiting = self.waiting, None
        return released if released.is_sent else None

    def replaced(self, runs: Iterator[SimulatedRun]) -> Iterator[SimulatedRun]:
        """Yield ``runs``; with ``overlap`` 'replace' each ends at the latest when the next one is sent."""
        if self._policy.overlap != "replace" or not self.is_known:
            yield from runs
            return
        kept: list[SimulatedRun] = []  # from a run on of which it isn't known when it ends
        for run in runs:
            if kept:
                before = kept[0]
                is_begun = before.outcome != "never_started"
                if run.sent_at is not None and is_begun and run.sent_at < self._held_until(before):
                    why = f"the run of {shown(run.due)} has replaced it"
                    kept[0] = before._replace(outcome="revoked", ends_at=run.sent_at, why=why)
                if run.is_sent or before.ends_at is None or run.due >= before.ends_at:
                    yield from kept
                    kept = []
            if kept or run.is_sent:
                kept.append(run)
            else:
                yield run
        yield from kept
