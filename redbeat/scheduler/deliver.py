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
from collections.abc import Callable, Sequence
from contextlib import suppress
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
from redbeat.scheduler.sinks import (
    PipelineSink,
    ProducerSink,
    RecordFirstSink,
    ScriptSink,
    Sink,
    report_held,
)
from redbeat.store.events import add_quarantined_events
from redbeat.store.executor import CALL_ROWS, Executor
from redbeat.store.records import MISSING, NOWHERE, DueEntry, Ending, Held, Result, Target
from redbeat.store.schedule import Recording, commit_runs, record_last

#: how long a tick tries runs that have failed before, if some of them fail again; seconds
FAILED_SECONDS = 0.1

#: how many of them are planned and sent together
FAILED_TOGETHER = 10

#: what the server refuses is recorded as refused, and what it refuses of that stays due
MAX_ROUNDS = 3


class Deliverer:
    """Delivers batches of several shards; made for one beat.

    Arguments:
        is_ending: returns True if the tick is to end: what is not begun then stays due.
    """

    def __init__(self, context: Context, is_ending: Callable[[], bool]) -> None:
        self._context = context
        self._is_ending = is_ending
        self._target: Target | None = None
        self._recordings: dict[Recording, tuple[Batch, Sequence[Decision]]] = {}
        self._executor: Executor | None = None
        self._failed_seconds = 0.0
        self._script_sink = ScriptSink(context)

    def deliver(self, batches: Sequence[Batch]) -> None:
        """Plan, send and record batches; what goes wrong with one shard keeps the others going."""
        if not batches:
            return
        context, began_at = self._context, time.monotonic()
        self._recordings, self._executor = {}, Executor(batches[0].store)
        self._failed_seconds = FAILED_SECONDS / len(batches)
        sink: Sink = self._script_sink
        try:
            context.broker.begin_batch()
            context.planner.begin()
            context.encoder.begin()
            sink = self._choose_sink(batches)
            for number, batch in enumerate(batches):
                batch.is_pushed = self._target is not None
                if number and self._is_ending():
                    batch.leave(batch.fetched.rows)
                    continue
                try:
                    self._send(batch, sink)
                except BaseException as exc:  # noqa: BLE001 - an outcome of the shard, or raised again
                    self._give_up(batch, exc)
            if sink is not self._script_sink:
                sink.flush()
            self._record(batches)
        except BaseException as exc:
            self._end_early(batches, sink, exc)
            raise
        finally:
            if context.tracing.runs:
                context.tracing.end_batch()
            self._recordings, self._executor = {}, None
        self._tell(batches)
        context.figures.batches.observe(time.monotonic() - began_at)

    def _choose_sink(self, batches: Sequence[Batch]) -> Sink:
        """Return how messages leave in this tick."""
        context, delivery = self._context, self._context.delivery
        mode, self._target = Mode.CLIENT, None
        try:
            mode, self._target = delivery.choose(), delivery.target
        except RedBeatError:  # about the schedule's server
            raise
        except Exception as exc:  # noqa: BLE001 - whatever the broker's client raises
            context.broker.note_away(exc)  # even if it answers, so that it is not asked in a loop
        if mode in (Mode.SCRIPT, Mode.RECORD_FIRST):
            return self._script_sink if mode is Mode.SCRIPT else RecordFirstSink(context, self._record_now)
        for batch in batches:
            batch.is_in_doubt = batch.is_in_doubt or mode is Mode.IN_DOUBT
        is_redis = context.broker.outbox is not None
        return (PipelineSink if is_redis else ProducerSink)(context, self._guard)

    # -- one batch

    def _send(self, batch: Batch, sink: Sink) -> None:
        if batch.prepared is not None:
            self._send_prepared(batch, batch.prepared)
            return
        context = self._context
        usual, failed = self._sort_out(batch)
        # the time of connecting, and of batches before, does not count
        context.broker.deadline = time.monotonic() + context.broker.timeout_seconds
        for first in range(0, len(usual), sink.chunk_size):
            chunk = usual[first : first + sink.chunk_size]
            if self._cannot_send(batch):
                batch.leave(chunk)
                continue
            self._send_chunk(batch, chunk, sink)
        if failed:
            self._try_failed(batch, failed, sink)
        if batch.ready:
            self._submit(batch)

    def _cannot_send(self, batch: Batch) -> bool:
        return batch.is_in_doubt or self._context.broker.is_away

    def _send_chunk(self, batch: Batch, rows: Sequence[DueEntry], sink: Sink) -> None:
        context = self._context
        sends: list[Send] = []
        now = batch.fetched.now
        calendars = context.calendars.read_of(batch.store, rows)
        for row in rows:
            PLANNING.key = row.key
            try:
                decision = batch.plan(row, now, calendars)
            except BaseException as exc:  # noqa: BLE001 - the per-entry boundary
                let_through(exc)
                decision = context.failures.quarantine(batch, row, exc)
            if isinstance(decision, Send):
                paused = context.failures.conflicts and context.failures.back_off(batch, decision)
                if not paused:
                    sends.append(decision)
                    continue
                decision = paused
            batch.ready.append(decision)
        PLANNING.key = None
        context.encoder.fill(sends)
        if sends:
            sink.send(batch, sends)
        self._submit(batch)

    def _try_failed(self, batch: Batch, rows: Sequence[DueEntry], sink: Sink) -> None:
        """Try runs that have failed before; put the rest off when some fail again and the time is up."""
        failures, ends_at = self._context.failures, time.monotonic() + self._failed_seconds
        for first in range(0, len(rows), FAILED_TOGETHER):
            if self._cannot_send(batch):
                batch.leave(rows[first:])
                return
            count = failures.count
            self._send_chunk(batch, rows[first : first + FAILED_TOGETHER], sink)
            sink.flush()
            if failures.count > count and time.monotonic() >= ends_at:
                batch.ready += [put_off(row, batch.now) for row in rows[first + FAILED_TOGETHER :]]
                return

    def _send_prepared(self, batch: Batch, sends: Sequence[Send]) -> None:
        """Record runs that were planned before they were due, if the recording script can push."""
        if self._target is None:
            batch.leave(send.due_entry for send in sends)
            return
        for send in sends:
            if self._context.encoder.is_current(send):
                batch.ready.append(send)
            else:  # what its message depends on has changed
                batch.leave([send.due_entry])
        self._submit(batch)

    def _sort_out(self, batch: Batch) -> tuple[Sequence[DueEntry], Sequence[DueEntry]]:
        """Return the entries to plan, which exist and belong to this shard, and those that have failed."""
        context = self._context
        rows = context.failures.keep_home(batch) if batch.is_of_shard else batch.fetched.rows
        present, failed, removed = list[DueEntry](), list[DueEntry](), list[str]()
        own_keys, beginnings = batch.own_keys
        for row in rows:
            if row.type == MISSING:
                is_known = context.reports.note_missing(row)
                batch.ready.append(missing(row, batch.now, is_known=is_known))
                removed += [row.key] if is_known else []
                continue
            if context.reports.missing:
                context.reports.missing.pop(row.key, None)
            row.is_own = row.message is None and (row.key in own_keys or row.key.startswith(beginnings))
            if row.is_own:
                problem = EntryCorrupt(f"{row.key}: a key of RedBeat's own is not an entry.", row.key)
                batch.ready.append(context.failures.quarantine(batch, row, problem))
            else:
                (failed if row.error else present).append(row)
        if removed:
            context.reports.report_removed(removed)
        return present, failed

    # -- recording

    def _submit(self, batch: Batch) -> None:
        """Write the rows that are ready."""
        ready, batch.ready = batch.ready, []
        if not ready or self._executor is None:
            return
        if batch.quarantined:
            # before they are recorded: after a kill in between they are sent once more
            add_quarantined_events(batch.store, batch.quarantined)
            batch.quarantined = []
        for first in range(0, len(ready), CALL_ROWS):
            chunk = ready[first : first + CALL_ROWS]
            commits = []
            for decision in chunk:
                if isinstance(decision, Send):
                    decision.commit.pushes = decision.pushes
                commits.append(decision.commit)
            recording = commit_runs(
                batch.store,
                batch.fence,
                commits,
                self._target or NOWHERE,
                is_patient=batch.prepared is None,
            )
            self._recordings[recording] = batch, chunk
            self._executor.submit(recording)

    def _record(self, batches: Sequence[Batch]) -> None:
        """Record what is ready, and what becomes ready by what the server says."""
        for _ in range(MAX_ROUNDS):
            for batch in batches:
                if batch.ready:
                    self._guard(batch, partial(self._submit, batch))
            if not self._recordings:
                return
            self._drain()

    def _drain(self) -> None:
        assert self._executor is not None  # noqa: S101 - a tick delivers
        self._executor.drain()
        recordings, self._recordings = self._recordings, {}
        for recording, (batch, decisions) in recordings.items():
            self._guard(batch, partial(self._apply, batch, recording, decisions))

    def _record_now(self, batch: Batch, sends: Sequence[Send]) -> list[Send]:
        """Record runs before they are sent (at_most_once); return the recorded ones."""
        batch.ready += sends
        self._submit(batch)
        self._drain()
        return [send for send in sends if send.is_recorded]

    def _apply(self, batch: Batch, recording: Recording, decisions: Sequence[Decision]) -> None:
        """Apply the outcome of a recording to its decisions."""
        context, refusal = self._context, recording.outcome
        if isinstance(refusal, StoreRefused) and is_no_permission(refusal):
            sends = [one for one in decisions if isinstance(one, Send)]
            if not any(send.pushes for send in sends):
                raise refusal
            context.delivery.note_refused(str(refusal))
            published = [one for one in sends if one.commit.is_published]
            batch.ready += published
            batch.leave(one.due_entry for one in decisions if one not in published)
            return
        outcome = recording.answer()
        if outcome.is_moved:
            context.delivery.note_moved()
        for decision, result in zip(decisions, outcome.results, strict=True):
            self._apply_one(batch, decision, result, is_moved=outcome.is_moved)

    def _apply_one(self, batch: Batch, decision: Decision, result: Result, *, is_moved: bool) -> None:
        context, row = self._context, decision.due_entry
        is_pushed = isinstance(decision, Send) and bool(decision.pushes)
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
            batch.deleted += commit.new_score is Ending.DELETE
        elif isinstance(result, Held) and commit.run is not None:
            commit.new_score, records = commit.run.held_score, commit.run.held_records  # what was written
        else:
            batch.is_cut = True
            batch.left.add(row.key)
        if decision.dropped and records:
            # a run that is retried has the same runs before it at each try: they are recorded once
            name = batch.store.keys.name(row.key)
            batch.reported += [(name, one) for one in decision.dropped if one.record in records]
        if not isinstance(decision, Send):
            return
        if isinstance(result, Held):
            report_held(context, batch, decision, result)
            context.failures.conflicts.pop(row.key, None)
        elif result and is_pushed:
            if decision.span is not None:
                decision.span.note_sent()
            batch.events += decision.events
            batch.told.append(decision)
            if context.failures.conflicts:
                context.failures.conflicts.pop(row.key, None)
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

    def _guard(self, batch: Batch, step: Callable[[], Any]) -> None:
        """Do a step for one shard; after an error nothing more is done with its batch, and others go on.

        Raises:
            BaseException: the error, if it ends the tick.
        """
        if batch.is_out:
            return
        try:
            step()
        except BaseException as exc:  # noqa: BLE001 - an outcome of the shard, or raised again
            self._give_up(batch, exc)

    def _give_up(self, batch: Batch, exc: BaseException) -> None:
        """End a batch, as an error is the outcome of its shard.

        Raises:
            BaseException: the error, if it ends the tick.
        """
        batch.is_out = True
        batch.fail(exc)  # if it raises, what was sent is recorded when the sink knows what has arrived
        self._record_published([batch], exc)

    def _end_early(self, batches: Sequence[Batch], sink: Sink, cause: BaseException) -> None:
        """Record as sent what was sent, as the tick ends with an error."""
        try:
            sink.end_early()
        finally:
            if self._executor is not None:
                self._executor.close()
        self._record_published(batches, cause)
        for batch in batches:
            if isinstance(cause, (SystemExit, KeyboardInterrupt)) and batch.prepared:
                self._context.reports.report_sent(batch.prepared)  # the server goes on with them
            if batch.events:
                with suppress(RedBeatError), hold_interrupts(LAST_WORDS_SECONDS, is_firm=True):
                    call_briefly(partial(self._context.broker.send_events, batch.events))

    @staticmethod
    def _record_published(batches: Sequence[Batch], cause: BaseException) -> None:
        last = []
        for batch in batches:
            done = {id(commit) for commit in batch.recorded}
            published, batch.published = batch.published, []
            commits = [send.commit for send in published if id(send.commit) not in done]
            # its node was waited for, and other shards wait for this one
            is_hopeless = batch.store.is_hasty and isinstance(cause, StoreUnavailable)
            if commits and not is_hopeless:
                last.append((batch.store, batch.fence, commits))
        record_last(last)
