"""`celery redbeat purge`, on a real server; and all commands with a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.diagnostics.orphans import find_orphans, purge_orphans
from redbeat.errors import EntryNotFound
from redbeat.store.orphans import LostRun, Orphans
from redbeat.store.runs import Delivery, End, Runs
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.cli.conftest import Call
from tests.support.command_line import call

TIMEZONE = "Europe/Berlin"


@pytest.fixture
def orphans(app: Celery, client: redis.Redis) -> None:
    RedBeatSchedulerEntry("kept", "echo", 86_400, app=app).save()
    client.rpush("redbeat::history:kept", "x")
    client.sadd("redbeat::backfilled:kept", "1")
    client.sadd("redbeat::statics", "kept", "old")
    client.sadd("redbeat::static-owners", "shop\tkept", "shop\told", "billing\told", "billing\tolder")
    client.rpush("redbeat::history:gone", "x")
    client.sadd("redbeat::backfilled:gone", "1")
    client.zadd("redbeat::schedule", {"redbeat:lost": 1, "bare": 2})
    client.set("redbeat::lock", "somebody")
    client.set("other:history:gone", "x")


def test_purge_removes_what_is_left_over_and_nothing_else(
    ask: Call, orphans: None, client: redis.Redis
) -> None:
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
    output = ask("purge", "--yes").stdout
    assert "history (1): the record of its runs is there, but its hash is gone\n  gone\n" in output
    assert output.endswith("Removed 6.\n")
    assert set(client.keys()) == {
        "redbeat:kept",
        "redbeat::schedule",
        "redbeat::statics",
        "redbeat::static-owners",
        "redbeat::history:kept",
        "redbeat::backfilled:kept",
        "redbeat::lock",
        "redbeat::audit",
        "other:history:gone",
    }
    assert client.zrange("redbeat::schedule", 0, -1) == ["redbeat:kept"]
    assert client.smembers("redbeat::statics") == {"kept"}
    assert client.smembers("redbeat::static-owners") == {"shop\tkept"}
    assert ask("purge").stdout == "There is nothing to remove.\n"


def test_an_entry_that_is_made_meanwhile_keeps_what_is_beside_it(
    app: Celery, orphans: None, client: redis.Redis
) -> None:
    found = list(find_orphans(app))
    RedBeatSchedulerEntry("gone", "echo", 86_400, app=app).save()
    assert purge_orphans(app, found) == 4
    assert client.exists("redbeat::history:gone", "redbeat::backfilled:gone") == 2


def test_what_is_no_history_is_left_alone(ask: Call, client: redis.Redis) -> None:
    client.hset("redbeat::history:gone", "definition", "{}")
    client.rpush("redbeat::backfilled:gone", "1")
    assert ask("purge", "--yes").stdout == "There is nothing to remove.\n"
    assert client.exists("redbeat::history:gone", "redbeat::backfilled:gone") == 2


def test_what_becomes_something_else_meanwhile_is_left_alone(app: Celery, client: redis.Redis) -> None:
    client.rpush("redbeat::history:gone", "x")
    found = list(find_orphans(app))
    client.delete("redbeat::history:gone")
    client.hset("redbeat::history:gone", "definition", "{}")
    assert (len(found), purge_orphans(app, found)) == (1, 0)
    assert client.exists("redbeat::history:gone")


def test_a_prefix_with_the_letters_of_patterns_is_taken_as_it_is(
    make_app: MakeApp, client: redis.Redis
) -> None:
    app = make_app(redbeat_key_prefix="a*[b]?:")
    client.rpush("a*[b]?::history:gone", "x")
    client.rpush("axb?::history:gone", "x")
    assert call(app, "purge", "--yes").exit_code == 0
    assert set(client.keys()) == {"a*[b]?::audit", "axb?::history:gone"}


def test_purge_asks_first(app: Celery, orphans: None, client: redis.Redis) -> None:
    done = call(app, "purge")
    assert done.exit_code == 64
    assert client.zcard("redbeat::schedule") == 3


def test_the_commands_work_with_a_cluster(cluster: Any) -> None:
    app = Celery("test", set_as_current=False)
    app.conf.update(redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True})
    assert call(app, "add", "one", "echo", "--every", "1h").exit_code == 0
    RedBeatSchedulerEntry("two", "echo", 60, app=app).save()
    Runs(Store(app)).end([End(Delivery("one", "id", "1000.000000", "token", "celery@h"), "failed")])
    Runs(Store(app)).begin(Delivery("one", "id-2", "2000.000000", "token-2", "celery@h"), 30_000)
    assert "id-2" in call(app, "runs").stdout
    assert "failed" in call(app, "runs", "--state", "failed,sent").stdout
    Orphans(Store(app)).forget([LostRun(Store(app).keys.entry("one"))])
    for command in (
        ["list"],
        ["show", "one"],
        ["next"],
        ["timeline"],
        ["why", "one"],
        ["rerun", "one", "--dry-run"],
        ["rerun", "--all-failed", "--since", "1d", "--dry-run"],
        ["purge"],
        ["delete", "one", "--yes"],
    ):
        done = call(app, *command)
        assert done.exit_code == 0, done.output
    with pytest.raises(EntryNotFound):
        RedBeatSchedulerEntry.get("one", app)
