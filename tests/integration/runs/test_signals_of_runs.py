"""A real beat and a real worker: what signals tell of runs agrees with what became of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, celery_worker, runs, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import field
from tests.support.servers import Server

TOLD = "redbeat::events-read"

#: a receiver of every signal but leader_changed, and tasks
MODULE = """
import redbeat
from redbeat import signals

redbeat.track_runs(app)


def note_all(sender, signal, entry, run=None, **arguments):
    told = {"signal": signal.name, "entry": entry, "run": vars(run) if run else None, **arguments}
    runs_client().rpush("told", json.dumps(told, default=str))


for one in signals.OF_EVENTS.values():
    one.connect(note_all)


@app.task(name="until", bind=True)
def until(self, key):
    note(self, key)
    while not runs_client().exists(key):
        time.sleep(0.05)
"""


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app()


@contextmanager
def at_work(server: Server, directory: Path, client: redis.Redis) -> Iterator[Process]:
    """A beat that tells from now on, and a worker."""
    write_app(directory, "module", server.url(0), redbeat_redis_url=server.url(1), extra=MODULE)
    with celery_worker(directory, "module", concurrency=4), celery_beat(directory, "module") as beat:
        eventually(lambda: client.exists(TOLD))
        yield beat
        assert not has_traceback(beat.output()), beat.output()


def told(broker: redis.Redis, signal: str = "") -> list[dict[str, Any]]:
    found: Any = broker.lrange("told", 0, -1)
    return [one for one in map(json.loads, found) if signal in ("", one["signal"])]


def test_a_run_is_told_of_from_its_beginning_to_its_end(
    server: Server, client: redis.Redis, broker: redis.Redis, app: Celery, tmp_path: Path
) -> None:
    with at_work(server, tmp_path, client):
        Entry("good", "echo", 0.1, one_off=True, app=app).save()
        eventually(lambda: len(told(broker)) == 3)
    [run] = runs(broker)
    sent, started, ended = told(broker)
    assert [one["signal"] for one in (sent, started, ended)] == ["run_sent", "run_started", "run_ended"]
    assert {one["entry"] for one in told(broker)} == {"good"}
    assert {one["run"]["task_id"] for one in told(broker)} == {run.id}
    due = run.headers["redbeat_due"].replace("T", " ")
    assert all(one["run"]["due"].startswith(due[:23]) for one in told(broker)), due
    assert (ended["run"]["outcome"], ended["run"]["error"], ended["run"]["attempt"]) == ("succeeded", "", 1)
    assert [one["run"]["state"] for one in (started, ended)] == ["started", None]
    assert re.fullmatch(r"celery@\S+", ended["run"]["worker"])
    assert started["run"]["worker"] == ended["run"]["worker"]
    assert 0 <= ended["run"]["run_seconds"] < 60
    assert 0 <= ended["run"]["wait_seconds"] < 60


def test_a_run_that_somebody_triggers_is_told_of_but_not_as_sent_by_beat(
    server: Server, client: redis.Redis, broker: redis.Redis, app: Celery, tmp_path: Path
) -> None:
    with at_work(server, tmp_path, client):
        entry = Entry("by hand", "echo", 3600, app=app).save()
        task_id = entry.trigger().id
        eventually(lambda: told(broker, "run_ended"))
    assert [one["signal"] for one in told(broker)] == ["run_started", "run_ended"]
    assert {(one["entry"], one["run"]["task_id"]) for one in told(broker)} == {("by hand", task_id)}


def test_an_entry_that_fails_all_the_time_is_paused_and_all_of_that_is_told(
    server: Server, client: redis.Redis, broker: redis.Redis, app: Celery, tmp_path: Path
) -> None:
    with at_work(server, tmp_path, client) as beat:
        # the next run is sent when the last one has ended, so that it is three that fail
        policy: dict[str, Any] = {"overlap": "skip", "pause_after_failures": 3, "resume_after": 3600}
        Entry("bad", "fail", 1, app=app, **policy).save()
        eventually(lambda: told(broker, "entry_paused"))
        beat.wait_for("beat: Paused bad: paused after ")
    entry = Entry.get("bad", app)
    assert (entry.state, entry.paused_by) == ("paused", "redbeat")
    assert re.fullmatch(
        r"paused after [34] failures in a row; the last: RuntimeError: this task always fails",
        entry.pause_note or "",
    )
    [paused] = told(broker, "entry_paused")
    assert (paused["entry"], paused["note"], paused["by"]) == ("bad", entry.pause_note, "redbeat")
    assert paused["until"] == str(entry.paused_until)
    ended = told(broker, "run_ended")
    assert {one["run"]["outcome"] for one in ended} == {"failed"}
    assert ended[-1]["run"]["error"] == "RuntimeError: this task always fails"
    assert 3 <= len(runs(broker)) <= 4, "one may have been on its way"
    assert field(client, "bad", "definition")["enabled"] is False


def test_a_run_that_takes_too_long_and_those_that_it_holds_back_are_told_of(
    server: Server, client: redis.Redis, broker: redis.Redis, app: Celery, tmp_path: Path
) -> None:
    with at_work(server, tmp_path, client):
        Entry("slow", "until", 1, args=["go"], overlap="skip", max_runtime=4, app=app).save()
        eventually(lambda: told(broker, "run_overdue"))
        broker.set("go", 1)
        eventually(lambda: told(broker, "run_ended"))
    [started, *_] = told(broker, "run_started")
    [overdue, *_] = told(broker, "run_overdue")
    assert overdue["run"]["task_id"] == started["run"]["task_id"]
    skipped = told(broker, "run_skipped")
    assert skipped
    assert skipped[0]["run"]["why"].startswith(f"the run {started['run']['task_id']} was at work on celery@")
    assert skipped[0]["run"]["task_id"] is None
    assert overdue["run"]["is_overdue"]
