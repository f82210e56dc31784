"""How fast many entries are saved and a beat with many statics starts, beside celery-redbeat 2.4.2.

    python -m tests.benchmarks.saving [ENTRIES [ROUNDS]]

Both work on one server, in turns, each in a process of its own; the median of the rounds' ratios counts.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

KINDS = ("new", "same", "cold", "warm")


def work(url: str, number_of_entries: int) -> dict[str, float]:
    """Seconds that whichever redbeat is imported takes: to save new and unchanged entries, to start."""
    import redis
    from celery import Celery
    from celery.schedules import schedule

    from redbeat import RedBeatScheduler, RedBeatSchedulerEntry

    client = redis.Redis.from_url(url)
    save_many: Callable[[Any], Any] = getattr(
        RedBeatSchedulerEntry, "save_many", lambda entries: [entry.save() for entry in entries]
    )
    statics = {
        f"static-{n}": {"task": "t", "schedule": 3600.0, "args": (n,)} for n in range(number_of_entries)
    }
    seconds: dict[str, float] = {}

    def app(**settings: Any) -> Celery:
        made = Celery("benchmark", broker=url, set_as_current=True)
        made.conf.update(redbeat_redis_url=url, redbeat_lock_key=None, **settings)
        return made

    def note(kind: str, act: Callable[[], Any]) -> None:
        began = time.perf_counter()
        act()
        seconds[kind] = time.perf_counter() - began

    client.flushdb()
    saving = app()
    RedBeatSchedulerEntry("first", "t", schedule(60), app=saving).save()  # connections and scripts are there
    for kind in ("new", "same"):
        entries = [
            RedBeatSchedulerEntry(f"entry-{n}", "t", schedule(3600), args=[n], kwargs={"x": "y"}, app=saving)
            for n in range(number_of_entries)
        ]
        note(kind, lambda entries=entries: save_many(entries))  # type: ignore[misc]
    assert client.zcard("redbeat::schedule") == number_of_entries + 1
    client.flushdb()
    for kind in ("cold", "warm"):
        starting = app(beat_schedule=statics)
        note(kind, lambda starting=starting: RedBeatScheduler(starting))  # type: ignore[misc]
    assert client.zcard("redbeat::schedule") >= number_of_entries
    return seconds


def main(number_of_entries: int = 5000, rounds: int = 5) -> None:
    from tests.support import venv
    from tests.support.servers import Server

    pythons = {
        "2.4.2": (venv.redbeat2_python(), ""),
        "ours": (sys.executable, os.environ.get("PYTHONPATH", os.getcwd())),  # noqa: PTH109
    }
    measured: list[dict[str, dict[str, float]]] = []
    with Server(kind="redis") as server:
        for _ in range(rounds):
            seconds = {}
            for name, (python, path) in pythons.items():
                command = [str(python), __file__, "--work", server.url(1), str(number_of_entries)]
                environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path}
                done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
                seconds[name] = json.loads(done.stdout)
            measured.append(seconds)
    for kind in KINDS:
        ratios = [seconds["2.4.2"][kind] / seconds["ours"][kind] for seconds in measured]
        rates = {
            name: statistics.median(number_of_entries / seconds[name][kind] for seconds in measured)
            for name in pythons
        }
        shown = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rates.items())
        median, lowest, highest = statistics.median(ratios), min(ratios), max(ratios)
        print(f"{kind}: {median:.1f} x ({lowest:.1f} to {highest:.1f}), entries: {shown}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        print(json.dumps(work(sys.argv[2], int(sys.argv[3]))))
    else:
        main(*map(int, sys.argv[1:]))
