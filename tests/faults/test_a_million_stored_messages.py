"""A million stored messages: an idle tick, and what looks at entries, cost what they cost without.

A thousand are stored by an app; the server makes the others of one of them.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.later import batch, cancel, install
from redbeat.schedulers import RedBeatScheduler
from tests.benchmarks.subjects.processor import processor_seconds
from tests.faults.stored import LATER
from tests.support.apps import write_app
from tests.support.deadlines import patience
from tests.support.schedule import monitoring
from tests.support.servers import Server

pytestmark = pytest.mark.long_form

SIZES = (0, 1_000, 1_000_000)
#: of each message: hash, member of the zset, and what the server needs for both
MAX_BYTES = 2_500
TICKS = 400
#: as much more processor time a tick may take as that of another run of the same differs
MAX_RATIO = 1.6
#: seconds of processor time more that a command may take; most of what it takes is Python's start
MAX_RISE_SECONDS = 0.6
ENTRIES = 20

#: whom the others are made from
FIRST = "1f2e3d4c-ffff-4000-8000-000000000000"
OTHERS = "1f2e3d4c-0000-4000-8000-"
DURABLE = "import redbeat.later\nredbeat.later.install(app)\n"

_COPY = """
local fields, score = redis.call('HGETALL', KEYS[1]), redis.call('ZSCORE', KEYS[2], KEYS[1])
for number = tonumber(ARGV[1]), tonumber(ARGV[2]) do
  local id, copied = ARGV[4] .. string.format('%012d', number), {}
  for i = 1, #fields do copied[i] = string.gsub(fields[i], ARGV[3], id) end
  redis.call('HSET', 'redbeat:later:' .. id, unpack(copied))
  redis.call('ZADD', KEYS[2], score + number, 'redbeat:later:' .. id)
end
"""

#: words of commands, and what they print in any case
COMMANDS = {("list",): "entry-0", ("later", "count"): "", ("later", "list"): "", ("next",): "entry-0"}


def test_a_tick_and_what_looks_at_entries_cost_the_same_at_any_number_of_stored_messages(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    places = {"redbeat_redis_url": server.url(1)}
    write_app(tmp_path, "module", server.url(0), extra=DURABLE, **places)
    app = Celery("test", broker=server.url(0), set_as_current=False)
    app.conf.update(places)
    install(app)
    for number in range(ENTRIES):
        RedBeatSchedulerEntry(f"entry-{number}", "echo", 1e8, app=app).save()
    scheduler = RedBeatScheduler(app, lock_timeout=3600)
    scheduler.stand_for_leader()
    ticks, commands, lists = {}, {}, {}
    bytes_before = used_bytes(client)
    for size in SIZES:
        fill(app, client, size)
        ticks[size] = cost_of_ticks(scheduler, server)
        commands[size] = {words: cost_of(tmp_path, words, shown) for words, shown in COMMANDS.items()}
        lists[size] = cost_of_lists(app)
        trips, beat_us, server_us = ticks[size]
        print(
            f"{size} stored messages: a tick takes {trips} round trip, {beat_us:.0f} us of beat's processor "
            f"time and {server_us:.0f} us of the server's; lists of entries {lists[size] * 1000:.1f} ms; "
            + ", ".join(f"{' '.join(words)} {seconds:.2f} s" for words, seconds in commands[size].items())
        )
    each = (used_bytes(client) - bytes_before) / SIZES[-1]
    print(f"{each:.0f} bytes of the server's memory for each message")
    cost_of_the_rest(app, tmp_path)
    scheduler.close()
    assert each < MAX_BYTES
    assert {trips for trips, _, _ in ticks.values()} == {1}
    for which in (1, 2):
        assert max(cost[which] for cost in ticks.values()) < MAX_RATIO * ticks[0][which] + 30
    assert max(lists.values()) < MAX_RATIO * lists[0] + 0.05
    for words in COMMANDS:
        assert commands[SIZES[-1]][words] < commands[0][words] + MAX_RISE_SECONDS


def fill(app: Any, client: redis.Redis, size: int) -> None:
    """Let so many messages be stored, all of them due in a month and later."""
    present = client.zcard(LATER)
    if size and not present:
        eta = datetime.now(timezone.utc) + timedelta(days=30)
        arguments = ["customer@example.com", 12345], {"template": "reminder"}
        with batch():
            app.send_task("echo", *arguments, task_id=FIRST, eta=eta)
            for _ in range(size - 1):
                app.send_task("echo", *arguments, eta=eta)
        present = size
    pattern = FIRST.replace("-", "%-")
    for first in range(present, size, 5_000):
        last = min(first + 5_000, size) - 1
        client.eval(_COPY, 2, f"redbeat::later:{FIRST}", LATER, first, last, pattern, OTHERS)
    assert client.zcard(LATER) == size


def used_bytes(client: redis.Redis) -> int:
    memory: Any = client.info("memory")
    return int(memory["used_memory"])


def cost_of_ticks(scheduler: RedBeatScheduler, server: Server) -> tuple[int, float, float]:
    """Return the round trips of a tick, and the processor time of this process and of the server, in us."""
    for _ in range(50):
        scheduler.tick()
    with monitoring(server) as commands:
        scheduler.tick()
    best: list[tuple[float, float]] = []
    for _ in range(3):
        here, there = time.thread_time(), processor_seconds(server.process.pid) or 0.0
        for _ in range(TICKS):
            assert scheduler.tick() > 0
        there = (processor_seconds(server.process.pid) or 0.0) - there
        best.append(((time.thread_time() - here) / TICKS * 1e6, there / TICKS * 1e6))
    trips = sum(command.startswith("EVALSHA") for command in commands)
    return trips, min(here for here, _ in best), min(there for _, there in best)


def cost_of_lists(app: Any) -> float:
    """Return the seconds of processor time to list entries; messages aren't among them."""
    seconds = []
    for _ in range(3):
        began = time.process_time()
        names = {entry.name for entry in RedBeatSchedulerEntry.list(app=app)}
        seconds.append(time.process_time() - began)
        assert names == {f"entry-{number}" for number in range(ENTRIES)}
    return min(seconds)


