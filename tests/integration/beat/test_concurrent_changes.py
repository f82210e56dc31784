"""What changes between the fetch of an entry and its commit, in Redis or in the application."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.keys import Keys
from redbeat.store.records import Commit, Fence, mark_of
from redbeat.store.schedule import commit_call
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.deadlines import patience
from tests.support.fetched import fetched
from tests.support.polling import eventually
from tests.support.schedule import (
    SCHEDULE,
    SELDOM,
    field,
    meta_json,
    score_of,
    sent_dues,
    sent_names,
    server_now,
    write_burst,
    write_raw,
    write_spike,
)
from tests.support.servers import Server
from tests.support.ticks import prepare, take_messages

Change = Callable[[redis.Redis, Any], object]


class Meddled(RedBeatScheduler):
    """Somebody else does ``change`` right after each message was sent."""

    change: Change = staticmethod(lambda client, entry: None)
    client: redis.Redis

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        result = super().apply_async(entry, *args, **kwargs)
        self.change(self.client, entry)
        return result


@pytest.fixture(params=["lock", "no-lock", "two-servers"])
def topology(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def broker(topology: str, server: Server, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client on the database of the broker: the schedule's server, or the other one."""
    other = "redis" if server.kind == "valkey" else "valkey"
    chosen: Server = request.getfixturevalue(other) if topology == "two-servers" else server
    with chosen.client(db=0) as connected:
        yield connected


def url_of(broker: redis.Redis) -> str:
    return f"redis://127.0.0.1:{broker.connection_pool.connection_kwargs['port']}/0"


