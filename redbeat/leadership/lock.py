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
arrives late, when the beat that sent it has crashed, the others don't wait for long. A beat that ends in good
order leaves a mark with its token, which refuses such a command.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any

from redbeat.config.timing import Timing
from redbeat.connection.retry import is_full
from redbeat.errors import LockLost, RedBeatError, StoreUnavailable
from redbeat.store.lock_tokens import holder_in_words, new_token, replaceable
from redbeat.store.locks import FOR_EVER, NO_KEY, Held, LockKey, Locks, Take
from redbeat.store.records import Fence, text_of
from redbeat.store.store import Store

#: how long a lock that was just taken lives until it is renewed, milliseconds; ``hold_lock.lua`` has the same
TAKEN_MS = 10_000


@dataclass
class _Silence:
    """What a standby has seen of a lock that isn't renewed; times are monotonic.

    Attributes:
        expires_at: when the lock ends.
        since: the first look that found it not renewed.
        looked_at: the last such look.
    """

    expires_at: float
    since: float
    looked_at: float


class LeaderLock:
    """A lock that may be acquired again and again, each time with a new token.

    ``owned``, ``locked``, ``extend``, ``reacquire`` and ``release`` do what those of redis-py's lock do,
    which is what celery-redbeat 2.x has in ``scheduler.lock``.

    Arguments:
        store: the shard, or the schedule, that the lock is for.
        key: the lock's key.
        timeout_seconds: how long it lives after it was last renewed.
        takeover_seconds: a RedBeat 3 that doesn't renew it for this long is replaced; None: never.
        beat: the id of the beat that asks for it, which its tokens contain; '': each has a new one.

    Attributes:
        name: the lock's key.
        timeout: ``timeout_seconds``.
        lock_key: the key in Redis.
        is_released: it was given up by ``release``, so nothing takes it back.
        token: what the lock holds if this object holds it, or may hold it, as no answer has come; '': it
            doesn't.
        replaced: the token of the silent holder that was replaced; '': there was none.
        seen_until: when another holder's lock would end, as it was seen last; monotonic.
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
        self.key = self.name = key
        self.move_to(store)
        self._takeover_seconds = takeover_seconds
        self._beat = beat
        self.set_timeout(timeout_seconds)
        self.is_released = False
        #: called by ``release`` before it gives the lock up, to stop its renewal
        self.on_release: Callable[[], None] = lambda: None
        self._silence: _Silence | None = None
        self.token = ""
        self.replaced = ""
        self.seen_until = 0.0
        self._looked_at = math.inf
        self.free_since: float | None = None

    def move_to(self, store: Store) -> None:
        """Use this store of the same shard from now on, as the layout of the schedule has changed."""
        self.store, self.lock_key = store, LockKey(store, self.key)

    def set_timeout(self, seconds: float) -> None:
        """Set how long it lives, from its next renewal on."""
        self.timeout = seconds
        self.timeout_ms = max(int(seconds * 1000), 1)
        self.timing = Timing(seconds, self._takeover_seconds)

    @property
    def fence(self) -> Fence:
        """The key and the token that the scheduler's writes are checked against."""
        return Fence(self.key, self.token, self.timeout_ms, self.store.keys.released)

    def acquire(self, *, blocking: bool = False, blocking_timeout: float | None = None) -> bool:
        """Take the lock if it is free, or if its holder is silent; return True if it was taken.

        Costs one command while another one holds it.

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
        locks = Locks(self.store)
        found = look_at(locks, [self])[0]
        results = take(locks, find_takes(locks, [self], found, lambda _lock, _silent: True))
        for result in (*found, *results):
            if isinstance(result, RedBeatError):
                raise result
        return True in results

    # -- what a look has found

    def note_no_look(self) -> None:
        """Record that a look has failed: it says nothing about the holder."""
        self._silence = self.free_since = None

    def note_look(self, rest_ms: int, looked_at: float) -> None:
        """Record how long the lock lives, as Redis has replied at ``looked_at`` (monotonic)."""
        self._looked_at = looked_at
        silence, expires_at = self._silence, looked_at + rest_ms / 1000
        if rest_ms != NO_KEY:
            self.seen_until = math.inf if rest_ms < 0 else expires_at
            self.free_since = None
        elif self.free_since is None:
            self.free_since = looked_at
        if rest_ms < 0:  # it is free, or never expires, as a user has set it
            self._silence = None
        elif (
            silence is None
            or abs(silence.expires_at - expires_at) > self.timing.slack_seconds
            or looked_at - silence.looked_at > self.timing.look_gap_seconds
        ):
            self._silence = _Silence(expires_at, looked_at, looked_at)
        else:
            silence.looked_at = looked_at

    @property
    def is_silent(self) -> bool:
        """Whether its holder hasn't renewed it for ``takeover_seconds``, as of the last look."""
        silence, takeover_seconds = self._silence, self._takeover_seconds
        return (
            silence is not None
            and takeover_seconds is not None
            and silence.looked_at - silence.since >= takeover_seconds
        )

    def seconds_to_takeover(self) -> float | None:
        """Return the seconds until a holder that stays silent may be replaced, less than 0 after that; None:
        it isn't silent."""
        if self._silence is None or self._takeover_seconds is None:
            return None
        return self._silence.since + self._takeover_seconds - time.monotonic()

    # -- taking it

    def begin_take(self, rest_ms: int, silent: str = "") -> Take:
        """Return the request that takes the lock with a new token.

        Arguments:
            rest_ms: how long the lock lives, as it was seen.
            silent: the token of a silent holder, which is replaced; '': there is none.
        """
        # set before the answer, so that it is released if this beat ends now; and used again if none comes
        self.token = self.token or new_token(self._beat)
        if silent:  # with many locks, some time has passed since the look
            rest_ms -= int((time.monotonic() - self._looked_at) * 1000)
        return Take(
            self.lock_key,
            self.token,
            min(self.timeout_ms, TAKEN_MS),
            self.store.keys.released,
            silent,
            rest_ms,
            int(self.timing.slack_seconds * 1000),
        )

    def note_take(self, take: Take, answer: bool | RedBeatError) -> bool | RedBeatError:
        """Record the answer; return True if the lock is this object's, which must renew it at once."""
        if isinstance(answer, RedBeatError):
            if not isinstance(answer, StoreUnavailable):  # else it may be this beat's all the same
                self.forget()
            return False if take.silent and is_full(answer.__cause__) else answer
        self.token = take.token if answer else ""
        self._silence = self.free_since = None
        if answer:
            self.replaced = take.silent
        return answer

    def forget(self) -> None:
        """Record that this object doesn't hold the lock; a later ``acquire`` begins anew."""
        self.token, self._silence, self.free_since = "", None, None

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
        self.store.ask(methodcaller("delete", mark), mark)
        return token

    def describe_holder(self) -> str:
        """Return who holds the lock and for how long, as a phrase for the log."""
        holder, rest_ms = holder_in_words(self.lock_key.token()), self.lock_key.rest_ms()
        if rest_ms == FOR_EVER:
            return f"{holder} holds the lock, which never expires, as it was set by hand"
        return f"{holder} holds the lock, which expires in {max(rest_ms, 0) / 1000:.0f} s unless renewed"

    # -- as redis-py's lock has it

    def owned(self) -> bool:
        """Ask Redis whether this object holds the lock."""
        return bool(self.token) and self.lock_key.token() == self.token

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
        if self.is_released or not self.owned():
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
        was_released, self.is_released = self.is_released, True
        self.on_release()
        if was_released or not self.give_up():
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
        return self.lock_key.release(self.token, mark)