def cost_of(directory: Path, words: Sequence[str], shown: str) -> float:
    """Return the seconds of processor time that a command takes; `shown` must be in its output."""
    seconds = []
    for _ in range(2):
        code = (
            "import sys, time, atexit\n"
            "atexit.register(lambda: print(time.process_time(), file=sys.stderr))\n"
            f"sys.argv = ['celery', '-A', 'module', 'redbeat', *{list(words)!r}]\n"
            "from celery.__main__ import main\n"
            "main()"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=patience(120),
        )
        assert done.returncode == 0, done
        assert shown in done.stdout
        seconds.append(float(done.stderr.splitlines()[-1]))
    return min(seconds)


def cost_of_the_rest(app: Any, directory: Path) -> None:
    """One of a million is shown, another one is stored and taken away, and the doctor keeps to its time."""
    shown = cost_of(directory, ["later", "show", f"{OTHERS}{500_000:012}"], "customer@example.com")
    last = cost_of(directory, ["later", "list", "--json", "--offset", "999990"], "customer@example.com")
    began = time.process_time()
    task_id = app.send_task("echo", countdown=3600).id
    assert cancel(task_id, app) == [task_id]
    changed = time.process_time() - began
    began_at = time.monotonic()
    words = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "module",
        "redbeat",
        "doctor",
        "--json",
        "--max-seconds",
        "10",
    ]
    doctor = subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False, timeout=120)
    doctor_seconds = time.monotonic() - began_at
    print(
        f"later show {shown:.2f} s, later list at the end {last:.2f} s, store and cancel "
        f"{changed * 1000:.1f} ms, all of processor time; doctor --max-seconds 10: {doctor_seconds:.0f} s"
    )
    assert "Traceback" not in doctor.stderr
    assert "orphan" not in doctor.stdout
    assert doctor_seconds < patience(30)
