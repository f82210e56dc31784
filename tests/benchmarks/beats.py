"""The cases of a real `celery beat` with its defaults: the full hour, and intervals of one second.

`spike`: crontab entries are due at the same minute. A witness with a connection of its own looks at the
queue's length together with the server's clock: how long it takes from that minute until the last message is
there, and whether one is there before it.

`lateness`: the first run of an entry is due at its first score, the one after k others k seconds later:
whatever moves them from there is drift. A message's arrival is noted by a reader that waits for it at the
queue.
"""

from __future__ import annotations

import base64
import itertools
import json
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK, SCHEDULE, meta_json, server_now, write_raw

from .bench import Bench, SubjectError
from .bursts import run_burst
from .results import LOOP, OLD, OURS, Cost, shares
from .subjects.processor import processor_seconds, since

SPIKE = "due at one minute: until the last message, s"
FIRST = "due at one minute: until the first message, ms"
EARLY = "due at one minute: messages before it"
LATENESS = {share: f"lateness of 1 s intervals, {share}, ms" for share in ("median", "p99", "max")}
DRIFT = "how much later the last runs are than the first, ms"
NOMINAL_DRIFT = "run k due at another time than start + k s, by at most ms"
MISSING = "runs missing"

#: until the minute, and until the first interval is due: beat has started by then
_START_SECONDS, _FIRST_SECONDS = 15, 10
#: the queue is looked at this often after the minute, and all the time when it is near
_LOOK_SECONDS = 0.005
_NEAR_SECONDS = 0.1
#: what isn't there by then is missing, of the minute and of the intervals
_PATIENCE_SECONDS, _INTERVAL_PATIENCE_SECONDS = 120, 2


@contextmanager
def _running_beat(bench: Bench, subject: str) -> Iterator[Process]:
    with tempfile.TemporaryDirectory() as name:
        write_app(Path(name), "beaten", bench.server.url(0), redbeat_redis_url=bench.server.url(1))
        python, environment = bench.python(subject), bench.environment(subject)
        level = ("-l", "WARNING")  # beat's own default
        with celery_beat(Path(name), "beaten", *level, python=python, env=environment) as beat:
            yield beat


# -- the full hour


def spike(bench: Bench) -> None:
    """From the minute at which all are due to the last message; the loop sends as many."""
    for _ in range(bench.sizes.repeats):
        bench.clear()
        _run_spike(bench)
        [loop] = run_burst(bench, LOOP, bench.sizes.due)
        bench.results.add(SPIKE, LOOP, bench.sizes.due, "s", loop["seconds"], cost=Cost.of(loop))


def _run_spike(bench: Bench) -> None:
    due = bench.sizes.due
    with bench.server.client(db=0) as broker, bench.server.client(db=1) as schedule:
        instant = _write_crontabs(bench, schedule)
        with _running_beat(bench, OURS) as beat:
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


def _write_crontabs(bench: Bench, schedule: redis.Redis) -> float:
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


# -- intervals of one second


class Arrival(NamedTuple):
    """A message and the UNIX second of its arrival; `due_at` is what its header says, if it has one."""

    entry: str
    at: float
    due_at: float | None


def lateness(bench: Bench) -> None:
    """How late runs are, and whether the lateness grows."""
    for subject in (OURS, OLD):
        bench.clear()
        firsts = _write_intervals(bench)
        until = min(firsts.values()) + bench.sizes.lateness_seconds
        arrivals = _note_arrivals(bench, subject, until + _INTERVAL_PATIENCE_SECONDS)
        _add_figures(bench, subject, firsts, arrivals)


def _write_intervals(bench: Bench) -> dict[str, float]:
    """Entries spread over a second; return the first due time of each."""
    count = bench.sizes.intervals
    start = int(time.time() + _FIRST_SECONDS * bench.patience)
    firsts = {f"every-second-{number}": start + number / count for number in range(count)}
    with bench.server.client(db=1) as client:
        for name, score in firsts.items():
            last_run_at = datetime.fromtimestamp(score - 1, timezone.utc)
            schedule = {"__type__": "interval", "every": 1, "relative": False}
            meta = meta_json(last_run_at, 1)
            write_raw(client, name, schedule=schedule, args=[name], score=score, meta=meta)
    return firsts


def _note_arrivals(bench: Bench, subject: str, until: float) -> list[Arrival]:
    noted: list[Arrival] = []
    with bench.server.client(db=0) as broker, _running_beat(bench, subject) as beat:
        while time.time() < until:
            popped: Any = broker.brpop(["celery"], timeout=0.5)
            if popped:
                noted.append(_read(time.time(), popped[1]))
        if not beat.is_running or not noted:
            raise SubjectError(f"{subject}, beat sent {len(noted)} messages:\n{beat.output()}")
    return noted


def _read(at: float, text: str) -> Arrival:
    message = json.loads(text)
    args, _, _ = json.loads(base64.b64decode(message["body"]))
    due = message["headers"].get("redbeat_due")
    return Arrival(args[0], at, datetime.fromisoformat(due).timestamp() if due else None)


def _add_figures(bench: Bench, subject: str, firsts: dict[str, float], arrivals: list[Arrival]) -> None:
    count, results = len(firsts), bench.results
    expected = bench.sizes.lateness_seconds
    late_by_run: list[list[float]] = [[] for _ in range(expected)]
    nominal_drifts: list[float] = []
    seen: Counter[str] = Counter()
    for arrival in arrivals:
        number, nominal = seen[arrival.entry], firsts[arrival.entry] + seen[arrival.entry]
        seen[arrival.entry] += 1
        if number < expected:
            late_by_run[number].append((arrival.at - nominal) * 1000)
            if arrival.due_at is not None:
                nominal_drifts.append(abs(arrival.due_at - nominal) * 1000)
    late = [value for values in late_by_run for value in values]
    values = {**shares(late), "median": statistics.median(late)}
    for share, case in LATENESS.items():
        results.add(case, subject, count, "ms", values[share])
    edge = max(expected // 6, 1)
    first_runs, last_runs = late_by_run[:edge], [runs for runs in late_by_run if runs][-edge:]
    begin, end = (statistics.median(itertools.chain(*runs)) for runs in (first_runs, last_runs))
    results.add(DRIFT, subject, count, "ms of drift", end - begin)
    if nominal_drifts:
        results.add(NOMINAL_DRIFT, subject, count, "ms of drift", max(nominal_drifts))
    results.add(MISSING, subject, count, "runs", expected * count - len(late), f"of {expected * count:,}")
