"""Whether a process's task has ended is seen without the thread that hears of it, or nobody can know."""

from __future__ import annotations

import os
import signal
import time
from types import SimpleNamespace
from typing import Any

from billiard.pool import Pool

from redbeat.runs.processes import has_ended
from tests.support.polling import eventually


def test_what_waits_in_a_pipe_of_all_processes_says_nothing_and_the_end_of_one_does() -> None:
    made: Any = Pool(1, threads=False)  # so nobody reads what its processes say
    pool = SimpleNamespace(_pool=made)
    [process] = made._pool  # noqa: SLF001
    try:
        made.apply_async(time.sleep, (600,))
        eventually(lambda: made._outqueue._reader.poll(0))  # noqa: SLF001
        assert not has_ended(pool, process.pid)
    finally:
        os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: has_ended(pool, process.pid))
    process.join()


def test_nobody_can_know_it_of_threads_or_of_a_process_without_a_name() -> None:
    with Pool(1) as made:
        assert not has_ended(SimpleNamespace(_pool=made), None)
    assert not has_ended(SimpleNamespace(), os.getpid())
    assert not has_ended(SimpleNamespace(_pool=None), os.getpid())
