"""Threads that work in the background, and the boundary around what beat can do without.

A thread is started again when it has died, woken, and stopped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redbeat.errors import RedBeatError
from redbeat.log.events import TELEMETRY_FAILED, LogEvent
from redbeat.log.logger import logger
from redbeat.process.memory import Memory
from redbeat.process.signals import let_through

_SAID = Memory[str, str]()


@contextmanager
def surviving(what: str, said: Memory[str, str] = _SAID) -> Iterator[None]:
    """Go on after an exception of the block, which does something that beat can do without.

    An error of RedBeat's own tree is logged at DEBUG: the next tick reports what is wrong with Redis. Any
    other one is logged at ERROR, once until its text changes.

    Arguments:
        what: names the block in the log.
        said: remembers what was logged.
    """
    try:
        yield
    except RedBeatError as exc:
        logger.debug("beat: %s failed: %s", what, exc)
    except BaseException as exc:
        let_through(exc)
        reason = f"{type(exc).__name__}: {exc}"
        if said.is_news(what, reason):
            extra = TELEMETRY_FAILED.of(part=what, reason=reason)
            logger.exception("beat: %s failed, beat goes on: %s", what, reason, extra=extra)


class BackgroundThread:
    """A thread that does ``work``, which calls ``wait``, and returns when it ``is_over``.

    It ends with its process at the latest, and doesn't go on in one that is forked off.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name, self._work = name, work
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._is_stopped = False
        self._woken = threading.Event()
        self._said = Memory[str, str]()  # what has failed, and the type of error, to the error's text

    @property
    def is_running(self) -> bool:
        """Whether it was started, and has neither ended nor died."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_over(self) -> bool:
        """Whether it was stopped, or is in a forked process, where gevent and eventlet let it go on."""
        return self._is_stopped or os.getpid() != self._pid

    def start(self) -> None:
        """Start it, unless it runs."""
        self._is_stopped = False
        if not self.is_running:
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Let it wait no longer, or not the next time."""
        self._woken.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait, in the thread, until it is woken or stopped; return whether it ``is_over``."""
        if not self.is_over:
            self._woken.wait(seconds)
            self._woken.clear()
        return self.is_over

    def stop(self, seconds: float = 0.0) -> bool:
        """Let it end, and wait for that; return whether it doesn't run any more."""
        self._is_stopped = True
        self._woken.set()
        if seconds and self._thread is not None and self._thread.is_alive():
            self._thread.join(seconds)
        return not self.is_running

    def report(self, what: str, exc: Exception, event: LogEvent, **facts: Any) -> None:
        """Log ``exc``, which it survives: once for its type, until its text changes; ``what`` comes first."""
        kind, words = type(exc).__name__, str(exc)
        if self._said.is_news(f"{what} {kind}", words):
            extra = event.of(**{"reason": f"{kind}: {words}", **facts})
            trace = None if isinstance(exc, RedBeatError) else exc  # RedBeat's own are sentences
            logger.error("beat: %s: %s: %s", what, kind, words, exc_info=trace, extra=extra)

    def report_recovery(self, what: str) -> None:
        """Log ``what`` at the level of ``report``, if an error was reported since the last recovery."""
        if self._said:
            self._said.clear()
            logger.error("beat: %s.", what)
