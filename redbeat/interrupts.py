"""Holding back the signals that end beat, for steps that mustn't be cut in two."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

__all__ = ["Postponed", "hold_interrupts"]

_SIGNALS = (signal.SIGTERM, signal.SIGINT)

#: what programs have handlers for; to ask about all 64 signals takes 40 us
_HANDLED = [
    getattr(signal, f"SIG{name}")
    for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "ALRM", "CHLD", "WINCH")
    if hasattr(signal, f"SIG{name}")
]


@contextmanager
def hold_interrupts(patience_seconds: float = 0.5, *, is_firm: bool = False) -> Iterator[Callable[[], None]]:
    """Let SIGTERM and SIGINT arrive when the block is done, or where it calls what is yielded.

    Or after ``patience_seconds``, or when they are sent a second time (unless ``is_firm``), anywhere in the
    block: it may be waiting for a server that never answers. Not done by masking them: with another thread
    beside, the kernel would give the signal to that one, and Python would run the handler in this one all
    the same.
    """
    if threading.current_thread() is not threading.main_thread():  # only that one runs handlers
        yield lambda: None
        return
    hold = _Hold(patience_seconds, is_firm)
    try:
        yield hold.let_arrive
    finally:
        hold.end()


class _Hold:
    """The handlers of one block, and the signal that came in it."""

    def __init__(self, patience_seconds: float, is_firm: bool) -> None:
        self._patience_seconds = patience_seconds
        self._is_firm = is_firm
        self._deadline = 0.0
        self._arrived: int | None = None
        self._timer: threading.Timer | None = None
        self._before: dict[signal.Signals, Any] = {}
        for number in _SIGNALS:
            self._before[number] = signal.getsignal(number) or signal.SIG_DFL
            signal.signal(number, self._handle)

    def let_arrive(self) -> None:
        """Let what came arrive."""
        number, self._arrived = self._arrived, None
        if number is not None:
            self.end()
            signal.raise_signal(number)

    def end(self) -> None:
        """Put the handlers back, and let what came arrive."""
        if self._timer is not None:
            self._timer.cancel()
        self._restore()
        self.let_arrive()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            if signal.getsignal(number) == self._handle:  # else the block has set one of its own
                signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._arrived is None:
            self._arrived = number
            self._timer = threading.Timer(self._patience_seconds, _interrupt_main_thread, [number])
            self._timer.daemon = True
            self._deadline = time.monotonic() + self._patience_seconds
            self._timer.start()
            return
        if self._is_firm and time.monotonic() < self._deadline:
            return
        self._arrived = None
        self._restore()
        signal.raise_signal(number)


class Postponed:
    """Signals whose handlers are called later, when no interruption is on its way that could hit them.

    What notes a signal meanwhile isn't written in Python, so that it can't be cut in two by an exception that
    is raised in its thread. Made and ended in the main thread.
    """

    def __init__(self) -> None:
        self._arrived: dict[int, FrameType | None] = {}
        self._before: dict[int, Any] = {}
        self._notes: dict[int, partial[Any]] = {}
        for number in _HANDLED:
            handler = signal.getsignal(number)
            if callable(handler):
                self._before[number] = handler
                self._notes[number] = partial(self._arrived.setdefault)
                signal.signal(number, self._notes[number])

    @property
    def has_any(self) -> bool:
        """Whether a signal waits for its handler."""
        return bool(self._arrived)

    def let_arrive(self) -> None:
        """Call the handlers of what came, in the main thread, in the order in which it came."""
        while self._arrived:
            number = next(iter(self._arrived))
            frame = self._arrived.pop(number, None)
            self._before[number](number, frame)

    def let_through(self) -> None:
        """Call the handlers at once from now on, and for what came, whatever the main thread is doing.

        Called in another thread.
        """
        for number, note in self._notes.items():
            state: tuple[Any, ...] = (self._before[number], (), {}, None)
            note.__setstate__(state)  # type: ignore[attr-defined]
        for number in list(self._arrived):
            del self._arrived[number]
            _interrupt_main_thread(number)

    def end(self) -> None:
        """Put the handlers back, and call those of what came."""
        for number, note in self._notes.items():
            if signal.getsignal(number) is note:  # else somebody has set one of his own
                signal.signal(number, self._before[number])
        self.let_arrive()


def _interrupt_main_thread(number: int) -> None:
    # sent to the thread, not to the process: a call that blocks there returns
    main = threading.main_thread().ident
    if hasattr(signal, "pthread_kill") and main is not None:
        signal.pthread_kill(main, number)
    else:
        signal.raise_signal(number)
