"""The one line that lets an app's workers track runs: it costs other processes nothing, and never harms."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from celery.signals import worker_process_init

import redbeat
from redbeat.runs.tracking import KeepRuns, TrackRuns, is_tracked
from tests.support.polling import eventually
from tests.support.ticks import memory_app

DUE = "2026-01-01T00:00:00.000000+00:00"
RUN = {"redbeat_entry": "report", "redbeat_due": DUE}


@pytest.fixture
def tracked() -> Celery:
    """Its schedule can't be reached."""
    app = memory_app(redbeat_redis_url="redis://127.0.0.1:1/0", worker_hijack_root_logger=False)
    redbeat.track_runs(app)
    return app


def test_an_app_is_tracked_from_then_on_and_once(app: Celery) -> None:
    assert not is_tracked(app)
    receivers = len(worker_process_init.receivers or ())
    for _ in range(3):
        redbeat.track_runs(app)
    assert is_tracked(app)
    assert {TrackRuns} <= app.steps["worker"]
    assert app.steps["consumer"] == {KeepRuns}
    assert len(worker_process_init.receivers) == receivers + 1


def test_another_app_is_not_tracked(tracked: Celery) -> None:
    assert not is_tracked(memory_app())


def test_a_process_that_is_no_worker_imports_nothing_of_one() -> None:
    program = (
        "import sys, threading, celery, redbeat; app = celery.Celery('web'); redbeat.track_runs(app); "
        "assert not {'celery.worker.request', 'redbeat.runs.request'} & set(sys.modules); "
        "assert threading.active_count() == 1"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def work(app: Celery, **options: Any) -> list[str]:
    """Run a worker in this process, with a task that a run and somebody else send; return what was done."""
    done: list[str] = []

    @app.task(name="job")
    def job(who: str) -> None:
        done.append(who)

    # it sets the root logger's level, for all tests after this one
    with start_worker(app, perform_ping_check=False, pool="solo", loglevel="WARNING", **options):
        app.send_task("job", ["a run"], headers=RUN)
        app.send_task("job", ["somebody"])
        eventually(lambda: done == ["a run", "somebody"])
    return done


def test_a_worker_in_this_process_works_though_redis_is_away(tracked: Celery) -> None:
    assert work(tracked) == ["a run", "somebody"]
    assert tracked.Task.Request == "celery.worker.request:Request", "all is as before"


def test_a_worker_without_a_schedule_says_so_and_works(caplog: pytest.LogCaptureFixture) -> None:
    app = memory_app(worker_hijack_root_logger=False)
    redbeat.track_runs(app)
    assert work(app) == ["a run", "somebody"]
    assert "Runs aren't tracked: redbeat_redis_url isn't set" in caplog.text


def test_a_worker_with_a_wrong_setting_says_so_and_works(caplog: pytest.LogCaptureFixture) -> None:
    app = memory_app(
        redbeat_redis_url="redis://127.0.0.1:1/0", redbeat_run_lease="long", worker_hijack_root_logger=False
    )
    redbeat.track_runs(app)
    assert work(app) == ["a run", "somebody"]
    assert "Runs aren't tracked: redbeat_run_lease" in caplog.text
