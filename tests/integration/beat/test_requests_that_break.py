"""A request that is too large ends its connection: a low proto-max-bulk-len, or a proxy that cuts it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat import schedulers
from redbeat.broker.outbox import Outbox
from redbeat.leadership.elector import Leadership
from tests.conftest import MakeApp
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.apps import run_beat
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.proxy import Proxy
from tests.support.schedule import (
    SCHEDULE,
    SELDOM,
    field,
    messages,
    meta_json,
    retry_now,
    score_of,
    sent_names,
    server_now,
    write_burst,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import leader, memory_app
from tests.support.topologies import ClusterTopology, cluster

LIMIT_BYTES = 1024 * 1024
#: in a message it is a third longer
LARGE = "x" * 900_000
#: the limit for entries as a user may raise it: beyond what the connection takes
RAISED = {"redbeat_max_entry_bytes": 8 * LIMIT_BYTES}
PATIENT = {"redbeat_redis_options": {"retry_period": -1}}


@pytest.fixture
def strict() -> Iterator[Server]:
    """A server that takes no string of more than a megabyte."""
    with Server(proto_max_bulk_len=LIMIT_BYTES) as server:
        yield server


@pytest.fixture(params=["server", "proxy"])
def urls(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Callable[[int], str], Callable[[], None]]]:
    """A server, its URLs by a way that ends requests with more than a megabyte, and what lifts that."""
    if request.param == "server":
        server: Server = request.getfixturevalue("strict")
        with server.client() as admin:
            yield server, server.url, lambda: admin.config_set("proto-max-bulk-len", 512 * LIMIT_BYTES)
        return
    server = request.getfixturevalue("valkey")
    with Proxy((server.host, server.port)) as proxy:
        proxy.cut_beyond(LIMIT_BYTES)
        yield server, lambda db=0: proxy.url(server.url(db)), lambda: proxy.cut_beyond(None)


def keeps_sending(broker: redis.Redis, name: str = "canary", more: int = 3) -> None:
    """Wait for some more runs of an entry that is due each second."""
    reached = sent_names(broker).count(name)
    eventually(lambda: sent_names(broker).count(name) >= reached + more, 30, message="it has stopped")


def write_canary(client: redis.Redis) -> None:
    write_raw(client, "canary", schedule={"__type__": "interval", "every": 1}, score=server_now(client))


def start_beat(directory: Path, broker_url: str, schedule_url: str, **settings: Any) -> Process:
    return run_beat(directory, broker_url, redbeat_redis_url=schedule_url, **{**PATIENT, **settings})


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("settings", [{}, {"redbeat_lock_key": None}], ids=["lock", "no-lock"])
def test_a_message_that_breaks_the_connection_costs_its_own_entry_only(
    urls: tuple[Server, Callable[[int], str], Callable[[], None]], tmp_path: Path, settings: dict[str, Any]
) -> None:
    server, url, lift = urls
    with server.client(db=1) as client, server.client() as broker:
        names = write_burst(client, 20)
        write_raw(client, "large", score=5.5, schedule=SELDOM, args=[LARGE])
        with start_beat(tmp_path, url(0), url(1), **settings) as beat:
            write_canary(client)
            eventually(lambda: client.hget("redbeat:large", "error"), 30)
            keeps_sending(broker)
            assert field(client, "large", "error")["attempts"] >= 1
            assert "connection ends each time" in field(client, "large", "error")["reason"]
            assert "large" not in sent_names(broker)
            lift()
            retry_now(client, "large")
            eventually(lambda: "large" in sent_names(broker), 30)
            assert beat.is_running
        sent = [message["headers"] for message in messages(broker)]
        assert len({one["id"] for one in sent}) == len(sent), "one was doubled"
        counted = [name for name in sent_names(broker) if name != "canary"]
        assert sorted(counted) == sorted([*names, "large"])
        assert not client.hexists("redbeat:large", "error")


def test_an_entry_that_is_unscheduled_meanwhile_is_not_held_on_to(
    urls: tuple[Server, Callable[[int], str], Callable[[], None]], tmp_path: Path
) -> None:
    server, url, _ = urls
    with server.client(db=1) as client, server.client() as broker:
        write_raw(client, "large", score=5.5, schedule=SELDOM, args=[LARGE])
        with start_beat(tmp_path, url(0), url(1)):
            write_canary(client)
            eventually(lambda: client.hget("redbeat:large", "error"), 30)
            client.zrem(SCHEDULE, "redbeat:large")
            keeps_sending(broker)
            assert score_of(client, "large") is None
            assert "large" not in sent_names(broker)


def test_without_patience_beat_goes_on_all_the_same(strict: Server, tmp_path: Path) -> None:
    with strict.client(db=1) as client, strict.client() as broker:
        write_raw(client, "large", score=5.5, schedule=SELDOM, args=[LARGE])
        with start_beat(tmp_path, strict.url(0), strict.url(1), redbeat_redis_options={}) as beat:
            write_canary(client)
            eventually(lambda: client.hget("redbeat:large", "error"), 30)
            keeps_sending(broker)
            assert beat.is_running


def test_a_message_that_breaks_the_way_to_another_broker_costs_its_own_entry_only(
    strict: Server, valkey: Server, tmp_path: Path
) -> None:
    with valkey.client(db=1) as client, strict.client() as broker:
        names = write_burst(client, 20)
        write_raw(client, "large", score=5.5, schedule=SELDOM, args=[LARGE])
        with start_beat(tmp_path, strict.url(0), valkey.url(1)) as beat:
            write_canary(client)
            eventually(lambda: client.hget("redbeat:large", "error"), 30)
            keeps_sending(broker)
            assert "large" not in sent_names(broker)
            broker.config_set("proto-max-bulk-len", 512 * LIMIT_BYTES)
            retry_now(client, "large")
            eventually(lambda: "large" in sent_names(broker), 30)
            assert beat.is_running
        runs = {(one["headers"]["redbeat_entry"], one["headers"]["id"]) for one in messages(broker)}
        assert {name for name, _ in runs} == {*names, "large", "canary"}
        assert len([one for one in runs if one[0] != "canary"]) == 21, "what came twice has one id"


def test_what_ended_the_connection_before_doubles_no_run_of_another_entry(
    strict: Server, valkey: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = memory_app(broker_url=strict.url(0), task_default_queue="celery", redbeat_redis_url=valkey.url(1))
    with valkey.client(db=1) as client, strict.client() as broker, leader(app) as scheduler:
        steps: list[str] = []
        send = Outbox.send
        monkeypatch.setattr(Outbox, "send", lambda *args: (steps.append("send"), send(*args))[1])
        monkeypatch.setattr(Leadership, "confirm", lambda _: steps.append("confirm"))
        write_raw(client, "large", score=5.5, schedule=SELDOM, args=[LARGE])
        eventually(lambda: (scheduler.tick(), client.hget("redbeat:large", "error"))[1], 30)
        for _ in range(2):
            broker.delete("celery")
            names = write_burst(client, 20)
            retry_now(client, "large")
            # its turn comes when costly ones have rested, for as long as the one before took
            eventually(lambda: (scheduler.tick(), float(field(client, "large", "error")["retry_at"]) > 1)[1])
            assert sent_names(broker) == names
        before = [steps[number - 1] for number, step in enumerate(steps) if step == "send"]
        assert len(before) > 4
        assert set(before) == {"confirm"}, "an attempt takes its time, and the lock may be lost by then"


def test_a_static_that_breaks_the_connection_is_skipped_and_said(strict: Server, tmp_path: Path) -> None:
    statics = {
        "good": {"task": "echo", "schedule": 1},
        "large": {"task": "echo", "schedule": 1, "args": [LARGE + LARGE]},
        "other": {"task": "echo", "schedule": 1},
    }
    with (
        strict.client() as broker,
        start_beat(tmp_path, strict.url(0), strict.url(1), beat_schedule=statics) as beat,
    ):
        keeps_sending(broker, "good")
        keeps_sending(broker, "other")
        assert "large" not in sent_names(broker)
        assert "Skipped the entry 'large', it can't be stored" in beat.output()


def test_in_a_cluster_what_cannot_be_recorded_costs_its_own_entry_only(
    tmp_path: Path, valkey: Server
) -> None:
    with cluster(proto_max_bulk_len=LIMIT_BYTES) as nodes:
        meta_that_grows(nodes, valkey, tmp_path)


def meta_that_grows(nodes: ClusterTopology, valkey: Server, directory: Path) -> None:
    client = nodes.client()
    schedule, key = "{redbeat}::schedule", "{redbeat}:%s"
    definition = {"name": "x", "task": "echo", "schedule": {"__type__": "interval", "every": 1}}
    meta = json.loads(meta_json(None, 9))
    # with the time of a run it is too long
    meta["note"] = "x" * (LIMIT_BYTES - 20 - len(json.dumps(meta)))
    for name in ("canary", "large"):
        client.hset(key % name, "definition", json.dumps(definition))
        client.zadd(schedule, {key % name: 1})
    client.hset(key % "large", "meta", json.dumps(meta))
    options = {"retry_period": -1, "cluster": True}
    with (
        valkey.client() as broker,
        start_beat(directory, valkey.url(0), nodes.url(), redbeat_redis_options=options, **RAISED) as beat,
    ):
        eventually(lambda: client.hget(key % "large", "error"), 60)
        keeps_sending(broker)
        assert beat.is_running
        headers = [message["headers"] for message in messages(broker)]
        assert len({one["id"] for one in headers if one["redbeat_entry"] == "large"}) == 1


@EVERY_KIND_OF_LOCK
def test_an_answer_that_breaks_the_connection_costs_no_entry_but_the_one_that_does_it_alone(
    valkey: Server,
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    """Without a lock what is claimed is hidden, and would be again and again if no answer arrived."""
    monkeypatch.setattr(schedulers, "LEASE_SECONDS", 3.0)
    names = [f"entry-{number}" for number in range(600)]
    with Proxy((valkey.host, valkey.port)) as way, valkey.client(db=1) as client, valkey.client() as broker:
        way.cut_beyond(None, LIMIT_BYTES)
        write_burst(client, names, args=["x" * 5_000])
        write_raw(client, "large", score=5.5, schedule=SELDOM, args=[LARGE + LARGE])
        urls = {"broker_url": valkey.url(0), "redbeat_redis_url": way.url(valkey.url(1))}
        scheduler = make_scheduler(make_app(**urls, redbeat_batch_size=300, **RAISED, **settings))

        def has_sent_them() -> bool:
            scheduler.tick()
            return broker.llen("celery") >= len(names) and bool(client.hexists("redbeat:large", "error"))

        eventually(has_sent_them, 60)
        assert sorted(sent_names(broker)) == sorted(names)
        assert (
            "the connection to Redis ends each time it is read" in field(client, "large", "error")["reason"]
        )
        way.cut_beyond(None)
        retry_now(client, "large")
        eventually(lambda: (scheduler.tick(), "large" in sent_names(broker))[1], 60)
        assert len(sent_names(broker)) == len(names) + 1
