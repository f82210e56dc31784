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

While the server takes no writes (its memory or disk is full), no beat can renew a lock, and no standby can
take one. A standby that was refused so waits for ``takeover_seconds`` again: the holder renews long before.

A lock is taken, and taken back, for 10 seconds only, and then renewed to its full time: if that command
arrives late, when the beat that sent it has crashed, the others don't wait for long. A beat that releases a
lock leaves a mark with its token, which refuses such a command.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from redbeat.config.timing import Timing
from redbeat.connection.retry import is_full
from redbeat.errors import LockLost, RedBeatError, StoreUnavailable
from redbeat.store.lock_tokens import TOKEN_MARK, holder_in_words, new_token
from redbeat.store.locks import FOR_EVER, NO_KEY, LockKey, Sight, ask_locks, look_at_locks, renew_locks
from redbeat.store.nodes import Command, Sendable
from redbeat.store.records import Fence, text_of
from redbeat.store.store import Store

#: how long a lock that was just taken lives until it is renewed, milliseconds; ``hold_lock.lua`` has the same
TAKEN_MS = 10_000

#: a node that didn't answer isn't asked again for twice as long as that took, and for this at most
AWAY_SECONDS = 5.0


class LeaderLock:
    """A lock that may be acquired again and again, each time with a new token.

    ``owned``, ``locked``, ``extend``, ``reacquire`` and ``release`` do what those of redis-py's lock do,
    which is what celery-redbeat 2.x has in ``scheduler.lock``.

    Arguments:
        store: the shard, or the schedule, that the lock is for.
        key: the lock's key.
        timing: how long it lives after it was last renewed, and when a silent holder is replaced; it may
            change.
        beat: the id of the beat that asks for it, which its tokens contain; '': each has a new one.

    Attributes:
        name: the lock's key.
        lock_key: the key in Redis.
        is_held: this object holds it, as far as is known.
        token: what the lock holds then; or what it may hold, as taking it was not answered; else ''.
        replaced: the token of the silent holder that was replaced; '': there was none.
        seen: the lock at the last look that was answered.
        looked_at: when that was, monotonic; 0: there was none.
        expires_at: when another holder's lock would end, as it was seen last; monotonic.
        unchanged_since: since when all looks have found it free, or not renewed, monotonic; infinity: that
            is counted from the next look.
        error: why the last look, or taking it, has failed; None: it hasn't.
        away_until: until when it isn't asked for, as its node makes all others wait; monotonic.
    """

    def __init__(self, store: Store, key: str, timing: Timing, beat: str = "") -> None:
        self.key = self.name = key
        self.store, self.lock_key = store, LockKey(store, key)
        self.timing = timing
        self._beat = beat
        #: called by ``release``
        self.on_release: Callable[[], None] = lambda: None
        self.token = self.replaced = ""
        self.seen = Sight(FOR_EVER, "")
        self.expires_at = self.looked_at = self.away_until = 0.0
        self.error: RedBeatError | None = None
        self.forget()

    @property
    def timeout(self) -> float:
        """How long it lives after it was last renewed, seconds."""
        return self.timing.lock_seconds

    @property
    def fence(self) -> Fence:
        """The key and the token that the scheduler's writes are checked against."""
        lock_ms = max(int(self.timeout * 1000), 1)
        return Fence(self.key, self.token, lock_ms, self.store.keys.released)

    def acquire(self, *, blocking: bool = False, blocking_timeout: float | None = None) -> bool:
        """Take the lock if it is free, or if its holder is silent; return True if it was taken.

        Costs one round trip while another one holds it.

        Arguments:
            blocking: wait for it.
            blocking_timeout: seconds to wait at most; None: for ever.

        Raises:
            LockLost: it was taken, and another beat had it a moment later.
        """
        deadline = math.inf if blocking_timeout is None else time.monotonic() + blocking_timeout
        while True:
            look_at(self.store, [self])
            take(self.store, [self], lambda _lock, _silent: True)
            if self.error is not None:
                raise self.error
            left = deadline - time.monotonic()
            if self.is_held or not blocking or left <= 0:
                return self.is_held
            time.sleep(min(self.timing.look_seconds, left))

    # -- what a look has found

    def note_look(self, found: Sight | RedBeatError, took_seconds: float) -> None:
        """Record the lock as it is now.

        An error says nothing about the holder: its silence is counted from zero again.
        """
        if isinstance(found, RedBeatError):
            self.error, self.unchanged_since = found, math.inf
            if isinstance(found, StoreUnavailable):
                self.leave_alone(2 * took_seconds)
            return
        now, expired_at, was_free = time.monotonic(), self.expires_at, self.seen.rest_ms == NO_KEY
        is_free = found.rest_ms == NO_KEY
        if not is_free:
            self.expires_at = math.inf if found.rest_ms == FOR_EVER else now + found.rest_ms / 1000
        if (
            is_free != was_free
            or self.unchanged_since == math.inf
            or abs(self.expires_at - expired_at) > self.timing.slack_seconds  # it was renewed
            or now - self.looked_at > self.timing.look_gap_seconds
        ):
            self.unchanged_since = now
        self.error, self.seen, self.looked_at = None, found, now

    def leave_alone(self, seconds: float = AWAY_SECONDS) -> None:
        """Ask its node for nothing in the next seconds, ``AWAY_SECONDS`` at most."""
        self.away_until = time.monotonic() + min(seconds, AWAY_SECONDS)

    @property
    def takeable_at(self) -> float:
        """When it may be taken if it stays as it was seen, monotonic; infinity: never."""
        if self.seen.rest_ms == NO_KEY:
            return self.unchanged_since
        # celery-redbeat 2.x renews its lock at each tick only, so its lock must expire
        is_left = self.seen.rest_ms == FOR_EVER or not self.seen.token.startswith(TOKEN_MARK)
        if is_left or self.timing.takeover_seconds is None:
            return math.inf
        return self.unchanged_since + self.timing.takeover_seconds

    @property
    def is_takeable(self) -> bool:
        """Whether it was free at the last look, or not renewed for ``takeover_seconds``."""
        return self.looked_at >= self.takeable_at

    # -- taking it

    def take_call(self) -> Sendable[Any]:
        """Return the call that takes the lock if it is free, or still as it was seen."""
        # set before the answer, so that it is released if this beat ends now; and used again if none comes
        self.token = self.token or new_token(self._beat)
        self.replaced = self.seen.token if self.is_takeable else ""
        # with many locks, some time has passed since the look
        passed_ms = int((time.monotonic() - self.looked_at) * 1000)
        return self.lock_key.take_call(
            self.token,
            min(self.fence.lock_ms, TAKEN_MS),
            self.store.keys.released,
            silent=self.replaced,
            rest_ms=self.seen.rest_ms - passed_ms,
            slack_ms=int(self.timing.slack_seconds * 1000),
        )

    def note_take(self, answer: bool | RedBeatError | None) -> None:
        """Record how taking the lock has ended, True or False, or renewing it then, None; or the error."""
        if isinstance(answer, RedBeatError):
            if isinstance(answer, StoreUnavailable):  # it may be this beat's all the same
                self.is_held = False
            else:
                self.forget()
            # a server that takes no writes keeps a silent holder from renewing it, too
            self.error = None if self.replaced and is_full(answer.__cause__) else answer
        elif answer is False:
            self.forget()
        else:
            self.is_held = True

    def forget(self) -> None:
        """Record that this object doesn't hold the lock; a later ``acquire`` begins anew."""
        self.is_held, self.token, self.unchanged_since = False, "", math.inf

    # -- for the singleton command

    def renew(self) -> bool:
        """Let the lock live for its full time from now on; return True if it was gone, and was taken back.

        Raises:
            LockLost: another holds it.
        """
        self.store.renew_lock(self.fence)
        was_gone, self.store.has_retaken_lock = self.store.has_retaken_lock, False
        return was_gone

    def holder(self, mark: str) -> str:
        """Return the token in the lock, else the one in the key ``mark``; '': there is none."""
        return self.lock_key.token() or LockKey(self.store, mark).token() or ""

    def take_mark(self, mark: str) -> str:
        """Return the token in the key ``mark``, that of the last holder to release the lock; remove the
        key."""
        token = LockKey(self.store, mark).token() or ""
        self.store.ask(Command("delete", mark))
        return token

    def describe_holder(self) -> str:
        """Return who held the lock at the last look and for how long, as a phrase for the log."""
        holder = holder_in_words(self.seen.token)
        if self.seen.rest_ms == FOR_EVER:
            return f"{holder} holds the lock, which never expires, as it was set by hand"
        seconds = max(self.expires_at - time.monotonic(), 0)
        return f"{holder} holds the lock, which expires in {seconds:.0f} s unless renewed"

    # -- as redis-py's lock has it

    def owned(self) -> bool:
        """Ask Redis whether this object holds the lock."""
        return self.is_held and self.lock_key.token() == self.token

    def locked(self) -> bool:
        """Ask Redis whether anybody holds the lock."""
        return self.lock_key.token() is not None

    def extend(self, additional_time: float, replace_ttl: bool = True) -> bool:
        """Let it live for ``additional_time`` seconds from now on, as with celery-redbeat 2.x, and return
        True.

        With ``replace_ttl=False`` they are added to the time that is left. A beat that runs renews it to its
        full time soon after.

        Raises:
            LockLost: this object doesn't hold it (also redis-py's LockNotOwnedError).
        """
        if not self.owned():
            raise self._not_owned("extended")
        lives_ms = additional_time * 1000
        if not replace_ttl:
            lives_ms += max(self.lock_key.rest_ms(), 0)
        self.store.renew_lock(replace(self.fence, lock_ms=max(int(lives_ms), 1)))
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
        if not self.give_up(self.store.keys.released):
            raise self._not_owned("released")

    def _not_owned(self, done: str) -> LockLost:
        return LockLost(
            f"The lock {self.key} can't be {done}: it isn't held by this beat (any more).", self.key
        )

    def give_up(self, mark: str = "") -> bool:
        """Release it and wake the standbys; return True if it was held. Redis isn't waited for long.

        Arguments:
            mark: a key that says for a minute who has released the lock, so that it doesn't seem to have
                vanished, and no command of this object takes it back that arrives late; '': none.
        """
        token = self.token
        self.forget()
        self.on_release()
        return bool(token) and self.lock_key.release(token, mark)


