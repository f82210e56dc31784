"""Going back to celery-redbeat 2.4.2: what it can't run is out of its way, and comes back with version 3."""

from __future__ import annotations

import base64
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, solar

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.diagnostics.downgrade import examine
from redbeat.schedules import cron, rrule
from tests.faults.rounds import IS_LONG
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import call
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, SCHEDULE, STATICS, field, messages, server_now, write_raw
from tests.support.servers import Server
from tests.support.ticks import leader


class Form(NamedTuple):
    """One way in which an entry called ``name`` may stand in Redis; a definition of None: a string."""

    name: str
    definition: str | None
    meta: str | None
    member: str


def interval(**changes: Any) -> dict[str, Any]:
    return {"__type__": "interval", "every": 3600, "relative": False, **changes}


def stored_crontab(**changes: Any) -> dict[str, Any]:
    fields = dict.fromkeys(("minute", "hour", "day_of_week", "day_of_month", "month_of_year"), "*")
    return {"__type__": "crontab", **fields, **changes}


def stored_rrule(**changes: Any) -> dict[str, Any]:
    start = int(time.time()) - 86_400
    return {"__type__": "rrule", "freq": 4, "interval": 1, "dtstart": start, "dtstart_tz": 0, **changes}


def moment(**changes: Any) -> dict[str, Any]:
    parts = {"year": 2025, "month": 3, "day": 4, "hour": 5, "minute": 6, "second": 7, "microsecond": 0}
    return {"__type__": "datetime", **parts, "timezone": "UTC", **changes}


def without(given: dict[str, Any], *fields: str) -> dict[str, Any]:
    return {field: value for field, value in given.items() if field not in fields}


DTSTART, WEEKDAYS = ("dtstart", "dtstart_tz"), [{"__type__": "weekday", "wkday": day} for day in range(7)]
META = {"last_run_at": moment(), "total_run_count": 3}


def form(
    called: str, schedule: Any = None, *, meta: Any = META, member: str = "", drop: str = "", **changes: Any
) -> Form:
    definition = {"name": called, "task": "echo", "args": [called], "kwargs": {}, "options": {}}
    definition |= {"enabled": True, "schedule": interval() if schedule is None else schedule, **changes}
    text = meta if meta is None or isinstance(meta, str) else json.dumps(meta)
    return Form(called, json.dumps(without(definition, drop)), text, member or f"redbeat:{called}")


#: it ends, with all other entries
ENDING = [
    form("cron", {"__type__": "cron", "expression": "0 9 L-1 * *"}),
    form("clocked", {"__type__": "clocked", "clocked_time": moment()}),
    form("solar", {"__type__": "solar", "event": "sunset", "lat": 52.5, "lon": 13.4}),
    form("registered", {"__type__": "mine", "x": 1}),
    form("string", "*/5 * * * *"),
    form("crontab-null", stored_crontab(hour=None)),
    form("crontab-last-day", stored_crontab(day_of_month="L")),
    form("crontab-float", stored_crontab(minute=1.0)),
    form("rrule-datetime", stored_rrule(dtstart=moment())),
    form("rrule-null-interval", stored_rrule(interval=None)),
    form("extra-key", foo=1),
    form("policy-in-definition", jitter=1),
    form("meta-extra", meta={**META, "foo": 1}),
    form("meta-bad", meta="{no json"),
    form("kwargs-crontab-null", kwargs={"when": stored_crontab(hour=None)}),
    Form("bad-json", "{no json", json.dumps(META), "redbeat:bad-json"),
    Form("no-hash", None, None, "redbeat:no-hash"),
]

#: it takes them out of the schedule, and they never run again
DROPPED = [
    form("no-relative", without(interval(), "relative")),
    form("meta-without-last-run", meta={"total_run_count": 5}),
    form("bare-member", member="bare-member"),
    Form("no-definition", "", json.dumps(META), "redbeat:no-definition"),
]

#: it runs them at other times, or too often
OTHERWISE = [
    form("no-name", drop="name"),
    form("other-name", name="another"),
    form("nth-weekday", stored_crontab(day_of_week="mon#1")),
    form("last-weekday", stored_crontab(day_of_week="friL")),
    form("no-dtstart", without(stored_rrule(freq=3, byhour=[0], byminute=[0], bysecond=[0]), *DTSTART)),
]

#: it runs them just as we do
READABLE = [
    form("interval"),
    form("17", name=17),
    form("interval-null-relative", interval(relative=None)),
    form("crontab", stored_crontab()),
    form("crontab-list", stored_crontab(minute=list(range(60)), day_of_week=list(range(7)))),
    form("rrule", stored_rrule()),
    form("rrule-names-its-freq", stored_rrule(freq="HOURLY")),
    form("rrule-bare-weekdays", stored_rrule(byweekday=WEEKDAYS)),
    form("no-options", drop="options"),
    form("no-enabled", drop="enabled"),
    form("no-meta", meta=None),
    form("meta-never", meta={"last_run_at": None, "total_run_count": 0}),
    form("meta-short-moment", meta={**META, "last_run_at": without(moment(), "hour", "second")}),
    form("meta-offset", meta={"last_run_at": moment(timezone=3600.0), "total_run_count": 1}),
    form("kwargs-cron", kwargs={"x": {"__type__": "cron", "expression": "0 9 L * *"}}),
]


