"""The ground that the subjects stand on: one server, two Pythons, sizes, and schedules filled once."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import celery
import kombu
import redis

from tests.support.processes import Process
from tests.support.servers import Server
from tests.support.venv import make_redbeat2

from .results import OLD, ROOT, Results
from .subjects.fill import fill

_SUBJECTS = Path(__file__).parent / "subjects"
#: no subject takes longer: a hung one must not hold up the rest
_TIMEOUT_SECONDS = 300
#: nor is it longer in getting ready
_START_SECONDS = 30


@dataclass(frozen=True)
class Sizes:
    """How much of everything; numbers of entries, messages, seconds and rounds."""

    bursts: tuple[int, ...] = (1_000, 10_000, 100_000)
    stored: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    batch: int = 500
    due: int = 10_000
    shared: int = 20_000
    statics: int = 5_000
    saved: int = 5_000
    exported: int = 3_000
    planned: int = 5_000
    worked: int = 5_000
    intervals: int = 200
    lateness_seconds: int = 60
    idle_rounds: int = 1_000
    turned: int = 200_000
    counted: int = 100_000  # entries of the beat that is scraped, of which these have run
    counted_runs: int = 1_000
    counted_rounds: int = 8
    scrapes: int = 7
    traced: int = 1_000
    traced_rounds: int = 25
    listed: tuple[int, ...] = (100_000, 1_000_000)
    looks: int = 9
    repeats: int = 3
    burst_repeated: int = 10_000  # a larger one takes minutes: once is enough
    limit_seconds: int = 150


def quick_sizes() -> Sizes:
    """At most 300 of everything, and the shortest runs that have every figure."""
    few: dict[str, Any] = {
        size.name: min(size.default, 300) for size in fields(Sizes) if isinstance(size.default, int)
    }
    few |= dict.fromkeys(("repeats", "counted_rounds", "scrapes"), 1)
    few |= {"looks": 2, "traced_rounds": 3, "lateness_seconds": 5, "idle_rounds": 50, "intervals": 20}
    return Sizes(**few, bursts=(300,), stored=(100, 300, 1_000), listed=(1_000,))


class SubjectError(Exception):
    """A subject ended without a result, or measured another package than it should."""


class Bench:
    """Runs subjects, each in a process of its own, and keeps what they report.

    `patience` is how many times longer anything may take than on a machine that has nothing else to do.
    """

    def __init__(self, server: Server, sizes: Sizes, *, patience: float = 1) -> None:
        self.server = server
        self.sizes = sizes
        self.patience = patience
        self.results = Results()
        self._old = tempfile.TemporaryDirectory(prefix="redbeat-bench-")
        self.old_python = make_redbeat2(Path(self._old.name))
        self._databases: dict[int, int] = {}

    def python(self, subject: str) -> Path:
        return self.old_python if subject == OLD else Path(sys.executable)

    def environment(self, subject: str) -> dict[str, str]:
        """What lets the Python of `subject` import the right redbeat: this checkout, or 2.4.2 alone."""
        return {"PYTHONPATH": "" if subject == OLD else str(ROOT)}

    def limits(self) -> dict[str, Any]:
        """Options of subjects that are timed, and whose server's processor time counts."""
        return {"limit_seconds": self.sizes.limit_seconds, "server_pid": self.server.process.pid}

    def clear(self) -> None:
        """Empty the broker (database 0) and the schedule that is written anew each time (database 1)."""
        for db in (0, 1):
            with self.server.client(db=db) as client:
                client.flushdb()

    def stored(self, count: int) -> int:
        """The database with a schedule of `count` entries of which none is due, filled when first asked for.

        A subject may let some of them be due, if it sends them all.
        """
        if count not in self._databases:
            self._databases[count] = len(self._databases) + 2
            with self.server.client(db=self._databases[count]) as client:
                fill(client, count)
        return self._databases[count]

    def run(self, subject: str, script: str, **options: Any) -> dict[str, Any]:
        """What the script reports, run for `subject` with the options.

        Raises SubjectError with the script's output.
        """
        self._drop_locks()
        with self._start(subject, script, options) as process:
            return self._report(process, subject)

    def run_together(
        self, count: int, subject: str, script: str, prepare: Callable[[], None], **options: Any
    ) -> list[dict[str, Any]]:
        """What several processes of the script report that begin at once, after `prepare`.

        The script says on the list `go`:ready that it is ready, and begins at a word on `go`, both in `db`.
        Raises SubjectError with a script's output.
        """
        self._drop_locks()
        go = "bench:go"
        with ExitStack() as stack:
            client = stack.enter_context(self.server.client(db=options["db"]))
            client.delete(go, f"{go}:ready")
            processes = []
            for _ in range(count):  # one after the other: they warm up on the same schedule
                processes.append(stack.enter_context(self._start(subject, script, {**options, "go": go})))
                if client.blpop([f"{go}:ready"], timeout=_START_SECONDS) is None:
                    raise SubjectError(f"{subject}, {script} isn't ready:\n{processes[-1].output()}")
            prepare()
            client.rpush(go, *["go"] * count)
            return [self._report(process, subject) for process in processes]

    def _drop_locks(self) -> None:
        for db in range(len(self._databases) + 2):
            with self.server.client(db=db) as client:
                client.delete("redbeat::lock")  # of a subject that was stopped by its time limit

    def _start(self, subject: str, script: str, options: dict[str, Any]) -> Process:
        server = self.server.url(0).removesuffix("0")
        argument = json.dumps({"server": server, **options})
        command: list[str | Path] = [self.python(subject), _SUBJECTS / f"{script}.py", argument]
        return Process(command, cwd=_SUBJECTS, env=self.environment(subject))

    def _report(self, process: Process, subject: str) -> dict[str, Any]:
        try:
            code = process.wait(_TIMEOUT_SECONDS * self.patience)
        except AssertionError as exc:
            raise SubjectError(str(exc)) from exc
        output = process.output()
        reports = [line for line in output.splitlines() if line.startswith('{"package"')]
        if code or not reports:
            raise SubjectError(f"{subject}, {' '.join(process.command[1:])} ended with {code}:\n{output}")
        report: dict[str, Any] = json.loads(reports[-1])
        if (report["package"] == str(ROOT / "redbeat")) is (subject == OLD):
            raise SubjectError(f"{subject} was to be measured, and {report['package']} was")
        return report


def machine(bench: Bench, busy: int) -> dict[str, Any]:
    """Where this was measured: versions, and how busy the machine was at the start.

    `busy`: on how many processors a loop was kept running beside it.
    """
    return {
        "python": sys.version.split()[0],
        "celery": celery.__version__,
        "kombu": kombu.__version__,
        "redis-py": redis.__version__,
        "server": f"{bench.server.kind} {bench.server.version}",
        "processors": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        **({"busy loops beside it": busy} if busy else {}),
    }
