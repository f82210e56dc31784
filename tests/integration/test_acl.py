"""The ACL users that the documentation describes can do all that RedBeat does, and little else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.errors import StoreCorrupt, StoreRefused
from redbeat.schedulers import get_redis
from redbeat.status import read_status
from redbeat.wake import WakeChannel
from tests.support.schedule import SCHEDULE, write_raw
from tests.support.servers import Server
from tests.support.ticks import leader, make_due, memory_app, take_messages

RECIPES = Path(__file__).parents[2] / "docs" / "recipes"
PASSWORD = "p@ss:w/rd#%"
USERS = ("beat", "writer", "beat_exactly_once", "beat_and_broker", "status")
AppOf = Callable[..., Celery]


def documented_rules(user: str) -> list[str]:
    """The words of the documented user, the example's password left out."""
    line = " ".join((RECIPES / f"{user}.acl").read_text("utf-8").split())
    start = f"user {user.partition('_')[0]} on >secret "
    assert line.startswith(start)
    return ["reset", "on", *line.removeprefix(start).split()]


@pytest.fixture
def client(server: Server) -> Iterator[redis.Redis]:
    """An administrator on the database of the schedule: the documented users have no right to SELECT."""
    with server.client(db=0) as connected:
        yield connected


@pytest.fixture
def app_of(server: Server) -> AppOf:
    """Apps that connect as one of the users."""
    with server.client() as admin:
        for user in USERS:
            admin.execute_command("ACL SETUSER", user, *documented_rules(user), f">{PASSWORD}")
        admin.acl_log_reset()

    def make(user: str, **settings: Any) -> Celery:
        options = {"username": user, "password": PASSWORD}
        return memory_app(redbeat_redis_url=server.url(0), redbeat_redis_options=options, **settings)

    return make


def refusals(server: Server) -> list[tuple[str, str]]:
    """(user, what) of everything refused, except that a client may not introduce itself: it need not."""
    with server.client() as admin:
        log: Any = admin.acl_log()
    entries = [(entry["username"], entry["object"]) for entry in log]
    return [(user, what) for user, what in entries if not what.startswith("client")]


def test_the_writer_may_do_all_that_applications_do(server: Server, app_of: AppOf) -> None:
    app = app_of("writer")
    entry = RedBeatSchedulerEntry("report", "tasks.report", 60, app=app).save()
    entry.save()
    entry.reschedule()
    next(entry)
    assert entry.rank == 0
    assert RedBeatSchedulerEntry.from_key("redbeat:report", app=app).total_run_count == 1
    entry.delete()
    for args in ([], [1], [1]):
        entries = [RedBeatSchedulerEntry(name, "tasks.report", 60, args, app=app) for name in ("a", "b")]
        RedBeatSchedulerEntry.save_many(entries)
    assert RedBeatSchedulerEntry.delete_many(["a", "b", "c"], app) == 2
    Calendar("holidays", ["2026-12-25"], app=app).save()
    RedBeatSchedulerEntry("report", "tasks.report", 60, exclude="holidays", app=app).save()
    Calendar.load("holidays", app).save().delete()
    assert refusals(server) == []


@pytest.mark.parametrize("lock", [{}, {"redbeat_lock_key": None}], ids=["with a lock", "without a lock"])
def test_the_beat_may_do_all_that_beat_does(
    server: Server, client: redis.Redis, app_of: AppOf, lock: dict[str, Any]
) -> None:
    statics = {"old": {"task": "tasks.report", "schedule": 60}}
    with leader(app_of("beat", beat_schedule=statics, **lock)):
        pass
    Calendar("holidays", app=app_of("writer")).save()
    RedBeatSchedulerEntry("report", "tasks.report", 60, exclude="holidays", app=app_of("writer")).save()
    write_raw(client, "broken", "{oops")
    client.zadd(SCHEDULE, {"redbeat:gone": 1, "bare": 1})
    app = app_of("beat", beat_schedule={"new": {"task": "tasks.report", "schedule": 60}}, **lock)
    channel = WakeChannel(get_redis(app), "redbeat::wake")
    assert not channel.wait(0.1), "it has subscribed now"
    with leader(app) as scheduler:
        assert channel.wait(5), "the statics wake others"
        make_due(app, "report", "new")
        scheduler.tick()
        assert set(scheduler.schedule) <= {"report", "new"}
        scheduler.store.head_score()
    channel.close()
    assert {message.entry for message in take_messages(app)} == {"report", "new"}
    assert client.hexists("redbeat:broken", "error")
    assert not client.exists("redbeat:old")
    assert refusals(server) == []


