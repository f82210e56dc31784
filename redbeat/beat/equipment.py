"""What one beat sends with: the broker, what makes messages, and what tells of runs.

Invariant: there is one of each in a beat, however many shards it has.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

from redbeat.beat.log import Reports
from redbeat.beat.quick_way import QuickWay
from redbeat.beat.suspects import Suspects
from redbeat.broker.connection import Broker
from redbeat.broker.delivery import Delivery
from redbeat.entries.calendar_loading import KeptCalendars
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.process.memory import Allowance, Memory
from redbeat.store.store import Store
from redbeat.telemetry.metrics.beat_figures import BeatFigures
from redbeat.telemetry.metrics.labels import LabelBook
from redbeat.telemetry.tracing.tracing import Tracing


class Hooks(Protocol):
    """What a subclass of the scheduler may replace; looked up again for each run."""

    app: Any
    Entry: type[RedBeatSchedulerEntry]

    @property
    def producer(self) -> Any: ...

    @property
    def asks_subclass(self) -> bool: ...

    def apply_async(
        self, entry: RedBeatSchedulerEntry, producer: Any = None, advance: bool = True
    ) -> Any: ...

    def send_planned(
        self,
        entry: RedBeatSchedulerEntry,
        producer: Any,
        seconds_to_next: float,
    ) -> None: ...


class ServerClock:
    """The time by Redis' clock; late by what its answer took, but never early."""

    def __init__(self) -> None:
        self._read_at, self._now = 0.0, 0.0

    def note(self, now: float) -> None:
        """Note the server's time, UNIX seconds, from an answer that has just arrived."""
        self._read_at, self._now = time.monotonic(), now

    @property
    def now(self) -> float:
        """The server's time, UNIX seconds."""
        return self._now + time.monotonic() - self._read_at


@dataclass(frozen=True)
class Equipment:
    """What one beat sends with.

    Attributes:
        hooks: the scheduler, which makes and sends entries.
        tracing: makes the spans of runs.
        book: under which labels runs are counted.
        figures: what this beat counts of itself.
        clock: of the node that has answered last.
        quarantine_seconds: after how long an entry that can't be used is tried again.
        changes: entries that have changed before their runs were recorded, and how often in a row.
        allowance: how much memory what is kept of messages and entries may take, with what is prepared.
        of_prepared: how much of it what is prepared may take: their entries are kept, too.
    """

    hooks: Hooks
    broker: Broker
    delivery: Delivery
    quick_way: QuickWay
    changes: Memory[str, int]
    suspects: Suspects
    calendars: KeptCalendars
    reports: Reports
    tracing: Tracing
    book: LabelBook
    figures: BeatFigures
    clock: ServerClock
    quarantine_seconds: float
    allowance: Allowance
    of_prepared: Allowance

    @classmethod
    def of(
        cls,
        hooks: Hooks,
        store: Store,
        broker: Broker,
        reports: Reports,
        tracing: Tracing,
        book: LabelBook,
        figures: BeatFigures,
        clock: ServerClock,
        quarantine_seconds: float,
    ) -> Equipment:
        """Return what the beat of this scheduler sends with.

        Arguments:
            store: the whole schedule.
        """
        max_bytes = store.config.message_cache_bytes
        allowance, changes, delivery = Allowance(max_bytes), Memory[str, int](), Delivery(store, broker)
        return cls(
            hooks,
            broker,
            delivery,
            QuickWay(hooks, broker, delivery, changes, reports, tracing, allowance, book),
            changes,
            Suspects(),
            KeptCalendars(),
            reports,
            tracing,
            book,
            figures,
            clock,
            quarantine_seconds,
            allowance,
            Allowance(max_bytes // 2),
        )
