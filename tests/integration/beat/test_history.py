"""What the history keeps of an entry's runs, and the reason of each that was not sent."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.decoder import encode_meta
from redbeat.diagnostics.facts import read_facts
from redbeat.diagnostics.why import explain
from redbeat.manifest.format import Declared
from redbeat.store.records import mark_of
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.applying import apply
from tests.support.schedule import SCHEDULE, messages, score_of, server_now, server_time, write_raw

HISTORY = "redbeat::history:entry"


HOUR = timedelta(hours=1)


def records(client: redis.Redis) -> list[dict[str, Any]]:
    return [json.loads(record) for record in client.lrange(HISTORY, 0, -1)]


@EVERY_KIND_OF_LOCK
def test_sent_run_is_recorded_with_both_times(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    due = round(server_now(client) - 5, 6)
    write_raw(client, "entry", score=due)
    before = server_now(client)
    scheduler.tick()
    [record] = records(client)
    assert record.keys() == {"at", "due"}
    assert record["due"] == pytest.approx(due, abs=1e-6)
    assert before <= record["at"] <= server_now(client)
    [run] = Entry.get("entry", scheduler.app).history()
    [message] = messages(broker)
    assert (run.outcome, run.task_id, run.is_manual) == ("sent", message["headers"]["id"], False)
    assert run.due.isoformat(timespec="microseconds") == message["headers"]["redbeat_due"]
    assert 5 <= run.late_seconds < 60


def test_own_task_id_is_kept_in_the_record(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    write_raw(client, "entry", options={"task_id": 'mine "and" yours'})
    scheduler.tick()
    assert records(client)[0]["id"] == 'mine "and" yours'


def test_history_keeps_the_newest_records(make_scheduler: MakeScheduler, client: redis.Redis) -> None:
    scheduler = make_scheduler(redbeat_history=3)
    start = int(server_now(client)) - 100
    write_raw(client, "entry", schedule={"__type__": "interval", "every": 10}, score=start + 0.5)
    client.hset("redbeat:entry", "policy", '{"misfire": "all"}')
    for _ in range(6):
        scheduler.tick()
    assert [record["due"] for record in records(client)] == [start + late + 0.5 for late in (50, 40, 30)]
    assert [run.due.timestamp() for run in Entry.get("entry", scheduler.app).history(2)] == [
        start + 50.5,
        start + 40.5,
    ]


def test_history_of_length_zero_keeps_nothing(make_scheduler: MakeScheduler, client: redis.Redis) -> None:
    scheduler = make_scheduler(redbeat_history=0)
    write_raw(client, "entry")
    scheduler.tick()
    assert not client.exists(HISTORY)


DELETIONS: dict[str, Callable[[Celery], object]] = {
    "delete": lambda app: Entry.get("entry", app).delete(),
    "delete_many": lambda app: Entry.delete_many(["entry"], app),
    "clear": Entry.clear,
}


@pytest.mark.parametrize("way", [*DELETIONS, "static", "after_finish"])
def test_history_is_deleted_with_its_entry(
    make_scheduler: MakeScheduler, client: redis.Redis, way: str
) -> None:
    scheduler = make_scheduler(
        redbeat_lock_key=None, beat_schedule={"entry": {"task": "echo", "schedule": 3600.0}}
    )
    if way == "after_finish":
        client.hset("redbeat:entry", "policy", '{"one_off": true, "after_finish": "delete"}')
        client.lpush(HISTORY, '{"at": 1, "due": 1}')
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    scheduler.tick()
    assert client.exists(HISTORY) == (way != "after_finish")
    if way == "static":
        make_scheduler(redbeat_lock_key=None, beat_schedule={})
    elif way in DELETIONS:
        DELETIONS[way](scheduler.app)
    assert not client.exists("redbeat:entry", HISTORY)


def test_history_key_of_wrong_type_costs_the_record_and_not_the_run(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    client.set(HISTORY, "what?")
    write_raw(client, "entry", schedule={"__type__": "crontab"})
    began = server_now(client)
    scheduler.tick()
    assert len(messages(broker)) == 1
    assert (score_of(client, "entry") or 0) > began
    assert client.get(HISTORY) == "what?"


# -- runs that were not sent


EVERY = 100  # seconds between two runs


INTERVAL = {"__type__": "interval", "every": EVERY}


def write_missed(
    client: redis.Redis,
    runs: int = 8,
    *,
    is_own: bool = True,
    **policy: Any,
) -> list[datetime]:
    """An entry whose last `runs` runs nobody has sent, the latest half a minute ago; their times."""
    latest = server_time(client) - timedelta(seconds=30.5)
    dues = [latest - timedelta(seconds=EVERY * back) for back in reversed(range(runs))]
    ran_at = dues[0] - timedelta(seconds=EVERY)
    enabled = policy.pop("enabled", True)
    meta = encode_meta(ran_at, 5)
    write_raw(client, "entry", schedule=INTERVAL, score=dues[0].timestamp(), meta=meta, enabled=enabled)
    client.hset("redbeat:entry", "policy", json.dumps(policy))
    if is_own:
        client.hset("redbeat:entry", "meta_crc32", mark_of(meta))
    return dues


def drain(scheduler: RedBeatScheduler) -> None:
    for _ in range(20):
        scheduler.tick()


def spans(app: Celery) -> list[tuple[str, datetime, datetime, int | None, str]]:
    """The records of what wasn't sent, the earliest first."""
    return [
        (run.outcome, run.due, run.last or run.due, run.count, run.why)
        for run in reversed(Entry.get("entry", app).history())
        if run.outcome != "sent"
    ]


