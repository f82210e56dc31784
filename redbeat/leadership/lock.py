"""The lock: which beat may send.

::

                 acquire() -> True                    release()
    standby ------------------------> leader -----------------------> out
     ^   |                              |  ^
     |   | looks (Timing.look):         |  | the heartbeat renews it in time, and so does every fetch and
     +---+ held, and renewed            |  | every commit; if it is gone, it is taken back
                                        |  +--------------------------------------------------------
          free, released or silent      v
          for takeover_seconds:        lost: another token stands there
          acquire() -> True

The lock is a string with a time to live that holds the leader's token. Invariant: every write of the
scheduler checks the token in the same step (``hold_lock.lua``). So a beat that was paused until its lock had
ended writes nothing more, however late it notices, and a takeover that comes too early does no harm.

While the server takes no writes (its memory or disk is full), nobody can renew a lock. So a standby that sees
a silent lock first tries a write that changes nothing, and after a refusal gives the holder time to renew.

A lock is taken, and taken back, for 10 seconds only, and then renewed to its full time: if that command
arrives late, when the beat that sent it has crashed, the others don't wait for long. A beat that ends in good
order leaves a mark with its token, which refuses such a command.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from redbeat.config.timing import Timing
from redbeat.connection.retry import is_full
from redbeat.errors import LayoutChanged, LockLost, StoreRefused
from redbeat.store.lock_tokens import holder_in_words, new_token, replaceable
from redbeat.store.locks import FOR_EVER, NO_KEY, LockKey, Take
from redbeat.store.records import Fence, text_of
from redbeat.store.store import Store

#: how long a lock that was just taken lives until it is renewed, milliseconds; ``hold_lock.lua`` has the same
TAKEN_MS = 10_000


@dataclass
class _Silence:
    """What a standby has seen of a lock that isn't renewed; times are monotonic.

    Attributes:
        expires_at: when the lock ends.
        since: the first look of those that found it not renewed.
        looked_at: the last of them.
    """

    expires_at: float
    since: float
    looked_at: float


class LeaderLock:
    """A lock that may be acquired again and again, each time with a new token.

    ``owned``, ``locked``, ``extend``, ``reacquire`` and ``release`` do what those of redis-py's lock do,
    which is what celery-redbeat 2.x has in ``scheduler.lock``.

    Arguments:
        store: where the lock is.
        key: the lock's key.
        timeout_seconds: how long it lives after it was last renewed.
        takeover_seconds: a RedBeat 3 that doesn't renew it for this long is replaced; None: never.
        beat: the id of the beat that asks for it, which its tokens say; '': they say a new one each.

    Attributes:
        name: the lock's key.
        timeout: ``timeout_seconds``.
        is_released: it was given up by ``release``, so nothing takes it back.
        token: what the lock holds if this object holds it, or may hold it, as no answer has come; '': it
            doesn't.
        replaced: the token of the silent holder that was replaced; '': there was none.
        seen_until: when another holder's lock would end, as it was seen last; monotonic.
        looked_at: when Redis last told how long the lock lives, monotonic; None: it hasn't yet.
        free_since: since when all looks have found that nobody holds it, monotonic; None: somebody does.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        timeout_seconds: float,
        takeover_seconds: float | None = None,
        beat: str = "",
    ) -> None:
        self._store = store
        self.key = self.name = key
        self._key = LockKey(store, key, lambda: store.keys)
        self._takeover_seconds = takeover_seconds
        self._beat = beat
        self.set_timeout(timeout_seconds)
        self.is_released = False
        #: called with each look: how long the lock lives, in milliseconds, or NO_KEY
        self.on_look: Callable[[int], None] = lambda _: None
        #: called by ``release`` before it gives the lock up, to stop whatever renews it
        self.on_release: Callable[[], None] = lambda: None
        self._silence: _Silence | None = None
        self._frozen_at: float | None = None  # when a write was refused last, monotonic
        self.token = ""
        self.replaced = ""
        self.seen_until = 0.0
        self.looked_at: float | None = None
        self.free_since: float | None = None

    def move_to(self, store: Store) -> None:
        """Go on with this store of the same part, as the layout of the schedule has changed."""
        self._store, self._key = store, LockKey(store, self.key, lambda: store.keys)

    def set_timeout(self, seconds: float) -> None:
        """Set how long it lives, from its next renewal on."""
        self.timeout = seconds
        self.timeout_ms = max(int(seconds * 1000), 1)
        self.timing = Timing(seconds, self._takeover_seconds)

    @property
    def fence(self) -> Fence:
        """The key and the token that the scheduler's writes are checked against."""
        return Fence(self.key, self.token, self.timeout_ms, self._store.keys.released)

    def acquire(self, *, blocking: bool = False, blocking_timeout: float | None = None) -> bool:
        """Take the lock if it is free, or if its holder is silent; return whether it was taken.

        Costs one command while somebody else holds it.

        Arguments:
            blocking: wait for it.
            blocking_timeout: seconds to wait at most; None: for ever.

        Raises:
            LockLost: it was taken, and another beat had it a moment later.
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
                self._key.token()  # raises if the key isn't a string: no beat writes one without an end
        except BaseException:
            self.note_no_look()
            raise
        is_silent = self.note_look(rest_ms)
        self.on_look(rest_ms)
        if self.is_doubtful and not self.note_trial(is_frozen=self._key.is_frozen()):
            return False
        silent = replaceable(self.holder()) if is_silent else ""
        if rest_ms != NO_KEY and not silent and not self.token:
            return False
        is_new = not self.token  # else it may have been taken by an earlier try, without an answer
        take = self.begin_take(rest_ms, silent)
        try:
            is_ours = take.run()
        except LayoutChanged:
            if is_new:
                self.forget()  # nothing was taken: the part isn't one of the schedule's any more
            raise
        except StoreRefused as exc:
            if rest_ms == NO_KEY or not is_full(exc.__cause__):
                raise
            self.note_trial(is_frozen=True)
            return False
        self.note_take(take, is_ours=is_ours)
        if is_ours:
            self._store.renew_lock(self.fence)
        return is_ours

    # -- the steps of ``acquire``, for whoever asks for several locks at once

    @property
    def lock_key(self) -> LockKey:
        """The key in Redis."""
        return self._key

    def note_no_look(self) -> None:
        """Note that a look has failed: it says nothing about the holder."""
        self._silence = self.free_since = None

    def note_look(self, rest_ms: int, looked_at: float | None = None) -> bool:
        """Note how long the lock lives; tell whether it hasn't been renewed for ``takeover_seconds``.

        Arguments:
            looked_at: when that was told, monotonic; None: just now.
        """
        now = self.looked_at = time.monotonic() if looked_at is None else looked_at
        if rest_ms != NO_KEY:
            self.seen_until = now + rest_ms / 1000 if rest_ms >= 0 else math.inf
            self.free_since = None
        elif self.free_since is None:
            self.free_since = now
        return self._is_silent(rest_ms, now)

    @property
    def is_doubtful(self) -> bool:
        """Whether a write must show, before the lock is taken, that its holder could have renewed it."""
        silence = self._silence
        seconds = 0.0 if silence is None else silence.looked_at - silence.since
        return self._frozen_at is not None or seconds >= self._grace_seconds

    def note_trial(self, *, is_frozen: bool) -> bool:
        """Note whether the server takes writes; return whether the holder has had time to renew the lock."""
        now = time.monotonic()
        if is_frozen:
            self.forget()
            self._frozen_at = now
        elif self._frozen_at is not None and now >= self._frozen_at + self._grace_seconds:
            self._frozen_at = None
        return self._frozen_at is None

    @property
    def _grace_seconds(self) -> float:
        """A holder that can renew the lock has done so in this time."""
        return 2 * self.timing.renewal_seconds + self.timing.slack_seconds

    def begin_take(self, rest_ms: int, silent: str = "") -> Take:
        """Return what takes the lock with a new token.

        Arguments:
            rest_ms: how long the lock lives, as it was seen.
            silent: the token of a silent holder, which is replaced; '': there is none.
        """
        # set before the answer, so that it is released if this beat ends now; and used again if none comes
        self.token = self.token or new_token(self._beat)
        taken_ms, slack_ms = min(self.timeout_ms, TAKEN_MS), int(self.timing.slack_seconds * 1000)
        mark = self._store.keys.released
        if silent and self.looked_at is not None:  # with many locks, some time has passed since
            rest_ms -= int((time.monotonic() - self.looked_at) * 1000)
        return Take(self._key, self.token, taken_ms, mark, silent, rest_ms, slack_ms)

    def note_take(self, take: Take, *, is_ours: bool) -> None:
        """Note the answer to it; if the lock is this beat's, it must be renewed at once."""
        self.token = take.token if is_ours else ""
        self._silence = self.free_since = None
        if is_ours:
            self.replaced = take.silent

    def renew(self) -> bool:
        """Let the lock live for its full time from now on; return whether it was gone, and was taken back.

        Raises:
            LockLost: another holds it.
        """
        self._store.renew_lock(self.fence)
        was_gone, self._store.has_retaken_lock = self._store.has_retaken_lock, False
        return was_gone

    def holder(self, mark: str = "") -> str:
        """Return the token in the lock, else the one in the key ``mark``; '': there is none."""
        token = self._key.token()
        if token is None and mark:
            token = LockKey(self._store, mark).token()
        return token or ""

    def take_mark(self, mark: str) -> str:
        """Return the token in the key ``mark``, that of whoever has released the lock; remove the key."""
        key = LockKey(self._store, mark)
        token = key.token() or ""
        key.remove()
        return token

    def _is_silent(self, rest_ms: int, now: float) -> bool:
        """Note a look at the lock; tell whether it hasn't been renewed for ``takeover_seconds``."""
        silence = self._silence
        expires_at = now + rest_ms / 1000
        if rest_ms < 0:  # nobody holds it, or it never ends, as somebody has set it by hand
            self._silence = None
        elif (
            silence is None
            or abs(silence.expires_at - expires_at) > self.timing.slack_seconds
            or now - silence.looked_at > self.timing.look_gap_seconds
        ):
            self._silence = _Silence(expires_at, now, now)
        else:
            silence.looked_at = now
        silence, takeover_seconds = self._silence, self.timing.takeover_seconds
        return (
            silence is not None and takeover_seconds is not None and now - silence.since >= takeover_seconds
        )

    def seconds_to_takeover(self) -> float | None:
        """Return the seconds until a holder that stays silent is replaced; None: it isn't silent."""
        takeover_seconds = self.timing.takeover_seconds
        if self._silence is None or takeover_seconds is None:
            return None
        return max(self._silence.since + takeover_seconds - time.monotonic(), 0)

    def seconds_late(self) -> float:
        """Return for how long a silent holder could have been replaced; 0: it can't be yet."""
        takeover_seconds = self.timing.takeover_seconds
        if self._silence is None or takeover_seconds is None:
            return 0.0
        return max(time.monotonic() - self._silence.since - takeover_seconds, 0.0)

    def forget(self) -> None:
        """Note that this object doesn't hold the lock; a later ``acquire`` begins anew."""
        self.token, self._silence, self.free_since = "", None, None

    def describe_holder(self) -> str:
        """Return who holds the lock and for how long, as a phrase for the log."""
        holder, rest_ms = holder_in_words(self._key.token()), self._key.rest_ms()
        if rest_ms == FOR_EVER:
            return f"{holder} holds the lock, which never expires, as it was set by hand"
        return f"{holder} holds the lock, which expires in {max(rest_ms, 0) / 1000:.0f} s unless renewed"

    # -- as redis-py's lock has it

    def owned(self) -> bool:
        """Ask Redis whether this object holds the lock."""
        return bool(self.token) and self._key.token() == self.token

    def locked(self) -> bool:
        """Ask Redis whether anybody holds the lock."""
        return self._key.token() is not None

    def extend(self, additional_time: float, replace_ttl: bool = True) -> bool:
        """Let it live for ``additional_time`` seconds from now on, as with celery-redbeat 2.x, and return
        True.

        With ``replace_ttl=False`` they are added to the time that is left. A beat that runs renews it to its
        full time soon after.

        Raises:
            LockLost: this object doesn't hold it (also redis-py's LockNotOwnedError).
        """
        if self.is_released or not self.owned():
            raise self._not_owned("extended")
        lives_ms = additional_time * 1000
        if not replace_ttl:
            lives_ms += max(self._key.rest_ms(), 0)
        self._store.renew_lock(replace(self.fence, lock_ms=max(int(lives_ms), 1)))
        return True

    def reacquire(self) -> bool:
        """Let it live for its full time from now on, and return True.

        Raises:
            LockLost: this object doesn't hold it (also redis-py's LockNotOwnedError).
        """
        return self.extend(self.timeout)

    def release(self) -> None:
        """Release it, and wake the standbys. A beat that runs stands by for it from its next tick on.

        Raises:
            LockLost: this object doesn't hold it (also redis-py's LockNotOwnedError).
        """
        was_released, self.is_released = self.is_released, True
        self.on_release()
        if was_released or not self.give_up():
            raise self._not_owned("released")

    def _not_owned(self, done: str) -> LockLost:
        return LockLost(
            f"The lock {self.key} can't be {done}: it isn't held by this beat (any more).", self.key
        )

    def give_up(self, mark: str = "") -> bool:
        """Release it and wake the standbys; return whether it was held. Redis isn't waited for long.

        Arguments:
            mark: a key that says for a minute who has released the lock, so that it doesn't seem to have
                vanished, and no command of this object takes it back that arrives late; '': none.
        """
        return self._key.release(self.token, mark)


def fence_of(lock: Any, timing: Timing) -> Fence:
    """Return what writes are checked against: ``lock`` is a LeaderLock, or what a program has put in its
    place.

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
