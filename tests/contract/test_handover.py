"""A beat of celery-redbeat 2.4.2 and one of ours take turns on one schedule: no run is lost, none doubled.

What that means, entry by entry: every message is counted in `total_run_count` and every count is a message;
between two messages passes no more than the interval and the time in which there was no leader; and two
messages closer than half an interval are of different nominal times (a run made up for, then the next).
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, field, messages, score_of, write_raw
from tests.support.servers import Server

StartBeat = Callable[[str], Process]
INTERVALS = {"every-1": 1.0, "every-1.5": 1.5, "every-2": 2.0}
SLACK_SECONDS = 0.8
# 2.4.2 sees an entry of ours in the second after it is due, and looks once in its loop interval.
HANDOVER_SECONDS = 2.0

# Notes when each message was handed over, on the broker's database; ours leave a moment later, or not at all
# when beat is ended in between, so only those count that are on the queue.
NOTE_SENDING = """
from celery.signals import after_task_publish

@after_task_publish.connect
def note_sent(headers=None, body=None, **_):
    sent = {"entry": body[0][0], "id": headers["id"], "time": time.time(), "due": headers.get("redbeat_due")}
    runs_client().rpush("sent", json.dumps(sent))
"""


@dataclass(frozen=True)
class Sent:
    """One message: when it left and, if ours, its nominal time; UNIX seconds."""

    time: float
    due: float

    @classmethod
    def of(cls, note: dict[str, Any]) -> Sent:
        due = note["due"] and datetime.fromisoformat(note["due"]).timestamp()
        return cls(note["time"], due or note["time"])


@pytest.fixture
def broker(valkey: Server) -> redis.Redis:
    return valkey.client(db=0)


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


@pytest.fixture
def start_beat(valkey: Server, redbeat2_python: Path, tmp_path: Path) -> StartBeat:
    """Start "2.4.2" or "ours"; it may have to wait for the lock."""
    settings = {"redbeat_redis_url": valkey.url(1), "beat_max_loop_interval": 1}
    write_app(tmp_path, "shared_app", valkey.url(0), extra=NOTE_SENDING, **settings)
    pythons = {"2.4.2": {"python": redbeat2_python}, "ours": {}}

    def start(which: str) -> Process:
        return celery_beat(tmp_path, "shared_app", **pythons[which])

    return start


def add_entries(client: redis.Redis) -> None:
    for name, every in INTERVALS.items():
        interval = {"__type__": "interval", "every": every, "relative": False}
        definition = {"name": name, "task": "echo", "schedule": interval, "args": [name], "kwargs": {}}
        write_raw(client, name, {**definition, "options": {}, "enabled": True})


def sendings(broker: redis.Redis) -> dict[str, list[Sent]]:
    notes: Any = [json.loads(note) for note in broker.lrange("sent", 0, -1)]
    enqueued = Counter(message["headers"]["id"] for message in messages(broker))
    assert enqueued.total() == len(enqueued)
    notes = {note["id"]: note for note in notes if note["id"] in enqueued}.values()
    return {name: [Sent.of(note) for note in notes if note["entry"] == name] for name in INTERVALS}


def wait_for_more(broker: redis.Redis, beat: Process, times: int = 2) -> None:
    """Wait until `beat` has sent every entry so often, and nothing is due in the next moment.

    A 2.4.2 that is ended between recording a run and sending it loses that run, and that isn't our matter.
    """
    before = {name: len(sent) for name, sent in sendings(broker).items()}

    def has_sent() -> bool:
        assert beat.is_running, beat.output()
        now = time.time()
        return all(
            len(sent) >= before[name] + times and sent[-1].time + INTERVALS[name] > now + 0.25
            for name, sent in sendings(broker).items()
        )

    eventually(has_sent, retry_on=(), message=f"{times} runs of every entry did not come")


def assert_no_run_is_lost_or_doubled(
    broker: redis.Redis, client: redis.Redis, leaderless: list[tuple[float, float]]
) -> None:
    for name, sent in sendings(broker).items():
        every = INTERVALS[name]
        assert field(client, name, "meta")["total_run_count"] == len(sent), name
        for earlier, later in itertools.pairwise(sent):
            pause = sum(end - start for start, end in leaderless if earlier.time < end and start < later.time)
            slack = patience(SLACK_SECONDS) + (HANDOVER_SECONDS if pause else 0)
            assert later.time - earlier.time <= every + pause + slack, (name, earlier, later, pause)
            # 2.4.2 writes the whole seconds of the next due time, and the score is what counts for us
            nearest = min(every / 2, every - 1.05) if pause else every / 2
            is_near = later.time - earlier.time < nearest
            assert not (is_near and later.due - earlier.due < nearest), (name, earlier, later)


@pytest.mark.parametrize(("leading", "waiting"), [("2.4.2", "ours"), ("ours", "2.4.2")])
def test_second_beat_waits_for_the_first_and_then_loses_and_doubles_no_run(
    broker: redis.Redis, client: redis.Redis, start_beat: StartBeat, leading: str, waiting: str
) -> None:
    add_entries(client)
    with start_beat(leading) as leader:
        wait_for_more(broker, leader, times=1)
        token = client.get(LOCK)
        with start_beat(waiting) as standby:
            standby.wait_for("beat: Starting...")
            wait_for_more(broker, leader, times=1)
            assert client.get(LOCK) == token
            assert "beat: Acquired lock" not in standby.output()
            assert "Sending due task" not in standby.output()
            leader.stop()
            stopped_at = time.time()
            standby.wait_for("beat: Acquired lock")
            leaderless = [(stopped_at, time.time())]
            wait_for_more(broker, standby)
    assert_no_run_is_lost_or_doubled(broker, client, leaderless)


@pytest.mark.slow
def test_ours_does_not_take_the_lock_of_a_2_4_2_that_was_killed_before_it_ends(
    broker: redis.Redis, client: redis.Redis, start_beat: StartBeat
) -> None:
    add_entries(client)
    with start_beat("2.4.2") as leader:
        wait_for_more(broker, leader, times=1)
        leader.kill()
    ended_at, ends_at = time.time(), time.time() + client.pttl(LOCK) / 1000
    with start_beat("ours") as standby:
        standby.wait_for("beat: Acquired lock")
        assert time.time() >= ends_at - 0.05
        leaderless = [(ended_at, time.time())]
        wait_for_more(broker, standby)
    assert_no_run_is_lost_or_doubled(broker, client, leaderless)


EXTRA = """
from celery.signals import after_task_publish

