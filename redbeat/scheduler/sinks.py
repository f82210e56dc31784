"""Sinks: how messages leave.

::

    Sink             where schedule and broker are one server, the script that records a run pushes its
                     message; another Redis gets messages in one pipeline; any other broker gets them one by
                     one, and RabbitMQ confirms later
    RecordFirstSink  with at_most_once: runs are recorded before they are sent

Invariant: a message that was sent is recorded, or its entry stays due with the same task id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

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

Pushes = tuple[Push, ...]

#: does a step for one shard; its error keeps the others going, unless it ends the tick
Guard = Callable[[Batch, Callable[[], Any]], None]

#: runs that are sent before they are recorded, at most: a beat that is killed in between sends them again
MAX_UNRECORDED = 500


#: with at_most_once, runs that are recorded before they are sent: a crash loses at most these
AT_MOST_ONCE_CHUNK = 20


class Sink:
    """How the messages of a tick leave.

    The script that records a run pushes its message, or a Redis broker gets messages in one pipeline, or
    they are published one by one; on RabbitMQ several are unconfirmed at a time.

    Arguments:
        guard: does a step for one shard.
        is_script: the recording script pushes messages.

    Attributes:
        chunk_size: runs that are planned and sent together.
    """

    chunk_size = 100

    def __init__(self, context: Context, guard: Guard, *, is_script: bool = False) -> None:
        self._context, self._guard, self._is_script = context, guard, is_script
        self._collects = is_script or context.broker.outbox is not None
        self._collected: list[tuple[Batch, Send]] = []
        self._unconfirmed: list[tuple[Batch, Send, Publication]] = []

    def send(self, batch: Batch, sends: Sequence[Send]) -> None:
        """Send messages; a run that may be recorded becomes ready in its batch, as what it has become."""
        if self._is_script:  # what Celery makes may leave at once, to a fan-out for example
            by_celery = reserve(self._context, batch, [send for send in sends if send.template is None])
            admitted = set(map(id, by_celery))
            sends = [send for send in sends if send.template is not None or id(send) in admitted]
        else:
            sends = reserve(self._context, batch, sends)
        self._send_each(batch, sends)
        if len(self._collected) >= MAX_UNRECORDED:
            self.flush()
        elif self._unconfirmed:
            self._note_confirmed()

    def _send_each(self, batch: Batch, sends: Sequence[Send]) -> None:
        if self._collects and not [send for send in sends if send.template is None]:
            self._collect(batch, sends)
            return
        context, left = self._context, deque(sends)
        broker, again = context.broker, None
        with hold_interrupts() as held:  # a run that was sent and is not noted would be sent again
            while left and broker.has_time() and not broker.is_away:
                if held.arrived is not None:
                    held.let_arrive()
                try:
                    producer = context.hooks.producer  # it connects, and makes the outbox
                    batch.shard.leadership.confirm()  # after that, as connecting may take long
                    self._send_next(batch, left, producer)
                except RedBeatError:  # about the schedule's server, or the lock
                    raise
                except BaseException as exc:  # noqa: BLE001 - the per-entry boundary
                    let_through(exc)
                    send = left.popleft()
                    is_mended = origin_of(exc) is Origin.BROKER and broker.recover(exc)
                    # one by one the error may be that of this run, or of one before
                    is_doubtful = not self._collects and (self._has_lost or send.due_entry.error)
                    if is_mended and send is not again and not is_doubtful:
                        left.appendleft(send)  # once more, as the connection had gone stale
                        again = send
                    else:
                        left = self._note_failed(batch, send, exc, left)
        batch.leave(one.due_entry for one in left)

    def _collect(self, batch: Batch, sends: Sequence[Send]) -> None:
        if self._is_script:
            batch.ready += sends
        else:
            self._collected += [(batch, send) for send in sends]

    def _send_next(self, batch: Batch, left: deque[Send], producer: Any) -> None:
        """Send the next of the runs that are ``left``, and all from templates that follow it.

        Raises:
            RedBeatError: about the schedule's server, or the lock.
            Exception: about the run that is the next one then, or about one before.
        """
        context, send = self._context, left[0]
        if send.template is None:
            self._send_one(batch, send, producer)
            left.popleft()
            return
        seconds = context.broker.publish_seconds()
        while left and left[0].template is not None:
            send = left[0]
            if self._collects:
                self._collect(batch, [send])
            else:
                publication = Publication() if self._is_deferrable(batch, send) else None
                context.broker.publish(send.frames, publication, seconds)
                self._note_published(batch, send, publication)
            left.popleft()
        if self._unconfirmed:
            try:
                context.broker.write()
            except Exception as exc:  # noqa: BLE001 - about no run in particular: flush() sends them again
                context.broker.recover(exc)

    def _send_one(self, batch: Batch, send: Send, producer: Any) -> None:
        """Let Celery make the message of a run, and send it."""
        context, hooks = self._context, self._context.hooks
        is_own = hasattr(hooks.apply_async, "is_deferrable") and not hooks.asks_subclass
        is_deferrable = not self._collects and is_own and self._is_deferrable(batch, send)
        try:
            sent = make(context, batch, send, producer, is_deferrable=is_deferrable)
        except RunDeclined as exc:
            batch.ready.append(send.declined(batch.fetched.now + exc.seconds))
            return
        if isinstance(sent, tuple) and sent and self._collects:
            send.pushes = sent
            self._collect(batch, [send])
            return
        if isinstance(sent, tuple) and sent:  # a Redis broker has taken the place of another one
            context.broker.send(sent)
        self._note_published(batch, send, sent if isinstance(sent, Publication) else None)

    def _is_deferrable(self, batch: Batch, send: Send) -> bool:
        """Return False for a run that has failed before, or may have been lost with a channel.

        It is waited for by itself.
        """
        return not (send.due_entry.error or send.due_entry.key in batch.doubtful)

    def _note_published(self, batch: Batch, send: Send, publication: Publication | None) -> None:
        if publication is None or publication.is_confirmed:
            batch.publish(send)
            tell_published(self._context, batch, send)
        else:
            self._unconfirmed.append((batch, send, publication))

    @property
    def _has_lost(self) -> bool:
        return any(publication.is_lost for _, _, publication in self._unconfirmed)

    def _note_failed(self, batch: Batch, send: Send, exc: BaseException, left: deque[Send]) -> deque[Send]:
        """Note what becomes of a run that could not be sent; return the runs that are sent now."""
        context = self._context
        is_brokers = origin_of(exc) is Origin.BROKER
        if is_brokers and context.broker.is_away:  # all of them are sent, oldest first, when it is back
            _leave(self._note_settled())
            return deque([send, *left])
        if is_brokers and self._has_lost:  # the error may be that of a message before
            batch.doubtful.add(send.due_entry.key)
            again = self._note_settled()
            own = [one for other, one in again if other is batch]
            for other, one in again:
                if other is not batch:
                    self._guard(other, partial(self._send_each, other, [one]))
            return deque([*own, send, *left])
        batch.ready.append(context.failures.decide(batch, send, exc))
        return left

    # -- what is on its way

    def flush(self) -> None:
        """Send what was collected, and wait for the confirms.

        What RabbitMQ does not know of is sent again, each alone. Collected runs that failed before go last.
        """
        collected, self._collected = self._collected, []
        for is_again in (False, True):  # one that ends the connection lets all before it arrive again
            self._send_together([one for one in collected if one[1].has_failed is is_again])
        broker = self._context.broker
        while self._unconfirmed:
            try:
                broker.settle()
            except Exception as exc:  # noqa: BLE001 - whatever the transport raises: what is confirmed counts
                broker.recover(exc)
            unsettled = self._note_settled()
            if broker.is_away:
                _leave(unsettled)
                return
            for batch, send in unsettled:
                self._guard(batch, partial(self._send_each, batch, [send]))

    def end_early(self) -> None:
        """Find out in two seconds what has arrived, as the tick ends with an error."""
        if self._unconfirmed:
            with suppress(Exception), hold_interrupts(LAST_WORDS_SECONDS, is_firm=True):
                self._context.broker.settle(LAST_WORDS_SECONDS)
            self._note_settled()

    def _note_confirmed(self) -> None:
        """Process the confirms that have come."""
        unconfirmed, self._unconfirmed = self._unconfirmed, []
        for batch, send, publication in unconfirmed:
            if publication.failure is not None:
                batch.ready.append(self._context.failures.retry(batch, send, publication.failure))
            else:
                self._note_published(batch, send, publication)

    def _note_settled(self) -> list[tuple[Batch, Send]]:
        """Process the confirms; return the runs still unconfirmed."""
        self._note_confirmed()
        unsettled = [(batch, send) for batch, send, _ in self._unconfirmed]
        self._unconfirmed = []
        for batch, send in unsettled:
            batch.doubtful.add(send.due_entry.key)
        return unsettled

    def _send_together(self, collected: Sequence[tuple[Batch, Send]]) -> None:
        broker = self._context.broker
        for batch in dict.fromkeys(batch for batch, _ in collected):
            self._guard(batch, batch.shard.leadership.confirm)
        collected = [one for one in collected if not one[0].is_out]
        if not collected:
            return
        messages = [send.pushes for _, send in collected]
        for _, send in collected:
            send.pushes = ()
        try:
            with hold_interrupts():
                outcomes = self._send_all(messages)
                for (batch, send), failure in zip(collected, outcomes, strict=True):
                    if failure is None:
                        batch.publish(send)
        except RedBeatError:  # about the schedule's server, or the lock
            raise
        except Exception as exc:  # noqa: BLE001 - whatever the client raises: it is not known what was sent
            broker.note_away(exc)  # even if it answers, so that nothing is sent in a loop
            _leave(collected)
            return
        for (batch, send), failure in zip(collected, outcomes, strict=True):
            if failure is None:
                tell_published(self._context, batch, send)
            elif is_refusal(failure):
                broker.note_away(failure)
                batch.leave([send.due_entry])
            else:
                batch.ready.append(self._context.failures.retry(batch, send, failure))

    def _send_all(self, messages: list[Pushes]) -> list[Exception | None]:
        """Send the writes of each run; where one of them ends the connection, each run alone.

        Returns the error of each, None for one that was sent.

        Raises what the redis client raises when the broker is unreachable, or does not answer in time.
        """
        outbox = self._context.broker.outbox
        if outbox is None:
            raise ConnectionError("the connection to the broker has ended")
        try:
            found: list[Exception | None] = call_watched(
                partial(outbox.send, messages), partial(is_answered, outbox.kombu_client.ping)
            )
        except RequestBroken as exc:
            if len(messages) == 1:
                return [exc]
            return [outcome for one in messages for outcome in self._send_all([one])]
        return found


def _leave(runs: Iterable[tuple[Batch, Send]]) -> None:
    for batch, send in runs:
        batch.leave([send.due_entry])


class RecordFirstSink(Sink):
    """With at_most_once a run is recorded before its message is sent; what cannot be sent then is lost.

    Arguments:
        record: records runs now, and returns the recorded ones.
    """

    chunk_size = AT_MOST_ONCE_CHUNK

    def __init__(
        self, context: Context, guard: Guard, record: Callable[[Batch, Sequence[Send]], list[Send]]
    ) -> None:
        super().__init__(context, guard)
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
    if send.frames is None:
        return send.pushes
    broker.publish(send.frames, None, broker.publish_seconds())
    return ()


def _has_changed(batch: Batch, send: Send) -> bool:
    """Return True if an entry is stored otherwise than it was planned by."""
    row = send.due_entry
    _, [stored] = read_entries(batch.store, [row.key])
    return (stored.definition, stored.policy, stored.meta) != (row.definition, row.policy, row.meta)


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
            context.reports.report_held(batch.store, send, answer)
            batch.ready.append(send.held(answer))
        else:
            batch.ready.append(context.failures.retry(batch, send, StoreRefused(answer)))
    return [one for one in sends if id(one) not in left_out]
