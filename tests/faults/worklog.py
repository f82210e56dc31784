"""A log that tasks write themselves: when each of them began, was at work, and ended, and how.

A task stamps the file every few hundredths of a second, so that one that is killed has said when it was last
at work. The stamps are what a test judges by; nothing in them comes from RedBeat.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

#: source of the Celery tasks ``work`` and ``work_late``, for an app's module. What they do follows from the
#: task id and the attempt
TASKS = """
import json, os, random, time
from celery.exceptions import Ignore

LOG = os.open("work.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def stamp(task, name, word):
    line = [time.time(), name, task.request.id, task.request.retries, os.getpid(), word]
    os.write(LOG, (json.dumps(line) + "\\n").encode())

def work(task, name, way=None):
    chance = random.Random(f"{task.request.id} {task.request.retries}")
    stamp(task, name, "begin")
    seconds = chance.uniform(0, MAX_SECONDS)
    way = way or chance.choices(WAYS, WEIGHTS)[0]
    until = time.monotonic() + (3600 if way == "hang" else seconds)
    while time.monotonic() < until:
        time.sleep(0.02)
        stamp(task, name, "work")
    if way == "fail":
        stamp(task, name, "failed")
        raise ValueError("as it was told")
    if way == "ignore":
        stamp(task, name, "ignored")
        raise Ignore
    if way == "retry":
        stamp(task, name, "retry" if task.request.retries < task.max_retries else "failed")
        raise task.retry(countdown=chance.uniform(0, 0.5), exc=ValueError("as it was told"))
    stamp(task, name, "succeeded")

for name, options in (("work", {}), ("work_late", {"acks_late": True, "reject_on_worker_lost": True})):
    app.task(bind=True, name=f"{app.main}.{name}", max_retries=2, time_limit=TIME_LIMIT, **options)(work)
"""

#: what a task may do, and how often
WAYS = {"succeed": 60, "fail": 15, "retry": 10, "ignore": 5, "hang": 10}


def tasks_source(max_seconds: float, time_limit_seconds: float, ways: dict[str, int] = WAYS) -> str:
    """The source of the tasks, for ``extra`` of an app."""
    head = f"WAYS, WEIGHTS = {[*ways]!r}, {[*ways.values()]!r}\nMAX_SECONDS = {max_seconds}\n"
    return head + TASKS.replace("TIME_LIMIT", repr(time_limit_seconds))


@dataclass
class Execution:
    """One execution of a task: an attempt in one process."""

    entry: str
    task_id: str
    attempt: int
    pid: int
    began: float
    last: float
    word: str = "begin"


@dataclass
class WorkLog:
    """All executions, by what the tasks have written."""

    executions: list[Execution]

    @classmethod
    def read(cls, folder: Path) -> WorkLog:
        """Read the log of the workers that ran in ``folder``."""
        executions: list[Execution] = []
        latest: dict[tuple[str, int, int], Execution] = {}
        path = folder / "work.log"
        written = path.read_text("utf-8") if path.exists() else ""
        # while tasks run, a reader may see half of the last line
        complete = written[: written.rfind("\n") + 1]
        for line in complete.splitlines():
            at, entry, task_id, attempt, pid, word = json.loads(line)
            if word == "begin":
                latest[task_id, attempt, pid] = Execution(entry, task_id, attempt, pid, at, at)
                executions.append(latest[task_id, attempt, pid])
            found = latest[task_id, attempt, pid]
            found.last, found.word = at, word
        return cls(sorted(executions, key=lambda one: one.began))

    def of(self, task_id: str) -> list[Execution]:
        """The executions of a run."""
        return [one for one in self.executions if one.task_id == task_id]

    def overlaps(self) -> list[tuple[Execution, Execution]]:
        """Two executions of one entry at once."""
        by_entry: defaultdict[str, list[Execution]] = defaultdict(list)
        for one in self.executions:
            by_entry[one.entry].append(one)
        pairs = chain.from_iterable(combinations(found, 2) for found in by_entry.values())
        return [(earlier, later) for earlier, later in pairs if earlier.last > later.began]
