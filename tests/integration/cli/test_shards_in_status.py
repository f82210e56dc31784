"""``celery redbeat status`` of a schedule in shards: who leads each, what is due, and where it is."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import StoreUnavailable
from redbeat.leadership.status import State, hint_of, judge, read_status
from redbeat.store.store import Store
from tests.support.command_line import call
from tests.support.servers import Server
from tests.support.shards import (
    EVERY_PLACE,
    announce,
    app_in,
    at_most,
    lead,
    names_in_every_shard,
    parts_of,
)
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
    assert judge(read_status(sharded)) == (State.NO_LEADER, "No beat leads shards 5, 6 of 16.")
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


@pytest.fixture
def gone(cluster: ClusterTopology) -> Iterator[Server]:
    """A node that may go away: the URL names another one, and the others go on. That of the layout and the
    beats is there.
    """
    for node in cluster.nodes:
        with node.client() as client:
            client.config_set("cluster-require-full-coverage", "no")
    yield next(node for node in cluster.nodes[1:] if node is not cluster.owner("{redbeat}"))
    cluster.heal()


def away(app: Celery, node: Server) -> list[int]:
    """Let the node go away; return the numbers of its shards."""
    store = Store(app)
    numbers = [
        shard for shard, keys in enumerate(parts_of(app)) if store.node_of(keys) == f"{node.host}:{node.port}"
    ]
    node.kill()
    return numbers


@pytest.mark.parametrize("place", ["cluster"])
def test_the_status_shows_the_other_shards_while_a_node_is_away(sharded: Celery, gone: Server) -> None:
    for shard in range(16):
        add(sharded, shard, entry=time.time() + 1000)
    lost = away(sharded, gone)
    shown = call(sharded, "status")
    assert shown.exit_code == 3, shown.output
    named = ", ".join(map(str, lost))
    assert f"unreachable: Shards {named} of 16 can't be read: " in shown.output
    rows = [
        re.split(r"\s{2,}", line.strip()) for line in shown.output.splitlines() if re.match(r"\s*\d+  ", line)
    ]
    assert [int(row[0]) for row in rows if row[1] == "can't be read"] == lost
    assert [row[3] for row in rows if row[1] != "can't be read"] == ["1"] * (16 - len(lost))
    found = json.loads(call(sharded, "status", "--json").output)
    assert (found["state"], found["unread_shards"]) == ("unreachable", lost)
    assert [one["shard"] for one in found["shards"] if one["problem"]] == lost
    assert {one["host"] for one in found["beats"]} == {"ann", "bob", "carol"}


@pytest.mark.parametrize("place", ["cluster"])
def test_commands_that_read_all_shards_say_which_they_leave_out(sharded: Celery, gone: Server) -> None:
    names = names_in_every_shard(sharded)
    for name in names:
        Entry(name, "tasks.report", 3600, app=sharded).save()
    lost = away(sharded, gone)
    named = f"This leaves out shards {', '.join(map(str, lost))} of 16, which can't be read: "
    left = {name for shard, name in enumerate(names) if shard not in lost}
    for command in ("list", "count", "next", "timeline", "runs"):
        told = call(sharded, command)
        assert (told.exit_code, named in told.output) == (69, True), (command, told.output)
    listed = call(sharded, "list", "--json").stdout.splitlines()
    assert {json.loads(line)["name"] for line in listed} == left
    assert json.loads(call(sharded, "count", "--json").stdout) == {"count": len(left), "unread_shards": lost}
    for command in (["export"], ["doctor"], ["pause", "--match", "*", "--yes"]):
        refused = call(sharded, *command)
        assert refused.exit_code == 69, (command, refused.output)
        assert "Error: " in refused.output
    with pytest.raises(StoreUnavailable):
        list(Entry.list(sharded))


@pytest.mark.parametrize("place", ["cluster"])
def test_while_the_node_that_has_the_layout_is_away_the_settings_are_gone_by(
    sharded: Celery, gone: Server, cluster: ClusterTopology
) -> None:
    node = cluster.owner("{redbeat}")
    url = next(one.url(0) for one in cluster.nodes if one is not node)
    app = memory_app(
        redbeat_redis_url=url, redbeat_redis_options={"cluster": True}, redbeat_shards=len(parts_of(sharded))
    )
    lost = away(sharded, node)
    found = json.loads(call(app, "status", "--json").output)
    assert (found["state"], found["unread_shards"], found["beats"]) == ("unreachable", lost, None)
    listed = call(app, "list")
    assert (listed.exit_code, "This leaves out shards" in listed.output) == (69, True), listed.output
    refused = call(app, "pause", "no-such-entry")
    assert (refused.exit_code, "Error: " in refused.output) in ((69, True), (66, True)), refused.output


def test_many_shards_are_summed_up_by_their_beats(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_in("one-server", request, redbeat_shards=64)
    lead(app, parts_of(app)[:40], ANN)
    lead(app, parts_of(app)[40:63], BOB)
    add(app, 3, one=time.time() - 20, two=time.time() + 1000)
    monkeypatch.setenv("COLUMNS", "80")
    shown = call(app, "status").output
    rows = [re.split(r"\s{2,}", line.strip()) for line in shown.splitlines()[-3:]]
    assert [row[:4] for row in rows] == [
        ["ann, process 12", "40", "2", "1"],
        ["bob, process 7", "23", "0", "0"],
        ["none", "1", "0", "0"],
    ], shown
    assert max(map(len, shown.splitlines())) <= 80
    assert len(call(app, "status", "--shards").output.splitlines()) > 64
    assert len(json.loads(call(app, "status", "--json").output)["shards"]) == 64


def test_without_shards_nothing_is_said_of_any(valkey: Server) -> None:
    app = memory_app(redbeat_redis_url=valkey.url(1))
    found = json.loads(call(app, "status", "--json").output)
    assert not {"shards", "beats", "is_moving", "hint"} & found.keys()
    assert "shard" not in call(app, "status").output
