"""`python -m tests.benchmarks.shards`: what shards and beats cost and gain on one server. Run by hand.

Real `celery beat` processes run entries that are all due within some milliseconds, round after round;
schedule and broker are two databases of one server. The first round warms up. Between two rounds nothing is
due, and it is measured what waiting costs. Layouts take turns, so that whatever the machine does at a time
hits all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, NamedTuple

import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.keys import Keys, shard_prefix
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import server_now
from tests.support.servers import Server

from .bench import ROOT
from .subjects.processor import processor_seconds, since
from .table import aligned

OUT = ROOT / "build" / "bench" / "shards.json"
PUBLISHED = ROOT / "docs" / "_static" / "shards.json"

QUEUE = "celery"
HEADER = [
    *("Shards", "Beats", "Runs/s", "µs of a run: beats", "µs of a run: server"),
    *("idle, ms/s: beats", "idle, ms/s: server", "idle: commands/s"),
]
#: from the moment at which beats lead until the first round, for entries to be saved
_SAVING_SECONDS = 5
#: after a round and before the next one, in which what still goes on isn't counted as waiting
_CALM_SECONDS = 1.0
_LOOK_SECONDS = 0.02
#: what isn't sent by then is lost
_PATIENCE_SECONDS = 60


class Case(NamedTuple):
    """`shards`: None where the schedule isn't divided."""

    shards: int | None
    beats: int


class Used(NamedTuple):
    """Processor time so far, in seconds, and commands."""

    beats: float
    server: float
    commands: int


@dataclass(frozen=True)
class Found:
    """One round and the time before it.

    Times are of the processors: microseconds for a run, milliseconds for a second of waiting.
    """

    rate: float
    beats_us: float
    server_us: float
    idle_beats_ms: float
    idle_server_ms: float
    idle_commands: float


def measure(case: Case, entries: int, rounds: int, every: int) -> list[Found]:
    """What one layout does with so many entries that are due every so many seconds."""
    with (
        Server() as server,
        server.client(db=1) as schedule,
        server.client(db=0) as broker,
        beats_of(server, schedule, case) as beats,
    ):
        start = server_now(schedule) + _SAVING_SECONDS + entries / 10_000
        save(app_of(server, case), entries, start, every)
        found = []
        for number in range(rounds + 1):
            at = start + number * every
            idle = watch_idle(server, schedule, beats, at) if number else None
            burst = watch_burst((server, schedule, broker), beats, at, entries)
            broker.delete(QUEUE)
            if idle is not None:
                found.append(Found(*burst, *idle))
        for beat in beats:
            assert beat.is_running, beat.output()
        return found


def app_of(server: Server, case: Case) -> Celery:
    app = Celery("bench", set_as_current=False)
    app.conf.update(settings_of(case), broker_url=server.url(0), redbeat_redis_url=server.url(1))
    return app


def settings_of(case: Case) -> dict[str, Any]:
    """Nothing is looked ahead: a round is then the work of its own time."""
    shards = {} if case.shards is None else {"redbeat_shards": case.shards}
    return {"redbeat_lookahead": 0, "result_expires": None, **shards}


