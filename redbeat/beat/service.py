"""Celery's beat, the program, as the scheduler in it sees it.

Owns what RedBeat knows of Celery's ``Service`` besides its documented parts; where a Celery has another one,
that part is left out.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import celery.beat
from billiard.process import current_process


class BeatService:
    """A running beat.

    Arguments:
        service: Celery's ``celery.beat.Service``, which calls the scheduler's ticks.
    """

    def __init__(self, service: Any) -> None:
        self._service = service

    @property
    def is_stopping(self) -> bool:
        """Whether beat is about to end."""
        shutdown = getattr(self._service, "_is_shutdown", None)
        return shutdown is not None and shutdown.is_set()

    @property
    def is_embedded(self) -> bool:
        """Whether this is the beat inside of a worker, which has nobody who starts it again."""
        if threading.current_thread() is not threading.main_thread():
            return True
        embedded_class = getattr(celery.beat, "_Process", None)
        return embedded_class is not None and isinstance(current_process(), embedded_class)

    def note_tick(self) -> None:
        """A tick that waits isn't stuck: ``celery inspect ping`` goes by this."""
        self._service._last_tick = time.monotonic()  # noqa: SLF001 - it is stamped only when a tick returns

    def stop(self) -> None:
        """End beat."""
        self._service.stop()
