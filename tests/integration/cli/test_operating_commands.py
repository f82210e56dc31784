"""Commands that operate a schedule: downgrade, purge, reshard, and the status of shards."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest
import redis
from celery import Celery
from celery.schedules import crontab
from click.testing import Result

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.diagnostics.downgrade import examine, put_all_away
from redbeat.errors import StoreUnavailable
from redbeat.leadership.status import State, judge, read_status
from redbeat.policy.policy import PAUSE_FIELDS
from redbeat.process import exit_codes as exits
from redbeat.schedules import cron
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.cli.conftest import Call
from tests.support.command_line import call
from tests.support.schedule import LOCK, SCHEDULE, STATICS, everything, write_raw
from tests.support.servers import Server
from tests.support.shards import EVERY_PLACE, announce, app_in, lead, names_in_every_shard, parts_of
from tests.support.ticks import leader
from tests.support.topologies import ClusterTopology
from tests.unit.declared.test_declaring import POLICY

DOWNGRADED = "redbeat::downgraded"


CHRISTMAS = datetime(2099, 12, 24, 18, tzinfo=timezone.utc)


def put_away(app: Celery, *names: str) -> None:
    Entry.save_many([Entry(name, "echo", cron("0 9 L-1 * *"), app=app) for name in names])
    done = call(app, "downgrade", "--yes")
    assert done.exit_code == 0, done.output


def test_downgrade_while_a_beat_leads_ends_with_75(app: Celery, client: redis.Redis) -> None:
    Entry("last", "echo", cron("0 9 L-1 * *"), app=app).save()
    with leader(app):
        done = call(app, "downgrade", "--yes")
        assert done.exit_code == exits.TRY_AGAIN
        assert "stop all beats of version 3 first" in done.stderr
        assert client.zscore(SCHEDULE, "redbeat:last") is not None
        assert not client.exists(DOWNGRADED)
    before = everything(client)
    listed = json.loads(call(app, "downgrade", "--json").stdout)
    assert ([one["name"] for one in listed["unreadable"]], listed["is_dry_run"]) == (["last"], True)
    assert everything(client) == before
    client.set(LOCK, "0" * 32)  # a beat of 2.x, which may be about to end by it
    assert call(app, "downgrade", "--yes").exit_code == 0
    assert client.zscore(SCHEDULE, "redbeat:last") is None


def test_downgrade_leaves_an_entry_changed_meanwhile(app: Celery, client: redis.Redis) -> None:
    put_away(app, "other")
    Entry("last", "echo", cron("0 9 L-1 * *"), app=app).save()
    obstacles = examine(app).obstacles
    Entry("last", "echo", 60, app=app).save()
    assert [is_away for _, is_away in put_all_away(app, obstacles)] == [False]
    assert client.zscore(SCHEDULE, "redbeat:last") is not None
    assert set(client.hkeys(DOWNGRADED)) == {"redbeat:other"}


def test_downgrade_with_a_wrong_key_type_takes_nothing_out(app: Celery, client: redis.Redis) -> None:
    Entry("last", "echo", cron("0 9 L-1 * *"), app=app).save()
    client.set(DOWNGRADED, "a string")
    done = call(app, "downgrade", "--yes")
    assert (done.exit_code, DOWNGRADED in done.stderr) == (exits.TRY_AGAIN, True)
    with leader(app) as scheduler:
        scheduler.tick()
    assert client.get(DOWNGRADED) == "a string"
    assert client.zscore(SCHEDULE, "redbeat:last") is not None


def test_downgrade_names_every_policy_that_2x_ignores(app: Celery) -> None:
    Calendar("holidays", app=app).save()
    Entry("full", "echo", crontab(), app=app, **POLICY).save()
    [ignored] = json.loads(call(app, "downgrade", "--json").stdout)["ignored"]
    named = " ".join(ignored["what"])
    assert {field for field in POLICY if field not in named} == {*PAUSE_FIELDS}


@pytest.mark.parametrize("lock_key", ["redbeat::lock", None])
def test_next_leader_restores_downgraded_entries(
    app: Celery, client: redis.Redis, lock_key: str | None
) -> None:
    app.conf.redbeat_lock_key = lock_key
    put_away(app, "last", "other", "static")
    assert [entry.state for entry in Entry.list(app)] == ["downgraded"] * 3
    call(app, "doctor", "--fix")
    assert client.zcard(SCHEDULE) == 0
    scores = client.hgetall(DOWNGRADED)
    client.hset(
        DOWNGRADED, mapping={"redbeat:static": f"{scores['redbeat:static']} static", "redbeat:odd": "x"}
    )
    write_raw(client, "odd", score=None)
    client.hset(DOWNGRADED, "elsewhere", "5")
    app.conf.beat_schedule = {"static": {"task": "echo", "schedule": cron("0 9 L-1 * *")}}
    with leader(app):
        assert client.hkeys(DOWNGRADED) == ["elsewhere"]
        for name in ("last", "other", "static"):
            assert client.zscore(SCHEDULE, f"redbeat:{name}") == float(scores[f"redbeat:{name}"])
        assert client.zscore(SCHEDULE, "redbeat:odd") == 0, "a score that can't be read: it is due"
        assert client.zscore(SCHEDULE, "elsewhere") is None
        assert client.smembers(STATICS) == {"static"}


def test_purge_removes_orphans_and_nothing_else(ask: Call, app: Celery, client: redis.Redis) -> None:
    Entry("kept", "echo", 86_400, app=app).save()
    client.rpush("redbeat::history:kept", "x")
    client.sadd("redbeat::backfilled:kept", "1")
    client.sadd("redbeat::statics", "kept", "old")
    client.sadd("redbeat::static-owners", "shop\tkept", "shop\told", "billing\told", "billing\tolder")
    client.rpush("redbeat::history:gone", "x")
    client.sadd("redbeat::backfilled:gone", "1")
    client.zadd("redbeat::schedule", {"redbeat:lost": 1, "bare": 2})
    client.set("redbeat::lock", "somebody")
    client.set("other:history:gone", "x")
    shown = json.loads(ask("purge", "--dry-run", "--json").stdout)
    assert {(one["kind"], one["name"]) for one in shown["leftovers"]} == {
        ("member", "lost"),
        ("member", "bare"),
        ("static", "old"),
        ("static", "older"),
        ("history", "gone"),
        ("backfilled", "gone"),
    }
    assert (shown["removed"], client.zcard("redbeat::schedule")) == (0, 3)
    assert "give --yes" in ask("purge", code=64).stderr
    assert ask("purge", "--yes").stdout.endswith("Removed 6.\n")
    own = ("schedule", "statics", "static-owners", "history:kept", "backfilled:kept", "lock", "audit")
    expected = {"redbeat:kept", "other:history:gone", *(f"redbeat::{name}" for name in own)}
    assert set(client.keys()) == expected
    assert client.zrange("redbeat::schedule", 0, -1) == ["redbeat:kept"]
    assert client.smembers("redbeat::statics") == {"kept"}
    assert client.smembers("redbeat::static-owners") == {"shop\tkept"}
    assert ask("purge").stdout == "There is nothing to remove.\n"


def test_purge_takes_the_prefix_literally(make_app: MakeApp, client: redis.Redis) -> None:
    app = make_app(redbeat_key_prefix="a*[b]?:")
    client.rpush("a*[b]?::history:gone", "x")
    client.rpush("axb?::history:gone", "x")
    assert call(app, "purge", "--yes").exit_code == 0
    assert set(client.keys()) == {"a*[b]?::audit", "axb?::history:gone"}


def test_reshard_asks_first_and_names_the_setting(
    ask: Call, app: Celery, client: redis.Redis, make_app: MakeApp
) -> None:
    Entry.save_many(Entry(f"entry-{number}", "echo", 86_400, app=app) for number in range(20))
    assert "give --yes" in ask("reshard", "--to", "4", code=64).stderr
    assert client.exists("redbeat::layout") == 0
    said = " ".join(ask("reshard", "--to", "4", "--yes").stdout.split())
    assert "Moved 20 entries" in said
    assert "set redbeat_shards = 4 in all settings" in said
    [record] = [values for _, values in client.xrange("redbeat::audit") if values["verb"] == "reshard"]
    assert json.loads(record["details"]) == {"from": "none", "to": 4}
    new = make_app(redbeat_shards=4)
    assert "has 4 shards already: 20 entries" in call(new, "reshard", "--to", "4").stdout
    done = json.loads(call(new, "reshard", "--to", "none", "--yes", "--json").stdout)
    assert (done["from"], done["to"], done["report"]["moved"]) == (4, None, 20)


ANN, BOB, CAROL = "ann:12:aabbccdd", "bob:7:aabbccde", "carol:9:aabbccdf"


@pytest.fixture
def sharded(request: pytest.FixtureRequest, place: str) -> Celery:
    """A schedule that two beats lead, and a third stands by for."""
    app = app_in(place, request)
    lead(app, parts_of(app)[:9], ANN)
    lead(app, parts_of(app)[9:], BOB)
    announce(app, ANN, BOB, CAROL)
    return app


def schedule_in(app: Celery, shard: int, **scores: float) -> None:
    keys = parts_of(app)[shard]
    Store(app).client.zadd(keys.schedule, {keys.entry(name): score for name, score in scores.items()})


def rows_of(shown: Result) -> list[list[str]]:
    """The cells of the table of shards."""
    lines = [line.strip() for line in shown.output.splitlines()]
    return [re.split(r"\s{2,}", line) for line in lines if re.match(r"\d+  ", line)]


@EVERY_PLACE
def test_status_shows_leader_and_backlog_of_each_shard(sharded: Celery, place: str) -> None:
    schedule_in(sharded, 3, one=time.time() - 20, two=time.time() + 1000, never=-1)
    shown = call(sharded, "status")
    assert shown.exit_code == 0, shown.output
    lines = shown.output.splitlines()
    assert "shards   16, with 3 entries" in lines
    assert "beats    ann, process 12, leads 9; bob, process 7, leads 7; carol, process 9, leads 0" in lines
    rows = rows_of(shown)
    assert [row[:2] for row in rows] == [
        [str(shard), "ann, process 12" if shard < 9 else "bob, process 7"] for shard in range(16)
    ]
    assert rows[3][3:5] == ["3", "1"], rows[3]
    if place == "cluster":
        assert len({row[-1] for row in rows}) == 3, "the nodes"


def test_status_sums_up_many_shards_by_beat(request: pytest.FixtureRequest) -> None:
    app = app_in("one-server", request, redbeat_shards=64)
    lead(app, parts_of(app)[:40], ANN)
    lead(app, parts_of(app)[40:63], BOB)
    schedule_in(app, 3, one=time.time() - 20, two=time.time() + 1000)
    shown = call(app, "status", columns=80).output.splitlines()
    assert [re.split(r"\s{2,}", line.strip())[:4] for line in shown[-3:]] == [
        ["ann, process 12", "40", "2", "1"],
        ["bob, process 7", "23", "0", "0"],
        ["none", "1", "0", "0"],
    ]
    assert len(call(app, "status", "--shards").output.splitlines()) > 64


@EVERY_PLACE
def test_shard_without_a_leader_is_a_problem_unless_it_is_handed_over(sharded: Celery, place: str) -> None:
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


@pytest.fixture
def gone(cluster: ClusterTopology) -> Iterator[Server]:
    """A node that may fail: neither that of the URL, nor that of the layout and the beats."""
    for node in cluster.nodes:
        with node.client() as client:
            client.config_set("cluster-require-full-coverage", "no")
    yield next(node for node in cluster.nodes[1:] if node is not cluster.owner("{redbeat}"))
    cluster.heal()


@pytest.mark.parametrize("place", ["cluster"])
def test_commands_name_the_shards_of_an_unreachable_node(sharded: Celery, gone: Server) -> None:
    names = names_in_every_shard(sharded)
    for name in names:
        Entry(name, "tasks.report", 3600, app=sharded).save()
    nodes = map(Store(sharded).node_of, parts_of(sharded))
    lost = [shard for shard, node in enumerate(nodes) if node == f"{gone.host}:{gone.port}"]
    gone.kill()
    shown = call(sharded, "status")
    assert shown.exit_code == 3, shown.output
    counts = {int(row[0]): row[3] for row in rows_of(shown) if row[1] != "can't be read"}
    assert counts == {shard: "1" for shard in range(16) if shard not in lost}
    found = json.loads(call(sharded, "status", "--json").output)
    assert (found["state"], found["unread_shards"]) == ("unreachable", lost)
    assert {one["host"] for one in found["beats"]} == {"ann", "bob", "carol"}
    named = f"This leaves out shards {', '.join(map(str, lost))} of 16, which can't be read: "
    left = {name for shard, name in enumerate(names) if shard not in lost}
    for command in ("list", "count", "next", "timeline", "runs"):
        told = call(sharded, command)
        assert (told.exit_code, named in told.output) == (69, True), (command, told.output)
    listed = call(sharded, "list", "--json").stdout.splitlines()
    assert {json.loads(line)["name"] for line in listed} == left
    assert json.loads(call(sharded, "count", "--json").stdout) == {"count": len(left), "unread_shards": lost}
    for command in (["export"], ["doctor"], ["pause", "--match", "*", "--yes"]):
        assert call(sharded, *command).exit_code == 69, command
    with pytest.raises(StoreUnavailable):
        list(Entry.list(sharded))
