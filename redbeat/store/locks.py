"""The key of a lock: a string with a time to live that holds its owner's token.

Invariant: a lock is taken and released in the same step that compares its token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.connection.retry import call_briefly, without_retry
from redbeat.errors import RedBeatError, StoreUnavailable
from redbeat.store.nodes import Command, Sendable
from redbeat.store.records import Fence, LockStatus, text_of
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store, raised, renew_call

_TAKE_LOCK = Script("take_lock")
# whoever holds a lock may release it wherever entries are by now: others wait for it
_RELEASE_LOCK = Script("release_lock")

#: the time to live of a key that doesn't exist, and of one that lives for ever
NO_KEY, FOR_EVER = -2, -1


class LockKey(NamedTuple):
    """The lock under ``name``; each method but ``take_call`` is one round trip.

    All raise StoreCorrupt if the key isn't a string.

    Attributes:
        store: of the part of the schedule that it belongs to, or of none: :meth:`Store.apart`.
    """

    store: Store
    name: str

    def token(self) -> str | None:
        """Return the token in it; None: no process holds it."""
        token: str | None = text_of(self.store.ask(Command("get", self.name)))
        return token

    def rest_ms(self) -> int:
        """Return how long it lives, in milliseconds, or NO_KEY, or FOR_EVER."""
        return int(self.store.ask(Command("pttl", self.name)))

    def take_call(
        self,
        token: str,
        taken_ms: int,
        mark: str = "",
        *,
        silent: str = "",
        rest_ms: int = 0,
        slack_ms: int = 0,
    ) -> Call[bool]:
        """Return the call that takes it if it is free, or ``token`` has it; True: it is the caller's.

        Arguments:
            taken_ms: how long it lives then.
            mark: a key that says who has released the lock: ``token`` doesn't take it again; '': none.
            silent: the token of a silent holder, which is replaced; '': there is none.
            rest_ms: how long the silent holder's lock lives if it hasn't been renewed.
            slack_ms: by how much longer or shorter it may live and still count as not renewed.
        """
        return _TAKE_LOCK.call(
            self.store.keys,
            lock=self.name,
            mark=mark,
            token=token,
            taken_ms=taken_ms,
            silent=silent,
            rest_ms=rest_ms,
            slack_ms=slack_ms,
        ).reading(bool)

    def take(self, token: str, taken_ms: int, mark: str = "") -> bool:
        """Take it if it is free, or ``token`` has it; return True if it is the caller's."""
        return self.store.ask(self.take_call(token, taken_ms, mark))

    def release(self, token: str, mark: str = "") -> bool:
        """Release it as :func:`release_locks` does; True: ``token`` was its holder's."""
        return raised(*release_locks(self.store, [(self.store, Fence(self.name, token, mark=mark))]))


class Sight(NamedTuple):
    """A lock as a look has found it.

    Attributes:
        rest_ms: how long it lives, in milliseconds, or NO_KEY, or FOR_EVER.
        token: the token in it; '': no process holds it.
    """

    rest_ms: int
    token: str


# -- several locks; each function is one round trip a node
#
# Each returns the answer about each lock, in their order, or the error, which concerns no other one:
# StoreCorrupt, StoreRefused, and StoreUnavailable if its node can't be reached; it raises StoreUnavailable if
# none can be. Calls ``besides`` are sent along.


def look_at_locks(
    store: Store, locks: Sequence[LockKey], besides: Sequence[Sendable[Any]] = ()
) -> tuple[list[Sight | RedBeatError], list[Any]]:
    """Return each lock as it is now, and what the calls ``besides`` return."""
    count = len(locks)
    asked = [Command(name, lock.name) for name in ("pttl", "get") for lock in locks]
    answers = ask_locks(store, [*asked, *besides])
    found = [_sight(*pair) for pair in zip(answers[:count], answers[count : 2 * count], strict=True)]
    return found, answers[2 * count :]


def renew_locks(
    store: Store,
    held: Sequence[tuple[Store, Fence]],
    idle_seconds: float = 0,
    obstacle: str = "",
    besides: Sequence[Sendable[Any]] = (),
) -> list[RedBeatError | None]:
    """Let each live for its full time from now on; LockLost stands where another beat holds it.

    A lock that was gone is taken back, and noted in its store, as :meth:`Store.renew_lock` does.
    """
    calls = [renew_call(part.keys, fence, idle_seconds, obstacle) for part, fence in held]
    answers = ask_locks(store, [*calls, *besides])
    return [_check(*one, answer) for one, answer in zip(held, answers, strict=False)]


def release_locks(store: Store, held: Sequence[tuple[Store, Fence]]) -> list[bool | RedBeatError]:
    """Release each, and wake who waits for it; True: its holder's token was the caller's. Redis isn't waited
    for long.

    The ``mark`` of a fence says for a minute who has released the lock, so that it doesn't seem to have
    vanished, and no command takes it back that arrives late.
    """
    calls = [
        _RELEASE_LOCK.call(part.keys, lock=fence.lock_key, mark=fence.mark, token=fence.token).reading(bool)
        for part, fence in held
    ]
    answers: list[bool | RedBeatError] = call_briefly(
        lambda: store.try_all(calls, without_retry(store.client))
    )
    return answers


def ask_locks(store: Store, calls: Sequence[Sendable[Any]]) -> list[Any]:
    """Return what calls about locks return, or their errors.

    Raises:
        StoreUnavailable: no node can be reached.
    """
    answers = store.try_all(calls)
    if answers and all(isinstance(answer, StoreUnavailable) for answer in answers):
        raise answers[0]
    return answers


def _sight(rest_ms: Any, token: Any) -> Sight | RedBeatError:
    """Return a lock as two answers say that it is, or the first error."""
    for answer in (rest_ms, token):
        if isinstance(answer, RedBeatError):
            return answer
    return Sight(int(rest_ms), "" if rest_ms == NO_KEY else text_of(token) or "")


def _check(store: Store, fence: Fence, answer: LockStatus | RedBeatError) -> RedBeatError | None:
    """Return the error that a renewal ends with; None: the lock is held."""
    if isinstance(answer, RedBeatError):
        return answer
    try:
        store.check_lock(answer, fence)
    except RedBeatError as exc:
        return exc
    return None
