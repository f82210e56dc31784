"""Commits of many entries: recorded and pushed together or not at all, in order, and in short scripts."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.errors import StoreRefused
from redbeat.store.records import Claimed, Clear, Commit, Fence, Push
from redbeat.store.scripts import CALL_COMMITS
from redbeat.store.store import Store
from tests.support.committing import commits_of, push, states, target_of
from tests.support.fidelity import counting_round_trips
from tests.support.schedule import SCHEDULE
from tests.support.servers import Server


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


def test_a_run_is_recorded_and_pushed_by_few_commands(app: Celery, client: redis.Redis) -> None:
    store, target = Store(app), target_of(client)
    store.commit_runs(Fence(), commits_of(client, [[push("queue", "first")]]), target)
    commits = commits_of(client, [[push("queue", number)] for number in range(50)])
    client.config_resetstat()
    assert store.commit_runs(Fence(), commits, target).results == [True] * 50
    statistics: Any = client.info("commandstats")
    calls = {name.removeprefix("cmdstat_"): found["calls"] for name, found in statistics.items()}
    assert {name: calls[name] for name in calls if calls[name] > 10} == {"hmget": 50, "hset": 50, "lpush": 51}
    assert calls["zmscore"] == calls["zadd"] == 1


@pytest.mark.parametrize("rights", ["+@all", "-zmscore"])
def test_each_entry_is_recorded_as_was_decided_about_it(
    app: Celery, client: redis.Redis, server: Server, chance: random.Random, rights: str
) -> None:
    """Whether many entries share a decision or none do."""
    commits, expected, number_of_decisions = [], {}, chance.choice([1, 3, 1000])
    for number in range(250):
        key, decision = f"redbeat:entry-{number}", chance.randrange(number_of_decisions)
        meta, score = f'{{"before": {decision}}}', f"{decision % 7 + 5}.5"
        client.hset(key, mapping={"definition": f'{{"of": {number}}}', "meta": meta, "error": "{}"})
        client.zadd(SCHEDULE, {key: float(score)})
        has_changed = chance.random() < 0.2
        claimed = Claimed(key, score, f'{{"of": {number + has_changed}}}', meta, score=score)
        pushes = (push(f"queue-{decision % 3}", number),) if decision % 4 else ()
        new_error = [None, Clear.FIELD, f'"{decision}"'][decision % 3]
        new_meta, records = f'{{"after": {decision}}}', (f'"due":{decision}', f'"due":{number}')
        commit = Commit(claimed, f"{decision + 100}", new_meta, new_error, True, pushes, records=records)
        commits.append(commit)
        error = {None: "{}", Clear.FIELD: None}.get(new_error, new_error)
        expected[key] = (
            [meta, "{}", float(score), 0] if has_changed else [new_meta, error, decision + 100.0, 2]
        )
    client.execute_command("ACL SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", rights)
    try:
        with server.client(db=1, username="limited", password="secret") as limited:
            results = Store(app, limited).commit_runs(Fence(), commits, target_of(client)).results
    finally:
        client.execute_command("ACL DELUSER", "limited")
    assert results == [expected[commit.claimed.key][-1] == 2 for commit in commits]
    found = {
        key: [
            *client.hmget(key, "meta", "error"),
            client.zscore(SCHEDULE, key),
            client.llen(key.replace("redbeat:", "redbeat::history:")),
        ]
        for key in expected
    }
    assert found == expected


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
