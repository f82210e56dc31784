"""Runs in progress as beat records them; runs that are held back, and those that wait."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import redis
from celery import Task
from kombu import Queue
from kombu.common import Broadcast

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.policy.fields import Choice
from redbeat.policy.policy import ROWS
from redbeat.scheduler.shard import Watch
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.progress import NAMES, Progress, history_of, running_of
from tests.support.schedule import (
    DEADLINES,
    SCHEDULE,
    expected_id,
    field,
    messages,
    meta_json,
    monitoring,
    retry_now,
    score_of,
    server_now,
    write_raw,
)
from tests.support.servers import Server

HOURLY = {"__type__": "interval", "every": 3600}
RUNNING = NAMES.about("entry").running


def write_tracked(client: redis.Redis, name: str = "entry", due: float | None = None, **policy: Any) -> float:
    """An hourly entry with a policy that is due since a moment, or then; returns when."""
    due = round(server_now(client) - 5, 6) if due is None else due
    write_raw(client, name, score=due, schedule=HOURLY)
    if policy:
        client.hset(f"redbeat:{name}", "policy", json.dumps(policy))
    return due


def make_due_again(client: redis.Redis, name: str = "entry") -> float:
    """Let its next run be due; returns when it is."""
    due = round(server_now(client) - 1, 6)
    client.zadd(SCHEDULE, {f"redbeat:{name}": due})
    return due


def hold(app: Any, client: redis.Redis, task_id: str = "other", **record: Any) -> Progress:
    """Let another run of the entry be in progress."""
    progress = Progress(app, client)
    progress.send("entry", task_id, **record)
    return progress


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("policy", [{"max_runtime": 60}, {"overlap": "skip"}, {"tracks": "workflow"}])
def test_tracked_run_is_recorded_by_the_step_that_sends_it(
    scheduler: RedBeatScheduler, client: redis.Redis, policy: dict[str, Any]
) -> None:
    due = write_tracked(client, **policy)
    before = server_now(client)
    scheduler.tick()
    [(task_id, record)] = running_of(client, "entry").items()
    assert task_id == expected_id("entry", due)
    assert (record["state"], float(record["due"])) == ("sent", pytest.approx(due, abs=1e-6))
    assert before <= float(record["sent"]) <= server_now(client)
    queue = 3600 if "overlap" in policy else 86400
    assert record["queue"] == queue
    [(member, deadline)] = client.zrange(DEADLINES, 0, -1, withscores=True)
    assert member == f"{task_id}\0{NAMES.about('entry').running}"
    assert deadline == pytest.approx(float(record["sent"]) + queue + 1, abs=1e-3)


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("compiled", [True, False])
def test_a_run_is_skipped_while_the_one_before_it_is_in_progress(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    settings: dict[str, Any],
    compiled: bool,
) -> None:
    scheduler = make_scheduler(**settings, **({} if compiled else {"redbeat_message_cache_bytes": 0}))
    first = write_tracked(client, overlap="skip")
    scheduler.tick()
    second = make_due_again(client)
    scheduler.tick()
    assert [message["headers"]["id"] for message in messages(broker)] == [expected_id("entry", first)]
    held, sent = history_of(client, "entry")
    assert "outcome" not in sent
    assert (held["outcome"], held["held_by"]) == ("skipped", expected_id("entry", first))
    assert held["due"] == pytest.approx(second, abs=1e-6)
    assert first < held["since"] < server_now(client)
    assert field(client, "entry", "meta")["total_run_count"] == 1
    assert score_of(client, "entry") == pytest.approx(second + 3600, abs=1e-3)


def test_the_run_that_waits_is_the_first_that_had_to(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    hold(scheduler.app, client)
    first = write_tracked(client, overlap="buffer_one")
    scheduler.tick()
    make_due_again(client)
    scheduler.tick()
    assert messages(broker) == []
    waiting = running_of(client, "entry")[""]
    assert (float(waiting["due"]), waiting["for"]) == (pytest.approx(first), expected_id("entry", first))
    skipped, waits = history_of(client, "entry")[:2]
    assert (skipped["outcome"], waits["outcome"]) == ("skipped", "waiting")
    assert (skipped["held_by"], skipped["behind"]) == ("other", expected_id("entry", first))
    assert "behind" not in waits


@pytest.mark.parametrize("record", [{"state": "sent"}, {"state": "started", "soft": 1}])
def test_a_run_is_to_be_terminated_for_the_one_that_replaces_it(
    scheduler: RedBeatScheduler, client: redis.Redis, record: dict[str, Any]
) -> None:
    """Also where its worker can't do that, which it says; the gate refuses one that nobody has begun."""
    hold(scheduler.app, client, **record)
    write_tracked(client, overlap="replace")
    scheduler.tick()
    found = running_of(client, "entry")
    assert found.keys() == {"", "other"}
    assert found["other"]["terminate"] == "replaced"


