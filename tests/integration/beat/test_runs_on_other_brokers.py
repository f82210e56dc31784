"""Runs with an overlap policy on another server than the schedule: reserved before they are published."""

from __future__ import annotations

import json
import signal
import sys
import threading
from typing import Any

import pytest
import redis
from celery import Celery
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from redbeat.scheduler import deliver, sinks
from redbeat.scheduler.encoder import Encoder
from redbeat.store.schedule import commit_runs
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.polling import eventually
from tests.support.progress import NAMES, Progress, history_of, running_of
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import (
    DEADLINES,
    SCHEDULE,
    expected_id,
    field,
    score_of,
    sent_names,
    server_now,
    write_burst,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import leader, names_of, take_messages

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


def test_run_is_recorded_before_and_after_it_is_published(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def look_and_commit(*args: Any, **options: Any) -> Any:
        seen.append(running_of(client, "entry"))
        return commit_runs(*args, **options)

    due = write_entry(client)
    monkeypatch.setattr(deliver, "commit_runs", look_and_commit)
    scheduler.tick()
    task_id = expected_id("entry", due)
    assert ids_of(app) == [task_id]
    assert seen[0][task_id].keys() >= {"state", "due", "overlap"}
    assert "sent" not in seen[0][task_id]
    assert float(running_of(client, "entry")[task_id]["sent"]) == pytest.approx(server_now(client), abs=60)
    [(_, deadline)] = client.zrange(DEADLINES, 0, -1, withscores=True)
    assert deadline > server_now(client) + 3000
    assert field(client, "entry", "meta")["total_run_count"] == 1


def test_run_is_held_back_before_it_is_published(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis
) -> None:
    first, other = write_entry(client), write_entry(client, "other")
    scheduler.tick()
    assert ids_of(app) == [expected_id("entry", first), expected_id("other", other)]
    second = make_due(client)
    client.delete(NAMES.about("other").running)
    client.zadd(SCHEDULE, {"redbeat:other": second})
    scheduler.tick()
    assert names_of(take_messages(app)) == ["other"]
    held, sent = history_of(client, "entry")
    assert (held["outcome"], held["held_by"]) == ("skipped", expected_id("entry", first))
    assert "outcome" not in sent
    assert field(client, "entry", "meta")["total_run_count"] == 1
    assert score_of(client, "entry") == pytest.approx(second + 3600, abs=1e-3)


def test_waiting_run_is_published_when_the_other_has_ended(
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


POLICIES = ["skip", "buffer_one", "replace"]


def kill(
    scheduler: RedBeatScheduler, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, is_done: bool
) -> None:
    """Kill a beat at its first call of a function, when that has been done, or before it is."""
    original = getattr(owner, name)

    def die(*args: Any, **options: Any) -> Any:
        if is_done:
            original(*args, **options)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(owner, name, die)
        patched.setattr(deliver, "record_last", lambda _: None)  # a killed beat has no last words
        with pytest.raises(Killed):
            scheduler.tick()


def test_runs_that_were_published_are_recorded_as_a_tick_is_ended_before_that(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = write_burst(client, 3)

    def end(*_args: Any, **_options: Any) -> None:
        raise SystemExit

    with monkeypatch.context() as patched:
        patched.setattr(deliver, "Executor", end)
        with pytest.raises(SystemExit):
            scheduler.tick()
    sent = names_of(take_messages(app))
    assert sent == names
    assert all(score_of(client, name) > server_now(client) for name in names)
    scheduler.tick()
    assert take_messages(app) == []


def make_due(client: redis.Redis) -> float:
    """Let another run of the entry be due; return since when it is."""
    due = round(server_now(client) - 1, 6)
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
    kill(scheduler, monkeypatch, sinks, "reserve_runs", is_done=True)
    assert list(running_of(client, "entry")) == [expected_id("entry", first)]
    second = make_due(client)
    scheduler.tick()
    assert ids_of(app) == [expected_id("entry", second)]
    assert list(running_of(client, "entry")) == [expected_id("entry", second)]
    assert client.zcard(DEADLINES) == 1
    assert ["outcome" in one for one in history_of(client, "entry")] == [False]


@pytest.mark.parametrize("overlap", POLICIES)
def test_message_of_a_reserved_run_is_not_begun_while_the_next_run_holds_the_entry(
    scheduler: RedBeatScheduler,
    app: Celery,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    overlap: str,
) -> None:
    """The beat was killed when it had published the first one, and before it had recorded that."""
    first = write_entry(client, overlap=overlap)
    kill(scheduler, monkeypatch, deliver, "commit_runs", is_done=False)
    second = make_due(client)
    scheduler.tick()
    assert ids_of(app) == [expected_id("entry", due) for due in (first, second)]
    end_second_of(Progress(app, client), (first, second), overlap)
    assert history_of(client, "entry")[0]["outcome"] == "succeeded"


@pytest.mark.parametrize("overlap", POLICIES)
def test_run_begun_before_it_was_recorded_holds_back_the_next_one(
    scheduler: RedBeatScheduler,
    app: Celery,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    overlap: str,
) -> None:
    first = write_entry(client, overlap=overlap)
    kill(scheduler, monkeypatch, deliver, "commit_runs", is_done=False)
    task_id = expected_id("entry", first)
    progress = Progress(app, client)
    assert progress.begin(progress.delivery("entry", task_id, first, overlap=overlap)) == "go"
    make_due(client)
    scheduler.tick()
    assert ids_of(app) == [task_id]
    held = history_of(client, "entry")[0]
    assert (held["outcome"], held["held_by"]) == ("skipped" if overlap == "skip" else "waiting", task_id)


@pytest.mark.parametrize("is_ended", [False, True])
def test_run_begun_after_a_kill_is_not_published_again(
    scheduler: RedBeatScheduler,
    app: Celery,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    is_ended: bool,
) -> None:
    due = write_entry(client)
    kill(scheduler, monkeypatch, deliver, "commit_runs", is_done=False)
    task_id, progress = expected_id("entry", due), Progress(app, client)
    assert ids_of(app) == [task_id]
    delivery = progress.delivery("entry", task_id, due)
    assert progress.begin(delivery) == "go"
    if is_ended:
        progress.end(delivery, "succeeded")
    scheduler.tick()
    assert ids_of(app) == []
    assert field(client, "entry", "meta")["total_run_count"] == 1
    if not is_ended:
        assert "outcome" not in history_of(client, "entry")[0]
        assert "sent" in running_of(client, "entry")[task_id]
        progress.end(delivery, "succeeded")
    assert history_of(client, "entry")[0]["outcome"] == "succeeded"
    assert client.exists(RUNNING, DEADLINES) == 0


def test_reservation_without_its_beat_is_removed(
    scheduler: RedBeatScheduler, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_entry(client)
    kill(scheduler, monkeypatch, deliver, "commit_runs", is_done=False)
    [(member, deadline)] = client.zrange(DEADLINES, 0, -1, withscores=True)
    assert 0 < deadline - server_now(client) <= 60
    client.zrem(SCHEDULE, "redbeat:entry")
    client.zadd(DEADLINES, {member: 1})
    scheduler.tick()
    assert client.exists(RUNNING, DEADLINES) == 0


@pytest.mark.parametrize("is_published", [False, True])
@pytest.mark.parametrize("overlap", POLICIES)
def test_at_most_once_run_whose_beat_was_killed_holds_nothing_back(
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
    kill(scheduler, monkeypatch, Encoder, "make", is_done=is_published)
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


def test_entries_of_a_backlog_that_are_put_off_between_two_ticks_are_not_sent(
    make_scheduler: MakeScheduler, other: Server, client: redis.Redis
) -> None:
    scheduler = make_scheduler(broker_url=other.url(0), redbeat_batch_size=2)
    names = write_burst(client, 8)
    for _ in range(2):
        scheduler.tick()
    for name in names[4:]:
        client.zadd(SCHEDULE, {f"redbeat:{name}": server_now(client) + 3600})
    for _ in range(4):
        scheduler.tick()
    assert names_of(take_messages(scheduler.app)) == names[:4]


def test_at_most_once_runs_that_are_recorded_are_sent_before_a_signal_ends_beat(
    make_app: MakeApp, client: redis.Redis
) -> None:
    app = make_app(broker_url="memory://localhost", redbeat_delivery="at_most_once")
    names = write_burst(client, 5)

    def interrupt(**_: Any) -> None:
        before_task_publish.disconnect(interrupt)
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    before_task_publish.connect(interrupt, weak=False)
    try:
        with leader(app) as scheduler, pytest.raises(SystemExit):
            scheduler.tick()
    finally:
        before_task_publish.disconnect(interrupt)
        signal.signal(signal.SIGTERM, before)
    assert names_of(take_messages(app)) == names


def test_at_most_once_runs_that_are_held_are_not_sent_after_many_that_are(
    make_scheduler: MakeScheduler, make_app: MakeApp, client: redis.Redis
) -> None:
    app = make_app(broker_url="memory://localhost", redbeat_delivery="at_most_once")
    scheduler = make_scheduler(app)
    held = [f"held-{number}" for number in range(60)]
    for name in held:
        write_entry(client, name)
    scheduler.tick()
    assert sorted(names_of(take_messages(app))) == sorted(held)
    for name in held:
        write_entry(client, name)
    sent = write_burst(client, 60)  # due before them
    scheduler.tick()
    assert names_of(take_messages(app)) == sent
    assert {history_of(client, name)[0].get("outcome") for name in held} == {"skipped"}


SETTINGS = {"redbeat_delivery": "at_most_once", "redbeat_publish_timeout": 1}


BURST = ["first", "second", "third"]


@pytest.mark.parametrize("options", [{}, {"retry_on_timeout": True}], ids=["plain", "retry_on_timeout"])
def test_at_most_once_run_whose_answer_is_late_or_lost_is_sent_once(
    make_scheduler: MakeScheduler,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    options: dict[str, Any],
) -> None:
    with Proxy((server.host, server.port)) as proxy:
        settings = {"broker_url": proxy.url(server.url(0)), "broker_transport_options": options, **SETTINGS}
        scheduler = make_scheduler(**settings)
        write_burst(client, BURST)
        cut = proxy.cut_on(expected_id("second", 2).encode(), "reply")
        scheduler.tick()
        assert cut.is_set()
        assert sent_names(broker) == BURST

        write_burst(client, ["late"])
        proxy.delay_seconds = 0.6  # each way: the message arrives, and its answer after the timeout
        heal = threading.Timer(1.1, setattr, [proxy, "delay_seconds", 0])
        heal.start()
        scheduler.tick()
        heal.join()
        eventually(lambda: sent_names(broker) == [*BURST, "late"])
        write_burst(client, ["after"])
        while scheduler.tick() < 2:
            pass
        assert sent_names(broker) == [*BURST, "late", "after"]


def test_at_most_once_run_whose_confirm_by_rabbitmq_is_lost_is_sent_once(
    make_scheduler: MakeScheduler, rabbitmq: RabbitMQ, client: redis.Redis
) -> None:
    with Proxy((rabbitmq.host, rabbitmq.port)) as proxy:
        scheduler = make_scheduler(broker_url=proxy.url(rabbitmq.url()), **SETTINGS)
        write_burst(client, BURST)
        cut = proxy.cut_on(expected_id("second", 2).encode(), "reply")
        scheduler.tick()
        assert cut.is_set()
        sent = [message.entry for message in take_messages(scheduler.app)]
        assert sorted(set(sent)) == sorted(sent)
        assert {"first", "third"} <= set(sent)
        proxy.drop()  # the connection has gone stale
        write_burst(client, ["after"])
        scheduler.tick()
        assert [message.entry for message in take_messages(scheduler.app)][-1:] == ["after"]
