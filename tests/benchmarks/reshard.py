"""`python -m tests.benchmarks.reshard`: how long a change of the number of shards takes, seen by its runs.

One server has the schedule and the broker. Real `celery beat` processes send the runs of some of the entries
meanwhile, every few seconds each. Run by hand; it takes a minute or two.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import redis
from celery import Celery

from redbeat.reshard.resharding import Report, Resharding
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.schedule import meta_json, write_raw
from tests.support.servers import Server

from .results import aligned

HEADER = ["From", "To", "Moved", "Seconds", "Moved/s", "Hidden, ms", "Runs", "Twice", "Missing", "Latest, s"]
#: how many runs' histories an entry keeps: more than it runs
_KEPT_RUNS = 1000


class Sent(NamedTuple):
    """What became of the runs that were due in one stretch of time.

    Attributes:
        latest: how late the latest of them was recorded as sent, seconds.
    """

    runs: int
    doubled: int
    missing: int
    latest: float


def fill(client: redis.Redis, entries: int, running: int, every: float, beginning: float) -> None:
    """Write entries by hand, of which so many run every few seconds, and the others in an hour and later."""
    with client.pipeline(transaction=False) as pipeline:
        for number in range(entries):
            is_running = number < running
            seconds = every if is_running else 86_400.0
            due = beginning + (every * number / running if is_running else 3600 + number / 100) + 0.000123
            name, schedule = f"entry-{number}", {"__type__": "interval", "every": seconds}
            meta = meta_json(datetime.fromtimestamp(due - seconds, timezone.utc), 0)
            write_raw(pipeline, name, schedule=schedule, score=round(due, 6), meta=meta)
            pipeline.hset(f"redbeat:{name}", "policy", '{"misfire": "all"}')
            if number % 1000 == 999:
                pipeline.execute()
        pipeline.execute()


def records(client: redis.Redis) -> Iterator[tuple[str, float, float]]:
    """The name, the due time and the time of recording of each run that was sent."""
    for key in client.scan_iter(match="*:history:*", count=1000):
        for text in client.lrange(key, 0, -1):
            record = json.loads(text)
            if "outcome" not in record:
                yield key.rpartition(":history:")[2], float(record["due"]), float(record["at"])


def judge(client: redis.Redis, every: float, first: float, last: float) -> Sent:
    """What became of the runs that were due between two instants."""
    counts: Counter[tuple[str, int]] = Counter()
    names: set[str] = set()
    latest = 0.0
    by_name: dict[str, list[float]] = {}
    for name, due, at in records(client):
        names.add(name)
        if first <= due < last:
            counts[name, round(due * 1000)] += 1
            by_name.setdefault(name, []).append(due)
            latest = max(latest, at - due)
    missing = 0
    for dues in by_name.values():
        missing += round((max(dues) - min(dues)) / every) + 1 - len(set(dues))
    return Sent(sum(counts.values()), sum(counts.values()) - len(counts), missing, latest)


def measure(options: argparse.Namespace) -> Iterator[tuple[Report, Sent]]:
    """Change the number of shards as often as is asked for."""
    with ExitStack() as at_end:
        server = at_end.enter_context(Server("valkey"))
        directory = Path(at_end.enter_context(tempfile.TemporaryDirectory()))
        client = at_end.enter_context(server.client(db=1))
        fill(client, options.entries, options.running, options.every, time.time() + options.entries / 5000)
        settings = {"redbeat_redis_url": server.url(1), "redbeat_history": _KEPT_RUNS}
        write_app(directory, "module", server.url(0), **settings)
        for _ in range(options.beats):
            at_end.callback(celery_beat(directory, "module").kill)
        if options.beats:
            with server.client(db=0) as broker:
                eventually(lambda: broker.llen("celery") > 2 * options.running, 120)
        for shards in options.to:
            app = Celery("test", set_as_current=False)
            app.conf.update(broker_url=server.url(0), redbeat_redis_url=server.url(1))
            began = time.time()
            report = Resharding(app, shards).run()
            ended = time.time()
            time.sleep(3)  # runs that were due by then are sent by then
            yield report, judge(client, options.every, began - 1, ended + 1)


def _shards(text: str) -> int | None:
    return None if text == "none" else int(text)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "to", nargs="*", type=_shards, default=[4, 16, None], help="numbers of shards, or none"
    )
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--running", type=int, default=1_000, help="how many of them run meanwhile")
    parser.add_argument("--every", type=float, default=5.0, help="how often each of these does, seconds")
    parser.add_argument("--beats", type=int, default=2)
    rows: list[list[str]] = []
    for report, sent in measure(parser.parse_args()):
        per_second = report.moved / report.seconds
        ends = [str(report.former or "none"), str(report.shards or "none"), str(report.moved)]
        times = [f"{report.seconds:.1f}", f"{per_second:.0f}", f"{report.longest_hidden_seconds * 1000:.0f}"]
        runs = [str(sent.runs), str(sent.doubled), str(sent.missing), f"{sent.latest:.2f}"]
        rows.append([*ends, *times, *runs])
        print(aligned(HEADER, rows), flush=True)


if __name__ == "__main__":
    main()
