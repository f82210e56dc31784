"""The case of the metrics: what a scrape of a real beat takes, and what counting costs a run."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from celery import Celery
from celery.schedules import schedule
from prometheus_client.parser import text_string_to_metric_families

from redbeat import RedBeatSchedulerEntry
from redbeat.store.figures import _COUNT_STATES
from tests.support.apps import celery_beat, celery_worker, stop_worker, write_app
from tests.support.daemons import pick_port
from tests.support.http import Answer, fetch
from tests.support.polling import eventually

from .bench import Bench
from .bursts import logging_all
from .results import OURS, Cost, shares
from .subjects.processor import processor_seconds

FORMS = {"Prometheus' text": "text/plain", "OpenMetrics": "application/openmetrics-text"}
SCRAPE = {form: f"scrape, {form}, ms" for form in FORMS}
SCRAPE_CPU = {form: f"scrape, {form}, ms of beat's processor time" for form in FORMS}
SIZE = {form: f"scrape, {form}, kB" for form in FORMS}
AGAIN = {form: f"scrape again within a second, {form}, ms" for form in FORMS}
STATES, STATES_COST = "entries counted by states, s", "entries counted by states, ms of processor time"
SLICE = {share: f"one slice of that count, by SLOWLOG, {share}, ms" for share in ("p50", "p99", "max")}
GATHERING = "metrics gathered once, ms of processor time"
COUNTED, UNCOUNTED = "burst with metrics, messages/s", "burst without metrics, messages/s"
DIFFERENCE = "metrics, µs of processor time a run"
#: what is measured of a run, by its words, to whether it is tracked
RUNS = {"": False, "tracked ": True}
END_DIFFERENCE = "metrics, µs of processor time an end of a tracked run"

_TASKS = [f"shop.tasks.{what}" for what in ("send_invoices", "remind", "sync_stock", "export", "clean_up")]
_QUEUES = ["mails", "reports", "default"]
_HISTOGRAMS = [f"redbeat_run_{what}_seconds" for what in ("lateness", "duration", "queue_wait")]
_LABELLED = 200
#: an answer is given again for a second
_REST_SECONDS = 1.3
_TASKS_SOURCE = """
import redbeat
redbeat.track_runs(app)
for name in {tasks!r}:
    @app.task(name=name)
    def nothing():
        pass
