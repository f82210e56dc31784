"""Processor time: how much one computation for an entry may take, and the thread that interrupts longer ones.

Some schedules take very long to compute, or never end. So everything that is computed for an entry is called
by :func:`limited`. A thread watches such calls, and sleeps while there are none. It measures the processor
time of the calling thread only, so that a busy machine doesn't count; where the system has no such clock, it
measures wall time.

Invariants: a call is interrupted while it computes, or not at all. The interruption isn't an ``Exception``.
If the call swallows it, it is raised again. It waits while the call logs, imports or talks to a server, and
never arrives after :func:`limited` has ended. It doesn't hit a destructor or a signal handler: in the main
thread handlers are called between two calls, or, when a call has kept a signal waiting, at once and without
interruptions.

In code that a task of asyncio's drives, each call is made in another thread, so that it doesn't hold up the
event loop.

With gevent or eventlet nothing can be interrupted, and in Python 3.11 nothing that is traced or profiled.
There a call that took too long fails when it has ended.
"""

from __future__ import annotations

import _thread
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from redbeat.errors import EntryTooExpensive
from redbeat.process.containment import Interruption
from redbeat.process.garbage import garbage_kept
from redbeat.process.signals import Postponed, has_greenlets

Result = TypeVar("Result")

#: the phrase in the reason of an entry whose plan took too long
TOO_EXPENSIVE = "too expensive to compute"

#: how much processor time one plan may take, or finding out when an entry runs next
PLAN_SECONDS = 0.05

#: how often a call is checked, so how much longer than its limit it may take
LOOK_SECONDS = 0.02

#: how many times as long a call may take in wall time, as other threads and processes use the processor, too
WALL_FACTOR = 5

#: how many times as long a call may take in a thread with greenlets, as others of them use its time, too
SHARED_FACTOR = 5

#: how long a call or a block that isn't interrupted, as it waits for a server, say, may keep a signal waiting
SIGNAL_SECONDS = 0.5

#: how much processor time the signal's handler then has before the call may be interrupted
HANDLER_SECONDS = 5.0

#: nothing is interrupted inside these modules: they hold locks that others wait for, end the process, or have
#: changed what must be changed back
_LEFT_ALONE = (
    "redbeat.broker.rehearsal",
    "redbeat.connection.waiting",
    *("logging", "threading", "queue", "importlib", "_frozen_importlib"),
    *("redis", "kombu", "amqp", "celery.app", "celery.apps", "celery.utils.log"),
)


#: the only version in which an interruption that is taken back stops a thread that is traced or profiled
_STOPS_WHEN_FOLLOWED = sys.version_info[:2] == (3, 11)


class _Interruption(Interruption):
    """Raised in a thread whose call has taken too long."""


class _Nothing(Interruption):
    """Raised in place of an interruption that would come too late."""


class _Call:
    """A call that is watched.

    Attributes:
        limit_seconds: when it is interrupted next, counted from ``seen_at``.
        seen_at: when it was first checked, on its thread's clock; None: it wasn't yet.
        is_over: it has taken longer than it may.
        was_disturbed: its thread was told to raise an exception, or not to raise it after all.
    """

    seen_at: float | None = None
    is_over = False
    was_disturbed = False

    def __init__(self, key: str, limit_seconds: float) -> None:
        self.key = key
        self.limit_seconds = limit_seconds


