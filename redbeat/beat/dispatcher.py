"""One batch: what was claimed is decided about, sent, and recorded.

::

    Batch.claim      what the scheduler has claimed
       |  plan
       v
    runs             to be sent; for an entry that isn't, its commit goes to ``pending``
       |  send
       v
    pending          commits that may be recorded now: the message has been sent, or there is none
    collected        runs whose messages are pushed with their commits, or in one pipeline before them
    unconfirmed      runs whose messages RabbitMQ hasn't confirmed yet: they become pending, or are sent again
       |  record
       v
    recorded

With at_most_once a run is recorded before it is sent. Invariant: if a batch ends early, whatever the cause,
each run whose message has been sent is recorded as sent if Redis can be reached, and each other run stays
due.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from celery.beat import SchedulingError

from redbeat.beat.batch import Batch
from redbeat.beat.equipment import Equipment
from redbeat.beat.misplaced import Misplaced
from redbeat.beat.overrides import RunDeclined
from redbeat.beat.pipeline import Pipeline
from redbeat.beat.planner import (
    CompiledRun,
    OrdinaryRun,
    Run,
    commit_declined,
    commit_failed,
    commit_missing,
    plan_run,
)
from redbeat.beat.recorder import Pieces, Recorder, commit_last, is_held_back
from redbeat.beat.stored import plan_message
from redbeat.beat.suspects import has_failed
from redbeat.beat.tracking import read_tracks
from redbeat.broker.confirms import Publication
from redbeat.broker.connection import reason_of
from redbeat.broker.origin import Origin, origin_of
from redbeat.connection.retry import (
    LAST_WORDS_SECONDS,
    call_briefly,
)
from redbeat.delivery.placeholders import has_own_context
from redbeat.entries.due import read_defaults
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryCorrupt, RedBeatError
from redbeat.leadership.elector import Leadership
from redbeat.leadership.heartbeat import note_planning
from redbeat.process.containment import let_through
from redbeat.process.signals import hold_interrupts
from redbeat.schedules.occurrences import Excluded
from redbeat.store.commits import CommitStream
from redbeat.store.entries import Entries
from redbeat.store.records import (
    NOWHERE,
    Committed,
    DueEntry,
    KeyType,
    Push,
    Target,
)
from redbeat.store.rounds import CommitAsked
from redbeat.store.store import Store

if TYPE_CHECKING:  # it needs OpenTelemetry
    from redbeat.telemetry.tracing.spans import RunSpan

#: with at_most_once, how many runs are recorded before they are sent: a crash loses at most these
AT_MOST_ONCE_GROUP = 20

#: how many runs go the quick way at a time: while the server records these, the next are planned
PIECE = 100

#: how long runs that are likely to fail are tried where nothing else was fetched, and more is due; seconds
FULL_SECONDS = 0.25

#: of runs that are likely to fail, how many are planned at a time after the first one
SUSPECTS_TOGETHER = 10

#: a plan that takes more processor time is reported if its schedule class is registered; seconds
SLOW_SECONDS = 0.1

#: an entry that changes so often in a row before its run is recorded is tried again after pauses only: mostly
#: a signal handler, or the task's own ``apply_async``, writes to it
MAX_CHANGES = 3


class Admitted(NamedTuple):
    """What may be sent of a batch.

    Attributes:
        is_quick: the messages of ``rows`` may be compiled.
        is_pushed: and those that are, are pushed by the script that records.
    """

    rows: Sequence[DueEntry]
    is_quick: bool
    is_pushed: bool


class Dispatcher:
    """Sends what a scheduler has claimed of one part of the schedule.

    Arguments:
        store: has that part.
        leadership: asked whether the lock is still held before a message is sent that no script checks.
        equipment: what this beat sends with.
    """

    def __init__(self, store: Store, leadership: Leadership, equipment: Equipment) -> None:
        self._hooks = equipment.hooks
        self._book = equipment.book
        self._figures = equipment.figures
        self._store = store
        self._broker = equipment.broker
        self._leadership = leadership
        self._reports = equipment.reports
        self._tracing = equipment.tracing
        self._changes = equipment.changes
        self._calendars = equipment.calendars
        self.suspects = equipment.suspects
        self._quick_way = equipment.quick_way
        self._delivery = equipment.delivery
        self._recorder = Recorder(store, equipment)
        self._misplaced = Misplaced(store)
        self._pipeline = Pipeline(self._broker, leadership, self._recorder, self._reports, self.suspects)

    def dispatch(self, batch: Batch) -> None:
        """Plan, send and record ``batch``."""
        self._tracing.begin_batch()
        try:
            self._dispatch(batch)
        except BaseException as exc:  # a signal ends this beat, or Redis is away
            self.end_early(batch, exc)
            raise
        finally:
            self._tracing.end_batch()
            batch.collected.clear()  # perhaps millions of objects, freed before garbage is looked for

    def _dispatch(self, batch: Batch) -> None:
        self._broker.begin_batch()
        rows, is_quick = self._admit(batch)
        if is_quick:
            rows = self._send_first(batch, rows)
            batch.is_quick = not rows
        runs = self._plan_rest(batch, rows, is_quick=is_quick)
        if self._delivery.is_at_most_once:
            self._recorder.commit(batch, batch.pending)
            self._record_then_send(batch, runs)
            self._try_suspects(batch, self._record_then_send)
            self._recorder.commit(batch, batch.pending)
        else:
            self._send(batch, runs)
            self._try_suspects(batch, self._send)
            self._record(batch)
        self._tell_of_batch(batch)

    def _admit(self, batch: Batch) -> tuple[Sequence[DueEntry], bool]:
        """Return the claimed entries that may be sent, and whether their messages may be compiled."""
        rows, batch.suspects = self.suspects.split(self._drop_missing(batch))
        may_be_quick = bool(rows) and rows[0].message is None
        return rows, may_be_quick and self._quick_way.is_open(self._leadership, is_leased=batch.is_leased)

    def _plan_rest(self, batch: Batch, rows: Sequence[DueEntry], *, is_quick: bool) -> list[Run]:
        """Return the runs to send of what doesn't go the quick way, and begin to send."""
        if rows:  # somebody's code may be called now
            self._quick_way.look_again()
        runs = self._plan(batch, rows, is_quick=is_quick)
        self._broker.begin_sending()
        return runs

    def _tell_of_batch(self, batch: Batch) -> None:
        """Tell of what was sent, when it has been recorded."""
        self._broker.send_events(batch.events)
        self._reports.report_dropped(batch.left_out)
        if batch.recorded:
            self._delivery.announce()

    def end_early(self, batch: Batch, cause: BaseException) -> None:
        """Record as sent what was sent of ``batch``, which ends with an error, if that is possible."""
        if batch.unconfirmed:
            with suppress(Exception), hold_interrupts(LAST_WORDS_SECONDS, is_firm=True):
                self._broker.settle(LAST_WORDS_SECONDS)
            self._note_settled(batch)
        commit_last([self._recorder.last_commits(batch, cause)])
        if batch.events:
            with suppress(RedBeatError), hold_interrupts(LAST_WORDS_SECONDS, is_firm=True):
                call_briefly(lambda: self._broker.send_events(batch.events))

    # -- in a round, with the batches of other parts: what ``dispatch`` does, step by step

    def admit(self, batch: Batch) -> Admitted:
        """Begin a batch; return what may be sent of it."""
        rows, is_quick = self._admit(batch)
        is_pushed = is_quick and self._find_target(batch) is not None
        if is_quick and not is_pushed and (batch.is_in_doubt or self._broker.is_away):
            batch.leave(rows)
            rows = []
        return Admitted(rows, is_quick, is_pushed)

    def begin_pieces(self, batch: Batch, stream: CommitStream) -> Pieces | None:
        """Begin to record and push runs piece by piece; return what they are written to, None: the script
        that records can't push now.
        """
        target = self._find_target(batch)
        return None if target is None else self._recorder.begin_pieces(batch, target, stream)

    def end_pieces(self, pieces: Pieces) -> int:
        """Note what became of the runs that were written; return how many were given to the server."""
        return self._recorder.end_pieces(pieces)

    def begin(self, batch: Batch, rows: Sequence[DueEntry], *, is_quick: bool) -> None:
        """Send ``rows``, or collect their messages."""
        self._send(batch, self._plan_rest(batch, rows, is_quick=is_quick))
        self._try_suspects(batch, self._send)

    def confirm(self, batch: Batch) -> Pipeline | None:
        """Make sure that the collected messages may be sent; return what sends them together with others'.

        None: there are none, or the script that records pushes them, or one of them has failed before.
        """
        if not batch.collected or self._find_target(batch) is not None or not batch.collected:
            return None
        self._reserve_collected(batch)
        self._leadership.confirm()
        return None if any(has_failed(run) for run, _ in batch.collected) else self._pipeline

    def begin_recording(self, batch: Batch) -> CommitAsked | None:
        """Return what is to be recorded of ``batch``; None: nothing. What no script pushes is sent before."""
        target = self._find_target(batch) if batch.collected else None
        if batch.is_prepared and target is None:
            batch.give_back(run for run, _ in batch.collected)
            batch.collected.clear()
        elif batch.collected and target is None:
            self._send_collected(batch)
        if not (batch.pending or batch.collected):
            return None
        return self._recorder.begin_recording(batch, target or NOWHERE)

    def end(self, batch: Batch, asked: CommitAsked | None, answer: Callable[[], Committed]) -> None:
        """Note what became of ``batch``, and tell of it.

        Arguments:
            answer: returns what became of what was asked, or raises why nothing is known of that.
        """
        if asked is not None and not self._recorder.note_answer(batch, asked, answer):
            self._send_collected(batch)
        batch.collected.clear()
        if batch.pending:
            self._recorder.commit(batch, batch.pending)
        self._tell_of_batch(batch)

    def last_commits(self, batch: Batch, cause: BaseException) -> CommitAsked | None:
        """Return what is recorded of ``batch`` as its round ends early; None: nothing."""
        return self._recorder.last_commits(batch, cause)

    # -- the quick way: plan, push and record in one go

    def _send_first(self, batch: Batch, rows: Sequence[DueEntry]) -> Sequence[DueEntry]:
        """Send the first of ``rows``, as long as their messages are compiled; return the others."""
        target = self._find_target(batch)
        if target is None and (batch.is_in_doubt or self._broker.is_away):
            batch.leave(rows)
            return []
        if target is None:
            return rows
        sent = self._recorder.commit_pieces(batch, self._plan_pieces(batch, rows), target)
        self._figures.compiled += sent
        return rows[sent:]

    def _plan_pieces(self, batch: Batch, rows: Sequence[DueEntry]) -> Iterator[list[CompiledRun]]:
        for first in range(0, len(rows), PIECE):
            runs, others = self._quick_way.plan(rows[first : first + PIECE], batch.claim.now)
            if others or any(run.message.on_call is not None for run in runs):
                return
            yield runs

    def dispatch_prepared(self, batch: Batch, prepared: Iterable[Sequence[CompiledRun]]) -> None:
        """Send and record runs that were planned before they were due, if the recording script can push.

        Each part of ``prepared`` is asked for while the server records the part before it. The log tells of
        those that were sent, as entries may have changed or gone since their runs were planned.
        """
        self._broker.begin_batch()
        target = self._find_target(batch)
        if target is None:
            for runs in prepared:
                batch.give_back(runs)
            return
        given: list[CompiledRun] = []
        self._tracing.begin_batch()
        try:
            self._recorder.commit_pieces(batch, _pieces_of(prepared, given), target)
        except (SystemExit, KeyboardInterrupt):  # the server goes on with them
            self._reports.tell_of_all(given)
            raise
        finally:
            self._tracing.end_batch()
        self._reports.tell_of_all(batch.sent)
        self._figures.compiled += len(batch.sent)
        self._figures.used += len(batch.sent)
        self._recorder.commit(batch, batch.pending)  # pauses of runs whose messages were refused
        if batch.recorded:
            self._delivery.announce()

    # -- plan

    def _plan(self, batch: Batch, rows: Sequence[DueEntry], *, is_quick: bool) -> list[Run]:
        """Return the runs to send; commits of the other entries go to ``batch.pending``.

        They are sent in the order of their due times, whatever the order in which they were planned.
        """
        if not rows:
            return []
        runs: list[CompiledRun] = []
        others = rows
        if is_quick:
            runs, others = self._quick_way.plan(rows, batch.claim.now)
        self._figures.compiled += len(runs)
        if not others:
            return list(runs)
        calendars = self._calendars.read_of(self._store, others)
        found = [*runs, *self._plan_all(batch, others, calendars)]
        positions = {claimed.key: position for position, claimed in enumerate(rows)}
        return sorted(found, key=lambda run: positions[run.claimed.key])

    def _drop_missing(self, batch: Batch) -> list[DueEntry]:
        """Return the claimed entries that have a hash; commits of the others go to ``batch.pending``."""
        present, removed = [], []
        for claimed in self._drop_misplaced(batch):
            if claimed.type is not KeyType.NONE:
                self._reports.note_present(claimed)
                claimed.is_own = claimed.message is None and self._store.is_own(claimed.key)
                if claimed.is_own:
                    reason = EntryCorrupt(
                        f"{claimed.key}: a key of RedBeat's own is not an entry.", claimed.key
                    )
                    batch.pending.append(self._recorder.quarantine(claimed, reason, batch.claim.now))
                else:
                    present.append(claimed)
                continue
            is_known = self._reports.note_missing(claimed)
            batch.pending.append(commit_missing(claimed, batch.claim.now, is_known))
            if is_known:
                removed.append(claimed.key)
        self._reports.report_removed(removed)
        return present

    def _drop_misplaced(self, batch: Batch) -> Sequence[DueEntry]:
        """Return the claimed entries that belong here; commits of the others go to ``batch.pending``."""
        rows = batch.claim.rows
        misplaced = self._misplaced.among(rows)
        if not misplaced:
            return rows
        left, strays = self._misplaced.bring_home(misplaced)
        if left:
            batch.leave(left)
            batch.is_in_doubt = True  # they are tried again in a moment, and not at once
        for claimed in strays:
            reason = self._misplaced.describe(claimed)
            batch.pending.append(self._recorder.quarantine(claimed, reason, batch.claim.now))
        keys = {claimed.key for claimed in misplaced}
        return [claimed for claimed in rows if claimed.key not in keys]

    def give_back(self, batch: Batch) -> None:
        """Leave all that was claimed due: nothing of it is sent now."""
        batch.leave(batch.claim.rows)
        self._recorder.commit(batch, batch.pending)

    def _plan_all(
        self, batch: Batch, rows: Sequence[DueEntry], calendars: Mapping[str, Excluded]
    ) -> list[Run]:
        runs: list[Run] = []
        app = self._hooks.app
        now, defaults, tracks = batch.claim.now, read_defaults(app), read_tracks(app)
        for claimed in rows:
            began_cpu = time.thread_time()
            note_planning(claimed.key)
            try:
                if claimed.message is None:
                    plan = plan_run(
                        self._hooks.Entry,
                        app,
                        claimed,
                        now,
                        calendars,
                        defaults,
                        tracks,
                        self._labels_of,
                        partial(batch.note_dropped, claimed.key),
                    )
                else:
                    plan = plan_message(self._hooks.Entry, app, claimed, now)
            except BaseException as exc:  # noqa: BLE001 - the per-entry boundary
                let_through(exc)
                batch.pending.append(self._recorder.quarantine(claimed, exc, now))
                continue
            finally:
                note_planning(None)
                seconds = time.thread_time() - began_cpu
                if seconds > SLOW_SECONDS:
                    self._reports.report_slow(claimed, seconds)
            if not isinstance(plan, Run):
                batch.pending.append(plan)
                continue
            self._reports.report_typos(plan)
            if self._changes.get(claimed.key, 0) >= MAX_CHANGES:
                self._changes[claimed.key] = MAX_CHANGES - 1  # it is tried once after each pause
                reason = self._reports.report_contested(claimed)
                batch.pending.append(commit_failed(plan, reason, now)[0])
            else:
                runs.append(plan)
        self._figures.one_by_one += len(runs)
        return runs

    def _labels_of(self, entry: RedBeatSchedulerEntry) -> str:
        return self._book.id_of(entry.name, entry.task, entry.options, is_asked=entry.policy.metrics)

    # -- send

    def _send(self, batch: Batch, runs: Sequence[Run], *, is_suspect: bool = False) -> None:
        """Send ``runs``, or collect their messages, and note each of them in ``batch``.

        Arguments:
            is_suspect: they are likely to fail, and are tried all the same.
        """
        if any(map(is_held_back, runs)):
            runs = self._recorder.reserve(batch, runs, are_pushed=self._quick_way.is_exactly_once())
        left = deque(self.suspects.order(runs))
        are_drafts = self._broker.drafts is not None  # what is compiled isn't pushed, but published
        with hold_interrupts() as let_interrupt:  # a run that was sent and isn't noted would be sent again
            while left or batch.unconfirmed:
                let_interrupt()
                if not left:
                    left.extend(self._await_confirms(batch))
                    continue
                first = left[0]
                if not are_drafts and isinstance(first, CompiledRun) and first.message.on_call is None:
                    left.popleft()
                    self._collect(batch, first)
                    continue
                if not self._broker.has_time():
                    batch.give_back(left)
                    left.clear()
                    continue
                if not is_suspect and self.suspects.is_left_behind(first):
                    batch.leave_behind([run.claimed for run in left])
                    left.clear()
                    continue
                run = left.popleft()
                self.suspects.note_begun()
                try:
                    if not are_drafts and isinstance(run, CompiledRun):
                        self._collect(batch, run)
                    else:
                        self._note_sent(batch, run, self._send_run(batch, run))
                except RunDeclined as exc:
                    batch.pending.append(commit_declined(run, batch.claim.now + exc.seconds))
                except RedBeatError:  # about the schedule's server, or the lock
                    raise
                except BaseException as exc:  # noqa: BLE001 - the per-entry boundary
                    let_through(exc)
                    left = self._note_failed(batch, run, exc, left)

    def _note_sent(self, batch: Batch, run: Run, sent: tuple[Push, ...] | Publication) -> None:
        """Note what is left to do for ``run``: its messages are confirmed or pushed later, or nothing."""
        if isinstance(sent, Publication) and not sent.is_confirmed:
            batch.unconfirmed.append((run, sent))
        elif isinstance(sent, tuple) and sent:
            batch.collected.append((run, sent))
        else:
            self._reports.tell_of(run)
            batch.note_published(run)
            batch.events += run.events
            self.suspects.note_sent(run)

    def _note_failed(self, batch: Batch, run: Run, exc: BaseException, left: deque[Run]) -> deque[Run]:
        """Note what becomes of ``run``, which couldn't be sent; return the runs that are sent now.

        Arguments:
            left: those that come after it.
        """
        is_brokers = origin_of(exc) is Origin.BROKER
        if is_brokers and self._broker.is_away:
            # all of them are sent, oldest first, when the broker is back
            batch.give_back([*self._note_settled(batch), run, *left])
            return deque()
        if is_brokers and batch.has_lost:  # the error may be that of a message before
            batch.doubtful.add(run.claimed.key)
            return deque([*self._note_settled(batch), run, *left])
        is_new = self.suspects.note_failed(run)
        self._recorder.note_failed(batch, run, exc)
        return deque(self.suspects.order(left)) if is_new else left

    def _try_suspects(self, batch: Batch, send: Callable[..., object]) -> None:
        """Try what is likely to fail as long as there is time, or none fails; leave the rest behind."""
        rows, began_at = deque(batch.suspects), time.monotonic()
        # of a fetch that is full of them, so many are tried that others come nearer
        least_seconds = FULL_SECONDS if batch.claim.has_more and len(rows) == len(batch.claim.rows) else 0.0
        while rows and not self._broker.is_away:
            failures = self.suspects.failures
            size = SUSPECTS_TOGETHER if self.suspects.has_time else 1
            group = [rows.popleft() for _ in range(min(size, len(rows)))]
            send(batch, self._plan(batch, group, is_quick=False), is_suspect=True)
            is_over = time.monotonic() - began_at >= least_seconds
            if is_over and self.suspects.failures > failures and not self.suspects.has_time:
                break
        tried = len(batch.suspects) - len(rows)
        if tried:
            self.suspects.note_cost((time.monotonic() - began_at) / tried)
        if self._broker.is_away:
            batch.leave(list(rows))
        else:
            batch.leave_behind(list(rows))

    def _send_run(self, batch: Batch, run: Run) -> tuple[Push, ...] | Publication:
        """Send one run; return what is left to be done for it, as :meth:`Broker.sending` yields it."""
        is_again = False
        while True:
            try:
                producer = self._hooks.producer  # it connects, and makes the outbox
                self._leadership.confirm()  # after that, as connecting may take long
                return self._publish(run, producer, is_deferrable=self._is_deferrable(batch, run))
            except RedBeatError:
                raise
            except Exception as exc:
                if origin_of(exc) is not Origin.BROKER:
                    raise
                is_mended = self._broker.recover(exc)
                # once, the connection may have gone stale; twice, the run has failed
                if not is_mended or is_again or batch.has_lost or self.suspects.is_suspect(run.claimed):
                    raise
                is_again = True

    def _is_deferrable(self, batch: Batch, run: Run) -> bool:
        """Tell whether the messages of ``run`` may be confirmed later."""
        is_suspect = run.claimed.key in batch.doubtful or self.suspects.is_suspect(run.claimed)
        is_own = hasattr(self._hooks.apply_async, "is_deferrable") and not self._hooks.asks_subclass
        return not is_suspect and is_own

    def _collect(self, batch: Batch, run: CompiledRun) -> None:
        """Collect the message of ``run``, which is made already."""
        if run.message.on_call is not None:
            run.message.on_call(run.task_id)
        batch.collected.append((run, run.pushes))

    def _publish(
        self, run: Run, producer: Any, *, is_deferrable: bool = False
    ) -> tuple[Push, ...] | Publication:
        if isinstance(run, CompiledRun):
            with self._broker.sending(None, is_deferrable=is_deferrable) as sent:
                if run.message.on_call is not None:
                    run.message.on_call(run.task_id)
                [draft] = run.pushes
                declared = [one.entity for one in run.message.declarations]
                self._broker.publish_draft(str(draft.value), declared)
            return tuple(sent) if isinstance(sent, list) else sent
        with (
            self._broker.sending(run.expiration_seconds, is_deferrable=is_deferrable) as sent,
            self._tracing.sending(self._begin_span(run)),
        ):
            is_asking = run.entry.message is None and self._hooks.asks_subclass
            try:
                if is_asking:
                    self._hooks.send_planned(run.entry, producer, self._seconds_to_next(run))
                else:
                    self._hooks.apply_async(run.entry, producer=producer, advance=False)
            except RunDeclined:
                raise
            except RedBeatError as exc:  # one that the application's code has raised, or let through
                raise SchedulingError(str(exc)) from exc
        if is_asking and isinstance(sent, list) and sent and self._has_changed(run):
            # the subclass has written to the entry, so the recording script would not push
            self._push_now(sent)
        if run.span is not None:
            run.span.queue = self._broker.destination or run.span.queue
        run.events = self._broker.events
        return tuple(sent) if isinstance(sent, list) else sent

    @staticmethod
    def _seconds_to_next(run: OrdinaryRun) -> float:
        score = run.sent.new_score
        return max(float(score) - float(run.nominal), 0.0) if isinstance(score, str) else 0.0

    def _has_changed(self, run: OrdinaryRun) -> bool:
        """Return True if the entry of ``run`` is stored otherwise than it was planned by."""
        claimed = run.claimed
        _, [stored] = Entries(self._store).read([claimed.key])
        found = stored.definition, stored.policy, stored.meta
        return found != (claimed.definition, claimed.policy, claimed.meta)

    def _push_now(self, pushes: list[Push]) -> None:
        """Push messages before their run is recorded, and leave the list empty."""
        if self._broker.outbox is not None:
            [failure] = self._broker.outbox.send([tuple(pushes)])
            pushes.clear()
            if failure is not None:
                raise failure

    def _begin_span(self, run: OrdinaryRun) -> RunSpan | None:
        """Let the message of ``run`` carry its span's context; the one that it has, if it is sent again."""
        trace, options = self._tracing.headers, run.entry.options
        if run.entry.message is not None:  # it continues the trace in which it was stored
            return None
        if run.span is None and trace is not None and not has_own_context(options["headers"], trace.names):
            task_id, due = str(options["task_id"]), str(options["headers"]["redbeat_due"])
            run.span = self._tracing.begin(run.name, run.task, task_id, due, float(run.nominal))
            if run.span is not None:
                options["headers"] = {**options["headers"], **run.span.headers}
        return run.span

    def _await_confirms(self, batch: Batch) -> list[Run]:
        """Wait for the confirms of ``batch``; return the runs that are to be sent again."""
        try:
            self._broker.settle()
        except Exception as exc:  # noqa: BLE001 - whatever the transport raises: what is confirmed counts
            self._broker.recover(exc)
        unsettled = self._note_settled(batch)
        if not self._broker.is_away:
            return unsettled
        batch.give_back(unsettled)
        return []

    def _note_settled(self, batch: Batch) -> list[Run]:
        """Note what became of the unconfirmed runs; return those of which nobody knows."""
        unconfirmed, batch.unconfirmed = batch.unconfirmed, []
        unsettled = []
        for run, publication in unconfirmed:
            if publication.failure is not None:
                self._recorder.retry_later(batch, run, publication.failure)
            elif publication.is_confirmed:
                self._reports.tell_of(run)
                batch.note_published(run)
                self.suspects.note_sent(run)
            else:
                unsettled.append(run)
        batch.doubtful.update(run.claimed.key for run in unsettled)
        return unsettled

    # -- record

    def _record(self, batch: Batch) -> None:
        """Record the batch; collected messages are pushed in the same step, or sent just before it."""
        if batch.collected:
            target = self._find_target(batch)
            if target is None or not self._recorder.commit_with_messages(batch, target):
                self._send_collected(batch)
        self._recorder.commit(batch, batch.pending)

    def _send_collected(self, batch: Batch) -> None:
        """Send the collected messages by the broker's client."""
        self._reserve_collected(batch)
        self._pipeline.send(batch)

    def _reserve_collected(self, batch: Batch) -> None:
        """Leave out the collected runs that others hold back."""
        pushes = {run.claimed.key: of_run for run, of_run in batch.collected}
        runs = self._recorder.reserve(batch, [run for run, _ in batch.collected])
        batch.collected = [(run, pushes[run.claimed.key]) for run in runs]

    def _find_target(self, batch: Batch) -> Target | None:
        """Return where a commit may push the collected messages; None: nowhere.

        Where that can't be known now, the collected runs stay due.
        """
        try:
            if not self._delivery.is_in_doubt():
                return self._delivery.target()
            batch.is_in_doubt = True
        except RedBeatError:  # about the schedule's server
            raise
        except Exception as exc:  # noqa: BLE001 - whatever the broker's client raises
            self._broker.note_away(exc)  # even if it answers, so that it isn't asked in a loop
        batch.give_back([run for run, _ in batch.collected])
        batch.collected.clear()
        return None

    # -- with at_most_once: record, then send

    def _record_then_send(self, batch: Batch, runs: Sequence[Run], *, is_suspect: bool = False) -> None:
        runs = self.suspects.order(runs)
        for start in range(0, len(runs), AT_MOST_ONCE_GROUP):
            if not is_suspect and self.suspects.is_left_behind(runs[start]):
                batch.leave_behind([run.claimed for run in runs[start:]])
                self._recorder.commit(batch, batch.pending)
                return
            if self._broker.is_away or not self._broker.has_time():
                batch.give_back(runs[start:])
                self._recorder.commit(batch, batch.pending)
                return
            group = runs[start : start + AT_MOST_ONCE_GROUP]
            self._broker.drop_stale()
            results = self._recorder.commit(batch, [run.sent for run in group])
            admitted = [run for run, result in zip(group, results, strict=True) if result is True]
            published = [run for run in admitted if self._send_or_lose(batch, run)]
            self._recorder.record_published(batch, published)

    def _send_or_lose(self, batch: Batch, run: Run) -> bool:
        """Send ``run``, which is recorded; return False if its message couldn't be sent, and is lost."""
        self.suspects.note_begun()
        try:
            # not tried again, as a message that broke the connection may have arrived
            pushes = () if self._broker.is_away else self._publish(run, self._hooks.producer)
            if self._broker.is_away:
                raise ConnectionError("the broker is away")
            if isinstance(pushes, tuple) and pushes and self._broker.outbox is not None:
                [failure] = self._broker.outbox.send([pushes])
                if failure is not None:
                    raise failure
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary
            let_through(exc)
            if not self._broker.is_away and origin_of(exc) is Origin.BROKER:
                self._broker.recover(exc)  # so that the next ones of the group don't wait for it, too
            if not self._broker.is_away:  # that it is away says nothing about the run
                self.suspects.note_failed(run)
            if run.span is not None:
                run.span.note_failed(exc)
            reason = reason_of(exc)
            self._recorder.note_lost(run, reason)
            self._reports.failures.report_lost(run, reason)
            return False
        self._reports.tell_of(run)
        if run.span is not None:
            run.span.note_sent()
        batch.events += run.events
        return True


def _pieces_of(
    prepared: Iterable[Sequence[CompiledRun]], given: list[CompiledRun]
) -> Iterator[Sequence[CompiledRun]]:
    """Yield prepared runs in pieces, and note them in ``given``."""
    for runs in prepared:
        for first in range(0, len(runs), PIECE):
            piece = runs[first : first + PIECE]
            given += piece
            yield piece
