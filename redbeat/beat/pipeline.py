"""Messages that were collected for a Redis broker that isn't the schedule's server: sent in one pipeline.

They are sent before their runs are recorded. Invariant: a message that ends the connection costs its own run.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from redbeat.beat.batch import Batch
from redbeat.beat.log import Reports
from redbeat.beat.planner import Run
from redbeat.beat.recorder import Recorder
from redbeat.beat.suspects import Suspects, has_failed
from redbeat.broker.connection import Broker
from redbeat.broker.outbox import Outbox
from redbeat.connection.retry import BREAKS_OF_THE_REQUEST, HICCUP_SECONDS, is_refusal, is_reset
from redbeat.errors import RedBeatError
from redbeat.leadership.elector import Leadership
from redbeat.log.logger import logger
from redbeat.process.signals import hold_interrupts
from redbeat.store.records import Push


class Pipeline:
    """Sends the collected messages of one beat.

    Arguments:
        leadership: asked whether the lock is still held before anything is sent.
    """

    def __init__(
        self,
        broker: Broker,
        leadership: Leadership,
        recorder: Recorder,
        reports: Reports,
        suspects: Suspects,
    ) -> None:
        self._reports = reports
        self._suspects = suspects
        self._broker = broker
        self._leadership = leadership
        self._recorder = recorder

    def send(self, batch: Batch) -> None:
        """Send what ``batch`` has collected; commits of what was sent, or is tried later, become pending."""
        collected, batch.collected = batch.collected, []
        # those that failed before go last: one that ends the connection lets all before it arrive again
        for is_again in (False, True):
            self._send_together(batch, [one for one in collected if has_failed(one[0]) is is_again])

    def _send_together(self, batch: Batch, collected: Sequence[tuple[Run, tuple[Push, ...]]]) -> None:
        if not collected:
            return
        if self._broker.outbox is None:
            batch.give_back([run for run, _ in collected])
            return
        try:
            with hold_interrupts():
                outcomes = self._send_all(self._broker.outbox, [pushes for _, pushes in collected])
                _note_published(batch, collected, outcomes)
        except RedBeatError:  # about the schedule's server, or the lock
            raise
        except Exception as exc:  # noqa: BLE001 - whatever the client raises: it isn't known what was sent
            self._broker.note_away(exc)  # even if it answers, so that nothing is sent in a loop
            batch.give_back([run for run, _ in collected])
            return
        self._note(batch, collected, outcomes)

    def _note(
        self,
        batch: Batch,
        collected: Sequence[tuple[Run, tuple[Push, ...]]],
        outcomes: Sequence[Exception | None],
    ) -> None:
        """Note what became of messages, besides that they were published."""
        for (run, _), failure in zip(collected, outcomes, strict=True):
            if failure is None:
                self._reports.tell_of(run)
                self._suspects.note_sent(run)
                batch.events += run.events
            elif is_refusal(failure):
                self._broker.note_away(failure)
                batch.give_back([run])
            else:
                self._recorder.retry_later(batch, run, failure)

    def _send_all(
        self, outbox: Outbox, batches: list[tuple[Push, ...]], *, breaks: int = 0
    ) -> list[Exception | None]:
        """Send each of ``batches``, halved where one of them ends the connection.

        Returns the error of each, None for one that was sent. ``breaks``: how many connections have ended
        already while these were sent.

        Raises what the redis client raises when the broker can't be reached, or doesn't answer in time.
        """
        self._leadership.confirm()  # before each attempt, as the one before may have taken long
        try:
            return outbox.send(batches)
        except Exception as exc:
            if not is_reset(exc) or not outbox.answers():
                raise
            breaks += 1
            if breaks == 1:  # the connection may have gone stale; this takes another one
                return self._send_all(outbox, batches, breaks=breaks)
            if len(batches) == 1:
                if breaks >= BREAKS_OF_THE_REQUEST:
                    return [exc]
                time.sleep(HICCUP_SECONDS)
                return self._send_all(outbox, batches, breaks=breaks)
        middle = len(batches) // 2
        halves = (batches[:middle], batches[middle:])
        return [
            outcome
            for half in halves
            for outcome in self._send_all(outbox, half, breaks=1 if len(half) > 1 else 0)
        ]


def send_together(those: Sequence[tuple[Pipeline, Batch]], outbox: Outbox) -> None:
    """Send what batches of several parts have collected, in one round trip; their locks were just confirmed.

    Where that fails, each batch keeps what it has collected: sent alone, it finds out what is to be done.
    """
    collected = [batch.collected for _, batch in those]
    try:
        with hold_interrupts():
            outcomes = iter(outbox.send([pushes for of_batch in collected for _, pushes in of_batch]))
            found = [[next(outcomes) for _ in of_batch] for of_batch in collected]
            for (_, batch), of_batch in zip(those, found, strict=True):
                _note_published(batch, batch.collected, of_batch)
    except Exception as exc:  # noqa: BLE001 - whatever the client raises: it isn't known what was sent
        logger.debug("beat: Messages of several shards can't be sent together: %r", exc)
        return
    for (pipeline, batch), of_batch in zip(those, found, strict=True):
        sent, batch.collected = batch.collected, []
        pipeline._note(batch, sent, of_batch)  # noqa: SLF001 - of this module


def _note_published(
    batch: Batch, collected: Sequence[tuple[Run, tuple[Push, ...]]], outcomes: Sequence[Exception | None]
) -> None:
    for (run, _), failure in zip(collected, outcomes, strict=True):
        if failure is None:
            batch.note_published(run)
