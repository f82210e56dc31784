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
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, NoReturn

from .servers import pick_port

_HOST = "127.0.0.1"
_CHUNK_BYTES = 65_536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER, for no time

Loss = Literal["request", "reply"]


class _CutReached(Exception):
    """The connection is to be reset now."""


@dataclass(eq=False)
class _Cut:
    pattern: bytes
    loss: Loss
    has_happened: threading.Event = field(default_factory=threading.Event)

    def reach(self) -> NoReturn:
        self.has_happened.set()
        raise _CutReached


@dataclass(eq=False)
class _Link:
    """A connection of a client and the one to the server that goes with it."""

    client: socket.socket
    server: socket.socket = field(default_factory=socket.socket)
    cut: _Cut | None = None  # one whose pattern was sent here: the next reply brings it about

    def __post_init__(self) -> None:
        for end in (self.client, self.server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    def close(self, is_orderly: bool) -> None:
        for end in (self.client, self.server):
            if not is_orderly:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            end.close()


class Proxy:
    """Forwards to `target`, a host and a port, from construction until `close()`.

    `delay_seconds` is added to each chunk in each direction: a call takes twice that.
    """

    host = _HOST
    port: int

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.delay_seconds = 0.0
        self._cut: _Cut | None = None
        self._listener: socket.socket | None = None
        self._connections: set[asyncio.Task[bool]] = set()
        self._thawed = asyncio.Event()
        self._thawed.set()
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
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._connections)

    def freeze(self) -> None:
        """Withhold all bytes in both directions, and the ends of connections; nobody is told.

        New connections are accepted, and as silent. `drop()` before `thaw()` and what was withheld is lost.
        """
        self._run(self._thawed.clear)

    def thaw(self) -> None:
        """Let go what was withheld. Harmless when nothing was."""
        self._run(self._thawed.set)

    def drop(self) -> None:
        """Reset all open connections, on both sides."""
        asyncio.run_coroutine_threadsafe(self._drop(), self._loop).result(timeout=10)

    def refuse(self) -> None:
        """Refuse new connections; those that are open stay. Harmless when repeated."""
        self._run(self._stop_listening)

    def accept(self) -> None:
        """Take new connections again, on the same port. Harmless when it does."""
        self._run(self._listen)

    def cut_on(self, pattern: bytes, loss: Loss) -> threading.Event:
        """Reset the next connection on which `pattern` is sent to the server; once. Returns what is set then.

        What is lost: with "request" the chunk in which the pattern ends, so the server never sees the whole
        of it; with "reply" what the server says next, so it has done as it was told.
        """
        self._cut = _Cut(pattern, loss)
        return self._cut.has_happened

    def heal(self) -> None:
        """Be an ordinary proxy again: nothing withheld, refused, delayed, or to be cut."""
        self.delay_seconds = 0
        self._cut = None
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
            link = _Link(listener.accept()[0])
            connection = self._loop.create_task(self._serve(link))
            self._connections.add(connection)
            connection.add_done_callback(functools.partial(self._end, link))

    def _end(self, link: _Link, connection: asyncio.Task[bool]) -> None:
        # Not part of the task: one that is cancelled before its first step never takes any.
        link.close(is_orderly=not connection.cancelled() and connection.result())
        self._connections.discard(connection)

    async def _serve(self, link: _Link) -> bool:
        """Forward both directions; True when both have ended, False when one side has reset, or by a cut."""
        pumps: list[asyncio.Task[None]] = []
        try:
            await self._loop.sock_connect(link.server, self.target)
            for source, sink in ((link.client, link.server), (link.server, link.client)):
                pumps.append(self._loop.create_task(self._pump(link, source, sink)))
            await asyncio.gather(*pumps)
            return True
        except (OSError, _CutReached):
            return False
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)  # no socket is closed under a pump

    async def _pump(self, link: _Link, source: socket.socket, sink: socket.socket) -> None:
        sent = b""
        while True:
            try:
                chunk = await self._loop.sock_recv(source, _CHUNK_BYTES)
            except OSError:
                await self._thawed.wait()
                raise
            if chunk:
                await asyncio.sleep(self.delay_seconds)
            await self._thawed.wait()
            if not chunk:
                sink.shutdown(socket.SHUT_WR)
                return
            if source is link.client:
                sent = self._look_for_cut(link, sent + chunk)
            elif link.cut:
                link.cut.reach()
            await self._loop.sock_sendall(sink, chunk)

    def _look_for_cut(self, link: _Link, sent: bytes) -> bytes:
        """Act on the pattern in what was sent to the server; returns the end, where it may have begun."""
        cut = self._cut
        if cut is None or cut.pattern not in sent:
            return sent[1 - len(cut.pattern) :] if cut and len(cut.pattern) > 1 else b""
        self._cut = None
        link.cut = cut
        if cut.loss == "request":
            cut.reach()
        return b""
