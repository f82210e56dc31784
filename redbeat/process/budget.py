"""Processor time: how much of it one computation may take, and who interrupts one that takes more.

A schedule is a program of sorts, and some never end. What computes for an entry is called by :func:`limited`.
Owns the thread that looks after such calls; it sleeps while there are none. It measures the processor time of
the calling thread alone, so that a busy machine is nobody's fault; where there is no such clock, the time on
the wall.

Invariant: a call is interrupted amid its computing or not at all. The interruption is no ``Exception``, comes
again where it was swallowed, waits while the call logs, imports or talks to a server, and never arrives
later than :func:`limited` has ended. Nor does it hit a destructor, or the handler of a signal: in the main
thread handlers are called between two calls, or when one has kept a signal waiting, without interruption.

Where threads are switched by gevent or eventlet, nothing can be interrupted, nor can in Python 3.11 what a
debugger or a profiler follows; there a call that took too long fails when it has ended.
"""

from __future__ import annotations

import _thread
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import BuiltinFunctionType, FrameType
from typing import Any, TypeVar

from redbeat.errors import EntryTooExpensive
from redbeat.process.garbage import garbage_kept
from redbeat.process.signals import Postponed

Result = TypeVar("Result")

#: what the reason says of an entry whose plan took too long
TOO_EXPENSIVE = "too expensive to compute"

#: processor time for one plan, or for finding out when an entry runs next
PLAN_SECONDS = 0.05

#: how often a call is looked at, so it may take this much longer than its limit
LOOK_SECONDS = 0.02

#: how many times as long a call may take by a clock on the wall: others may be at work
WALL_FACTOR = 5

#: the same by the clock of a thread in which others work as well: greenlets
SHARED_FACTOR = 5

#: a call that isn't interrupted, as it waits for a server or another, keeps a signal waiting no longer
SIGNAL_SECONDS = 0.5

#: and isn't interrupted then before the handler has had this much processor time
HANDLER_SECONDS = 5.0

#: amid these modules nothing is interrupted: they hold locks that others wait for, or end the process
_LEFT_ALONE = (
    *("logging", "threading", "queue", "importlib", "_frozen_importlib"),
    *("redis", "kombu", "amqp", "celery.app", "celery.apps", "celery.utils.log"),
)


#: the only version in which an interruption that is taken back stops a thread that is traced or profiled
_STOPS_WHEN_FOLLOWED = sys.version_info[:2] == (3, 11)


class _Interruption(BaseException):
    """Is raised in a thread whose call has taken too long."""


class _Nothing(BaseException):
    """Is raised in the place of an interruption that has come too late."""


class _Call:
    """A call that is looked after.

    Attributes:
        limit_seconds: when it is interrupted next, seconds after it was seen first.
        seen_at: on the clock it is measured by, when it was seen first; None: it wasn't yet.
        is_over: it has taken longer than it may.
        was_disturbed: its thread was told to raise something, or not to.
    """

    seen_at: float | None = None
    is_over = False
    was_disturbed = False

    def __init__(self, key: str, limit_seconds: float) -> None:
        self.key = key
        self.limit_seconds = limit_seconds


class _Watchdog:
    """The thread that looks after calls, one in each thread at the most.

    A call that begins or ends while nobody looks takes no lock: each side says first what it is about to do,
    and then looks what the other one does.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew, as after a fork, which leaves the thread behind."""
        self.calls: dict[int, _Call] = {}
        self.is_awake = False
        self.is_looking = False
        self._signal_at: float | None = None  # when one was first seen to wait
        self._lock = threading.RLock()
        self._wanted = threading.Lock()
        self._wanted.acquire()
        self._has_thread = False

    def wake(self) -> None:
        """Let the thread look, from now on until it sees no call any more."""
        with self._lock:
            if self.is_awake:
                return
            if not self._has_thread:
                try:
                    threading.Thread(target=self._run, name="redbeat-budget", daemon=True).start()
                except RuntimeError:  # the interpreter ends, or there are too many threads
                    return
                self._has_thread = True
            self.is_awake = True
            self._wanted.release()

    def take_back(self, thread_id: int, call: _Call) -> None:
        """Return when no interruption is on its way to a thread whose ``call`` has ended."""
        with self._lock:  # whoever looks has looked
            if not call.was_disturbed:
                return
        # A thread that was told not to raise after all goes on asking itself whether to, at each step, until
        # it has raised something: in Python 3.12 all that it does would take half as long again.
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
                call.limit_seconds = 2 * (now - call.seen_at)  # swallowed, it comes again
                call.is_over = call.was_disturbed = True
                if self.calls.get(thread_id) is call:
                    _interrupt(thread_id, _Interruption)
                    if _is_left_alone(thread_id):  # since then: threads may be switched at any step
                        _interrupt(thread_id, None)

    def _note_signal(self, postponed: Postponed) -> None:
        """Let a signal through that waits too long, and interrupt nothing while it may be handled."""
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
            call.limit_seconds = _seconds_of(main) - call.seen_at + HANDLER_SECONDS
            call.was_disturbed = True
            _interrupt(main, None)
            postponed.let_through()
            self._signal_at = None


def _seconds_of(thread_id: int) -> float:
    """Return what a thread's clock shows; it is alive, or was a moment ago."""
    try:
        return time.clock_gettime(time.pthread_getcpuclockid(thread_id))
    except (AttributeError, OSError):
        return time.monotonic() / WALL_FACTOR


