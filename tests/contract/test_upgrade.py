"""`doctor --from-2x`, called while a beat of 2.4.2 leads, says what a beat of version 3 then does."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.schedules import rrule
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import call
from tests.support.polling import eventually
from tests.support.schedule import LOCK, SCHEDULE, everything, sent_names, server_now, write_raw
from tests.support.servers import Server

INTERVAL = {"__type__": "interval", "every": 3600, "relative": False}
CRONTAB = {"__type__": "crontab", "minute": "7", "hour": "3", "day_of_week": "*", "day_of_month": "*"}
CRONTAB["month_of_year"] = "*"
RIGHTS_OF_2X = (
    "+del +evalsha +exec +get +hget +hset +hsetnx +multi +pexpire +pttl +sadd +script|load +set +smembers "
    "+srem +zadd +zrangebyscore +zrank +zrem +zscore +select"
)
NEVER_RUN = json.dumps({"last_run_at": None, "total_run_count": 0})


def write(client: redis.Redis, key_name: str, score: float, **fields: Any) -> None:
    """An entry as 2.4.2 has it."""
    usual = {"name": key_name, "task": "echo", "schedule": INTERVAL, "args": [], "kwargs": {}}
    definition = {**usual, "options": {}, "enabled": True, **fields}
    write_raw(client, key_name, definition, score=score, meta=NEVER_RUN)


Fields = dict[str, Any]
REFUSED = {"quarantined": "error", "not-in-3": "warning"}
LAST_DAY = {"__type__": "cron", "expression": "0 9 L * *"}


def soon(now: float) -> float:
    return now + 1800


def late(now: float) -> float:
    return now - 7300


#: name to its score at a time, the fields that differ, and the kinds of findings with their severity
ENTRIES: dict[str, tuple[Callable[[float], float], Fields, dict[str, str]]] = {
    "plain": (soon, {}, {}),
    "late": (late, {}, {"missed": "warning"}),
    "late-crontab": (lambda now: now - 90_000, {"schedule": CRONTAB}, {"missed": "warning"}),
    "zero": (lambda now: 0, {"schedule": CRONTAB}, {"score": "warning"}),
    "disabled": (late, {"enabled": False}, {"disabled": "note"}),
    "negative": (lambda now: -1, {}, {"never-again": "warning"}),
    "milliseconds": (lambda now: now * 1000, {}, {"score": "warning"}),
    "17": (soon, {"name": 17}, {}),
    "queue-of-ours": (late, {"options": {"queue": "redbeat::generation"}}, REFUSED),
    "with-policy": (soon, {}, {"policy": "note"}),
    "large": (soon, {"args": ["x" * 2**21]}, REFUSED),
    "unknown-task": (soon, {"task": "ecco"}, {"unknown-task": "warning"}),
    "broken": (late, {}, {"quarantined": "error", "not-in-2x": "note"}),
    "last-day": (soon, {"schedule": LAST_DAY}, {"not-in-2x": "warning"}),
}


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    made = make_app(redbeat_max_entry_bytes=1_000_000)

    @made.task(name="echo", shared=False)
    def echo() -> None:
        """Do nothing."""

    return made


def findings(app: Celery) -> list[dict[str, Any]]:
    done = call(app, "doctor", "--from-2x", "--json")
    document = json.loads(done.stdout)
    assert done.exit_code == document["exit_code"]
    found: list[dict[str, Any]] = document["findings"]
    return found


def test_what_it_says_of_each_entry_is_what_version_3_does(
    app: Celery, client: redis.Redis, server: Server, redbeat2_python: Path, tmp_path: Path
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "beat_max_loop_interval": 1}
    write_app(tmp_path, "shared_app", server.url(0), **settings)
    write(client, "canary", 1.0)
    with celery_beat(tmp_path, "shared_app", python=redbeat2_python) as old:
        old.wait_for("beat: Acquired lock")
        found = findings(app)  # while it works
        [lock] = [one for one in found if one["kind"] == "lock"]
        assert lock["about"] == LOCK
        assert "A beat of 2.x holds the lock" in lock["problem"]
        eventually(
            lambda: call(app, "status").exit_code == 0, message="a standby is not ready while 2.x leads"
        )
        old.signal(signal.SIGSTOP)  # it would end at some of these, and write itself
        client.delete("redbeat:canary", SCHEDULE)
        now = server_now(client)
        for name, (score_at, fields, _) in ENTRIES.items():
            write(client, name, score_at(now), **fields)
        client.hset("redbeat:with-policy", "policy", '{"jitter": 5}')
        client.hset("redbeat:broken", "definition", "no JSON")
        before = everything(client)
        found = findings(app)
        assert everything(client) == before
        kinds: dict[str, dict[str, str]] = {name: {} for name in ENTRIES}
        for one in found:
            if one["about"] in kinds:
                kinds[one["about"]][one["kind"]] = one["severity"]
        assert kinds == {name: expected for name, (_, _, expected) in ENTRIES.items()}
        [missed] = [one for one in found if one["about"] == "late" and one["kind"] == "missed"]
        assert missed["problem"].startswith("3 runs since ")
        shown = call(app, "doctor", "--from-2x", "--all").stdout
        assert all(f"{name}: " in shown for name, (_, _, expected) in ENTRIES.items() if expected)
        old.kill()
    client.delete(LOCK)
    with server.client() as broker:
        broker.flushdb()
        with celery_beat(tmp_path, "shared_app") as new:
            new.wait_for("beat: Acquired lock")
            eventually(lambda: len(sent_names(broker)) >= 3 or not new.is_running)
            eventually(lambda: client.hexists("redbeat:broken", "error") or not new.is_running)
            new.stop()
        assert sorted(sent_names(broker)) == ["late", "late-crontab", "zero"]


def test_the_lock_is_reported_whoever_holds_it(app: Celery, client: redis.Redis, make_app: MakeApp) -> None:
    def told(of: Celery) -> str:
        [one] = [one for one in findings(of) if one["kind"] == "lock"]
        return str(one["problem"])

    assert told(app) == "No beat holds the lock."
    client.set(LOCK, "0123456789abcdef0123456789abcdef", px=1_500_000)
    assert "expires in 25 min" in told(app)
    client.set(LOCK, "redbeat:3:host:7:1:abc", px=1_500_000)
    assert "version 3 leads already" in told(app)
    assert "no lock" in told(make_app(redbeat_lock_key=None))


def test_entries_in_the_code_whose_zone_2x_loses_are_reported(make_app: MakeApp) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    schedules = {
        "tokyo": crontab(minute=1, nowfun=lambda: datetime.now(ZoneInfo("Asia/Tokyo"))),
        "plain": crontab(minute=1),
        "berlin": rrule("DAILY", dtstart=datetime(2026, 1, 1, tzinfo=berlin)),
        "offset": rrule("DAILY", dtstart=datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=1)))),
        "interval": 60,
    }
    app = make_app(
        timezone="UTC",
        beat_schedule={name: {"task": "echo", "schedule": one} for name, one in schedules.items()},
    )
    told = {one["about"]: one["problem"] for one in findings(app) if one["kind"] == "zone"}
    assert told.keys() == {"tokyo", "berlin"}
    assert "Version 3 runs it by Asia/Tokyo" in told["tokyo"]
    assert "Version 3 runs it by Europe/Berlin" in told["berlin"]


def test_a_user_with_the_rights_of_2x_is_told_all_that_are_missing(
    make_app: MakeApp, server: Server, client: redis.Redis
) -> None:
    client.execute_command(f"ACL SETUSER old reset on >secret ~redbeat:* {RIGHTS_OF_2X}")
    url = server.url(1).replace("redis://", "redis://old:secret@")
    try:
        told = findings(make_app(redbeat_redis_url=url))
    finally:
        client.execute_command("ACL DELUSER old")
    [rights] = [one for one in told if one["kind"] == "rights"]
    assert (rights["severity"], rights["about"]) == ("error", "user old")
    assert {"+eval", "+time", "+hmget", "+zcount", "&redbeat::wake"} <= set(rights["problem"][:-1].split())


class OwnEntry(RedBeatSchedulerEntry):
    def next(self, *_: Any, **__: Any) -> Any: ...


class OwnScheduler(RedBeatScheduler):
    Entry = OwnEntry

    def tick(self, *_: Any, **__: Any) -> float:
        return 1.0

    def populate_heap(self, *_: Any) -> None: ...


def test_overrides_that_are_not_called_are_reported(make_app: MakeApp) -> None:
    app = make_app(beat_scheduler=f"{__name__}:OwnScheduler")
    told = {one["about"].rpartition(".")[2] for one in findings(app) if one["kind"] == "override"}
    assert told == {"populate_heap", "next"}
    for scheduler in ("redbeat", "celery.beat:PersistentScheduler", "missing.module:Scheduler"):
        assert not [one for one in findings(make_app(beat_scheduler=scheduler)) if one["kind"] == "override"]
