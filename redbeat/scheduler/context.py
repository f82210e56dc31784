"""What all shards of a beat share: the broker, the planner, the encoder, the log.

Invariant: there is one of each in a beat, however many shards it has.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Protocol

from redbeat.delivery.broker import Broker, Delivery
from redbeat.entries.calendar_loading import KeptCalendars
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.process.memory import Allowance
from redbeat.scheduler.encoder import Encoder
from redbeat.scheduler.planner import Planner
from redbeat.scheduler.quarantine import Failures
from redbeat.scheduler.reports import Reports
from redbeat.store.store import Store
from redbeat.telemetry.metrics.beat_figures import BeatFigures
from redbeat.telemetry.metrics.labels import LabelBook, queue_finder
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

    def send_planned(self, entry: RedBeatSchedulerEntry, producer: Any, seconds_to_next: float) -> None: ...


class ServerClock:
    """The time by Redis' clock; late by what its answer took, but never early.

    Attributes:
        offset: the server's time when its last answer arrived, less the monotonic time; seconds.
    """

    def __init__(self) -> None:
        self.offset = 0.0

    @property
    def now(self) -> float:
        """The server's time, UNIX seconds."""
        return time.monotonic() + self.offset


@dataclass
class Context:
    """What all shards of a beat share.

    Attributes:
        hooks: the scheduler, which makes and sends entries.
        clock: of the node that has answered last.
        allowance: how much memory kept entries and prepared runs may take.
        of_prepared: how much of it prepared runs may take.
    """

    hooks: Hooks
    broker: Broker
    delivery: Delivery
    planner: Planner
    encoder: Encoder
    failures: Failures
    calendars: KeptCalendars
    reports: Reports
    tracing: Tracing
    book: LabelBook
    figures: BeatFigures
    clock: ServerClock
    allowance: Allowance
    of_prepared: Allowance


def make_context(
    hooks: Any, store: Store, broker: Broker, reports: Reports, quarantine_seconds: float
) -> Context:
    """Return what the beat of this scheduler sends with.

    Arguments:
        store: the whole schedule.
        quarantine_seconds: after how long an invalid entry is tried again.
    """
    max_bytes = store.config.message_cache_bytes
    allowance, clock, figures = Allowance(max_bytes), ServerClock(), BeatFigures()
    tracing = Tracing(lambda: clock.now, lambda: broker.peer)
    book = LabelBook(queue_finder(hooks.app), store.config.metrics_entries)
    planner = Planner(
        hooks.app, lambda: hooks.Entry, allowance, book, reports.report_typos, reports.report_slow
    )

    return Context(
        hooks,
        broker,
        Delivery(store, broker),
        planner,
        Encoder(hooks, broker, tracing, reports, figures),
        Failures(reports, quarantine_seconds),
        KeptCalendars(),
        reports,
        tracing,
        book,
        figures,
        clock,
        allowance,
        Allowance(max_bytes // 2),
    )
