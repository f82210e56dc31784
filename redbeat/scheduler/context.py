"""What all shards of a beat share: the broker, the planner, the encoder, the log.

Invariant: there is one of each in a beat, however many shards it has.
"""

from __future__ import annotations

import time
from typing import Any

from redbeat.delivery.broker import Broker, Delivery
from redbeat.entries.calendar_loading import KeptCalendars
from redbeat.process.memory import Allowance
from redbeat.scheduler.encoder import Encoder
from redbeat.scheduler.planner import Planner
from redbeat.scheduler.quarantine import Failures
from redbeat.scheduler.reports import Reports
from redbeat.store.store import Store
from redbeat.telemetry.figures import BeatFigures
from redbeat.telemetry.labels import LabelBook, queue_finder
from redbeat.telemetry.tracing import Tracing


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


class Context:
    """What all shards of a beat share.

    Arguments:
        hooks: the scheduler, which makes and sends entries; a subclass may replace its methods.
        store: the whole schedule.

    Attributes:
        clock: of the node that has answered last.
        allowance: how much memory kept entries and prepared runs may take.
        of_prepared: how much of it prepared runs may take.
    """

    def __init__(self, hooks: Any, store: Store, broker: Broker) -> None:
        max_bytes = store.config.message_cache_bytes
        self.hooks, self.store, self.broker = hooks, store, broker
        self.reports = reports = Reports(store.config)
        self.allowance, self.of_prepared = Allowance(max_bytes), Allowance(max_bytes // 2)
        self.clock, self.figures, self.calendars = ServerClock(), BeatFigures(), KeptCalendars()
        self.tracing = Tracing(lambda: self.clock.now, lambda: broker.peer)
        self.book = LabelBook(queue_finder(hooks.app), store.config.metrics_entries)
        self.delivery = Delivery(store, broker)
        self.planner = Planner(hooks.app, lambda: hooks.Entry, self.allowance, self.book, reports)
        self.encoder = Encoder(hooks, broker, self.tracing, self.figures)
        self.failures = Failures(reports, hooks.max_interval)
