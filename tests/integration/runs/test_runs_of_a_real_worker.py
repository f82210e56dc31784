"""What a real worker has run, as people see it, and sent once more."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path

import pytest
import redis

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import track_runs
from redbeat.errors import EntryBusy
from tests.support.command_line import call
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.tracked import Tracked


@pytest.fixture
def tracked(server: Server, client: redis.Redis, tmp_path: Path) -> Iterator[Tracked]:
    """A worker at work, and an app that knows that runs are tracked."""
    made = Tracked.write(tmp_path, server.url(0), server.url(1), client)
    track_runs(made.app)
    with made.app:
        worker = made.worker("prefork", concurrency=2)
        try:
            yield made
        finally:
            worker.kill()


def outcomes(entry: Entry) -> list[str | None]:
    return [run.outcome for run in entry.runs()]


def test_a_run_that_failed_is_seen_and_sent_once_more_until_it_succeeds(
    tracked: Tracked, client: redis.Redis
) -> None:
    app = tracked.app
    entry = Entry("job", "tracked.fail_badly", 3600, overlap="skip", app=app).save()
    entry.trigger()
    eventually(lambda: outcomes(entry) == ["failed"])
    [failed] = entry.runs()
    assert (failed.attempt, failed.is_manual) == (1, True)
    assert failed.error.startswith("ValueError: at redis://")
    assert "secret" not in failed.error
    assert "hunter2" not in failed.error
    entry.update(task="tracked.succeed")
    result = entry.rerun()
    eventually(lambda: outcomes(entry) == ["succeeded", "failed"])
    again = entry.runs()[0]
    assert (again.task_id, again.due, again.rerun_of) == (result.id, failed.due, failed.task_id)
    assert (again.wait_seconds or 0) < 60, "counted from when it was sent, not from when it was due"
    figures = entry.figures()
    assert (figures.runs, figures.succeeded, figures.failures_in_a_row) == (2, 1, 0)
    done = call(app, "rerun", "--all-failed", "--since", "1d", "--yes")
    assert done.stdout == "Sent 0 runs once more.\n", done.output
    listed = [json.loads(line) for line in call(app, "list", "--json").stdout.splitlines()]
    assert [one["last_outcome"] for one in listed] == ["succeeded"]


def test_a_run_at_work_is_shown_with_its_worker_and_holds_others_back(
    tracked: Tracked, client: redis.Redis
) -> None:
    app = tracked.app
    entry = Entry("job", "tracked.work_until", 3600, ["go"], overlap="skip", app=app).save()
    entry.trigger()
    eventually(lambda: [run.state for run in entry.running()] == ["started"])
    [run] = entry.running()
    assert run.due <= datetime.now(timezone.utc)
    shown = call(app, "runs", columns=120).stdout
    assert str(run.worker) in shown
    assert str(run.task_id) in shown
    with pytest.raises(EntryBusy, match=f"the run {run.task_id} is in progress on {run.worker}"):
        entry.trigger()
    client.set("go", 1)
    eventually(lambda: outcomes(entry) == ["succeeded"])
    assert call(app, "runs", "--json").stdout == ""
    found = json.loads(call(app, "why", "job", "--at", run.due.isoformat(), "--json").stdout)
    assert (found["verdict"], found["run"]["worker"]) == ("succeeded", run.worker)
