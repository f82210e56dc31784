"""Waiting without blocking an event loop: code that isn't written for asyncio, driven by a task of it.

The code runs in a greenlet, that is, with a stack of its own, in the loop's thread. Where it would wait, the
greenlet hands what it waits for to the task, which awaits it while other tasks run. So everything is written
once, and Redis is asked by a client of asyncio's. What may take long to compute, such as the next run of a
schedule, is computed in a thread of the loop's executor.

Invariant: other tasks run only where the code waits, and then nothing of it is left in the loop's thread: no
call is watched, no signal is held back, no context variable is set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from redbeat.errors import ConfigurationError
from redbeat.process.budget import compute_by

Result = TypeVar("Result")

#: how long the code computes at most before other tasks have a turn, where it asks for that
TURN_SECONDS = 0.005


class _Driver:
    """How the code waits that one task drives.

    Attributes:
        wait: returns what a coroutine returns, while other tasks run.
        waited_at: when other tasks last had a turn, monotonic.
    """

    def __init__(self, wait: Callable[[Any], Any]) -> None:
        self.wait = wait
        self.waited_at = time.monotonic()


#: None: no task drives this code, and waiting blocks
_DRIVER: ContextVar[_Driver | None] = ContextVar("redbeat_driver", default=None)


async def drive(call: Callable[[], Result]) -> Result:
    """Return ``call()``, which waits by :func:`wait_for` and :func:`pause`.

    Raises what the call raises. When the task is cancelled, that is raised in the call where it waits.
    """
    try:
        from greenlet import getcurrent, greenlet
    except ImportError as exc:
        raise ConfigurationError(
            "what RedBeat does in an event loop needs the package greenlet, which isn't installed here: pip "
            "install greenlet."
        ) from exc
    task: Any = getcurrent()

    def begin() -> Result:
        _DRIVER.set(_Driver(task.switch))
        compute_by(_compute_in_thread)
        return call()

    code: Any = greenlet(begin)
    code.gr_context = copy_context()
    handed = code.switch()
    while not code.dead:
        try:
            answer = await handed
        except BaseException as exc:  # noqa: BLE001 - it is raised where the call waits
            handed = code.throw(type(exc), exc, exc.__traceback__)
        else:
            handed = code.switch(answer)
    result: Result = handed
    return result


def wait_for(coroutine: Awaitable[Any]) -> Any:
    """Return what ``coroutine`` returns; only for code that a task drives."""
    driver = _DRIVER.get()
    if driver is None:
        raise RuntimeError(f"no task of asyncio's drives this code, so it can't wait for {coroutine!r}")
    answer = driver.wait(coroutine)
    driver.waited_at = time.monotonic()
    return answer


def pause(seconds: float) -> None:
    """Do nothing for so long."""
    if _DRIVER.get() is None:
        time.sleep(seconds)
    else:
        wait_for(asyncio.sleep(seconds))


def give_way() -> None:
    """Let other tasks of the event loop have their turn, if this code has computed for some time."""
    driver = _DRIVER.get()
    if driver is not None and time.monotonic() >= driver.waited_at + TURN_SECONDS:
        wait_for(asyncio.sleep(0))


def _compute_in_thread(call: Callable[[], Result]) -> Result:
    """Return ``call()``, made in a thread; what it waits for is awaited in the event loop all the same."""
    loop, context = asyncio.get_running_loop(), copy_context()

    def compute() -> Result:
        _DRIVER.set(_Driver(lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result()))
        compute_by(None)
        return call()

    result: Result = wait_for(loop.run_in_executor(None, context.run, compute))
    return result
