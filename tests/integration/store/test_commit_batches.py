"""Commits of many entries: recorded and pushed together or not at all, in order, and in short scripts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.errors import StoreRefused
from redbeat.store.records import Claimed, Commit, Fence, Push, Target
from redbeat.store.scripts import CALL_COMMITS
from redbeat.store.store import Store
from tests.support.fidelity import counting_round_trips
from tests.support.schedule import SCHEDULE
from tests.support.servers import Server

DEFINITION = json.dumps({"task": "echo", "schedule": {"__type__": "interval", "every": 60}})
META = '{"last_run_at": null, "total_run_count": 0}'


def commits_of(client: redis.Redis, pushes: Sequence[Sequence[Push]]) -> list[Commit]:
    """Due entries, stored and as they were claimed; each is committed with its pushes."""
    commits = []
    for number, of_entry in enumerate(pushes):
        key = f"redbeat:entry-{number}"
        client.hset(key, mapping={"definition": DEFINITION, "meta": META})
        client.zadd(SCHEDULE, {key: 5})
        claimed = Claimed(key, "5", DEFINITION, META, score="5")
        new_meta = META.replace("0", "1")
        record = f'"due":5,"number":{number}'
        commits.append(Commit(claimed, "65", new_meta, pushes=tuple(of_entry), records=(record,)))
    return commits


def target_of(client: redis.Redis) -> Target:
    return Target(str(client.info("server")["run_id"]), 1, 0)


def states(client: redis.Redis, count: int) -> list[str]:
    """Of each entry 'due' or 'recorded', with its meta, score and history."""
    found = []
    for number in range(count):
        key = f"redbeat:entry-{number}"
        state = (client.hmget(key, "meta", "meta_sha1"), client.zscore(SCHEDULE, key))
        history = client.llen(f"redbeat::history:entry-{number}")
        if state == ([META, None], 5.0) and not history:
            found.append("due")
        else:
            assert state[0][0] == META.replace("0", "1")
            assert (state[1], history) == (65.0, 1)
            found.append("recorded")
    return found


def push(queue: str, message: object) -> Push:
    return Push("lpush", queue, str(message))


@pytest.mark.parametrize("count", [1, CALL_COMMITS, CALL_COMMITS + 1, 5 * CALL_COMMITS])
def test_a_batch_is_one_round_trip_of_short_scripts(
    app: Celery, client: redis.Redis, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    store, target = Store(app), target_of(client)
    store.commit_runs(Fence(), commits_of(client, [[push("queue", "first")]]), target)  # loads the script
    broker.delete("queue")
    commits = commits_of(client, [[push("queue", number)] for number in range(count)])
    client.config_resetstat()
    with counting_round_trips(monkeypatch) as round_trips:
        assert store.commit_runs(Fence(), commits, target).results == [True] * count
        assert round_trips() == 1
    statistics: Any = client.info("commandstats")
    assert statistics["cmdstat_evalsha"]["calls"] == -(-count // CALL_COMMITS)
    assert broker.lrange("queue", 0, -1) == [str(number) for number in reversed(range(count))]


def test_a_server_that_has_forgotten_the_script_commits_all_in_order(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    commits = commits_of(client, [[push("queue", number)] for number in range(250)])
    client.script_flush()
    assert Store(app).commit_runs(Fence(), commits, target_of(client)).results == [True] * 250
    assert broker.lrange("queue", 0, -1) == [str(number) for number in reversed(range(250))]


def test_each_queue_gets_its_messages_in_the_order_of_the_entries(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    pushes = [
        [push("a", 0)],
        [push("b", 1)],
        [push("a", 2), push("b", 2)],
        [push("a", 3), Push("pexpire", "a", 60_000)],
        [push("a", 4)],
        [push("b", 5)],
        [push("b", 6), push("a", 6)],
        [push("a", 7)],
    ]
    committed = Store(app).commit_runs(Fence(), commits_of(client, pushes), target_of(client))
    assert committed.results == [True] * 8
    assert broker.lrange("a", 0, -1) == list("764320")
    assert broker.lrange("b", 0, -1) == list("6521")
    assert broker.pttl("a") > 0
    assert states(client, 8) == ["recorded"] * 8


def test_what_one_queue_refuses_stays_due_and_the_others_leave(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    broker.set("text", "not a list")
    pushes = [
        [push("a", 0)],
        [push("text", 1)],
        [push("a", 2), push("text", 2)],
        [push("text", 3)],
        [push("a", 4)],
    ]
    results = Store(app).commit_runs(Fence(), commits_of(client, pushes), target_of(client)).results
    assert [result is True for result in results] == [True, False, False, False, True]
    assert all("WRONGTYPE" in str(result) for result in results if result is not True)
    assert broker.lrange("a", 0, -1) == ["4", "0"]
    assert broker.get("text") == "not a list"
    assert states(client, 5) == ["recorded", "due", "due", "due", "recorded"]


@pytest.mark.parametrize("right", ["-hset", "-zadd", "-lpush", "%R~redbeat:entry-3"])
def test_where_a_right_is_missing_nothing_is_pushed_that_is_not_recorded(
    app: Celery, client: redis.Redis, broker: redis.Redis, server: Server, right: str
) -> None:
    commits = commits_of(client, [[push("queue", number)] for number in range(5)])
    target = target_of(client)
    own = [f"~redbeat:entry-{number}" for number in (0, 1, 2, 4)] + ["~queue", "~redbeat::*"]
    own += [right] if right.startswith("%") else ["~redbeat:entry-3", right]
    client.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">secret", "+@all", *own)
    try:
        with server.client(db=1, username="limited", password="secret") as limited, suppress(StoreRefused):
            Store(app, limited).commit_runs(Fence(), commits, target)
        assert states(client, 5) == ["due"] * 5
        assert broker.llen("queue") == 0
    finally:
        client.execute_command("ACL", "DELUSER", "limited")
