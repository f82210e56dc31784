"""What was exported and is imported again is what it was."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule, solar
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.entries.forms import arguments_of
from redbeat.entries.query import scan_entries
from redbeat.errors import EntryError
from redbeat.log.text import sha1_of_text
from redbeat.manifest.format import Declared, read_file, write_file
from redbeat.manifest.plan import apply_plan, commit, make_plan
from redbeat.manifest.transfer import export_entries, plan_import
from redbeat.schedules import clocked, rrule
from redbeat.store.store import Store
from tests.support.schedule import SCHEDULE, meta_json, write_raw
from tests.support.servers import Server
from tests.support.ticks import memory_app
from tests.support.topologies import ClusterTopology

UTC = timezone.utc


YESTERDAY = datetime.now(UTC) - timedelta(days=1)


def dump(client: redis.Redis) -> dict[str, Any]:
    """All entries, calendars and due times, as they stand there."""
    found: dict[str, Any] = {"schedule": dict(client.zrange(SCHEDULE, 0, -1, withscores=True))}
    for key in client.scan_iter():
        kind = client.type(key)
        if kind == "hash":
            found[key] = {name: parsed(name, text) for name, text in client.hgetall(key).items()}
        elif kind == "set":
            found[key] = client.smembers(key)
        elif kind == "list":
            found[key] = client.lrange(key, 0, -1)
    return found


def parsed(name: str, text: str) -> Any:
    """A definition or policy may be written in another order, and with what it left out; a meta may not."""
    if name not in ("definition", "policy"):
        return text
    try:
        value = json.loads(text)
        if name == "definition":
            value = {"args": None, "kwargs": {}, "options": {}, "enabled": True, **value}
            value["args"] = value["args"] or []
            if value["schedule"]["__type__"] == "interval":
                value["schedule"].setdefault("relative", False)
                value["schedule"]["every"] = float(value["schedule"]["every"])
        return json.dumps(value, sort_keys=True)
    except (ValueError, TypeError, KeyError, AttributeError):
        return text


def again(app: Celery, client: redis.Redis, *, is_json: bool = False) -> Declared:
    """Export all, forget all, import all."""
    text = write_file(export_entries(app, with_history=True).declared, is_json=is_json)
    client.flushdb()
    declared = read_file(text)
    commit(plan_import(app, declared))
    return declared


def test_each_entry_gets_its_own_past_back(app: Celery, client: redis.Redis) -> None:
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for number, name in enumerate(("one", "two", "three"), 2):
        entry = Entry(name, "echo", 60, app=app).save()
        entry.backfill(begin, begin + timedelta(minutes=number))

    def pasts() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key in client.keys("redbeat::[a-z]*:*"):
            kind = client.type(key)
            found[key] = client.lrange(key, 0, -1) if kind == "list" else sorted(client.smembers(key))
        return found

    before = pasts()
    assert len(before) == 6
    again(app, client)
    assert pasts() == before


ENTRIES: dict[str, dict[str, Any]] = {
    "plain": {"schedule": schedule(60)},
    "relative": {"schedule": schedule(60, relative=True)},
    "fraction": {"schedule": schedule(timedelta(milliseconds=1500))},
    "daily": {"schedule": crontab("30", "4"), "timezone": "Europe/Berlin"},
    "numbers": {"schedule": crontab(minute=0, hour=[1, 2])},
    "expression": {"schedule": "0 9 LW * *"},
    "once": {"schedule": clocked(datetime(2090, 1, 1, tzinfo=UTC)), "after_finish": "delete"},
    "over": {"schedule": clocked(datetime(2020, 1, 1, tzinfo=UTC))},
    "rule": {"schedule": rrule("WEEKLY", dtstart=datetime(2024, 1, 1, 9, tzinfo=UTC), byhour=[9, 17])},
    "sun": {"schedule": solar("sunrise", 52.5, 13.4)},
    "values": {
        "schedule": 60,
        "args": [1, None, {"x": [1.5]}],
        "kwargs": {"at": datetime(2026, 1, 1, tzinfo=UTC)},
    },
    "options": {"schedule": 60, "options": {"queue": "q", "priority": 3, "headers": {"a": "b"}}},
    "policy": {"schedule": 60, "start_time": datetime(2025, 1, 1, tzinfo=UTC), "jitter": 5, "max_runs": 7},
    "excluded": {"schedule": 60, "exclude": "holidays"},
    "alone": {"schedule": 60, "overlap": "buffer_one", "queue_timeout": 90, "tracks": "workflow"},
    "watched": {
        "schedule": 60,
        "max_runtime": 0.5,
        "revoke_overdue": True,
        "pause_after_failures": 3,
        "resume_after": 3600,
    },
    "told": {"schedule": 60, "ping_url": "https://hc-ping.com/abc-123"},
    "disabled": {"schedule": 60, "enabled": False},
    "ümläut \n: - 'x'": {"schedule": 60},
}


@pytest.mark.parametrize("is_json", [False, True], ids=["yaml", "json"])
def test_export_and_import_lose_nothing(app: Celery, client: redis.Redis, is_json: bool) -> None:
    Calendar("holidays", {"2026-12-25": "Christmas"}, "days off", app=app).save()
    for name, fields in ENTRIES.items():
        Entry(name, "echo", app=app, **fields).save()
    Entry.get("plain", app).pause("maintenance", until=datetime(2090, 1, 1, tzinfo=UTC))
    meta = meta_json(datetime(2026, 1, 2, 3, 4, 5, 678), 99)
    client.hset("redbeat:daily", mapping={"meta": meta, "meta_sha1": sha1_of_text(meta)})
    client.zadd(SCHEDULE, {"redbeat:daily": 1_900_000_000.123457, "redbeat:numbers": 0})
    client.zrem(SCHEDULE, "redbeat:options")
    client.hset("redbeat:sun", "owner", "billing")
    client.sadd("redbeat::owner:billing", "sun")
    Entry.get("relative", app).backfill(YESTERDAY, YESTERDAY + timedelta(seconds=59 * 60))
    client.rpush("redbeat::history:rule", '{"at": 1.50, "due":1}', "no record 'at' all\t")
    client.sadd("redbeat::backfilled:sun", "1.5", "-3")
    before = dump(client)
    declared = again(app, client, is_json=is_json)
    expected = {**before, "schedule": dict(before["schedule"])}
    hidden = expected.pop("redbeat:options")  # out of the schedule, an entry isn't listed
    assert hidden
    assert dump(client) == expected
    assert declared.entries["daily"]["schedule"] == {"cron": "30 4 * * *"}
    assert declared.entries["once"]["schedule"] == {"at": "2090-01-01T00:00:00+00:00"}
    assert (declared.entries["over"]["next_run"], declared.entries["sun"]["owner"]) == ("never", "billing")
    assert "stored" not in {
        field for name in ENTRIES.keys() - {"options"} for field in declared.entries[name]
    }
    assert Entry.get("daily", app).total_run_count == 99
    assert Entry.get("plain", app).pause_note == "maintenance"
    assert len(Entry.get("relative", app).history()) == 20
    assert Entry.get("relative", app).backfill(YESTERDAY, YESTERDAY + timedelta(seconds=59 * 60)) == []


HOURLY = {"__type__": "interval", "every": 3600}


def test_what_words_do_not_reach_is_kept_as_it_stands(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "by-2x", score=4e9, meta=meta_json(datetime(2026, 1, 1), 5))
    write_raw(client, "no-meta", score=5.25)
    write_raw(client, "unknown", {"task": "a", "schedule": HOURLY, "team": "x"}, score=4e9)
    meta = '{"last_run_at": null, "total_run_count": 1, "z": 2}'
    write_raw(client, "unknown-meta", score=4e9, meta=meta)
    client.hset("redbeat:unknown-meta", "meta_sha1", sha1_of_text(meta))
    write_raw(client, "in-schedule", {"task": "a", "schedule": {**HOURLY, "note": 1}}, score=4e9)
    write_raw(client, "moved", {"task": "a", "schedule": HOURLY, "jitter": 3}, score=4e9)
    write_raw(client, "broken", "{oops", score=-7)
    write_raw(client, "no-kind", {"task": "a", "schedule": {"__type__": "lunar"}}, score=1e15)
    write_raw(client, "failing", score=4e9, meta=meta_json(None))
    client.hset("redbeat:failing", "error", json.dumps({"reason": "away", "attempts": 3}))
    client.hset("redbeat:by-2x", "policy", '{"colour": "red"}')
    before = dump(client)
    again(app, client)
    assert dump(client) == before
    again(app, client)
    assert dump(client) == before


SCHEDULES = st.one_of(
    st.builds(
        lambda every: {"__type__": "interval", "every": every}, st.integers(1, 10**9) | st.floats(0.001, 1e6)
    ),
    st.builds(
        lambda minute, hour: {"__type__": "crontab", "minute": minute, "hour": hour},
        st.sampled_from(["*", "0", "*/5", 7, [1, 2], "1-5,9"]),
        st.sampled_from(["*", "3", 4, "9-17", " 5"]),
    ),
    st.just({"__type__": "cron", "expression": "@daily"}),
    st.just({"__type__": "solar", "event": "sunset", "lat": 1, "lon": 2.5}),
    st.just({"__type__": "clocked", "clocked_time": "2090-01-01T00:00:00+02:00"}),
    st.just({"__type__": "rrule", "freq": 3, "dtstart": 1700000000, "byhour": 3, "wkst": None}),
    st.just({"__type__": "nonsense"}),
)


PLAIN = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8)
)


VALUES = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


DEFINITIONS = st.fixed_dictionaries(
    {"task": st.sampled_from(["echo", "a.b"]), "schedule": SCHEDULES},
    optional={
        "name": st.sampled_from(["other", None]),
        "args": st.lists(VALUES, max_size=3) | st.none(),
        "kwargs": st.dictionaries(st.text(max_size=5), VALUES, max_size=3),
        "options": st.dictionaries(st.sampled_from(["queue", "priority", "expires"]), PLAIN),
        "enabled": st.booleans() | st.none() | st.integers(0, 1),
        "surprise": VALUES,
        "timezone": st.sampled_from(["Europe/Berlin", "nowhere"]),
    },
)


POLICIES = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "timezone": st.just("Asia/Tokyo"),
        "max_runs": st.integers(0, 9),
        "paused": st.booleans(),
        "start_time": st.just("2025-01-01"),
        "overlap": st.sampled_from(["skip", "replace", "sometimes"]),
        "max_runtime": st.integers(0, 9),
        "revoke_overdue": st.booleans(),
        "queue_timeout": st.floats(0.5, 9),
        "resume_after": st.integers(1, 9),
        "later": VALUES,
    },
)


METAS = st.none() | st.tuples(
    st.none() | st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1)), st.integers(0, 9)
)


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda name: name[0] != ":"),
        st.tuples(
            DEFINITIONS,
            POLICIES,
            METAS,
            st.sampled_from(["2.x", "RedBeat", "3.0.0.dev0"]),
            st.floats(-2, 4e9) | st.just(float("inf")),
        ),
        max_size=4,
    ),
    st.booleans(),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_stands_there_is_there_again(
    app: Celery, client: redis.Redis, entries: dict[str, Any], is_json: bool
) -> None:
    client.flushdb()
    for name, (definition, policy, meta, writer, score) in entries.items():
        text = meta and meta_json(*meta) + " " * (writer == "3.0.0.dev0")
        write_raw(client, name, definition, score=score, meta=text)
        if text and writer == "RedBeat":
            client.hset(f"redbeat:{name}", "meta_sha1", sha1_of_text(text))
        if policy is not None:
            client.hset(f"redbeat:{name}", "policy", json.dumps(policy))
    before, is_foreign = dump(client), foreign_metas(app)
    again(app, client, is_json=is_json)
    after = dump(client)
    assert foreign_metas(app) == is_foreign
    for found in (before, after):
        for value in found.values():
            if isinstance(value, dict) and value.get("policy") in ("{}", "null"):
                del value["policy"]
    assert after.keys() == before.keys()
    for key in before:
        if key != "schedule" and "surprise" not in str(before[key]):
            same_meaning(app, key, before[key], after[key])
    assert after["schedule"] == before["schedule"]


def foreign_metas(app: Celery) -> dict[str, bool]:
    return {entry.name: entry.stored.is_meta_foreign for entry in scan_entries(Entry, app)}


def same_meaning(app: Celery, key: str, before: dict[str, str], after: dict[str, str]) -> None:
    assert after.get("meta", "").rstrip() == before.get("meta", "").rstrip()
    assert after.get("policy") == before.get("policy")
    one, other = json.loads(before["definition"]), json.loads(after["definition"])
    for definition in (one, other):
        if definition.get("name") is None:
            definition["name"] = key.removeprefix("redbeat:")
        # null: disabled, as in 2.x
        for name, default in (("args", []), ("enabled", False)):
            if definition[name] is None:
                definition[name] = default
        definition.pop("schedule")
        assert definition["enabled"] in (True, False)
    assert json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


@pytest.mark.also_sharded
def test_an_export_of_some(app: Celery) -> None:
    for name in ("a1", "a2", "b1"):
        Entry(name, "echo", 60, app=app).save()
    text = "entries: {b1: {task: echo, schedule: 60}}"
    apply_plan(lambda: make_plan(app, read_file(text), "billing"))
    assert list(export_entries(app, match="a*").declared.entries) == ["a1", "a2"]
    mine = export_entries(app, owner="billing").declared
    assert (mine.owner, list(mine.entries), "owner" in mine.entries["b1"]) == ("billing", ["b1"], False)
    assert not make_plan(app, read_file(write_file(mine)), "billing").difference


def test_records_are_exported_where_they_are_asked_for_and_a_file_without_any_leaves_them_as_they_are(
    app: Celery, client: redis.Redis
) -> None:
    Entry("one", "echo", 60, app=app).save()
    client.rpush("redbeat::history:one", '{"at":2,"due":1}')
    client.sadd("redbeat::backfilled:one", "1")
    declared = export_entries(app).declared
    assert not {"history", "backfilled"} & declared.entries["one"].keys()
    commit(plan_import(app, declared, replace_existing=True))
    assert client.exists("redbeat::history:one", "redbeat::backfilled:one") == 2
    with_records = export_entries(app, with_history=True).declared
    client.rpush("redbeat::history:one", '{"at":4,"due":3}')
    client.sadd("redbeat::backfilled:one", "3")
    commit(plan_import(app, with_records, replace_existing=True))
    assert client.lrange("redbeat::history:one", 0, -1) == ['{"at":2,"due":1}']
    assert client.smembers("redbeat::backfilled:one") == {"1"}


def test_records_that_are_no_text_come_back_as_they_were(
    app: Celery, client: redis.Redis, server: Server
) -> None:
    Entry("one", "echo", 60, app=app).save()
    client.rpush("redbeat::history:one", b"\xff", "ü")
    again(app, client)
    with server.client(db=1, decode_responses=False) as raw:
        assert raw.lrange("redbeat::history:one", 0, -1) == [b"\xff", "ü".encode()]


def test_records_under_a_key_of_another_kind_are_left_out(app: Celery, client: redis.Redis) -> None:
    Entry("one", "echo", 60, app=app).save()
    client.set("redbeat::history:one", "what's this?")
    client.sadd("redbeat::backfilled:one", "1")
    item = export_entries(app, with_history=True).declared.entries["one"]
    assert ("history" in item, item["backfilled"]) == (False, ["1"])


def test_halves_of_characters_and_names_that_are_no_text(app: Celery, client: redis.Redis) -> None:
    write_raw(
        client, "halves", '{"task": "a", "schedule": {"__type__": "interval", "every": 60}, "x": "\\ud800"}'
    )
    before = dump(client)
    client.zadd(SCHEDULE, {b"redbeat:\xff": 1, "redbeat:gone": 1})
    client.hset(b"redbeat:\xff", "definition", "{}")
    exported = export_entries(app)
    reasons = sorted(reason.split(": ")[1] for reason in exported.skipped)
    assert reasons == ["its hash is gone.", "its name is no UTF-8."]
    text = write_file(exported.declared)
    assert text[0] == "{"  # YAML knows no halves of characters
    client.flushdb()
    commit(plan_import(app, read_file(text)))
    assert dump(client) == before


@pytest.mark.also_sharded
def test_an_exported_entry_is_a_form_too(app: Celery) -> None:
    entry = Entry("a", "echo", "0 9 L-1 * *", app=app, timezone="Asia/Kathmandu", jitter=90).save()
    document = json.loads(write_file(export_entries(app).declared, is_json=True))["entries"]["a"]
    again = Entry.from_dict({"name": "a", **document, "owner": "billing"}, app)
    assert arguments_of(again) == arguments_of(entry)
    with pytest.raises(EntryError, match="there is no field 'stored'"):
        Entry.from_dict({"name": "a", **document, "stored": {}}, app)


def test_entries_whose_times_are_moved_meanwhile_are_all_in_an_export(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Entry.save_many([Entry(f"entry-{number}", "echo", 86_400 + number, app=app) for number in range(2000)])
    read, moved = Store.read_entries, iter(range(1900, 2000))

    def read_and_move(self: Store, keys: Any) -> Any:
        found = read(self, keys)
        for number in (next(moved), next(moved)):  # what isn't due for long becomes due soon
            client.zadd(SCHEDULE, {f"redbeat:entry-{number}": time.time() + 60})
        return found

    monkeypatch.setattr(Store, "read_entries", read_and_move)
    declared = export_entries(app).declared
    assert len(declared.entries) == 2000


FILE = """
entries:
  one: {task: echo, schedule: {every: 1h}, exclude: holidays}
  two: {task: echo, schedule: {cron: "0 9 * * *"}}
calendars:
  holidays: {days: [2090-12-25]}
"""


def test_a_cluster_takes_files_too(cluster: ClusterTopology) -> None:
    host, port = cluster.startup_nodes[0]
    app = memory_app(redbeat_redis_url=f"redis-cluster://{host}:{port}")
    apply_plan(lambda: make_plan(app, read_file(FILE), "billing"))
    store = Store(app)
    assert store.client.zcard(store.keys.schedule) == 2
    text = write_file(export_entries(app).declared)
    apply_plan(lambda: make_plan(app, read_file("entries: {}"), "billing", prune=True))
    Calendar("holidays", app=app).delete()
    assert store.client.zcard(store.keys.schedule) == 0
    commit(plan_import(app, read_file(text)))
    assert write_file(export_entries(app).declared) == text
    assert store.client.smembers(store.keys.owner("billing")) == {"one", "two"}
