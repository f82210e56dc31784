"""Every policy and feature of a schedule without shards, in 1 and 8 shards, and in 8 on a cluster.

One real beat and one real worker serve all rows of a column. Each row has entries of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

import redbeat.later
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import track_runs
from redbeat.calendars import Calendar
from tests.support.apps import Run, celery_beat, celery_worker, runs, write_app
from tests.support.command_line import call
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.servers import Server

TASKS = """
import redbeat
import redbeat.later

redbeat.later.install(app)
redbeat.track_runs(app)
"""
NO_SHARDS: Any = None


class Column:
    """A schedule at work: an app of each test's own, and what the worker has run."""

    app: Celery

    def __init__(self, settings: dict[str, Any], broker: redis.Redis, directory: Path) -> None:
        self.settings, self.directory = settings, directory
        self._broker = broker
        self._added: list[str] = []

    @contextmanager
    def row(self) -> Iterator[None]:
        """Let a row have its own app, and remove its entries at the end."""
        with Celery("test", set_as_current=False) as self.app:
            self.app.conf.update(self.settings)
            redbeat.later.install(self.app)
            track_runs(self.app)
            try:
                yield
            finally:
                Entry.delete_many(self._added, app=self.app)
                self._added.clear()

    def add(self, name: str, task: str = "echo", schedule: Any = 1, **fields: Any) -> Entry:
        self._added.append(name)
        return Entry(name, task, schedule, app=self.app, **{"args": [name], **fields}).save()

    def runs_of(self, argument: Any) -> list[Run]:
        return [run for run in runs(self._broker) if run.args[:1] == [argument]]

    def wait_for(self, argument: Any, count: int = 1) -> list[Run]:
        def found() -> list[Run]:
            made = self.runs_of(argument)
            return made if len(made) >= count else []

        return eventually(found, message=f"{argument} did not run {count} times")

    def ask(self, *arguments: str) -> Any:
        """Call the command line; return the documents that it prints."""
        result = call(self.app, *arguments, "--json")
        assert result.exit_code in (0, 2), (result.output, result.stderr)
        text = result.stdout
        is_one = text.startswith("{\n")
        return [json.loads(text)] if is_one else [json.loads(line) for line in text.splitlines()]

    def why(self, name: str) -> str:
        [answer] = self.ask("why", name)
        return str(answer["verdict"])


def now() -> datetime:
    return datetime.now(timezone.utc)


def today(**fields: Any) -> list[date]:
    """Today, and its neighbours: the day may end meanwhile."""
    return [now().date() + timedelta(days=days) for days in (-1, 0, 1)]


def outcomes(entry: Entry) -> list[Any]:
    return [run.outcome for run in entry.runs()]


# -- the rows


def calendars(at: Column) -> None:
    """An entry rests on the days of its calendar, and runs when these change."""
    Calendar.from_dates("closed", today(), app=at.app).save()
    Calendar.from_dates("open", [date(2020, 1, 1)], app=at.app).save()
    resting = [at.add(f"calendar-{number}", exclude="closed") for number in range(8)]
    at.add("calendar-open", exclude="open")
    Calendar.from_dates("changing", [date(2020, 1, 1)], app=at.app).save()
    changing = at.add("calendar-changing", exclude="changing")
    at.wait_for("calendar-open", 3)
    at.wait_for("calendar-changing", 2)
    Calendar.from_dates("changing", today(), app=at.app).save()
    eventually(lambda: at.why("calendar-changing") == "excluded")
    assert not any(at.runs_of(entry.name) for entry in resting)
    Calendar.from_dates("closed", [date(2020, 1, 1)], app=at.app).save()
    for entry in resting:
        at.wait_for(entry.name)
        assert not Entry.get(entry.name, at.app).error
    assert not Entry.get(changing.name, at.app).error


def missing_calendar(at: Column) -> None:
    """An entry whose calendar is missing is quarantined, and runs when it is there."""
    calendar = Calendar.from_dates("late", [date(2020, 1, 1)], app=at.app).save()
    entry = at.add("calendar-missing", exclude="late")
    calendar.delete()
    eventually(lambda: "there is no calendar" in Entry.get(entry.name, at.app).error)
    sent = len(at.runs_of(entry.name))
    calendar.save()
    at.wait_for(entry.name, sent + 1)


def overlap_skip(at: Column) -> None:
    entry = at.add("overlap-skip", "slow", args=[3.25], overlap="skip")
    at.wait_for(3.25, 2)
    begun = [run.time for run in at.runs_of(3.25)]
    assert begun[1] - begun[0] >= 3.25
    assert {run.is_sent for run in entry.history()} == {True, False}


def overlap_buffer_one(at: Column) -> None:
    at.add("overlap-buffer", "slow", args=[2.75], overlap="buffer_one")
    begun = [run.time for run in at.wait_for(2.75, 2)]
    assert begun[1] - begun[0] >= 2.75