# -- the steps of an election, for several locks at once


def look_at(
    locks: Locks, wanted: Sequence[LeaderLock], besides: Sequence[Any] = ()
) -> tuple[list[int | RedBeatError], list[Any]]:
    """Return how long each lock lives, and the replies to the calls ``besides``.

    Raises:
        StoreUnavailable: no node can be reached.
    """
    try:
        found, replies = locks.look([lock.lock_key for lock in wanted], *besides)
    except BaseException:
        for lock in wanted:
            lock.note_no_look()
        raise
    now = time.monotonic()
    for lock, rest_ms in zip(wanted, found, strict=True):
        if isinstance(rest_ms, RedBeatError):
            lock.note_no_look()
        else:
            lock.note_look(rest_ms, now)
    return found, replies


def find_takes(
    locks: Locks,
    wanted: Sequence[LeaderLock],
    found: Sequence[int | RedBeatError],
    may_take: Callable[[LeaderLock, frozenset[str]], bool],
) -> list[tuple[LeaderLock, Take]]:
    """Return the requests that take those locks which are free, or whose holders are silent.

    Arguments:
        found: how long each lives, as ``look_at`` has returned it.
        may_take: returns True if this beat may take a lock, given the tokens of all silent holders; none, if
            it is free.
    """
    seen = [
        (lock, rest_ms)
        for lock, rest_ms in zip(wanted, found, strict=True)
        if not isinstance(rest_ms, RedBeatError)
    ]
    silent = [(lock, rest_ms) for lock, rest_ms in seen if lock.is_silent]
    tokens = locks.tokens([lock.lock_key for lock, _ in silent])
    holders = [replaceable(token) if isinstance(token, str) else "" for token in tokens]
    takes = [
        (lock, lock.begin_take(rest_ms))
        for lock, rest_ms in seen
        # with a token it may have been taken by an earlier try, without an answer
        if not lock.is_silent and (lock.token or (rest_ms == NO_KEY and may_take(lock, frozenset())))
    ]
    takes += [
        (lock, lock.begin_take(rest_ms, holder))
        for (lock, rest_ms), holder in zip(silent, holders, strict=True)
        if holder and may_take(lock, frozenset(filter(None, holders)))
    ]
    return takes


def take(locks: Locks, takes: Sequence[tuple[LeaderLock, Take]]) -> list[bool | RedBeatError]:
    """Take these locks, and renew them to their full time; return True for each that is held now, or the
    error. LockLost: it was held for a moment only."""
    answers = locks.take([asked for _, asked in takes])
    results = [lock.note_take(asked, answer) for (lock, asked), answer in zip(takes, answers, strict=True)]
    held = [place for place, result in enumerate(results) if result is True]
    renewed, _ = locks.renew([Held(takes[place][0].store, takes[place][0].fence) for place in held])
    for place, error in zip(held, renewed, strict=True):
        if error is not None:
            results[place] = error
            if isinstance(error, LockLost):
                takes[place][0].forget()
    return results


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
