"""The key of a lock: a string with a time to live that holds its owner's token.

Invariant: a lock is taken and released in the same step that compares its token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

from redbeat.connection.retry import call_briefly, without_retry
from redbeat.errors import RedBeatError
from redbeat.store.layouts import refusal_of
from redbeat.store.nodes import Command, Sendable, call_on_nodes, is_away
from redbeat.store.records import Fence, LockStatus, text_of
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store, renew_call

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
        token: str | None = text_of(self.store.ask(methodcaller("get", self.name), self.name, kind="string"))
        return token

    def rest_ms(self) -> int:
        """Return how long it lives, in milliseconds, or NO_KEY, or FOR_EVER."""
        return int(self.store.ask(methodcaller("pttl", self.name), self.name, kind="string"))

    def release(self, token: str, mark: str = "") -> bool:
        """Release it as :func:`release_locks` does; True: ``token`` was its holder's."""
        [answer] = release_locks(self.store, [Held(self.store, Fence(self.name, token, mark=mark))])
        if isinstance(answer, RedBeatError):
            raise answer
        return answer


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
        return self.key.store.run(self.call())


class Held(NamedTuple):
    """A lock that is held.

    Attributes:
        store: the part of the schedule that it is the lock of.
        fence: its key and its token.
    """

    store: Store
    fence: Fence


#: what is asked about one lock, along with others; the last makes the answer of the reply
_Question = tuple[LockKey, Sendable, Callable[[Any], Any]]


# -- several locks; each function is one round trip a node
#
# Each returns the answer about each lock, in their order, or the error, which concerns no other one:
# StoreCorrupt, StoreRefused, and StoreUnavailable if its node can't be reached; it raises StoreUnavailable if
# none can be. Where calls ``besides`` are sent along, their replies come last, raw.


def look_at_locks(
    store: Store, locks: Sequence[LockKey], *besides: Sendable
) -> tuple[list[int | RedBeatError], list[Any]]:
    """Return how long each lock lives, in milliseconds, or NO_KEY, or FOR_EVER."""
    return _ask(
        store, [(lock, Command("PTTL", [lock.name]), partial(_lifetime, lock)) for lock in locks], besides
    )


def read_tokens(store: Store, locks: Sequence[LockKey]) -> list[str | RedBeatError | None]:
    """Return the token in each; None: no process holds it."""
    return _ask(store, [(lock, Command("GET", [lock.name]), text_of) for lock in locks])[0]


def take_locks(store: Store, takes: Sequence[Take]) -> list[bool | RedBeatError]:
    """Take each that is free, or still held by its silent holder; True: it is the caller's."""
    return _ask(store, [(one.key, one.call(), bool) for one in takes])[0]


def renew_locks(
    store: Store,
    held: Sequence[Held],
    idle_seconds: float = 0,
    obstacle: str = "",
    besides: Sequence[Sendable] = (),
) -> tuple[list[RedBeatError | None], list[Any]]:
    """Let each live for its full time from now on; LockLost stands where another beat holds it.

    A lock that was gone is taken back, and noted in its store, as :meth:`Store.renew_lock` does.
    """
    questions: list[_Question] = []
    for part, fence in held:
        call = renew_call(part.keys, fence, idle_seconds, obstacle)
        questions.append((LockKey(part, fence.lock_key or ""), call, partial(_check, part, fence)))
    return _ask(store, questions, besides)


def release_locks(
    store: Store, held: Sequence[Held], besides: Sequence[Sendable] = ()
) -> list[bool | RedBeatError]:
    """Release each, and wake who waits for it; True: its holder's token was the caller's. Redis isn't waited
    for long.

    The ``mark`` of a fence says for a minute who has released the lock, so that it doesn't seem to have
    vanished, and no command takes it back that arrives late.
    """
    questions: list[_Question] = []
    for part, fence in held:
        call = _RELEASE_LOCK.call(part.keys, lock=fence.lock_key, mark=fence.mark, token=fence.token)
        questions.append((LockKey(part, fence.lock_key or ""), call, bool))
    calls = [*(call for _, call, _ in questions), *besides]
    with store.translating():
        replies = call_briefly(lambda: call_on_nodes(without_retry(store.client), calls))
    return [_answer(*one, reply) for one, reply in zip(questions, replies, strict=False)]


def _ask(
    store: Store, questions: Sequence[_Question], besides: Sequence[Sendable] = ()
) -> tuple[list[Any], list[Any]]:
    calls = [*(call for _, call, _ in questions), *besides]
    if not calls:
        return [], []
    with store.translating():
        replies = call_on_nodes(store.client, calls)
        if all(isinstance(reply, Exception) and is_away(reply) for reply in replies):
            raise replies[0]
    answers = [_answer(*one, reply) for one, reply in zip(questions, replies, strict=False)]
    return answers, replies[len(questions) :]


def _answer(lock: LockKey, call: Sendable, read: Callable[[Any], Any], reply: Any) -> Any:
    """Return what a reply means, or the error in RedBeat's words."""
    store = lock.store
    try:
        if isinstance(call, Call) and isinstance(reply, Exception) and refusal_of(reply):
            return read(store.run(call))  # the layout has changed
        if isinstance(reply, Exception):
            return store.error_of(reply, lock.name, kind="string")
        return read(reply)
    except RedBeatError as exc:
        return exc


def _check(store: Store, fence: Fence, status: Any) -> None:
    store.check_lock(LockStatus(status), fence)


def _lifetime(lock: LockKey, reply: int) -> int:
    rest_ms = int(reply)
    if rest_ms == FOR_EVER:
        lock.token()  # raises if the key isn't a string: no beat writes one without an end
    return rest_ms
