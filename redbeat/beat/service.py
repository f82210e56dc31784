"""The running ``celery beat``, as its scheduler sees it.

Owns what RedBeat knows of Celery's ``Service`` besides its documented parts; what a version of Celery doesn't
have is left out.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import billiard.common
import celery.beat
from billiard.process import current_process

#: billiard's: whether this process has handled a SIGTERM, which it does by a SystemExit, and only once
_HAS_BEEN_TERMINATED: list[bool] = getattr(billiard.common, "_should_have_exited", [False])


def is_process_of_worker() -> bool:
    """Tell whether this process is the one that a worker has started for its beat."""
    embedded_class = getattr(celery.beat, "_Process", None)
    return embedded_class is not None and isinstance(current_process(), embedded_class)


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
        return (shutdown is not None and shutdown.is_set()) or self.has_been_terminated

    @property
    def has_been_terminated(self) -> bool:
        """Whether a worker has told the beat inside it to end: it waits for that, and tells it once."""
        return _HAS_BEEN_TERMINATED[0]

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