"""


def metrics(bench: Bench) -> None:
    """Both halves."""
    _measure_scrapes(bench)
    _measure_runs(bench)


def _measure_scrapes(bench: Bench) -> None:
    bench.clear()
    count, ran = bench.sizes.counted, bench.sizes.counted_runs
    _write_entries(bench, count, ran)
    with tempfile.TemporaryDirectory() as name:
        directory, port = Path(name), pick_port()
        settings = {"redbeat_redis_url": bench.server.url(1), "redbeat_http": f"127.0.0.1:{port}"}
        source = _TASKS_SOURCE.format(tasks=_TASKS)
        write_app(directory, "beaten", bench.server.url(0), extra=source, **settings)
        environment, level = bench.environment(OURS), ("-l", "WARNING")  # beat's own default
        with celery_worker(directory, "beaten", "-Q", ",".join(_QUEUES), env=environment) as worker:
            began_at = time.monotonic()
            with celery_beat(directory, "beaten", *level, env=environment) as beat:
                patience = 30 + count / 1000
                errors = (AssertionError, OSError)
                eventually(
                    lambda: "\nredbeat_entries{" in _text(port), patience, 0.5, "they aren't counted", errors
                )
                bench.results.add(STATES, OURS, count, "s", time.monotonic() - began_at, "since beat's start")
                eventually(lambda: _count_filled(port) >= _LABELLED, patience, 1.5, "not all have ended")
                stop_worker(worker)
                for form, accept in FORMS.items():
                    for _ in range(bench.sizes.scrapes):
                        _scrape(bench, beat.pid, port, form, accept)
    options = {"way": "gathering", "db": 1, "seldom": 10, **bench.limits()}
    for _ in range(bench.sizes.repeats):
        _add_gathering(bench, bench.run(OURS, "counting", **options))
    with logging_all(bench) as client:
        bench.run(OURS, "counting", **options)
        logged = client.slowlog_get(1_000_000)
    commands = (b"EVALSHA " + _COUNT_STATES.sha1.encode(), b"EVAL " + _COUNT_STATES.source.encode()[:40])
    durations = [one["duration"] / 1000 for one in logged if one["command"].startswith(commands)]
    for share, value in shares(durations).items():
        bench.results.add(SLICE[share], OURS, count, "ms", value)


def _write_entries(bench: Bench, count: int, ran: int) -> None:
    """Save entries of which some are due, and the others in an hour or more."""
    app = Celery("bench", set_as_current=False)
    app.conf.update(broker_url=bench.server.url(0), redbeat_redis_url=bench.server.url(1))
    now = datetime.now(timezone.utc)

    def entry(number: int) -> RedBeatSchedulerEntry:
        last_run_at = now - timedelta(hours=2, microseconds=-number) if number < ran else now
        return RedBeatSchedulerEntry(
            f"tenant-{number:06}:nightly-{_TASKS[number % 5].rpartition('.')[2]:_<9.9}",
            _TASKS[number % 5],
            schedule(7200 + number % 60),
            options={"queue": _QUEUES[number % 3]},
            last_run_at=last_run_at,
            app=app,
        )

    RedBeatSchedulerEntry.save_many(map(entry, range(count)))


def _text(port: int) -> str:
    return fetch(port, "/metrics").body.decode()


def _count_filled(port: int) -> int:
    """How many entries with labels of their own have something in all three histograms."""
    found: dict[str, set[str]] = {name: set() for name in _HISTOGRAMS}
    for family in text_string_to_metric_families(_text(port)):
        for sample in family.samples:
            if family.name in found and sample.name.endswith("_count") and sample.value:
                found[family.name].add(sample.labels["entry"])
    return len(set.intersection(*found.values()) - {"other"})


def _scrape(bench: Bench, pid: int, port: int, form: str, accept: str) -> None:
    count, results = bench.sizes.counted, bench.results
    time.sleep(_REST_SECONDS)
    before = processor_seconds(pid)
    milliseconds, answer = _timed(lambda: fetch(port, "/metrics", Accept=accept))
    after = processor_seconds(pid)
    assert answer.status == 200, answer
    results.add(SCRAPE[form], OURS, count, "ms", milliseconds)
    results.add(SIZE[form], OURS, count, "kB", len(answer.body) / 1000)
    if before is not None and after is not None:
        results.add(SCRAPE_CPU[form], OURS, count, "ms", (after - before) * 1000)
    results.add(AGAIN[form], OURS, count, "ms", _timed(lambda: fetch(port, "/metrics", Accept=accept))[0])


def _timed(call: Callable[[], Answer]) -> tuple[float, Answer]:
    started = time.perf_counter()
    answer = call()
    return (time.perf_counter() - started) * 1000, answer


def _add_gathering(bench: Bench, report: Mapping[str, Any]) -> None:
    """What the count took besides what is asked each second anyway."""
    count, times = bench.sizes.counted, report["times"]
    assert sum(report["states"].values()) == count, report
    counting, asking = (Cost.of({**report[what], "sent": n}) for what, n in (("counting", 1), ("asking", 10)))
    if counting is None or asking is None:
        return
    here, server = (one - times * each for one, each in zip(counting, asking, strict=True))
    note = f"beat {here / 1000:.0f} + server {server / 1000:.0f}"
    bench.results.add(STATES_COST, OURS, count, "ms", (here + server) / 1000, note)
    note = f"beat {asking.here_us / 1000:.2f} + server {asking.server_us / 1000:.2f}"
    bench.results.add(GATHERING, OURS, count, "ms", sum(asking) / 1000, note)


def _measure_runs(bench: Bench) -> None:
    due = bench.sizes.due
    for words, is_tracked in RUNS.items():
        bench.clear()
        options = {"way": "counting", "due": due, "db": 1, "labelled": _LABELLED, "is_tracked": is_tracked}
        options |= {"rounds": bench.sizes.counted_rounds, **bench.limits()}
        rounds = bench.run(OURS, "counting", **options)["rounds"]
        for one in rounds:
            case, burst = COUNTED if one["is_counted"] else UNCOUNTED, one["burst"]
            rate = burst["sent"] / burst["seconds"]
            bench.results.add(of_runs(case, words), OURS, due, "messages/s", rate, cost=Cost.of(burst))
        _add_difference(bench, of_runs(DIFFERENCE, words), rounds, "burst")
        if is_tracked:
            _add_difference(bench, END_DIFFERENCE, rounds, "end")


def of_runs(case: str, words: str) -> str:
    """The name of a case for these runs."""
    return case.replace("burst", f"burst of {words}runs").replace("a run", f"a {words}run")


def _add_difference(bench: Bench, case: str, rounds: Iterable[Mapping[str, Any]], what: str) -> None:
    """What counting costs: the difference of each two rounds, and that of the cheapest ones."""
    costs: dict[bool, list[float]] = {True: [], False: []}
    for one in rounds:
        cost = Cost.of(one[what])
        if cost is not None:
            costs[one["is_counted"]].append(sum(cost))
    if not costs[True]:
        return
    least = min(costs[True]) - min(costs[False])
    note = f"by the cheapest rounds {least:.1f}, of {statistics.median(costs[False]):.0f}"
    for counted, uncounted in zip(costs[True], costs[False], strict=True):
        bench.results.add(case, OURS, bench.sizes.due, "µs", counted - uncounted, note)