DOWNGRADED = "redbeat::downgraded"
DUE = 1.5
#: for how long the beat of 2.4.2 runs
SECONDS = 60 if IS_LONG else 6


def store_forms(app: Celery, client: redis.Redis, forms: list[Form], effect: str = "") -> set[str]:
    """Store entries and check that all have this effect; return their members of the schedule."""
    for form in forms:
        key = f"redbeat:{form.name}"
        if form.definition is None:
            client.set(key, "a string")
        elif form.definition:
            client.hset(key, "definition", form.definition)
        if form.meta is not None:
            client.hset(key, "meta", form.meta)
        client.zadd(SCHEDULE, {form.member: DUE})
    assert effects(app) == ({form.name: effect for form in forms} if effect else {})
    return {form.member for form in forms}


def write_canary(client: redis.Redis, score: float = 0) -> None:
    """An entry that each version sends every second."""
    write_raw(client, "canary", schedule=interval(every=1), args=["canary"], score=score)


def start_legacy(python: Path, directory: Path, server: Server, **settings: Any) -> Process:
    settings |= {"redbeat_redis_url": server.url(1), "beat_max_loop_interval": 1}
    write_app(directory, "legacy_app", server.url(0), **settings)
    return celery_beat(directory, "legacy_app", python=python)


def sent_by(broker: redis.Redis) -> Counter[str]:
    """How often each entry was sent: its first argument is its name."""
    bodies = [json.loads(base64.b64decode(message["body"])) for message in messages(broker)]
    return Counter(body[0][0] for body in bodies if body[0])


def effects(app: Celery) -> dict[str, str]:
    return {one.name: one.trouble.effect for one in examine(app).obstacles}


# -- what 2.4.2 makes of each form


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("form", ENDING, ids=lambda form: form.name)
def test_it_ends_with_what_we_say_ends_it(
    app: Celery, client: redis.Redis, server: Server, redbeat2_python: Path, tmp_path: Path, form: Form
) -> None:
    store_forms(app, client, [form], "ends")
    with start_legacy(redbeat2_python, tmp_path, server) as beat:
        assert beat.wait() != 0


def test_it_drops_what_we_say_it_drops(
    app: Celery, client: redis.Redis, server: Server, redbeat2_python: Path, tmp_path: Path
) -> None:
    members = store_forms(app, client, DROPPED, "drops")
    with start_legacy(redbeat2_python, tmp_path, server) as beat:
        eventually(lambda: not members & set(client.zrange(SCHEDULE, 0, -1)), 30)
        assert beat.is_running, beat.output()


def test_it_runs_otherwise_what_we_say_it_does(
    app: Celery, client: redis.Redis, server: Server, redbeat2_python: Path, tmp_path: Path
) -> None:
    store_forms(app, client, OTHERWISE, "differs")
    write_canary(client)
    with start_legacy(redbeat2_python, tmp_path, server) as beat, server.client() as broker:
        eventually(lambda: sent_by(broker)["canary"] >= 4, 30)
        assert beat.is_running, beat.output()
        sent = sent_by(broker)
    assert sent["no-name"] > 2
    assert sent["other-name"] > 2
    assert client.zscore(SCHEDULE, "redbeat:no-dtstart") == DUE, "it never comes due"


def test_it_runs_what_we_say_nothing_about(
    app: Celery, client: redis.Redis, server: Server, redbeat2_python: Path, tmp_path: Path
) -> None:
    moved = store_forms(app, client, READABLE)
    with start_legacy(redbeat2_python, tmp_path, server) as beat, server.client() as broker:
        eventually(lambda: not moved & set(client.zrangebyscore(SCHEDULE, 0, DUE)) or not beat.is_running, 60)
        assert beat.is_running, beat.output()
        # it moves an entry before it sends
        eventually(lambda: {f"redbeat:{name}" for name in sent_by(broker)} >= moved)


@pytest.mark.slow
def test_a_rule_that_it_counts_from_long_ago_stops_all_others(
    app: Celery, client: redis.Redis, server: Server, redbeat2_python: Path, tmp_path: Path
) -> None:
    rule = {"__type__": "rrule", "freq": 6, "interval": 1, "dtstart": 1_500_000_000, "dtstart_tz": 0}
    write_raw(client, "secondly", schedule=rule, args=["secondly"], score=DUE)
    write_canary(client, DUE + 1)
    assert effects(app) == {"secondly": "stalls"}
    with start_legacy(redbeat2_python, tmp_path, server) as beat, server.client() as broker:
        beat.wait_for("beat: Acquired lock")
        time.sleep(5)  # what this test is about
        assert sent_by(broker)["canary"] <= 1
        beat.kill()
    assert call(app, "downgrade", "--yes").exit_code == 0
    client.delete(LOCK)
    with start_legacy(redbeat2_python, tmp_path, server), server.client() as broker:
        eventually(lambda: sent_by(broker)["canary"] >= 4, 30)


