"""Two things at once: while one batch is prepared, a thread records the one before and claims the one after.

Preparing takes this process's time, recording and claiming the server's. Invariant: the thread can't do harm
by being late. What it writes is checked against what was read, it never takes back a lock that is gone, and
whoever doesn't learn how it ended does the same again.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from redbeat.errors import RedBeatError
from redbeat.lua import Claim, Commit, Committed, Fence, Target
from redbeat.retry import without_retry
from redbeat.store import Store

__all__ = ["Overlap"]


class Overlap:
    """One commit and one claim after it, under way from the moment this is made.

    Arguments:
        store: of the scheduler; its client isn't tried again here.
        commits: what to record; [] for nothing.
        limit: how many entries to claim.
        offset: how many due entries are in hand already, and come first.
    """

    def __init__(
        self,
        store: Store,
        fence: Fence,
        commits: Sequence[Commit],
        target: Target,
        limit: int,
        offset: int,
    ) -> None:
        self._store = Store(store.config.app, without_retry(store.client))
        self._fence = replace(fence, lock_ms=-fence.lock_ms)
        self._committed: Committed | None = None
        self._claim: Claim | None = None
        self._work: Any = (commits, target, limit, offset)
        self._thread = threading.Thread(target=self._run, name="redbeat-overlap", daemon=True)
        self._thread.start()

    def join(self, timeout_seconds: float | None = None) -> tuple[Committed | None, Claim | None]:
        """Wait for the end; return what came of it, None for what isn't known."""
        self._thread.join(timeout_seconds)
        return self._committed, self._claim

    def _run(self) -> None:
        commits, target, limit, offset = self._work
        try:
            self._committed = self._store.commit_runs(self._fence, commits, target)
            self._claim = self._store.claim_due(self._fence, limit, offset=offset)
        except RedBeatError:
            # whatever it is, it shows again where it is dealt with
            return
