"""The case of the full hour: `celery beat` with its defaults, and crontab entries due at the same minute.

A witness with a connection of its own looks at the queue's length together with the server's clock: how long
it takes from that minute until the last message is there, and whether one is there before it.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, SCHEDULE, server_now

from .bench import Bench
from .bursts import run_burst
from .results import LOOP, OURS, Cost
from .subjects.processor import processor_seconds, since

SPIKE = "due at one minute: until the last message, s"
FIRST = "due at one minute: until the first message, ms"
EARLY = "due at one minute: messages before it"

#: beat has started by then, and what it does before the minute is due is done in it
_START_SECONDS = 15
#: the queue is looked at this often after the minute, and all the time when it is near
_LOOK_SECONDS = 0.005
_NEAR_SECONDS = 0.1
#: what isn't there by then is missing
_PATIENCE_SECONDS = 120


def spike(bench: Bench) -> None:
    """From the minute at which all are due to the last message; the loop sends as many."""
    for _ in range(bench.sizes.repeats):
        bench.clear()
        _run_beat(bench)
        [loop] = run_burst(bench, LOOP, bench.sizes.due)
        bench.results.add(SPIKE, LOOP, bench.sizes.due, "s", loop["seconds"], cost=Cost.of(loop))


def _run_beat(bench: Bench) -> None:
    due, url = bench.sizes.due, bench.server.url
    with (
        tempfile.TemporaryDirectory() as name,
        bench.server.client(db=0) as broker,
        bench.server.client(db=1) as schedule,
    ):
        instant = _write_entries(bench, schedule)
        write_app(Path(name), "beaten", url(0), redbeat_redis_url=url(1))
        level = ("-l", "WARNING")  # beat's own default
        environment = bench.environment(OURS)
        with celery_beat(Path(name), "beaten", *level, env=environment) as beat:
            eventually(lambda: schedule.exists(LOCK), message=f"beat doesn't lead: {beat.output()}")
            assert server_now(schedule) < instant - _NEAR_SECONDS, "beat has started too late"
            before = _processor_seconds(beat, bench)
            first, last, early = _watch(broker, instant, due)
            after = _processor_seconds(beat, bench)
            assert beat.is_running, beat.output()
    taken = {name: since(before[name], after[name]) for name in before}
    bench.results.add(SPIKE, OURS, due, "s", last, cost=Cost.of({"sent": due, **taken}))
    bench.results.add(FIRST, OURS, due, "ms", first * 1000)
    bench.results.add(EARLY, OURS, due, "messages", early)


def _write_entries(bench: Bench, schedule: redis.Redis) -> float:
    """Save crontab entries that are due at the same minute; return it, in UNIX seconds."""
    due = bench.sizes.due
    begin = server_now(schedule) + _START_SECONDS * bench.patience
    instant = int(begin) // 60 * 60 + 60
    app = Celery("bench", set_as_current=False)
    app.conf.update(broker_url=bench.server.url(0), redbeat_redis_url=bench.server.url(1))
    at = crontab(minute=time.gmtime(instant).tm_min)
    RedBeatSchedulerEntry.save_many(
        RedBeatSchedulerEntry(f"job-{number}", "echo", at, args=[number], app=app) for number in range(due)
    )
    assert schedule.zcount(SCHEDULE, instant, instant) == due
    return instant


def _processor_seconds(beat: Process, bench: Bench) -> dict[str, float | None]:
    server = bench.server.process
    return {"here_seconds": processor_seconds(beat.pid), "server_seconds": processor_seconds(server.pid)}


def _watch(broker: redis.Redis, instant: float, count: int) -> tuple[float, float, int]:
    """Seconds from the instant to the first and to the last message, and how many were there before it."""
    first, early = None, 0
    while True:
        now, length = _look(broker)
        if now < instant:
            early = max(early, length)
            time.sleep(max(0, min(instant - _NEAR_SECONDS - now, 1)))
            continue
        if first is None and length:
            first = now - instant
        if length >= count and first is not None:
            return first, now - instant, early
        assert now < instant + _PATIENCE_SECONDS, f"{length} of {count} sent within {now - instant:.0f} s"
        time.sleep(_LOOK_SECONDS)


def _look(broker: redis.Redis) -> tuple[float, int]:
    """The server's clock and the length of the queue, at the same moment."""
    with broker.pipeline(transaction=True) as pipeline:
        pipeline.time()
        pipeline.llen("celery")
        moment, length = pipeline.execute()
    seconds, micros = moment
    return int(seconds) + int(micros) / 1e6, int(length)