def overlap_replace(at: Column) -> None:
    entry = at.add("overlap-replace", "slow", schedule=2, args=[30.5], overlap="replace")
    eventually(lambda: "revoked" in outcomes(entry) or "replaced" in outcomes(entry))
    entry.delete()


def one_off(at: Column) -> None:
    at.add("one-off", one_off=True)
    deleted = at.add("one-off-deleted", one_off=True, after_finish="delete")
    disabled = at.add("one-off-disabled", one_off=True, after_finish="disable")
    for name in ("one-off", deleted.name, disabled.name):
        at.wait_for(name)
    eventually(lambda: deleted.rank is None)
    eventually(lambda: not Entry.get(disabled.name, at.app).enabled)
    with pytest.raises(KeyError):
        Entry.get(deleted.name, at.app)
    assert len(at.runs_of("one-off")) == 1


def limits(at: Column) -> None:
    entry = at.add("limit", max_runs=2, after_finish="disable")
    eventually(lambda: not Entry.get(entry.name, at.app).enabled)
    assert len(at.wait_for(entry.name, 2)) == 2


def windows(at: Column) -> None:
    starts, ends = now() + timedelta(seconds=3), now() + timedelta(seconds=6.5)
    entry = at.add("window", start_time=starts, end_time=ends)
    eventually(lambda: Entry.get(entry.name, at.app).next_due_at is None)
    due = [run.due for run in entry.history()]
    assert due
    assert all(starts <= one <= ends for one in due)


def jitter(at: Column) -> None:
    entry = at.add("jitter", schedule=2, jitter=1.5)
    at.wait_for(entry.name, 2)
    history = [run for run in entry.history() if run.is_sent]
    assert len({run.due.timestamp() % 2 for run in history}) == 1, "its phase stays"


def zones(at: Column) -> None:
    entry = at.add("zone", schedule=crontab(minute=0, hour=3), timezone="Asia/Kolkata")
    entry.reschedule(now() - timedelta(days=2))
    at.wait_for(entry.name)
    eventually(lambda: Entry.get(entry.name, at.app).due_at > now())
    due = Entry.get(entry.name, at.app).due_at
    assert due.astimezone(timezone.utc).strftime("%H:%M") == "21:30"


def pauses(at: Column) -> None:
    entry = at.add("pause")
    at.wait_for(entry.name)
    entry.pause("maintenance", until=now() + timedelta(seconds=4))
    paused_at, sent = time.time(), len(at.runs_of(entry.name))
    run = at.wait_for(entry.name, sent + 2)[-1]
    assert run.time - paused_at > 3
    assert Entry.pause_many([entry.name], app=at.app).changed == (entry.name,)
    assert Entry.get(entry.name, at.app).paused
    assert Entry.resume_many([entry.name], app=at.app).changed == (entry.name,)
    at.wait_for(entry.name, len(at.runs_of(entry.name)) + 2)


def failures(at: Column) -> None:
    """Runs that fail are counted and listed, and pause their entry."""
    entry = at.add("failure", "fail", pause_after_failures=2, overlap="skip")
    eventually(lambda: Entry.get(entry.name, at.app).paused)
    assert outcomes(entry)[:2] == ["failed", "failed"]
    assert entry.name in {one["name"] for one in at.ask("runs", "--state", "failed")}


def rerun(at: Column) -> None:
    entry = at.add("rerun", "fail", schedule=3600, overlap="skip")
    entry.trigger()
    eventually(lambda: outcomes(entry) == ["failed"])
    entry.update(task="echo")
    result = entry.rerun()
    eventually(lambda: outcomes(entry) == ["succeeded", "failed"])
    assert at.runs_of(entry.name)[-1].id == result.id


def max_runtime(at: Column) -> None:
    entry = at.add("runtime", "slow", schedule=3600, args=[20.5], max_runtime=1, revoke_overdue=True)
    entry.trigger()
    eventually(lambda: any(word not in (None, "succeeded") for word in outcomes(entry)))


def delayed_tasks(at: Column) -> None:
    for number in range(8):
        at.app.send_task("echo", (f"delayed-{number}",), countdown=4)
    gone = at.app.send_task("echo", ("delayed-gone",), countdown=5)
    assert redbeat.later.count(at.app) == 9
    assert redbeat.later.cancel(gone.id, at.app) == [gone.id]
    for number in range(8):
        at.wait_for(f"delayed-{number}")
    eventually(lambda: redbeat.later.count(at.app) == 0)
    assert not at.runs_of("delayed-gone")


def backfill(at: Column) -> None:
    entry = at.add("backfill", schedule=crontab(minute=0))
    end = now().replace(minute=30, second=0, microsecond=0) - timedelta(hours=1)
    for _ in range(2):
        entry.backfill(end - timedelta(hours=3), end)
    at.wait_for(entry.name, 3)
    assert len(entry.history()) == 3


