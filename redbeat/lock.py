"""Leadership: which beat may send.

::

              acquire() -> True                     release()
    standby ---------------------> leader ----------------------> out
       ^                             |
       |  acquire() -> False         |  every claim and every commit renews the lock,
       +-- (looks once a second)     |  takes it back when it is gone and nobody's,
                                     |  and is refused when another token stands there
                                     v
                                   lost: LockLost ends this beat

The lock is a string with a time to live that holds the leader's token. Invariant: the token is checked in
the same step as every write of the scheduler (``hold_lock.lua``), so a beat that was paused past its lease
writes nothing more, however long it takes to notice. A lock is taken, and taken back, for a moment only and
then renewed: a command that arrives late, when the beat that sent it has ended, keeps nobody waiting.
"""

from __future__ import annotations

import os
import secrets
import socket
import time

from redbeat.lua import Fence, release_lock, text_of
from redbeat.retry import call_briefly, without_retry
from redbeat.store import Store

__all__ = ["TAKEN_MS", "LeaderLock"]

#: how long a lock that was taken just now lives until it is renewed, milliseconds; see ``hold_lock.lua``, too
TAKEN_MS = 10_000

#: how a token of ours begins; one of celery-redbeat 2.x is 32 hexadecimal digits
TOKEN_MARK = "redbeat:3"  # noqa: S105 - a lock's token is no secret


class LeaderLock:
    """One acquisition of the lock after another, each with a token of its own.

    Arguments:
        store: where the lock is.
        key: the lock's key.
        timeout_seconds: how long it lives after it was last renewed.

    Attributes:
        token: what the lock holds when it is ours, or may be: it was asked for, and no answer has come.
    """

    def __init__(self, store: Store, key: str, timeout_seconds: float) -> None:
        self._store = store
        self.key = key
        self.timeout_ms = max(int(timeout_seconds * 1000), 1)
        self.token = ""
        self._candidate = _new_token()

    @property
    def fence(self) -> Fence:
        """What the scheduler's writes are checked against."""
        return Fence(self.key, self.token, self.timeout_ms)

    def acquire(self) -> bool:
        """Take the lock if it is free, without waiting; return whether it is ours now.

        Costs one command while somebody else holds it.

        Raises:
            LockLost: it was ours, and a moment later another's.
        """
        client = self._store.client
        with self._store.translating(self.key, "string"):
            holder = text_of(client.get(self.key))
            if holder is None:
                self.token = self._candidate  # before the answer: whoever ends meanwhile must release it
                taken_ms = min(self.timeout_ms, TAKEN_MS)
                is_ours = bool(client.set(self.key, self._candidate, nx=True, px=taken_ms))
            else:
                # the reply to our own SET may have been lost
                is_ours = holder == self._candidate
        self.token = self._candidate if is_ours else ""
        if is_ours:
            self._store.renew_lock(self.fence)
            self._candidate = _new_token()
        return is_ours

    def describe_holder(self) -> str:
        """Return who holds the lock and for how long, in words for a log."""
        client = self._store.client
        with self._store.translating(self.key, "string"):
            holder, rest_ms = text_of(client.get(self.key)), client.pttl(self.key)
        return f"{holder} holds {self.key}, which ends in {max(rest_ms, 0) / 1000:.0f} s unless it is renewed"

    def release(self) -> bool:
        """Give the lock up and wake the standbys; return whether it was ours. Redis isn't waited for long."""
        client, wake = without_retry(self._store.client), self._store.keys.wake
        with self._store.translating(self.key, "string"):
            is_ours: bool = call_briefly(lambda: release_lock(client, self.key, self.token, wake=wake))
        return is_ours


def _new_token() -> str:
    return f"{TOKEN_MARK}:{socket.gethostname()}:{os.getpid()}:{time.time():.0f}:{secrets.token_hex(8)}"
