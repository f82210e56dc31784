"""Runs with an overlap policy whose messages go out before they are recorded: they are reserved first."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat.dispatcher import Dispatcher
from redbeat.beat.recorder import Recorder
from redbeat.schedulers import get_redis
from redbeat.store.records import Fence, TrackedRun
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


class Killed(KeyboardInterrupt):
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


POLICIES = ["skip", "buffer_one", "replace"]


def kill(
    scheduler: RedBeatScheduler, monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, is_done: bool
) -> None:
    """Kill a beat at its first call of a method, when that has been done, or before it is."""
    original = getattr(owner, name)

    def die(*args: Any, **options: Any) -> Any:
        if is_done:
            original(*args, **options)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, die)
        with pytest.raises(Killed):
            scheduler.tick()


def make_due(client: redis.Redis, seconds: float = 1.0) -> float:
    """Let another run of the entry be due; return since when it is."""
    due = round(server_now(client) - seconds, 6)
    client.zadd(SCHEDULE, {"redbeat:entry": due})
    return due


def end_second_of(progress: Progress, runs: tuple[float, float], overlap: str) -> None:
    """Deliver both runs: only the second one may begin."""
    first, second = (
        progress.delivery("entry", expected_id("entry", due), due, overlap=overlap) for due in runs
    )
    assert progress.begin(first) == "superseded"
    assert progress.begin(second) == "go"
    assert progress.begin(first) == "superseded"
    progress.end(second, "succeeded")


@pytest.mark.parametrize("overlap", POLICIES)
def test_a_reserved_run_that_was_not_published_does_not_hold_back_the_next_one(
    scheduler: RedBeatScheduler,
    app: Celery,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    overlap: str,
) -> None:
    first = write_entry(client, overlap=overlap)
    kill(scheduler, monkeypatch, Recorder, "reserve", is_done=True)
    assert list(running_of(client, "entry")) == [expected_id("entry", first)]
    second = make_due(client)
    scheduler.tick()
    assert ids_of(app) == [expected_id("entry", second)]
    assert list(running_of(client, "entry")) == [expected_id("entry", second)]
    assert client.zcard(DEADLINES) == 1
    assert ["outcome" in one for one in history_of(client, "entry")] == [False]


@pytest.mark.parametrize("overlap", POLICIES)
def test_the_message_of_a_reserved_run_is_not_begun_while_the_next_run_holds_the_entry(
    scheduler: RedBeatScheduler,
    app: Celery,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    overlap: str,
) -> None:
    """The beat was killed when it had published the first one, and before it had recorded that."""
    first = write_entry(client, overlap=overlap)
    kill(scheduler, monkeypatch, Store, "commit_runs", is_done=False)
    second = make_due(client)
    scheduler.tick()
    assert ids_of(app) == [expected_id("entry", due) for due in (first, second)]
    end_second_of(Progress(app, client), (first, second), overlap)
    assert history_of(client, "entry")[0]["outcome"] == "succeeded"


@pytest.mark.parametrize("overlap", POLICIES)
def test_a_run_that_was_begun_before_it_was_recorded_holds_back_the_next_one(
    scheduler: RedBeatScheduler,
    app: Celery,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    overlap: str,
) -> None:
    first = write_entry(client, overlap=overlap)
    kill(scheduler, monkeypatch, Store, "commit_runs", is_done=False)
    task_id = expected_id("entry", first)
    progress = Progress(app, client)
    assert progress.begin(progress.delivery("entry", task_id, first, overlap=overlap)) == "go"
    make_due(client)
    scheduler.tick()
    assert ids_of(app) == [task_id]
    held = history_of(client, "entry")[0]
    assert (held["outcome"], held["held_by"]) == ("skipped" if overlap == "skip" else "waiting", task_id)


def test_the_commit_of_a_run_whose_place_another_run_has_taken_leaves_that_one_alone(
    make_scheduler: MakeScheduler, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a lock a beat may be paused for longer than its claim lives, and commit late."""
    app.conf.redbeat_lock_key = None
    scheduler = make_scheduler(app)
    other = TrackedRun("2000", ',"overlap":"skip"', 60, "skip")
    commit_runs = Store.commit_runs

    def be_late(store: Store, *args: Any) -> Any:
        store.reserve_runs(Fence(), [("redbeat:entry", "other", other)])
        return commit_runs(store, *args)

    due = write_entry(client)
    with monkeypatch.context() as patched:
        patched.setattr(Store, "commit_runs", be_late)
        scheduler.tick()
    assert ids_of(app) == [expected_id("entry", due)]
    assert list(running_of(client, "entry")) == ["other"]


def test_a_run_that_is_published_by_hand_holds_back_for_some_seconds_those_that_are_due(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis
) -> None:
    runs, run = Runs(Store(app)), TrackedRun("2000", ',"overlap":"skip"', 60, "skip")
    assert runs.reserve("redbeat:entry", "by-hand", run) is None
    write_entry(client)
    scheduler.tick()
    assert ids_of(app) == []
    [why] = [one.why for one in Entry.get("entry", app).history()]
    assert why == "the run by-hand was about to be published"
    record = {**running_of(client, "entry")["by-hand"], "holds": str(server_now(client) - 1)}
    client.hset(RUNNING, "by-hand", json.dumps(record))
    due = make_due(client)
    scheduler.tick()
    assert ids_of(app) == [expected_id("entry", due)]
    runs.note_published("redbeat:entry", "by-hand", run)
    assert list(running_of(client, "entry")) == [expected_id("entry", due)]


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


@pytest.mark.parametrize("is_published", [False, True])
@pytest.mark.parametrize("overlap", POLICIES)
def test_with_at_most_once_a_run_whose_beat_was_killed_before_it_was_published_holds_nothing_back(
    make_scheduler: MakeScheduler,
    make_app: MakeApp,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    overlap: str,
    is_published: bool,
) -> None:
    app = make_app(broker_url="memory://localhost", redbeat_delivery="at_most_once")
    scheduler = make_scheduler(app)
    first = write_entry(client, overlap=overlap)
    kill(scheduler, monkeypatch, Dispatcher, "_publish", is_done=is_published)
    second = make_due(client)
    scheduler.tick()
    ids = [expected_id("entry", due) for due in (first, second)]
    assert ids_of(app) == (ids if is_published else ids[1:])
    progress = Progress(app, client)
    end_second_of(progress, (first, second), overlap)
    client.zadd(DEADLINES, {f"{ids[0]}\0{RUNNING}": 1})
    progress.settle()
    assert [one["outcome"] for one in history_of(client, "entry")] == ["succeeded", "never_started"]
    assert client.exists(RUNNING, DEADLINES) == 0


@pytest.mark.parametrize("overlap", POLICIES)
def test_with_at_most_once_a_run_that_was_published_holds_its_entry(
    make_scheduler: MakeScheduler, make_app: MakeApp, client: redis.Redis, overlap: str
) -> None:
    app = make_app(broker_url="memory://localhost", redbeat_delivery="at_most_once")
    scheduler = make_scheduler(app)
    first = write_entry(client, overlap=overlap)
    scheduler.tick()
    make_due(client)
    scheduler.tick()
    assert ids_of(app) == [expected_id("entry", first)]
    assert history_of(client, "entry")[0]["held_by"] == expected_id("entry", first)


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
