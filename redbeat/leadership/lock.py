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
from redbeat.store.lock_tokens import holder_in_words, new_token, replaceable
from redbeat.store.locks import (
    FOR_EVER,
    NO_KEY,
    Held,
    LockKey,
    Take,
    look_at_locks,
    read_tokens,
    renew_locks,
    take_locks,
)
from redbeat.store.nodes import Command
from redbeat.store.records import Fence, text_of
from redbeat.store.store import Store

#: how long a lock that was just taken lives until it is renewed, milliseconds; ``hold_lock.lua`` has the same
TAKEN_MS = 10_000


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
        is_released: it was given up by ``release``, so nothing takes it back.
        token: what the lock holds if this object holds it, or may hold it, as no answer has come; '': it
            doesn't.
        replaced: the token of the silent holder that was replaced; '': there was none.
        expires_at: when another holder's lock would end, as it was seen last; monotonic.
        free_since: since when all looks have found that no beat holds it, monotonic; None: one does.
        silent_since: since when all looks have found that its holder hasn't renewed it, likewise.
    """

    def __init__(self, store: Store, key: str, timing: Timing, beat: str = "") -> None:
        self.key = self.name = key
        self.move_to(store)
        self.timing = timing
        self._beat = beat
        self.is_released = False
        #: called by ``release``
        self.on_release: Callable[[], None] = lambda: None
        self.token = self.replaced = ""
        self.expires_at = self._looked_at = 0.0
        self.free_since: float | None = None
        self.silent_since: float | None = None

    def move_to(self, store: Store) -> None:
        """Use this store of the same shard from now on, as the layout of the schedule has changed."""
        self.store, self.lock_key = store, LockKey(store, self.key)

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
        found, _ = look_at(self.store, [self])
        [result] = take(self.store, [self], found, lambda _place, _silent: True)
        if isinstance(result, RedBeatError):
            raise result
        return result

    # -- what a look has found

    def note_look(self, rest_ms: int | RedBeatError, looked_at: float) -> None:
        """Record how long the lock lives, as Redis has replied at ``looked_at`` (monotonic).

        An error says nothing about the holder: its silence is counted from zero again.
        """
        if isinstance(rest_ms, RedBeatError):
            self.silent_since = self.free_since = None
            return
        gap_seconds, self._looked_at = looked_at - self._looked_at, looked_at
        before, expires_at = self.expires_at, looked_at + rest_ms / 1000
        if rest_ms != NO_KEY:
            self.expires_at = math.inf if rest_ms < 0 else expires_at
            self.free_since = None
        elif self.free_since is None:
            self.free_since = looked_at
        if rest_ms < 0:  # it is free, or never expires, as a user has set it
            self.silent_since = None
        elif (
            self.silent_since is None
            or abs(before - expires_at) > self.timing.slack_seconds
            or gap_seconds > self.timing.look_gap_seconds
        ):
            self.silent_since = looked_at

    @property
    def is_silent(self) -> bool:
        """Whether its holder hadn't renewed it for ``takeover_seconds`` at the last look."""
        return self.silent_since is not None and self._looked_at >= self.replaceable_at

    @property
    def replaceable_at(self) -> float:
        """When a holder that stays silent may be replaced, monotonic; infinity: never."""
        if self.silent_since is None or self.timing.takeover_seconds is None:
            return math.inf
        return self.silent_since + self.timing.takeover_seconds

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
            min(self.fence.lock_ms, TAKEN_MS),
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
        self.forget()
        if answer:
            self.token, self.replaced = take.token, take.silent
        return answer

    def forget(self) -> None:
        """Record that this object doesn't hold the lock; a later ``acquire`` begins anew."""
        self.token, self.silent_since, self.free_since = "", None, None

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
        if was_released or not self.give_up(self.store.keys.released):
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
    store: Store, wanted: Sequence[LeaderLock], besides: Sequence[Any] = ()
) -> tuple[list[int | RedBeatError], list[Any]]:
    """Return how long each lock lives, and the replies to the calls ``besides``.

    Raises:
        StoreUnavailable: no node can be reached.
    """
    try:
        found, replies = look_at_locks(store, [lock.lock_key for lock in wanted], *besides)
    except RedBeatError as exc:
        for lock in wanted:
            lock.note_look(exc, 0.0)
        raise
    now = time.monotonic()
    for lock, rest_ms in zip(wanted, found, strict=True):
        lock.note_look(rest_ms, now)
    return found, replies


def take(
    store: Store,
    wanted: Sequence[LeaderLock],
    found: Sequence[int | RedBeatError],
    may_take: Callable[[int, frozenset[str]], bool],
) -> list[bool | RedBeatError]:
    """Take those locks that are free, or whose holders are silent, and renew them to their full time.

    Returns True for each that is held now, or the error. LockLost: it was held for a moment only.

    Arguments:
        found: how long each lives, as ``look_at`` has returned it.
        may_take: returns True if this beat may take the lock at a place, given the tokens of all silent
            holders; none, if it is free.
    """
    results = [rest_ms if isinstance(rest_ms, RedBeatError) else False for rest_ms in found]
    silent = [place for place, lock in enumerate(wanted) if results[place] is False and lock.is_silent]
    tokens = read_tokens(store, [wanted[place].lock_key for place in silent])
    holders = {
        place: replaceable(token) if isinstance(token, str) else ""
        for place, token in zip(silent, tokens, strict=True)
    }
    replaced = frozenset(filter(None, holders.values()))
    takes: dict[int, Take] = {}
    for place, (lock, rest_ms) in enumerate(zip(wanted, found, strict=True)):
        if isinstance(rest_ms, RedBeatError):
            continue
        holder = holders.get(place)
        if holder is None:
            # with a token it may have been taken by an earlier try, without an answer
            if lock.token or (rest_ms == NO_KEY and may_take(place, frozenset())):
                takes[place] = lock.begin_take(rest_ms)
        elif holder and may_take(place, replaced):
            takes[place] = lock.begin_take(rest_ms, holder)
    for (place, asked), answer in zip(takes.items(), take_locks(store, [*takes.values()]), strict=True):
        results[place] = wanted[place].note_take(asked, answer)
    held = [place for place in takes if results[place] is True]
    renewed, _ = renew_locks(store, [Held(wanted[place].store, wanted[place].fence) for place in held])
    for place, error in zip(held, renewed, strict=True):
        if error is not None:
            results[place] = error
            if isinstance(error, LockLost):
                wanted[place].forget()
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