class _Watchdog:
    """The thread that watches calls, at most one in each thread.

    A call that begins or ends while the watchdog isn't checking takes no lock: each side first writes what it
    is about to do, and then reads what the other one is doing.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after a fork, in which the thread doesn't exist."""
        self.calls: dict[int, _Call] = {}
        self.is_awake = False
        self.is_looking = False
        self._signal_at: float | None = None  # when a signal was first seen waiting
        self._lock = threading.RLock()
        self._wanted = threading.Lock()
        self._wanted.acquire()
        self._has_thread = False

    def wake(self) -> None:
        """Let the thread check calls, until there are none."""
        with self._lock:
            if self.is_awake:
                return
            if not self._has_thread:
                try:
                    threading.Thread(target=self._run, name="redbeat-budget", daemon=True).start()
                except RuntimeError:  # the interpreter is ending, or there are too many threads
                    return
                self._has_thread = True
            self.is_awake = True
            self._wanted.release()

    def take_back(self, thread_id: int, call: _Call) -> None:
        """Wait until no interruption is on its way to a thread whose ``call`` has ended."""
        with self._lock:  # the check that is under way has ended
            if not call.was_disturbed:
                return
        # A thread that was told not to raise after all checks at each step whether to raise, until it has
        # raised something. In Python 3.12 everything that it does would take half as long again. So it raises
        # something.
        with suppress(_Nothing):
            _interrupt(thread_id, _Nothing)
            while True:
                pass

    def _run(self) -> None:
        while True:
            self._wanted.acquire()
            while self.is_awake:
                time.sleep(LOOK_SECONDS)
                with self._lock:
                    self._look()
                    self.is_awake = False
                    self.is_awake = bool(self.calls)

    def _look(self) -> None:
        self.is_looking = True
        try:
            self._look_at_all()
        finally:
            self.is_looking = False

    def _look_at_all(self) -> None:
        if _postponed is not None and _postponed.has_any:
            self._note_signal(_postponed)
        else:
            self._signal_at = None
        for thread_id, call in list(self.calls.items()):
            now = _seconds_of(thread_id)
            if call.seen_at is None:
                call.seen_at = now
            elif now - call.seen_at >= call.limit_seconds and not _is_left_alone(thread_id):
                call.limit_seconds = 2 * (now - call.seen_at)  # the next one, if this is swallowed
                call.is_over = call.was_disturbed = True
                if self.calls.get(thread_id) is call:
                    _interrupt(thread_id, _Interruption)
                    if _is_left_alone(thread_id):  # since then: threads may be switched at any step
                        _interrupt(thread_id, None)

    def _note_signal(self, postponed: Postponed) -> None:
        """Let a signal that has waited too long be handled, without interruptions meanwhile."""
        now = time.monotonic()
        if self._signal_at is None:
            self._signal_at = now
        main = threading.main_thread().ident
        call = self.calls.get(main) if main is not None else None
        if (
            main is not None
            and call is not None
            and call.seen_at is not None
            and now - self._signal_at >= SIGNAL_SECONDS
        ):
            if call.limit_seconds < math.inf:
                call.limit_seconds = _seconds_of(main) - call.seen_at + HANDLER_SECONDS
                call.was_disturbed = True
                _interrupt(main, None)
            postponed.let_through()
            self._signal_at = None


def _seconds_of(thread_id: int) -> float:
    """Return the processor time of a thread, or the wall time where the system doesn't tell."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread_id))
    except (AttributeError, OSError):
        return time.monotonic() / WALL_FACTOR


def _is_left_alone(thread_id: int) -> bool:
    """Tell whether a thread must not be interrupted: in ``_LEFT_ALONE``, a signal handler, a destructor."""
    postponed = _postponed
    frame = _frame_of(thread_id)
    while frame is not None and frame.f_globals.get("__name__") != __name__:
        module = f"{frame.f_globals.get('__name__')}."
        if any(module.startswith(f"{name}.") for name in _LEFT_ALONE) or frame.f_code.co_name == "__del__":
            return True
        if postponed is not None and postponed.is_handler(frame.f_code):
            return True
        frame = frame.f_back
    return frame is None  # the call is about to begin or to end


def _frame_of(thread_id: int) -> FrameType | None:
    """Return the present frame of a thread.

    Python 3.11 creates objects meanwhile. If it looked for garbage then, and found a ``threading.local``, it
    would wait for itself for ever.
    """
    with garbage_kept():
        return sys._current_frames().get(thread_id)  # noqa: SLF001 - there is no other way


def _interrupt(thread_id: int, kind: type[BaseException] | None) -> None:
    """Let a thread raise ``kind`` at its next step; None: let it not raise what it was told to."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if kind is None else ctypes.py_object(kind)
    )


def _is_followed() -> bool:
    """Tell whether this thread would stop for ever if it were told not to raise after all.

    Under a debugger, a profiler or coverage, Python 3.11 checks again and again whether there is something to
    raise, until there is.
    """
    return _STOPS_WHEN_FOLLOWED and (sys.gettrace() is not None or sys.getprofile() is not None)


def _can_interrupt() -> bool:
    """Tell whether threads are the interpreter's own, and one can raise an exception in another."""
    if has_greenlets():
        return False
    try:
        import ctypes

        return hasattr(ctypes.pythonapi, "PyThreadState_SetAsyncExc")
    except (ImportError, AttributeError):
        return False


#: makes a call in another thread, and returns what it returns
Compute = Callable[[Callable[[], Any]], Any]

_compute: ContextVar[Compute | None] = ContextVar("redbeat_compute", default=None)
_watchdog = _Watchdog()
_postponed: Postponed | None = None  # signals of the main thread, while it calls
_is_preemptive: bool | None = None  # found out at the first call, when gevent has patched the process
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watchdog.reset)