@pytest.mark.parametrize("database", [0, 3])
def test_the_beat_that_delivers_exactly_once_may_push_to_the_documented_queue(
    server: Server, client: redis.Redis, app_of: AppOf, database: int
) -> None:
    app = app_of("beat_exactly_once", broker_url=server.url(database), task_default_queue="celery")
    with leader(app) as scheduler:
        assert ". delivery -> exactly once" in scheduler.info
        for name, options in (("report", {}), ("urgent", {"priority": 9})):
            RedBeatSchedulerEntry(name, "tasks.report", 10**10, options=options, app=app).save()
            make_due(app, name)
        scheduler.tick()
    assert {message.entry for message in take_messages(app)} == {"report", "urgent"}
    assert refusals(server) == []


def test_one_user_may_do_what_the_schedule_and_the_broker_take(
    server: Server, client: redis.Redis, app_of: AppOf
) -> None:
    url = f"redis://beat_and_broker:{quote(PASSWORD, safe='')}@127.0.0.1:{server.port}/0"
    app = app_of("beat_and_broker", broker_url=url, task_default_queue="celery")
    with leader(app) as scheduler:
        assert ". delivery -> exactly once" in scheduler.info
        RedBeatSchedulerEntry("report", "tasks.report", 10**10, app=app).save()
        make_due(app, "report")
        scheduler.tick()
    assert refusals(server) == []
    assert client.llen("celery") == 1


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "command",
    [
        "FLUSHALL",
        "KEYS *",
        "GET other",
        "SET other 1",
        "CONFIG SET maxmemory 1",
        "PUBLISH other x",
        "SHUTDOWN",
    ],
)
def test_neither_may_touch_anything_else(server: Server, app_of: AppOf, user: str, command: str) -> None:
    client = get_redis(app_of(user))
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command.split())


def test_a_probe_may_ask_who_leads(server: Server, client: redis.Redis, app_of: AppOf) -> None:
    probe = app_of("status")
    assert RedBeatScheduler.leader(probe) is None
    with leader(app_of("beat")) as scheduler:
        write_raw(client, "entry")
        found = read_status(probe)
        assert found.leader is not None
        assert found.leader.token == scheduler.lock.token
        assert found.last_tick is not None
        assert found.backlog == 1
    assert refusals(server) == []


@pytest.mark.parametrize(
    "command",
    [
        "HGET redbeat:report definition",
        "SET redbeat::lock 1",
        "DEL redbeat::lock",
        "ZADD redbeat::schedule 1 a",
    ],
)
def test_a_probe_may_neither_read_entries_nor_write(app_of: AppOf, command: str) -> None:
    client = get_redis(app_of("status"))
    with pytest.raises(redis.exceptions.NoPermissionError):
        client.execute_command(*command.split())
    with pytest.raises(redis.exceptions.ResponseError):
        client.eval(f"return redis.call({', '.join(map(repr, command.split()))})", 0)


def test_a_probe_names_a_key_of_another_type(client: redis.Redis, app_of: AppOf) -> None:
    client.hset("redbeat::lock", "a", "b")
    with pytest.raises(StoreCorrupt, match="redbeat::lock"):
        RedBeatScheduler.leader(app_of("status"))


def test_the_writer_cannot_run_a_beat(app_of: AppOf) -> None:
    with pytest.raises(StoreRefused, match="refused"), leader(app_of("writer")) as scheduler:
        scheduler.tick()


def test_a_beat_that_may_not_read_calendars_runs_what_needs_none(
    server: Server, client: redis.Redis, app_of: AppOf
) -> None:
    Calendar("holidays", app=app_of("writer")).save()
    for name, policy in (("report", {}), ("seldom", {"exclude": "holidays"})):
        RedBeatSchedulerEntry(name, "tasks.report", 60, app=app_of("writer"), **policy).save()
    with server.client() as admin:
        admin.execute_command("ACL SETUSER", "beat", "-hgetall")
    app = app_of("beat")
    with leader(app) as scheduler:
        make_due(app, "report", "seldom")
        scheduler.tick()
    assert [message.entry for message in take_messages(app)] == ["report"]
    assert "can't be read" in str(client.hget("redbeat:seldom", "error"))


def test_a_user_that_may_not_read_the_configuration_is_warned_and_starts(
    server: Server, app_of: AppOf, caplog: pytest.LogCaptureFixture
) -> None:
    with server.client() as admin:
        admin.execute_command("ACL SETUSER", "beat", "-config")
    RedBeatScheduler(app_of("beat"))
    assert "CONFIG can't be read" in caplog.text


def test_the_beat_may_ask_who_leads_too(app_of: AppOf) -> None:
    app = app_of("beat")
    with leader(app):
        assert read_status(app).leader is not None
