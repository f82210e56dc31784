"""What celery-redbeat 2.4.2 writes, we read and run, and the other way round: every kind of entry."""

from __future__ import annotations

import base64
import json
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.store.entries import read_entry
from redbeat.store.records import mark_of
from redbeat.store.store import Store
from tests.contract import kinds
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, STATICS, field, messages, server_now
from tests.support.servers import Server
from tests.support.ticks import leader

Described = dict[str, dict[str, Any]]
Legacy = Callable[..., Described]


DRIVER = Path(__file__).with_name("legacy.py")


@pytest.fixture
def legacy(redbeat2_python: Path, server: Server) -> Legacy:
    """Call `legacy.py`: legacy("save"), legacy("load", "interval-int"); returns name to description."""

    def call(command: str, *names: str) -> dict[str, dict[str, Any]]:
        words = [redbeat2_python, DRIVER, server.url(1), command, *names]
        env = {"PATH": "/usr/bin:/bin"}  # an inherited PYTHONPATH would lead to our own redbeat
        done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        described: dict[str, dict[str, Any]] = json.loads(done.stdout)
        failed = {name: entry for name, entry in described.items() if "error" in entry}
        assert not failed
        return described

    return call


ENABLED = {name for name, fields in kinds.entries().items() if fields.get("enabled", True)}
DEFINITION_KEYS = {"name", "task", "schedule", "args", "kwargs", "options", "enabled"}
SCHEDULE_KEYS = {
    "interval": {"every", "relative"},
    "crontab": set(kinds.CRONTAB_FIELDS),
    "rrule": {*kinds.RRULE_FIELDS, "dtstart_tz", "until_tz"},
    "weekday": {"wkday", "n"},
    "datetime": {*("year", "month", "day", "hour", "minute", "second", "microsecond"), "timezone"},
}


@pytest.fixture
def server(valkey: Server) -> Server:
    """What is written and read is no matter of its kind."""
    return valkey


def save_all(app: Celery) -> Described:
    made = {name: RedBeatSchedulerEntry(name, app=app, **fields) for name, fields in kinds.entries().items()}
    return {name: kinds.describe(entry.save()) for name, entry in made.items()}


def described(app: Celery, name: str) -> dict[str, Any]:
    return kinds.describe(RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app))


def load_all(app: Celery) -> Described:
    return {name: described(app, name) for name in kinds.entries()}


def arguments(broker: redis.Redis) -> set[str]:
    """The arguments of the messages on the queue, as their JSON, each once."""
    bodies = [json.loads(base64.b64decode(message["body"])) for message in messages(broker)]
    return {json.dumps(body[:2]) for body in bodies}


def runs_sent(server: Server) -> Counter[str]:
    """How many messages of each entry are on the queue; a short interval may be due again meanwhile."""
    with server.client() as broker:
        return Counter(message["headers"]["redbeat_entry"] for message in messages(broker))


def tick_all(app: Celery) -> None:
    with leader(app) as scheduler:
        while scheduler.tick() == 0:
            pass


def run_counts(client: redis.Redis) -> list[int]:
    return [(field(client, name, "meta") or {}).get("total_run_count", 0) for name in sorted(ENABLED)]


def run_legacy_beat(python: Path, directory: Path, server: Server) -> None:
    """Let a real beat of 2.4.2 send what is due, until each entry has run, some more than once."""
    write_app(directory, "legacy_app", server.url(0), redbeat_redis_url=server.url(1))
    with server.client() as broker, server.client(db=1) as client:
        counts = run_counts(client)

        def has_run_all() -> bool:
            runs = [counted - before for counted, before in zip(run_counts(client), counts, strict=True)]
            return min(runs) > 0 and broker.llen("celery") >= sum(runs)  # it counts, and sends then

        with celery_beat(directory, "legacy_app", python=python) as beat:
            eventually(lambda: has_run_all() or not beat.is_running)
            assert beat.is_running, beat.output()


# -- from 2.4.2 to us


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("then", [[], ["next"], ["reschedule"], ["next", "next", "reschedule"]], ids=str)
def test_we_load_what_it_saved_just_as_it_does_itself(legacy: Legacy, app: Celery, then: list[str]) -> None:
    for command in ["save", *then]:
        legacy(command)
    assert load_all(app) == legacy("load")


def test_we_run_what_it_saved(legacy: Legacy, app: Celery, client: redis.Redis, server: Server) -> None:
    legacy("save")
    before = legacy("load")
    began = server_now(client)
    tick_all(app)
    sent = runs_sent(server)
    assert sent.keys() == ENABLED
    assert not any(client.hexists(f"redbeat:{name}", "error") for name in kinds.entries())
    assert not client.zcount(SCHEDULE, "-inf", began)
    after = legacy("load")
    for name in ENABLED:
        counted = after[name].pop("total_run_count") - before[name].pop("total_run_count")
        assert counted == sent[name], name
        assert after[name].pop("last_run_at") > before[name].pop("last_run_at"), name
        assert after[name].items() <= described(app, name).items(), name


def test_its_runs_and_ours_send_the_same_arguments(
    legacy: Legacy, app: Celery, server: Server, redbeat2_python: Path, tmp_path: Path
) -> None:
    legacy("save")
    run_legacy_beat(redbeat2_python, tmp_path, server)
    with server.client() as broker:
        sent_by_it = arguments(broker)
    server.flush()
    save_all(app)
    tick_all(app)
    with server.client() as broker:
        assert arguments(broker) == sent_by_it


# -- from us to 2.4.2


