"""Runs in progress as beat notes them, and those that another run of their entry holds back."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
import redis
from celery import Task
from kombu import Queue
from kombu.common import Broadcast

import redbeat.store.store
from redbeat import RedBeatScheduler, track_runs
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat import log
from redbeat.beat.planner import OrdinaryRun, plan_run
from redbeat.store.records import Fence, Held, Push, Target
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.progress import NAMES, Progress, history_of, running_of
from tests.support.schedule import (
    DEADLINES,
    SCHEDULE,
    expected_id,
    field,
    messages,
    monitoring,
    score_of,
    server_now,
    write_burst,
    write_raw,
)
from tests.support.servers import Server

HOURLY = {"__type__": "interval", "every": 3600}


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


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("policy", [{"max_runtime": 60}, {"overlap": "skip"}, {"tracks": "workflow"}])
def test_a_run_whose_policy_needs_it_is_noted_by_the_step_that_sends_it(
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


def test_a_run_that_needs_none_leaves_no_trace(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    write_tracked(client)
    scheduler.tick()
    assert running_of(client, "entry") == {}
    assert client.exists(DEADLINES) == 0


def test_an_app_that_tracks_runs_has_all_of_them_noted(
    make_scheduler: MakeScheduler, make_app: MakeApp, client: redis.Redis
) -> None:
    app = make_app()
    track_runs(app)
    names = write_burst(client, 20)
    make_scheduler(app).tick()
    assert all(len(running_of(client, name)) == 1 for name in names)
    assert client.zcard(DEADLINES) == 20


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


def hold(app: Any, client: redis.Redis, task_id: str = "other", **record: Any) -> Progress:
    """Let another run of the entry be in progress."""
    progress = Progress(app, client)
    progress.send("entry", task_id, **record)
    return progress


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


def test_a_run_that_is_left_out_is_told_of_a_retry_and_its_time_and_of_a_workflow_and_its_beginning(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    progress = Progress(scheduler.app, client)
    retried = progress.started("entry", "retried", overlap="skip")
    progress.end(retried, "retrying", retry_seconds=3600)
    write_tracked(client, overlap="skip")
    scheduler.tick()
    held = history_of(client, "entry")[0]
    assert (held["held_by"], held["held_state"], held["held_attempt"]) == ("retried", "retrying", 2)
    assert held["since"] > server_now(client) + 3000

    client.delete(NAMES.about("entry").running)
    root = progress.started("entry", "root", overlap="skip", workflow=1)
    progress.runs.note_child(root, "child")
    progress.end(root, "succeeded")
    began = float(running_of(client, "entry")["root"]["started"])
    assert progress.begin(progress.delivery("entry", "child", root="root", worker="celery@other")) == "go"
    make_due_again(client)
    scheduler.tick()
    held = history_of(client, "entry")[0]
    assert (held["held_by"], held["held_state"], held["worker"]) == ("root", "spawned", "celery@test")
    assert held["since"] == pytest.approx(began, abs=1e-5)


@pytest.mark.parametrize(
    "record",
    [{"state": "started"}, {"state": "retrying"}, {"state": "sent"}, {"state": "started", "soft": 1}],
)
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


@pytest.mark.parametrize("seconds", ["NaN", "1e999", '"nan"', "1e14", "-1e14", "1e12", '"1e11"'])
@pytest.mark.parametrize("member", ["started", "sent", "queue", "max", "due"])
def test_a_time_that_is_none_in_the_record_of_a_run_ends_no_beat(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    member: str,
    seconds: str,
) -> None:
    caplog.set_level("INFO")
    running = NAMES.about("entry").running
    client.hset(running, "other", f'{{"state": "started", "due": "5", "{member}": {seconds}}}')
    client.zadd(DEADLINES, {f"other\0{running}": 1})
    write_tracked(client, overlap="skip")
    write_raw(client, "canary", score=1)
    for _ in range(3):
        scheduler.tick()
    assert "canary" in [message["headers"]["redbeat_entry"] for message in messages(broker)]


def test_deadlines_of_another_type_are_told_of_once_and_keep_nothing_from_being_sent(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(redbeat.store.store, "TYPES_SECONDS", 0.0)
    client.set(DEADLINES, "spoilt")
    for number in range(3):
        write_tracked(client, f"entry-{number}", overlap="buffer_one")
        scheduler.tick()
    assert len(messages(broker)) == 3
    [line] = [text for text in caplog.messages if DEADLINES in text]
    assert f"{DEADLINES} holds something that is no sorted set" in line


@pytest.mark.parametrize(
    "record",
    [
        {"state": "ended"},
        {"state": "started", "overdue": 1},
        {"state": ["sent"]},
        "[1]",
        "{oops",
        "",
    ],
)
def test_what_is_no_run_in_progress_holds_nothing_back(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, record: Any
) -> None:
    text = record if isinstance(record, str) else json.dumps({"due": "5", **record})
    client.hset(NAMES.about("entry").running, "other", text)
    write_tracked(client, overlap="skip")
    scheduler.tick()
    assert len(messages(broker)) == 1


def test_a_run_of_the_same_id_and_time_is_itself(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    due = write_tracked(client, overlap="skip")
    hold(scheduler.app, client, expected_id("entry", due), due=due)
    scheduler.tick()
    assert len(messages(broker)) == 1


def test_an_entry_with_a_task_id_of_its_own_is_held_back_by_its_run_before(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    due = write_tracked(client, overlap="skip")
    write_raw(client, "entry", score=due, schedule=HOURLY, options={"task_id": "mine"})
    for _ in range(2):
        scheduler.tick()
        make_due_again(client)
    assert [message["headers"]["id"] for message in messages(broker)] == ["mine"]


@pytest.mark.parametrize("policy", [{"one_off": True}, {"max_runs": 1, "after_finish": "delete"}])
def test_a_last_run_that_is_held_back_is_not_the_last(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, policy: dict[str, Any]
) -> None:
    hold(scheduler.app, client, state="started")
    due = write_tracked(client, overlap="skip", **policy)
    scheduler.tick()
    assert messages(broker) == []
    assert score_of(client, "entry") == pytest.approx(due + 3600, abs=1e-3)
    assert history_of(client, "entry")[0]["outcome"] == "skipped"
    client.delete(NAMES.about("entry").running)
    make_due_again(client)
    scheduler.tick()
    assert len(messages(broker)) == 1
    assert score_of(client, "entry") in (None, -1)


@pytest.mark.parametrize("overlap", ["allow", "skip"])
@EVERY_KIND_OF_LOCK
def test_a_key_that_is_no_hash_costs_the_runs_of_that_entry_if_its_policy_needs_it(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, overlap: str
) -> None:
    client.set(NAMES.about("entry").running, "oops")
    due = write_tracked(client, overlap=overlap, max_runtime=60)
    write_tracked(client, "other", overlap="skip")
    scheduler.tick()
    sent = {message["headers"]["redbeat_entry"] for message in messages(broker)}
    assert sent == ({"other"} if overlap == "skip" else {"entry", "other"})
    error = field(client, "entry", "error")
    assert (error is not None) is (overlap == "skip")
    if error:
        assert "no hash of runs" in error["reason"]
        client.delete(NAMES.about("entry").running)
        client.zadd(SCHEDULE, {"redbeat:entry": float(error["retry_at"]) - 60})
        error["retry_at"] = f"{float(error['retry_at']) - 60:.6f}"
        client.hset("redbeat:entry", "error", json.dumps(error))
        scheduler.tick()
        assert list(running_of(client, "entry")) == [expected_id("entry", due)], "the same run, later"


def test_a_run_that_was_asked_for_is_held_back_too(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    hold(scheduler.app, client)
    write_tracked(client, overlap="skip")
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    scheduler.tick()
    assert messages(broker) == []
    assert (score_of(client, "entry") or 0) > server_now(client)
    assert client.hget("redbeat:entry", "lease") is None


def test_all_missed_runs_but_the_first_are_held_back(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_raw(
        client, "entry", score=server_now(client) - 35.5, schedule={"__type__": "interval", "every": 10}
    )
    client.hset("redbeat:entry", "policy", json.dumps({"misfire": "all", "overlap": "skip"}))
    for _ in range(5):
        scheduler.tick()
    assert len(messages(broker)) == 1
    assert [record.get("outcome") for record in history_of(client, "entry")] == ["skipped"] * 3 + [None]


def test_runs_that_are_left_out_before_it_are_told_of_too(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    hold(scheduler.app, client)
    write_raw(
        client, "entry", score=server_now(client) - 35.5, schedule={"__type__": "interval", "every": 10}
    )
    client.hset("redbeat:entry", "policy", json.dumps({"overlap": "skip"}))
    scheduler.tick()
    held, merged, _other = history_of(client, "entry")
    assert (held["outcome"], merged["outcome"]) == ("skipped", "merged")


def test_a_run_that_is_held_back_costs_no_round_trip_more(
    scheduler: RedBeatScheduler, client: redis.Redis, server: Server
) -> None:
    def commands() -> int:
        with monitoring(server) as seen:
            scheduler.tick()
        return len(seen)

    for policy in ({}, {"overlap": "skip"}):  # scripts, connections and shapes are known then
        write_tracked(client, **policy)
        scheduler.tick()
    make_due_again(client)
    scheduler.tick()  # it is asked then whether a worker tracks runs, and for a minute not again
    make_due_again(client)
    held = commands()
    client.delete(NAMES.about("entry").running)
    make_due_again(client)
    assert held == commands()


class SendsByItself(Task):  # type: ignore[type-arg]
    """Its messages leave by a producer of its own, so beat can't collect them."""

    def apply_async(self, *args: Any, **options: Any) -> Any:
        with self.app.connection_for_write() as connection, self.app.amqp.Producer(connection) as producer:
            return super().apply_async(*args, **{**options, "producer": producer})


