"""``celery redbeat status`` of a schedule in shards: who leads each, what is due, and where it is."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat.leadership.status import State, hint_of, judge, read_status
from redbeat.store.store import Store
from tests.support.command_line import call
from tests.support.servers import Server
from tests.support.shards import EVERY_PLACE, announce, app_in, at_most, lead, parts_of
from tests.support.ticks import memory_app
from tests.support.topologies import ClusterTopology

ANN, BOB, CAROL = "ann:12:aabbccdd", "bob:7:aabbccde", "carol:9:aabbccdf"
PAGE = Path(__file__).parents[3] / "docs" / "high-availability.rst"


@pytest.fixture
def sharded(request: pytest.FixtureRequest, place: str) -> Celery:
    """A schedule that two beats lead, and a third stands by for."""
    app = app_in(place, request)
    lead(app, parts_of(app)[:9], ANN)
    lead(app, parts_of(app)[9:], BOB)
    announce(app, ANN, BOB, CAROL)
    return app


def add(app: Celery, shard: int, **scores: float) -> None:
    keys = parts_of(app)[shard]
    Store(app).client.zadd(keys.schedule, {keys.entry(name): score for name, score in scores.items()})


@EVERY_PLACE
def test_each_shard_is_shown_with_its_leader_and_what_is_due(sharded: Celery, place: str) -> None:
    add(sharded, 3, one=time.time() - 20, two=time.time() + 1000, never=-1)
    shown = call(sharded, "status")
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert "shards     16, with 3 entries" in lines
    assert "beats      ann, process 12, leads 9; bob, process 7, leads 7; carol, process 9, leads 0" in lines
    assert any(line.startswith("backlog    1 due, the oldest since ") for line in lines)
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines if re.match(r"\s*\d+  ", line)]
    assert [row[:2] for row in rows] == [
        [str(shard), "ann, process 12" if shard < 9 else "bob, process 7"] for shard in range(16)
    ]
    assert rows[3][3:5] == ["3", "1"], rows[3]
    assert rows[3][5].endswith("s ago")
    assert rows[4][3:5] == ["0", "0"]
    if place == "cluster":
        assert len({row[-1] for row in rows}) == 3, "the nodes"


@EVERY_PLACE
def test_the_status_takes_two_round_trips_a_node_at_most(
    sharded: Celery, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from redbeat.leadership.status import status_in

    store = Store(sharded)
    status_in(store)
    with at_most(2, place, monkeypatch):
        found = status_in(store)
    assert len(found.shards) == 16


@EVERY_PLACE
def test_a_shard_that_nobody_leads_is_a_problem_unless_it_is_being_handed_over(
    sharded: Celery, place: str
) -> None:
    client, parts = Store(sharded).client, parts_of(sharded)
    client.delete(parts[5].lock)
    assert call(sharded, "status").exit_code == 0, f"{place}: its leader was there a moment ago"
    client.delete(parts[5].tick)
    shown = call(sharded, "status")
    assert shown.exit_code == 1
    assert "no leader: No beat leads shard 5 of 16." in shown.output
    lead(sharded, [parts[6]], BOB, ticked_at=time.time() - 100)
    client.delete(parts[6].lock)
    assert judge(read_status(sharded)) == (State.NO_LEADER, "No beat leads 2 of 16 shards: 5, 6.")
    for part in parts:
        client.delete(part.lock, part.tick)
    assert judge(read_status(sharded))[1] == "No beat leads any of the 16 shards."


@EVERY_PLACE
def test_one_shard_that_is_late_makes_the_schedule_late(sharded: Celery, place: str) -> None:
    add(sharded, 7, late=time.time() - 100)
    state, problem = judge(read_status(sharded))
    assert (state, "waiting for 1" in problem) == (State.LATE, True), (place, problem)
    add(sharded, 7, late=time.time() + 100)
    lead(sharded, [parts_of(sharded)[2]], ANN, ticked_at=time.time() - 100)
    state, problem = judge(read_status(sharded))
    assert (state, "The last tick of a shard's leader was 1" in problem) == (State.LATE, True), problem


@EVERY_PLACE
def test_the_json_has_what_the_documentation_says(sharded: Celery, place: str) -> None:
    add(sharded, 3, one=time.time() - 20)
    found = json.loads(call(sharded, "status", "--json").output)
    assert (found["state"], found["is_moving"], found["hint"]) == ("healthy", False, None)
    shard = found["shards"][3]
    assert (shard["shard"], shard["entries"], shard["backlog"]) == (3, 1, 1)
    assert shard["leader"].keys() == found["leader"].keys()
    assert shard["oldest_due"] == found["oldest_due"]
    assert (shard["node"] is None) == (place == "one-server")
    led = {one["host"]: one["shards"] for one in found["beats"]}
    assert led == {"ann": [*range(9)], "bob": [*range(9, 16)], "carol": []}
    titles = re.findall(r"^``.*``$", PAGE.read_text("utf-8"), re.MULTILINE)
    documented = set(re.findall(r"``(\w+)``", " ".join(titles)))
    assert documented >= found.keys() | shard.keys()


def test_shards_that_are_spread_poorly_over_the_nodes_are_told_of(cluster: ClusterTopology) -> None:
    given: dict[str, Any] = {"redbeat_redis_url": cluster.url(), "redbeat_redis_options": {"cluster": True}}
    few = memory_app(**given, redbeat_shards=3)
    assert "no shard" in (hint := hint_of(read_status(few)))
    assert hint.endswith("Choose 16 shards a node or more: celery redbeat reshard --to 48.")
    assert hint in call(few, "status").output.replace("\n", " ")
    many = memory_app(**given, redbeat_shards=48)
    assert hint_of(read_status(many)) == ""


def test_without_shards_nothing_is_said_of_any(valkey: Server) -> None:
    app = memory_app(redbeat_redis_url=valkey.url(1))
    found = json.loads(call(app, "status", "--json").output)
    assert not {"shards", "beats", "is_moving", "hint"} & found.keys()
    assert "shard" not in call(app, "status").output
