"""The lock: which beat may send.

::

                 acquire() -> True                    release()
    standby ------------------------> leader -----------------------> out
     ^   |                              |  ^
     |   | looks (Timing.look):         |  | the heartbeat renews it in time, and so does every claim and
     +---+ held, and renewed            |  | every commit; gone and nobody's, it is taken back
                                        |  +--------------------------------------------------------
          free, released or silent      v
          for takeover_seconds:        lost: another token stands there
          acquire() -> True

The lock is a string with a time to live that holds the leader's token. Invariant: the token is checked in
the same step as every write of the scheduler (``hold_lock.lua``), so a beat that was paused past its lease
writes nothing more, however long it takes to notice, and a lock that is taken over too early does no harm.
A lock is taken, and taken back, for a moment only and then renewed: a command that arrives late, when the
beat that sent it has ended, keeps nobody waiting.
"""

from __future__ import annotations

import math
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any

from redbeat.config.timing import Timing
from redbeat.errors import LockLost
from redbeat.store.locks import FOR_EVER, NO_KEY, LockKey
from redbeat.store.records import Fence, text_of
from redbeat.store.store import Store

#: how long a lock that was taken just now lives until it is renewed, milliseconds; see ``hold_lock.lua``, too
TAKEN_MS = 10_000

#: how a token of ours begins; one of celery-redbeat 2.x is 32 hexadecimal digits
TOKEN_MARK = "redbeat:3"  # noqa: S105 - a lock's token is no secret


@dataclass(frozen=True)
class Holder:
    """What a token of ours says: which process has held the lock since when (UTC)."""

    host: str
    pid: int
    since: datetime


@dataclass
class _Silence:
    """A lock that hasn't been renewed since a standby first saw it so; times are monotonic."""

    expires_at: float
    since: float
    looked_at: float


