"""Holding back signals, for steps that mustn't be interrupted."""

from __future__ import annotations

import _thread
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.machinery import BuiltinImporter
from importlib.util import module_from_spec
from types import BuiltinFunctionType, CodeType, FrameType, ModuleType
from typing import Any

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: all signals that a program may have a handler for
_NUMBERS = sorted(map(int, signal.valid_signals()))
#: the C functions below ``signal``, which makes enums and takes 65 us to ask about all signals instead of 1
system: Any = getattr(signal, "_signal", signal)


def _fresh(name: str) -> ModuleType:
    """Return a built-in module as Python makes it, whatever was patched in the one that is imported."""
    spec: Any = BuiltinImporter.find_spec(name)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


#: threads of the system, also where gevent or eventlet has patched ``threading``: theirs can't be started
#: wherever a handler is called, and what is raised in them doesn't reach the main thread
_system_thread: Any = _fresh("_thread")


def has_greenlets() -> bool:
    """Tell whether threads are gevent's or eventlet's.

    Their locks are written in Python: one that a handler's exception interrupts stays locked for ever.
    """
    return not isinstance(_thread.get_ident, BuiltinFunctionType)


@contextmanager
def hold_interrupts(patience_seconds: float = 0.5, *, is_firm: bool = False) -> Iterator[Callable[[], None]]:
    """Hold SIGTERM and SIGINT back until the block ends, or calls the function that this yields.

    As the block may be waiting for a server that never answers, a signal arrives anywhere in it after
    ``patience_seconds``, or, unless ``is_firm``, when it is sent a second time.

    Masking the signals wouldn't do: the kernel would give them to another thread, and Python runs the
    handlers in the main thread all the same.
    """
    hold = _Hold(patience_seconds, is_firm)
    try:
        yield hold.let_arrive
    finally:
        hold.end()


class _Hold:
    """The handlers that one block has replaced, and the signal that has come in it."""

    def __init__(self, patience_seconds: float, is_firm: bool) -> None:
        self._patience_seconds = patience_seconds
        self._is_firm = is_firm
        self._deadline = 0.0
        self._arrived: int | None = None
        self._running: Any = None  # a lock, held until the block has ended
        self._before: dict[signal.Signals, Any] = {}
        self._thread_id = _system_thread.get_ident()
        try:
            for number in _SIGNALS:
                self._before[number] = signal.getsignal(number) or signal.SIG_DFL
                signal.signal(number, self._handle)
        except ValueError:  # not in the main thread: handlers run there only
            pass
        except BaseException:  # from a handler that was called just before it was replaced
            self.end()
            raise

    def let_arrive(self) -> None:
        """Send the signal that has come, if there is one, to its own handler."""
        number, self._arrived = self._arrived, None
        if number is not None:
            self.end()
            signal.raise_signal(number)

    def end(self) -> None:
        """Put the handlers back, and send them the signal that has come."""
        running, self._running = self._running, None
        if running is not None:
            running.release()
        self._restore()
        self.let_arrive()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:  # else the block has set another one
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._arrived is None:
            self._arrived = number
            self._deadline = time.monotonic() + self._patience_seconds
            self._running = _system_thread.allocate_lock()
            self._running.acquire()
            _system_thread.start_new_thread(self._send_again, (number, self._running))
            return
        if self._is_firm and time.monotonic() < self._deadline:
            return
        self._arrived = None
        self._restore()
        signal.raise_signal(number)

    def _send_again(self, number: int, running: Any) -> None:
        if not running.acquire(timeout=self._patience_seconds):
            _send_to(self._thread_id, number)


#: the code of the handler that holds signals back
HELD_HANDLER: CodeType = _Hold._handle.__code__  # noqa: SLF001 - of this module


class Postponed:
    """All signals, noted now and handled later, when no interruption can hit their handlers.

    They are noted by a function that isn't written in Python: an exception that another thread raises in this
    one can't interrupt it. Made and ended in the main thread.
    """

    def __init__(self) -> None:
        self._arrived: dict[int, FrameType | None] = {}
        self._before: dict[int, Any] = {}
        self._notes: dict[int, partial[Any]] = {}
        self._thread_id = _system_thread.get_ident()
        try:
            for number in _NUMBERS:
                handler = system.getsignal(number)
                if callable(handler):
                    self._before[number] = handler
                    self._notes[number] = partial(self._arrived.setdefault)
                    system.signal(number, self._notes[number])
        except BaseException:  # from a handler that was called just before it was replaced
            self.end()
            raise

    @property
    def has_any(self) -> bool:
        """Whether a signal waits for its handler."""
        return bool(self._arrived)

    def let_arrive(self) -> None:
        """Call the handlers of the signals that have come, in their order; in the main thread."""
        while self._arrived:
            number = next(iter(self._arrived))
            frame = self._arrived.pop(number, None)
            self._before[number](number, frame)

    def let_through(self) -> None:
        """Let the handlers of all signals, also of those that have come, be called at once from now on.

        Called in another thread than the main one.
        """
        for number, note in self._notes.items():
            state: tuple[Any, ...] = (self._before[number], (), {}, None)
            note.__setstate__(state)  # type: ignore[attr-defined]
        for number in list(self._arrived):
            del self._arrived[number]
            _send_to(self._thread_id, number)

    def end(self) -> None:
        """Put the handlers back, and call those of the signals that have come."""
        try:
            while self._notes:
                number, note = next(iter(self._notes.items()))
                if system.getsignal(number) is note:  # else somebody has set another one
                    system.signal(number, self._before[number])
                del self._notes[number]
            self.let_arrive()
        except BaseException:  # from a handler; the other signals are handled all the same
            if self._notes or self._arrived:
                self.end()
            raise

    def is_handler(self, code: CodeType) -> bool:
        """Tell whether ``code`` is that of one of the handlers."""
        return any(code_of(handler) is code for handler in self._before.values())


def code_of(handler: Any) -> CodeType | None:
    """Return the code of a signal's handler; None: it isn't written in Python."""
    while isinstance(handler, partial):
        handler = handler.func
    code: CodeType | None = getattr(handler, "__code__", None)
    return code or getattr(type(handler).__call__, "__code__", None)


def _send_to(thread_id: int, number: int) -> None:
    # to the thread, not to the process, so that a call that blocks there returns
    if hasattr(signal, "pthread_kill"):
        signal.pthread_kill(thread_id, number)
    else:
        signal.raise_signal(number)
