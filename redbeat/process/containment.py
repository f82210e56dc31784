"""Which exceptions end beat, and which are only an error of the application's code that beat has called.

``SystemExit``, ``asyncio.CancelledError``, gevent's ``Timeout`` and others aren't derived from ``Exception``.
Where the application's code raises one of them for an entry, it is that entry's error. What a signal's
handler raises ends beat, wherever it arrives, and so does Ctrl-C.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from types import CodeType

import billiard.common

from redbeat.process.signals import HELD_HANDLER, code_of

#: billiard's: whether this process has handled a SIGTERM, which it does by a SystemExit, and only once
HAS_BEEN_TERMINATED: list[bool] = getattr(billiard.common, "_should_have_exited", [False])


def let_through(exc: BaseException) -> None:
    """Raise ``exc`` again if it ends beat. To be called first where anything may be caught."""
    if not isinstance(exc, Exception) and _is_interrupt(exc):
        raise exc


def _is_interrupt(exc: BaseException) -> bool:
    if isinstance(exc, KeyboardInterrupt) or type(exc).__name__ == "GreenletExit":
        return True
    return isinstance(exc, SystemExit) and (HAS_BEEN_TERMINATED[0] or _is_raised_by_handler(exc))


def _is_raised_by_handler(exc: BaseException) -> bool:
    """Return True if a signal's handler is among the functions that ``exc`` has left."""
    handlers: set[CodeType | None] = {HELD_HANDLER}
    handlers.update(code_of(signal.getsignal(number)) for number in signal.valid_signals())
    return any(code in handlers for code in _codes_left_by(exc))


def _codes_left_by(exc: BaseException) -> Iterator[CodeType]:
    traceback = exc.__traceback__
    while traceback is not None:
        yield traceback.tb_frame.f_code
        traceback = traceback.tb_next
