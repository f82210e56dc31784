"""Work in the background in slices with rests between them, so that pages stay quick."""

from __future__ import annotations

import time

#: how long there is work at a time, of processor time, and how long a rest; seconds
SLICE_SECONDS, REST_SECONDS = 0.02, 0.02


class Pace:
    """The slices of one job, until its budget of processor time is used up. Belongs to one thread."""

    def __init__(self, budget_seconds: float) -> None:
        self._began = self._slice = time.thread_time()
        self._budget_seconds = budget_seconds

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up."""
        return time.thread_time() - self._began > self._budget_seconds

    def rest(self) -> None:
        """Rest, if a slice is over."""
        if time.thread_time() - self._slice > SLICE_SECONDS:
            time.sleep(REST_SECONDS)
            self._slice = time.thread_time()
