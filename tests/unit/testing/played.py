"""A real beat, its scripts and its workers played through a span of time: what really becomes of each run.

The clock stands still and is moved from one event to the next: an entry is due, a run in progress has ended
or must be looked at, a beat is back. Redis is a fake in this process, with that same clock.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import time_machine
from celery import Celery

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.config import ensure_conf
from redbeat.history import PastRun
from redbeat.store.runs import Delivery, End, Runs
from redbeat.store.store import Store
from tests.support.ticks import take_messages

#: a lease that is never renewed, and lives longer than any test's tasks
LEASE_MS = 400 * 86_400_000
#: how long a worker takes to terminate a task
MOMENT = timedelta(milliseconds=1)


@dataclass
class Played:
    """What has really happened: when the run of which due time was sent; and what the history says."""

    sent: dict[datetime, datetime] = field(default_factory=dict)
    ended: dict[datetime, tuple[str, datetime]] = field(default_factory=dict)
    history: list[PastRun] = field(default_factory=list)


def play(
    app: Celery,
    make_entry: Callable[[], RedBeatSchedulerEntry],
    start: datetime,
    end: datetime,
    away_until: Callable[[datetime], datetime | None] = lambda _at: None,
    duration_of: Callable[[datetime], timedelta | None] = lambda _due: None,
) -> Played:
    """Save the entry at ``start``, and let a beat and workers go on until ``end``.

    Arguments:
        app: with a fake Redis.
        away_until: until when no beat is there at an instant; None: one is.
        duration_of: how long the run with a due time takes; None: no worker begins it.
    """
    with time_machine.travel(start, tick=False) as clock:
        return _Play(app, clock, away_until, duration_of).play(make_entry().save(), end)


class _Play:
    def __init__(self, app: Celery, clock: Any, away_until: Any, duration_of: Any) -> None:
        config = ensure_conf(app)
        config.lock_key, config.history = None, 100_000
        self._app, self._clock = app, clock
        self._away_until, self._duration_of = away_until, duration_of
        self._scheduler = RedBeatScheduler(app)
        self._runs, self._client, self._keys = Runs(Store(app)), app.redbeat_redis, app.redbeat_conf.keys
        self._at_work: dict[str, tuple[Delivery | None, datetime, datetime, str]] = {}
        self._played = Played()

    def play(self, entry: RedBeatSchedulerEntry, end: datetime) -> Played:
        while (at := self._next_event()) is not None and at <= end:
            self._clock.move_to(at)
            self._end_tasks(at)
            while self._away_until(at) is None and self._is_due(at):
                self._scheduler.tick()
                self._begin_tasks(entry, at)
                self._terminate(entry, at)
        self._scheduler.close()
        self._played.history = entry.history(100_000)
        return self._played

    def _scores(self) -> list[datetime]:
        """When beat has something to do."""
        return [
            datetime.fromtimestamp(score, timezone.utc)
            for key in (self._keys.schedule, self._keys.deadlines)
            for _, score in self._client.zrangebyscore(key, 0, "+inf", start=0, num=1, withscores=True)
        ]

    def _is_due(self, now: datetime) -> bool:
        return any(score <= now for score in self._scores())

    def _next_event(self) -> datetime | None:
        now = datetime.now(timezone.utc)
        looks = [max(score, now) for score in self._scores()]
        events = [self._away_until(look) or look for look in looks]
        return min([*events, *(ends_at for _, _, ends_at, _ in self._at_work.values())], default=None)

    def _begin_tasks(self, entry: RedBeatSchedulerEntry, at: datetime) -> None:
        for message in take_messages(self._app):
            due = datetime.fromisoformat(message.due)
            assert due not in self._played.sent, f"{due} was sent twice"
            self._played.sent[due] = at
            duration = self._duration_of(due)
            record = self._client.hget(self._keys.about(entry.name).running, message.id)
            if duration is None:
                continue
            delivery = None
            if record is not None:  # it is tracked
                nominal = json.loads(record)["due"]
                delivery = Delivery(entry.name, message.id, nominal, "1", "worker", overlap=entry.overlap)
                self._runs.begin(delivery, LEASE_MS)
            self._at_work[message.id] = delivery, due, at + duration, "succeeded"

    def _end_tasks(self, at: datetime) -> None:
        for task_id, (delivery, due, ends_at, outcome) in list(self._at_work.items()):
            if ends_at <= at:
                del self._at_work[task_id]
                self._played.ended[due] = outcome, at
                if delivery is not None:
                    self._runs.end([End(delivery, outcome)])

    def _terminate(self, entry: RedBeatSchedulerEntry, at: datetime) -> None:
        """Do as a worker does that is told to terminate a task, a moment later."""
        records: Any = self._client.hgetall(self._keys.about(entry.name).running)
        for task_id, (delivery, due, ends_at, _) in list(self._at_work.items()):
            if task_id in records and json.loads(records[task_id]).get("terminate"):
                self._at_work[task_id] = delivery, due, min(ends_at, at + MOMENT), "revoked"
