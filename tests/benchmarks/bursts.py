"""The cases of a burst: many entries due at once, and the loops that send as many messages.

Ours sends the same entries twice, in one process: when they have never run and nothing is known of them, and
when their own schedule lets them be due again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from tests.support.rabbitmq import RabbitMQ

from .bench import Bench
from .results import BATCHED, CONFIRMED, FLOOR, LOOP, OLD, OURS, Cost

BURST = "burst, messages/s"
NEVER_RUN = "burst of entries that have never run, messages/s"
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
_TRACKING: dict[str, dict[str, Any]] = {UNTRACKED: {}, TRACKED: {"is_tracked": True}}
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
                _add(bench, BURST, subject, due, bursts[-1] if bursts else None)
                if subject == OURS:
                    _add(bench, NEVER_RUN, subject, due, bursts[0])


def variants(bench: Bench) -> None:
    """The same, but of entries with one due time, and with what may be connected or switched on."""
    due = bench.sizes.due
    for _ in range(bench.sizes.repeats):
        for variant, (options, subjects) in _VARIANTS.items():
            for subject in subjects:
                bursts = run_burst(bench, subject, due, **options)
                _add(bench, of_variant(BURST, variant), subject, due, bursts[-1])
                if subject == OURS:
                    _add(bench, of_variant(NEVER_RUN, variant), subject, due, bursts[0])


def tracked(bench: Bench) -> None:
    """The same, of entries whose runs are noted as in progress, and of others in turn."""
    due = bench.sizes.due
    for _ in range(bench.sizes.repeats):
        for variant, options in _TRACKING.items():
            bursts = run_burst(bench, OURS, due, **options)
            _add(bench, of_variant(BURST, variant), OURS, due, bursts[-1])
            _add(bench, of_variant(NEVER_RUN, variant), OURS, due, bursts[0])


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
    """What the subject's bursts took: ours has two, and there is none where kombu lacks what it takes."""
    bench.clear()
    options: dict[str, Any] = {
        "way": _WAYS[subject],
        "due": due,
        "db": 1,
        "limit_seconds": bench.sizes.limit_seconds,
        "server_pid": bench.server.process.pid,
        "settings": {},
        "log_file": "",
        "has_receivers": False,
        "is_tracked": False,
        "apart_micros": 100,  # as of entries that are saved one after the other
        **changes,
    }
    with tempfile.TemporaryDirectory() as name:
        if options["log_file"]:
            options["log_file"] = str(Path(name, options["log_file"]))
        report = bench.run(subject, "burst", **options)
    return list(report["bursts"])


def _add(bench: Bench, case: str, subject: str, due: int, taken: dict[str, Any] | None) -> None:
    if taken is None:
        bench.results.add(case, subject, due, "messages/s", None, "kombu has no Producer.batch()")
        return
    sent, seconds = taken["sent"], taken["seconds"]
    note = "" if sent == due else f"{sent:,} sent within {seconds:.0f} s"
    bench.results.add(case, subject, due, "messages/s", sent / seconds, note, Cost.of(taken))
