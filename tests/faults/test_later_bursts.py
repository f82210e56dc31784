"""Twenty thousand stored messages due at one instant: each is sent once, and the schedule goes on."""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import redis
from celery import Celery

from redbeat.later import batch, install
from tests.benchmarks.subjects.processor import processor_seconds
from tests.faults.stored import LATER
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, messages, server_now, write_raw
from tests.support.servers import Server

MESSAGES = 20_000
#: one is due in each tenth of a second, once a second
ENTRIES = 10
#: how long it may take on a quiet machine; seconds
MAX_SECONDS = 30.0
#: how late an entry may be meanwhile, on a quiet machine: it waits for one batch of messages; seconds
MAX_LATE_SECONDS = 2.5


@pytest.mark.long_form
def test_a_burst_of_stored_messages_is_sent_once_each_and_entries_do_not_wait_for_it(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    broker = server.client(db=0)
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    stored_seconds = store(server)
    instant = int(server_now(client)) + patience(15)
    client.zadd(LATER, dict.fromkeys(client.zrange(LATER, 0, -1), instant))
    for number in range(ENTRIES):
        every = {"__type__": "interval", "every": 1}
        due = instant - 5 + number / ENTRIES
        write_raw(client, f"entry-{number}", score=due, schedule=every, options={"queue": "entries"})
    with celery_beat(tmp_path, "module", "-l", "WARNING") as beat:
        eventually(lambda: client.exists(LOCK), message="beat doesn't lead")
        assert server_now(client) < instant - 0.5, "beat took too long to start"
        arrivals, processor = watch(broker, instant, beat, server)
        assert beat.is_running, beat.output()
        assert not has_traceback(beat.output()), beat.output()
    ids = [message["headers"]["id"] for message in messages(broker)]
    assert len(ids) == len(set(ids)) == MESSAGES
    assert client.zcard(LATER) == 0
    assert not list(client.scan_iter("redbeat*later*", count=10_000))
    during = lateness_of_entries(client, instant, instant + arrivals[-1])
    late = [arrivals[int(MESSAGES * share) - 1] for share in (0.5, 0.99, 1)]
    print(
        f"{MESSAGES} stored messages due at one instant, at {server}: late by p50 {late[0]:.2f} s, "
        f"p99 {late[1]:.2f} s, at most {late[2]:.2f} s; processor time a message: stored "
        f"{stored_seconds / MESSAGES * 1e6:.0f} us, beat {processor[0] / MESSAGES * 1e6:.0f} us, server "
        f"{processor[1] / MESSAGES * 1e6:.0f} us. {len(during)} runs of entries meanwhile: late by p50 "
        f"{during[len(during) // 2]:.3f} s, at most {during[-1]:.3f} s"
    )
    assert late[2] < patience(MAX_SECONDS)
    assert during[-1] < patience(MAX_LATE_SECONDS)


def store(server: Server) -> float:
    """Store the messages, to be sent in an hour; return the processor time that took, in seconds."""
    app = Celery("writer", broker=server.url(0), set_as_current=False)
    install(app)
    app.conf.redbeat_redis_url = server.url(1)
    eta = datetime.now(timezone.utc) + timedelta(hours=1)
    began = time.process_time()
    with batch():
        for number in range(MESSAGES):
            app.send_task("echo", [number], {"name": f"number {number}"}, eta=eta)
    return time.process_time() - began


def watch(
    broker: redis.Redis, instant: float, beat: Process, server: Server
) -> tuple[list[float], tuple[float, float]]:
    """Return how long after `instant` each message came, and the processor time of beat and of the server."""
    arrivals: list[float] = []
    before = None
    while len(arrivals) < MESSAGES:
        with broker.pipeline(transaction=True) as pipeline:
            pipeline.time()
            pipeline.llen("celery")
            (seconds, micros), length = pipeline.execute()
        since = int(seconds) + int(micros) / 1e6 - instant
        assert since >= 0 or not length, "sent before its time"
        if before is None and since > -0.1:
            before = processor_of(beat, server)
        arrivals += [since] * (length - len(arrivals))
        assert since < patience(10 * MAX_SECONDS), f"{length} of {MESSAGES} sent"
        time.sleep(0.005 if since > -0.1 else 0.05)  # the way to look, not a wait for something
    after = processor_of(beat, server)
    assert before is not None
    return arrivals, (after[0] - before[0], after[1] - before[1])


def processor_of(beat: Process, server: Server) -> tuple[float, float]:
    return processor_seconds(beat.pid) or 0.0, processor_seconds(server.process.pid) or 0.0


def lateness_of_entries(client: redis.Redis, begin: float, end: float) -> list[float]:
    """How late each run was that was due between `begin` and `end`, in their order."""
    found = []
    for number in range(ENTRIES):
        for text in client.lrange(f"redbeat::history:entry-{number}", 0, -1):
            record = json.loads(text)
            if begin <= float(record["due"]) <= end:
                found.append(float(record["at"]) - float(record["due"]))
    assert found, "no entry was due meanwhile"
    return sorted(found)
