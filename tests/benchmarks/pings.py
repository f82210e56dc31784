"""The case of the others: how long a burst keeps the server from answering another client.

One figure is what that client sees; on a machine of two processors it has to wait for one of these, too. The
other is the server's own: how long each of our scripts has run, by its SLOWLOG.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis

from .bench import Bench
from .bursts import run_burst
from .results import LOOP, OURS

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
            during = _during(answers, bursts[-1]["started"], bursts[-1]["ended"])
            _add(bench, PING, subject, during)
        with logging_all(bench) as client:
            run_burst(bench, OURS, bench.sizes.due)
            logged = client.slowlog_get(_LOG_LENGTH)
        of_scripts = [one["duration"] / 1e6 for one in logged if one["command"].startswith(_SCRIPT_COMMANDS)]
        _add(bench, SCRIPT, OURS, of_scripts)


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

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield answers
    finally:
        is_over.set()
        thread.join()


def _during(answers: list[tuple[float, float]], started: float, ended: float) -> list[float]:
    """How long those answers took for which somebody waited in this time."""
    return [answered - asked for asked, answered in answers if answered > started and asked < ended]


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


def _add(bench: Bench, cases: dict[str, str], subject: str, seconds: list[float]) -> None:
    assert seconds, f"{subject}: nothing was measured"
    ordered = sorted(seconds)
    values: dict[str, Any] = {
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[int(len(ordered) * 0.99)],
        "max": ordered[-1],
    }
    for share, case in cases.items():
        bench.results.add(case, subject, bench.sizes.due, "ms", values[share] * 1000)
