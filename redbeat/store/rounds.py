"""Asking several parts of a schedule the same thing at once: one round trip a node, however many there are.

Invariant: what a part answers, or refuses, is as if it had been asked alone; where it hasn't answered, or its
answer can't be had together with others, it is asked alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from redbeat.connection.client import is_hasty
from redbeat.connection.retry import without_retry
from redbeat.errors import RedBeatError, StoreUnavailable
from redbeat.store import scripts as lua
from redbeat.store.nodes import call_on_nodes, is_away, is_timeout
from redbeat.store.records import Commit, Committed, Fence, Fetched, Head, Target
from redbeat.store.scripts.script import Call
from redbeat.store.store import Store
from redbeat.store.upcoming import Cursor, Slice, Upcoming

Answer = TypeVar("Answer")


class FetchAsked(NamedTuple):
    """What is fetched of one part; as :meth:`Store.fetch_due` takes it."""

    store: Store
    fence: Fence
    limit: int
    lease_ms: int

    def fetch(self) -> Fetched:
        """Fetch it alone."""
        return self.store.fetch_due(self.fence, self.limit, self.lease_ms)


def fetch_together(asked: Sequence[FetchAsked]) -> list[Fetched | RedBeatError]:
    """Return what is due in each part, or why it can't be fetched: LockLost, say."""

    def call_of(one: FetchAsked) -> Call[Fetched]:
        call = one.store.fetch_call(one.fence, one.limit, one.lease_ms)
        return call.reading(lambda reply: one.store.checked(call.read(reply), one.fence))

    return _ask_together(
        [one.store for one in asked], [call_of(one) for one in asked], [one.fetch for one in asked]
    )


class CommitAsked(NamedTuple):
    """What is recorded of one part, as :meth:`Store.commit_runs` takes it.

    Attributes:
        alone: records it in the ordinary way.
    """

    store: Store
    fence: Fence
    commits: Sequence[Commit]
    target: Target
    alone: Callable[[], Committed]


def commit_together(asked: Sequence[CommitAsked]) -> list[Committed | RedBeatError]:
    """Return what became of each part's commits, or why they can't be recorded: LockLost, say.

    Each part's are checked against its own fence, and written or not, whatever becomes of the others.
    StoreUnavailable: it isn't known whether they were written.
    """

    def call_of(one: CommitAsked) -> Call[Committed] | None:
        if one.store.replicas.wanted or not 0 < len(one.commits) <= lua.CALL_COMMITS:
            return None
        call = one.store.commit_call(one.fence, one.commits, one.target)

        def read(reply: Any) -> Committed:
            committed = call.read(reply)
            one.store.note_committed(committed, one.fence)
            return committed

        return call.reading(read)

    return _ask_together(
        [one.store for one in asked], [call_of(one) for one in asked], [one.alone for one in asked]
    )


def look_together(stores: Sequence[Store]) -> list[Head | RedBeatError]:
    """Return what :meth:`Store.look` returns of each part."""
    return _ask_together(stores, [one.look_call() for one in stores], [one.look for one in stores])


class UpcomingAsked(NamedTuple):
    """What is read of that which falls due soon in one part; as :meth:`Upcoming.read` takes it."""

    upcoming: Upcoming
    cursor: Cursor
    limit: int
    again: Sequence[str]

    def read(self) -> Slice:
        """Read it alone."""
        return self.upcoming.read(self.cursor, self.limit, self.again)


def read_together(asked: Sequence[UpcomingAsked]) -> list[Slice | RedBeatError]:
    """Return what falls due soon in each part."""
    return _ask_together(
        [one.upcoming.store for one in asked],
        [one.upcoming.call(one.cursor, one.limit, one.again) for one in asked],
        [one.read for one in asked],
    )


def _ask_together(
    stores: Sequence[Store],
    calls: Sequence[Call[Answer] | None],
    alone: Sequence[Callable[[], Answer]],
) -> list[Answer | RedBeatError]:
    """Return each part's answer, or RedBeat's error about it; a node that is away isn't waited for if another
    one has answered, or if the client gives up soon, and only once if none has answered.

    Arguments:
        stores: have one part each, by the same client.
        calls: what each is asked; None: it is asked alone.
        alone: ask a part in the ordinary way.
    """
    if not stores:
        return []
    client = without_retry(stores[0].client)
    together = [place for place, call in enumerate(calls) if call is not None]
    replies: dict[int, Any] = {}
    if len(together) > 1 or is_hasty(client):
        with _asking(stores):
            found = call_on_nodes(client, [call for call in calls if call is not None])
        replies.update(zip(together, found, strict=True))
    has_waited = is_hasty(client) and any(map(is_timeout, replies.values()))
    is_waited_for = not has_waited and all(
        isinstance(one, Exception) and is_away(one) for one in replies.values()
    )
    answers: list[Answer | RedBeatError] = []
    for place, call in enumerate(calls):
        reply = replies.get(place)
        try:
            if isinstance(reply, Exception) and is_away(reply) and not is_waited_for:
                with stores[place].translating():
                    raise reply
            if call is None or reply is None or isinstance(reply, Exception):  # it says why
                answers.append(alone[place]())
            else:
                answers.append(call.read(reply))
        except RedBeatError as exc:
            answers.append(exc)
            is_waited_for = is_waited_for and not isinstance(exc, StoreUnavailable)  # that is enough for all
    return answers


@contextmanager
def _asking(stores: Iterable[Store]) -> Iterator[None]:
    """Note for each part that Redis is waited for, and then that it has answered."""
    first, *others = stores
    before, now = [store.asks_since for store in others], time.monotonic()
    for store in others:
        store.asks_since = now
    try:
        with first.translating():  # errors are looked at later; a signal ends connections amid an answer
            yield
    finally:
        for store, asked_before in zip(others, before, strict=True):
            store.asks_since = asked_before
    for store in others:
        store.on_progress()
