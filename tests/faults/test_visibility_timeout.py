"""Far-away etas at a broker that delivers again what a worker holds for too long (celery 2599, 3270, 4766).

A worker takes a message with an eta at once, and holds it until then without acknowledging it. A Redis broker
gives what isn't acknowledged within `visibility_timeout` to a worker again: with an eta four times as far
away each task runs several times. Stored by RedBeat, it reaches a worker when it is due.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis

from tests.support.apps import celery_beat, celery_worker, runs, stop_worker, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK
from tests.support.servers import Server

VISIBILITY_SECONDS = 5
ETA_SECONDS = 20
TASKS = 10
#: several, as each of them looks for what hasn't been acknowledged
WORKERS = 2

#: called in a process of its own, as that of a web server
SENDING = """
def send(count, eta_seconds):
    for number in range(count):
        echo.apply_async([number], countdown=eta_seconds)
"""
DURABLE = "import redbeat.later\nredbeat.later.install(app)\n"


@pytest.mark.long_form
def test_a_far_away_eta_runs_once_where_celery_alone_runs_it_several_times(
    server: Server, tmp_path: Path
) -> None:
    plain = runs_of(server, tmp_path / "plain", SENDING)
    server.flush()
    durable = runs_of(server, tmp_path / "durable", DURABLE + SENDING, redbeat_durable_after=1)
    print(
        f"{TASKS} tasks with an eta of {ETA_SECONDS} s, visibility_timeout {VISIBILITY_SECONDS} s, "
        f"{WORKERS} workers: Celery alone ran them {sorted(plain.values())} times, with RedBeat "
        f"{sorted(durable.values())} times"
    )
    assert set(durable) == set(range(TASKS))
    assert set(durable.values()) == {1}
    assert sum(plain.values()) > TASKS, "the fault that this is about isn't there any more"


def runs_of(server: Server, directory: Path, extra: str, **settings: float) -> Counter[int]:
    """Send the tasks to real workers; return how often each has run, long after its eta."""
    directory.mkdir()
    # a worker looks for what it may deliver again every second instead of every 100, as all is shorter here
    transport = {
        "visibility_timeout": VISIBILITY_SECONDS,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
    write_app(
        directory,
        "module",
        server.url(0),
        runs_url=server.url(1),
        extra=extra,
        broker_transport_options=transport,
        **settings,
    )
    client: redis.Redis = server.client(db=1)
    with ExitStack() as stack:
        beat = None
        if settings:
            beat = stack.enter_context(celery_beat(directory, "module"))
            eventually(lambda: server.client().exists(LOCK), message="beat doesn't lead")
        workers = [
            stack.enter_context(celery_worker(directory, "module", "-n", f"worker{number}", concurrency=4))
            for number in range(WORKERS)
        ]
        send = f"import module; module.send({TASKS}, {ETA_SECONDS})"
        with Process([sys.executable, "-c", send], cwd=directory) as sender:
            assert sender.wait(60) == 0, sender.output()
        sent_at = time.monotonic()
        eventually(lambda: len({run.args[0] for run in runs(client)}) == TASKS, patience(60), 0.2)
        # what was delivered again runs at the same time, or soon after it
        while time.monotonic() < sent_at + ETA_SECONDS + 3 * VISIBILITY_SECONDS:
            time.sleep(0.2)
        if beat is not None:
            assert beat.is_running, beat.output()
        for worker in workers:
            stop_worker(worker)
    return Counter(run.args[0] for run in runs(client))
