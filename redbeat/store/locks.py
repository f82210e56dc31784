"""The key of a lock: a string with a time to live that holds its owner's token.

Invariant: a lock is taken and released in the same step that compares its token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from redbeat.connection.retry import call_briefly, without_retry
from redbeat.errors import RedBeatError, StoreUnavailable
from redbeat.store.nodes import Command, Sendable
from redbeat.store.records import Fence, text_of
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store, raised, renew_call

_TAKE_LOCK = Script("take_lock")
# whoever holds a lock may release it wherever entries are by now: others wait for it
_RELEASE_LOCK = Script("release_lock")

#: the time to live of a key that doesn't exist, and of one that lives for ever
NO_KEY, FOR_EVER = -2, -1


class LockKey(NamedTuple):
    """The lock under ``name``; each method is one round trip.

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

    def release(self, token: str, mark: str = "") -> bool:
        """Release it as :func:`release_locks` does; True: ``token`` was its holder's."""
        return raised(*release_locks(self.store, [Held(self.store, Fence(self.name, token, mark=mark))]))


class Take(NamedTuple):
    """How a lock is asked for: it is taken when it is free, or ``token`` has it.

    Attributes:
        taken_ms: how long it lives then.
        mark: a key that says who has released the lock: ``token`` doesn't take it again; '': none.
        silent: the token of a silent holder, which is replaced; '': there is none.
        rest_ms: how long the silent holder's lock lives if it hasn't been renewed.
        slack_ms: by how much longer or shorter it may live and still count as not renewed.
    """

    key: LockKey
    token: str
    taken_ms: int
    mark: str = ""
    silent: str = ""
    rest_ms: int = 0
    slack_ms: int = 0

    def call(self) -> Call[bool]:
        """Return the call that asks for it; the reply is True if it is the caller's."""
        return _TAKE_LOCK.call(self.key.store.keys, self, lock=self.key.name).reading(bool)

    def run(self) -> bool:
        """Ask for it; return True if it is the caller's."""
        return self.key.store.ask(self.call())


class Held(NamedTuple):
    """A lock that is held.

    Attributes:
        store: the part of the schedule that it is the lock of.
        fence: its key and its token.
    """

    store: Store
    fence: Fence


#: what is asked about one lock, along with others; the last makes the answer of the reply
_Question = tuple[Sendable[Any], Callable[[Any], Any]]


# -- several locks; each function is one round trip a node
#
# Each returns the answer about each lock, in their order, or the error, which concerns no other one:
# StoreCorrupt, StoreRefused, and StoreUnavailable if its node can't be reached; it raises StoreUnavailable if
# none can be. Where calls ``besides`` are sent along, their answers come last.


def look_at_locks(
    store: Store, locks: Sequence[LockKey], *besides: Sendable[Any]
) -> tuple[list[int | RedBeatError], list[Any]]:
    """Return how long each lock lives, in milliseconds, or NO_KEY, or FOR_EVER."""
    return _ask(store, [(Command("pttl", lock.name), partial(_lifetime, lock)) for lock in locks], besides)


def read_tokens(store: Store, locks: Sequence[LockKey]) -> list[str | RedBeatError | None]:
    """Return the token in each; None: no process holds it."""
    return _ask(store, [(Command("get", lock.name), text_of) for lock in locks])[0]


def take_locks(store: Store, takes: Sequence[Take]) -> list[bool | RedBeatError]:
    """Take each that is free, or still held by its silent holder; True: it is the caller's."""
    return _ask(store, [(one.call(), bool) for one in takes])[0]


def renew_locks(
    store: Store,
    held: Sequence[Held],
    idle_seconds: float = 0,
    obstacle: str = "",
    besides: Sequence[Sendable[Any]] = (),
) -> tuple[list[RedBeatError | None], list[Any]]:
    """Let each live for its full time from now on; LockLost stands where another beat holds it.

    A lock that was gone is taken back, and noted in its store, as :meth:`Store.renew_lock` does.
    """
    questions: list[_Question] = []
    for part, fence in held:
        call = renew_call(part.keys, fence, idle_seconds, obstacle)
        questions.append((call, partial(part.check_lock, fence=fence)))
    return _ask(store, questions, besides)


def release_locks(
    store: Store, held: Sequence[Held], besides: Sequence[Sendable[Any]] = ()
) -> list[bool | RedBeatError]:
    """Release each, and wake who waits for it; True: its holder's token was the caller's. Redis isn't waited
    for long.

    The ``mark`` of a fence says for a minute who has released the lock, so that it doesn't seem to have
    vanished, and no command takes it back that arrives late.
    """
    questions: list[_Question] = []
    for part, fence in held:
        call = _RELEASE_LOCK.call(part.keys, lock=fence.lock_key, mark=fence.mark, token=fence.token)
        questions.append((call, bool))
    calls = [*(call for call, _ in questions), *besides]
    found = call_briefly(lambda: store.try_all(calls, without_retry(store.client)))
    return [_answer(read, one) for (_, read), one in zip(questions, found, strict=False)]


def _ask(
    store: Store, questions: Sequence[_Question], besides: Sequence[Sendable[Any]] = ()
) -> tuple[list[Any], list[Any]]:
    found = store.try_all([*(call for call, _ in questions), *besides])
    if found and all(isinstance(one, StoreUnavailable) for one in found):
        raise found[0]
    answers = [_answer(read, one) for (_, read), one in zip(questions, found, strict=False)]
    return answers, found[len(questions) :]


def _answer(read: Callable[[Any], Any], found: Any) -> Any:
    """Return what a reply means, or its error."""
    try:
        return read(raised(found))
    except RedBeatError as exc:
        return exc


def _lifetime(lock: LockKey, reply: int) -> int:
    rest_ms = int(reply)
    if rest_ms == FOR_EVER:
        lock.token()  # raises if the key isn't a string: no beat writes one without an end
    return rest_ms