def reasons(app: Celery, dues: list[datetime]) -> list[tuple[str, str]]:
    """Verdict and reason of each run, by `why`."""
    answers = [explain(read_facts(app, "entry"), due) for due in dues]
    return [(answer.verdict, answer.reason) for answer in answers]


def test_long_outage_is_one_record(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    write_missed(client, runs=5000, misfire="all", misfire_limit=3)
    for number in range(17):
        client.lpush("redbeat::history:entry", json.dumps({"at": number + 1e9, "due": number + 1e9}))
    drain(scheduler)
    history = Entry.get("entry", scheduler.app).history()
    assert [run.outcome for run in history[:5]] == ["sent", "sent", "sent", "skipped", "sent"]
    assert history[3].count == 4997
    assert len(history) == 20
    assert len([run for run in history if run.due.year == 2001]) == 16


@pytest.mark.parametrize("is_own", [True, False], ids=["beats-own-meta", "anothers-meta"])
def test_excluded_runs_have_their_own_reason(
    scheduler: RedBeatScheduler, client: redis.Redis, app: Celery, broker: redis.Redis, is_own: bool
) -> None:
    now = server_time(client)
    Calendar("holidays", [(now - timedelta(seconds=460), now - timedelta(seconds=200))], app=app).save()
    # of 730, 630, 530, 430, 330, 230, 130 and 30 s ago
    dues = write_missed(client, exclude="holidays", is_own=is_own)
    drain(scheduler)
    assert len(messages(broker)) == 1
    verdicts = [verdict for verdict, _ in reasons(app, dues)]
    assert verdicts == ["merged"] * 3 + ["excluded"] * 3 + ["merged", "sent"]
    assert [count for _, _, _, count, _ in spans(app)] == [4], "not counted among those that were merged"


@pytest.mark.parametrize("way", ["resume", "apply", "disabled"])
def test_runs_in_a_pause_have_their_own_reason(
    scheduler: RedBeatScheduler, client: redis.Redis, app: Celery, way: str
) -> None:
    policy = {} if way == "disabled" else {"paused": True, "pause_note": "repairs"}
    dues = write_missed(client, enabled=False, **policy)
    scheduler.tick()
    entry = Entry.get("entry", app)
    if way == "resume":
        entry.resume()
    elif way == "apply":
        fields = {"task": entry.task, "schedule": {"every": EVERY}, "enabled": True}
        apply(app, Declared(entries={"entry": fields}))
    else:
        entry.enabled = True
        entry.save()
    [(outcome, due, last, count, why)] = spans(app)
    assert (outcome, count) == ("skipped", 8)
    assert (abs(due - dues[0]), abs(last - dues[7])) < (timedelta(milliseconds=1),) * 2
    assert re.match(r"disabled until .* UTC$" if way == "disabled" else r"paused until .* UTC: repairs$", why)
    assert [verdict for verdict, _ in reasons(app, dues)] == ["skipped"] * 8
    Entry.get("entry", app).save()
    assert len(spans(app)) == 1, "told once"


def test_pause_that_skipped_no_run_leaves_no_record(
    scheduler: RedBeatScheduler, client: redis.Redis, app: Celery
) -> None:
    write_missed(client, enabled=False, run_missed=True)
    Entry.get("entry", app).resume()
    Entry("quick", "t", 3600, app=app).save().pause()
    Entry.get("quick", app).resume()
    assert not client.exists("redbeat::history:entry", "redbeat::history:quick")
