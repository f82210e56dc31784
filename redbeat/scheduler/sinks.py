"""Sinks: how messages leave.

::

    ScriptSink       the broker is the schedule's own server: the recording script pushes messages
    PipelineSink     the broker is another Redis: one pipeline, then the record
    ProducerSink     any other broker: published one by one; RabbitMQ confirms later
    RecordFirstSink  with at_most_once: recorded before they are sent

Invariant: a message that was sent is recorded, or its entry stays due with the same task id.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from redbeat.connection.retry import (
    LAST_WORDS_SECONDS,
    RequestBroken,
    call_watched,
    is_answered,
    is_refusal,
)
from redbeat.delivery.amqp import Publication
from redbeat.delivery.failures import Origin, origin_of
from redbeat.errors import RedBeatError, StoreRefused
from redbeat.log.events import RUN_SENT_BEFORE
from redbeat.log.logger import logger
from redbeat.process.signals import hold_interrupts, let_through
from redbeat.scheduler.batch import Batch
from redbeat.scheduler.context import Context
from redbeat.scheduler.decisions import Send
from redbeat.scheduler.overrides import RunDeclined
from redbeat.store.entries import read_entries
from redbeat.store.records import Held, Push, Reserved
from redbeat.store.reservations import Reserving, reserve_runs
from redbeat.store.runs import Runs

Pushes = tuple[Push, ...]

#: does a step for one shard; its error keeps the others going, unless it ends the tick
Guard = Callable[[Batch, Callable[[], Any]], None]

#: runs that are sent before they are recorded, at most: a beat that is killed in between sends them again
MAX_UNRECORDED = 500


#: with at_most_once, runs that are recorded before they are sent: a crash loses at most these
AT_MOST_ONCE_CHUNK = 20


class Sink(Protocol):
    """How the messages of a tick leave.

    Attributes:
        chunk_size: runs that are planned and sent together.
    """

    chunk_size: int

    def send(self, batch: Batch, sends: Sequence[Send]) -> None:
        """Send messages; a run that may be recorded becomes ready in its batch, as what it has become."""

    def flush(self) -> None:
        """Send what was collected, and wait for what is on its way."""

    def end_early(self) -> None:
        """Find out in two seconds what has arrived, as the tick ends with an error."""


class ScriptSink:
    """The script that records a run pushes its message."""

    chunk_size = 100

    def __init__(self, context: Context) -> None:
        self._context = context

    def send(self, batch: Batch, sends: Sequence[Send]) -> None:
        """Make the messages. Those that leave at once, to a fan-out for example, are recorded after it."""
        context = self._context
        by_celery = [send for send in sends if send.template is None]
        if not by_celery:
            batch.ready += sends
            return
        admitted = {id(send) for send in reserve(context, batch, by_celery)}
        left = deque(send for send in sends if send.template is not None or id(send) in admitted)
        with hold_interrupts() as held:
            while left:
                if held.arrived is not None:
                    held.let_arrive()
                send = left[0]
                if send.template is not None:
                    batch.ready.append(left.popleft())
                    continue
                if not context.broker.has_time():
                    batch.leave(one.due_entry for one in left)
                    return
                left.popleft()
                exc = _attempt(context, batch, send, self._make)
                is_away = context.broker.is_away
                if exc is not None and is_away and origin_of(exc) is Origin.BROKER:
                    left.appendleft(send)
                elif exc is not None:
                    batch.ready.append(context.failures.decide(batch, send, exc))
                if is_away:
                    batch.leave(one.due_entry for one in left)
                    return

    def _make(self, batch: Batch, send: Send, producer: Any) -> None:
        pushes = make(self._context, batch, send, producer)
        if isinstance(pushes, tuple) and pushes:
            send.pushes = pushes
            batch.ready.append(send)
        else:
            note_published(self._context, batch, send)

    def flush(self) -> None:
        """Do nothing: nothing is on its way."""

    def end_early(self) -> None:
        """Do nothing: nothing is on its way."""


class PipelineSink(ScriptSink):
    """Messages are collected, and sent in one pipeline before they are recorded."""

    def __init__(self, context: Context, guard: Guard) -> None:
        super().__init__(context)
        self._guard = guard
        self._collected: list[tuple[Batch, Send]] = []

    def send(self, batch: Batch, sends: Sequence[Send]) -> None:
        """Make the messages, and collect them."""
        before, batch.ready = batch.ready, []
        super().send(batch, reserve(self._context, batch, sends))
        collected = [one for one in batch.ready if isinstance(one, Send) and one.pushes]
        self._collected += [(batch, send) for send in collected]
        batch.ready = before + [one for one in batch.ready if not (isinstance(one, Send) and one.pushes)]
        if len(self._collected) >= MAX_UNRECORDED:
            self.flush()

    def flush(self) -> None:
        """Send what was collected; runs that failed before go last."""
        collected, self._collected = self._collected, []
        for is_again in (False, True):  # one that ends the connection lets all before it arrive again
            self._send_together([one for one in collected if one[1].has_failed is is_again])

    def _send_together(self, collected: Sequence[tuple[Batch, Send]]) -> None:
        collected = [one for one in collected if not one[0].is_out]
        broker = self._context.broker
        for batch in {id(batch): batch for batch, _ in collected}.values():
            self._guard(batch, batch.leadership.confirm)
        collected = [one for one in collected if not one[0].is_out]
        if not collected:
            return
        if broker.outbox is None:
            for batch, send in collected:
                batch.leave([send.due_entry])
            return
        try:
            with hold_interrupts():
                outcomes = self._send_all([send.pushes for _, send in collected])
                for (batch, send), failure in zip(collected, outcomes, strict=True):
                    send.pushes = ()
                    if failure is None:
                        batch.publish(send)
        except RedBeatError:  # about the schedule's server, or the lock
            raise
        except Exception as exc:  # noqa: BLE001 - whatever the client raises: it is not known what was sent
            broker.note_away(exc)  # even if it answers, so that nothing is sent in a loop
            for batch, send in collected:
                send.pushes = ()
                batch.leave([send.due_entry])
            return
        for (batch, send), failure in zip(collected, outcomes, strict=True):
            if failure is None:
                tell_published(self._context, batch, send)
            elif is_refusal(failure):
                broker.note_away(failure)
                batch.leave([send.due_entry])
            else:
                batch.ready.append(self._context.failures.retry(batch, send, failure))

    def _send_all(self, batches: list[Pushes]) -> list[Exception | None]:
        """Send the writes of each run; where one of them ends the connection, each run alone.

        Returns the error of each, None for one that was sent.

        Raises what the redis client raises when the broker is unreachable, or does not answer in time.
        """
        outbox = self._context.broker.outbox
        if outbox is None:
            raise ConnectionError("the connection to the broker has ended")
        try:
            found: list[Exception | None] = call_watched(
                partial(outbox.send, batches), partial(is_answered, outbox.kombu_client.ping)
            )
        except RequestBroken as exc:
            if len(batches) == 1:
                return [exc]
            return [outcome for one in batches for outcome in self._send_all([one])]
        return found


class ProducerSink:
    """Messages are published one by one; on RabbitMQ several are unconfirmed at a time."""

    #: the whole batch, so that runs like one that ends the connection can go last
    chunk_size = sys.maxsize

    def __init__(self, context: Context, guard: Guard) -> None:
        self._context, self._guard = context, guard
        self._unconfirmed: list[tuple[Batch, Send, Publication]] = []

    def send(self, batch: Batch, sends: Sequence[Send]) -> None:
        """Publish messages; a run that RabbitMQ has not confirmed yet becomes ready later."""
        self._publish(batch, reserve(self._context, batch, sends))
        if len(self._unconfirmed) >= MAX_UNRECORDED:
            self.flush()

    def _publish(self, batch: Batch, sends: Sequence[Send]) -> None:
        context = self._context
        left = deque(sends)
        with hold_interrupts() as held:  # a run that was sent and is not noted would be sent again
            while left:
                if held.arrived is not None:
                    held.let_arrive()
                if not context.broker.has_time():
                    batch.leave(one.due_entry for one in left)
                    return
                send = left.popleft()
                may_repeat = partial(self._may_repeat, send)
                exc = _attempt(context, batch, send, self._publish_one, may_repeat)
                if exc is not None:
                    left = self._note_failed(batch, send, exc, left)

    def _publish_one(self, batch: Batch, send: Send, producer: Any) -> None:
        is_deferrable = self._is_deferrable(batch, send)
        sent = make(self._context, batch, send, producer, is_deferrable=is_deferrable)
        if isinstance(sent, Publication) and not sent.is_confirmed:
            self._unconfirmed.append((batch, send, sent))
            return
        if isinstance(sent, tuple) and sent:  # a Redis broker has taken the place of another one
            self._context.broker.send(sent)
        note_published(self._context, batch, send)

    def _may_repeat(self, send: Send) -> bool:
        """Return True if an error may be that of a stale connection, and not of this run or one before."""
        return not (self._has_lost or send.due_entry.error)

    def _is_deferrable(self, batch: Batch, send: Send) -> bool:
        """Return True if the messages of a run may be confirmed later."""
        hooks, row = self._context.hooks, send.due_entry
        is_own = hasattr(hooks.apply_async, "is_deferrable") and not hooks.asks_subclass
        return is_own and not (row.error or row.key in batch.doubtful)

    @property
    def _has_lost(self) -> bool:
        return any(publication.is_lost for _, _, publication in self._unconfirmed)

    def _note_failed(self, batch: Batch, send: Send, exc: BaseException, left: deque[Send]) -> deque[Send]:
        """Note what becomes of a run that could not be sent; return the runs that are sent now."""
        context = self._context
        is_brokers = origin_of(exc) is Origin.BROKER
        if is_brokers and context.broker.is_away:  # all of them are sent, oldest first, when it is back
            self._leave_unsettled(self._note_settled())
            batch.leave(one.due_entry for one in (send, *left))
            return deque()
        if is_brokers and self._has_lost:  # the error may be that of a message before
            batch.doubtful.add(send.due_entry.key)
            again = self._note_settled()
            own = [one for other, one in again if other is batch]
            for other, one in again:
                if other is not batch:
                    self._guard(other, partial(self._publish, other, [one]))
            return deque([*own, send, *left])
        batch.ready.append(context.failures.decide(batch, send, exc))
        return left

    def flush(self) -> None:
        """Wait for the confirms; what RabbitMQ does not know of is sent again, each alone."""
        broker = self._context.broker
        while self._unconfirmed:
            try:
                broker.settle()
            except Exception as exc:  # noqa: BLE001 - whatever the transport raises: what is confirmed counts
                broker.recover(exc)
            unsettled = self._note_settled()
            if broker.is_away:
                self._leave_unsettled(unsettled)
                return
            for batch, send in unsettled:
                self._guard(batch, partial(self._publish, batch, [send]))

    def end_early(self) -> None:
        """Find out in two seconds what has arrived."""
        if self._unconfirmed:
            with suppress(Exception), hold_interrupts(LAST_WORDS_SECONDS, is_firm=True):
                self._context.broker.settle(LAST_WORDS_SECONDS)
            self._note_settled()

    def _note_settled(self) -> list[tuple[Batch, Send]]:
        """Process the confirms; return the runs still unconfirmed."""
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        unsettled = []
        for batch, send, publication in unconfirmed:
            if publication.failure is not None:
                batch.ready.append(self._context.failures.retry(batch, send, publication.failure))
            elif publication.is_confirmed:
                note_published(self._context, batch, send)
            else:
                unsettled.append((batch, send))
                batch.doubtful.add(send.due_entry.key)
        return unsettled

    @staticmethod
    def _leave_unsettled(unsettled: Sequence[tuple[Batch, Send]]) -> None:
        for batch, send in unsettled:
            batch.leave([send.due_entry])


class RecordFirstSink(ScriptSink):
    """With at_most_once a run is recorded before its message is sent; what cannot be sent then is lost.

    Arguments:
        record: records runs now, and returns the recorded ones.
    """

    chunk_size = AT_MOST_ONCE_CHUNK

    def __init__(self, context: Context, record: Callable[[Batch, Sequence[Send]], list[Send]]) -> None:
        self._context = context
        self._record = record

    def send(self, batch: Batch, sends: Sequence[Send]) -> None:
        """Record runs, then send them, none of them twice."""
        broker = self._context.broker
        if broker.is_away or not broker.has_time():
            batch.leave(send.due_entry for send in sends)
            return
        broker.drop_stale()
        messages = {id(send): send.pushes for send in sends}
        for send in sends:
            send.pushes = ()
        published = []
        with hold_interrupts():  # else what is recorded, and isn't sent yet, would be lost
            for send in self._record(batch, sends):
                send.pushes = messages[id(send)]
                if self._send_or_lose(batch, send):
                    published.append(send)
        held = [
            Reserving(send.due_entry.key, send.task_id, send.commit.run, is_published=True)
            for send in published
            if send.commit.run is not None and send.may_be_held
        ]
        reserve_runs(batch.store, batch.fence, held)

    def _send_or_lose(self, batch: Batch, send: Send) -> bool:
        """Send a run that is recorded; return False if its message could not be sent, and is lost."""
        context, broker = self._context, self._context.broker
        try:
            with hold_interrupts():
                # not tried again, as a message that broke the connection may have arrived
                pushes = () if broker.is_away else make(context, batch, send, context.hooks.producer)
                if broker.is_away:
                    raise ConnectionError("the broker is away")
                if isinstance(pushes, tuple) and pushes:
                    broker.send(pushes)
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary
            let_through(exc)
            if not broker.is_away and origin_of(exc) is Origin.BROKER:
                broker.recover(exc)  # so that the next ones do not wait for it, too
            context.failures.note_lost(batch, send, exc)
            return False
        context.reports.report_sent([send])
        if send.span is not None:
            send.span.note_sent()
        batch.events += send.events
        return True


def make(
    context: Context, batch: Batch, send: Send, producer: Any, *, is_deferrable: bool = False
) -> Pushes | Publication:
    """Make the message of a run, or publish it.

    Returns the list writes that are left to be done, none if it was sent; or a publication whose messages are
    still to be confirmed.
    """
    template, broker = send.template, context.broker
    if template is None:
        batch.is_from_templates = False
        sent = context.encoder.make(send, producer, is_deferrable=is_deferrable)
        if isinstance(sent, tuple) and sent and context.hooks.asks_subclass and _has_changed(batch, send):
            # the subclass has written to the entry, so the recording script would not push
            broker.send(sent)
            return ()
        return sent
    if broker.confirms is None:
        return send.pushes
    with broker.sending(None, is_deferrable=is_deferrable) as publication:
        [draft] = send.pushes
        broker.confirms.publish_draft(str(draft.value), template.kind.declared, broker.publish_seconds())
    return () if isinstance(publication, list) else publication


def _has_changed(batch: Batch, send: Send) -> bool:
    """Return True if an entry is stored otherwise than it was planned by."""
    row = send.due_entry
    _, [stored] = read_entries(batch.store, [row.key])
    return (stored.definition, stored.policy, stored.meta) != (row.definition, row.policy, row.meta)


def _attempt(
    context: Context,
    batch: Batch,
    send: Send,
    step: Callable[[Batch, Send, Any], None],
    may_repeat: Callable[[], bool] = lambda: True,
) -> BaseException | None:
    """Do a step that sends a run, once more where the connection had gone stale.

    Returns the error that is about this run alone; None: it was sent, or a subclass has declined it.

    Arguments:
        may_repeat: returns True if the step may be repeated.

    Raises:
        RedBeatError: about the schedule's server, or the lock.
    """
    is_again = False
    while True:
        try:
            producer = context.hooks.producer  # it connects, and makes the outbox
            batch.leadership.confirm()  # after that, as connecting may take long
            step(batch, send, producer)
        except RunDeclined as exc:
            batch.ready.append(send.declined(batch.now + exc.seconds))
        except RedBeatError:
            raise
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary
            let_through(exc)
            is_mended = origin_of(exc) is Origin.BROKER and context.broker.recover(exc)
            if is_mended and not is_again and may_repeat():
                is_again = True
                continue
            return exc
        return None


def note_published(context: Context, batch: Batch, send: Send) -> None:
    """Note that the message of a run was sent: it may be recorded."""
    batch.publish(send)
    tell_published(context, batch, send)


def tell_published(context: Context, batch: Batch, send: Send) -> None:
    """Log that a run was sent before it is recorded."""
    context.reports.report_sent([send])
    batch.events += send.events


def reserve(context: Context, batch: Batch, sends: Sequence[Send]) -> Sequence[Send]:
    """Return those runs whose messages may be published: no other run of their entries holds them back.

    Decisions about the others become ready. It takes one round trip, or none where no policy asks for it.
    """
    asking = [one for one in sends if one.may_be_held and one.due_entry.key not in batch.reserved]
    if not asking:
        return sends
    asked = [Reserving(one.due_entry.key, one.task_id, one.commit.run) for one in asking if one.commit.run]
    answers = reserve_runs(batch.store, batch.fence, asked)
    left_out: set[int] = set()
    for send, answer in zip(asking, answers, strict=True):
        if answer is Reserved.NOW:
            batch.reserved.add(send.due_entry.key)
            continue
        left_out.add(id(send))
        if answer is Reserved.BEFORE:
            logger.info(
                "beat: %s (%s) was sent already, and is recorded now.",
                send.name,
                send.task,
                extra=RUN_SENT_BEFORE.of(
                    entry=send.name, task=send.task, task_id=send.task_id, due=float(send.nominal)
                ),
            )
            send.span = None  # that of the time before was told, or went with its beat
            send.pushes = ()
            batch.publish(send)
        elif isinstance(answer, Held):
            report_held(context, batch, send, answer)
            batch.ready.append(send.held(answer))
        else:
            batch.ready.append(context.failures.retry(batch, send, StoreRefused(answer)))
    return [one for one in sends if id(one) not in left_out]


def report_held(context: Context, batch: Batch, send: Send, held: Held) -> None:
    """Log that another run has held a run back, and whether workers track runs."""
    context.reports.report_held(send.commit, held)
    if held.worker is not None:  # it has begun the other run
        context.reports.note_tracked()
    elif held.state != "reserved":
        has_workers = Runs(batch.store.without_retry()).has_workers
        name = batch.store.keys.name(send.due_entry.key)
        context.reports.report_untracked(name, "held back", has_workers)
