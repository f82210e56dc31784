"""Recording decisions: calls are written now, and their replies read later.

Invariant: every recording has exactly one outcome. What has no reply is recorded again, alone. That does no
harm where only the reply was lost, because a row changes only what was fetched.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import ResponseError

from redbeat.connection.retry import LAST_WORDS_SECONDS, call_briefly, is_no_permission, is_refusal
from redbeat.connection.stream import Stream
from redbeat.errors import LayoutChanged, LockLost, RedBeatError, StoreRefused
from redbeat.log.logger import logger
from redbeat.process.signals import hold_interrupts
from redbeat.store import scripts as lua
from redbeat.store.records import Commit, Committed, Fence, LockStatus, Result, Target, committed_as_one
from redbeat.store.rounds import CommitAsked, commit_together
from redbeat.store.scripts.script import Call
from redbeat.store.store import Store

#: rows that one call records at most: it blocks the server for a millisecond or two
CALL_ROWS = lua.CALL_COMMITS
#: rows on their way at most: what others send to the server comes after them, and their replies must fit into
#: what lies between
MAX_UNREAD = 500

#: how long the lock is renewed by what is recorded last, as it may never be released; milliseconds
LAST_LOCK_MS = 10_000


@dataclass(eq=False, slots=True)
class Recording:
    """Rows of one shard that are recorded by one call.

    Attributes:
        target: where the messages of the rows are pushed in the same step.
        is_patient: Redis is waited for as the settings say; else the rows stay due where it is away.
        outcome: the results of the rows, or the error of the shard; None: it is not known yet.
    """

    store: Store
    fence: Fence
    commits: Sequence[Commit]
    target: Target
    is_patient: bool = True
    outcome: Committed | RedBeatError | None = None


class Executor:
    """Records the decisions of one tick.

    Arguments:
        store: of any of its shards.
    """

    def __init__(self, store: Store) -> None:
        self._client = store.client
        self._can_stream = not (store.config.is_cluster or store.replicas.wanted)
        self._stream: Stream | None = None
        self._unsent: list[Recording] = []
        self._unread: deque[tuple[Recording, Call[Committed]]] = deque()
        self._recordings: list[Recording] = []

    def submit(self, recording: Recording) -> None:
        """Record at most ``CALL_ROWS`` rows, and do not wait for what becomes of them."""
        self._recordings.append(recording)
        if self._can_stream:
            self._unsent.append(recording)
            if sum(len(one.commits) for one in self._unsent) >= CALL_ROWS:
                self._attempt(recording.store, self._write)

    def drain(self) -> None:
        """Wait until each recording has its outcome."""
        recordings, self._recordings = self._recordings, []
        if not recordings:
            return
        if self._unsent:
            self._attempt(recordings[-1].store, self._write)
        if self._stream is not None:
            self._attempt(recordings[-1].store, lambda: self._read_until(0))
        self.close()
        left = [one for one in recordings if one.outcome is None]
        asked = [CommitAsked(one.store, one.fence, one.commits, one.target, _alone(one)) for one in left]
        for one, outcome in zip(left, commit_together(asked), strict=True):
            one.outcome = outcome

    def close(self) -> None:
        """Give the connection back; what was written is waited for, 2 seconds at most."""
        stream, self._stream = self._stream, None
        self._unsent.clear()
        self._unread.clear()
        if stream is not None:
            stream.close()

    def _attempt(self, store: Store, step: Callable[[], None]) -> None:
        """Do a step; after an error of Redis, what has no reply is recorded alone."""
        try:
            with store.translating():
                step()
        except RedBeatError as exc:
            logger.debug("beat: Rows are recorded one call after the other: %r", exc)
            self._can_stream = False
            self.close()
        except BaseException:
            self.close()
            raise

    def _write(self) -> None:
        if self._stream is None:
            self._stream = Stream.open(self._client)
        if self._stream is None:
            self._can_stream = False
            self._unsent.clear()
            return
        sent, self._unsent = self._unsent, []
        calls = [one.store.commit_call(one.fence, one.commits, one.target) for one in sent]
        self._stream.write_all([call.words(self._client) for call in calls])
        self._unread += zip(sent, calls, strict=True)
        self._read_until(MAX_UNREAD)

    def _read_until(self, count: int) -> None:
        """Read replies until so many rows have none; a call that was refused has none that counts."""
        unread = sum(len(one.commits) for one, _ in self._unread)
        while self._stream is not None and unread > count:
            reply = self._stream.read()
            one, call = self._unread.popleft()
            unread -= len(one.commits)
            if not isinstance(reply, ResponseError):
                one.outcome = call.read(reply)


def record_last(recordings: Sequence[Recording]) -> None:
    """Record once more, if that is possible in two seconds, as a tick ends early."""
    if not recordings:
        return
    asked = []
    for one in recordings:
        store, lock_ms = one.store.without_retry(), min(one.fence.lock_ms, LAST_LOCK_MS)
        last = replace_of(one, store=store, fence=replace(one.fence, lock_ms=lock_ms))
        asked.append(CommitAsked(last.store, last.fence, last.commits, last.target, _once(last)))
    with suppress(RedBeatError), hold_interrupts(LAST_WORDS_SECONDS, is_firm=True):
        call_briefly(lambda: commit_together(asked))


def replace_of(one: Recording, **changes: Any) -> Recording:
    """Return a recording with some values changed."""
    return replace(one, **changes)


def _once(one: Recording) -> Callable[[], Committed]:
    return lambda: one.store.commit_runs(one.fence, one.commits, one.target)


def _alone(one: Recording) -> Callable[[], Committed]:
    return lambda: _record_each(one) if one.is_patient else _record_now(one)


def _record_now(one: Recording) -> Committed:
    """Record prepared runs without waiting for Redis; what cannot be recorded now stays due.

    They are fetched when Redis is back: their policy may leave out runs by then, or send one for several.
    """
    try:
        committed = one.store.without_retry().commit_runs(one.fence, one.commits, one.target)
    except LockLost:
        raise
    except RedBeatError as exc:
        logger.debug("beat: Prepared runs cannot be recorded now: %s", exc)
        return Committed(LockStatus.HELD, is_moved=False, results=[False] * len(one.commits))
    one.store.note_committed(committed, one.fence)
    return committed


def _record_each(one: Recording) -> Committed:
    """Record all rows, or each alone where the server refuses one of them.

    The result of a row that the server refuses is a sentence that says why.
    """
    try:
        return one.store.commit_runs(one.fence, one.commits, one.target)
    except StoreRefused as exc:
        if is_about_all(exc) or is_no_permission(exc):
            raise
        if len(one.commits) == 1:
            return Committed(LockStatus.HELD, is_moved=False, results=[str(exc)])
    found: list[Committed] = []
    for commit in one.commits:
        try:
            found.append(one.store.commit_runs(one.fence, [commit], one.target))
        except StoreRefused as exc:
            if is_about_all(exc):
                raise
            refused: list[Result] = [str(exc)]
            found.append(Committed(LockStatus.HELD, is_moved=False, results=refused))
    return committed_as_one(found)


def is_about_all(exc: StoreRefused) -> bool:
    """Return True if the server refuses every row now, so that none is at fault."""
    return is_refusal(exc.__cause__) or exc.is_login or isinstance(exc, LayoutChanged)
