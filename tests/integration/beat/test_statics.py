"""The entries of ``beat_schedule``: stored by the leader, kept in step with the configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import redis
from celery.schedules import crontab

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.config import ensure_conf
from redbeat.errors import LockLost
from redbeat.store.owners import StaticNames, read_static_names
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.fidelity import noting_round_trips
from tests.support.logs import errors_in, logged
from tests.support.schedule import (
    LOCK,
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

HOURLY = {"task": "echo", "schedule": 3600}
OWNERS = "redbeat::static-owners"


def test_statics_are_stored_at_start(make_scheduler: MakeScheduler, client: redis.Redis) -> None:
    daily = {"task": "echo", "schedule": crontab("30", "4"), "args": (1,), "options": {"queue": "x"}}
    scheduler = make_scheduler(beat_schedule={"hourly": HOURLY, "daily": daily})
    assert client.smembers(STATICS) == {"hourly", "daily"}
    entry = Entry.get("daily", scheduler.app)
    assert (entry.schedule, entry.args, entry.options) == (crontab("30", "4"), [1], {"queue": "x"})
    assert score_of(client, "hourly") == pytest.approx(server_now(client) + 3600, abs=5)


def test_paused_static_stays_paused_when_another_beat_leads(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    first = make_scheduler(beat_schedule={"paused": HOURLY, "enabled": HOURLY})
    for name in ("paused", "enabled"):
        Entry.get(name, first.app).pause("the printer is broken", by="ada")
    first.close()
    changed = {**HOURLY, "args": ["new"]}
    scheduler = make_scheduler(beat_schedule={"paused": changed, "enabled": {**HOURLY, "enabled": True}})
    paused = Entry.get("paused", scheduler.app)
    assert (paused.paused, paused.enabled, paused.args) == (True, False, ["new"])
    assert (paused.pause_note, paused.paused_by) == ("the printer is broken", "ada")
    assert Entry.get("enabled", scheduler.app).enabled, "the code says so"
    paused.resume()
    scheduler.close()
    assert Entry.get("paused", make_scheduler(beat_schedule={"paused": changed}).app).enabled


class Storing(RedBeatScheduler):
    def setup_schedule(self) -> None:
        super().setup_schedule()
        self.update_from_dict({"own": HOURLY})


def test_only_the_leader_stores_statics(make_scheduler: MakeScheduler, client: redis.Redis) -> None:
    leader = make_scheduler(beat_schedule={"old": HOURLY})
    standby = make_scheduler(scheduler=Storing, beat_schedule={"new": HOURLY})
    assert (client.smembers(STATICS), client.zrange(SCHEDULE, 0, -1)) == ({"old"}, ["redbeat:old"])
    leader.close()
    standby.stand_for_leader()
    assert client.smembers(STATICS) == {"new"}
    assert names_in(client) == ["new", "own"]


def test_scheduler_and_its_banner_write_nothing(make_app: MakeApp, client: redis.Redis) -> None:
    for settings in ({}, {"redbeat_lock_key": None}):
        app = make_app(beat_schedule={"hourly": HOURLY}, **settings)
        banner = RedBeatScheduler(app, lazy=True).info
        assert "    . redis -> " in banner
        assert ("    . lock -> none" in banner) is bool(settings)
    RedBeatScheduler(make_app(beat_schedule={"hourly": HOURLY})).close()
    assert client.keys() == []


def test_changed_static_keeps_its_last_run_and_count(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    make_scheduler(redbeat_lock_key=None, beat_schedule={"hourly": HOURLY})
    ran_at = meta_json(datetime(2024, 5, 6, 7, 8, 9), 12)
    client.hset("redbeat:hourly", "meta", ran_at)
    changed = {"task": "other", "schedule": 600, "kwargs": {"x": 1}}
    began = server_now(client)
    make_scheduler(redbeat_lock_key=None, beat_schedule={"hourly": changed})
    definition = field(client, "hourly", "definition")
    assert (definition["task"], definition["kwargs"]) == ("other", {"x": 1})
    assert client.hget("redbeat:hourly", "meta") == ran_at
    assert began < (score_of(client, "hourly") or 0) <= server_now(client) + 600


def test_unchanged_static_is_left_alone_and_its_missed_run_sent(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    make_scheduler(redbeat_lock_key=None, beat_schedule={"hourly": HOURLY})
    client.zadd(SCHEDULE, {"redbeat:hourly": 1_700_000_000})
    before = client.hgetall("redbeat:hourly")
    again = make_scheduler(redbeat_lock_key=None, beat_schedule={"hourly": HOURLY})
    assert (client.hgetall("redbeat:hourly"), score_of(client, "hourly")) == (before, 1_700_000_000)
    again.tick()
    assert sent_names(broker) == ["hourly"]


def test_static_that_leaves_the_configuration_is_removed(
    make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="celery.beat")
    make_scheduler(redbeat_lock_key=None, beat_schedule={"stays": HOURLY, "leaves": HOURLY})
    write_raw(client, "dynamic", score=4e9)
    make_scheduler(redbeat_lock_key=None, beat_schedule={"stays": HOURLY})
    assert set(client.keys()) == {"redbeat:dynamic", "redbeat:stays", SCHEDULE, STATICS, OWNERS}
    assert names_in(client) == ["dynamic", "stays"]
    assert client.smembers(STATICS) == {"stays"}
    assert "beat: Removing old static schedule entry 'leaves'." in logged(caplog, logging.INFO)


def test_key_of_redbeat_is_never_removed_as_a_static(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    Calendar("holidays", ["2026-12-25"], app=make_scheduler(redbeat_lock_key=None).app).save()
    client.sadd(STATICS, ":schedule", ":calendar:holidays", ":lock", "")
    make_scheduler(redbeat_lock_key=None, beat_schedule={"stays": HOURLY})
    assert set(client.keys()) == {"redbeat:stays", "redbeat::calendar:holidays", SCHEDULE, STATICS, OWNERS}


def test_static_with_a_changed_policy_is_stored_again(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    fields = {"task": "echo", "schedule": crontab("30", "7")}
    due = []
    for policy in ({}, {"timezone": "Asia/Tokyo"}, {"timezone": "Asia/Tokyo", "jitter": 0}, {}):
        make_scheduler(redbeat_lock_key=None, beat_schedule={"daily": {**fields, **policy}})
        due.append(score_of(client, "daily"))
    assert due[0] == due[3] != due[1] == due[2]
    assert client.hget("redbeat:daily", "policy") is None


BAD: dict[Any, Any] = {
    "no-schedule": {"task": "echo"},
    "no-task": {"schedule": 60},
    "zero": {"task": "echo", "schedule": 0},
    "unknown": {"task": "echo", "schedule": 60, "colour": "red"},
    "no-dict": "echo",
    "no-json": {"task": "echo", "schedule": 60, "args": (object(),)},
    None: HOURLY,
    "": HOURLY,
}


def test_invalid_statics_are_logged_and_never_removed(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="celery.beat")
    make_scheduler(redbeat_lock_key=None, beat_schedule={"zero": HOURLY, "no-task": HOURLY})
    client.set("redbeat:string", "in the way")
    schedule = {**BAD, "string": HOURLY, "good": HOURLY, 7: HOURLY}
    for _ in range(2):
        caplog.clear()
        scheduler = make_scheduler(redbeat_lock_key=None, beat_schedule=schedule)
        errors = errors_in(caplog)
        assert len(errors) == len(BAD) + 1, errors
        for name in (*BAD, "string"):
            assert any(f"the entry {str(name)!r}" in error for error in errors), name
        assert not any("Removing" in message for message in logged(caplog, logging.INFO))
    assert field(client, "zero", "definition")["schedule"]["every"] == 3600  # as it was when it was good
    assert names_in(client) == ["7", "good", "no-task", "zero"]
    client.zadd(SCHEDULE, {"redbeat:good": 1})
    scheduler.tick()
    assert sent_names(broker) == ["good"]


def test_invalid_definition_of_a_static_is_replaced_at_start(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    write_raw(client, "hourly", "{oops", score=1, meta=meta_json(datetime(2024, 1, 1), 5))
    make_scheduler(redbeat_lock_key=None, beat_schedule={"hourly": HOURLY})
    assert field(client, "hourly", "definition")["task"] == "echo"
    assert field(client, "hourly", "meta")["total_run_count"] == 5


def test_incomplete_static_is_completed_at_start(make_scheduler: MakeScheduler, client: redis.Redis) -> None:
    statics = {"off-schedule": HOURLY, "without-meta": HOURLY, "with-error": HOURLY}
    scheduler = make_scheduler(redbeat_lock_key=None, beat_schedule=statics)
    client.zrem(SCHEDULE, "redbeat:off-schedule")
    client.hdel("redbeat:without-meta", "meta")
    client.hset("redbeat:with-error", "error", '{"reason": "was quarantined"}')
    make_scheduler(redbeat_lock_key=None, beat_schedule=statics)
    for name in statics:
        assert (score_of(client, name) or 0) > server_now(client)
        assert not client.hexists(f"redbeat:{name}", "error")
        assert Entry.get(name, scheduler.app).last_run_at


def test_backend_cleanup_follows_the_result_backend(
    make_scheduler: MakeScheduler, client: redis.Redis, server: Server
) -> None:
    name = "celery.backend_cleanup"
    wants_it = {"result_backend": "file:///tmp"}
    for settings, is_there in (
        ({}, False),
        (wants_it, True),
        ({"result_backend": server.url(0)}, False),
        (wants_it, True),
        ({**wants_it, "result_expires": None}, False),
    ):
        make_scheduler(redbeat_lock_key=None, **settings)
        assert (client.smembers(STATICS) == {name}) is is_there, settings
        assert (score_of(client, name) is not None) is is_there, settings
    make_scheduler(redbeat_lock_key=None, beat_schedule={name: HOURLY}, **wants_it)
    assert field(client, name, "definition")["task"] == "echo"  # the user's own goes first


def test_restart_writes_no_entry_and_takes_few_round_trips(
    make_app: MakeApp, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = {f"static-{number}": HOURLY for number in range(2000)}
    trips = {}
    for start in ("cold", "warm"):
        app = make_app(beat_schedule=schedule, redbeat_lock_key=None)
        with noting_round_trips(monkeypatch) as sent, monitoring(server, with_scripts=True) as everything:
            RedBeatScheduler(app).close()
        # EVAL: a script that the server doesn't know yet, as nobody else has sent it before
        of_connections = {"HELLO", "SELECT", "CLIENT", "CONFIG"}
        trips[start] = len([name for name in sent if name not in {*of_connections, "EVAL"}])
    print(f"2,000 statics: {trips} round trips")
    assert trips["warm"] <= 20
    assert trips["cold"] <= 35
    names = {command.split()[0].upper() for command in everything}
    assert not {"HSET", "ZADD", "HDEL", "DEL", "ZREM"} & names


def test_beat_that_lost_the_lock_as_it_starts_stores_no_statics(
    make_scheduler: MakeScheduler, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_scheduler(beat_schedule={"theirs": HOURLY}).close()

    def lose_the_lock(store: Store) -> StaticNames:
        client.set(LOCK, "another beat")
        return read_static_names(store)

    monkeypatch.setattr("redbeat.scheduler.startup.read_static_names", lose_the_lock)
    with pytest.raises(LockLost):
        make_scheduler(beat_schedule={"ours": HOURLY})
    assert (names_in(client), client.smembers(STATICS)) == (["theirs"], {"theirs"})


# -- several applications on one prefix: none removes what is another's


Start = Callable[..., None]


@pytest.fixture
def start(make_app: MakeApp) -> Start:
    """Start a beat of the app called `main`, whose beat_schedule has these names, and end it."""

    def starting(main: str | None, *names: str, **settings: Any) -> None:
        app = make_app(beat_schedule=dict.fromkeys(names, HOURLY), redbeat_lock_key=None, **settings)
        app.main = main
        app.redbeat_conf = None
        ensure_conf(app)
        RedBeatScheduler(app).close()

    return starting


def names_in(client: redis.Redis) -> list[str]:
    return sorted(key.removeprefix("redbeat:") for key in client.zrange(SCHEDULE, 0, -1))


def test_two_apps_on_one_prefix_keep_each_others_statics(start: Start, client: redis.Redis) -> None:
    for _ in range(2):
        start("a", "a1", "a2")
        start("b", "b1", "b2")
        assert names_in(client) == ["a1", "a2", "b1", "b2"]
    start("a", "a2")
    assert names_in(client) == ["a2", "b1", "b2"]
    assert client.smembers(STATICS) == {"a2", "b1", "b2"}  # what celery-redbeat 2.x reads
    start("b")
    assert names_in(client) == ["a2"]
    assert client.smembers(OWNERS) == {"a\ta2"}


def test_static_of_two_apps_is_removed_with_the_last(start: Start, client: redis.Redis) -> None:
    start("a", "shared", "a1")
    start("b", "shared")
    start("a", "a1")
    assert names_in(client) == ["a1", "shared"]
    start("b")
    assert names_in(client) == ["a1"]
    assert client.smembers(STATICS) == {"a1"}


def test_static_without_an_owner_is_adopted_or_removed(start: Start, client: redis.Redis) -> None:
    for name in ("kept", "left"):
        write_raw(client, name, score=4e9)
    client.sadd(STATICS, "kept", "left")  # as celery-redbeat 2.x leaves it
    start("a", "kept")
    assert names_in(client) == ["kept"]
    assert client.smembers(OWNERS) == {"a\tkept"}


def test_app_takes_over_statics_of_its_former_name(start: Start, client: redis.Redis) -> None:
    start("old", "stays", "leaves")
    start("new", "stays")
    assert names_in(client) == ["leaves", "stays"]  # it may be another app's
    start("new", "stays", redbeat_statics_owner=["new", "old"])
    assert names_in(client) == ["stays"]
    assert client.smembers(OWNERS) == {"new\tstays"}
    start("new")
    assert names_in(client) == []


def test_static_that_another_program_made_anew_is_left_alone(start: Start, client: redis.Redis) -> None:
    start("a", "one", "two")
    client.srem(STATICS, "one")  # celery-redbeat 2.x has removed it; then somebody saved one of that name
    start("a", "two")
    assert names_in(client) == ["one", "two"]
    assert client.smembers(OWNERS) == {"a\ttwo"}


def test_static_taken_into_a_file_stays(start: Start, client: redis.Redis) -> None:
    start("a", "one", "two")
    client.hset("redbeat:one", "owner", "billing")
    start("a")
    assert names_in(client) == ["one"]
    assert not client.exists(STATICS, OWNERS)
