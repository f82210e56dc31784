"""`python -m tests.benchmarks.shards`: what shards and beats cost and gain on one server. Run by hand.

Real `celery beat` processes run entries that are all due within some milliseconds, round after round;
schedule and broker are two databases of one server. All layouts are there at once, each with a server and
beats of its own, and are due one after the other: so whatever the machine does at a time hits all of them,
and each round can be compared with those beside it. The first round warms up. What waiting costs is measured
from one burst of a layout to its next, and isn't counted once more as what runs cost.
"""

from __future__ import annotations

import argparse
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
from tests.support.servers import Server

from .results import ROOT, aligned, write
from .subjects.processor import processor_seconds, since

QUEUE = "celery"
HEADER = [
    *("Shards", "Beats", "Runs/s", "µs of a run: beats", "µs of a run: server"),
    *("idle, ms/s: beats", "idle, ms/s: server", "idle: commands/s"),
]
#: from the moment at which beats lead until the first burst, for entries to be saved
_SAVING_SECONDS = 5
#: after a burst and before the next one, in which what still goes on isn't counted as waiting
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
    commands: float


class Found(NamedTuple):
    """One burst and the time before it.

    Times are of the processors: microseconds for a run, milliseconds for a second of waiting.
    """

    rate: float
    beats_us: float
    server_us: float
    idle_beats_ms: float
    idle_server_ms: float
    idle_commands: float


@dataclass
class Subject:
    """One layout: a server, and beats that lead."""

    case: Case
    server: Server
    schedule: redis.Redis
    broker: redis.Redis
    beats: Sequence[Process]
    calm: tuple[Used, float] | None = None  # at the end of its last burst, and that instant

    def used(self) -> Used:
        of_beats = [since(0.0, processor_seconds(beat.pid)) or 0.0 for beat in self.beats]
        of_server = since(0.0, processor_seconds(self.server.process.pid)) or 0.0
        stats: Any = self.schedule.info("stats")
        return Used(sum(of_beats), of_server, stats["total_commands_processed"])


def measure(cases: Sequence[Case], entries: int, rounds: int, every: int) -> Iterator[tuple[Case, Found]]:
    """Yield what layouts do with so many entries that are due every so many seconds, as they take turns."""
    with ExitStack() as stack:
        subjects = []
        for case in cases:
            server = stack.enter_context(Server())
            broker, schedule = (stack.enter_context(server.client(db=db)) for db in (0, 1))
            beats = stack.enter_context(beats_of(server, schedule, case))
            subjects.append(Subject(case, server, schedule, broker, beats))
        period = len(subjects) * every
        start = time.time() + len(subjects) * (_SAVING_SECONDS + entries / 10_000)
        for place, subject in enumerate(subjects):
            app = Celery("bench", broker=subject.server.url(0), set_as_current=False)
            app.conf.update(settings_of(subject.server, subject.case))
            save(app, entries, start + place * every, period)
        assert time.time() < start, "saving took too long"
        for number in range(rounds + 1):
            for place, subject in enumerate(subjects):
                at = start + number * period + place * every
                found = watch(subject, at, entries)
                if found is not None:
                    yield subject.case, found
        for subject in subjects:
            for beat in subject.beats:
                assert beat.is_running, beat.output()


def settings_of(server: Server, case: Case) -> dict[str, Any]:
    """Nothing is looked ahead: a round is then the work of its own time."""
    shards = {} if case.shards is None else {"redbeat_shards": case.shards}
    return {"redbeat_redis_url": server.url(1), "redbeat_lookahead": 0, "result_expires": None, **shards}


@contextmanager
def beats_of(server: Server, schedule: redis.Redis, case: Case) -> Iterator[list[Process]]:
    """Beats of which each leads its share."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        write_app(Path(name), "beaten", server.url(0), **settings_of(server, case))
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


def watch(subject: Subject, at: float, count: int) -> Found | None:
    """Watch a burst that is due then; the first one of a layout has no time before it: None."""
    sleep_until(at - _CALM_SECONDS)
    before, started = subject.used(), time.time()
    assert subject.broker.llen(QUEUE) == 0, "something was sent too early"
    sleep_until(at)
    while (length := subject.broker.llen(QUEUE)) < count:
        assert time.time() < at + _PATIENCE_SECONDS, f"{length} of {count} were sent"
        time.sleep(_LOOK_SECONDS)
    seconds = time.time() - at
    sleep_until(time.time() + _CALM_SECONDS)
    after, ended = subject.used(), time.time()
    assert subject.broker.llen(QUEUE) == count, f"{subject.broker.llen(QUEUE)} were sent instead of {count}"
    subject.broker.delete(QUEUE)
    calm, subject.calm = subject.calm, (subject.used(), ended)
    if calm is None:
        return None
    used_before, calm_since = calm
    idle_seconds, burst_seconds = started - calm_since, ended - started
    assert idle_seconds > 1, "no time was left to wait: give a larger --every"
    idle = Used(*((now - then) / idle_seconds for now, then in zip(before, used_before, strict=True)))
    of_beats = after.beats - before.beats - idle.beats * burst_seconds
    of_server = after.server - before.server - idle.server * burst_seconds
    micros = 1e6 / count
    idle_ms = (idle.beats * 1e3, idle.server * 1e3)
    return Found(count / seconds, of_beats * micros, of_server * micros, *idle_ms, idle.commands)


def sleep_until(instant: float) -> None:
    time.sleep(max(0.0, instant - time.time()))


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
    parser.add_argument("--every", type=int, default=5, help="seconds from one layout's burst to another's")
    parser.add_argument("--rounds", type=int, default=6, help="after the first, which warms up")
    parser.add_argument("--publish", action="store_true", help="put the table into the documentation")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    counts = [None if word == "none" else int(word) for word in options.shards.split(",")]
    found: dict[Case, list[Found]] = {}
    for beats in map(int, options.beats.split(",")):
        cases = [Case(shards, beats) for shards in counts if beats <= (shards or 1)]
        for case, one in measure(cases, options.entries, options.rounds, options.every):
            found.setdefault(case, []).append(one)
            print(*row(case, one), sep="  ", file=sys.stderr, flush=True)
    medians = {case: map(statistics.median, zip(*all_of, strict=True)) for case, all_of in found.items()}
    rows = [row(case, Found(*one)) for case, one in medians.items()]
    rounds = [[*case, *one] for case, all_of in found.items() for one in all_of]
    on = {"processors": os.cpu_count(), "entries": options.entries}
    write("shards", options.publish, **on, header=HEADER, rows=rows, rounds=rounds)
    print(aligned(HEADER, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
