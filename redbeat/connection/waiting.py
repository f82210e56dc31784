"""Waiting without blocking an event loop: code that isn't written for asyncio, driven by a task of it.

The code runs in a greenlet, that is, with a stack of its own, in the loop's thread. Where it would wait, the
greenlet hands what it waits for to the task, which awaits it while other tasks run. So everything is written
once, and Redis is asked by a client of asyncio's. What may take long to compute, such as the next run of a
schedule, is computed in a thread.

Invariant: other tasks run only where the code waits, and then nothing of it is left in the loop's thread: no
call is watched, no signal is held back, no context variable is set.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_futures
from contextvars import ContextVar, copy_context
from threading import get_ident
from typing import Any, TypeVar

from redbeat.errors import ConfigurationError
from redbeat.process.budget import compute_by

Result = TypeVar("Result")

#: how long the code computes at most before other tasks have a turn, where it asks for that
TURN_SECONDS = 0.005
#: how many threads compute: the interpreter lets one of them compute at a time, but they may wait, too
THREADS = 4
#: how often a thread that waits for the event loop looks whether that was closed
LOOK_SECONDS = 1.0


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
        compute_by(_compute_in_thread)
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
    """Tell whether a task drives the calling code."""
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


class _Threads:
    """The threads that compute, of all event loops. They aren't a loop's own, as others may have all of these
    wait for what is computed here.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after a fork, in which the threads don't exist."""
        self._pool: ThreadPoolExecutor | None = None

    def pool(self) -> ThreadPoolExecutor:
        """Return them; they are started when they are needed."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "redbeat-compute")
        return self._pool


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.reset)


def _compute_in_thread(call: Callable[[], Result]) -> Result:
    """Return ``call()``, made in a thread; what it waits for is awaited in the event loop all the same."""
    if not is_driven():  # a task that the code has made has its context
        compute_by(None)
        return call()
    loop, context = asyncio.get_running_loop(), copy_context()

    def wait(coroutine: Any) -> Any:
        answer = asyncio.run_coroutine_threadsafe(coroutine, loop)
        while not wait_for_futures([answer], LOOK_SECONDS).done:
            if loop.is_closed():
                answer.cancel()
        return answer.result()

    def compute() -> Result:
        thread_id = get_ident()
        _DRIVER.set(_Driver(wait, lambda: get_ident() == thread_id))
        compute_by(None)
        return call()

    result: Result = wait_for(loop.run_in_executor(_threads.pool(), context.run, compute))
    return result
