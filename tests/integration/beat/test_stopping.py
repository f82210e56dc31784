"""Signals that end a beat, whatever it is doing at that moment."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import redis

from tests.integration.conftest import ONE_SERVER
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.schedule import LOCK, field, messages, server_now, write_raw
from tests.support.servers import Server

pytestmark = ONE_SERVER

STATIC = {"often": {"task": "echo", "schedule": 0.2}}
ENTRIES = 2_000


def write_burst(client: redis.Redis, every: float = 1.0) -> None:
    """Entries that are due all the time, at fractions of the second that are RedBeat's own."""
    start = int(server_now(client)) + 0.5
    with client.pipeline(transaction=False) as pipeline:
        for number in range(ENTRIES):
            interval = {"__type__": "interval", "every": every}
            write_raw(pipeline, f"entry-{number}", schedule=interval, score=start + number / (4 * ENTRIES))
        pipeline.execute()


def test_sigterm_ends_a_leader_whose_redis_is_away_for_ever(
    second: Server, server: Server, tmp_path: Path
) -> None:
    options = {"retry_period": -1}
    url = second.url(1)
    write_app(
        tmp_path,
        "module",
        server.url(0),
        redbeat_redis_url=url,
        redbeat_redis_options=options,
        beat_schedule=STATIC,
    )
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("Sending due task often")
        second.kill()
        beat.wait_for("Retrying Redis connection in")
        took = beat.seconds_to_end()
        print(f"it ended in {took:.2f} s")
        assert took < patience(5)


def test_two_sigterms_a_millisecond_apart_leave_no_lock(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    write_burst(client)
    for _ in range(3):
        sent = broker.llen("celery")
        with celery_beat(tmp_path, "module") as beat:
            eventually(lambda sent=sent: broker.llen("celery") > sent)
            assert client.get(LOCK)
            beat.signal(signal.SIGTERM)
            time.sleep(0.001)  # what this test is about
            beat.signal(signal.SIGTERM)
            beat.wait()
            assert client.get(LOCK) is None, beat.output()


def test_stops_at_random_moments_of_a_burst_double_and_lose_nothing(
    server: Server, client: redis.Redis, broker: redis.Redis, chance: random.Random, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    write_burst(client)
    stops: list[Any] = []
    for _ in range(6):
        with celery_beat(tmp_path, "module") as beat:
            wanted = broker.llen("celery") + chance.randint(1, ENTRIES)
            eventually(lambda wanted=wanted: broker.llen("celery") >= wanted, interval=0.0005)
            beat.signal(signal.SIGTERM)
            assert beat.wait() == 0, beat.output()
            assert client.get(LOCK) is None
            stops.append(wanted)
    sent = [(run["headers"]["redbeat_entry"], run["headers"]["redbeat_due"]) for run in messages(broker)]
    print(f"{len(sent)} messages, stopped at {stops}")
    doubled = [run for run, times in Counter(sent).items() if times > 1]
    assert not doubled, doubled[:10]
    by_entry = Counter(name for name, _ in sent)
    recorded = {name: field(client, name, "meta")["total_run_count"] for name in by_entry}
    wrong = {name: (times, recorded[name]) for name, times in by_entry.items() if times != recorded[name]}
    assert not wrong, f"messages and recorded runs: {list(wrong.items())[:10]}"
    assert len(by_entry) == ENTRIES