# -- there and back


def fill(app: Celery) -> None:
    """A schedule as people have it: what both versions run, what only we do, policies, pauses, statics."""
    Calendar("holidays", ["2026-12-25"], app=app).save()

    def save(name: str, schedule: Any, **policy: Any) -> Entry:
        return Entry(name, "echo", schedule, [name], app=app, **policy).save()

    save("second", 1)
    save("two-seconds", 2)
    save("ending", 1, end_time="2099-01-01", max_runs=10**6)
    save("hourly", crontab(minute=0))
    save("last-day", cron("0 9 L-1 * *"))
    save("sunset", solar("sunset", 52.5, 13.4))
    save("zoned", "0 4 * * *", timezone="Asia/Tokyo", exclude="holidays").pause(until=None)
    save("rule", rrule("WEEKLY", dtstart=None))
    save("alone", 1, overlap="skip", pause_after_failures=3)


def test_what_2_4_2_cannot_run_is_out_of_its_way_and_back_with_version_3(
    app: Celery, client: redis.Redis, server: Server, redbeat2_python: Path, tmp_path: Path
) -> None:
    app.conf.beat_schedule = {"static-cron": {"task": "echo", "schedule": cron("0 9 LW * *")}}
    fill(app)
    write_raw(client, "bare", score=None)
    client.zadd(SCHEDULE, {"bare": server_now(client) + 3600.25})
    write_raw(client, "quarantined", "no json", score=5.5)
    with leader(app):
        pass  # stores the statics
    # something is due, and was missed for an hour
    late = server_now(client) - 3600.125
    client.zadd(SCHEDULE, {"redbeat:last-day": late, "redbeat:static-cron": late})
    expected = {"last-day", "sunset", "static-cron", "bare", "quarantined"}
    before = {name: client.zscore(SCHEDULE, f"redbeat:{name}") for name in expected - {"bare"}}
    before["bare"] = client.zscore(SCHEDULE, "bare")
    hashes = {name: client.hgetall(f"redbeat:{name}") for name in expected}

    dry = call(app, "downgrade")
    assert dry.exit_code == 0, dry.output
    assert "Nothing was changed" in dry.output
    assert client.exists(DOWNGRADED) == 0
    done = call(app, "downgrade", "--yes", "--json")
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)["taken"]) == expected
    assert client.smembers(STATICS) == set()
    assert call(app, "downgrade", "--yes").exit_code == 0, "twice does no harm"

    statics = {"theirs": {"task": "echo", "schedule": 1, "args": ["theirs"]}}
    with server.client() as broker:
        with start_legacy(redbeat2_python, tmp_path, server, beat_schedule=statics) as beat:
            beat.wait_for("beat: Acquired lock")
            began = time.monotonic()
            eventually(lambda: time.monotonic() > began + SECONDS or not beat.is_running, SECONDS + 30)
            assert beat.is_running, beat.output()
            assert not [line for line in beat.output().splitlines() if "Failed" in line or "Error" in line]
            sent = sent_by(broker)
            for name in ("second", "two-seconds", "ending", "alone", "theirs"):
                least = SECONDS // 4 if name == "two-seconds" else SECONDS // 2
                assert sent[name] >= least, (name, sent)
            assert not expected & sent.keys()
            # meanwhile somebody deletes one, and saves another anew
            client.delete("redbeat:quarantined")
            write_raw(client, "bare", score=4e9)
            assert beat.stop() == 0
        listed = map(json.loads, call(app, "list", "--json").stdout.splitlines())
        away = {"last-day", "sunset", "static-cron"}
        assert {one["name"] for one in listed if one["state"] == "downgraded"} == away
        for name in away:
            assert client.hgetall(f"redbeat:{name}") == hashes[name], name
        with leader(app) as scheduler:
            assert client.exists(DOWNGRADED) == 0
            members = dict(client.zrange(SCHEDULE, 0, -1, withscores=True))
            assert members["redbeat:bare"] == 4e9, "saved since"
            assert "redbeat:quarantined" not in members
            for name in away:
                assert members[f"redbeat:{name}"] == before[name], name
            assert client.smembers(STATICS) >= {"static-cron"}
            sent = sent_by(broker)
            while scheduler.tick() == 0:
                pass
            assert sent_by(broker)["last-day"] == sent["last-day"] + 1, "made up for, as after an outage"
            assert field(client, "last-day", "meta")["total_run_count"] == 1