@pytest.mark.parametrize("is_pushed", [True, False], ids=["same server", "other broker"])
def test_run_with_an_overlap_that_the_scripts_do_not_know_is_refused_with_the_reason(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    is_pushed: bool,
) -> None:
    row = ROWS["overlap"]
    monkeypatch.setitem(ROWS, "overlap", replace(row, choices=(*row.choices, Choice("queue"))))
    scheduler = make_scheduler(**({} if is_pushed else {"broker_url": "memory://"}))
    write_tracked(client, overlap="queue")
    write_tracked(client, "other", overlap="skip")
    scheduler.tick()
    assert running_of(client, "entry") == {}
    assert "unknown overlap queue" in field(client, "entry", "error")["reason"]
    assert field(client, "entry", "meta") is None
    assert len(running_of(client, "other")) == 1


def test_deadlines_of_wrong_type_are_logged_once_and_hold_nothing_back(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.set(DEADLINES, "spoilt")
    for number in range(3):
        write_tracked(client, f"entry-{number}", overlap="buffer_one")
        scheduler.tick()
    assert len(messages(broker)) == 3
    assert len([text for text in caplog.messages if "WRONGTYPE" in text]) == 1


@pytest.mark.parametrize("record", [{"state": "ended"}, {"state": "started", "overdue": 1}, "{oops"])
def test_record_that_is_not_a_run_in_progress_holds_nothing_back(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, record: Any
) -> None:
    text = record if isinstance(record, str) else json.dumps({"due": "5", **record})
    client.hset(RUNNING, "other", text)
    write_tracked(client, overlap="skip")
    scheduler.tick()
    assert len(messages(broker)) == 1


def test_run_is_not_held_back_by_its_own_record(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    due = write_tracked(client, overlap="skip")
    hold(scheduler.app, client, expected_id("entry", due), due=due)
    scheduler.tick()
    assert len(messages(broker)) == 1


@pytest.mark.parametrize("overlap", ["allow", "skip"])
@EVERY_KIND_OF_LOCK
def test_running_key_of_wrong_type_costs_that_entry_its_runs(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, overlap: str
) -> None:
    client.set(RUNNING, "oops")
    due = write_tracked(client, overlap=overlap, max_runtime=60)
    write_tracked(client, "other", overlap="skip")
    scheduler.tick()
    sent = {message["headers"]["redbeat_entry"] for message in messages(broker)}
    assert sent == ({"other"} if overlap == "skip" else {"entry", "other"})
    error = field(client, "entry", "error")
    assert (error is not None) is (overlap == "skip")
    if error:
        client.delete(RUNNING)
        retry_now(client, "entry")
        scheduler.tick()
        assert list(running_of(client, "entry")) == [expected_id("entry", due)], "the same run, later"


class SendsByItself(Task):  # type: ignore[type-arg]
    """Its messages leave by a producer of its own, so beat can't collect them."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        with self.app.connection_for_write() as connection, self.app.amqp.Producer(connection) as producer:
            return super().apply_async(*args, **{**options, "producer": producer})


@pytest.mark.parametrize("settings", [{"task_queues": [Queue("celery"), Broadcast("everybody")]}])
@pytest.mark.parametrize("fields", [{"task": "own"}, {"options": {"queue": "everybody"}}], ids=str)
def test_message_that_leaves_before_its_commit_is_held_back(
    scheduler: RedBeatScheduler, client: redis.Redis, server: Server, fields: dict[str, Any]
) -> None:
    @scheduler.app.task(name="own", base=SendsByItself, shared=False)
    def own() -> None:
        pass

    write_tracked(client, overlap="skip")
    write_raw(client, "entry", score=None, schedule=HOURLY, **fields)
    with monitoring(server) as commands:
        for _ in range(2):
            scheduler.tick()
            make_due_again(client)
    assert len([one for one in commands if one.startswith(("LPUSH celery", "PUBLISH /0.everybody"))]) == 1
    assert [record.get("outcome") for record in history_of(client, "entry")] == ["skipped", None]


def test_waiting_run_is_known_however_the_server_writes_its_due_time(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    """Valkey writes some scores with an exponent: of 17 digits, say."""
    hold(scheduler.app, client)
    first = write_tracked(client, overlap="buffer_one")
    scheduler.tick()
    waiting = running_of(client, "entry")[""]
    whole, fraction = f"{first:.6f}".split(".")
    exponent = f"{whole[0]}.{whole[1:]}{fraction}e+{len(whole) - 1}"
    client.hset(RUNNING, "", json.dumps({**waiting, "due": exponent}))
    make_due_again(client)
    scheduler.tick()
    assert running_of(client, "entry")[""]["due"] == exponent
    skipped, _ = history_of(client, "entry")[:2]
    assert (skipped["outcome"], skipped["behind"]) == ("skipped", expected_id("entry", first))


# -- a run that waits


def let_one_wait(
    scheduler: RedBeatScheduler, client: redis.Redis, **policy: Any
) -> tuple[Progress, Any, float]:
    """A run of another id is at work, and that of the entry waits for it; returns when that was due."""
    progress = Progress(scheduler.app, client)
    delivery = progress.started("entry", "other")
    due = write_tracked(client, **{"overlap": "buffer_one", **policy})
    scheduler.tick()
    assert "" in running_of(client, "entry")
    return progress, delivery, due


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("overlap", ["buffer_one", "replace"])
def test_waiting_run_is_sent_when_the_one_before_it_has_ended(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, overlap: str
) -> None:
    progress, delivery, due = let_one_wait(scheduler, client, overlap=overlap)
    following = score_of(client, "entry")
    assert following == pytest.approx(due + 3600, abs=1e-3)
    progress.end(delivery, "succeeded")
    assert scheduler.tick() == 0, "it is looked at"
    scheduler.tick()
    [message] = messages(broker)
    assert message["headers"]["id"] == expected_id("entry", due)
    assert list(running_of(client, "entry")) == [expected_id("entry", due)]
    assert score_of(client, "entry") == following
    assert client.hget("redbeat:entry", "lease") is None
    assert client.zrange(DEADLINES, 0, -1) == [f"{expected_id('entry', due)}\0{RUNNING}"]
    assert field(client, "entry", "meta")["total_run_count"] == 1
    scheduler.tick()
    assert len(messages(broker)) == 1, "once"


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize(
    ("fields", "policy", "why"),
    [
        ({"enabled": False}, {}, "disabled"),
        ({"enabled": False}, {"paused": True, "pause_note": "repairs"}, "repairs"),
        ({"meta": meta_json(None, 1)}, {"max_runs": 1}, "max_runs"),
        ({}, {"expires_after": 1}, "expires_after"),
    ],
    ids=["disabled", "paused", "finished", "expired"],
)
def test_waiting_run_is_dropped_where_its_entry_may_not_run(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    fields: dict[str, Any],
    policy: dict[str, Any],
    why: str,
) -> None:
    progress, delivery, due = let_one_wait(scheduler, client)
    write_raw(client, "entry", score=None, schedule=HOURLY, **fields)
    client.hset("redbeat:entry", "policy", json.dumps({"overlap": "buffer_one", **policy}))
    following = score_of(client, "entry")
    progress.end(delivery, "succeeded")
    for _ in range(3):
        scheduler.tick()
    assert (messages(broker), score_of(client, "entry")) == ([], following)
    assert client.exists(RUNNING, DEADLINES) == 0
    [record, *_] = found = history_of(client, "entry")
    assert (record["outcome"], record["due"]) == ("skipped", pytest.approx(due, abs=1e-6))
    assert why in record["why"]
    assert "waiting" not in [one.get("outcome") for one in found], "it stands in the history once"


def test_replace_lets_a_run_begin_though_messages_are_slow(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    progress = Progress(scheduler.app, client)

    def begin(due: float) -> tuple[str, Any]:
        delivery = progress.delivery("entry", expected_id("entry", due), due, overlap="replace")
        return progress.begin(delivery), delivery

    first = write_tracked(client, overlap="replace")
    scheduler.tick()
    second = make_due_again(client)
    scheduler.tick()
    answer, delivery = begin(first)
    assert answer == "superseded"
    progress.end(delivery, "superseded")
    for _ in range(2):
        scheduler.tick()
    ids = [expected_id("entry", due) for due in (first, second)]
    assert [message["headers"]["id"] for message in messages(broker)] == ids
    make_due_again(client)
    scheduler.tick()
    assert "terminate" not in running_of(client, "entry")[ids[1]]
    assert begin(second)[0] == "go"
    make_due_again(client)
    scheduler.tick()
    assert running_of(client, "entry")[ids[1]]["terminate"] == "replaced"


def test_later_run_is_sent_after_the_waiting_one(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    _progress, _delivery, due = let_one_wait(scheduler, client)
    client.hdel(RUNNING, "other")  # and nobody says so
    client.zrem(DEADLINES, f"other\0{RUNNING}")
    later = round(server_now(client) - 1, 6)
    client.zadd(SCHEDULE, {"redbeat:entry": later})
    for _ in range(3):
        scheduler.tick()
    assert [message["headers"]["id"] for message in messages(broker)] == [expected_id("entry", due)]
    held = [record for record in history_of(client, "entry") if record.get("outcome") == "skipped"]
    assert held[0]["due"] == pytest.approx(later)


def test_save_does_not_lose_the_waiting_run(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    progress, delivery, due = let_one_wait(scheduler, client)
    progress.end(delivery, "succeeded")
    scheduler.tick()  # it is released
    Entry.get("entry", scheduler.app).update(args=[1])
    client.zadd(SCHEDULE, {"redbeat:entry": server_now(client) + 1000})
    client.zadd(DEADLINES, {f"\0{RUNNING}": 1})  # half a minute later
    for _ in range(3):
        scheduler.tick()
    assert [message["headers"]["id"] for message in messages(broker)] == [expected_id("entry", due)]
    assert (score_of(client, "entry") or 0) > server_now(client) + 900


def test_deleted_entry_leaves_no_waiting_run(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    progress, delivery, _due = let_one_wait(scheduler, client)
    Entry.get("entry", scheduler.app).delete()
    progress.end(delivery, "succeeded")
    for _ in range(2):
        scheduler.tick()
    assert messages(broker) == []
    assert client.exists(DEADLINES, RUNNING) == 0


def test_run_never_started_is_given_up_after_a_lease(
    scheduler: RedBeatScheduler, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = write_tracked(client, overlap="buffer_one", queue_timeout=1)
    scheduler.tick()
    [member] = client.zrange(DEADLINES, 0, -1)
    for seconds, is_given_up in ((0.0, False), (1000.0, True)):  # it has watched for so long
        monkeypatch.setattr(Watch, "seconds", seconds)
        client.zadd(DEADLINES, {member: 1})
        scheduler.tick()
        assert list(running_of(client, "entry")) == [expected_id("entry", due)] * (not is_given_up)
    assert history_of(client, "entry")[0]["outcome"] == "never_started"
