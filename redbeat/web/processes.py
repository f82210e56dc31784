"""What belongs to one process: threads, locks and connections, none of which is handed on by a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class InEachProcess(Generic[Made]):
    """Something that is made anew in each process: a server may fork after it has loaded the application.

    Arguments:
        make: makes it.
    """

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[int, Made] | None = None

    def get(self) -> Made:
        """Return that of this process."""
        made = self._made
        if made is None or made[0] != os.getpid():
            with self._lock:
                made = self._made
                if made is None or made[0] != os.getpid():
                    made = self._made = os.getpid(), self._make()
        return made[1]
