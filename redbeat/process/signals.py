"""Signals: holding them back for steps that mustn't be interrupted, and telling their exceptions from errors.

``SystemExit``, ``asyncio.CancelledError``, gevent's ``Timeout`` and others aren't derived from ``Exception``.
If the application's code raises one of them for an entry, it is that entry's error. What a signal's handler
raises ends beat, wherever it arrives, and so does Ctrl-C.
"""

from __future__ import annotations

import _thread
import signal
import time
import traceback
from functools import partial
from importlib.machinery import BuiltinImporter
from importlib.util import module_from_spec
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any

import billiard.common

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


#: threads of the system, also where gevent or eventlet has patched ``_thread``: theirs can't be started
#: wherever a handler is called, and what is raised in them doesn't reach the main thread
_SPEC: Any = BuiltinImporter.find_spec("_thread")
_system_thread: Any = module_from_spec(_SPEC)
_SPEC.loader.exec_module(_system_thread)


def has_greenlets() -> bool:
    """Return True if threads are gevent's or eventlet's.

    Their locks are written in Python: one that a handler's exception interrupts stays locked for ever.
    """
    return not isinstance(_thread.get_ident, BuiltinFunctionType)


class hold_interrupts:  # noqa: N801 - a context manager; contextlib's would take twice the calls
    """Hold SIGTERM and SIGINT back until the block ends, or calls ``let_arrive``.

    As the block may be waiting for a server that never answers, a signal arrives anywhere in it after
    ``patience_seconds``.

    Masking the signals wouldn't do: the kernel would give them to another thread, and Python runs the
    handlers in the main thread all the same.

    Attributes:
        arrived: the signal that has come and is held; None: none is.
    """

    def __init__(self, patience_seconds: float = 0.5) -> None:
        self._patience_seconds = patience_seconds
        self._deadline = 0.0
        self.arrived: int | None = None
        self._running: Any = None  # a lock, held until the block has ended
        self._before: dict[signal.Signals, Any] = {}  # the handlers that the block has replaced
        self._thread_id = 0

    def __enter__(self) -> hold_interrupts:
        self._thread_id = _system_thread.get_ident()
        try:
            for number in _SIGNALS:
                self._before[number] = signal.getsignal(number) or signal.SIG_DFL
                signal.signal(number, self._handle)
        except ValueError:  # not in the main thread: handlers run there only
            pass
        except BaseException:  # from a handler that was called just before it was replaced
            self.__exit__()
            raise
        return self

    def let_arrive(self) -> None:
        """Send the signal that has come to its own handler."""
        self.__exit__()

    def __exit__(self, *exc_info: object) -> None:
        """Put the handlers back, and send them the signal that has come."""
        running, self._running = self._running, None
        if running is not None:
            running.release()
        self._restore()
        number, self.arrived = self.arrived, None
        if number is not None:
            signal.raise_signal(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:  # else the block has set another one
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.arrived is None:
            self.arrived = number
            self._deadline = time.monotonic() + self._patience_seconds
            self._running = _system_thread.allocate_lock()
            self._running.acquire()
            _system_thread.start_new_thread(self._send_again, (number, self._running))
        elif time.monotonic() >= self._deadline:
            self.arrived = None
            self._restore()
            signal.raise_signal(number)

    def _send_again(self, number: int, running: Any) -> None:
        if running.acquire(timeout=self._patience_seconds):
            return
        if hasattr(signal, "pthread_kill"):  # to the thread, so that a call that blocks there returns
            signal.pthread_kill(self._thread_id, number)
        else:
            signal.raise_signal(number)


#: the code of the handler that holds signals back
HELD_HANDLER: CodeType = hold_interrupts._handle.__code__  # noqa: SLF001 - of this module


def code_of(handler: Any) -> CodeType | None:
    """Return the code of a signal's handler; None: it isn't written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    code: CodeType | None = getattr(handler, "__code__", None)
    return code or getattr(type(handler).__call__, "__code__", None)


def is_in_handler() -> bool:
    """Return True if this is called by a handler of SIGTERM or SIGINT."""
    handlers = {code_of(signal.getsignal(number)) for number in _SIGNALS}
    return any(frame.f_code in handlers for frame, _ in traceback.walk_stack(None))


#: billiard's: whether this process has handled a SIGTERM, which it does by a SystemExit, and only once
HAS_BEEN_TERMINATED: list[bool] = getattr(billiard.common, "_should_have_exited", [False])


def let_through(exc: BaseException) -> None:
    """Raise ``exc`` again if it ends beat. Called first where anything may be caught."""
    if isinstance(exc, Exception):
        return
    is_interrupt = isinstance(exc, KeyboardInterrupt) or type(exc).__name__ == "GreenletExit"
    if isinstance(exc, SystemExit):
        is_interrupt = HAS_BEEN_TERMINATED[0] or _is_raised_by_handler(exc)
    if is_interrupt:
        raise exc


def _is_raised_by_handler(exc: BaseException) -> bool:
    """Return True if a signal's handler is among the functions that ``exc`` has left."""
    handlers: set[CodeType | None] = {HELD_HANDLER}
    handlers.update(code_of(signal.getsignal(number)) for number in signal.valid_signals())
    return any(frame.f_code in handlers for frame, _ in traceback.walk_tb(exc.__traceback__))
