"""Entries in Redis: saved, rescheduled, deleted, one by one and in chunks; names that are refused."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import BaseSchedule, schedstate, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.bulk import SaveResult
from redbeat.errors import ConfigurationError, EntryError, EntryNotFound, StoreUnavailable
from redbeat.schedulers import get_redis
from redbeat.schedules import register_schedule
from redbeat.schedules.occurrences import KINDS
from redbeat.store.notifier import WakeChannel
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.fidelity import counting_round_trips
from tests.support.schedule import (
    SCHEDULE,
    STATICS,
    field,
    meta_json,
    monitoring,
    score_of,
    sent_names,
    server_now,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import memory_app

HOUR = 3600.0


#: counts deletions of entries that never ran


def hourly(app: Celery, name: str = "entry", **fields: Any) -> Entry:
    return Entry(**{"name": name, "task": "echo", "schedule": schedule(HOUR), "app": app, **fields})


def test_save_of_a_new_entry_takes_one_round_trip_and_keeps_the_runs_of_an_existing_one(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.store.entries.CLOCK_SECONDS", 3600)  # else a busy machine reads it again
    ran_at, due = datetime(2026, 1, 2, 3, 4, tzinfo=timezone.utc), server_now(client) + 99
    write_raw(client, "new-4", meta=meta_json(ran_at, 7), score=due)
    hourly(app, "first").save()
    trips = []
    for number in range(7):
        with counting_round_trips(monkeypatch) as sent:
            hourly(app, f"new-{number}").save()
        trips.append(sent())
    assert trips == [1, 1, 1, 1, 3, 2, 1], "after one that was there, the next is read"
    assert field(client, "new-4", "meta")["total_run_count"] == 7
    kept = Entry.from_key("new-4", app)
    assert (kept.last_run_at, kept.total_run_count) == (ran_at, 7)
    assert server_now(client) + HOUR - 60 < (score_of(client, "new-3") or 0) < server_now(client) + HOUR + 1


def test_delete_twice_leaves_nothing(app: Celery, client: redis.Redis) -> None:
    entry = hourly(app).save()
    assert sorted(client.keys()) == [SCHEDULE, "redbeat:entry"]
    entry.delete()
    entry.delete()
    assert client.keys() == []


def test_reschedule_counts_from_the_given_time(app: Celery, client: redis.Redis) -> None:
    entry = hourly(app).save()
    client.hset(entry.key, "meta", meta_json(datetime(2024, 1, 1), 7))
    since = datetime.now(timezone.utc) - timedelta(minutes=10)
    entry.reschedule(since)
    assert score_of(client, "entry") == pytest.approx(since.timestamp() + HOUR, abs=1e-3)
    assert Entry.from_key(entry.key, app=app).total_run_count == 7
    entry.reschedule()
    assert score_of(client, "entry") == pytest.approx(server_now(client) + HOUR, abs=5)


@pytest.mark.parametrize("change", [Entry.reschedule, Entry.next])
def test_deleted_entry_is_not_recreated(
    app: Celery, client: redis.Redis, change: Callable[[Entry], Any]
) -> None:
    entry = hourly(app).save()
    entry.delete()
    with pytest.raises(EntryNotFound):
        change(entry)
    assert client.keys() == []


def test_next_records_a_run(app: Celery, client: redis.Redis) -> None:
    entry = hourly(app).save()
    following = entry.next()
    assert (following.total_run_count, entry.total_run_count) == (1, 0)
    assert next(following).total_run_count == 2
    assert entry.next(only_update_last_run_at=True).total_run_count == 2
    assert field(client, "entry", "meta")["total_run_count"] == 2
    assert score_of(client, "entry") == pytest.approx(server_now(client) + HOUR, abs=5)


def test_save_keeps_unknown_fields_and_keys(app: Celery, client: redis.Redis) -> None:
    own = {"__type__": "interval", "every": HOUR, "relative": False, "since": "spring"}
    write_raw(client, "entry", schedule=own, owner="ops", meta='{"total_run_count": 2, "seen": [1]}')
    client.hset("redbeat:entry", mapping={"policy": '{"colour": 5}', "note": "mine"})
    Entry.from_key("redbeat:entry", app=app).next()
    hourly(app, kwargs={"a": 1}).save()
    definition = field(client, "entry", "definition")
    assert (definition["owner"], definition["schedule"]["since"]) == ("ops", "spring")
    assert definition["kwargs"] == {"a": 1}
    meta = field(client, "entry", "meta")
    assert (meta["seen"], meta["total_run_count"]) == ([1], 3)
    assert client.hmget("redbeat:entry", ["policy", "note"]) == ['{"colour": 5}', "mine"]


SETTING_UP = {"HELLO", "SELECT", "CLIENT", "EVAL"}  # a script goes whole once, when it is unknown


def made(app: Celery, number: int, **fields: Any) -> Entry:
    return Entry(**{"name": f"entry-{number}", "task": "t", "schedule": schedule(60), "app": app, **fields})


def words(commands: list[str]) -> Counter[str]:
    return Counter(command.split()[0].upper() for command in commands)


def test_save_many_takes_at_most_two_round_trips_and_one_wake_up_a_chunk(
    app: Celery, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.store.entries.CLOCK_SECONDS", 3600)  # else a busy machine reads it again
    numbers = range(1600)

    def trips(act: Callable[[], Any]) -> int:
        with monitoring(server) as commands:
            act()
        return sum(count for word, count in words(commands).items() if word not in SETTING_UP)

    saves = [trips(lambda: Entry.save_many([made(app, number) for number in numbers])) for _ in range(2)]
    assert saves == [2 + 3, 4], "after new ones nothing is read, until one isn't new"
    for written in (900, 0):
        changed = [made(app, number, args=[1] if number >= 700 else None) for number in numbers]
        with monitoring(server, with_scripts=True) as commands:
            Entry.save_many(changed)
        inside = words(commands)
        assert (inside["HSET"], inside["ZADD"], inside["PUBLISH"]) == ((900, 3, 3) if written else (0, 0, 0))
    assert trips(lambda: Entry.delete_many((f"entry-{number}" for number in numbers), app)) == 4
    assert Entry.count(app) == 0


def test_concurrent_save_many_of_the_same_entries_loses_none(
    make_app: Callable[..., Celery], client: redis.Redis
) -> None:
    barrier = threading.Barrier(4)

    def save(app: Celery, turn: int) -> SaveResult:
        entries = [made(app, number, kwargs={"from": turn}) for number in range(1200)]
        barrier.wait()
        return Entry.save_many(entries)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(save, [make_app() for _ in range(4)], range(4)))
    assert client.zcard(SCHEDULE) == 1200
    new = Counter(name for result in results for name in result.new)
    assert new == dict.fromkeys((f"entry-{number}" for number in range(1200)), 1)
    assert [len(result.new + result.changed + result.same) for result in results] == [1200] * 4
    for first in (0, 500, 1000):
        chunk = range(first, min(first + 500, 1200))
        assert len({field(client, f"entry-{n}", "definition")["kwargs"]["from"] for n in chunk}) == 1


def test_server_killed_during_save_many_has_whole_chunks() -> None:
    with Server(appendonly=True, appendfsync="always") as server:
        app = memory_app(redbeat_redis_url=server.url(1), redbeat_redis_options={"retry_period": 0})

        def kill_after_a_thousand(done: int) -> None:
            if done == 1000:
                server.kill()

        with pytest.raises(StoreUnavailable):
            Entry.save_many((made(app, number) for number in range(2000)), progress=kill_after_a_thousand)
        server.restart()
        again = Entry.save_many(made(app, number) for number in range(2000))
        assert (len(again.new), len(again.same), Entry.count(app)) == (1000, 1000, 2000)


def test_save_many_and_delete_many_wake_beat(app: Celery) -> None:
    channel = WakeChannel(get_redis(app), "redbeat::wake")
    assert not channel.wait(0.1), "it has subscribed now"
    Entry.save_many([made(app, 0)])
    assert channel.wait(5)
    Entry.delete_many(["entry-0"], app)
    assert channel.wait(5)
    channel.close()


LONE = "half-\ud800"


#: this one has a form in bytes, those that Python reads it from where it may
ESCAPED = "half-\udc80"


WRITES: list[Callable[[Celery, str], Any]] = [
    lambda app, name: hourly(app, name).save(),
    lambda app, name: hourly(app, name).delete(),
    lambda app, name: Entry.save_many([hourly(app, name)]),
    lambda app, name: Entry.delete_many([name], app=app),
    lambda app, name: Entry.delete_many([f"redbeat:{name}"], app=app),
]


def test_name_that_is_not_utf8_is_refused(app: Celery, client: redis.Redis) -> None:
    for call in (*WRITES, lambda app, name: Entry.from_key(name, app=app)):
        with pytest.raises(EntryError, match=r"half-\\ud800.* must be UTF-8"):
            call(app, LONE)
    assert client.keys() == []


def test_key_that_is_not_utf8_can_be_deleted(app: Celery, server: Any, client: redis.Redis) -> None:
    with server.client(db=1, decode_responses=False) as raw:
        raw.hset(b"redbeat:half-\x80", mapping={"definition": "{}", "meta": "{}"})
        hourly(app, ESCAPED).delete()
        assert raw.keys() == []
    with pytest.raises(EntryNotFound):
        Entry.from_key("good", app=app)


@pytest.mark.parametrize("name", [LONE, ESCAPED])
def test_static_entry_with_an_invalid_name_is_skipped_with_a_log_line(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    static = {"task": "echo", "schedule": 0.01}
    app = make_app(beat_schedule={"before": static, name: static, "after": static})
    scheduler = make_scheduler(app)
    assert client.smembers(STATICS) == {"before", "after"}
    assert set(client.zrange(SCHEDULE, 0, -1)) == {"redbeat:before", "redbeat:after"}
    [said] = [record.getMessage() for record in caplog.records if "Skipped" in record.getMessage()]
    assert repr(name) in said
    said.encode()  # a log can hold it
    while not {"before", "after"} <= set(sent_names(broker)):
        scheduler.tick()


@pytest.fixture(params=["mine", "redbeat:mine"])
def lock_key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def app_with_lock_key(make_app: MakeApp, lock_key: str) -> Celery:
    return make_app(redbeat_lock_key=lock_key)


@pytest.mark.parametrize("name", [":schedule", "mine"])
def test_reserved_name_is_refused_by_every_write(
    app_with_lock_key: Celery, client: redis.Redis, name: str
) -> None:
    client.set("redbeat:mine", "a token")
    for write in WRITES:
        with pytest.raises(EntryError, match=f"can't be called '{name}': that key is RedBeat's own"):
            write(app_with_lock_key, name)
    assert (client.keys(), client.get("redbeat:mine")) == (["redbeat:mine"], "a token")


def test_raw_member_with_a_reserved_name_is_quarantined(
    app_with_lock_key: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = make_scheduler(app_with_lock_key)
    client.zadd(SCHEDULE, {"redbeat:mine": 1, "redbeat::calendar:days": 1})
    client.hset("redbeat::calendar:days", "2030-01-01", "")
    write_raw(client, "good")
    scheduler.tick()
    assert scheduler.lock is not None
    assert client.get("redbeat:mine") == scheduler.lock.token
    assert sent_names(broker) == ["good"]
    assert (score_of(client, "mine") or 0) > server_now(client)
    said = [record.getMessage() for record in caplog.records if "Quarantined" in record.getMessage()]
    for name, line in zip((":calendar:days", "mine"), sorted(said), strict=True):
        assert f"invalid entry {name} (left unchanged): a key of RedBeat's own is not an entry" in line


def test_register_schedule_refuses_a_class_that_is_not_a_schedule() -> None:
    with pytest.raises(ConfigurationError, match=r"'own' must be a subclass of .*BaseSchedule, got .*dict"):
        register_schedule("own", dict, vars, dict)  # type: ignore[arg-type]
    assert "own" not in KINDS


def test_registered_schedule_with_is_due_alone_is_refused(app: Celery) -> None:
    class Own(BaseSchedule):
        def is_due(self, last_run_at: datetime) -> schedstate:
            return schedstate(True, 60.0)

    register_schedule("own", Own, lambda _own: {}, lambda _given: Own())
    with pytest.raises(EntryError, match=r"remaining_estimate\(self, last_run_at\)"):
        hourly(app, schedule=Own()).save()