@contextmanager
def beats_of(server: Server, schedule: redis.Redis, case: Case) -> Iterator[list[Process]]:
    """Beats of which each leads its share."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        write_app(Path(name), "beaten", server.url(0), redbeat_redis_url=server.url(1), **settings_of(case))
        own = [("--pidfile", f"beat-{number}.pid", "-l", "WARNING") for number in range(case.beats)]
        environment = {"PYTHONPATH": str(ROOT)}
        beats = [stack.enter_context(celery_beat(Path(name), "beaten", *one, env=environment)) for one in own]
        eventually(
            lambda: leaders(schedule, case) == min(case.beats, case.shards or 1),
            timeout=60,
            message=f"{case}: the beats don't share the shards",
        )
        yield beats


def leaders(schedule: redis.Redis, case: Case) -> int:
    """How many beats lead; 0 while a shard has none."""
    prefix = Keys().prefix
    prefixes = [prefix] if case.shards is None else [shard_prefix(prefix, k) for k in range(case.shards)]
    tokens: list[Any] = schedule.mget([Keys(one).lock for one in prefixes])
    # redbeat:3:<host>:<process id>:<start>:<random>, or as much of it as tells the process
    return 0 if None in tokens else len({token.rsplit(":", 2)[0] for token in tokens})


def save(app: Celery, count: int, start: float, every: int) -> None:
    """Save entries that are due at `start`, a microsecond apart, and then every so many seconds."""
    before = datetime.fromtimestamp(start - every, timezone.utc)
    RedBeatSchedulerEntry.save_many(
        RedBeatSchedulerEntry(
            f"entry-{number}", "echo", every, last_run_at=before + timedelta(microseconds=number), app=app
        )
        for number in range(count)
    )
    now = server_now(app.redbeat_redis)
    assert now < start, f"saving took {now - start:.1f} s too long; give more time"


def watch_idle(
    server: Server, schedule: redis.Redis, beats: Sequence[Process], until: float
) -> tuple[float, float, float]:
    """What beats and server use for a second in which nothing is due."""
    wait_until(schedule, server_now(schedule) + _CALM_SECONDS)
    before, started = used(server, schedule, beats), time.monotonic()
    wait_until(schedule, until - _CALM_SECONDS)
    after, seconds = used(server, schedule, beats), time.monotonic() - started
    assert seconds > 1, "no time was left to wait: give a larger --every"
    return (
        (after.beats - before.beats) * 1000 / seconds,
        (after.server - before.server) * 1000 / seconds,
        (after.commands - before.commands) / seconds,
    )


def watch_burst(
    places: tuple[Server, redis.Redis, redis.Redis], beats: Sequence[Process], at: float, count: int
) -> tuple[float, float, float]:
    """Runs a second from the instant at which all are due, and what one costs beats and server."""
    server, schedule, broker = places
    wait_until(schedule, at - _CALM_SECONDS)
    before = used(server, schedule, beats)
    assert broker.llen(QUEUE) == 0, "something was sent too early"
    wait_until(schedule, at)
    while (length := broker.llen(QUEUE)) < count:
        assert server_now(schedule) < at + _PATIENCE_SECONDS, f"{length} of {count} were sent"
        time.sleep(_LOOK_SECONDS)
    seconds = server_now(schedule) - at
    wait_until(schedule, server_now(schedule) + _CALM_SECONDS)
    after = used(server, schedule, beats)
    assert broker.llen(QUEUE) == count, f"{broker.llen(QUEUE)} were sent instead of {count}"
    return (
        count / seconds,
        (after.beats - before.beats) * 1e6 / count,
        (after.server - before.server) * 1e6 / count,
    )


def wait_until(schedule: redis.Redis, moment: float) -> None:
    time.sleep(max(0.0, moment - server_now(schedule)))


def used(server: Server, schedule: redis.Redis, beats: Sequence[Process]) -> Used:
    of_beats = [since(0.0, processor_seconds(beat.pid)) or 0.0 for beat in beats]
    stats: Any = schedule.info("stats")
    of_server = since(0.0, processor_seconds(server.process.pid)) or 0.0
    return Used(sum(of_beats), of_server, stats["total_commands_processed"])


def middle(found: Sequence[Found]) -> Found:
    """The medians of all rounds."""
    names = Found.__dataclass_fields__
    return Found(*(statistics.median(getattr(one, name) for one in found) for name in names))


def row(case: Case, one: Found) -> list[str]:
    return [
        *("none" if case.shards is None else str(case.shards), str(case.beats), f"{one.rate:,.0f}"),
        *(f"{value:.1f}" for value in (one.beats_us, one.server_us, one.idle_beats_ms, one.idle_server_ms)),
        f"{one.idle_commands:.1f}",
    ]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.shards", description=__doc__)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--shards", default="none,1,4,16,64", help="numbers, and none")
    parser.add_argument("--beats", default="1,2,4")
    parser.add_argument("--every", type=int, default=15, help="seconds from one round to the next")
    parser.add_argument("--rounds", type=int, default=2, help="after the first, which warms up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="put the table into the documentation")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    counts = [None if word == "none" else int(word) for word in options.shards.split(",")]
    cases = [Case(shards, int(beats)) for shards in counts for beats in options.beats.split(",")]
    cases = [case for case in cases if case.beats <= (case.shards or 1)]
    found: dict[Case, list[Found]] = {case: [] for case in cases}
    for turn in range(options.repeats):
        for case in cases[:: -1 if turn % 2 else 1]:
            found[case] += measure(case, options.entries, options.rounds, options.every)
            print(*row(case, found[case][-1]), sep="  ", file=sys.stderr, flush=True)
    rows = [row(case, middle(all_of)) for case, all_of in found.items()]
    result = {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "processors": os.cpu_count(),
        "entries": options.entries,
        "header": HEADER,
        "rows": rows,
        "rounds": [[*case, *vars(one).values()] for case, all_of in found.items() for one in all_of],
    }
    for path in [OUT, *([PUBLISHED] if options.publish else [])]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(aligned(HEADER, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