@pytest.mark.parametrize("settings", [{"task_queues": [Queue("celery"), Broadcast("everybody")]}])
@pytest.mark.parametrize("way", ["producer", "broadcast"])
def test_a_message_that_leaves_at_once_is_held_back_too(
    scheduler: RedBeatScheduler, client: redis.Redis, server: Server, way: str
) -> None:
    @scheduler.app.task(name="own", base=SendsByItself, shared=False)
    def own() -> None:
        pass

    definition: dict[str, Any] = {"task": "own"} if way == "producer" else {"options": {"queue": "everybody"}}
    write_raw(client, "entry", score=server_now(client) - 5, schedule=HOURLY, **definition)
    client.hset("redbeat:entry", "policy", json.dumps({"overlap": "skip"}))
    with monitoring(server) as seen:
        for _ in range(2):
            scheduler.tick()
            make_due_again(client)
            scheduler.tick()
    left = [one for one in seen if one.startswith(("LPUSH celery", "PUBLISH /0.everybody"))]
    assert len(left) == 1
    assert [record.get("outcome") for record in history_of(client, "entry")] == ["skipped"] * 2 + [None]


@pytest.mark.parametrize("settings", [{"redbeat_delivery": "at_most_once"}])
def test_with_at_most_once_a_run_that_is_held_back_is_not_sent(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_tracked(client, overlap="skip")
    scheduler.tick()
    make_due_again(client)
    scheduler.tick()
    assert len(messages(broker)) == 1
    assert [record.get("outcome") for record in history_of(client, "entry")] == ["skipped", None]


def test_an_entry_shows_why_a_run_was_held_back(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    hold(scheduler.app, client, state="started", worker="celery@here", started=f"{server_now(client):.6f}")
    write_tracked(client, overlap="skip")
    scheduler.tick()
    run = Entry.get("entry", scheduler.app).history()[0]
    assert run.outcome == "skipped"
    assert "other" in run.why
    assert "celery@here" in run.why


@pytest.mark.parametrize("settings", [{}, {"redbeat_lock_key": None}], ids=["lock", "no-lock"])
def test_two_beats_send_one_of_two_runs_that_are_due_together(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, settings: dict[str, Any]
) -> None:
    """The second has planned its run before the first has sent its own."""
    first = make_scheduler(**settings)
    due = write_tracked(client, due=int(server_now(client)) - 5.5, overlap="skip")
    claimed = first.store.claim_due(Fence(), 1).rows[0]
    runs = [plan_run(Entry, first.app, claimed, server_now(client))]
    later = replace(claimed, nominal=f"{due + 1}", score=f"{due + 1}")
    runs.append(plan_run(Entry, first.app, later, server_now(client)))
    server, db = str(client.info("server")["run_id"]), 1
    results = []
    for run, score in zip(runs, (due, due + 1), strict=True):
        assert isinstance(run, OrdinaryRun)
        client.zadd(SCHEDULE, {"redbeat:entry": score})
        run.sent.new_meta = None
        run.sent.pushes = (Push("lpush", "celery", run.sent.task_id),)
        committed = Store(first.app).commit_runs(Fence(), [run.sent], Target(server, db, 0))
        results += committed.results
    assert results[0] is True
    assert isinstance(results[1], Held)
    assert broker.lrange("celery", 0, -1) == [expected_id("entry", due)]


def test_a_run_that_was_prepared_is_held_back_too(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = make_scheduler()
    due = write_tracked(client, due=round(server_now(client) + 3, 6), overlap="skip")
    scheduler.look_ahead.note_clock(server_now(client))
    scheduler.look_ahead.prepare()
    assert len(scheduler.look_ahead) == 1
    hold(scheduler.app, client)
    while server_now(client) < due + 0.01:
        time.sleep(0.05)
    scheduler.tick()
    assert messages(broker) == []
    assert history_of(client, "entry")[0]["outcome"] == "skipped"
    assert score_of(client, "entry") == pytest.approx(due + 3600, abs=1e-3)


@pytest.mark.parametrize("change", ["save", "delete", "policy"])
def test_an_entry_that_changed_since_its_claim_is_left_alone(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    write_tracked(client, overlap="skip")
    commits = Store.commits

    def commit(store: Store, *args: Any, **options: Any) -> Any:
        if change == "delete":
            client.delete("redbeat:entry")
            client.zrem(SCHEDULE, "redbeat:entry")
        elif change == "save":
            write_raw(client, "entry", score=server_now(client) + 1000, args=[1])
        else:
            client.hset("redbeat:entry", "policy", json.dumps({"overlap": "allow"}))
        return commits(store, *args, **options)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "commits", commit)
        scheduler.tick()
    assert messages(broker) == []
    assert running_of(client, "entry") == {}
    assert client.exists(DEADLINES) == 0


def test_an_app_may_begin_to_track_runs_while_beat_runs(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    write_tracked(client)
    scheduler.tick()
    assert running_of(client, "entry") == {}
    track_runs(scheduler.app)
    make_due_again(client)
    scheduler.tick()
    assert len(running_of(client, "entry")) == 1


@pytest.mark.parametrize("way", ["compiled", "ordinary"])
def test_the_log_tells_of_sending_only_what_is_sent(
    make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    scheduler = make_scheduler(**({} if way == "compiled" else {"redbeat_message_cache_bytes": 0}))
    write_tracked(client, overlap="skip")
    with caplog.at_level("INFO", "celery.beat"):
        scheduler.tick()
        assert sum("Sending due task entry" in message for message in caplog.messages) == 1
        caplog.clear()
        make_due_again(client)
        scheduler.tick()
    assert [message for message in caplog.messages if "Sending" in message] == []
    assert sum("Skipped the run of entry" in message for message in caplog.messages) == 1


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("has_worker", [True, False])
def test_the_log_says_so_if_a_run_is_held_back_while_no_live_worker_tracks_runs(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    compiled: bool,
    has_worker: bool,
) -> None:
    monkeypatch.setattr(log, "WORKERS_SECONDS", 0.0)  # between two looks
    scheduler = make_scheduler(**({} if compiled else {"redbeat_message_cache_bytes": 0}))
    if has_worker:
        client.hset(NAMES.workers, "celery@test", json.dumps({"at": server_now(client)}))
    write_tracked(client, overlap="skip")
    for _ in range(3):
        scheduler.tick()
        make_due_again(client)
    said = [message for message in caplog.messages if "no live worker tracks runs" in message]
    assert len(said) == (0 if has_worker else 1)
    assert all("A run of entry was held back" in message for message in said)
    assert all("redbeat.track_runs(app)" in message for message in said)


def test_the_run_that_waits_is_known_however_the_server_writes_its_due_time(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    """Valkey writes some scores with an exponent: of 17 digits, say."""
    hold(scheduler.app, client)
    first = write_tracked(client, overlap="buffer_one")
    scheduler.tick()
    waiting = running_of(client, "entry")[""]
    whole, fraction = f"{first:.6f}".split(".")
    exponent = f"{whole[0]}.{whole[1:]}{fraction}e+{len(whole) - 1}"
    client.hset(NAMES.about("entry").running, "", json.dumps({**waiting, "due": exponent}))
    make_due_again(client)
    scheduler.tick()
    assert running_of(client, "entry")[""]["due"] == exponent
    skipped, _ = history_of(client, "entry")[:2]
    assert (skipped["outcome"], skipped["behind"]) == ("skipped", expected_id("entry", first))