def _is_left_alone(thread_id: int) -> bool:
    """Tell whether a thread is where nothing is interrupted.

    That is amid certain modules, in a signal's handler, and in a destructor, which would only be cut short.
    """
    postponed = _postponed
    frame = _frame_of(thread_id)
    while frame is not None and frame.f_globals.get("__name__") != __name__:
        module = f"{frame.f_globals.get('__name__')}."
        if any(module.startswith(f"{name}.") for name in _LEFT_ALONE) or frame.f_code.co_name == "__del__":
            return True
        if postponed is not None and postponed.is_handler(frame.f_code):
            return True
        frame = frame.f_back
    return frame is None  # about to begin or to end


def _frame_of(thread_id: int) -> FrameType | None:
    """Return what a thread is at.

    Python 3.11 makes objects amid that. If it were to look for garbage then, and found a ``threading.local``,
    it would wait for itself for ever.
    """
    with garbage_kept():
        return sys._current_frames().get(thread_id)  # noqa: SLF001 - there is no other way


def _interrupt(thread_id: int, kind: type[BaseException] | None) -> None:
    """Let a thread raise ``kind`` at its next step; None: what it was to raise, it need not."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread_id), None if kind is None else ctypes.py_object(kind)
    )


def _is_followed() -> bool:
    """Tell whether this thread would stop for ever if it were told not to raise after all.

    Under a debugger, a profiler or a measuring of coverage Python 3.11 asks again and again whether there is
    something to raise, until there is.
    """
    return _STOPS_WHEN_FOLLOWED and (sys.gettrace() is not None or sys.getprofile() is not None)


def _can_interrupt() -> bool:
    """Tell whether threads are the interpreter's own, and one may raise in another."""
    if not isinstance(_thread.get_ident, BuiltinFunctionType):  # gevent's or eventlet's
        return False
    try:
        import ctypes

        return hasattr(ctypes.pythonapi, "PyThreadState_SetAsyncExc")
    except (ImportError, AttributeError):
        return False


_watchdog = _Watchdog()
_postponed: Postponed | None = None  # signals of the main thread, while it calls
_is_preemptive: bool | None = None  # found out at the first call: a process is patched before
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watchdog.reset)


def limited(key: str, call: Callable[..., Result], *args: Any, seconds: float = PLAN_SECONDS) -> Result:
    """Return what ``call(*args)`` returns, if it doesn't take too long.

    Arguments:
        key: the entry that it is about.
        seconds: of processor time; it is interrupted a little later.

    Raises:
        EntryTooExpensive: it took longer.
    """
    global _is_preemptive  # noqa: PLW0603 - the one fact about this process
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
        # it may have come while the end was under way, which is made up for: the next one is far
        _end(thread_id, looked_after, outer)
        raise _too_expensive(key, seconds) from None
    except Exception as exc:
        if looked_after.is_over:
            raise _too_expensive(key, seconds) from exc
        raise
    if looked_after.is_over:
        raise _too_expensive(key, seconds)
    return result


@contextmanager
def postpone_signals() -> Iterator[Callable[[], None]]:
    """Let signals be handled between calls of :func:`limited`, where what is yielded is called.

    It spares each of these calls to see to it by itself; no handler is hit by an interruption either way.
    """
    global _postponed  # noqa: PLW0603 - the handlers are the process's, too
    is_main = threading.current_thread() is threading.main_thread()
    if (
        _postponed is not None
        or not is_main
        or not (_can_interrupt() if _is_preemptive is None else _is_preemptive)
    ):
        yield lambda: None
        return
    postponed = _postponed = Postponed()
    try:
        yield postponed.let_arrive
    finally:
        _postponed = None
        postponed.end()


def _end(thread_id: int, call: _Call, outer: _Call | None) -> None:
    """Let ``call`` be looked after no more: when this returns, no interruption is on its way."""
    if outer is not None:
        _watchdog.calls[thread_id] = outer
    else:
        _watchdog.calls.pop(thread_id, None)
    if _watchdog.is_looking or call.was_disturbed:
        _watchdog.take_back(thread_id, call)


def limited_twice(key: str, call: Callable[..., Result], *args: Any, seconds: float = PLAN_SECONDS) -> Result:
    """Return what :func:`limited` does, at the second try if need be: one slow moment does no harm.

    Raises:
        EntryTooExpensive: it took longer both times.
    """
    try:
        return limited(key, call, *args, seconds=seconds)
    except EntryTooExpensive:
        return limited(key, call, *args, seconds=seconds)


def _measured(key: str, seconds: float, call: Callable[..., Result], args: tuple[Any, ...]) -> Result:
    began_at = time.thread_time()  # a call may wait for a server meanwhile
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
    """Yield what ``steps`` yields, each of them :func:`limited`.

    Raises:
        EntryTooExpensive: one took longer; an iterator that is a generator has ended then.
    """
    nothing: Any = object()
    while (found := limited(key, next, steps, nothing, seconds=seconds)) is not nothing:
        yield found


def what_is_computed() -> str | None:
    """Return the key of an entry that a thread computes for just now; None: of none."""
    return next((call.key for call in list(_watchdog.calls.values())), None)
