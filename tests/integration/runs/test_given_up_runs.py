"""Runs that somebody gives up by hand: the entry is free at once, and what still works on one learns it."""

from __future__ import annotations

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.store.records import TrackedRun
from redbeat.store.runs import Delivery
from tests.support.progress import NAMES, Progress, events_of, history_of, running_of
from tests.support.schedule import server_now

SKIP = {"overlap": "skip"}
NEXT = TrackedRun("2000.000000", "", 3600.0, "skip")


@pytest.fixture
def entry(app: Celery) -> Entry:
    return Entry("entry", "echo", 60, overlap="skip", app=app).save()


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
    assert running_of(progress.client, "entry")["one"]["state"] == state
    return delivery


@pytest.mark.parametrize("state", ["sent", "started", "retrying", "spawned"])
def test_a_run_that_is_given_up_has_ended_as_lost_and_holds_nothing(
    entry: Entry, progress: Progress, client: redis.Redis, state: str
) -> None:
    let_be(progress, state)
    assert [run.task_id for run in entry.give_up_runs(by="ann")] == ["one"]
    assert running_of(client, "entry") == {}
    assert client.zcard(NAMES.deadlines) == 0
    [past] = history_of(client, "entry")
    assert (past["outcome"], past["error"]) == ("lost", "given up by ann")
    [told] = events_of(client, "run_ended")
    assert (told["task_id"], told["outcome"], told["error"]) == ("one", "lost", "given up by ann")
    assert progress.failing("entry") == [1]
    assert client.xlen(NAMES.failures) == 1
    assert progress.runs.reserve(entry.key, "two", NEXT) is None, "the next one goes"
    assert entry.give_up_runs([]) == []


@pytest.mark.parametrize("state", ["sent", "retrying"])
def test_its_message_is_not_begun_while_another_run_holds_the_entry(
    entry: Entry, progress: Progress, state: str
) -> None:
    delivery = let_be(progress, state)
    entry.give_up_runs()
    other = progress.started("entry", "two", 2000.0, **SKIP)
    assert progress.begin(delivery) == "superseded"
    progress.end(other, "succeeded")
    assert progress.begin(delivery) == "go"


def test_one_that_nobody_had_begun_is_not_begun_when_its_message_has_expired(
    entry: Entry, progress: Progress
) -> None:
    delivery = let_be(progress, "sent")
    entry.give_up_runs()
    assert progress.begin(delivery, is_expired=True) == "expired"


def test_a_worker_that_still_works_on_it_ends_late_and_does_not_own_the_entry(
    entry: Entry, progress: Progress, client: redis.Redis
) -> None:
    delivery = let_be(progress, "started")
    assert progress.runs.is_mine(delivery)
    entry.give_up_runs()
    assert not progress.runs.is_mine(delivery)
    assert progress.runs.renew([(delivery, 1.0)], 30_000, "celery@test") == {}
    other = progress.started("entry", "two", 2000.0, **SKIP)
    progress.end(delivery, "succeeded")
    past = history_of(client, "entry")[1]
    assert (past["outcome"], past["late"]) == ("lost", "succeeded")
    assert [told["task_id"] for told in events_of(client, "run_ended")] == ["one"]
    assert progress.runs.is_mine(other)


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
    assert running_of(client, "entry") == {}
    assert client.zcard(NAMES.deadlines) == 0
    assert history_of(client, "entry")[0]["outcome"] == "lost"


def test_what_waits_for_it_is_looked_at_now(entry: Entry, progress: Progress, client: redis.Redis) -> None:
    let_be(progress, "retrying")
    progress.wait("entry")
    entry.give_up_runs()
    assert set(running_of(client, "entry")) == {""}
    due = progress.deadline_of("entry", "")
    assert due is not None
    assert due <= server_now(client)


def test_a_run_that_has_gone_on_meanwhile_is_left_alone(
    entry: Entry, progress: Progress, client: redis.Redis
) -> None:
    delivery = let_be(progress, "sent")
    chosen = entry.running()
    assert progress.begin(delivery) == "go"
    assert entry.give_up_runs(chosen) == []
    assert running_of(client, "entry")["one"]["state"] == "started"
    progress.end(delivery, "succeeded")
    assert entry.give_up_runs(chosen) == []
    assert history_of(client, "entry")[0]["outcome"] == "succeeded"


@pytest.mark.parametrize("state", ["sent", "retrying"])
def test_a_run_that_is_begun_after_it_was_read_is_not_given_up(
    entry: Entry, progress: Progress, client: redis.Redis, state: str
) -> None:
    delivery = let_be(progress, state)
    [records] = progress.runs.read([entry.key])
    assert progress.begin(delivery) == "go"
    assert progress.runs.give_up("entry", records, "given up by hand") == [False]
    assert running_of(client, "entry")["one"]["state"] == "started"


def test_all_that_is_in_progress_is_given_up_and_a_task_id_may_be_chosen(
    entry: Entry, progress: Progress, client: redis.Redis
) -> None:
    for number in range(3):
        progress.started("entry", f"run-{number}", 1000.0 + number)
    middle = [run for run in entry.running() if run.task_id == "run-1"]
    assert [run.task_id for run in entry.give_up_runs(middle)] == ["run-1"]
    assert len(entry.give_up_runs()) == 2
    assert running_of(client, "entry") == {}
    assert {past["error"] for past in history_of(client, "entry")} == {"given up by hand"}


def test_how_long_a_run_holds_its_entry_is_known(entry: Entry, progress: Progress, app: Celery) -> None:
    for state, task_id in (("sent", "one"), ("started", "two")):
        progress.send("entry", task_id, overlap="skip", queue=600, state=state)
        [run] = [run for run in entry.running() if run.task_id == task_id]
        deadline = progress.deadline_of("entry", task_id)
        assert run.held_until is not None
        assert run.held_until.timestamp() == pytest.approx(deadline)
    progress.send("entry", "three", overlap="allow")
    assert {run.task_id: run.held_until is None for run in entry.runs()} == {
        "one": False, "two": False, "three": True,
    }  # fmt: skip
