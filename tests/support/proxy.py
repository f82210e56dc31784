"""A TCP proxy on a free port of 127.0.0.1 that a test puts before a server, to break the way there.

Invariant: all sockets belong to one event loop in one thread, which `close()` ends; each method has taken
effect when it returns. At most one chunk a direction is held here, what else is withheld waits in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import socket
import threading
from collections.abc import Callable

from .daemons import pick_port
from .links import Cut, Faults, Link
from .links import Loss as Loss

_HOST = "127.0.0.1"


class Proxy:
    """Forwards to `target`, a host and a port, from construction until `close()`."""

    host = _HOST
    port: int

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self._faults = Faults()
        self._listener: socket.socket | None = None
        self._connections: set[asyncio.Task[bool]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        try:
            self._listen_on_a_free_port()
        except BaseException:
            self.close()
            raise

    def url(self, url: str) -> str:
        """The URL of the target, led through here."""
        return url.replace(f":{self.target[1]}", f":{self.port}")

    @property
    def delay_seconds(self) -> float:
        """Added to each chunk in each direction: a call takes twice that, and longer when it is large."""
        return self._faults.delay_seconds

    @delay_seconds.setter
    def delay_seconds(self, seconds: float) -> None:
        self._faults.delay_seconds = seconds

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def freeze(self) -> None:
        """Withhold all bytes in both directions, and the ends of connections; nobody is told.

        New connections are accepted, and as silent. `drop()` before `thaw()` and what was withheld is lost.
        """
        self._run(self._faults.thawed.clear)

    def freeze_on(self, pattern: bytes) -> threading.Event:
        """Freeze as soon as `pattern` has been sent to the server, which gets it; return what is set then."""
        cut = self._faults.cut = Cut(pattern, "nothing")
        return cut.has_happened

    def withhold_answers(self) -> None:
        """Withhold what the server says, and only that."""
        self._run(self._faults.answering.clear)

    def thaw(self) -> None:
        """Let go what was withheld. Harmless when nothing was."""
        self._run(self._faults.answering.set)
        self._run(self._faults.thawed.set)

    def drop(self) -> None:
        """Reset all open connections, on both sides."""
        asyncio.run_coroutine_threadsafe(self._drop(), self._loop).result(timeout=10)

    def silence(self) -> None:
        """Lose all bytes of the open connections, for ever and without a reset; new ones are well."""
        self._faults.generation += 1

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay. Harmless when repeated."""
        self._run(self._stop_listening)

    def accept(self) -> None:
        """Take new connections again, on the same port. Harmless when it does."""
        self._run(self._listen)

    def cut_on(self, pattern: bytes, loss: Loss, times: int = 1) -> threading.Event:
        """Reset the next connection on which `pattern` is sent to the server; returns what is set then.

        With `times` as many of them, and what is returned is set with the last one.

        What is lost: with "request" the chunk in which the pattern ends, so the server never sees the whole
        of it; with "reply" what the server says next, so it has done as it was told.
        """
        cut = self._faults.cut = Cut(pattern, loss, times)
        return cut.has_happened

    def cut_beyond(self, max_request_bytes: int | None, max_reply_bytes: int | None = None) -> None:
        """Reset connections on which more is sent at once, or answered, as proxies with limits do."""
        self._faults.max_request_bytes = max_request_bytes
        self._faults.max_reply_bytes = max_reply_bytes

    def heal(self) -> None:
        """Be an ordinary proxy again: nothing withheld, refused, delayed, or to be cut."""
        self.delay_seconds = 0
        self._faults.cut = None
        self.cut_beyond(None)
        self.accept()
        self.thaw()

    def close(self) -> None:
        """Reset what is open and end the thread. Harmless when repeated."""
        if self._loop.is_closed():
            return
        self.refuse()
        self.drop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, action: Callable[[], None]) -> None:
        async def run() -> None:
            action()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result(timeout=10)

    def _listen_on_a_free_port(self) -> None:
        for _ in range(20):
            self.port = pick_port()
            try:
                self.accept()
                return
            except OSError as exc:
                if exc.errno != errno.EADDRINUSE:
                    raise
        raise RuntimeError("found no free port in 20 tries")

    async def _drop(self) -> None:
        dropped = list(self._connections)
        for connection in dropped:
            connection.cancel()
        await asyncio.gather(*dropped, return_exceptions=True)

    def _listen(self) -> None:
        if not self._listener:
            self._listener = socket.create_server((self.host, self.port))
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._take, self._listener)

    def _stop_listening(self) -> None:
        if self._listener:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def _take(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):  # the client has thought better of it
            link = Link(listener.accept()[0], generation=self._faults.generation)
            connection = self._loop.create_task(link.forward(self.target, self._faults))
            self._connections.add(connection)
            connection.add_done_callback(functools.partial(self._end, link))

    def _end(self, link: Link, connection: asyncio.Task[bool]) -> None:
        # Not part of the task: one that is cancelled before its first step never takes any.
        link.close(is_orderly=not connection.cancelled() and connection.result())
        self._connections.discard(connection)
