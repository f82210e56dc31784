"""Waiting without blocking an event loop: code that isn't written for asyncio, driven by a task of it.

The code runs in a greenlet, that is, with a stack of its own, in the loop's thread. Where it would wait, the
greenlet hands what it waits for to the task, which awaits it while other tasks run. So everything is written
once, and Redis is asked by a client of asyncio's.

Invariant: other tasks run only where the code waits, and then nothing of it is left in the loop's thread: no
signal is held back, no context variable is set.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from redbeat.errors import ConfigurationError

Result = TypeVar("Result")

#: how long the code computes at most before other tasks have a turn, where it asks for that
TURN_SECONDS = 0.005


class _Driver:
    """How code waits that a task drives.

    Attributes:
        wait: returns what a coroutine returns, while other tasks run.
        is_here: tells whether the code that asks is that code, and not a task that it has made, say, which
            has the same context.
        waited_at: when other tasks last had a turn, monotonic.
    """

    def __init__(self, wait: Callable[[Any], Any], is_here: Callable[[], bool]) -> None:
        self.wait = wait
        self.is_here = is_here
        self.waited_at = time.monotonic()


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

    def hand_over(coroutine: Any) -> Any:
        return code.parent.switch(coroutine)

    def is_here() -> bool:
        # a task that the code makes may begin at once, in the same greenlet (asyncio.eager_task_factory)
        return getcurrent() is code and asyncio.current_task() is task

    def begin() -> Result:
        _DRIVER.set(_Driver(hand_over, is_here))
        return call()

    task = asyncio.current_task()
    code: Any = greenlet(begin)
    code.gr_context = copy_context()
    handed = code.switch()
    while not code.dead:
        try:
            answer = await handed
        except BaseException as exc:  # noqa: BLE001 - it is raised where the call waits
            code.parent = getcurrent()
            handed = code.throw(type(exc), exc, exc.__traceback__)
        else:
            code.parent = getcurrent()  # a task needn't go on where it has begun
            handed = code.switch(answer)
    result: Result = handed
    return result


def _driver_here() -> _Driver | None:
    """Return what drives the calling code; None: nothing does, so that waiting blocks."""
    driver = _DRIVER.get()
    return driver if driver is not None and driver.is_here() else None


def is_driven() -> bool:
    """Return True if a task drives the calling code."""
    return _driver_here() is not None


def wait_for(coroutine: Any) -> Any:
    """Return what ``coroutine`` returns; only for code that a task drives."""
    driver = _driver_here()
    if driver is None:
        coroutine.close()
        raise RuntimeError(f"no task of asyncio's drives this code, so it can't wait for {coroutine!r}")
    answer = driver.wait(coroutine)
    driver.waited_at = time.monotonic()
    return answer


def pause(seconds: float) -> None:
    """Do nothing for so long."""
    if is_driven():
        wait_for(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


def give_way() -> None:
    """Let other tasks of the event loop have their turn, if this code has computed for some time."""
    driver = _driver_here()
    if driver is not None and time.monotonic() >= driver.waited_at + TURN_SECONDS:
        wait_for(asyncio.sleep(0))
