"""Schedulers that a test ticks itself, and the broker they send to."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from tests.conftest import SEED, MakeApp
from tests.faults.rounds import IS_LONG
from tests.support.servers import Server
from tests.support.ticks import leader

MakeScheduler = Callable[..., RedBeatScheduler]

#: for what is no matter of the server
ONE_SERVER = pytest.mark.parametrize("server", ["valkey"], indirect=True)
#: for tests with a `scheduler`, and for those that give `settings` to `make_scheduler`
EVERY_KIND_OF_LOCK = pytest.mark.parametrize(
    "settings", [{}, {"redbeat_lock_key": None}], ids=["lock", "no-lock"]
)


#: rooms whose tests are about what a server does; those of the others are about what is made of it
OF_SERVERS = {"broker", "connection", "leadership", "store", "support"}


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Try a test of the other rooms on one kind of server: by its name, with the next Python on the other.

    One that is ``also_sharded`` has its schedule in shards or not, as REDBEAT_SEED decides. In the long form
    each is tried on both, and in both ways.
    """
    found: Any = metafunc._arg2fixturedefs.get("server")  # noqa: SLF001 - pytest has no other name for it
    kinds = (found and found[-1].params) or ()
    is_chosen = any("server" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize"))
    room = Path(metafunc.definition.nodeid).parts[2]
    if kinds and not is_chosen and room not in OF_SERVERS and not IS_LONG:
        turn = crc32(metafunc.function.__name__.encode()) + sys.version_info.minor
        mark = pytest.mark.parametrize("server", [kinds[turn % len(kinds)]], indirect=True)
        metafunc.definition.add_marker(mark)
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