def limited(key: str, call: Callable[..., Result], *args: Any, seconds: float = PLAN_SECONDS) -> Result:
    """Return ``call(*args)``, if it doesn't take too long.

    Arguments:
        key: the entry's key.
        seconds: how much processor time it may take; it is interrupted a little later.

    Raises:
        EntryTooExpensive: it took longer.
    """
    global _is_preemptive  # noqa: PLW0603 - a fact about this process
    compute = _compute.get()
    if compute is not None:
        made: Result = compute(partial(limited, key, call, *args, seconds=seconds))
        return made
    if _is_preemptive is None:
        _is_preemptive = _can_interrupt()
    if not _is_preemptive or _is_followed():
        return _measured(key, seconds, call, args)
    thread_id = _thread.get_ident()
    if _postponed is None and thread_id == threading.main_thread().ident:
        with postpone_signals():
            return limited(key, call, *args, seconds=seconds)
    calls, looked_after = _watchdog.calls, _Call(key, seconds)
    outer = calls.get(thread_id)
    try:
        try:
            calls[thread_id] = looked_after
            if not _watchdog.is_awake:
                _watchdog.wake()
            result = call(*args)
        finally:
            _end(thread_id, looked_after, outer)
    except _Interruption:
        # it may have interrupted _end, which is called again; the next interruption isn't due soon
        _end(thread_id, looked_after, outer)
        raise _too_expensive(key, seconds) from None
    except Exception as exc:
        if looked_after.is_over:
            raise _too_expensive(key, seconds) from exc
        raise
    if looked_after.is_over:
        raise _too_expensive(key, seconds)
    return result


def compute_by(compute: Compute | None) -> None:
    """Let ``compute`` make the calls that are limited from now on, in this thread or task alone.

    It makes them in another thread, where this isn't so.
    """
    _compute.set(compute)


@contextmanager
def postpone_signals() -> Iterator[Callable[[], None]]:
    """Note signals in the block; they are handled when the function that this yields is called.

    A block that waits, for a server, say, keeps them waiting for half a second at the most. Without it, each
    call of :func:`limited` does this for itself, which takes longer.
    """
    global _postponed  # noqa: PLW0603 - the process has one set of handlers
    is_main = threading.current_thread() is threading.main_thread()
    if (
        _postponed is not None
        or not is_main
        or _compute.get() is not None  # no call is interrupted in this thread
        or not (_can_interrupt() if _is_preemptive is None else _is_preemptive)
    ):
        yield lambda: None
        return
    postponed = _postponed = Postponed()
    thread_id, block = _thread.get_ident(), _Call("", math.inf)
    try:
        _watchdog.calls[thread_id] = block  # it has no limit, and is watched for signals that wait
        if not _watchdog.is_awake:
            _watchdog.wake()
        yield postponed.let_arrive
    finally:
        _end(thread_id, block, None)
        _postponed = None
        postponed.end()


def _end(thread_id: int, call: _Call, outer: _Call | None) -> None:
    """End watching ``call``: when this returns, no interruption is on its way."""
    if outer is not None:
        _watchdog.calls[thread_id] = outer
    else:
        _watchdog.calls.pop(thread_id, None)
    if _watchdog.is_looking or call.was_disturbed:
        _watchdog.take_back(thread_id, call)


def limited_twice(key: str, call: Callable[..., Result], *args: Any, seconds: float = PLAN_SECONDS) -> Result:
    """Return what :func:`limited` does, at a second try if need be, as the machine may have been slow once.

    Raises:
        EntryTooExpensive: it took longer both times.
    """
    try:
        return limited(key, call, *args, seconds=seconds)
    except EntryTooExpensive:
        return limited(key, call, *args, seconds=seconds)


def _measured(key: str, seconds: float, call: Callable[..., Result], args: tuple[Any, ...]) -> Result:
    began_at = time.thread_time()  # without the time that the call waits for a server
    result = call(*args)
    if time.thread_time() - began_at > SHARED_FACTOR * seconds:
        raise _too_expensive(key, seconds)
    return result


def _too_expensive(key: str, seconds: float) -> EntryTooExpensive:
    return EntryTooExpensive(
        f"{key}: its schedule is {TOO_EXPENSIVE}: it takes more than {seconds * 1000:.0f} ms of "
        "processor time.",
        key,
    )


def limited_steps(key: str, steps: Iterator[Result], seconds: float = PLAN_SECONDS) -> Iterator[Result]:
    """Yield what ``steps`` yields, each step :func:`limited`.

    Raises:
        EntryTooExpensive: a step took longer; if ``steps`` is a generator, it has ended then.
    """
    nothing: Any = object()
    while (found := limited(key, next, steps, nothing, seconds=seconds)) is not nothing:
        yield found


def what_is_computed() -> str | None:
    """Return the key of an entry for which a thread is computing now; None: there is none."""
    return next((call.key for call in list(_watchdog.calls.values()) if call.key), None)
