"""The case of the real thing: `celery beat` with its defaults, and intervals of one second.

The first run of an entry is due at its first score, the one after k others k seconds later: whatever moves
them from there is drift. A message's arrival is noted by a reader that waits for it at the queue.
"""

from __future__ import annotations

import base64
import json
import statistics
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.support.apps import celery_beat, write_app
from tests.support.schedule import meta_json, write_raw

from .bench import Bench, SubjectError
from .results import OLD, OURS

LATENESS = {share: f"lateness of 1 s intervals, {share}, ms" for share in ("median", "p99", "max")}
DRIFT = "how much later the last runs are than the first, ms"
NOMINAL_DRIFT = "run k due at another time than start + k s, by at most ms"
MISSING = "runs missing"

#: until the first run is due: beat has started by then
_START_SECONDS = 10
#: what is later than this is missing
_PATIENCE_SECONDS = 2


@dataclass
class Arrival:
    """A message and the UNIX second of its arrival; `due_at` is what its header says, if it has one."""

    entry: str
    at: float
    due_at: float | None


def lateness(bench: Bench) -> None:
    """How late runs are, and whether the lateness grows."""
    for subject in (OURS, OLD):
        bench.clear()
        firsts = _write_entries(bench)
        until = min(firsts.values()) + bench.sizes.lateness_seconds
        arrivals = _run_beat(bench, subject, until + _PATIENCE_SECONDS)
        _add_figures(bench, subject, firsts, arrivals, until)


def _write_entries(bench: Bench) -> dict[str, float]:
    """Entries spread over a second; return the first due time of each."""
    count = bench.sizes.intervals
    start = int(time.time() + _START_SECONDS * bench.patience)
    firsts = {f"every-second-{number}": start + number / count for number in range(count)}
    with bench.server.client(db=1) as client:
        for name, score in firsts.items():
            last_run_at = datetime.fromtimestamp(score - 1, timezone.utc)
            schedule = {"__type__": "interval", "every": 1, "relative": False}
            meta = meta_json(last_run_at, 1)
            write_raw(client, name, schedule=schedule, args=[name], score=score, meta=meta)
    return firsts


def _run_beat(bench: Bench, subject: str, until: float) -> list[Arrival]:
    noted: list[tuple[float, str]] = []
    with tempfile.TemporaryDirectory() as name, bench.server.client(db=0) as broker:
        directory = Path(name)
        write_app(directory, "beaten", bench.server.url(0), redbeat_redis_url=bench.server.url(1))
        python, environment = bench.python(subject), bench.environment(subject)
        level = ("-l", "WARNING")  # beat's own default
        with celery_beat(directory, "beaten", *level, python=python, env=environment) as beat:
            while time.time() < until:
                popped: Any = broker.brpop(["celery"], timeout=0.5)
                if popped:
                    noted.append((time.time(), popped[1]))
            if not beat.is_running or not noted:
                raise SubjectError(f"{subject}, beat sent {len(noted)} messages:\n{beat.output()}")
    return [_read(at, message) for at, message in noted]


def _read(at: float, text: str) -> Arrival:
    message = json.loads(text)
    args, _, _ = json.loads(base64.b64decode(message["body"]))
    due = message["headers"].get("redbeat_due")
    return Arrival(args[0], at, datetime.fromisoformat(due).timestamp() if due else None)


def _add_figures(
    bench: Bench, subject: str, firsts: dict[str, float], arrivals: list[Arrival], until: float
) -> None:
    count, results = len(firsts), bench.results
    expected = bench.sizes.lateness_seconds
    by_entry: dict[str, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        if len(by_entry[arrival.entry]) < expected:
            by_entry[arrival.entry].append(arrival)
    late_by_run: list[list[float]] = [[] for _ in range(expected)]
    nominal_drifts: list[float] = []
    for entry, runs in by_entry.items():
        for number, run in enumerate(runs):
            nominal = firsts[entry] + number
            late_by_run[number].append((run.at - nominal) * 1000)
            if run.due_at is not None:
                nominal_drifts.append(abs(run.due_at - nominal) * 1000)
    late = sorted(value for values in late_by_run for value in values)
    values = {"median": statistics.median(late), "p99": late[int(len(late) * 0.99)], "max": late[-1]}
    for share, case in LATENESS.items():
        results.add(case, subject, count, "ms", values[share])
    edge = max(expected // 6, 1)
    begin, end = (
        [value for values in part for value in values]
        for part in (late_by_run[:edge], [runs for runs in late_by_run if runs][-edge:])
    )
    results.add(DRIFT, subject, count, "ms of drift", statistics.median(end) - statistics.median(begin))
    if nominal_drifts:
        results.add(NOMINAL_DRIFT, subject, count, "ms of drift", max(nominal_drifts))
    results.add(MISSING, subject, count, "runs", expected * count - len(late), f"of {expected * count:,}")
