"""A run that waits for the one before it to end: it goes then, as it was due, and its entry goes on."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
import redis

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat import log
from redbeat.beat.supervision import Watch
from redbeat.errors import StoreCorrupt, StoreRefused
from redbeat.store.records import Fence
from redbeat.store.runs import Runs, Settlement
from tests.integration.conftest import EVERY_KIND_OF_LOCK
from tests.support.logs import errors_in
from tests.support.progress import NAMES, Progress, history_of, running_of
from tests.support.schedule import (
    DEADLINES,
    SCHEDULE,
    expected_id,
    field,
    messages,
    score_of,
    server_now,
    write_raw,
)

HOURLY = {"__type__": "interval", "every": 3600}
RUNNING = NAMES.about("entry").running


def write_entry(client: redis.Redis, due: float | None = None, **policy: Any) -> float:
    """An hourly entry that lets one run wait, and is due since a moment, or then; returns when."""
    due = round(server_now(client) - 5, 6) if due is None else due
    write_raw(client, "entry", score=due, schedule=HOURLY)
    client.hset("redbeat:entry", "policy", json.dumps({"overlap": "buffer_one", **policy}))
    return due


def let_one_wait(
    scheduler: RedBeatScheduler, client: redis.Redis, **policy: Any
) -> tuple[Progress, Any, float]:
    """A run of another id is at work, and that of the entry waits for it; returns when that was due."""
    progress = Progress(scheduler.app, client)
    delivery = progress.started("entry", "other")
    due = write_entry(client, **policy)
    scheduler.tick()
    assert "" in running_of(client, "entry")
    return progress, delivery, due


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("overlap", ["buffer_one", "replace"])
def test_it_goes_as_soon_as_the_one_before_it_has_ended(
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
    ("change", "why"),
    [
        ({"enabled": False}, "disabled"),
        (
            {"policy": {"overlap": "buffer_one", "paused": True, "pause_note": "repairs"}, "enabled": False},
            "repairs",
        ),
        ({"policy": {"overlap": "buffer_one", "max_runs": 0 + 1}, "meta": 1}, "max_runs"),
        ({"policy": {"overlap": "buffer_one", "expires_after": 1}}, "expires_after"),
    ],
    ids=["disabled", "paused", "finished", "expired"],
)
def test_it_is_dropped_where_it_may_not_run_any_more(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, change: dict[str, Any], why: str
) -> None:
    progress, delivery, due = let_one_wait(scheduler, client)
    definition = field(client, "entry", "definition") | {"enabled": change.get("enabled", True)}
    client.hset("redbeat:entry", "definition", json.dumps(definition))
    if "policy" in change:
        client.hset("redbeat:entry", "policy", json.dumps(change["policy"]))
    if "meta" in change:
        client.hset("redbeat:entry", "meta", json.dumps({"last_run_at": None, "total_run_count": 1}))
    following = score_of(client, "entry")
    progress.end(delivery, "succeeded")
    for _ in range(3):
        scheduler.tick()
    assert messages(broker) == []
    assert running_of(client, "entry") == {}
    assert client.zcard(DEADLINES) == 0
    assert score_of(client, "entry") == following
    record = history_of(client, "entry")[0]
    assert (record["outcome"], record["due"]) == ("skipped", pytest.approx(due, abs=1e-6))
    assert why in record["why"]


def test_with_replace_a_run_begins_though_messages_take_longer_than_from_one_due_time_to_the_next(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    progress = Progress(scheduler.app, client)
    first = write_entry(client, overlap="replace")

    def be_due() -> float:
        due = round(server_now(client) - 1, 6)
        client.zadd(SCHEDULE, {"redbeat:entry": due})
        scheduler.tick()
        return due

    scheduler.tick()
    second = be_due()
    delivery = progress.delivery("entry", expected_id("entry", first), first, overlap="replace")
    assert progress.begin(delivery) == "superseded"
    progress.end(delivery, "superseded")
    for _ in range(2):
        scheduler.tick()
    task_ids = [message["headers"]["id"] for message in messages(broker)]
    assert sorted(task_ids) == sorted([expected_id("entry", first), expected_id("entry", second)])
    be_due()
    record = running_of(client, "entry")[expected_id("entry", second)]
    assert "terminate" not in record
    assert (
        progress.begin(progress.delivery("entry", expected_id("entry", second), second, overlap="replace"))
        == "go"
    )
    be_due()
    assert running_of(client, "entry")[expected_id("entry", second)]["terminate"] == "replaced"


def test_it_waits_on_if_another_one_was_sent_meanwhile(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    progress, delivery, due = let_one_wait(scheduler, client)
    following = score_of(client, "entry")
    progress.end(delivery, "succeeded")
    scheduler.tick()  # it is released
    again = progress.started("entry", "triggered")
    scheduler.tick()
    assert messages(broker) == []
    assert (score_of(client, "entry"), client.hget("redbeat:entry", "lease")) == (following, None)
    progress.end(again, "succeeded")
    for _ in range(2):
        scheduler.tick()
    assert [message["headers"]["id"] for message in messages(broker)] == [expected_id("entry", due)]


def test_a_later_run_goes_after_it(
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


def test_a_save_in_between_doesn_t_lose_it(
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


def test_a_deleted_entry_leaves_nothing_waiting(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    progress, delivery, _due = let_one_wait(scheduler, client)
    Entry.get("entry", scheduler.app).delete()
    progress.end(delivery, "succeeded")
    for _ in range(2):
        scheduler.tick()
    assert messages(broker) == []
    assert client.exists(DEADLINES, RUNNING) == 0


@pytest.mark.parametrize("policy", [{"one_off": True}, {"max_runs": 1, "after_finish": "delete"}])
def test_the_last_run_of_an_entry_may_wait(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, policy: dict[str, Any]
) -> None:
    progress, delivery, due = let_one_wait(scheduler, client, **policy)
    progress.end(delivery, "failed")
    for _ in range(3):
        scheduler.tick()
    assert [message["headers"]["id"] for message in messages(broker)] == [expected_id("entry", due)]
    assert score_of(client, "entry") in (None, -1)
    assert "" not in running_of(client, "entry")


@pytest.mark.parametrize(
    "member", ["garbage", "id\0elsewhere:running", "\0", "id\0redbeat:entry", "\0redbeat:"]
)
def test_what_is_no_deadline_goes(scheduler: RedBeatScheduler, client: redis.Redis, member: str) -> None:
    write_entry(client)
    client.zadd(DEADLINES, {member: 5})
    for _ in range(2):
        scheduler.tick()
    assert member not in client.zrange(DEADLINES, 0, -1)


def test_deadlines_that_are_no_sorted_set_keep_nothing_from_being_sent(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    client.set(DEADLINES, "oops")
    write_entry(client)
    scheduler.tick()
    assert len(messages(broker)) == 1


def test_a_run_that_no_worker_has_begun_is_given_up_when_beat_has_watched_for_a_lease(
    scheduler: RedBeatScheduler, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    due = write_entry(client, queue_timeout=1)
    scheduler.tick()
    [member] = client.zrange(DEADLINES, 0, -1)
    client.zadd(DEADLINES, {member: 1})
    scheduler.tick()
    assert list(running_of(client, "entry")) == [expected_id("entry", due)], (
        "it hasn't watched for long enough"
    )
    monkeypatch.setattr(Watch, "seconds", 1000.0)
    client.zadd(DEADLINES, {member: 1})
    scheduler.tick()
    assert running_of(client, "entry") == {}
    assert history_of(client, "entry")[0]["outcome"] == "never_started"


@pytest.mark.parametrize("error", [StoreRefused("ERR no"), StoreCorrupt("no hash", "redbeat::failing:entry")])
def test_what_can_t_be_settled_is_told_of_once_and_tried_again_with_pauses(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    progress, delivery, due = let_one_wait(scheduler, client)
    progress.end(delivery, "succeeded")
    settle, other = Runs.settle, f"other\0{NAMES.about('else').running}"
    client.zadd(DEADLINES, {other: 1})

    def settle_others(runs: Runs, fence: Fence, settlements: Sequence[Settlement]) -> list[str]:
        if any(one.name == "entry" for one in settlements):
            raise error
        return settle(runs, fence, settlements)

    with monkeypatch.context() as patched:
        patched.setattr(Runs, "settle", settle_others)
        assert all(scheduler.tick() > 0 for _ in range(2))
    assert client.zscore(DEADLINES, other) is None, "the others are settled"
    assert len(errors_in(caplog)) == 1
    for _ in range(2):
        scheduler.tick()
    assert expected_id("entry", due) in running_of(client, "entry")


def test_the_log_names_runs_that_are_lost_never_started_or_overdue_once(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Watch, "seconds", 1000.0)
    progress = Progress(scheduler.app, client)
    progress.started("gone", "lost-id")
    progress.send("queued", "queued-id")
    progress.started("slow", "slow-id", max=0.001)
    progress.started("well", "well-id")
    expire = {member: 1 for member in client.zrange(DEADLINES, 0, -1) if not member.startswith("well")}
    client.zadd(DEADLINES, expire)
    for _ in range(3):
        scheduler.tick()

    def said(words: str) -> list[str]:
        return [message for message in caplog.messages if words in message]

    [lost] = said("The run lost-id of gone is lost: its lease ran out")
    assert "celery@test" in lost
    assert len(said("The run queued-id of queued is never_started: no worker")) == 1
    assert len(said("The run slow-id of slow is overdue: it is at work on celery@test")) == 1
    assert said("well-id") == []
    assert said("no live worker tracks runs") == [], "one may be about to start"


def test_the_log_says_so_if_runs_never_start_while_no_live_worker_tracks_any(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Watch, "seconds", 1000.0)
    monkeypatch.setattr(log, "WORKERS_SECONDS", 0.0)  # between two looks
    progress = Progress(scheduler.app, client)
    for number in range(3):
        progress.send(f"job-{number}", "id")
        client.zadd(DEADLINES, dict.fromkeys(client.zrange(DEADLINES, 0, -1), 1))
        scheduler.tick()
    [said] = [message for message in caplog.messages if "no live worker tracks runs" in message]
    assert "A run of job-1 was given up as never_started" in said


def test_the_log_names_no_run_that_was_renewed_or_ended_before_it_could_be_settled(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Watch, "seconds", 1000.0)
    progress = Progress(scheduler.app, client)
    renewed, ended = progress.started("renewed", "renewed-id"), progress.started("ended", "ended-id")
    client.zadd(DEADLINES, dict.fromkeys(client.zrange(DEADLINES, 0, -1), 1))
    settle = Runs.settle

    def settle_later(runs: Runs, fence: Fence, settlements: Sequence[Settlement]) -> list[str]:
        assert {one.word for one in settlements} == {"lost"}
        runs.renew([(renewed, 1.0)], 30_000, "celery@test")
        progress.end(ended, "succeeded")
        return settle(runs, fence, settlements)

    monkeypatch.setattr(Runs, "settle", settle_later)
    scheduler.tick()
    assert [message for message in caplog.messages if " is lost" in message] == []
    assert history_of(client, "ended")[0]["outcome"] == "succeeded"
