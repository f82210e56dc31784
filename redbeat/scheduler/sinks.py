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
        self._send_each(batch, self._reserve(batch, sends))
        if len(self._collected) >= MAX_UNRECORDED:
            self.flush()
        elif self._unconfirmed:
            self._note_confirmed()

    def _reserve(self, batch: Batch, sends: Sequence[Send]) -> Sequence[Send]:
        """Return those runs whose messages may be published: no other run of their entries holds them back.

        Decisions about the others become ready. It takes one round trip, or none where no policy asks for it.
        """
        # the script decides when it pushes; but what Celery makes may leave at once, to a fan-out for example
        asked = [
            Reserving(one.due_entry.key, one.task_id, one.commit.run)
            for one in sends
            if one.commit.run is not None
            and one.may_be_held
            and one.due_entry.key not in batch.reserved
            and not (self._is_script and one.template is not None)
        ]
        if not asked:
            return sends
        context, admitted = self._context, list[Send]()
        answers = dict(
            zip([one.task_id for one in asked], reserve_runs(batch.store, batch.fence, asked), strict=True)
        )
        for send in sends:
            answer = answers.get(send.task_id, Reserved.NOW)
            if answer is Reserved.NOW:
                batch.reserved.add(send.due_entry.key)
                admitted.append(send)
            elif answer is Reserved.BEFORE:
                extra = RUN_SENT_BEFORE.of(
                    entry=send.name, task=send.task, task_id=send.task_id, due=float(send.nominal)
                )
                message = "beat: %s (%s) was sent already, and is recorded now."
                logger.info(message, send.name, send.task, extra=extra)
                batch.publish(send, is_news=False)  # its span was told then, or went with its beat
            elif isinstance(answer, Held):
                context.reports.report_held(batch.store, send, answer)
                batch.ready.append(send.held(answer))
            else:
                batch.ready.append(context.failures.retry(batch, send, StoreRefused(answer)))
        return admitted

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
                    again = self._note_failed(batch, left, exc, again)
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
                publication, is_deferrable = Publication(), self._is_deferrable(batch, send)
                context.broker.publish(send.frames, publication if is_deferrable else None, seconds)
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
        batch.is_from_templates = False
        is_own = hasattr(hooks.apply_async, "is_deferrable") and not hooks.asks_subclass
        is_deferrable = not self._collects and is_own and self._is_deferrable(batch, send)
        try:
            sent = context.encoder.make(send, producer, is_deferrable=is_deferrable)
        except RunDeclined as exc:
            batch.ready.append(send.declined(batch.fetched.now + exc.seconds))
            return
        if sent.pushes and self._collects and not (hooks.asks_subclass and _has_changed(batch, send)):
            send.pushes = tuple(sent.pushes)
            self._collect(batch, [send])
            return
        if sent.pushes:
            # the subclass has written to the entry, so that the recording script would not push; or a Redis
            # broker has taken the place of another one
            context.broker.send(sent.pushes)
        self._note_published(batch, send, sent)

    def _is_deferrable(self, batch: Batch, send: Send) -> bool:
        """Return False for a run that has failed before, or may have been lost with a channel.

        It is waited for by itself.
        """
        return not (send.due_entry.error or send.due_entry.key in batch.doubtful)

    def _note_published(self, batch: Batch, send: Send, publication: Publication) -> None:
        if publication.is_confirmed:
            batch.publish(send)
        else:
            self._unconfirmed.append((batch, send, publication))

    def _note_failed(
        self, batch: Batch, left: deque[Send], exc: BaseException, again: Send | None
    ) -> Send | None:
        """Note what becomes of the next of the runs that are ``left``, which could not be sent.

        Returns it if it is to be tried once more, as the connection had gone stale.

        Arguments:
            again: the run that is tried once more now.
        """
        broker, send = self._context.broker, left[0]
        is_brokers = origin_of(exc) is Origin.BROKER
        is_mended = is_brokers and broker.recover(exc)
        if is_brokers and broker.is_away:  # all of them are sent, oldest first, when it is back
            return None
        left.popleft()
        if is_brokers and any(publication.is_lost for _, _, publication in self._unconfirmed):
            # it may be the error of a message before: flush() sends each of them alone
            self._unconfirmed.append((batch, send, Publication(is_lost=True)))
        elif is_mended and send is not again and (self._collects or not send.due_entry.error):
            left.appendleft(send)
            return send
        else:
            batch.ready.append(self._context.failures.decide(batch, send, exc))
        return None

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
                if not broker.is_away:
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
            with suppress(Exception), hold_interrupts(LAST_WORDS_SECONDS):
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
        try:
            with hold_interrupts():
                outcomes = self._send_all([send.pushes for _, send in collected])
                for (batch, send), failure in zip(collected, outcomes, strict=True):
                    if failure is None:
                        batch.publish(send)
                    elif is_refusal(failure):
                        broker.note_away(failure)
                        batch.leave([send.due_entry])
                    else:
                        batch.ready.append(self._context.failures.retry(batch, send, failure))
        except RedBeatError:  # about the schedule's server, or the lock
            raise
        except Exception as exc:  # noqa: BLE001 - whatever the client raises: it is not known what was sent
            broker.note_away(exc)  # even if it answers, so that nothing is sent in a loop
            _leave(collected)

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
        with hold_interrupts():  # else what is recorded, and isn't sent yet, would be lost
            published = [send for send in self._record(batch, sends) if self._send_or_lose(batch, send)]
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
            # not tried again, as a message that broke the connection may have arrived
            if broker.is_away:
                raise ConnectionError("the broker is away")
            producer = context.hooks.producer  # it connects, as the connection may have ended since the fill
            if send.frames is not None:
                broker.publish(send.frames, None, broker.publish_seconds())
            else:
                pushes = send.pushes or context.encoder.make(send, producer).pushes
                if pushes:
                    broker.send(pushes)
        except BaseException as exc:  # noqa: BLE001 - the per-entry boundary
            let_through(exc)
            if not broker.is_away and origin_of(exc) is Origin.BROKER:
                broker.recover(exc)  # so that the next ones do not wait for it, too
            context.failures.note_lost(batch, send, exc)
            return False
        batch.note_sent(send)
        return True


def _has_changed(batch: Batch, send: Send) -> bool:
    """Return True if an entry is stored otherwise than it was planned by."""
    row = send.due_entry
    _, [stored] = read_entries(batch.store, [row.key])
    return (stored.definition, stored.policy, stored.meta) != (row.definition, row.policy, row.meta)
