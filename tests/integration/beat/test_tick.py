"""One tick after another: batches and round trips, what a score means, and whose a meta is."""

from __future__ import annotations

import json
import logging
from collections import Counter
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.decoder import RedBeatJSONEncoder
from redbeat.store.entries import read_entry
from redbeat.store.records import Fence, mark_of
from redbeat.store.schedule import fetch_due
from redbeat.store.store import Store
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.polling import eventually
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    SELDOM,
    field,
    messages,
    meta_json,
    monitoring,
    score_of,
    sent_dues,
    sent_names,
    server_now,
    server_time,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import take_messages


def test_log_lines_of_2x_are_kept(
    make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="celery.beat")
    write_raw(client, "entry")
    scheduler = make_scheduler()
    scheduler.tick()
    scheduler.close()
    lines = [line for line in caplog.messages if line.endswith(("lock", "lock...", "(echo)"))]
    assert lines == [
        "beat: Acquiring lock...",
        "beat: Acquired lock",
        "beat: Extending lock...",
        "Scheduler: Sending due task entry (echo)",
        "beat: Releasing lock",
    ]
    assert max(record.levelno for record in caplog.records) == logging.INFO, "beat is silent by default"


def test_batch_is_bounded_and_begins_with_the_oldest(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = make_scheduler(redbeat_batch_size=4)
    for number in reversed(range(10)):
        write_raw(client, f"entry-{number}", score=1 + number, schedule=SELDOM)
    sizes = []
    while not scheduler.tick():
        sizes.append(len(messages(broker)))
    assert sorted({*sizes, len(messages(broker))}) == [4, 8, 10]
    assert sent_names(broker) == [f"entry-{number}" for number in range(10)]


def test_idle_tick_takes_one_round_trip(
    make_scheduler: MakeScheduler, client: redis.Redis, server: Server
) -> None:
    scheduler = make_scheduler(broker_url="memory://")
    write_raw(client, "first")
    scheduler.tick()  # the scripts and the connection are there now
    with monitoring(server) as idle:
        scheduler.tick()
    assert [command.split()[0] for command in idle] == ["EVALSHA"]


def test_schedule_property_shows_due_entries_and_the_next(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    for name, score in {"due": 1.0, "next": 4e9, "later": 5e9}.items():
        write_raw(client, name, score=score)
    write_raw(client, "bad", "{oops")
    assert set(scheduler.schedule) == {"due", "next"}


def test_score_of_zero_becomes_the_time_so_that_a_retry_keeps_the_id(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    class Ending(RedBeatScheduler):
        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyboardInterrupt

    write_raw(client, "entry", score=0)
    before = server_now(client)
    with pytest.raises(KeyboardInterrupt):
        make_scheduler(scheduler=Ending).tick()
    asked_at = score_of(client, "entry") or 0
    assert before <= asked_at <= server_now(client)
    client.delete(LOCK)
    make_scheduler().tick()
    assert [due.timestamp() for due in sent_dues(broker)] == pytest.approx([asked_at], abs=1e-5)


# -- schedules and policies


def test_misfire_settings_of_the_app_apply_to_entries_without_their_own(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = make_scheduler(redbeat_misfire="all", redbeat_misfire_limit=3)
    first = server_time(client).replace(microsecond=0) - timedelta(hours=3.5)
    write_raw(client, "entry", score=first.timestamp())
    for _ in range(6):
        scheduler.tick()
    assert sent_dues(broker) == [first + timedelta(hours=hour) for hour in (1, 2, 3)]


@pytest.mark.parametrize(
    "written",
    ["*/5 * * * *", {"__type__": "cron", "expression": "0 9 LW * *"}, {"__type__": "crontab", "hour": "9"}],
    ids=str,
)
def test_schedule_written_by_hand_runs_and_is_saved_unchanged(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, written: Any
) -> None:
    write_raw(client, "e", schedule=written)
    scheduler.tick()
    assert sent_names(broker) == ["e"]
    upcoming = score_of(client, "e")
    entry = Entry.from_key("redbeat:e", app=scheduler.app)
    entry.save()
    assert Entry.from_key("redbeat:e", app=scheduler.app).schedule == entry.schedule
    assert score_of(client, "e") == upcoming > server_now(client)


# -- whose a meta is: beat trusts a score beside its own, and computes the next run where another program
# wrote it


KEY = "redbeat:report"


@pytest.mark.parametrize(
    ("mark_is_of", "expected"),
    [
        pytest.param(None, False, id="of 2.x"),
        pytest.param("this", True, id="of RedBeat"),
        pytest.param("another", False, id="rewritten by a program that does not know the field"),
    ],
)
def test_meta_is_own_if_its_mark_matches(
    app: Celery, client: redis.Redis, mark_is_of: str | None, expected: bool
) -> None:
    meta = meta_json(datetime(2024, 1, 1), 41)
    write_raw(client, "report", meta=meta)
    if mark_is_of:
        client.hset(KEY, "meta_crc32", mark_of(meta if mark_is_of == "this" else f"{meta} "))
    store = Store(app)
    [due_entry] = fetch_due(store, Fence(), limit=10).run().rows
    assert read_entry(store, KEY)[1].is_meta_foreign == due_entry.is_meta_foreign == (not expected)


@pytest.mark.parametrize("how", ["save", "save_many", "reschedule", "next", "tick"])
def test_every_writer_of_a_meta_writes_its_mark(
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
    assert client.hget(KEY, "meta_crc32") == mark_of(meta)
    assert not read_entry(Store(scheduler.app), KEY)[1].is_meta_foreign
    assert field(client, "report", "meta")["total_run_count"] == (how in ("next", "tick"))


ONE_HOUR = timedelta(hours=1)


def move_last_run(client: redis.Redis, to: datetime) -> None:
    """What an application does that knows the hash, and nothing else."""
    meta = json.loads(client.hget("redbeat:entry", "meta") or "{}")
    client.hset("redbeat:entry", "meta", json.dumps({**meta, "last_run_at": to}, cls=RedBeatJSONEncoder))


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("ahead_seconds", [-1800, -6, 86_400])
@pytest.mark.parametrize("fraction", [0, 0.25])
def test_last_run_moved_by_another_program_moves_the_next_run(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, ahead_seconds: int, fraction: float
) -> None:
    now = server_time(client).replace(microsecond=0)
    ran_at = now - ONE_HOUR - timedelta(seconds=5 - fraction)
    Entry("entry", "t", ONE_HOUR, app=scheduler.app, last_run_at=ran_at).save()  # due five seconds ago
    moved_to = now + timedelta(seconds=ahead_seconds, microseconds=123)
    move_last_run(client, moved_to)
    scheduler.tick()
    assert messages(broker) == []
    assert score_of(client, "entry") == pytest.approx((moved_to + ONE_HOUR).timestamp(), abs=1e-5)
    assert Entry.from_key("redbeat:entry", app=scheduler.app).last_run_at == moved_to


@pytest.mark.parametrize(("settings", "lease_ms"), [({}, 0), ({"redbeat_lock_key": None}, 1)])
def test_run_asked_for_survives_the_beat_that_fetched_it(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, lease_ms: int
) -> None:
    Entry("entry", "t", ONE_HOUR, app=scheduler.app).save()
    move_last_run(client, server_time(client))
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    request = fetch_due(Store(scheduler.app), Fence(), limit=10, lease_ms=lease_ms)
    [due_entry] = request.run().rows  # by a beat that dies then
    assert due_entry.is_asked
    while server_now(client) <= float(due_entry.current_score):
        pass  # until its lease of a millisecond is over
    scheduler.tick()
    assert [due.timestamp() for due in sent_dues(broker)] == pytest.approx(
        [float(due_entry.nominal)], abs=1e-5
    )


@pytest.mark.parametrize("policy", [{"misfire": "all"}, {"one_off": True, "after_finish": "disable"}])
def test_hash_written_back_after_a_run_sends_nothing_twice(
    app: Celery, client: redis.Redis, make_scheduler: MakeScheduler, policy: dict[str, Any]
) -> None:
    entry = Entry("report", "echo", 0.25, app=app, **policy).save()
    scheduler = make_scheduler(app)
    due: list[str] = []

    def tick() -> int:
        scheduler.tick()
        due.extend(message.due for message in take_messages(app))
        return len(due)

    for runs in range(1 if entry.policy.one_off else 3):
        fields = client.hgetall(KEY)
        eventually(lambda runs=runs: tick() > runs)
        definition = {**json.loads(fields["definition"]), "args": [runs]}
        client.hset(KEY, mapping={**fields, "definition": json.dumps(definition)})
    for _ in range(3):
        tick()
    assert max(Counter(due).values()) == 1
    assert len(due) == 1 or not entry.policy.one_off
