"""Schedules in shards, on one server and on a cluster: apps of them, and what tests write into the shards."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery

from redbeat.config.config import ensure_conf
from redbeat.config.timing import Timing
from redbeat.keys import Keys
from redbeat.leadership.election import Election
from redbeat.store.layouts import look_up_layout
from redbeat.store.lock_tokens import new_token
from redbeat.store.store import Store
from tests.support.fidelity import counting_round_trips
from tests.support.servers import Server
from tests.support.ticks import memory_app
from tests.support.topologies import ClusterTopology

SHARDS = 16
#: for tests with ``sharded``: where the schedule is
EVERY_PLACE = pytest.mark.parametrize("place", ["one-server", "cluster"])


def app_in(place: str, request: pytest.FixtureRequest, **settings: Any) -> Celery:
    """An app whose schedule has 16 shards; its messages stay in this process."""
    given: dict[str, Any] = {"redbeat_shards": SHARDS, **settings}
    if place == "cluster":
        cluster: ClusterTopology = request.getfixturevalue("cluster")
        given |= {"redbeat_redis_url": cluster.url(), "redbeat_redis_options": {"cluster": True}}
    else:
        server: Server = request.getfixturevalue("valkey")
        given |= {"redbeat_redis_url": server.url(1)}
    app = memory_app(**given)
    look_up_layout(Store(app), is_beat=True)
    return app


def parts_of(app: Celery) -> list[Keys]:
    """The names in each shard."""
    return list(Store(app).parts)


def names_in_every_shard(app: Celery, of_each: int = 1) -> list[str]:
    """So many names of entries of each shard, sorted by shards."""
    keys: Any = Store(app).keys
    found: dict[str, list[str]] = {part.prefix: [] for part in parts_of(app)}
    number = 0
    while any(len(names) < of_each for names in found.values()):
        number += 1
        names = found[keys.home(f"entry-{number}").prefix]
        if len(names) < of_each:
            names.append(f"entry-{number}")
    return [name for names in found.values() for name in names]


def lead(app: Celery, parts: Sequence[Keys], beat: str, *, ticked_at: float | None = None) -> None:
    """Let a beat that isn't there hold the locks of some shards."""
    client = Store(app).client
    for part in parts:
        client.set(part.lock, new_token(beat), px=60_000)
        client.set(part.tick, repr(time.time() if ticked_at is None else ticked_at), px=600_000)


def announce(app: Celery, *beats: str) -> None:
    """Let beats say that they share the shards."""
    store = Store(app)
    store.client.zadd(store.keys.beats, dict.fromkeys(map(new_token, beats), time.time()))


def write_sent(app: Celery, name: str, task_id: str, due: float = 1000.0, **limits: Any) -> None:
    """Note a run as sent, as beat does."""
    store, now = Store(app), time.time()
    keys = store.parts.home(name)
    running = keys.about(name).running
    record = {"due": f"{due:.6f}", "state": "sent", "sent": f"{now:.6f}", **limits}
    store.client.hset(running, task_id, json.dumps(record))
    store.client.zadd(keys.deadlines, {f"{task_id}\0{running}": now + 86_400})
    history = f'{{"at":{now:.6f},"due":{due:.6f},"id":"{task_id}"}}'
    store.client.lpush(keys.about(name).history, history)


@contextmanager
def at_most(round_trips: int, place: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make sure that a block sends so often to a server, or to each node of a cluster, at most.

    Scripts and connections are known before: the block must have been tried.
    """
    with counting_round_trips(monkeypatch) as count:
        yield
        made = count()
    nodes = 3 if place == "cluster" else 1
    assert made <= round_trips * nodes, f"{made} round trips, for {nodes} nodes"


def election_in(app: Celery, timing: Timing, parts: Iterable[Keys] | None = None) -> Election:
    """Return a beat's election.

    Arguments:
        parts: the shards that it is about; None: all.
    """
    store = Store(app)
    election = Election(store, ensure_conf(app).lock_key, timing)
    election.set_parts([store.of_part(part) for part in (store.parts if parts is None else parts)])
    return election
