"""A schedule as long as nobody's, listed: from Python, and by `celery redbeat list`, in memory for a page.

REDBEAT_FAULTS=long makes it a million entries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

from tests.support.apps import write_app
from tests.support.servers import Server

IS_LONG = os.environ.get("REDBEAT_FAULTS") == "long"
ENTRIES = 1_000_000 if IS_LONG else 20_000
FEW_ENTRIES = 2_000
#: what a longer list may need more: names are remembered of 100,000 entries that may run meanwhile
MORE_MB = 40 if IS_LONG else 20

#: in one step in the server, as a million HSETs would take longer than the list
MAKE_ENTRIES = """
local definition, soon, last = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
for number = tonumber(ARGV[3]), last do
  local key = string.format('redbeat:report-%07d', number)
  redis.call('HSET', key, 'definition', definition, 'meta', '{"last_run_at": null, "total_run_count": 7}')
  -- half of them within the hour, many at the same time
  redis.call('ZADD', 'redbeat::schedule', soon + math.floor(number / 50) % 7200, key)
end
"""

#: not getrusage: what that calls the peak begins with that of the process it was forked from
WITH_ITS_PEAK = """
import pathlib, re, sys
try:
    {program}
finally:
    status = pathlib.Path("/proc/self/status").read_text()
    print("peak_kb", re.search(r"VmHWM:\\s+(\\d+) kB", status)[1], file=sys.stderr)
"""
FROM_PYTHON = "import module; module.print_names()"
FROM_THE_SHELL = "import celery.__main__ as celery; sys.argv = {arguments}; celery.main()"

PRINT_NAMES = """
from redbeat import RedBeatSchedulerEntry as Entry

def print_names():
    for entry in Entry.list(app):
        print(entry.name)
"""


def make_entries(client: redis.Redis, count: int) -> None:
    definition = {
        "task": "tasks.report",
        "schedule": {"__type__": "interval", "every": 86_400},
        "args": [1, 2, 3],
        "kwargs": {"title": "x" * 40},
    }
    soon = client.time()[0] + 600
    for first in range(0, count, 10_000):
        last = min(first + 10_000, count) - 1
        client.eval(MAKE_ENTRIES, 0, json.dumps(definition), soon, first, last)


def listed(program: str, directory: Path) -> tuple[int, int, float]:
    """Run `program`; return how many lines it printed, how many different ones, and its peak in MB."""
    command = [sys.executable, "-c", WITH_ITS_PEAK.format(program=program)]
    with subprocess.Popen(command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        guard = threading.Timer(800, process.kill)
        guard.start()
        different, lines = set[int](), 0
        for line in process.stdout:
            lines += 1
            different.add(hash(line))
        errors = process.stderr.read().decode()
        guard.cancel()
    assert process.returncode == 0, errors
    return lines, len(different), int(errors.rpartition("peak_kb")[2]) / 1024


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("way", ["python", "shell"])
def test_every_entry_is_listed_once_in_memory_that_does_not_grow_with_them(
    server: Server, client: redis.Redis, tmp_path: Path, way: str
) -> None:
    write_app(tmp_path, "module", server.url(0), extra=PRINT_NAMES, redbeat_redis_url=server.url(1))
    arguments = ["celery", "-A", "module", "redbeat", "list", "--json"]
    program = FROM_PYTHON if way == "python" else FROM_THE_SHELL.format(arguments=arguments)
    peaks = {}
    for count in (FEW_ENTRIES, ENTRIES):
        server.flush()
        make_entries(client, count)
        lines, different, peaks[count] = listed(program, tmp_path)
        assert (lines, different) == (count, count)
    print(f"listing from {way}:", ", ".join(f"{count:,} entries {mb:.0f} MB" for count, mb in peaks.items()))
    assert peaks[ENTRIES] - peaks[FEW_ENTRIES] < MORE_MB
