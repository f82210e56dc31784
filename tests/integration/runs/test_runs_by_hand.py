"""Runs that somebody sends by hand keep to the entry's overlap, and are tracked as those of beat."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from threading import Barrier
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryBusy, EntryError, LockNotAcquired
from redbeat.store.records import TrackedRun
from redbeat.store.runs import Delivery
from redbeat.task_ids import rerun_id_of
from tests.support.progress import NAMES, Progress
from tests.support.schedule import messages

Send = Callable[[Entry], object]


@pytest.fixture
def entry(app: Celery) -> Entry:
    return Entry("entry", "echo", 60, overlap="skip", app=app).save()


def fail(progress: Progress, name: str = "entry", due: float = 1000.0) -> str:
    """A run that has failed; returns its task id."""
    task_id = f"{name}-{due:g}"
    progress.end(progress.started(name, task_id, due), "failed", error="ValueError: no")
    return task_id


def backfill(entry: Entry) -> object:
    """One run of the last two minutes."""
    now = datetime.now(timezone.utc)
    [due, *_] = entry.backfill(now - timedelta(minutes=2), now, dry_run=True)
    return entry.backfill(due, due)


WAYS: dict[str, Send] = {"trigger": Entry.trigger, "rerun": Entry.rerun, "backfill": backfill}


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "replace"])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_by_hand_is_refused_while_another_one_is_in_progress(
    app: Celery, progress: Progress, broker: redis.Redis, way: str, overlap: Any
) -> None:
    entry = Entry("entry", "echo", 60, overlap=overlap, app=app).save()
    fail(progress)
    delivery = progress.started("entry", "holder", 2000.0)
    before = progress.history("entry")
    with pytest.raises(EntryBusy, match="the run holder is in progress on celery@test since") as refused:
        WAYS[way](entry)
    assert (refused.value.key, refused.value.task_id) == ("redbeat:entry", "holder")
    assert messages(broker) == []
    assert progress.history("entry") == before
    assert set(progress.running("entry")) == {"holder"}, "nothing waits"
    assert "terminate" not in progress.running("entry")["holder"]
    progress.end(delivery, "succeeded")
    WAYS[way](entry)
    assert len(messages(broker)) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_run_by_hand_is_in_progress_from_when_it_is_sent(
    entry: Entry, progress: Progress, broker: redis.Redis, way: str
) -> None:
    fail(progress)
    WAYS[way](entry)
    [message] = messages(broker)
    task_id = message["headers"]["id"]
    [run] = entry.running()
    assert (run.task_id, run.state, run.is_running) == (task_id, "sent", True)
    deadline = progress.deadline_of("entry", task_id) or 0
    assert deadline == pytest.approx(progress.now + 3600, abs=60)
    due = datetime.fromisoformat(message["headers"]["redbeat_due"]).timestamp()
    delivery = progress.delivery("entry", task_id, due, overlap="skip")
    assert progress.begin(delivery) == "go"
    progress.end(delivery, "succeeded", run_seconds=1.0)
    assert entry.running() == []
    assert (entry.history()[0].task_id, entry.history()[0].outcome) == (task_id, "succeeded")


def test_rerun_that_ends_at_once_is_not_a_late_end_of_the_run_it_repeats(
    entry: Entry, progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = fail(progress)

    def publish(*_args: Any, task_id: str, **_options: Any) -> None:
        delivery = progress.delivery("entry", task_id, 1000.0, overlap="skip")
        assert progress.begin(delivery) == "go"
        progress.end(delivery, "succeeded")

    monkeypatch.setattr(entry.app, "send_task", publish)
    entry.rerun()
    again, first = entry.history()
    assert (again.outcome, again.rerun_of, again.late) == ("succeeded", failed, None)
    assert (first.task_id, first.outcome, first.late) == (failed, "failed", None)
    assert entry.running() == []


@pytest.mark.parametrize("way", WAYS)
def test_what_could_not_be_sent_leaves_nothing_behind(
    entry: Entry, progress: Progress, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    fail(progress)
    before = progress.history("entry")

    def refuse(*_args: Any, **_options: Any) -> None:
        raise OSError("the broker is away")

    with monkeypatch.context() as patch:
        patch.setattr(entry.app, "send_task", refuse)
        with pytest.raises(OSError, match="away"):
            WAYS[way](entry)
    assert progress.history("entry") == before
    assert entry.running() == []
    progress.settle()
    assert not client.exists(NAMES.deadlines)
    WAYS[way](entry)
    assert len(entry.running()) == 1


def test_of_two_who_rerun_at_once_one_sends_the_run(
    app: Celery, progress: Progress, broker: redis.Redis
) -> None:
    entry = Entry("plain", "echo", 60, app=app).save()
    failed = fail(progress, "plain")
    together = Barrier(4)

    def send(_number: int) -> str:
        together.wait()
        try:
            return str(Entry.get("plain", app).rerun().id)
        except (EntryError, LockNotAcquired) as exc:
            return type(exc).__name__

    with ThreadPoolExecutor(4) as pool:
        said = list(pool.map(send, range(4)))
    task_id = rerun_id_of(entry.key, "1970-01-01T00:16:40.000000+00:00", 1)
    assert said.count(task_id) == 1, said
    assert set(said) <= {task_id, "EntryError", "LockNotAcquired"}
    assert [message["headers"]["redbeat_rerun_of"] for message in messages(broker)] == [failed]


def test_after_a_kill_between_sending_and_noting_a_rerun_has_the_same_id(
    app: Celery, progress: Progress, client: redis.Redis, broker: redis.Redis
) -> None:
    entry = Entry("plain", "echo", 60, app=app).save()
    fail(progress, "plain")
    entry.rerun()
    client.delete("redbeat::backfilled:plain")  # as if it had been killed before it noted that
    entry.rerun()
    ids = [message["headers"]["id"] for message in messages(broker)]
    assert len(ids) == 2
    assert len(set(ids)) == 1
    assert [run.task_id for run in entry.history()].count(ids[0]) == 1


SKIP = {"overlap": "skip"}
NEXT = TrackedRun("2000.000000", "", 3600.0, "skip")


def let_be(progress: Progress, state: str) -> Delivery:
    """A run of the entry in a state, and the delivery that has worked on it, or will."""
    if state == "sent":
        progress.send("entry", "one", **SKIP)
        return progress.delivery("entry", "one", **SKIP)
    delivery = progress.started("entry", "one", **SKIP, **({"workflow": 1} if state == "spawned" else {}))
    if state == "retrying":
        progress.end(delivery, "retrying", error="ValueError: not yet", retry_seconds=3600)
        return progress.delivery("entry", "one", attempt=2, **SKIP)
    if state == "spawned":
        progress.runs.note_child(delivery, "child")
        progress.end(delivery, "succeeded")
    assert progress.running("entry")["one"]["state"] == state
    return delivery


@pytest.mark.parametrize("state", ["sent", "started", "retrying", "spawned"])
def test_a_run_that_is_given_up_has_ended_as_lost_and_holds_nothing(
    entry: Entry, progress: Progress, client: redis.Redis, state: str
) -> None:
    delivery = let_be(progress, state)
    assert [run.task_id for run in entry.give_up_runs(by="ann")] == ["one"]
    assert not progress.is_mine(delivery)
    assert progress.running("entry") == {}
    assert client.zcard(NAMES.deadlines) == 0
    [past] = progress.history("entry")
    assert (past["outcome"], past["error"]) == ("lost", "given up by ann")
    [told] = progress.events("run_ended")
    assert (told["task_id"], told["outcome"], told["error"]) == ("one", "lost", "given up by ann")
    assert progress.failing("entry") == [1]
    assert client.xlen(NAMES.failures) == 1
    assert progress.runs.reserve(entry.key, "two", NEXT) is None, "the next one goes"
    assert entry.give_up_runs([]) == []


@pytest.mark.parametrize("state", ["started", "spawned"])
def test_the_tasks_of_a_workflow_go_with_it(
    entry: Entry, progress: Progress, client: redis.Redis, state: str
) -> None:
    delivery = progress.started("entry", "one", workflow=1, **SKIP)
    progress.runs.note_child(delivery, "child")
    child = progress.delivery("entry", "child", root="one", **SKIP)
    assert progress.begin(child) == "go"
    if state == "spawned":
        progress.end(delivery, "succeeded")
    entry.give_up_runs()
    assert progress.running("entry") == {}
    assert client.zcard(NAMES.deadlines) == 0
    assert progress.history("entry")[0]["outcome"] == "lost"


def test_what_waits_for_it_is_looked_at_now(entry: Entry, progress: Progress) -> None:
    let_be(progress, "retrying")
    progress.wait("entry")
    entry.give_up_runs()
    assert set(progress.running("entry")) == {""}
    due = progress.deadline_of("entry", "")
    assert due is not None
    assert due <= progress.now


@pytest.mark.parametrize("state", ["sent", "retrying"])
def test_a_run_that_is_begun_after_it_was_read_is_not_given_up(
    entry: Entry, progress: Progress, state: str
) -> None:
    delivery = let_be(progress, state)
    [records] = progress.runs.read([entry.key])
    assert progress.begin(delivery) == "go"
    assert progress.runs.give_up("entry", records, "given up by hand") == [False]
    assert progress.running("entry")["one"]["state"] == "started"


def test_all_runs_in_progress_or_the_chosen_ones_are_given_up(entry: Entry, progress: Progress) -> None:
    for number in range(3):
        progress.started("entry", f"run-{number}", 1000.0 + number)
    middle = [run for run in entry.running() if run.task_id == "run-1"]
    assert [run.task_id for run in entry.give_up_runs(middle)] == ["run-1"]
    assert len(entry.give_up_runs()) == 2
    assert progress.running("entry") == {}
    assert {past["error"] for past in progress.history("entry")} == {"given up by hand"}