@pytest.fixture
def meddled(
    topology: str, make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> Callable[[Change], Meddled]:
    def make(change: Change) -> Meddled:
        settings = {"redbeat_lock_key": None} if topology == "no-lock" else {}
        made = make_scheduler(
            scheduler=type("Meddled", (Meddled,), {"change": staticmethod(change), "client": client}),
            broker_url=url_of(broker),
            **settings,
        )
        assert isinstance(made, Meddled)
        return made

    return make


def test_entries_deleted_while_they_run_stay_deleted(
    meddled: Callable[[Change], Meddled], client: redis.Redis, broker: redis.Redis, topology: str
) -> None:
    scheduler = meddled(lambda _, entry: entry.delete())
    for number in range(50):
        write_raw(client, f"entry-{number}")
    scheduler.tick()
    scheduler.tick()
    # on one server message and record are one step, and the entries were gone by then
    assert len(sent_names(broker)) == (50 if topology == "two-servers" else 0)
    assert client.keys("redbeat:entry-*") == []
    assert client.zcard(SCHEDULE) == 0


@pytest.mark.parametrize("commands", [["DEL"], ["ZREM", "DEL"]], ids=["hash", "both"])
def test_an_entry_deleted_raw_while_it_runs_stays_deleted(
    meddled: Callable[[Change], Meddled], client: redis.Redis, commands: list[str]
) -> None:
    def delete(client: redis.Redis, entry: Any) -> None:
        for command in commands:
            client.execute_command(command, *[SCHEDULE] * (command == "ZREM"), entry.key)

    write_raw(client, "entry")
    meddled(delete).tick()
    assert client.exists("redbeat:entry") == 0


def save_another(_: redis.Redis, entry: Any) -> None:
    Entry(entry.name, "other", schedule(10**9), kwargs={"new": True}, app=entry.app).save()


WRITTEN: dict[str, Change] = {
    "saved": save_another,
    "edited by hset": lambda client, entry: write_raw(client, entry.name, task="other", score=None),
    "given a policy by hset": lambda client, entry: client.hset(entry.key, "policy", '{"max_runs": 3}'),
    "deleted and saved anew": lambda client, entry: (entry.delete(), save_another(client, entry)),
}


@pytest.mark.parametrize("how", WRITTEN)
def test_entry_written_while_it_runs_keeps_what_was_written(
    meddled: Callable[[Change], Meddled], client: redis.Redis, broker: redis.Redis, topology: str, how: str
) -> None:
    written = []

    def write(client: redis.Redis, entry: Any) -> None:
        WRITTEN[how](client, entry)
        written.append(client.hget(entry.key, "definition"))

    write_raw(client, "entry", meta=meta_json(datetime(2024, 1, 1), 3))
    meddled(write).tick()
    assert client.hget("redbeat:entry", "definition") == written[0]
    did_run = topology == "two-servers"
    assert len(sent_names(broker)) == did_run
    is_new = how == "deleted and saved anew"
    assert field(client, "entry", "meta")["total_run_count"] == (0 if is_new else 3 + did_run)
    if "hset" not in how:
        assert (score_of(client, "entry") or 0) > server_now(client)


def test_entry_saved_unchanged_while_it_runs_is_sent_once(
    meddled: Callable[[Change], Meddled], client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = meddled(lambda _, entry: Entry.from_key(entry.key, app=entry.app).save())
    due = server_now(client) - 10
    since = datetime.fromtimestamp(due - 3600, timezone.utc)
    write_raw(client, "entry", meta=meta_json(since, 3), score=due)
    for _ in range(3):
        scheduler.tick()
    assert sent_names(broker) == ["entry"]
    assert field(client, "entry", "meta")["total_run_count"] == 4


def test_entry_rescheduled_while_it_runs_keeps_that_time(
    meddled: Callable[[Change], Meddled], client: redis.Redis
) -> None:
    since = datetime.now(timezone.utc) + timedelta(days=1)
    write_raw(client, "entry", meta=meta_json(datetime(2024, 1, 1), 3))
    meddled(lambda _, entry: Entry.from_key(entry.key, app=entry.app).reschedule(since)).tick()
    assert score_of(client, "entry") == pytest.approx(since.timestamp() + 3600, abs=1e-3)
    stored = Entry.from_key("redbeat:entry", app=meddled(lambda *_: None).app)
    assert stored.last_run_at.timestamp() == pytest.approx(since.timestamp(), abs=1e-3)
    assert stored.total_run_count == 3


def test_entry_moved_by_zadd_while_it_runs_keeps_that_time(
    meddled: Callable[[Change], Meddled], client: redis.Redis, broker: redis.Redis, topology: str
) -> None:
    write_raw(client, "entry", meta=meta_json(datetime(2024, 1, 1), 3))
    meddled(lambda client, entry: client.zadd(SCHEDULE, {entry.key: 4e9})).tick()
    assert score_of(client, "entry") == 4e9
    did_run = topology == "two-servers"
    assert field(client, "entry", "meta")["total_run_count"] == 3 + did_run
    assert len(sent_names(broker)) == did_run


def test_a_run_whose_meta_was_rewritten_meanwhile_is_sent_with_its_record_or_not_at_all(
    meddled: Callable[[Change], Meddled], client: redis.Redis, broker: redis.Redis, topology: str
) -> None:
    another = meta_json(datetime(2025, 1, 1), 7)
    write_raw(client, "entry", meta=meta_json(datetime(2024, 1, 1), 3), score=1)
    scheduler = meddled(lambda client, entry: client.hset(entry.key, "meta", another))
    scheduler.tick()
    assert client.hget("redbeat:entry", "meta") == another
    is_sent = topology == "two-servers"
    assert (len(sent_names(broker)), score_of(client, "entry") != 1) == (is_sent, is_sent)


@pytest.mark.parametrize("topology", ["no-lock", "two-servers"])
def test_beats_without_a_lock_send_each_run_once(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    settings: dict[str, Any] = {"redbeat_lock_key": None, "redbeat_batch_size": 7}
    schedulers = [make_scheduler(broker_url=url_of(broker), **settings) for _ in range(4)]
    names = write_burst(client, 300)
    busy = Counter[int]()

    def work(scheduler: RedBeatScheduler) -> None:
        while not scheduler.tick():
            busy[id(scheduler)] += 1

    threads = [threading.Thread(target=work, args=(scheduler,)) for scheduler in schedulers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(sent_names(broker)) == Counter(names)
    assert len(busy) > 1
    assert client.zcount(SCHEDULE, "-inf", server_now(client) + 60) == 0
    assert {field(client, name, "meta")["total_run_count"] for name in names} == {1}


@pytest.mark.parametrize("topology", ["no-lock"])
def test_score_written_after_a_lease_is_a_run_of_its_own(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    due = server_now(client) - 10
    write_raw(client, "entry", score=due)
    client.hset("redbeat:entry", "lease", f"{due - 100} {due - 200}")
    make_scheduler(redbeat_lock_key=None).tick()
    assert [sent.timestamp() for sent in sent_dues(broker)] == pytest.approx([due], abs=1e-5)
    assert not client.hexists("redbeat:entry", "lease")


@pytest.mark.parametrize("topology", ["no-lock"])
@pytest.mark.parametrize("lease", ["", "x", "1 2 3", "{score} ", "{score} -5", "{score} nan"])
def test_invalid_lease_is_ignored(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, lease: str
) -> None:
    write_raw(client, "entry", score=1.5, schedule=SELDOM)
    client.hset("redbeat:entry", "lease", lease.format(score=1.5))
    make_scheduler(redbeat_lock_key=None).tick()
    assert [due.timestamp() for due in sent_dues(broker)] == [1.5]


def test_failed_run_leaves_no_error_at_an_entry_corrected_meanwhile(
    meddled: Callable[[Change], Meddled], client: redis.Redis
) -> None:
    def correct(client: redis.Redis, entry: Any) -> None:
        write_raw(client, entry.name, schedule=SELDOM, score=4e9)
        raise ValueError("these kwargs can't be sent")

    write_raw(client, "entry", kwargs={"bad": True})
    meddled(correct).tick()
    assert client.hget("redbeat:entry", "error") is None
    assert score_of(client, "entry") == 4e9


@pytest.mark.parametrize("changed", ["definition", "policy"])
def test_entry_changed_as_its_pause_ends_keeps_the_change(client: redis.Redis, changed: str) -> None:
    score = str(int(server_now(client)) - 1)
    client.zadd(SCHEDULE, {"redbeat:entry": score})
    client.hset("redbeat:entry", mapping={"definition": "d", "policy": "p"})
    due_entry = fetched("redbeat:entry", score, "d", policy="p")
    ended = Commit(due_entry, new_score="4000000000", new_meta="m", new_definition="new", new_policy="")
    client.hset("redbeat:entry", changed, "another")
    before = client.hgetall("redbeat:entry")
    assert commit_call(Keys(), Fence(), [ended]).run(client).results == [True]  # the run is recorded
    assert client.hgetall("redbeat:entry") == {**before, "meta": "m", "meta_crc32": mark_of("m")}
    assert client.zscore(SCHEDULE, "redbeat:entry") == 4e9


# -- the application changes while beat runs


def echo(*args: Any) -> None: ...


def add_header(headers: Any = None, **_: Any) -> None:
    headers["traced"] = "yes"


CHANGES: dict[str, tuple[Callable[[Celery], Any], str, dict[str, Any]]] = {
    "route": (lambda app: app.conf.task_routes["echo"].update(queue="elsewhere"), "elsewhere", {}),
    "receiver": (lambda _: before_task_publish.connect(add_header), "first", {"traced": "yes"}),
}


@pytest.mark.parametrize(("make", "queue", "header"), CHANGES.values(), ids=CHANGES)
def test_change_of_the_app_applies_to_prepared_messages(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    make: Callable[[Celery], Any],
    queue: str,
    header: dict[str, Any],
) -> None:
    app = make_app(task_routes={"echo": {"queue": "first"}}, redbeat_lookahead=60)
    app.task(name="echo", ignore_result=True)(echo)
    scheduler = make_scheduler(app)
    write_burst(client, ["before"])
    scheduler.tick()
    take_messages(app, "first")
    due = round(server_now(client) + patience(0.7), 6)
    write_spike(client, due, 5)
    assert prepare(scheduler) == 5
    try:
        make(app)
        eventually(lambda: server_now(client) > due and scheduler.tick() > 0)
    finally:
        before_task_publish.disconnect(add_header)
    sent = take_messages(app, queue)
    assert len(sent) == 5
    assert all(header.items() <= message.headers.items() for message in sent)
