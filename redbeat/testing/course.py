"""The course of one entry through a span of time, run by run, as a beat would have it. No Redis, no clock.

While beat is there, each run is sent at its time, and what remains to be decided is whether another one holds
it back (``overlap.py``). Where beat comes late, after an outage or at the end of a pause, the planner
decides: it is given the entry as it would be in Redis then, and what it wants to be written is read back.

Invariant: each time that the entry's schedule names is yielded once, in order. Where several missed runs
are made up for at one instant (misfire ``all``) beside one that waits, beat's order isn't fixed, and this
is one of them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from redbeat.decoder import encode_meta
from redbeat.entries.due import anchor_of, defaults_of, paused_until, score_after_pause
from redbeat.entries.loading import decode_entry
from redbeat.entries.runs import id_of
from redbeat.errors import EntryError
from redbeat.history import PastRun, decode_history
from redbeat.policy.jitter import delayed_before, due_time_of
from redbeat.policy.misfires import recorded
from redbeat.policy.policy import encode_policy
from redbeat.scheduler.bounds import why_over
from redbeat.scheduler.decisions import Send
from redbeat.scheduler.planner import Planner
from redbeat.schedules.occurrences import (
    Excluded,
    next_run,
    phase_before,
)
from redbeat.schedules.timezones import in_utc, moment_of, shown
from redbeat.store.records import HASH, Commit, Stored, score_text
from redbeat.testing.nominals import Nominal, nominals
from redbeat.testing.outages import Outages
from redbeat.testing.overlap import DurationOf, Overlap
from redbeat.testing.trace import SimulatedRun, left_out

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

_INSTANT = timedelta(microseconds=1)
#: how long after the end of an outage or a pause beat looks, seconds
MOMENT_SECONDS = 0.001


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
        self._start, self._end, self._outages = start, end, outages
        self._entry = copy.copy(entry)
        self._entry.encode(Stored(entry.key))
        name = entry.policy.exclude
        if name is not None and name in calendars:
            self._entry.policy = entry.policy.with_calendar(calendars[name])
        self._bounds = self._entry.bounds()
        self._anchor = self._begin()
        self._defaults = defaults_of(entry)
        self._overlap = Overlap(entry, outages, duration_of, start)

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
        return phase_before(self._entry.schedule, self._bounds, anchor, self._start - _INSTANT) or anchor

    def runs(self) -> Iterator[SimulatedRun]:
        """Yield its runs, by their nominal times."""
        return self._overlap.replaced(self._runs())

    def _runs(self) -> Iterator[SimulatedRun]:
        given, name, key = self._given, self._given.name, self._given.key
        end, jitter = self._end, self._bounds.jitter
        away_until = self._outages.end_around
        is_simple = not (self._overlap.is_known or self._is_counted or self._outages)
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

    def _nominals(self, after: datetime, first: datetime | None) -> Iterator[Nominal]:
        return nominals(self._entry.schedule, self._bounds, after, first, self._anchor)

    # -- while beat is there

    @property
    def _is_counted(self) -> bool:
        return self._bounds.one_off or self._bounds.max_runs is not None

    def _decide(self, due: datetime, at: datetime) -> SimulatedRun:
        """Return what becomes of the run due at ``due``, which beat looks at in time."""
        self._release(at)
        if self._bounds.is_finished(self._entry.total_run_count):
            return left_out(self._given, due, why_over(self._bounds))
        held = self._overlap.hold(self._entry, due, at)
        if held is not None:
            return held
        self._note(due, at)
        return self._overlap.send(due, at)

    def _note(self, due: datetime, at: datetime) -> None:
        """Note that a run was sent, as its meta does."""
        way = self._bounds.misfire or self._defaults.misfire
        self._entry.last_run_at = due if way == "all" else recorded(self._entry.schedule, due, at)
        self._entry.total_run_count += 1

    def _release(self, at: datetime) -> None:
        """Note that the run that has waited was sent, if it was by then."""
        released = self._overlap.release(at)
        if released is not None:
            self._entry.last_run_at = released.due
            self._entry.total_run_count += 1

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
            yield left_out(self._given, due, why or self._why_resting())

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
            if self._overlap.released_at < now or (self._overlap.freed_at < now and not is_first):
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
                return left_out(self._given, due, record.why, record.outcome)
        return left_out(self._given, due, why)

    def _look(
        self, now: datetime, score: float, sent: dict[datetime, SimulatedRun]
    ) -> tuple[float, list[PastRun]]:
        """Let beat's planner decide at ``now``; add what it sends to ``sent``.

        Return the entry's new score, -1 for never, and what is recorded of other runs.
        """
        # beat looks a moment later, so a run that is exactly as late as allowed is too late
        entry, at = self._entry, now.timestamp() + MOMENT_SECONDS
        nominal = score_text(score)
        stored = Stored(
            entry.key, score=score, type=HASH, meta_mark="", nominal=nominal, current_score=nominal
        )
        stored.definition, stored.policy = entry.encode(stored), encode_policy(entry.policy) or None
        stored.meta = encode_meta(entry.last_run_at, entry.total_run_count, None)
        calendars = {str(self._bounds.exclude): self._bounds.calendar} if self._bounds.calendar else {}
        decision = Planner(entry.app, lambda: type(entry)).plan(stored, at, calendars)
        commit: Commit = decision.commit
        texts = commit.records
        if isinstance(decision, Send):
            due = moment_of(float(decision.nominal))
            held = self._overlap.hold(entry, due, now)
            if held is not None and commit.run is not None:
                sent[due] = held
                commit = Commit(stored, commit.run.held_score)
            else:
                sent[due] = self._overlap.send(due, now)
        records = decode_history((f'{{"at":{nominal},{text}}}' for text in texts), partial(id_of, entry.key))
        return self._write(commit, stored), [record for record in records if not record.is_sent]

    def _write(self, commit: Commit, stored: Stored) -> float:
        """Let the entry be what ``commit`` makes of the ``stored`` one; return its score, -1 for never."""
        stored.meta = commit.new_meta or stored.meta
        stored.definition = commit.new_definition or stored.definition
        if commit.new_policy is not None:
            stored.policy = commit.new_policy or None
        if (commit.new_meta, commit.new_definition) != (None, None):
            calendar = self._bounds.calendar
            self._entry = decode_entry(type(self._entry), stored, self._entry.app)
            self._entry.policy = self._bounds = self._entry.policy.with_calendar(calendar)
        return float(commit.new_score) if isinstance(commit.new_score, str) else -1.0


def _before(now: datetime, following: datetime | None) -> datetime:
    return now if following is None else min(now, following - _INSTANT)
