"""The quick way of runs: little is left to plan, and their messages are compiled; others go the ordinary way.

Owns the decision for a whole batch: nothing may take part in the making of messages but Celery's, kombu's and
RedBeat's own code, and the broker must be one whose messages RedBeat can write itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from redbeat.beat.log import Reports
from redbeat.beat.plain import PlainEntries
from redbeat.beat.planner import CompiledRun
from redbeat.broker.connection import Broker, reason_of
from redbeat.broker.delivery import Delivery
from redbeat.config.config import ensure_conf
from redbeat.delivery import guard
from redbeat.delivery.templates import Templates
from redbeat.delivery.tracers import find_monitoring
from redbeat.errors import RedBeatError
from redbeat.leadership.elector import Leadership
from redbeat.log.logger import logger
from redbeat.log.text import joined
from redbeat.process.containment import let_through
from redbeat.process.memory import Allowance
from redbeat.store.records import DueEntry
from redbeat.telemetry.metrics.labels import LabelBook
from redbeat.telemetry.tracing.tracing import Tracing

#: an obstacle that isn't told of, as something else tells of it
AWAY = "the broker is away"


#: for how long what one batch has found counts for the next, seconds
FOUND_SECONDS = 0.25


class _Found(NamedTuple):
    """That messages may be compiled, by what a batch has found.

    Attributes:
        is_leased: several beats share the work.
        outbox: of the broker's connection.
        at: when, monotonic.
    """

    is_leased: bool
    outbox: Any
    at: float

    def holds(self, broker: Broker, now: float, *, is_leased: bool) -> bool:
        """Tell whether that counts for a batch at ``now``."""
        outbox = broker.outbox or broker.drafts
        is_same = self.outbox is outbox and self.is_leased == is_leased and not broker.is_away
        return is_same and not self.outbox.has_given_up and now < self.at + FOUND_SECONDS


class QuickWay:
    """Plans the runs of one beat's plain entries.

    Arguments:
        scheduler: whose ``apply_async`` makes messages.
        tracing: makes the spans of runs.
        allowance: how much memory plans, messages and their templates may take, with what is prepared.
        book: under which labels runs are counted.
    """

    def __init__(
        self,
        scheduler: Any,
        broker: Broker,
        delivery: Delivery,
        changes: Mapping[str, int],
        reports: Reports,
        tracing: Tracing,
        allowance: Allowance,
        book: LabelBook,
    ) -> None:
        self._scheduler = scheduler
        self._broker = broker
        self._delivery = delivery
        self._changes = changes
        self._reports = reports
        self._tracing = tracing
        self._config = ensure_conf(scheduler.app)
        self._templates = Templates(scheduler.app, allowance)
        self._plain = PlainEntries(scheduler.app, self._templates, allowance, book, tracing)
        self._producer: Any = None
        self._is_finding_once = False
        self._found: _Found | None = None  # by an earlier batch; None: the next one finds out

    def is_open(self, leadership: Leadership, *, is_leased: bool = False) -> bool:
        """Begin a batch; tell whether its messages may be compiled.

        Of several batches that follow each other at once the first one finds out (:meth:`found_once`).

        Arguments:
            leadership: asked whether the lock is still held, as connecting to the broker may take long.
            is_leased: several beats share the work, without a lock.
        """
        now, found = time.monotonic(), self._found
        if found is not None and found.holds(self._broker, now, is_leased=is_leased):
            leadership.confirm()
            return True
        self._tracing.refresh()
        obstacle = self._find_obstacle(leadership, is_leased=is_leased)
        if obstacle != AWAY:
            self._reports.report_way(obstacle)
        if self._is_finding_once:
            outbox = self._broker.outbox or self._broker.drafts
            self._found = None if obstacle else _Found(is_leased, outbox, now)
        return not obstacle

    @contextmanager
    def found_once(self) -> Iterator[None]:
        """Within this block batches follow each other at once: as long as nobody's own code is called, what
        the first one finds counts for all, though a quarter of a second at most.
        """
        self._is_finding_once = True
        try:
            yield
        finally:
            self._is_finding_once, self._found = False, None

    def look_again(self) -> None:
        """Let the next batch find out whether its messages may be compiled."""
        self._found = None

    def is_exactly_once(self) -> bool:
        """Tell whether messages are pushed by the script that records their runs, if that is known now."""
        try:
            return self._delivery.target() is not None
        except RedBeatError:  # about the schedule's server
            raise
        except Exception as exc:  # noqa: BLE001 - whatever the broker's client raises: the ordinary way finds out
            logger.debug("beat: It isn't known where messages can be pushed: %r", exc)
            return False

    def plan(self, rows: Sequence[DueEntry], now: float) -> tuple[list[CompiledRun], list[DueEntry]]:
        """Return the runs whose messages are made already, and the rows of all other entries.

        Arguments:
            now: the server's clock, UNIX seconds.
        """
        return self._plain.plan(rows, now, self._send, self._changes.__contains__)

    def make_room(self) -> None:
        """Forget entries if all that is kept takes more memory than allowed."""
        self._plain.make_room()

    def still_valid(self, runs: list[CompiledRun], leadership: Leadership) -> list[CompiledRun]:
        """Return those of ``runs``, made in an earlier batch, that would be the same in this one."""
        return self._plain.still_current(runs) if self.is_open(leadership) else []

    def _find_obstacle(self, leadership: Leadership, *, is_leased: bool) -> str:
        """Return why messages go one by one; '': they are compiled."""
        obstacle = joined(
            guard.find_setting_obstacle(self._config, has_lock=not is_leased), find_monitoring()
        )
        if obstacle:
            return obstacle
        if self._broker.is_away:
            return AWAY
        try:
            obstacle = guard.find_scheduler_obstacle(self._scheduler)
            if obstacle:
                return joined(guard.find_obstacle(self._scheduler.app), obstacle)
            producer = self._producer = self._scheduler.producer  # it connects, and makes the outbox
            outbox = self._broker.outbox or self._broker.drafts
            leadership.confirm()  # as connecting may take long
            self._templates.begin_batch(producer, outbox, self._tracing.headers)
            obstacle = self._templates.obstacle
        except RedBeatError:  # about the lock
            raise
        except BaseException as exc:  # noqa: BLE001 - the ordinary way raises it again, and knows what to do
            let_through(exc)
            logger.debug("beat: Messages can't be compiled now: %r", exc)
            return AWAY if self._broker.is_of_connection(exc) else reason_of(exc)
        return obstacle

    def _send(self, entry: Any) -> None:
        # the one that the templates have: another one, made where that has lost its connection, would send it
        with self._tracing.sending():
            self._scheduler.apply_async(entry, producer=self._producer, advance=False)
