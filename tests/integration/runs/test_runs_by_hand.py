"""Runs that somebody sends by hand keep to the entry's overlap, and are tracked as those of beat."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from threading import Barrier, Thread
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import track_runs
from redbeat.errors import EntryBusy, EntryError, LockNotAcquired
from redbeat.task_ids import rerun_id_of
from tests.support.command_line import call
from tests.support.progress import NAMES, Progress, history_of, running_of
from tests.support.schedule import messages, server_now

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
    app: Celery, progress: Progress, client: redis.Redis, broker: redis.Redis, way: str, overlap: Any
) -> None:
    entry = Entry("entry", "echo", 60, overlap=overlap, app=app).save()
    fail(progress)
    delivery = progress.started("entry", "holder", 2000.0)
    before = history_of(client, "entry")
    with pytest.raises(EntryBusy, match="the run holder is in progress on celery@test since") as refused:
        WAYS[way](entry)
    assert (refused.value.key, refused.value.task_id) == ("redbeat:entry", "holder")
    assert messages(broker) == []
    assert history_of(client, "entry") == before
    assert set(running_of(client, "entry")) == {"holder"}, "nothing waits"
    assert "terminate" not in running_of(client, "entry")["holder"]
    progress.end(delivery, "succeeded")
    WAYS[way](entry)
    assert len(messages(broker)) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_run_by_hand_is_in_progress_from_when_it_is_sent(
    entry: Entry, progress: Progress, client: redis.Redis, broker: redis.Redis, way: str
) -> None:
    fail(progress)
    WAYS[way](entry)
    [message] = messages(broker)
    task_id = message["headers"]["id"]
    [run] = entry.running()
    assert (run.task_id, run.state, run.is_running) == (task_id, "sent", True)
    deadline = progress.deadline_of("entry", task_id) or 0
    assert deadline == pytest.approx(server_now(client) + 3600, abs=60)
    due = datetime.fromisoformat(message["headers"]["redbeat_due"]).timestamp()
    delivery = progress.delivery("entry", task_id, due, overlap="skip")
    assert progress.begin(delivery) == "go"
    progress.end(delivery, "succeeded", run_seconds=1.0)
    assert entry.running() == []
    assert (entry.history()[0].task_id, entry.history()[0].outcome) == (task_id, "succeeded")


def test_a_rerun_that_ends_at_once_is_not_taken_for_the_late_end_of_the_run_that_it_repeats(
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
    before = history_of(client, "entry")

    def refuse(*_args: Any, **_options: Any) -> None:
        raise OSError("the broker is away")

    with monkeypatch.context() as patch:
        patch.setattr(entry.app, "send_task", refuse)
        with pytest.raises(OSError, match="away"):
            WAYS[way](entry)
    assert history_of(client, "entry") == before
    assert entry.running() == []
    progress.settle()
    assert not client.exists(NAMES.deadlines)
    WAYS[way](entry)
    assert len(entry.running()) == 1


def test_an_entry_that_nobody_tracks_costs_nothing(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    entry = Entry("plain", "echo", 60, app=app).save()
    for _ in range(2):
        entry.trigger()
    assert len(messages(broker)) == 2
    assert not client.exists("redbeat::running:plain", NAMES.deadlines)


def test_with_overlap_allow_runs_by_hand_are_tracked_and_hold_nothing(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    track_runs(app)
    entry = Entry("plain", "echo", 60, queue_timeout=600, app=app).save()
    for _ in range(2):
        entry.trigger()
    assert [run.state for run in entry.running()] == ["sent", "sent"]
    assert {json.loads(text)["queue"] for text in client.hvals("redbeat::running:plain")} == {600}


def test_a_backfill_of_an_entry_that_runs_alone_sends_one_run_and_says_how_to_go_on(
    app: Celery, entry: Entry, progress: Progress, broker: redis.Redis
) -> None:
    now = datetime.now(timezone.utc).replace(microsecond=0)
    span = ["--from", (now - timedelta(minutes=3)).isoformat(), "--to", now.isoformat(), "--yes"]
    for number in (1, 2):
        done = call(app, "backfill", "entry", *span)
        assert done.exit_code == 75, done.output
        assert re.search(r"the run \S+ is on its queue since 20\S+ ", done.stderr)
        assert "1 run was sent, and won't be sent again; the same command sends the rest." in done.stderr
        assert len(messages(broker)) == number
        [run] = entry.running()
        delivery = progress.delivery("entry", str(run.task_id), run.due.timestamp(), overlap="skip")
        progress.begin(delivery)
        progress.end(delivery, "succeeded")


def test_all_that_has_failed_of_an_entry_that_runs_alone_is_sent_one_by_one(
    app: Celery, entry: Entry, progress: Progress, broker: redis.Redis
) -> None:
    for due in (1000.0, 2000.0):
        fail(progress, due=due)
    every = ("rerun", "--all-failed", "--since", "1d", "--yes")
    done = call(app, *every)
    assert (done.exit_code, done.stdout) == (75, "Sent 1 run once more.\n")
    assert "1 run was not sent, as other runs of the same entries are in progress" in done.stderr
    [run] = entry.running()
    delivery = progress.delivery("entry", str(run.task_id), 1000.0, overlap="skip")
    progress.begin(delivery)
    progress.end(delivery, "succeeded")
    done = call(app, *every)
    assert (done.exit_code, done.stdout) == (0, "Sent 1 run once more.\n")
    assert [message["headers"]["redbeat_rerun_of"] for message in messages(broker)] == [
        "entry-1000", "entry-2000",
    ]  # fmt: skip


def test_of_two_who_rerun_at_once_one_sends_the_run(
    app: Celery, progress: Progress, broker: redis.Redis
) -> None:
    entry = Entry("plain", "echo", 60, app=app).save()
    failed = fail(progress, "plain")
    together, said = Barrier(4), []

    def send() -> None:
        together.wait()
        try:
            said.append(Entry.get("plain", app).rerun().id)
        except (EntryError, LockNotAcquired) as exc:
            said.append(type(exc).__name__)

    threads = [Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
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
