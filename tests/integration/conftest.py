"""Schedulers that a test ticks itself, and the broker they send to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from tests.conftest import SEED, MakeApp
from tests.faults.rounds import IS_LONG
from tests.support.clocks import ServerClock
from tests.support.progress import Progress
from tests.support.servers import Server
from tests.support.ticks import leader

MakeScheduler = Callable[..., RedBeatScheduler]

#: for tests with a `scheduler`, and for those that give `settings` to `make_scheduler`
EVERY_KIND_OF_LOCK = pytest.mark.parametrize(
    "settings", [{}, {"redbeat_lock_key": None}], ids=["lock", "no-lock"]
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Shard the schedule of an ``also_sharded`` test or not, as REDBEAT_SEED decides."""
    if metafunc.definition.get_closest_marker("also_sharded"):
        layouts = [None, 4]
        if not IS_LONG:
            layouts = [random.Random(f"{SEED} {metafunc.definition.nodeid}").choice(layouts)]
        metafunc.parametrize("shards", layouts, ids=lambda shards: f"{shards} shards" if shards else "")


@pytest.fixture
def settings() -> dict[str, Any]:
    """Those of `scheduler`."""
    return {}


@pytest.fixture
def broker(server: Server) -> Iterator[redis.Redis]:
    """A client on the database of the broker."""
    with server.client(db=0) as connected:
        yield connected


@pytest.fixture
def other(server: Server, request: pytest.FixtureRequest) -> Server:
    """A second server, of the other kind."""
    return request.getfixturevalue("redis" if server.kind == "valkey" else "valkey")


@pytest.fixture
def second() -> Iterator[Server]:
    """A Valkey of the test's own, besides the others: to kill and to spoil."""
    with Server() as server:
        yield server


@pytest.fixture
def clock() -> Iterator[ServerClock]:
    """What a server that is started with it takes for the time."""
    clock = ServerClock()
    yield clock
    clock.close()


@pytest.fixture
def make_scheduler(make_app: MakeApp) -> Iterator[MakeScheduler]:
    """Schedulers that hold the lock; with ``redbeat_lock_key=None`` among the settings, that need none."""
    with ExitStack() as made:

        def make(
            app: Celery | None = None, scheduler: type[RedBeatScheduler] = RedBeatScheduler, **settings: Any
        ) -> RedBeatScheduler:
            return made.enter_context(leader(app or make_app(**settings), scheduler))

        yield make


@pytest.fixture
def scheduler(make_scheduler: MakeScheduler, settings: dict[str, Any]) -> RedBeatScheduler:
    return make_scheduler(**settings)


@pytest.fixture
def progress(app: Celery, client: redis.Redis) -> Progress:
    """Tracked runs that the test sends and begins itself."""
    return Progress(app, client)
