"""Delivering what was fetched: plan, encode, send, record.

::

    for each batch, chunk by chunk:
        planner.plan()      due entries to decisions
        encoder.fill()      messages from templates
        sink.send()         messages to the broker; what may be recorded becomes ready
        executor.submit()   written now
    sink.flush()            what was collected, or waits for confirms
    executor.drain()        read: one outcome per call

With ``at_most_once`` a chunk is recorded before it is sent. Invariant: if a tick ends early, whatever the
cause, each run whose message has been sent is recorded as sent if Redis can be reached, and each other run
stays due.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from redbeat.connection.retry import LAST_WORDS_SECONDS, call_briefly, is_no_permission
from redbeat.delivery.broker import Mode
from redbeat.errors import EntryCorrupt, RedBeatError, StoreRefused, StoreUnavailable
from redbeat.leadership.heartbeat import PLANNING
from redbeat.process.signals import hold_interrupts, let_through
from redbeat.scheduler.batch import Batch
from redbeat.scheduler.context import Context
from redbeat.scheduler.decisions import Decision, Send, missing, put_off
from redbeat.scheduler.sinks import RecordFirstSink, Sink
from redbeat.store.entries import read_entries
from redbeat.store.events import add_events
from redbeat.store.executor import CALL_ROWS, Executor
from redbeat.store.parts import in_chunks
from redbeat.store.records import MISSING, NOWHERE, Ending, Held, Result, Stored, Target
from redbeat.store.schedule import Recording, commit_runs, fetch_due, record_last, report_unrecorded

#: how long a tick tries runs that have failed before, if some of them fail again; seconds
FAILED_SECONDS = 0.1

#: how many of them are planned and sent together
FAILED_TOGETHER = 10

#: how long the lock is renewed by what is recorded last, as it may never be released; milliseconds
LAST_LOCK_MS = 10_000

#: a row of a batch
Row = tuple[Batch, Stored]

#: what the server refuses is recorded as refused, and what it refuses of that stays due
MAX_ROUNDS = 3


def _leave(rows: Iterable[Row]) -> None:
    for batch, row in rows:
        batch.leave([row])


class Deliverer:
    """Delivers batches of several shards; made for one beat.

    Arguments:
        is_ending: returns True if the tick is to end: what is not begun then stays due.

    Attributes:
        seconds: how long each delivery of this tick took.
    """

    def __init__(self, context: Context, is_ending: Callable[[], bool]) -> None:
        self._context = context
        self._is_ending = is_ending
        self._target: Target | None = None
        self._recordings: dict[Recording, tuple[Batch, Sequence[Decision]]] = {}
        self._executor: Executor | None = None
        self.seconds: list[float] = []
        self._script_sink = Sink(context, self._guard, is_script=True)

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Plan, send and record batches; what goes wrong with one shard keeps the others going."""
        batches, fetched = list[Batch](), batches
        for batch in fetched:
            if batch.fetched.rows or batch.prepared is not None:
                batches.append(batch)
        if not batches:
            return
        context, began_at = self._context, time.monotonic()
        self._recordings, self._executor = {}, None
        sink = self._script_sink
        usual, failed = list[Row](), list[Row]()
        try:
            for batch in batches:
                self._guard(batch, self._sort_out, batch, usual, failed)
            context.broker.begin_batch()
            context.encoder.begin()
            mode, self._target = Mode.CLIENT, None
            try:
                mode, self._target = context.delivery.choose(), context.delivery.target
            except RedBeatError:  # about the schedule's server
                raise
            except Exception as exc:  # noqa: BLE001 - whatever the broker's client raises
                context.broker.note_away(exc)  # even if it answers, so that it is not asked in a loop
            if mode is Mode.RECORD_FIRST:
                sink = RecordFirstSink(context, self._guard, self._record_now)
            elif mode is not Mode.SCRIPT:
                sink = Sink(context, self._guard)
            for batch in batches:
                batch.is_pushed = self._target is not None
                batch.is_in_doubt = batch.is_in_doubt or mode is Mode.IN_DOUBT
                if batch.prepared is not None:
                    self._guard(batch, self._take_prepared, batch, batch.prepared)
            for first in range(0, len(usual), sink.chunk_size):
                if first and self._is_ending():
                    _leave(usual[first:])
                    break
                self._send_chunk(usual[first : first + sink.chunk_size], sink)
            if failed:
                self._try_failed(failed, sink)
            if sink is not self._script_sink:
                sink.flush()
            for _ in range(MAX_ROUNDS):
                for batch in batches:
                    if batch.ready:
                        self._guard(batch, self._submit, batch)
                if self._executor is None or not self._recordings:
                    break
                self._executor.drain()
                self._apply_all()
        except BaseException as exc:
            self._end_early(batches, sink, exc)
            raise
        finally:
            if context.tracing.runs:
                context.tracing.end_batch()
            self._recordings, self._executor = {}, None
        self._tell(batches)
        self.seconds.append(time.monotonic() - began_at)

    # -- planning and sending

    def _sort_out(self, batch: Batch, usual: list[Row], failed: list[Row]) -> None:
        """Add the rows to plan: entries that exist and belong here; failed ones have a list of their own."""
        context, shard = self._context, batch.shard
        rows: Sequence[Stored] = batch.fetched.rows
        if shard.number is not None and (misplaced := shard.find_misplaced(rows)):
            rows = context.failures.keep_home(batch, misplaced)
        if batch.fetched.names_calendars:
            batch.calendars = context.calendars.read_of(shard.store, rows)
        missing_before = context.reports.missing
        own_keys, beginnings = shard.own_keys
        for row in rows:
            if row.type == MISSING:
                is_known = context.reports.note_missing(row.key)
                batch.ready.append(missing(row, batch.fetched.now, is_known=is_known))
                continue
            if missing_before:
                missing_before.pop(row.key, None)
            row.is_own = row.message is None and (row.key in own_keys or row.key.startswith(beginnings))
            if row.is_own:
                problem = EntryCorrupt(f"{row.key}: a key of RedBeat's own is not an entry.", row.key)
                batch.ready.append(context.failures.quarantine(batch, row, problem))
            else:
                (failed if row.error else usual).append((batch, row))

    def _take_prepared(self, batch: Batch, prepared: Iterable[Send]) -> None:
        """Record runs that were planned before they were due, if the recording script can push.

        They are taken call by call, so that the server begins at once.
        """
        for sends in in_chunks(prepared, CALL_ROWS):
            for send in sends:
                if self._target is not None and self._context.encoder.is_current(send):
                    batch.ready.append(send)
                else:  # what its message depends on has changed
                    batch.leave([send.due_entry])
            self._submit(batch)

    def _send_chunk(self, chunk: Sequence[Row], sink: Sink) -> None:
        """Plan rows of several shards, make and send their messages, and submit what may be recorded."""
        context = self._context
        context.planner.begin()
        sends: dict[Batch, list[Send]] = {}
        planned = list[Send]()
        is_away = context.broker.is_away
        for batch, row in chunk:
            if is_away or batch.is_in_doubt or batch.is_out:
                batch.leave([row])
                continue
            PLANNING.key = row.key
            try:
                decision = batch.plan(row, batch.fetched.now, batch.calendars)
            except BaseException as exc:  # noqa: BLE001 - the per-entry boundary
                let_through(exc)
                decision = context.failures.quarantine(batch, row, exc)
            if isinstance(decision, Send) and context.failures.conflicts:
                decision = context.failures.back_off(batch, decision) or decision
            those = sends.setdefault(batch, [])
            if isinstance(decision, Send):
                those.append(decision)
                planned.append(decision)
            else:
                batch.ready.append(decision)
        PLANNING.key = None
        is_made = context.encoder.fill(planned) if planned else True
        for batch, those in sends.items():
            if is_made and sink is self._script_sink:
                batch.ready += those  # nothing else is called
            elif those:
                self._guard(batch, self._send, batch, those, sink)
            self._guard(batch, self._submit, batch)

    def _send(self, batch: Batch, sends: Sequence[Send], sink: Sink) -> None:
        # the time of connecting, and of batches before, does not count
        self._context.broker.deadline = time.monotonic() + self._context.broker.timeout_seconds
        sink.send(batch, sends)

    def _try_failed(self, rows: Sequence[Row], sink: Sink) -> None:
        """Try runs that have failed before; put the rest off when some fail again and the time is up."""
        failures, ends_at = self._context.failures, time.monotonic() + FAILED_SECONDS
        for first in range(0, len(rows), FAILED_TOGETHER):
            if self._is_ending():
                _leave(rows[first:])
                return
            count, rest = failures.count, rows[first + FAILED_TOGETHER :]
            self._send_chunk(rows[first : first + FAILED_TOGETHER], sink)
            sink.flush()
            if failures.count > count and time.monotonic() >= ends_at:
                for batch, row in rest:
                    batch.ready.append(put_off(row, batch.fetched.now))
                return

    # -- recording

    def _submit(self, batch: Batch) -> None:
        """Write the rows that are ready."""
        ready, batch.ready = batch.ready, []
        if not ready:
            return
        if batch.quarantined:
            # before they are recorded: after a kill in between they are sent once more
            add_events(batch.store, "entry_quarantined", batch.quarantined)
            batch.quarantined = []
        for first in range(0, len(ready), CALL_ROWS):
            chunk = ready[first : first + CALL_ROWS]
            commits = []
            for decision in chunk:
                if isinstance(decision, Send) and self._target is not None:
                    decision.commit.pushes = decision.pushes
                commits.append(decision.commit)
            recording = commit_runs(
                batch.store,
                batch.fence,
                commits,
                self._target or NOWHERE,
                are_messages=batch.are_messages,
            )
            self._recordings[recording] = batch, chunk
            self._executor = self._executor or Executor(batch.store)
            self._executor.submit(recording)

    def _apply_all(self) -> None:
        """Apply the outcomes of what was recorded."""
        recordings, self._recordings = self._recordings, {}
        for recording, (batch, decisions) in recordings.items():
            self._guard(batch, self._apply, batch, recording, decisions)

    def _record_now(self, batch: Batch, sends: Sequence[Send]) -> list[Send]:
        """Record runs before they are sent (at_most_once); return the recorded ones."""
        batch.ready += sends
        self._submit(batch)
        if self._executor is not None:
            self._executor.drain()
        self._apply_all()
        return [send for send in sends if send.is_recorded]

    def _apply(self, batch: Batch, recording: Recording, decisions: Sequence[Decision]) -> None:
        """Apply the outcome of a recording to its decisions."""
        context, outcome = self._context, recording.outcome
        if isinstance(outcome, StoreRefused) and is_no_permission(outcome):
            sends = [one for one in decisions if isinstance(one, Send)]
            if not any(send.commit.pushes for send in sends):
                raise outcome
            fetch_due(batch.store, batch.fence, limit=1).run()  # raises if another right is lacking
            context.delivery.note_refused(str(outcome))
            published = [one for one in sends if one.commit.is_published]
            batch.ready += published
            batch.leave(one.due_entry for one in decisions if one not in published)
            return
        is_first = context.delivery.mode is Mode.RECORD_FIRST
        if isinstance(outcome, RedBeatError):
            if is_first and isinstance(outcome, StoreUnavailable):
                context.failures.report_doubtful([one for one in decisions if isinstance(one, Send)], outcome)
            raise outcome
        assert outcome is not None  # noqa: S101 - it was drained
        if outcome.unrecorded:
            report_unrecorded(batch.store, outcome.unrecorded)
        if outcome.is_moved:
            context.delivery.note_moved()
        results: Sequence[Result] = outcome.results
        if is_first and recording.is_repeated and False in results:
            results = self._find_recorded(batch, decisions, results)
        for decision, result in zip(decisions, results, strict=True):
            self._apply_one(batch, decision, result, is_moved=outcome.is_moved)

    def _find_recorded(
        self, batch: Batch, decisions: Sequence[Decision], results: Sequence[Result]
    ) -> Sequence[Result]:
        """Return results where a run counts as recorded that was recorded before its answer was lost.

        The recording was made again then, and has found its own changes. Only with at_most_once anything
        depends on that. Without a lock they may be another beat's.
        """
        changed = {
            decision.due_entry.key: decision
            for decision, result in zip(decisions, results, strict=True)
            if result is False and isinstance(decision, Send)
        }
        _, found = read_entries(batch.store, [*changed])
        recorded = set()
        for send, stored in zip(changed.values(), found, strict=True):
            is_as_recorded = stored.meta is not None and stored.meta == send.commit.new_meta
            if is_as_recorded and batch.fence.token:
                recorded.add(id(send))
            elif is_as_recorded or (send.commit.new_score is Ending.DELETE and not stored.exists):
                self._context.failures.report_doubtful([send], StoreUnavailable("its answer was lost"))
        return [id(one) in recorded or result for one, result in zip(decisions, results, strict=True)]

    def _apply_one(self, batch: Batch, decision: Decision, result: Result, *, is_moved: bool) -> None:
        context, row = self._context, decision.due_entry
        is_pushed = bool(decision.commit.pushes)
        if isinstance(result, str):
            if not is_pushed:
                batch.ready.append(context.failures.quarantine(batch, row, StoreRefused(result)))
            elif is_no_permission(result):
                context.delivery.note_refused(result)
                batch.leave([row])
            else:
                batch.ready.append(context.failures.retry(batch, decision, StoreRefused(result)))  # type: ignore[arg-type]
            return
        commit = decision.commit
        batch.recorded.append(commit)
        records: Sequence[str] = commit.records if result is True else ()
        if result is True:
            decision.is_recorded = True
            if batch.are_messages and commit.new_score is Ending.DELETE:
                context.figures.later += 1
        elif isinstance(result, Held) and commit.run is not None:
            commit.new_score, records = commit.run.held_score, commit.run.held_records  # what was written
        else:
            batch.is_cut = True
        if decision.dropped and records:
            # a run that is retried has the same runs before it at each try: they are recorded once
            name = batch.store.keys.name(row.key)
            batch.reported += [(name, one) for one in decision.dropped if one.record in records]
        if not isinstance(decision, Send):
            return
        if context.failures.conflicts and (isinstance(result, Held) or (result and is_pushed)):
            context.failures.conflicts.pop(row.key, None)
        if isinstance(result, Held):
            context.reports.report_held(batch.store, decision, result)
        elif result and is_pushed:
            if decision.span is not None:
                decision.span.note_sent()
            batch.events += decision.events
            batch.told.append(decision)
        elif is_pushed and not result:  # the entry has changed: the next batch plans it again
            batch.leave([row])
            if not (is_moved or batch.prepared is not None or batch.fetched.is_ahead):
                context.failures.note_conflict(row.key)

    # -- the end

    def _tell(self, batches: Sequence[Batch]) -> None:
        """Log what was sent, and count it."""
        context, figures = self._context, self._context.figures
        for batch in batches:
            if batch.told:
                context.reports.report_sent(batch.told)
            if batch.events and not batch.is_out:
                context.broker.send_events(batch.events)
            if batch.reported and not batch.is_out:
                context.reports.report_dropped(batch.reported)
            if batch.prepared is not None:
                figures.used += len(batch.told)
            batch.told, batch.events = [], []
            if batch.recorded and context.delivery.mode is not context.delivery.announced:
                context.delivery.announce()

    def _guard(self, batch: Batch, step: Callable[..., Any], *args: Any) -> None:
        """Do a step for one shard; after an error nothing more is done with its batch, and others go on.

        Raises:
            BaseException: the error, if it ends the tick.
        """
        if batch.is_out:
            return
        try:
            step(*args)
        except BaseException as exc:  # noqa: BLE001 - an outcome of the shard, or raised again
            batch.is_out = True
            batch.shard.fail(exc)  # if it raises, what was sent is recorded when the sink knows what arrived
            self._record_published([batch], exc)

    def _end_early(self, batches: Sequence[Batch], sink: Sink, cause: BaseException) -> None:
        """Record as sent what was sent, as the tick ends with an error."""
        try:
            sink.end_early()
        finally:
            if self._executor is not None:
                self._executor.close()
        self._record_published(batches, cause)
        for batch, decisions in self._recordings.values():
            if isinstance(cause, (SystemExit, KeyboardInterrupt)) and batch.prepared is not None:
                # the server goes on with them
                batch.told += [decision for decision in decisions if isinstance(decision, Send)]
        for batch in batches:
            self._context.reports.report_sent(batch.told)
            if batch.events:
                with suppress(RedBeatError), hold_interrupts(LAST_WORDS_SECONDS):
                    call_briefly(partial(self._context.broker.send_events, batch.events))

    @staticmethod
    def _record_published(batches: Sequence[Batch], cause: BaseException) -> None:
        last = []
        for batch in batches:
            fence = replace(batch.fence, lock_ms=min(batch.fence.lock_ms, LAST_LOCK_MS))
            done = {id(commit) for commit in batch.recorded}
            published, batch.published = batch.published, []
            commits = [send.commit for send in published if id(send.commit) not in done]
            # its node was waited for, and other shards wait for this one
            is_hopeless = batch.store.is_hasty and isinstance(cause, StoreUnavailable)
            last += [
                commit_runs(batch.store, fence, chunk, are_messages=batch.are_messages)
                for chunk in in_chunks(() if is_hopeless else commits, CALL_ROWS)
            ]
        record_last(last)
