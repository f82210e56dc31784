"""The cases of a burst: many entries due at once, and the loops that send as many messages.

Ours sends the same entries twice, in one process: when they have never run and nothing is known of them, and
when their own schedule lets them be due again. In another process it sends what was written raw.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from tests.support.rabbitmq import RabbitMQ

from .bench import Bench
from .results import BATCHED, CONFIRMED, FLOOR, LOOP, OLD, OURS, Cost, shares

BURST = "burst, messages/s"
NEVER_RUN = "burst of entries that have never run, messages/s"
RAW = "burst of entries written raw with score 0, messages/s"
TOGETHER, LOGGED = "at one due time", "with the log at INFO"
RECEIVERS, EVENTS = "with signal receivers", "with task-sent events"
TRACKED, UNTRACKED = "with all runs tracked", "with none tracked"
RABBITMQ = "burst to RabbitMQ, messages/s"

_WAYS = {OURS: "scheduler", OLD: "old", LOOP: "loop", BATCHED: "batched", FLOOR: "floor"}
_VARIANTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    TOGETHER: ({"apart_micros": 0}, (OURS,)),
    RECEIVERS: ({"has_receivers": True}, (OURS, LOOP)),
    EVENTS: ({"settings": {"task_send_sent_event": True}}, (OURS, LOOP)),
    LOGGED: ({"log_file": "beat.log"}, (OURS,)),
}
_TRACKING: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    UNTRACKED: ({}, (OURS,)),
    TRACKED: ({"is_tracked": True}, (OURS,)),
}
_RABBITMQ_WAYS = {OURS: "scheduler", CONFIRMED: "confirmed", LOOP: "unconfirmed"}


def of_variant(case: str, variant: str) -> str:
    """The name of a burst's case where something is connected or switched on."""
    return case.replace(", ", f" {variant}, ", 1)


def burst(bench: Bench) -> None:
    """All entries of a schedule due at once; the others send as many messages."""
    for due in bench.sizes.bursts:
        repeats = bench.sizes.repeats if due <= bench.sizes.burst_repeated else 1
        for _ in range(repeats):
            for subject in _WAYS:
                bursts = run_burst(bench, subject, due)
                _add(bench, BURST, subject, due, bursts[-1])
                if subject == OURS:
                    _add(bench, NEVER_RUN, subject, due, bursts[0])
                    _add(bench, RAW, subject, due, run_burst(bench, subject, due, way="raw")[0])


def variants(bench: Bench, of: Mapping[str, tuple[dict[str, Any], tuple[str, ...]]] = _VARIANTS) -> None:
    """The same, but of entries with one due time, and with what may be connected or switched on."""
    due = bench.sizes.due
    for _ in range(bench.sizes.repeats):
        for variant, (options, subjects) in of.items():
            for subject in subjects:
                bursts = run_burst(bench, subject, due, **options)
                _add(bench, of_variant(BURST, variant), subject, due, bursts[-1])
                if subject == OURS:
                    _add(bench, of_variant(NEVER_RUN, variant), subject, due, bursts[0])


def tracked(bench: Bench) -> None:
    """The same, of entries whose runs are noted as in progress, and of others in turn."""
    variants(bench, _TRACKING)


def rabbitmq(bench: Bench) -> None:
    """A burst to RabbitMQ; one loop waits for each confirm, the other for none."""
    due = bench.sizes.due
    with RabbitMQ() as server:
        options = {"broker": server.url(), "server_pid": server.process.pid}
        for _ in range(bench.sizes.repeats):
            for subject, way in _RABBITMQ_WAYS.items():
                bench.clear()
                server.flush()
                options["limit_seconds"] = bench.sizes.limit_seconds
                report = bench.run(subject, "rabbit", way=way, due=due, db=1, **options)
                _add(bench, RABBITMQ, subject, due, report)


def run_burst(bench: Bench, subject: str, due: int, **changes: Any) -> list[dict[str, Any]]:
    """What the subject's bursts took: ours has two."""
    bench.clear()
    options: dict[str, Any] = {"way": _WAYS[subject], "due": due, "db": 1, **bench.limits()}
    options |= {"settings": {}, "log_file": "", "has_receivers": False, "is_tracked": False}
    options |= {"apart_micros": 100, **changes}  # as of entries that are saved one after the other
    with tempfile.TemporaryDirectory() as name:
        if options["log_file"]:
            options["log_file"] = str(Path(name, options["log_file"]))
        report = bench.run(subject, "burst", **options)
    return list(report["bursts"])


def _add(bench: Bench, case: str, subject: str, due: int, taken: dict[str, Any]) -> None:
    sent, seconds = taken["sent"], taken["seconds"]
    note = "" if sent == due else f"{sent:,} sent within {seconds:.0f} s"
    bench.results.add(case, subject, due, "messages/s", sent / seconds, note, Cost.of(taken))


