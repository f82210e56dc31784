"""The running ``celery beat``, as its scheduler sees it.

Owns what RedBeat knows of Celery's ``Service`` besides its documented parts; what a version of Celery doesn't
have is left out.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import celery.beat
from billiard.process import current_process

from redbeat.process.containment import HAS_BEEN_TERMINATED


def is_process_of_worker() -> bool:
    """Tell whether this process is the one that a worker has started for its beat."""
    embedded_class = getattr(celery.beat, "_Process", None)
    return embedded_class is not None and isinstance(current_process(), embedded_class)


class Ended:
    """Whether beat has ended: Celery's ``threading.Event`` without its lock.

    The handler of SIGTERM sets it. With a lock, a second SIGTERM at that very moment would wait for ever for
    the handler that it has interrupted.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._awaited = threading.Lock()
        self._awaited.acquire()

    def is_set(self) -> bool:
        """Tell whether it has."""
        return self._is_set

    def set(self) -> None:
        """Note that it has; calling it amid another call does no harm."""
        self._is_set = True
        self._let_go()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has, ``timeout`` seconds at most; return whether it has."""
        if not self._is_set and self._awaited.acquire(timeout=-1 if timeout is None else timeout):
            self._let_go()  # the next one that waits
        return self._is_set

    def _let_go(self) -> None:
        with suppress(RuntimeError):  # it was free
            self._awaited.release()


class BeatService:
    """A running beat.

    Arguments:
        service: Celery's ``celery.beat.Service``, which calls the scheduler's ticks.
    """

    def __init__(self, service: Any) -> None:
        self._service = service
        # signals are handled in the main thread, where nobody waits for the end of this beat yet
        has_handlers = threading.current_thread() is threading.main_thread()
        if has_handlers and isinstance(getattr(service, "_is_stopped", None), threading.Event):
            service._is_stopped = Ended()  # noqa: SLF001 - Celery's handler sets it

    @property
    def is_stopping(self) -> bool:
        """Whether beat is about to end."""
        shutdown = getattr(self._service, "_is_shutdown", None)
        return (shutdown is not None and shutdown.is_set()) or self.has_been_terminated

    @property
    def has_been_terminated(self) -> bool:
        """Whether this beat was told to end, and still runs: what a signal's handler raises may get lost.

        Python goes on after an exception in a ``__del__`` or in a weak reference's callback. A worker tells
        the beat inside it once, and waits.
        """
        stopped = getattr(self._service, "_is_stopped", None)
        return HAS_BEEN_TERMINATED[0] or (stopped is not None and stopped.is_set())

    @property
    def is_embedded(self) -> bool:
        """Whether this is the beat inside a worker, which no supervisor starts again."""
        return threading.current_thread() is not threading.main_thread() or is_process_of_worker()

    def note_tick(self) -> None:
        """Show Celery that a tick that waits isn't stuck."""
        self._service._last_tick = time.monotonic()  # noqa: SLF001 - Celery sets it only when a tick returns

    def stop(self) -> None:
        """End beat."""
        self._service.stop()