def test_it_loads_what_we_saved_ran_and_rescheduled(legacy: Legacy, app: Celery, client: redis.Redis) -> None:
    saved = save_all(app)
    assert legacy("load") == saved == load_all(app)
    tick_all(app)
    assert legacy("load") == load_all(app)
    for name in kinds.entries():
        RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=app).reschedule()
    assert legacy("load") == load_all(app)
    assert any(score % 1 for _, score in client.zrange(SCHEDULE, 0, -1, withscores=True)), "fractions"


def test_it_runs_what_we_saved_and_leaves_our_own_fields_alone(
    app: Celery, client: redis.Redis, server: Server, redbeat2_python: Path, tmp_path: Path
) -> None:
    before = save_all(app)
    for which in ("policy", "error"):
        client.hset("redbeat:interval-int", which, '{"jitter": 5}')
    run_legacy_beat(redbeat2_python, tmp_path, server)
    ran = {
        name
        for name, one in load_all(app).items()
        if one["total_run_count"] > before[name]["total_run_count"]
    }
    assert ran == ENABLED
    assert client.hget("redbeat:interval-int", "policy") == '{"jitter": 5}'


def test_it_goes_on_with_what_we_ran_and_we_with_what_it_ran(
    legacy: Legacy, app: Celery, server: Server, redbeat2_python: Path, tmp_path: Path
) -> None:
    names = ["interval-int", "crontab-default", "rrule-nth-weekday", "moments"]
    for name in names:
        RedBeatSchedulerEntry(name, app=app, **kinds.entries()[name]).save()
    tick_all(app)
    with server.client(db=1) as client:
        marks = {name: client.hget(f"redbeat:{name}", "meta_crc32") for name in names}
        assert not any(read_entry(Store(app), f"redbeat:{name}")[1].is_meta_foreign for name in names)
        legacy("next", *names)
        for name in names:
            assert client.hget(f"redbeat:{name}", "meta_crc32") == marks[name], "it left it alone"
        assert all(read_entry(Store(app), f"redbeat:{name}")[1].is_meta_foreign for name in names)
        client.zadd(SCHEDULE, {f"redbeat:{name}": 1 for name in names})
    tick_all(app)
    sent = runs_sent(server)
    assert sent.keys() == set(names)
    counts = {name: entry["total_run_count"] for name, entry in legacy("load", *names).items()}
    assert counts == {name: 1 + sent[name] for name in names}
    assert min(counts.values()) >= 3


# -- the JSON itself


def test_the_json_we_write_has_the_known_keys_and_no_others(app: Celery, client: redis.Redis) -> None:
    save_all(app)
    for is_before in (True, False):
        if not is_before:
            tick_all(app)
        for name in kinds.entries():
            stored = client.hgetall(f"redbeat:{name}")
            assert stored.keys() == {"definition", "meta", "meta_crc32"}, name
            assert stored.pop("meta_crc32") == mark_of(stored["meta"])
            assert json.loads(stored["definition"]).keys() == DEFINITION_KEYS
            assert json.loads(stored["meta"]).keys() == {"last_run_at", "total_run_count"}
            for text in stored.values():
                json.loads(text, object_hook=assert_known_keys)


def assert_known_keys(found: dict[str, Any]) -> dict[str, Any]:
    kind = found.get("__type__")
    if kind is not None:
        keys = found.keys() - {"__type__"}
        assert keys <= SCHEDULE_KEYS[kind]
        assert keys >= SCHEDULE_KEYS[kind] - {"dtstart", "until", "dtstart_tz", "until_tz", "n"}
    return found


def test_the_definitions_we_write_are_as_it_writes(legacy: Legacy, app: Celery, client: redis.Redis) -> None:
    def name_utc(found: dict[str, Any]) -> dict[str, Any]:
        return {**found, "timezone": "UTC"} if found.get("timezone") == 0 else found

    def definitions() -> dict[str, Any]:
        texts = {name: client.hget(f"redbeat:{name}", "definition") or "" for name in kinds.entries()}
        return {name: json.loads(text, object_hook=name_utc) for name, text in texts.items()}

    legacy("save")
    written_by_it = definitions()
    client.flushdb()
    save_all(app)
    for name, ours in definitions().items():
        if name not in ("rrule-nth-weekday", "rrule-last-weekdays"):  # it drops the n of MO(+1)
            assert ours == written_by_it[name], name


# -- statics


def test_each_removes_the_statics_that_the_other_stored(
    app: Celery, client: redis.Redis, server: Server, redbeat2_python: Path, tmp_path: Path
) -> None:
    defaults = {"celery.backend_cleanup"}  # it installs that without a result backend, too

    def has_statics(*names: str) -> bool:
        scheduled = {key.removeprefix("redbeat:") for key in client.zrange(SCHEDULE, 0, -1)}
        return client.smembers(STATICS) - defaults == scheduled - defaults == set(names)

    def statics(*names: str) -> dict[str, Any]:
        return {name: {"task": "echo", "schedule": 3600, "args": [name]} for name in names}

    app.conf.beat_schedule = statics("ours", "both")
    with leader(app):
        assert has_statics("ours", "both")
    settings = {"redbeat_redis_url": server.url(1), "beat_schedule": statics("theirs", "both")}
    write_app(tmp_path, "legacy_app", server.url(0), **settings)
    with celery_beat(tmp_path, "legacy_app", python=redbeat2_python) as beat:
        eventually(lambda: has_statics("theirs", "both") or not beat.is_running)
        assert beat.is_running, beat.output()
        beat.wait_for("beat: Acquired lock")  # stopped before it says so, it leaves the lock behind
    app.conf.beat_schedule = statics("both")
    with leader(app):
        assert has_statics("both")
