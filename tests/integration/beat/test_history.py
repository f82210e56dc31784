"""What became of an entry's last runs, kept beside it by the step that records the run."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery.schedules import crontab

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.schedule import SCHEDULE, messages, monitoring, score_of, server_now, write_raw
from tests.support.servers import Server

UTC = timezone.utc
HISTORY = "redbeat::history:entry"
HOUR = timedelta(hours=1)


def records(client: redis.Redis) -> list[dict[str, Any]]:
    return [json.loads(record) for record in client.lrange(HISTORY, 0, -1)]


@EVERY_KIND_OF_LOCK
def test_a_run_that_is_sent_is_recorded_with_its_due_time_and_when_it_was_sent(
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


def test_a_task_id_of_the_entry_s_own_is_kept_in_the_record(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    write_raw(client, "entry", options={"task_id": 'mine "and" yours'})
    scheduler.tick()
    assert records(client)[0]["id"] == 'mine "and" yours'


def test_only_so_many_are_kept_the_newest_first(make_scheduler: MakeScheduler, client: redis.Redis) -> None:
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


def test_turned_off_nothing_is_kept(make_scheduler: MakeScheduler, client: redis.Redis) -> None:
    scheduler = make_scheduler(redbeat_history=0)
    write_raw(client, "entry")
    scheduler.tick()
    assert not client.exists(HISTORY)


@pytest.mark.parametrize(
    ("policy", "definition", "why"),
    [
        ({"misfire": "skip", "misfire_grace_time": 60}, {}, "older than misfire_grace_time of 60 s"),
        ({"exclude": "always"}, {}, "excluded by its calendar always"),
        ({"end_time": "2020-01-01T00:00:00Z"}, {}, "after its end_time, 2020-01-01T00:00:00+00:00"),
    ],
)
def test_a_run_that_is_skipped_is_recorded_with_the_reason(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    policy: dict[str, Any],
    definition: dict[str, Any],
    why: str,
) -> None:
    today = datetime.now(UTC).date()
    client.hset("redbeat::calendar:always", f"{today - timedelta(days=9)}/{today + timedelta(days=9)}", "")
    write_raw(client, "entry", score=server_now(client) - 600.5, **definition)
    client.hset("redbeat:entry", "policy", json.dumps(policy))
    scheduler.tick()
    [record] = records(client)
    assert (record["outcome"], record["why"]) == ("skipped", why)
    [run] = Entry.get("entry", scheduler.app).history()
    assert run.task_id is None


def test_a_run_that_fails_and_an_entry_that_is_quarantined_are_recorded_once(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    write_raw(client, "entry", options={"serializer": 'no "way"'})
    for _ in range(3):
        scheduler.tick()
        client.zadd(
            SCHEDULE, {"redbeat:entry": json.loads(client.hget("redbeat:entry", "error"))["retry_at"]}
        )
    assert [record["outcome"] for record in records(client)] == ["unsent"]
    assert 'no "way"' in records(client)[0]["why"]
    client.delete(HISTORY)
    write_raw(client, "entry", task=None)
    for _ in range(3):
        scheduler.tick()
        client.zadd(SCHEDULE, {"redbeat:entry": 1})
    assert [record["outcome"] for record in records(client)] == ["unsent"]


def test_recording_costs_no_round_trip(
    server: Server, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    counts = []
    for kept in (0, 20):
        scheduler = make_scheduler(redbeat_history=kept)
        scheduler.tick()
        write_raw(client, "entry")
        with monitoring(server) as commands:
            scheduler.tick()
        counts.append(len(commands))
        scheduler.close()
    assert counts[0] == counts[1]


@pytest.mark.parametrize("way", ["delete", "delete_many", "after_finish", "static", "clear"])
def test_a_history_goes_with_its_entry(make_scheduler: MakeScheduler, client: redis.Redis, way: str) -> None:
    statics = {"entry": {"task": "echo", "schedule": 3600.0}}
    scheduler = make_scheduler(redbeat_lock_key=None, beat_schedule=statics if way == "static" else {})
    app = scheduler.app
    if way != "static":
        policy = {"one_off": True, "after_finish": "delete"} if way == "after_finish" else {}
        Entry("entry", "echo", HOUR, app=app, **policy).save()
    if way != "after_finish":
        client.zadd(SCHEDULE, {"redbeat:entry": 0})
        scheduler.tick()
        assert records(client)
    match way:
        case "delete":
            Entry.get("entry", app).delete()
        case "delete_many":
            Entry.delete_many(["entry"], app)
        case "after_finish":
            client.lpush(HISTORY, '{"at": 1, "due": 1}')
            client.zadd(SCHEDULE, {"redbeat:entry": 0})
            scheduler.tick()
        case "static":
            make_scheduler(redbeat_lock_key=None, beat_schedule={})
        case "clear":
            assert Entry.clear(app) == 1
    assert not client.exists("redbeat:entry")
    assert not client.exists(HISTORY)


def test_a_history_key_of_another_type_costs_the_record_and_not_the_run(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    client.set(HISTORY, "what?")
    write_raw(client, "entry", schedule={"__type__": "crontab"})
    began = server_now(client)
    scheduler.tick()
    assert len(messages(broker)) == 1
    assert (score_of(client, "entry") or 0) > began
    assert client.get(HISTORY) == "what?"


def test_records_that_nobody_can_read_are_left_out(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    Entry("entry", "echo", crontab(), app=scheduler.app).save()
    odd = ["", "[]", "5", "{", '{"at": 1}', '{"at": "x", "due": 1}', '{"at": 1e300, "due": 1}', "\ud800"]
    client.rpush(HISTORY, *[text.encode("utf-8", "surrogatepass") for text in odd], '{"at": 2, "due": 1.5}')
    [run] = Entry.get("entry", scheduler.app).history()
    assert (run.due.timestamp(), run.late_seconds) == (1.5, 0.5)
    assert run.to_dict()["late_seconds"] == 0.5
