"""Schedulers that a test ticks itself, and the broker they send to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat.schedulers import acquire_distributed_beat_lock
from tests.support.servers import Server

MakeScheduler = Callable[..., RedBeatScheduler]


@pytest.fixture
def broker(server: Server) -> Iterator[redis.Redis]:
    """A client on the database of the broker."""
    with server.client(db=0) as connected:
        yield connected


@pytest.fixture
def make_scheduler(make_app: Callable[..., Celery]) -> Iterator[MakeScheduler]:
    """Schedulers that hold the lock; with ``redbeat_lock_key=None`` among the settings, that need none."""
    made: list[RedBeatScheduler] = []

    def make(
        app: Celery | None = None, scheduler: type[RedBeatScheduler] = RedBeatScheduler, **settings: Any
    ) -> RedBeatScheduler:
        scheduler_made = scheduler(app or make_app(**settings))
        made.append(scheduler_made)
        acquire_distributed_beat_lock(SimpleNamespace(scheduler=scheduler_made))
        return scheduler_made

    yield make
    for scheduler_made in made:
        scheduler_made.close()


@pytest.fixture
def scheduler(make_scheduler: MakeScheduler) -> RedBeatScheduler:
    return make_scheduler()
