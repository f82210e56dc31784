"""Commits of batches, written while the rest is still made, and read at the end.

Invariant: what has no reply in the end is committed in the ordinary way. That does no harm where only the
reply was lost, because a commit changes only what was claimed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from redbeat.connection.stream import Stream
from redbeat.errors import RedBeatError
from redbeat.store import scripts as lua
from redbeat.store.records import Commit, Committed, Fence, Histories, LockStatus, Target, committed_as_one

if TYPE_CHECKING:
    from redbeat.store.store import Store

#: how many commits are on their way at most: what others send to the server comes after them, and their
#: replies must fit into what lies in between
MAX_UNREAD = 500


@dataclass
class _Chunk:
    """What one call commits; ``committed`` is None as long as there is no reply."""

    commits: Sequence[Commit]
    committed: Committed | None = None


class CommitStream:
    """The connection on which commits are on their way: of one batch, or of several parts' on one server.

    A context manager, whose end gives the connection back. What was sent by then is recorded, unless the
    server doesn't answer.

    Arguments:
        store: of any of these parts.
        sent_together: small calls wait for each other until they are about so many commits.
    """

    def __init__(self, store: Store, sent_together: int = 1) -> None:
        self._sent_together = sent_together
        self._client = store.client
        self._is_open = not (store.config.is_cluster or store.replicas.wanted)
        self._stream: Stream | None = None
        self._unsent: list[tuple[_Chunk, Callable[[], Sequence[Any]]]] = []
        self._unsent_count = 0
        self._unread: deque[_Chunk] = deque()
        self._unread_count = 0

    def __enter__(self) -> CommitStream:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def write(self, store: Store, chunk: _Chunk, words: Callable[[], Sequence[Any]]) -> None:
        """Send a command whose reply is for ``chunk``, if that is possible.

        Arguments:
            store: of the part that it is about; notes that Redis is waited for.
            words: makes the command.
        """
        if not self._is_open:
            return
        self._unsent.append((chunk, words))
        self._unsent_count += len(chunk.commits)
        if self._unsent_count >= self._sent_together:
            self._attempt(store, self._send)

    def read_all(self, store: Store) -> None:
        """Read the replies to all that was written, as far as they come."""
        if self._unsent:
            self._attempt(store, self._send)
        try:
            if self._stream is not None:
                self._attempt(store, lambda: self._read_until(0))
        finally:
            self.close()

    def _attempt(self, store: Store, step: Callable[[], None]) -> None:
        """Do a step; after an error, whatever it is, the ordinary way does the rest, and may raise it."""
        try:
            with store.translating():
                step()
        except RedBeatError:
            self._is_open = False
            self.close()
        except BaseException:
            self.close()
            raise

    def _send(self) -> None:
        if self._stream is None:
            self._stream = Stream.open(self._client)
        if self._stream is None:
            self._is_open = False
            return
        sent, self._unsent, self._unsent_count = self._unsent, [], 0
        self._stream.write_all([words() for _, words in sent])
        for chunk, _ in sent:
            self._unread.append(chunk)
            self._unread_count += len(chunk.commits)
        self._read_until(MAX_UNREAD)

    def _read_until(self, count: int) -> None:
        """Read replies until so many commits have none; a call that was refused has none that counts."""
        while self._stream is not None and self._unread_count > count:
            reply = self._stream.read()
            chunk = self._unread.popleft()
            self._unread_count -= len(chunk.commits)
            if not isinstance(reply, ResponseError):
                chunk.committed = lua.committed_of([reply])

    def close(self) -> None:
        """Give the connection back. Harmless when repeated."""
        stream, self._stream = self._stream, None
        self._unsent.clear()
        self._unread.clear()
        self._unsent_count = self._unread_count = 0
        if stream is not None:
            stream.close()


class Commits:
    """The commits of one batch.

    Arguments:
        stream: on which they are written, perhaps beside those of other parts.
        commit: commits in the ordinary way what has no reply.
        histories: where records of runs go.
    """

    def __init__(
        self,
        store: Store,
        fence: Fence,
        target: Target,
        histories: Histories,
        commit: Callable[[Sequence[Commit]], Committed],
        stream: CommitStream,
    ) -> None:
        self._store = store
        self._fence = fence
        self._target = target
        self._histories = histories
        self._commit = commit
        self._stream = stream
        self._chunks: list[_Chunk] = []

    def write(self, commits: Sequence[Commit]) -> None:
        """Send ``commits``, in calls of 100, and don't wait for what becomes of them.

        Where that isn't possible, or fails, they are kept for ``finish``.
        """
        for first in range(0, len(commits), lua.CALL_COMMITS):
            chunk = _Chunk(commits[first : first + lua.CALL_COMMITS])
            self._chunks.append(chunk)
            self._stream.write(self._store, chunk, partial(self._words, chunk))

    def _words(self, chunk: _Chunk) -> Sequence[Any]:
        part, client = self._store.keys, self._store.client
        return lua.commit_command(client, part, self._fence, chunk.commits, self._target, self._histories)

    def finish(self) -> Committed:
        """Return what became of all commits, in the order in which they were written.

        Raises:
            LockLost: another beat holds the lock; what came after that wasn't written.
        """
        self._stream.read_all(self._store)
        done = committed_as_one([chunk.committed for chunk in self._chunks if chunk.committed])
        self._store.note_committed(done, self._fence)
        unread = [chunk for chunk in self._chunks if chunk.committed is None]
        if not unread:
            return done
        rest = self._commit([commit for chunk in unread for commit in chunk.commits])
        results = iter(rest.results)
        for chunk in unread:
            chunk.committed = Committed(
                LockStatus.HELD, is_moved=False, results=[next(results) for _ in chunk.commits]
            )
        ordered = [result for chunk in self._chunks if chunk.committed for result in chunk.committed.results]
        return Committed(
            rest.status, done.is_moved or rest.is_moved, ordered, done.unrecorded or rest.unrecorded
        )