# -- the steps of an election, for several locks at once


def look_at(store: Store, wanted: Sequence[LeaderLock], besides: Sequence[Sendable[Any]] = ()) -> list[Any]:
    """Find out how each lock is; return the answers to the calls ``besides``.

    Raises:
        StoreUnavailable: no node can be reached.
    """
    began_at = time.monotonic()
    try:
        found, answers = look_at_locks(store, [lock.lock_key for lock in wanted], besides)
    except RedBeatError as exc:
        for lock in wanted:
            lock.note_look(exc, 0.0)
        raise
    for lock, seen in zip(wanted, found, strict=True):
        lock.note_look(seen, time.monotonic() - began_at)
    return answers


def take(
    store: Store, wanted: Sequence[LeaderLock], may_take: Callable[[LeaderLock, frozenset[str]], bool]
) -> None:
    """Take those locks that are free, or whose holders are silent, and renew them to their full time.

    Arguments:
        may_take: returns True if this beat may take the lock, given the tokens of all silent holders; none,
            if it is free.
    """
    silent = frozenset(lock.seen.token for lock in wanted if lock.is_takeable and lock.seen.token)

    def is_asked(lock: LeaderLock) -> bool:
        if lock.error is not None:
            return False
        if lock.token:  # it may have been taken by an earlier try, without an answer
            return True
        return lock.is_takeable and may_take(lock, silent if lock.seen.token else frozenset())

    asked = [lock for lock in wanted if is_asked(lock)]
    for lock, answer in zip(asked, ask_locks(store, [lock.take_call() for lock in asked]), strict=True):
        lock.note_take(answer)
    taken = [lock for lock in asked if lock.is_held]
    renewed = renew_locks(store, [(lock.store, lock.fence) for lock in taken])
    for lock, error in zip(taken, renewed, strict=True):
        lock.note_take(error)


def fence_of(lock: Any, timing: Timing) -> Fence:
    """Return the fence of a lock: a LeaderLock, or what a program has put in its place.

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
