"""The processes of a prefork pool, as a thread other than the pool's own may look at them.

What becomes of a task is told by the worker's main thread, which reads it from the pipe of the task's
process. That thread can hang: on a connection that says nothing; or in billiard, which locks the count of a
process's results, and waits for ever if the process is killed while it reads the count itself. Then no end is
told any more.

Invariant: looking changes nothing, and a task has ended only if no process can be at work on it.
"""

from __future__ import annotations

import os
from multiprocessing.connection import wait
from typing import Any

from billiard.pool import Pool


def has_ended(pool: Any, pid: int | None) -> bool:
    """Return True if the task that a process has begun has ended, told or not; False also if nobody can know.

    Arguments:
        pool: Celery's pool.
        pid: the process, as the pool has told it when the task was begun.
    """
    if pid is None or not has_processes(pool):  # threads and greenlets
        return False
    processes = pool._pool  # noqa: SLF001
    process = next((one for one in list(processes._pool) if one.pid == pid), None)  # noqa: SLF001
    # only one that has ended is taken out
    return process is None or is_gone(pid) or _has_told(processes, process)


def has_processes(pool: Any) -> bool:
    """Return True if the tasks of Celery's ``pool`` run in processes of their own."""
    return isinstance(getattr(pool, "_pool", None), Pool)


def is_gone(pid: int) -> bool:
    """Return True if a child of this process has ended, whether or not it was reaped."""
    try:
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        os.kill(pid, 0)  # macOS has no waitid() before Python 3.13: gone when it was reaped
    except (ChildProcessError, ProcessLookupError):
        return True
    return False


def _has_told(processes: Any, process: Any) -> bool:
    """Return True if there is something to read from the process.

    That its task has begun was read before, and the next that a process says is how its task has ended.
    """
    pipe = process.outqR_fd
    # one that all processes share says nothing about a single one
    is_own = getattr(processes, "_fileno_to_outq", {}).get(pipe) is process
    return is_own and bool(wait([pipe], 0))