SAMPLED, UNSAMPLED = "recorded", "unsampled"
KINDS = (SAMPLED, UNSAMPLED)
TRACED_BURST = {"none": "burst without a tracer provider, messages/s"} | {
    kind: f"burst with {kind} spans, messages/s" for kind in KINDS
}
TRACING = {kind: f"tracing in beat, {kind} spans, µs of processor time a run" for kind in KINDS}
ALONE = {kind: f"as many {kind} create spans by the SDK alone, µs" for kind in KINDS}
#: and what their messages carry, written by the propagator
CARRIED = {kind: f"as many {kind} create spans and contexts by the SDK alone, µs" for kind in KINDS}


def traced(bench: Bench) -> None:
    """Bursts with spans and without, and the SDK's spans alone, in turn in one process."""
    bench.clear()
    due, results = bench.sizes.traced, bench.results
    options = {"due": due, "db": 1, "rounds": bench.sizes.traced_rounds, **bench.limits()}
    rounds = [
        {what: (taken, Cost.of(taken)) for what, taken in one.items()}
        for one in bench.run(OURS, "tracing", **options)["rounds"]
    ]
    for one in rounds:
        for what, case in TRACED_BURST.items():
            taken, cost = one[what]
            results.add(case, OURS, due, "messages/s", taken["sent"] / taken["seconds"], cost=cost)
    for kind in KINDS:
        costs = {what: [one[what][1] for one in rounds] for what in ("none", kind)}
        here = {what: [cost.here_us for cost in found if cost] for what, found in costs.items()}
        if not here[kind]:
            return  # the system doesn't tell
        note = f"by the cheapest rounds {min(here[kind]) - min(here['none']):.1f}"
        for traced_us, untraced_us in zip(here[kind], here["none"], strict=True):
            results.add(TRACING[kind], OURS, due, "µs", traced_us - untraced_us, note)
        for what, case in ((f"{kind} alone", ALONE), (f"{kind} alone with context", CARRIED)):
            alone = [cost.here_us for one in rounds for cost in [one[what][1]] if cost]
            for each in alone:
                results.add(case[kind], OURS, due, "µs", each, f"the cheapest round {min(alone):.1f}")


PING = {share: f"PING of another client during a burst, {share}, ms" for share in ("p50", "p99", "max")}
SCRIPT = {share: f"one of our scripts, by SLOWLOG, {share}, ms" for share in ("p50", "p99", "max")}

_PAUSE_SECONDS = 0.002
_SCRIPT_COMMANDS = (b"EVALSHA", b"EVAL", b"FCALL")
_LOG_LENGTH = 1_000_000
#: the server's own default
_LOG_SLOWER_THAN_MICROS = 10_000


def pings(bench: Bench) -> None:
    """A burst, and another client that asks for nothing but an answer."""
    for _ in range(bench.sizes.repeats):
        for subject in (OURS, LOOP):
            with _pinging(bench) as answers:
                bursts = run_burst(bench, subject, bench.sizes.due)
            started, ended = (bursts[-1][name] for name in ("started", "ended"))
            during = [then - asked for asked, then in answers if then > started and asked < ended]
            _add_shares(bench, PING, subject, during)
        with logging_all(bench) as client:
            run_burst(bench, OURS, bench.sizes.due)
            logged = client.slowlog_get(_LOG_LENGTH)
        of_scripts = [one["duration"] / 1e6 for one in logged if one["command"].startswith(_SCRIPT_COMMANDS)]
        _add_shares(bench, SCRIPT, OURS, of_scripts)


@contextmanager
def _pinging(bench: Bench) -> Iterator[list[tuple[float, float]]]:
    """Yield a list that gets, of each PING in the block, when it was sent and answered (monotonic)."""
    answers: list[tuple[float, float]] = []
    is_over = threading.Event()

    def ask() -> None:
        with bench.server.client() as client:
            while not is_over.wait(_PAUSE_SECONDS):
                asked = time.monotonic()
                client.ping()
                answers.append((asked, time.monotonic()))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(ask)
        try:
            yield answers
        finally:
            is_over.set()


@contextmanager
def logging_all(bench: Bench) -> Iterator[redis.Redis]:
    """Let the server log every command in the block with the time it took; yield a client that reads it."""
    with bench.server.client(decode_responses=False) as client:
        client.config_set("slowlog-max-len", _LOG_LENGTH)
        client.config_set("slowlog-log-slower-than", 0)
        client.slowlog_reset()
        try:
            yield client
        finally:
            client.config_set("slowlog-log-slower-than", _LOG_SLOWER_THAN_MICROS)
            client.slowlog_reset()


def _add_shares(bench: Bench, cases: dict[str, str], subject: str, seconds: list[float]) -> None:
    for share, value in shares(seconds).items():
        bench.results.add(cases[share], subject, bench.sizes.due, "ms", value * 1000)
