"""Runs with an overlap policy whose messages go out before they are recorded: they are reserved first."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat.recorder import Recorder
from redbeat.schedulers import get_redis
from redbeat.store.runs import Answer, Delivery, End, Runs
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.progress import NAMES, Progress, history_of, running_of
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import (
    DEADLINES,
    SCHEDULE,
    expected_id,
    field,
    monitoring,
    score_of,
    server_now,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import leader, memory_app, names_of, take_messages
from tests.support.topologies import ClusterTopology

HOURLY = {"__type__": "interval", "every": 3600}
RUNNING = NAMES.about("entry").running


@pytest.fixture(params=["memory", "other server", "rabbitmq"])
def app(request: pytest.FixtureRequest, make_app: MakeApp) -> Celery:
    """An app whose broker isn't the schedule's server."""
    if request.param == "memory":
        return make_app(broker_url="memory://localhost")
    if request.param == "rabbitmq":
        rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
        return make_app(broker_url=rabbitmq.url())
    other: Server = request.getfixturevalue("other")
    return make_app(broker_url=other.url(0))


@pytest.fixture
def scheduler(make_scheduler: MakeScheduler, app: Celery) -> RedBeatScheduler:
    return make_scheduler(app)


def write_entry(client: redis.Redis, name: str = "entry", **policy: Any) -> float:
    """An hourly entry that is due since a moment; returns when."""
    due = round(server_now(client) - 5, 6)
    write_raw(client, name, score=due, schedule=HOURLY)
    client.hset(f"redbeat:{name}", "policy", json.dumps({"overlap": "skip", **policy}))
    return due


def ids_of(app: Celery) -> list[str]:
    return [message.id for message in take_messages(app)]


def test_a_run_is_noted_before_and_after_it_is_published(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    commit_runs = Store.commit_runs

    def commit(store: Store, *args: Any) -> Any:
        seen.append(running_of(client, "entry"))
        return commit_runs(store, *args)

    due = write_entry(client)
    monkeypatch.setattr(Store, "commit_runs", commit)
    scheduler.tick()
    task_id = expected_id("entry", due)
    assert ids_of(app) == [task_id]
    assert seen[0][task_id].keys() >= {"state", "due", "overlap"}
    assert "sent" not in seen[0][task_id]
    assert float(running_of(client, "entry")[task_id]["sent"]) == pytest.approx(server_now(client), abs=60)
    [(_, deadline)] = client.zrange(DEADLINES, 0, -1, withscores=True)
    assert deadline > server_now(client) + 3000
    assert field(client, "entry", "meta")["total_run_count"] == 1


def test_a_run_is_held_back_before_it_is_published(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis
) -> None:
    first, other = write_entry(client), write_entry(client, "other")
    scheduler.tick()
    assert ids_of(app) == [expected_id("entry", first), expected_id("other", other)]
    second = round(server_now(client) - 1, 6)
    client.zadd(SCHEDULE, {"redbeat:entry": second})
    client.delete(NAMES.about("other").running)
    client.zadd(SCHEDULE, {"redbeat:other": second})
    scheduler.tick()
    assert names_of(take_messages(app)) == ["other"]
    held, sent = history_of(client, "entry")
    assert (held["outcome"], held["held_by"]) == ("skipped", expected_id("entry", first))
    assert "outcome" not in sent
    assert field(client, "entry", "meta")["total_run_count"] == 1
    assert score_of(client, "entry") == pytest.approx(second + 3600, abs=1e-3)


def test_one_that_has_to_wait_goes_when_the_other_has_ended(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis
) -> None:
    progress = Progress(app, client)
    delivery = progress.started("entry", "other")
    due = write_entry(client, overlap="buffer_one")
    scheduler.tick()
    assert ids_of(app) == []
    following = score_of(client, "entry")
    progress.end(delivery, "succeeded")
    for _ in range(3):
        scheduler.tick()
    assert ids_of(app) == [expected_id("entry", due)]
    assert score_of(client, "entry") == following
    assert list(running_of(client, "entry")) == [expected_id("entry", due)]


class Killed(BaseException):
    """The end of a beat."""


def killed(*_: Any, **__: Any) -> Any:
    raise Killed


def test_after_a_kill_between_the_reservation_and_the_publish_the_next_beat_publishes(
    make_scheduler: MakeScheduler, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = write_entry(client)
    reserve = Recorder.reserve

    def reserve_and_die(*args: Any, **options: Any) -> Any:
        reserve(*args, **options)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "reserve", reserve_and_die)
        scheduler = make_scheduler(app)
        with pytest.raises(Killed):
            scheduler.tick()
    assert ids_of(app) == []
    assert list(running_of(client, "entry")) == [expected_id("entry", due)]
    scheduler.tick()
    assert ids_of(app) == [expected_id("entry", due)]


@pytest.mark.parametrize("outcome", [None, "succeeded"])
def test_after_a_kill_between_the_publish_and_the_commit_a_run_that_was_begun_is_not_published_again(
    make_scheduler: MakeScheduler,
    app: Celery,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    outcome: str | None,
) -> None:
    due = write_entry(client)
    task_id = expected_id("entry", due)
    scheduler = make_scheduler(app)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "commit_runs", killed)
        with pytest.raises(Killed):
            scheduler.tick()
    assert ids_of(app) == [task_id]
    progress = Progress(app, client)
    delivery = progress.delivery("entry", task_id, due)
    assert progress.begin(delivery) == "go"
    if outcome:
        progress.end(delivery, outcome)
    scheduler.tick()
    assert ids_of(app) == []
    assert field(client, "entry", "meta")["total_run_count"] == 1
    record = history_of(client, "entry")[0]
    assert record.get("outcome") == outcome
    if not outcome:
        assert "sent" in running_of(client, "entry")[task_id]
        progress.end(delivery, "failed")
        assert history_of(client, "entry")[0]["outcome"] == "failed"
    assert (running_of(client, "entry"), client.zcard(DEADLINES)) == ({}, 0)


def test_a_reservation_that_nobody_comes_back_to_goes(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_entry(client)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "commit_runs", killed)
        with pytest.raises(Killed):
            scheduler.tick()
    [(member, deadline)] = client.zrange(DEADLINES, 0, -1, withscores=True)
    assert 0 < deadline - server_now(client) <= 60
    client.zrem(SCHEDULE, "redbeat:entry")
    client.zadd(DEADLINES, {member: 1})
    scheduler.tick()
    assert client.exists(RUNNING, DEADLINES) == 0


def test_a_batch_costs_one_round_trip_more_and_one_without_such_runs_none(
    scheduler: RedBeatScheduler, client: redis.Redis, server: Server
) -> None:
    def commands(policy: dict[str, Any]) -> int:
        for number in range(5):
            write_entry(client, f"entry-{number}", **policy)
            client.delete(NAMES.about(f"entry-{number}").running)
        with monitoring(server) as seen:
            scheduler.tick()
        return sum(one.startswith("EVALSHA") for one in seen)

    for policy in ({"overlap": "allow"}, {}):
        commands(policy)
    assert commands({}) == commands({"overlap": "allow"}) + 1
    assert commands({"overlap": "allow", "max_runtime": 60}) == commands({"overlap": "allow"})


def test_a_key_that_is_no_hash_costs_the_runs_of_that_entry(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis
) -> None:
    client.set(RUNNING, "oops")
    write_entry(client)
    write_entry(client, "other")
    scheduler.tick()
    assert names_of(take_messages(app)) == ["other"]
    assert "no hash of runs" in field(client, "entry", "error")["reason"]


def test_in_a_cluster_a_run_waits_and_goes_as_elsewhere(cluster: ClusterTopology) -> None:
    app = memory_app(redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True})
    entry = Entry("entry", "echo", 3600, overlap="buffer_one", app=app).save()
    client, keys, runs = get_redis(app), app.redbeat_conf.keys, Runs(Store(app))
    with leader(app) as scheduler:
        ids = []
        for seconds in (5, 4):
            client.zadd(keys.schedule, {entry.key: int(client.time()[0]) - seconds + 0.5})
            scheduler.tick()
            ids += ids_of(app)
        [run] = entry.running()
        assert ids == [run.task_id]
        delivery = Delivery("entry", run.task_id, f"{run.due.timestamp():.6f}", "token", "celery@test")
        assert runs.begin(delivery, 30_000).answer is Answer.GO
        runs.end([End(delivery, "succeeded")])
        for _ in range(3):
            scheduler.tick()
        assert len(ids_of(app)) == 1
        assert [one.outcome for one in entry.history()] == ["sent", "succeeded"]


@pytest.mark.parametrize("overlap", ["skip", "allow"])
def test_with_at_most_once_a_run_that_is_lost_holds_nothing_back(
    make_scheduler: MakeScheduler, make_app: MakeApp, client: redis.Redis, overlap: str
) -> None:
    app = make_app(broker_url="memory://localhost", redbeat_delivery="at_most_once")
    scheduler = make_scheduler(app)
    due = write_entry(client, overlap=overlap, max_runtime=60)
    write_raw(client, "entry", score=due, schedule=HOURLY, options={"serializer": "no such"})
    scheduler.tick()
    assert client.exists(RUNNING) == 0
    [past] = history_of(client, "entry")
    assert past["outcome"] == "lost"
    assert past["error"].startswith("its message couldn't be sent: SerializerNotInstalled: ")
    scheduler.tick()
    assert field(client, "entry", "meta")["total_run_count"] == 1
    assert client.exists(RUNNING, DEADLINES) == 0