def trigger(at: Column) -> None:
    entry = at.add("trigger", schedule=3600)
    result = entry.trigger()
    [run] = at.wait_for(entry.name)
    assert run.id == result.id
    assert [one.is_manual for one in entry.history()] == [True]


def files(at: Column) -> None:
    schedule = at.directory / "schedule.yaml"
    entries = {
        name: {"task": "echo", "schedule": {"every": "1s"}, "args": [name], "exclude": "of-file"}
        for name in ("file-a", "file-b", "file-c")
    }
    calendar = {"of-file": {"days": {"2020-01-01": "past"}}}
    schedule.write_text(json.dumps({"owner": "files", "entries": entries, "calendars": calendar}))
    at.ask("apply", str(schedule), "--yes")
    for name in entries:
        at.wait_for(name, 2)
        assert not Entry.get(name, at.app).error
    [exported] = at.ask("export", "--match", "file-*") or [{}]
    assert set(exported["entries"]) == set(entries)
    del entries["file-c"]
    schedule.write_text(json.dumps({"owner": "files", "entries": entries, "calendars": calendar}))
    at.ask("apply", str(schedule), "--prune", "--yes")
    with pytest.raises(KeyError):
        Entry.get("file-c", at.app)


def history(at: Column) -> None:
    entry = at.add("history", max_runs=3)
    at.wait_for(entry.name, 3)
    eventually(lambda: outcomes(entry) == ["succeeded"] * 3)
    due = [run.due for run in entry.history()]
    assert due == sorted(due, reverse=True)
    ids = [run.task_id for run in entry.history()]
    assert ids == [run.id for run in reversed(at.runs_of(entry.name))]


def why(at: Column) -> None:
    entry = at.add("why", one_off=True, overlap="skip")
    eventually(lambda: outcomes(entry) == ["succeeded"])
    [run] = entry.runs()
    [found] = at.ask("why", entry.name, "--at", run.due.isoformat())
    assert (found["verdict"], found["run"]["task_id"]) == ("succeeded", run.task_id)


def misfires(at: Column) -> None:
    """Missed runs are made up for as the policy says."""
    entry = at.add("misfire", schedule=600, misfire="all", misfire_limit=3)
    entry.reschedule(now() - timedelta(seconds=600 * 5 + 30))
    at.wait_for(entry.name, 3)
    eventually(lambda: Entry.get(entry.name, at.app).due_at > now())
    assert len(at.runs_of(entry.name)) == 3


def static_entries(at: Column) -> None:
    at.wait_for("static", 2)
    eventually(lambda: Entry.get("static", at.app).total_run_count >= 2)


def status(at: Column) -> None:
    [found] = at.ask("status")
    assert found["leader"] or found["shards"], found


ROWS: list[Callable[[Column], None]] = [
    *(calendars, missing_calendar, overlap_skip, overlap_buffer_one, overlap_replace, one_off, limits),
    *(windows, jitter, zones, pauses, failures, rerun, max_runtime, delayed_tasks, backfill, trigger, files),
    *(history, why, misfires, static_entries, status),
]


@pytest.fixture(scope="module", params=[None, 1, 8, "cluster"], ids=lambda shards: f"{shards or 'no'}-shards")
def column(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Column]:
    directory = tmp_path_factory.mktemp("shards")
    with ExitStack() as at_end:
        server = at_end.enter_context(Server())
        settings: dict[str, Any] = {"redbeat_redis_url": server.url(1)}
        if request.param == "cluster":
            cluster = request.getfixturevalue("cluster_session")
            cluster.heal()
            cluster.flush()
            settings = {"redbeat_redis_url": cluster.url(), "redbeat_redis_options": {"cluster": True}}
        if request.param:
            settings["redbeat_shards"] = 8 if request.param == "cluster" else request.param
        settings |= {"redbeat_durable_after": 1, "redbeat_history": 50, "beat_max_loop_interval": 1}
        statics = {"static": {"task": "echo", "schedule": 1, "args": ["static"]}}
        write_app(directory, "shop", server.url(0), extra=TASKS, beat_schedule=statics, **settings)
        broker = at_end.enter_context(server.client(db=0))
        beat = at_end.enter_context(celery_beat(directory, "shop"))
        at_end.enter_context(celery_worker(directory, "shop", "--pool=prefork", "--concurrency=6"))
        yield Column({"broker_url": server.url(0), **settings}, broker, directory)
        assert not has_traceback(beat.output()), beat.output()


@pytest.mark.parametrize("row", ROWS)
def test_every_feature_works_with_any_number_of_shards(column: Column, row: Callable[[Column], None]) -> None:
    with column.row():
        row(column)
