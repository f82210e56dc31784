"""The course of one entry through a span of time, run by run, as a beat would have it. No Redis, no clock.

While beat is there, each run is sent at its time, and what remains to be decided is whether another one holds
it back. Where beat comes late, after an outage or at the end of a pause, ``beat/planner.py`` decides: it is
given the entry as it would be in Redis then, and what it wants to be written is read back.

Invariant: each time that the entry's schedule names is yielded once, in order; a run is yielded only when all
is known of it. Where several missed runs are made up for at one instant (misfire ``all``) beside one that
waits, beat's order isn't fixed, and this is one of them. What holds a run back is decided in a script
(``store/scripts/find_hold.lua``), and again here: a test compares the two.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from celery.schedules import crontab, schedule

from redbeat.beat.planner import OrdinaryRun, plan_run, why_dropped, why_over
from redbeat.decoder import encode_meta
from redbeat.entries.due import anchor_of, defaults_of, paused_until, score_after_pause
from redbeat.entries.loading import decode_entry
from redbeat.entries.runs import id_of
from redbeat.errors import EntryError
from redbeat.history import PastRun, decode_history
from redbeat.policy.jitter import delayed_before, due_time_of
from redbeat.policy.misfires import recorded
from redbeat.policy.policy import encode_policy
from redbeat.policy.window import exclusion_of
from redbeat.process.budget import limited_steps
from redbeat.schedules.occurrences import (
    Excluded,
    clocked,
    is_own_kind,
    next_run,
    phase_before,
    rrule,
    runs_after,
)
from redbeat.schedules.timezones import in_utc, moment_of, shown
from redbeat.store.records import Claimed, Clear, Commit, KeyType, Stored, score_text
from redbeat.testing.outages import Outages
from redbeat.testing.trace import SimulatedRun

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: returns how long a run takes; None: no worker ever begins it
DurationOf = Callable[[SimulatedRun], timedelta | None]

#: a time that a schedule names; why the policy excludes it ('': it doesn't); the next one that isn't excluded
Nominal = tuple[datetime, str, datetime | None]

_INSTANT = timedelta(microseconds=1)


class Course:
    """The runs of one entry from ``start`` to ``end``, both included.

    An entry that was never stored, and has no ``last_run_at``, is taken to be saved at ``start``. Before
    that, all its runs are taken to have been sent in time.

    Arguments:
        start, end: in UTC.
        outages: when no beat leads.
        calendars: name to calendar; one that is missing here is read from Redis.
        duration_of: None: durations aren't known, and nothing holds anything back.

    Raises:
        EntryError: the entry can't be stored, or can't be used.
    """

    def __init__(
        self,
        entry: RedBeatSchedulerEntry,
        start: datetime,
        end: datetime,
        outages: Outages,
        calendars: Mapping[str, Excluded],
        duration_of: DurationOf | None,
    ) -> None:
        if entry.schedule is None or entry.problem:
            raise EntryError(f"{entry.key}: it can't be used: {entry.error or entry.problem}", entry.key)
        self._given = entry
        self._start, self._end, self._outages, self._duration_of = start, end, outages, duration_of
        self._entry = copy.copy(entry)
        self._entry.encode(Stored(entry.key))
        name = entry.policy.exclude
        if name is not None and name in calendars:
            self._entry.policy = entry.policy.with_calendar(calendars[name])
        self._bounds = self._entry.bounds()
        self._anchor = self._begin()
        self._defaults = defaults_of(entry)
        # the run in progress
        self._held_by: SimulatedRun | None = None
        self._waiting: SimulatedRun | None = None  # the one that waits for it, as it ends
        self._freed_at = self._released_at = start  # when what it waits for ends; when it goes

    def _begin(self) -> datetime | None:
        """Let the entry be as if saved at the start, if it is new; return from when an interval counts."""
        entry = self._entry
        is_new = entry.stored is None and not entry.has_last_run_at
        if is_new:
            entry.last_run_at = self._start
        if entry.last_run_at is None:  # stored, and it has never run
            return entry.next_due_at or self._start
        anchor = anchor_of(entry)
        return anchor if anchor is None or anchor <= self._start else self._in_phase(anchor)

    def _in_phase(self, anchor: datetime) -> datetime:
        return phase_before(self._entry.schedule, anchor, self._start - _INSTANT) or anchor

    def runs(self) -> Iterator[SimulatedRun]:
        """Yield its runs, by their nominal times.

        Raises:
            EntryTooExpensive: finding one takes longer than beat would let it.
        """
        runs = self._runs()
        if not _is_quick(self._entry.schedule):
            runs = limited_steps(self._entry.key, runs)
        return self._replaced(runs) if self._is_replacing else runs

    def _runs(self) -> Iterator[SimulatedRun]:
        given, name, key = self._given, self._given.name, self._given.key
        end, jitter = self._end, self._bounds.jitter
        away_until = self._outages.end_around
        is_simple = self._duration_of is None and not self._is_counted and not self._outages
        after = self._start - _INSTANT
        first = next_run(self._entry.schedule, self._bounds, after, self._anchor)
        if not self._entry.is_enabled_at(self._start):
            score = self._score_after_rest()
            if score is None or score > end:
                yield from self._resting(self._nominals(after, first))
                return
            look_at = away_until(score) or score
            found, first = self._catch_up(look_at, self._nominals(after, first), score)
            yield from found
            after = _before(look_at, first)
        while True:
            nominals = self._nominals(after, first)
            for due, why, following in nominals:
                if due > end:
                    return
                if why:
                    yield SimulatedRun(name, due, "skipped", None, why, None, given)
                    continue
                sent_at = due if not jitter else delayed_before(key, self._bounds, due, following)
                back_at = away_until(sent_at)
                if back_at is not None:
                    found, first = self._catch_up(back_at, chain([(due, "", following)], nominals), sent_at)
                    yield from found
                    after = _before(back_at, first)
                    break
                if is_simple:
                    yield SimulatedRun(name, due, "sent", sent_at, "", None, given)
                else:
                    yield self._decide(due, sent_at)
            else:
                return

    # -- when its schedule names a time

    def _nominals(self, after: datetime, first: datetime | None) -> Iterator[Nominal]:
        """Yield the times later than ``after`` that its schedule names; the policy allows none before
        ``first``.
        """
        schedule_, bounds = self._entry.schedule, self._bounds
        later = () if first is None else runs_after(schedule_, bounds, first, first)
        allowed = iter(()) if first is None else chain([first], later)
        if (bounds.start_time, bounds.end_time, bounds.calendar) == (None, None, None):
            yield from ((due, "", following) for due, following in pairwise(chain(allowed, [None])) if due)
            return
        unbounded, expected = bounds.unbounded(), next(allowed, None)
        anchor = self._anchor if expected is None else phase_before(schedule_, expected, after)
        every = runs_after(schedule_, unbounded, after, anchor)
        while True:
            found = next(every, None)
            if found is not None and (expected is None or found < expected):
                excluded = exclusion_of(schedule_, bounds, found)
                if excluded is None and expected is None:
                    return
                if excluded is not None:
                    yield found, excluded.why, expected
            elif expected is None:
                return
            else:
                due, expected = expected, next(allowed, None)
                yield due, "", expected
                if found != due:  # what it names depends on when it ran last
                    every = runs_after(schedule_, unbounded, due, due)

    # -- what becomes of a run

    @property
    def _is_counted(self) -> bool:
        return self._bounds.one_off or self._bounds.max_runs is not None

    def _decide(self, due: datetime, at: datetime) -> SimulatedRun:
        """Return what becomes of the run due at ``due``, which beat looks at in time."""
        self._release(at)
        if self._bounds.is_finished(self._entry.total_run_count):
            return self._skipped(due, why_over(self._bounds))
        held = self._hold(due, at)
        if held is not None:
            return held
        self._note(due, at)
        return self._sent(due, at)

    def _note(self, due: datetime, at: datetime) -> None:
        """Note that a run was sent, as its meta does."""
        way = self._bounds.misfire or self._defaults.misfire
        self._entry.last_run_at = due if way == "all" else recorded(self._entry.schedule, due, at)
        self._entry.total_run_count += 1

    def _skipped(self, due: datetime, why: str, outcome: str = "skipped") -> SimulatedRun:
        return SimulatedRun(self._given.name, due, outcome, None, why, None, self._given)

    def _sent(self, due: datetime, at: datetime, why: str = "") -> SimulatedRun:
        """Return a run that is sent, and let it be the one in progress."""
        run = SimulatedRun(self._given.name, due, "sent", at, why, None, self._given)
        if self._duration_of is None:
            return run
        policy, duration = self._bounds, self._duration_of(run)
        if duration is None:
            ends_at = at + timedelta(seconds=policy.queue_seconds)
            run = run._replace(outcome="never_started", ends_at=ends_at)
        else:
            ends_at, overdue_at = at + duration, self._overdue_at(at)
            run = run._replace(outcome="succeeded", ends_at=ends_at)
            if policy.revoke_overdue and overdue_at is not None and ends_at > overdue_at:
                why = f"it took longer than max_runtime ({policy.max_runtime:g} s)"
                run = run._replace(outcome="revoked", ends_at=overdue_at, why=why)
        self._held_by = run
        return run

    def _overdue_at(self, began_at: datetime) -> datetime | None:
        """Return when beat finds that a run takes too long; None: it may take any time."""
        if self._bounds.max_runtime is None:
            return None
        at = began_at + timedelta(seconds=self._bounds.max_runtime)
        return self._outages.end_around(at) or at

    def _held_until(self, run: SimulatedRun) -> datetime:
        """Return until when ``run``, which was sent, holds others back."""
        assert run.sent_at is not None and run.ends_at is not None  # noqa: S101, PT018 - it was sent, so it ends
        overdue_at = None if run.outcome == "never_started" else self._overdue_at(run.sent_at)
        # beat sends what is due before it looks who takes too long
        if run.outcome == "revoked":
            return run.ends_at + _INSTANT
        return run.ends_at if overdue_at is None else min(run.ends_at, overdue_at + _INSTANT)

    # -- what holds a run back

    @property
    def _is_replacing(self) -> bool:
        return self._bounds.overlap == "replace" and self._duration_of is not None

    def _hold(self, due: datetime, at: datetime) -> SimulatedRun | None:
        """Return what becomes of a run that another one holds back; None: none does."""
        other, overlap = self._held_by, self._bounds.overlap
        if self._waiting is not None:
            return self._skipped(due, f"another run waits already, that of {shown(self._waiting.due)}")
        if overlap == "allow" or other is None or other.sent_at is None or at >= self._held_until(other):
            return None
        if overlap == "replace" and other.outcome != "never_started":
            return self._wait(due, at)  # until the other one is terminated, and that takes no time here
        doing = "was on its queue" if other.outcome == "never_started" else "was at work"
        why = f"the run of {shown(other.due)} {doing} since {shown(other.sent_at)}"
        return (
            self._skipped(due, why)
            if overlap == "skip"
            else self._wait(due, self._held_until(other), f"it has waited: {why}")
        )

    def _wait(self, due: datetime, until: datetime, why: str = "") -> SimulatedRun:
        """Let a run wait until the one in progress has ended; return what becomes of it then."""
        at = self._outages.end_around(until) or until
        self._freed_at, self._released_at = until, at
        dropped = why_dropped(self._entry, due, at)
        waiting = self._skipped(due, dropped) if dropped else self._sent(due, at, why)
        self._waiting = waiting
        return waiting

    def _release(self, at: datetime) -> None:
        """Note that the run that has waited was sent, if it was by then."""
        if self._waiting is None or at < self._released_at:
            return
        if self._waiting.is_sent:
            self._entry.last_run_at = self._waiting.due
            self._entry.total_run_count += 1
        self._waiting = None

    def _replaced(self, runs: Iterator[SimulatedRun]) -> Iterator[SimulatedRun]:
        """Let each run end at the latest when the next one is sent."""
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

    # -- where beat comes late

    def _score_after_rest(self) -> datetime | None:
        """Return the score of an entry that is paused until a time; None: beat doesn't look at it again."""
        if paused_until(self._entry) is None:
            return None
        anchor = self._anchor if self._entry.last_run_at is None else None
        score = score_after_pause(self._entry, self._bounds, anchor)
        return None if score < 0 else moment_of(score)

    def _resting(self, nominals: Iterator[Nominal]) -> Iterator[SimulatedRun]:
        for due, why, _ in nominals:
            if due > self._end:
                return
            yield self._skipped(due, why or self._why_resting())

    def _why_resting(self) -> str:
        policy, until = self._bounds, paused_until(self._given)
        note = f": {policy.pause_note}" if policy.paused and policy.pause_note else ""
        when = f" until {shown(until)}" if until is not None else ""
        return f"{'paused' if policy.paused else 'disabled'}{when}{note}"

    def _catch_up(
        self, now: datetime, nominals: Iterator[Nominal], score: datetime
    ) -> tuple[list[SimulatedRun], datetime | None]:
        """Let beat look at ``now`` at the entry, whose score is ``score``.

        Return what becomes of the ``nominals`` until then, and the next run after them; None: there is none.
        """
        was_resting = not self._entry.enabled
        sent: dict[datetime, SimulatedRun] = {}
        records: list[PastRun] = []
        next_score: float = score.timestamp()
        is_first = True
        while 0 <= next_score <= now.timestamp():
            # beat looks at what is due before it looks what else has happened meanwhile
            if self._released_at < now or (self._freed_at < now and not is_first):
                self._release(now)
            next_score, more = self._look(now, next_score, sent)
            records, is_first = [*records, *more], False
        following = self._due_of(next_score)
        if following is None and self._bounds.is_finished(self._entry.total_run_count):
            following = next_run(self._entry.schedule, self._bounds, now, max(sent, default=score))
        found = dict(sent)
        for due, why, _ in nominals:
            # with jitter a run may be due already, and its time not be there yet
            if due > now or due > self._end or (following is not None and due >= following):
                break
            if due not in sent:
                rest = self._why_resting() if was_resting else "it was missed"
                found[due] = self._told(due, why or rest, records)
        return [found[due] for due in sorted(found) if due <= self._end], following

    def _due_of(self, score: float) -> datetime | None:
        """Return the nominal time of the run that beat sends at ``score``; None: there is none."""
        if score < 0:
            return None
        entry = self._entry
        last_run = None if entry.last_run_at is None else in_utc(entry.last_run_at)
        return due_time_of(entry.key, entry.schedule, self._bounds, moment_of(score), last_run)

    def _told(self, due: datetime, why: str, records: list[PastRun]) -> SimulatedRun:
        for record in records:
            if record.covers(due):
                return self._skipped(due, record.why, record.outcome)
        return self._skipped(due, why)

    def _look(
        self, now: datetime, score: float, sent: dict[datetime, SimulatedRun]
    ) -> tuple[float, list[PastRun]]:
        """Let beat's planner decide at ``now``; add what it sends to ``sent``.

        Return the entry's new score, -1 for never, and what is recorded of other runs.
        """
        entry, at = self._entry, now.timestamp()
        stored = Stored(entry.key, type=KeyType.HASH)
        stored.definition, stored.policy = entry.encode(stored), encode_policy(entry.policy) or None
        stored.meta = encode_meta(entry.last_run_at, entry.total_run_count, None)
        nominal = score_text(score)
        claimed = Claimed(entry.key, nominal, stored.definition, stored.meta, stored.policy, None, nominal)
        calendars = {str(self._bounds.exclude): self._bounds.calendar} if self._bounds.calendar else {}
        plan = plan_run(type(entry), entry.app, claimed, at, calendars)
        commit: Commit = plan.sent if isinstance(plan, OrdinaryRun) else plan
        texts = commit.records
        if isinstance(plan, OrdinaryRun):
            texts = texts[:-1]  # the last is that of the run itself
            due = moment_of(float(plan.nominal))
            held = self._hold(due, now)
            if held is not None and commit.run is not None:
                sent[due] = held
                commit = Commit(claimed, commit.run.held_score)
            else:
                sent[due] = self._sent(due, now)
        records = decode_history((f'{{"at":{nominal},{text}}}' for text in texts), partial(id_of, entry.key))
        return self._write(commit, stored), records

    def _write(self, commit: Commit, stored: Stored) -> float:
        """Let the entry be what ``commit`` makes of the ``stored`` one; return its score, -1 for never."""
        stored.meta = commit.new_meta or stored.meta
        stored.definition = commit.new_definition or stored.definition
        if commit.new_policy is not None:
            stored.policy = None if commit.new_policy is Clear.FIELD else commit.new_policy
        if (commit.new_meta, commit.new_definition) != (None, None):
            calendar = self._bounds.calendar
            self._entry = decode_entry(type(self._entry), stored, self._entry.app)
            self._entry.policy = self._bounds = self._entry.policy.with_calendar(calendar)
        return float(commit.new_score) if isinstance(commit.new_score, str) else -1.0


def _before(now: datetime, following: datetime | None) -> datetime:
    return now if following is None else min(now, following - _INSTANT)


def _is_quick(schedule_: Any) -> bool:
    """Tell whether the class of ``schedule_`` is known to compute its runs in little time."""
    return isinstance(schedule_, (rrule, clocked)) or any(
        isinstance(schedule_, base) and not is_own_kind(schedule_, base) for base in (schedule, crontab)
    )
