"""A cluster one of whose nodes has a wrong clock: what is on a node goes by the clock of this node alone."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.keys import Keys
from redbeat.leadership.status import State, judge, read_status
from redbeat.store.layouts import Layouts
from redbeat.store.store import Store
from tests.support.apps import celery_beat, write_app
from tests.support.clocks import ServerClock
from tests.support.command_line import call
from tests.support.polling import eventually
from tests.support.schedule import sent_dues
from tests.support.servers import Server
from tests.support.shards import lead, names_in_every_shard, parts_of
from tests.support.ticks import memory_app
from tests.support.topologies import ClusterTopology, cluster

HOUR = 3600
SHARDS = 16


@pytest.fixture(scope="module")
def clock() -> Iterator[ServerClock]:
    """That of one node."""
    clock = ServerClock()
    yield clock
    clock.close()


@pytest.fixture(scope="module")
def nodes(clock: ServerClock) -> Iterator[ClusterTopology]:
    with cluster(clock=clock) as topology:
        yield topology


@pytest.fixture(params=[HOUR, -HOUR], ids=["an hour ahead", "an hour behind"])
def offset(request: pytest.FixtureRequest, clock: ServerClock) -> Iterator[int]:
    """How much that clock is ahead, seconds."""
    clock.jump(request.param)
    yield request.param
    clock.jump(-request.param)


@pytest.fixture
def settings(nodes: ClusterTopology) -> dict[str, Any]:
    nodes.flush()
    return {
        "redbeat_redis_url": nodes.url(),
        "redbeat_redis_options": {"cluster": True},
        "redbeat_shards": SHARDS,
    }


@pytest.fixture
def app(settings: dict[str, Any]) -> Celery:
    app = memory_app(**settings)
    Layouts(Store(app)).settle(is_writer=True)
    return app


def ahead_of(app: Celery, nodes: ClusterTopology, offset: int) -> dict[Keys, int]:
    """How much the clock is ahead by which the entries of each shard are due, seconds."""
    wrong = nodes.nodes[-1]
    found = {keys: offset if nodes.owner(keys.schedule) is wrong else 0 for keys in parts_of(app)}
    assert set(found.values()) == {0, offset}
    return found


@pytest.mark.parametrize("way", ["one by one", "together"])
def test_an_entry_that_is_saved_is_due_by_the_clock_of_its_own_node(
    app: Celery, nodes: ClusterTopology, offset: int, way: str
) -> None:
    ahead = ahead_of(app, nodes, offset)
    entries = [Entry(name, "echo", 60, app=app) for name in names_in_every_shard(app, 2)]
    before = time.time()
    if way == "together":
        Entry.save_many(entries)
    else:
        for entry in entries:
            entry.save()
    after = time.time()
    client = Store(app).client
    for entry in entries:
        keys = Store(app).parts.home(str(entry.name)).keys
        due = client.zscore(keys.schedule, entry.key) - ahead[keys]
        assert math.floor(before) + 60 <= due <= math.ceil(after) + 60, entry.name


def test_whether_something_is_late_goes_by_the_clock_of_its_own_node(
    app: Celery, nodes: ClusterTopology, offset: int
) -> None:
    ahead = ahead_of(app, nodes, offset)
    client = Store(app).client
    for keys, seconds in ahead.items():
        lead(app, [keys], "ann:12:aabbccdd", ticked_at=time.time() + seconds)
        client.zadd(keys.schedule, {keys.entry("one"): time.time() + seconds - 20})
    status = read_status(app)
    assert judge(status) == (State.HEALTHY, "")
    assert (status.silent_leader, status.unled) == (None, [])
    for shard in status.shards:
        assert 20 <= (status.seconds_since(shard.oldest_due) or 0) < 50
        assert (status.seconds_since(shard.last_tick) or 0) < 30
    findings = {one["kind"] for one in json.loads(call(app, "doctor", "--json").output)["findings"]}
    assert not findings & {"silent-leader", "dead-leader", "late", "no-leader"}
    late = next(keys for keys, seconds in ahead.items() if seconds)
    client.zadd(late.schedule, {late.entry("one"): time.time() + offset - 120})
    assert judge(read_status(app))[0] == State.LATE
    client.zadd(late.schedule, {late.entry("one"): time.time() + offset + 9000})
    client.set(late.tick, repr(time.time() + offset - 120))
    assert judge(read_status(app))[0] == State.LATE


def test_a_beat_sends_all_on_time_while_the_clock_of_a_node_jumps(
    settings: dict[str, Any],
    app: Celery,
    nodes: ClusterTopology,
    clock: ServerClock,
    valkey: Server,
    tmp_path: Path,
) -> None:
    """What is on the other nodes runs each second; what is on that one is made up for, or waits."""
    names = names_in_every_shard(app)
    is_on_another = [not seconds for seconds in ahead_of(app, nodes, 1).values()]
    on_others = [name for name, is_other in zip(names, is_on_another, strict=True) if is_other]
    # a beat that is held up for some seconds makes up for each run
    policies: dict[str, Any] = {name: {"misfire": "all"} for name in on_others}
    Entry.save_many(Entry(name, "echo", 1.0, app=app, **policies.get(name, {})) for name in names)
    write_app(tmp_path, "module", valkey.url(0), **settings)
    with ExitStack() as at_end, valkey.client() as broker, celery_beat(tmp_path, "module") as beat:
        eventually(lambda: all(sent_dues(broker, name) for name in names))
        began = {name: sent_dues(broker, name)[0].timestamp() for name in on_others}
        for seconds in (HOUR, -2 * HOUR, HOUR):
            clock.jump(seconds)
            at_end.callback(clock.jump, -seconds)
            until = time.time() + 2
            eventually(lambda until=until: min(newest_of(broker, on_others)) > until)
        assert beat.is_running
        for name in on_others:
            dues = [due.timestamp() - began[name] for due in sent_dues(broker, name)]
            assert dues == pytest.approx(range(len(dues)), abs=1e-3), name


def newest_of(broker: Any, names: list[str]) -> list[float]:
    """When the last run of each was due."""
    return [max(due.timestamp() for due in sent_dues(broker, name)) for name in names]
