"""Whose a meta is: beat trusts a score beside its own, and asks the schedule where somebody else wrote it."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta, timezone

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.decoder import RedBeatJSONEncoder
from redbeat.manifest.format import read_file, write_file
from redbeat.manifest.plan import commit
from redbeat.manifest.transfer import export_entries, plan_import
from redbeat.store.records import Claimed, Commit, Fence, Push, Stored, Target
from redbeat.store.store import Store
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.schedule import (
    SCHEDULE,
    field,
    messages,
    score_of,
    sent_dues,
    sent_names,
    server_now,
    server_time,
)

KEY = "redbeat:report"

#: as 3.0.0.dev0 left them: an hourly entry, last run in 2024 at a quarter past, due a while after
DEV0_DEFINITION = (
    '{"name": "report", "task": "echo", "args": [], "kwargs": {}, "options": {}, "schedule": {"__type__": '
    '"interval", "every": 3600.0, "relative": false}, "enabled": true}'
)
DEV0_META = (
    '{"last_run_at": {"__type__": "datetime", "year": 2024, "month": 3, "day": 1, "hour": 9, "minute": 15, '
    '"second": 0, "microsecond": 250000, "timezone": "UTC"}, "total_run_count": 41} '
)
LAST_RUN = datetime(2024, 3, 1, 9, 15, 0, 250_000, timezone.utc)


def write(client: redis.Redis, **fields: str) -> float:
    """An entry whose last run was half an hour ago, by the clock of the server, and that is due now."""
    due = int(server_now(client)) - 1 + 0.25
    client.hset(KEY, mapping={"definition": DEV0_DEFINITION, **fields})
    client.zadd(SCHEDULE, {KEY: due})
    return due


def meta_of(client: redis.Redis, minutes_ago: int) -> str:
    moment = datetime.fromtimestamp(int(server_now(client)) + 0.25, timezone.utc)
    moment -= timedelta(minutes=minutes_ago)
    names = ("year", "month", "day", "hour", "minute", "second", "microsecond")
    last_run_at = {"__type__": "datetime", **{name: getattr(moment, name) for name in names}}
    return json.dumps({"last_run_at": {**last_run_at, "timezone": "UTC"}, "total_run_count": 41})


def sha1(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()


def is_own(app: Celery) -> bool:
    """Whether RedBeat takes the meta for its own, however it reads it."""
    store = Store(app)
    _, stored = store.read_entry(KEY)
    [claimed] = store.claim_due(Fence(), 10).rows
    assert stored.is_meta_foreign == claimed.is_meta_foreign
    return not stored.is_meta_foreign


@pytest.mark.parametrize(
    ("behind", "sha1_is_of", "expected"),
    [
        ("", None, False),
        ("", "this", True),
        ("", "another", False),
        (" ", None, True),
        (" ", "another", True),
    ],
    ids=[
        "of 2.x",
        "of RedBeat",
        "rewritten by a program that doesn't know the field",
        "of 3.0.0.dev0",
        "of 3.0.0.dev0 over one of RedBeat",
    ],
)
def test_a_meta_is_our_own_that_the_digest_is_of_or_that_an_early_version_wrote(
    app: Celery, client: redis.Redis, behind: str, sha1_is_of: str | None, expected: bool
) -> None:
    meta = meta_of(client, minutes_ago=30)
    fields = {"meta_sha1": sha1(meta if sha1_is_of == "this" else f"{meta} ")} if sha1_is_of else {}
    write(client, meta=meta + behind, **fields)
    assert is_own(app) == expected


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("is_ours", [True, False])
def test_what_an_early_version_left_runs_at_its_score_and_another_when_its_schedule_says(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, is_ours: bool
) -> None:
    due = write(client, meta=meta_of(client, minutes_ago=30) + " " * is_ours)
    scheduler.tick()
    assert sent_names(broker) == ["report"] * is_ours
    if not is_ours:
        assert score_of(client, "report") == pytest.approx(due + 1801, abs=2)
        return
    meta = client.hget(KEY, "meta") or ""
    assert json.loads(meta)["total_run_count"] == 42
    assert meta == meta.strip(), "no space says anything any more"
    assert client.hget(KEY, "meta_sha1") == sha1(meta)


def test_literal_data_of_an_early_version_is_read_as_its_own(app: Celery, client: redis.Redis) -> None:
    client.hset(KEY, mapping={"definition": DEV0_DEFINITION, "meta": DEV0_META, "policy": '{"jitter": 5}\n'})
    client.zadd(SCHEDULE, {KEY: 1709286300.25})
    assert is_own(app)
    entry = Entry.get("report", app)
    assert (entry.last_run_at, entry.total_run_count, entry.policy.jitter) == (LAST_RUN, 41, 5)
    entry.kwargs = {"a": 1}
    entry.save(if_unchanged=True)
    assert client.hget(KEY, "meta") == DEV0_META, "a save leaves it to beat"
    assert is_own(app)
    entry.reschedule(LAST_RUN)
    assert client.hget(KEY, "meta") == DEV0_META.strip()
    assert client.hget(KEY, "meta_sha1") == sha1(DEV0_META.strip())


@pytest.mark.parametrize("how", ["save", "save_many", "reschedule", "next", "tick"])
def test_whatever_writes_a_meta_says_that_it_is_our_own(
    scheduler: RedBeatScheduler, client: redis.Redis, how: str
) -> None:
    entry = Entry("report", "echo", 3600, app=scheduler.app)
    if how == "save_many":
        Entry.save_many([entry])
    else:
        entry.save()
    if how == "tick":
        client.zadd(SCHEDULE, {KEY: 0})
        scheduler.tick()
    elif how in ("reschedule", "next"):
        getattr(entry, how)()
    meta = client.hget(KEY, "meta") or ""
    assert client.hget(KEY, "meta_sha1") == sha1(meta)
    assert not Store(scheduler.app).read_entry(KEY)[1].is_meta_foreign
    assert field(client, "report", "meta")["total_run_count"] == (how in ("next", "tick"))


@pytest.mark.parametrize(
    "before", [{}, {"meta": DEV0_META}, {"meta": DEV0_META[:-1], "meta_sha1": "of another"}]
)
def test_a_refused_message_leaves_meta_and_digest_as_they_were(
    app: Celery, client: redis.Redis, before: dict[str, str]
) -> None:
    client.hset(KEY, mapping={"definition": DEV0_DEFINITION, **before})
    client.zadd(SCHEDULE, {KEY: 1709286300.25})
    client.set("no list", "x")
    store = Store(app)
    [claimed] = store.claim_due(Fence(), 10).rows
    run_id, db = client.info("server")["run_id"], client.connection_pool.connection_kwargs["db"]
    run = Commit(claimed, "4000000000.5", new_meta="{}", pushes=(Push("lpush", "no list", "message"),))
    [refused] = store.commit_runs(Fence(), [run], Target(run_id, db, db)).results
    assert "WRONGTYPE" in str(refused)
    assert client.hgetall(KEY) == {"definition": DEV0_DEFINITION, **before}


@pytest.mark.parametrize("is_ours", [True, False])
@pytest.mark.parametrize("more", ["", ', "tries": 3'], ids=["plain", "with a key of others"])
def test_export_and_import_keep_whose_a_meta_is(
    app: Celery, client: redis.Redis, more: str, is_ours: bool
) -> None:
    meta = f"{meta_of(client, minutes_ago=30)[:-1]}{more}}}"
    write(client, meta=meta, **({"meta_sha1": sha1(meta)} if is_ours else {}))
    before = client.hmget(KEY, "meta", "meta_sha1")
    text = write_file(export_entries(app).declared)
    client.flushdb()
    commit(plan_import(app, read_file(text)))
    assert client.hmget(KEY, "meta", "meta_sha1") == before
    assert is_own(app) == is_ours


@pytest.mark.parametrize("meta", [DEV0_META, f'{DEV0_META[:-2]}, "tries": 3}} '])
def test_a_file_of_an_early_version_is_imported_as_its_own(
    app: Celery, client: redis.Redis, meta: str
) -> None:
    entry = {"task": "echo", "schedule": {"every": "1h"}, "next_run": 1709286300.25, "stored": {"meta": meta}}
    commit(plan_import(app, read_file(json.dumps({"entries": {"report": entry}}))))
    assert client.hget(KEY, "meta_sha1") == sha1(meta)
    assert is_own(app)


def test_a_meta_that_is_edited_in_a_file_is_nobodys_own(app: Celery, client: redis.Redis) -> None:
    meta = f'{DEV0_META[:-2]}, "tries": 3}}'
    client.hset(KEY, mapping={"definition": DEV0_DEFINITION, "meta": meta, "meta_sha1": sha1(meta)})
    client.zadd(SCHEDULE, {KEY: 1709286300.25})
    text = write_file(export_entries(app).declared, is_json=True)
    assert '"tries": 3' in text
    client.flushdb()
    commit(plan_import(app, read_file(text.replace('"tries": 3', '"tries": 4'))))
    assert not is_own(app)


def test_a_last_run_that_is_set_to_what_somebody_else_wrote_is_our_own(
    app: Celery, client: redis.Redis
) -> None:
    client.hset(KEY, mapping={"definition": DEV0_DEFINITION, "meta": DEV0_META[:-1]})
    client.zadd(SCHEDULE, {KEY: LAST_RUN.timestamp() + 3600})
    assert not is_own(app)
    Entry.get("report", app).reschedule(LAST_RUN)
    assert is_own(app)


def test_what_has_no_meta_is_nobody_elses(app: Celery, client: redis.Redis) -> None:
    write(client)
    assert is_own(app)
    assert Claimed("k", "1").is_meta_foreign is Stored("k").is_meta_foreign is False


# -- applications that move the last run: the next run moves with it


UTC = timezone.utc
HOUR = timedelta(hours=1)


def move_last_run(client: redis.Redis, to: datetime) -> None:
    """What an application does that knows the hash, and nothing else."""
    meta = json.loads(client.hget("redbeat:entry", "meta") or "{}")
    client.hset("redbeat:entry", "meta", json.dumps({**meta, "last_run_at": to}, cls=RedBeatJSONEncoder))


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("ahead_seconds", [-1800, -6, 86_400])
@pytest.mark.parametrize("fraction", [0, 0.25])
def test_a_last_run_moved_in_meta_moves_the_next_run(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, ahead_seconds: int, fraction: float
) -> None:
    now = server_time(client).replace(microsecond=0)
    ran_at = now - HOUR - timedelta(seconds=5 - fraction)
    Entry("entry", "t", HOUR, app=scheduler.app, last_run_at=ran_at).save()  # due five seconds ago
    moved_to = now + timedelta(seconds=ahead_seconds, microseconds=123)
    move_last_run(client, moved_to)
    scheduler.tick()
    assert messages(broker) == []
    assert score_of(client, "entry") == pytest.approx((moved_to + HOUR).timestamp(), abs=1e-5)
    assert Entry.from_key("redbeat:entry", app=scheduler.app).last_run_at == moved_to


@EVERY_KIND_OF_LOCK
def test_a_score_of_0_runs_it_now_whatever_its_last_run(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    Entry("entry", "t", HOUR, app=scheduler.app).save()
    move_last_run(client, server_time(client) + HOUR)
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    scheduler.tick()
    assert sent_names(broker) == ["entry"]
    assert set(client.hkeys("redbeat:entry")) == {"definition", "meta", "meta_sha1"}


@pytest.mark.parametrize(("settings", "lease_ms"), [({}, 0), ({"redbeat_lock_key": None}, 1)])
def test_a_run_asked_for_with_a_score_of_0_outlives_the_beat_that_saw_it(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, lease_ms: int
) -> None:
    Entry("entry", "t", HOUR, app=scheduler.app).save()
    move_last_run(client, server_time(client))
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    [claimed] = Store(scheduler.app).claim_due(Fence(), 10, lease_ms).rows  # by a beat that dies then
    assert claimed.is_asked
    while server_now(client) <= float(claimed.score):
        pass  # until its lease of a millisecond is over
    scheduler.tick()
    assert [due.timestamp() for due in sent_dues(broker)] == pytest.approx([float(claimed.nominal)], abs=1e-5)


def test_a_run_asked_for_that_is_given_back_is_still_asked_for(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    app = make_scheduler(redbeat_lock_key=None).app
    Entry("entry", "t", HOUR, app=app).save()
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    store = Store(app)
    [first] = store.claim_due(Fence(), 10, lease_ms=60_000).rows
    store.commit_runs(Fence(), [Commit(first, first.nominal)])
    assert score_of(client, "entry") == float(first.nominal)
    [again] = store.claim_due(Fence(), 10, lease_ms=60_000).rows
    assert (again.is_asked, again.nominal) == (True, first.nominal)
    store.commit_runs(Fence(), [Commit(again, "4000000000.5")])
    assert set(client.hkeys("redbeat:entry")) == {"definition", "meta", "meta_sha1"}
