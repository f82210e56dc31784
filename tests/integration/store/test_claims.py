"""What a claim reads of due entries: each as it is, in their order, and with few commands."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.store.records import Claimed, Commit, Fence, KeyType
from redbeat.store.store import Store
from tests.support.schedule import SCHEDULE
from tests.support.servers import KIND, Server

DEFINITION = json.dumps({"task": "echo", "schedule": {"__type__": "interval", "every": 60}})
META = '{"last_run_at": null, "total_run_count": 0}'

#: fields of an entry's hash, and what a claim tells of them; most entries have the first
SHAPES: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"definition": DEFINITION, "meta": META}, {}),
    ({"definition": DEFINITION, "meta": META, "meta_sha1": "other", "owner": "me"}, {}),
    ({"definition": DEFINITION, "meta": ""}, {}),
    ({"definition": DEFINITION, "meta": META, "policy": "{}"}, {}),
    ({"definition": DEFINITION, "meta": META, "error": "{}"}, {}),
    ({"definition": DEFINITION}, {}),
    ({"meta": META}, {}),
    ({"definition": "nul\0", "meta": META}, {}),
    ({"definition": DEFINITION, "meta": "\0\0"}, {}),
    ({"definition": "", "meta": META, "policy": ""}, {}),
    ({"definition": "é\udcff", "meta": META}, {}),
    ({"other": "field"}, {}),
    ({}, {"type": KeyType.NONE}),
]


def write(client: redis.Redis, key: str, score: float, fields: dict[str, str]) -> None:
    if fields:
        stored = {name: text.encode("utf-8", "surrogateescape") for name, text in fields.items()}
        client.hset(key, mapping=stored)
    client.zadd(SCHEDULE, {key: score})


def test_rows_are_in_the_order_of_their_due_times_whatever_is_between_them(
    app: Celery, client: redis.Redis, chance: random.Random
) -> None:
    expected = []
    for number in range(200):
        fields, others = SHAPES[0] if chance.random() < 0.7 else chance.choice(SHAPES)
        key = f"redbeat:entry-{number}" + "\0" * (chance.random() < 0.1)
        write(client, key, number + 1, fields)
        texts = {name: fields.get(name) for name in ("definition", "meta", "policy", "error")}
        expected.append(Claimed(key, str(number + 1), **texts, score=str(number + 1), **others))
    assert Store(app).claim_due(Fence(), 1000).rows == expected


def commands(client: redis.Redis) -> dict[str, int]:
    statistics: Any = client.info("commandstats")
    return {name.removeprefix("cmdstat_"): found["calls"] for name, found in statistics.items()}


def test_a_usual_entry_is_read_by_five_commands(app: Celery, client: redis.Redis) -> None:
    for number in range(50):
        write(client, f"redbeat:entry-{number}", number, SHAPES[0][0])
    store = Store(app)
    store.claim_due(Fence(), 50)
    client.config_resetstat()
    assert len(store.claim_due(Fence(), 50).rows) == 50
    asked = commands(client)
    assert {name: asked[name] for name in asked if asked[name] > 10} == {"hstrlen": 200, "hmget": 50}
    assert asked["zmscore"] == 1


@pytest.mark.parametrize("rights", ["+@all", "-zmscore"])
def test_a_bare_name_goes_with_its_entry_also_from_beyond_the_batch(
    app: Celery, client: redis.Redis, server: Server, rights: str
) -> None:
    """Scores of many members are asked for by one command, if the user may."""
    for number in range(6):
        write(client, f"redbeat:entry-{number}", number + 1, SHAPES[0][0])
    later = 4e9
    client.zadd(SCHEDULE, {"entry-1": 5.5, "entry-2": later, "entry-5": 0.5, "entry-4": 0})
    client.execute_command("ACL SETUSER", "claiming", "on", ">secret", "~*", "&*", "+@all", rights)
    client.acl_log_reset()
    try:
        with server.client(db=1, username="claiming", password="secret") as claiming:
            rows = Store(app, claiming).claim_due(Fence(), 4).rows
        assert [row.key[8:] for row in rows] == ["entry-4", "entry-5", "entry-0", "entry-1"]
        assert client.acl_log() == []
    finally:
        client.execute_command("ACL DELUSER", "claiming")
    left = dict(client.zrange(SCHEDULE, 0, -1, withscores=True))
    assert left.keys() == {"entry-2", *(f"redbeat:entry-{number}" for number in range(6))}
    assert left["entry-2"] == later, "it isn't due"


def test_a_server_without_that_command_is_asked_for_each(make_app: Any) -> None:
    with Server(KIND, rename_command=("ZMSCORE", '""')) as server, server.client(db=1) as client:
        for number in range(3):
            write(client, f"redbeat:entry-{number}", number + 1, SHAPES[0][0])
        client.zadd(SCHEDULE, {"entry-1": 5})
        store = Store(make_app(redbeat_redis_url=server.url(1)))
        rows = store.claim_due(Fence(), 10).rows
        assert [row.key for row in rows] == [f"redbeat:entry-{number}" for number in range(3)]
        assert store.commit_runs(Fence(), [Commit(row, "65") for row in rows]).results == [True] * 3
        assert client.zscore(SCHEDULE, "entry-1") is None
