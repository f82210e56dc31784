"""What is costly to read and to send goes last and is named; what has no hash keeps nobody waiting."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import redis

from redbeat import RedBeatScheduler
from redbeat.beat import pace
from tests.conftest import MakeApp
from tests.integration.conftest import EVERY_KIND_OF_LOCK
from tests.support.apps import run_beat
from tests.support.logs import errors_in
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, SELDOM, sent_names, server_now, write_raw
from tests.support.servers import Server

#: legal, and a quarter of a second or more each
COSTLY = {
    "numbers": {"args": [[1] * 1_000_000]},
    "datetimes": {"args": [[{"__type__": "datetime", "year": 2026, "month": 1, "day": 1}] * 40_000]},
    "objects": {"args": [[{"a": 1}] * 300_000]},
    "nested": {"kwargs": {"x": [json.loads("[" * 100 + "]" * 100)] * 10_000}},
}
#: the limit as a user may raise it
RAISED = {"redbeat_max_entry_bytes": 8 * 1024 * 1024}


@pytest.mark.few_cases(2)
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (kind, {**RAISED, **({"redbeat_lock_key": None} if number % 2 else {})})
        for number, kind in enumerate(COSTLY)
    ],
    ids=COSTLY,
)
def test_a_costly_one_leaves_after_the_others_are_recorded_and_is_named_once(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    monkeypatch.setattr(pace, "COSTLY_SECONDS", 0.02)  # this machine may be a fast one
    for number in range(2):
        write_raw(client, f"costly-{number}", score=1 + number, schedule=SELDOM, **COSTLY[kind])
    for number in range(3):
        write_raw(client, f"other-{number}", score=10 + number, schedule=SELDOM)
    sent = []
    while not scheduler.tick():
        sent.append(broker.llen("celery"))
        broker.delete("celery")
        assert sum(sent) <= 5
    sent.append(broker.llen("celery"))
    assert [count for count in sent if count] == [3, 1, 1]
    for number in range(2):
        client.zadd(SCHEDULE, {f"redbeat:costly-{number}": 1})
    while not scheduler.tick():
        pass
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    for number in range(2):
        [said] = [line for line in warnings if f"costly-{number} " in line]
        assert "ms of processor time" in said
        assert f"{client.hstrlen(f'redbeat:costly-{number}', 'definition') // 1_000_000}," in said
    assert not [line for line in warnings if "other-" in line]


@pytest.mark.parametrize("settings", [RAISED])
def test_twenty_costly_ones_that_are_always_due_leave_the_others_their_turn(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    for number in range(20):
        write_raw(client, f"costly-{number}", score=1 + number, schedule=SELDOM, **COSTLY["objects"])
    scheduler.tick()

    def others_have_their_turn() -> int:
        """Let the canary be due once; return how many costly ones are still due."""
        broker.delete("celery")
        write_raw(client, "canary", schedule=SELDOM, score=server_now(client))
        for _ in range(2):
            if "canary" not in sent_names(broker):
                scheduler.tick()
        names = sent_names(broker)
        assert names[-1] == "canary" or names[0] == "canary"
        assert len(names) <= 2, "it waits for one of them at the most"
        scheduler.tick()
        return client.zcount(SCHEDULE, 0, server_now(client))

    # how often that is, is a matter of how long each takes: they rest for as long
    eventually(lambda: others_have_their_turn() < 17, retry_on=(), message="and they get theirs")


@pytest.mark.few_cases(1)
@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("member", ["redbeat:gone-%d", "foreign:%d"])
def test_thousands_of_members_without_a_hash_keep_no_entry_waiting(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    member: str,
) -> None:
    count = 20_000
    client.zadd(SCHEDULE, {member % number: 1 for number in range(count)})
    write_raw(client, "canary", schedule=SELDOM, score=server_now(client))
    scheduler.tick()
    assert sent_names(broker) == ["canary"], "it is looked for beyond them"
    ticks = 1

    def are_removed() -> bool:
        nonlocal ticks
        ticks += client.zcount(SCHEDULE, 0, server_now(client)) > 0  # each has a second to appear
        scheduler.tick()
        return client.zcard(SCHEDULE) == 1

    eventually(are_removed)
    print(f"{ticks} ticks")
    assert ticks < 30
    lines = errors_in(caplog)
    assert all(line.startswith("beat: Failed to load") and ", removing" in line for line in lines)
    assert len(lines) < 40
    assert sum(map(len, lines)) < 20_000


def test_a_canary_runs_each_second_or_so_beside_100_000_members_without_a_hash(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path, make_app: MakeApp
) -> None:
    with run_beat(tmp_path, server.url(0), redbeat_redis_url=server.url(1)):
        write_raw(client, "canary", schedule={"__type__": "interval", "every": 1}, score=server_now(client))
        eventually(lambda: "canary" in sent_names(broker), 30)
        for first in range(0, 100_000, 10_000):
            client.zadd(SCHEDULE, {f"redbeat:gone-{number}": 1 for number in range(first, first + 10_000)})
        reached = sent_names(broker).count("canary")
        eventually(lambda: sent_names(broker).count("canary") >= reached + 3, 30)
        assert client.zcard(SCHEDULE) > 1_000, "not only when all of them are gone"
