"""The run of a task that is killed ends when its process has ended, and the next one begins after that.

The tasks handle SIGTERM, as those do that clean up: they go on until SIGKILL. Judged by what they write
themselves while they live.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.policy.typed import Overlap
from tests.conftest import MakeApp
from tests.faults.worklog import WorkLog, tasks_source
from tests.integration.runs.tracked import start_worker
from tests.support.apps import celery_beat, write_app
from tests.support.processes import Process
from tests.support.servers import Server

ENTRY_NAMES = [f"entry-{number}" for number in range(6)]
LEASE_SECONDS = 2
TASKS = """
import signal
import redbeat
from redbeat.runs import publishing

publishing.PATIENCE_SECONDS = 20
redbeat.track_runs(app)

def cling(task, name):
    signal.signal(signal.SIGTERM, lambda *_: stamp(task, name, "term"))
    stamp(task, name, "begin")
    while True:
        time.sleep(0.005)
        stamp(task, name, "work")

for name, options in {
    "limited": {"time_limit": 1},
    "limited_late": {"time_limit": 1, "acks_late": True},
    "endless": {},
    "endless_late": {"acks_late": True},
}.items():
    app.task(name=name, bind=True, **options)(cling)
"""


class Site:
    """A beat, and two workers whose tasks are killed."""

    def __init__(self, folder: Path, broker_url: str, stack: ExitStack) -> None:
        self.folder = folder
        self.broker_url = broker_url
        self._stack = stack
        self.workers = [self._start_worker(name) for name in ("one", "two")]
        stack.enter_context(celery_beat(folder, "module"))

    def _start_worker(self, name: str) -> Process:
        return self._stack.enter_context(
            start_worker(self.folder, "module", "prefork", len(ENTRY_NAMES), name=name)
        )

    @property
    def log(self) -> WorkLog:
        return WorkLog.read(self.folder)

    def let_be(self) -> None:
        """Wait until RedBeat or Celery has killed some tasks."""
        time.sleep(0.5)

    def kill_processes(self) -> None:
        """Kill the processes that were at work last."""
        time.sleep(0.5)
        for one in self.log.executions[-len(ENTRY_NAMES) :]:
            with suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)

    def revoke(self) -> None:
        """Revoke what is at work, by a signal that the tasks handle; kill their processes later."""
        ids = [one.task_id for one in self.log.executions[-len(ENTRY_NAMES) :]]
        with Celery("control", broker=self.broker_url, set_as_current=False) as app:
            app.control.revoke(ids, terminate=True)
        self.kill_processes()

    def shut_down(self) -> None:
        """Shut a worker down at once; kill it when its tasks go on all the same."""
        self.workers.reverse()
        self.workers[0].signal(signal.SIGQUIT)
        time.sleep(1.5)
        self.workers[0].kill()
        self.workers[0] = self._start_worker(f"next-{time.time():.0f}")


#: how tasks are killed, by which task, overlap policy, and how many executions are looked at
WAYS: dict[str, tuple[str, Overlap, Callable[[Site], None], int]] = {
    "hard time limit": ("limited", "skip", Site.let_be, 54),
    "hard time limit, acknowledged late": ("limited_late", "buffer_one", Site.let_be, 54),
    "replaced": ("endless", "replace", Site.let_be, 24),
    "process lost": ("endless", "skip", Site.kill_processes, 24),
    "revoked": ("endless", "skip", Site.revoke, 24),
    "cold shutdown": ("endless", "skip", Site.shut_down, 18),
    "cold shutdown, acknowledged late": ("endless_late", "skip", Site.shut_down, 18),
}


@pytest.mark.slow
@pytest.mark.few_cases(3)
@pytest.mark.parametrize("way", WAYS)
def test_the_next_run_begins_when_the_process_of_a_killed_task_has_ended(
    server: Server, make_app: MakeApp, tmp_path: Path, way: str
) -> None:
    task, overlap, kill, executions = WAYS[way]
    settings = {
        "redbeat_redis_url": server.url(1),
        "redbeat_run_lease": LEASE_SECONDS,
        "worker_prefetch_multiplier": 1,
        "broker_transport_options": {"visibility_timeout": 5},
    }
    write_app(tmp_path, "module", server.url(0), extra=tasks_source(1, 60) + TASKS, **settings)
    app = make_app(**settings)
    Entry.save_many([Entry(name, task, 0.3, args=[name], overlap=overlap, app=app) for name in ENTRY_NAMES])
    with ExitStack() as stack:
        site = Site(tmp_path, server.url(0), stack)
        gives_up_at = time.monotonic() + 300
        while len(site.log.executions) < executions:
            assert time.monotonic() < gives_up_at, site.log.executions
            kill(site)
        for worker in site.workers:
            worker.kill()
        log = site.log
    overlaps = [
        (str(earlier), str(later), round(earlier.last - later.began, 3)) for earlier, later in log.overlaps()
    ]
    print(f"{way}: {len(overlaps)} overlaps in {len(log.executions)} executions")
    assert overlaps == []
