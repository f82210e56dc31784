"""A batch's commits, written while the rest of the batch is still made, and read at the end.

Invariant: what has no reply in the end is committed in the ordinary way. That does no harm where only the
reply was lost, because a commit changes only what was claimed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from redbeat.connection.stream import Stream
from redbeat.errors import RedBeatError
from redbeat.store import scripts as lua
from redbeat.store.records import Commit, Committed, Fence, Histories, LockStatus, Target, committed_as_one

if TYPE_CHECKING:
    from redbeat.store.store import Store

#: how many calls are on their way at most: what others send to the server comes after them, and their
#: replies must fit into what lies in between
MAX_UNREAD = 5


@dataclass
class _Chunk:
    """What one call commits; ``committed`` is None as long as there is no reply."""

    commits: Sequence[Commit]
    committed: Committed | None = None


class Commits:
    """The commits of one batch; a context manager, whose end gives the connection back.

    If it ends without ``finish``, what was written is recorded, unless the server doesn't answer.

    Arguments:
        commit: commits in the ordinary way what has no reply.
        histories: where records of runs go.
        is_direct: False: all is committed in the ordinary way, at the end.
    """

    def __init__(
        self,
        store: Store,
        fence: Fence,
        target: Target,
        histories: Histories,
        commit: Callable[[Sequence[Commit]], Committed],
        *,
        is_direct: bool,
    ) -> None:
        self._store = store
        self._fence = fence
        self._target = target
        self._histories = histories
        self._commit = commit
        self._is_direct = is_direct
        self._stream: Stream | None = None
        self._chunks: list[_Chunk] = []
        self._read = 0

    def __enter__(self) -> Commits:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._close()

    def write(self, commits: Sequence[Commit]) -> None:
        """Send ``commits``, in calls of 100, and don't wait for what becomes of them.

        Where that isn't possible, or fails, they are kept for ``finish``.
        """
        for first in range(0, len(commits), lua.CALL_COMMITS):
            chunk = _Chunk(commits[first : first + lua.CALL_COMMITS])
            self._chunks.append(chunk)
            if self._is_direct:
                self._attempt(self._send, chunk)

    def finish(self) -> Committed:
        """Return what became of all commits, in the order in which they were written.

        Raises:
            LockLost: another beat holds the lock; what came after that wasn't written.
        """
        try:
            if self._stream is not None:
                self._attempt(self._read_until, 0)
        finally:
            self._close()
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

    def _attempt(self, step: Callable[[Any], None], argument: Any) -> None:
        """Do a step; after an error, whatever it is, the ordinary way does the rest, and may raise it."""
        try:
            with self._store.translating():
                step(argument)
        except RedBeatError:
            self._is_direct = False
            self._close()
        except BaseException:
            self._close()
            raise

    def _send(self, chunk: _Chunk) -> None:
        if self._stream is None:
            self._stream = Stream.open(self._store.client)
        if self._stream is None:
            self._is_direct = False
            return
        part = self._store.keys
        self._stream.write(
            *lua.commit_command(part, self._fence, chunk.commits, self._target, self._histories)
        )
        self._read_until(MAX_UNREAD)

    def _read_until(self, unread: int) -> None:
        """Read replies until so many are left; a call that was refused has none that counts."""
        while self._stream is not None and self._stream.unread > unread:
            reply = self._stream.read()
            chunk, self._read = self._chunks[self._read], self._read + 1
            if not isinstance(reply, ResponseError):
                chunk.committed = lua.committed_of([reply])

    def _close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()