app.conf.timezone = datetime.timezone(datetime.timedelta(seconds={offset_seconds}))
app.conf.beat_schedule = {{"minutely": {{"task": "echo", "schedule": crontab()}}}}

@after_task_publish.connect
def note_sent(headers=None, **_):
    runs_client().rpush("sent", json.dumps({{"time": time.time(), "due": headers.get("redbeat_due")}}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("starts_of_2x", [1, 2])
def test_a_crontab_of_2_4_2_that_never_ran_runs_once_and_on_the_minute(
    valkey: Server, redbeat2_python: Path, tmp_path: Path, starts_of_2x: int
) -> None:
    for lead_seconds in (4 + 3 * starts_of_2x, 25, 50):  # more on a machine that is slow
        valkey.flush()
        if hand_over(valkey, redbeat2_python, tmp_path, starts_of_2x, lead_seconds):
            return
    pytest.fail("this machine doesn't start so many beats within a minute")


def hand_over(
    valkey: Server, redbeat2_python: Path, tmp_path: Path, starts_of_2x: int, lead_seconds: int
) -> bool:
    """Let both be there before a minute begins, in so many seconds; False: that was too soon for them."""
    boundary = int(time.time()) + lead_seconds
    settings = {"redbeat_redis_url": valkey.url(1), "beat_max_loop_interval": 1}
    extra = EXTRA.format(offset_seconds=-boundary % 60)
    write_app(tmp_path, "shared_app", valkey.url(0), extra=extra, **settings)
    with valkey.client(db=0) as broker, valkey.client(db=1) as client:

        def sent() -> list[Any]:
            notes: Any = broker.lrange("sent", 0, -1)
            return [json.loads(note) for note in notes]

        for _ in range(starts_of_2x):
            with celery_beat(tmp_path, "shared_app", python=redbeat2_python) as theirs:
                eventually(lambda: client.exists(LOCK) and score_of(client, "minutely"))
                theirs.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "shared_app") as ours:
            ours.wait_for("beat: Acquired lock")
            was_sent = sent()
            if time.time() >= boundary:
                return False
            assert was_sent == []
            eventually(lambda: (score_of(client, "minutely") or 0) >= boundary + 60)
            only, *_ = sent()
            assert datetime.fromisoformat(only["due"]).timestamp() == boundary
            assert boundary <= only["time"] < boundary + 30
            eventually(lambda: time.time() > boundary + 2)
            in_this_minute = [note for note in sent() if note["time"] < boundary + 60]
            assert len(in_this_minute) == 1, ours.output()
    return True