class LeaderLock:
    """One acquisition of the lock after another, each with a token of its own.

    ``owned``, ``locked``, ``extend``, ``reacquire`` and ``release`` are those of redis-py's lock, which
    stands in ``scheduler.lock`` with celery-redbeat 2.x.

    Arguments:
        store: where the lock is.
        key: the lock's key.
        timeout_seconds: how long it lives after it was last renewed.
        takeover_seconds: a holder of our kind that doesn't renew it for so long is replaced; None: never.

    Attributes:
        name: the lock's key.
        timeout: ``timeout_seconds``.
        is_released: its holder has given it up by ``release``, and doesn't take it back.
        token: what the lock holds when it is ours, or may be: it was asked for, and no answer has come.
        replaced: the token of the silent holder that was replaced, '' for none.
        seen_until: when the lock, as it was last seen in another's hands, would end; monotonic.
    """

    def __init__(
        self, store: Store, key: str, timeout_seconds: float, takeover_seconds: float | None = None
    ) -> None:
        self._store = store
        self.key = self.name = key
        self._key = LockKey(store, key)
        self._takeover_seconds = takeover_seconds
        self.set_timeout(timeout_seconds)
        self.is_released = False
        #: called before ``release`` gives it up: nobody may renew it any more
        self.on_release: Callable[[], None] = lambda: None
        self._silence: _Silence | None = None
        self.token = ""
        self.replaced = ""
        self.seen_until = 0.0

    def set_timeout(self, seconds: float) -> None:
        """Let it live for so long from its next renewal on."""
        self.timeout = seconds
        self.timeout_ms = max(int(seconds * 1000), 1)
        self.timing = Timing(seconds, self._takeover_seconds)

    @property
    def fence(self) -> Fence:
        """What the scheduler's writes are checked against."""
        return Fence(self.key, self.token, self.timeout_ms)

    def acquire(self, *, blocking: bool = False, blocking_timeout: float | None = None) -> bool:
        """Take the lock if it is free or its holder silent; return whether it is ours now.

        Costs one command while somebody else holds it.

        Arguments:
            blocking: wait for it, and
            blocking_timeout: seconds to wait at the most; None: as long as it takes.

        Raises:
            LockLost: it was ours, and a moment later another's.
        """
        deadline = math.inf if blocking_timeout is None else time.monotonic() + blocking_timeout
        while not self._take():
            left = deadline - time.monotonic()
            if not blocking or left <= 0:
                return False
            time.sleep(min(self.timing.look_seconds, left))
        self.is_released = False
        return True

    def _take(self) -> bool:
        try:
            rest_ms = self._key.rest_ms()
            if rest_ms == FOR_EVER:
                self._key.token()  # no beat leaves it so: it may be no lock at all, and says so
        except BaseException:
            self._silence = None  # what wasn't seen isn't known
            raise
        if rest_ms != NO_KEY:
            self.seen_until = time.monotonic() + rest_ms / 1000 if rest_ms >= 0 else math.inf
        silent = ""
        if self._is_silent(rest_ms):
            holder = self.holder()
            # a foreign one (celery-redbeat 2.x) renews its lock at each tick only: it is left to expire
            silent = holder if holder.startswith(TOKEN_MARK) else ""
        if rest_ms != NO_KEY and not silent and not self.token:
            return False
        # before the answer: whoever ends meanwhile must release it; and the same when no answer has come
        self.token = token = self.token or _new_token()
        taken_ms, slack_ms = min(self.timeout_ms, TAKEN_MS), int(self.timing.slack_seconds * 1000)
        is_ours = self._key.take(token, taken_ms, silent=silent, rest_ms=rest_ms, slack_ms=slack_ms)
        self.token = token if is_ours else ""
        self._silence = None
        if is_ours:
            self.replaced = silent
            self._store.renew_lock(self.fence)
        return is_ours

    def renew(self) -> bool:
        """Let the lock live for its whole time from now on; return whether it was gone, and is taken back.

        Raises:
            LockLost: another holds it.
        """
        self._store.renew_lock(self.fence)
        was_gone, self._store.has_retaken_lock = self._store.has_retaken_lock, False
        return was_gone

    def holder(self, mark: str = "") -> str:
        """Return the token in the lock; of one that was released just now that in ``mark``; '' for none."""
        token = self._key.token()
        if token is None and mark:
            token = LockKey(self._store, mark).token()
        return token or ""

    def take_mark(self, mark: str) -> str:
        """Return, once, who has released the lock, a token, as the key ``mark`` says; '' for nobody."""
        key = LockKey(self._store, mark)
        token = key.token() or ""
        key.remove()
        return token

    def _is_silent(self, rest_ms: int) -> bool:
        """Note a look at the lock; tell whether all looks, for long enough, found it not renewed."""
        now, silence = time.monotonic(), self._silence
        expires_at = now + rest_ms / 1000
        if rest_ms < 0:  # nobody holds it, or for ever: then somebody has set it so by hand
            self._silence = None
        elif (
            silence is None
            or abs(silence.expires_at - expires_at) > self.timing.slack_seconds
            or now - silence.looked_at > self.timing.look_gap_seconds
        ):
            self._silence = _Silence(expires_at, now, now)
        else:
            silence.looked_at = now
        return self.seconds_to_takeover() == 0

    def seconds_to_takeover(self) -> float | None:
        """Return how long until a holder that stays silent is replaced; None: no silence was seen."""
        takeover_seconds = self.timing.takeover_seconds
        if self._silence is None or takeover_seconds is None:
            return None
        return max(self._silence.since + takeover_seconds - time.monotonic(), 0)

    def forget(self) -> None:
        """Take notice that it isn't ours, whatever was thought of it; a later ``acquire`` begins anew."""
        self.token, self._silence = "", None

    def describe_holder(self) -> str:
        """Return who holds the lock and for how long, in words for a log."""
        holder, rest_ms = self._key.token(), self._key.rest_ms()
        if rest_ms == FOR_EVER:
            return f"{holder} holds {self.key}, which never ends: somebody has set it by hand"
        return f"{holder} holds {self.key}, which ends in {max(rest_ms, 0) / 1000:.0f} s unless it is renewed"

    # -- as redis-py's lock has it

    def owned(self) -> bool:
        """Tell whether it is ours, as Redis has it now."""
        return bool(self.token) and self._key.token() == self.token

    def locked(self) -> bool:
        """Tell whether anybody holds it."""
        return self._key.token() is not None

    def extend(self, additional_time: float, replace_ttl: bool = True) -> bool:
        """Let it live for ``additional_time`` seconds from now on, and return True.

        That is what celery-redbeat 2.x makes of it. With ``replace_ttl=False`` they are added to what is
        left. A beat that runs renews it to its own time soon after.

        Raises:
            LockLost: it isn't ours (a LockNotOwnedError of redis-py, too).
        """
        if self.is_released or not self.owned():
            raise self._not_owned("extended")
        lives_ms = additional_time * 1000
        if not replace_ttl:
            lives_ms += max(self._key.rest_ms(), 0)
        self._store.renew_lock(replace(self.fence, lock_ms=max(int(lives_ms), 1)))
        return True

    def reacquire(self) -> bool:
        """Let it live for its whole time from now on, and return True.

        Raises:
            LockLost: it isn't ours (a LockNotOwnedError of redis-py, too).
        """
        return self.extend(self.timeout)

    def release(self) -> None:
        """Give it up, and wake the standbys. A beat that runs stands by for it with its next tick.

        Raises:
            LockLost: it isn't ours (a LockNotOwnedError of redis-py, too).
        """
        self.on_release()
        was_released, self.is_released = self.is_released, True
        if was_released or not self.give_up():
            raise self._not_owned("released")

    def _not_owned(self, done: str) -> LockLost:
        return LockLost(
            f"The lock {self.key} can't be {done}: it isn't held by this beat (any more).", self.key
        )

    def give_up(self, mark: str = "") -> bool:
        """Give the lock up and wake the standbys; return whether it was ours. Redis isn't waited for long.

        Arguments:
            mark: a key that says for a minute who has released the lock: it hasn't vanished; '': none.
        """
        return self._key.release(self.token, mark)


def fence_of(lock: Any, timing: Timing) -> Fence:
    """Return what writes are checked against under ``lock``: ours, or what a program has put in its place.

    That may be a lock of redis-py, which has a token, or a test's own object, which has none: then nothing is
    checked.
    """
    if isinstance(lock, LeaderLock):
        return lock.fence
    token = text_of(getattr(getattr(lock, "local", None), "token", None))
    key = text_of(getattr(lock, "name", None))
    if not isinstance(token, str) or not isinstance(key, str):
        return Fence()
    return Fence(key, token, int(timing.lock_seconds * 1000))


def holder_of(token: str) -> Holder | None:
    """Return what ``token`` says, None when it isn't one of ours."""
    parts = token.removeprefix(f"{TOKEN_MARK}:").rsplit(":", 3)
    if not token.startswith(f"{TOKEN_MARK}:") or len(parts) != 4:
        return None
    host, pid, since, _ = parts
    try:
        return Holder(host, int(pid), datetime.fromtimestamp(int(since), timezone.utc))
    except (ValueError, OverflowError, OSError):
        return None


def _new_token() -> str:
    return f"{TOKEN_MARK}:{socket.gethostname()}:{os.getpid()}:{time.time():.0f}:{secrets.token_hex(8)}"
