"""Changes that begin with a look at what is stored, and are made again when somebody else comes between.

Nothing is locked meanwhile: the write compares, and says so (``EntryChanged``).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from redbeat.errors import EntryChanged

#: how often a change is tried
MAX_TRIES = 10
#: how long the first pause between two tries is at the most; the second is twice as long, and so on; seconds
PAUSE_SECONDS = 0.05

Result = TypeVar("Result")


def retry_when_changed(change: Callable[[], Result]) -> Result:
    """Return what ``change`` returns, which looks anew each time that it is called.

    Raises:
        EntryChanged: somebody else came between ``MAX_TRIES`` times.
    """
    for tried in range(1, MAX_TRIES):
        try:
            return change()
        except EntryChanged:
            time.sleep(random.random() * tried * PAUSE_SECONDS)  # noqa: S311 - so that two don't meet again
    return change()
