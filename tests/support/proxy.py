"""A TCP proxy on a free port of 127.0.0.1 that a test puts before a server, to break the way there.

Invariant: all sockets belong to one event loop in one thread, which `close()` ends; each method has taken
effect when it returns. Each direction is forwarded in the order read, one chunk at a time, so that a fault
meets the bytes that come after it began; what else is withheld waits in the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import math
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NoReturn

from .daemons import pick_port

_CHUNK_BYTES = 65_536
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER, for no time

Loss = Literal["request", "reply", "nothing"]


class _CutReached(Exception):
    """The connection is to be reset now."""


@dataclass(eq=False)
class Cut:
    """Resets to come, `times` of them, on the next connections on which `pattern` is sent to the server."""

    pattern: bytes
    loss: Loss
    times: int = 1
    has_happened: threading.Event = field(default_factory=threading.Event)

    def reach(self) -> NoReturn:
        if not self.times:
            self.has_happened.set()
        raise _CutReached


@dataclass
class Faults:
    """What all connections of a proxy suffer: withheld while not `thawed`, slowed, or the first cut.

    While not `answering`, only what the server says is withheld.

    Those of an earlier `generation` are dead, and nobody is told. One that sends `max_request_bytes` or more
    without an answer is reset, and one that is answered by `max_reply_bytes` or more.
    """

    thawed: asyncio.Event = field(default_factory=asyncio.Event)
    answering: asyncio.Event = field(default_factory=asyncio.Event)
    delay_seconds: float = 0
    cut: Cut | None = None
    generation: int = 0
    max_request_bytes: int | None = None
    max_reply_bytes: int | None = None

    def __post_init__(self) -> None:
        self.thawed.set()
        self.answering.set()


@dataclass(eq=False)
class Link:
    """A connection of a client and the one to the server that goes with it."""

    client: socket.socket
    server: socket.socket = field(default_factory=socket.socket)
    generation: int = 0  # when it was made
    cut: Cut | None = None  # one whose pattern was sent here: the next reply brings it about
    unanswered_bytes: int = 0
    reply_bytes: int = 0

    def __post_init__(self) -> None:
        for end in (self.client, self.server):
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)

    async def forward(self, target: tuple[str, int], faults: Faults) -> bool:
        """Forward both directions; True when both have ended, False when one side has reset, or by a cut."""
        loop = asyncio.get_running_loop()
        pumps: list[asyncio.Task[None]] = []
        try:
            await loop.sock_connect(self.server, target)
            for source, sink in ((self.client, self.server), (self.server, self.client)):
                pumps.append(loop.create_task(self._pump(source, sink, faults)))
            await asyncio.gather(*pumps)
            return True
        except (OSError, _CutReached):
            return False
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)  # no socket is closed under a pump

    async def _pump(self, source: socket.socket, sink: socket.socket, faults: Faults) -> None:
        loop = asyncio.get_running_loop()
        sent = b""
        while True:
            try:
                chunk = await loop.sock_recv(source, _CHUNK_BYTES)
            except OSError:
                await faults.thawed.wait()
                raise
            if chunk:
                await asyncio.sleep(faults.delay_seconds)
            await faults.thawed.wait()
            if source is self.server:
                await faults.answering.wait()
            if self.generation < faults.generation:
                await asyncio.Event().wait()
            if not chunk:
                sink.shutdown(socket.SHUT_WR)
                return
            if source is self.client:
                sent = self._look_for_cut(sent + chunk, faults)
                self.reply_bytes = 0
                self.unanswered_bytes += len(chunk)
                if self.unanswered_bytes >= (faults.max_request_bytes or math.inf):
                    raise _CutReached
            elif self.cut:
                self.cut.reach()
            else:
                self.unanswered_bytes = 0
                self.reply_bytes += len(chunk)
                if self.reply_bytes >= (faults.max_reply_bytes or math.inf):
                    raise _CutReached
            await loop.sock_sendall(sink, chunk)

    def _look_for_cut(self, sent: bytes, faults: Faults) -> bytes:
        """Act on the pattern in what was sent to the server; returns the end, where it may have begun."""
        cut = faults.cut
        if cut is None or cut.pattern not in sent:
            return sent[1 - len(cut.pattern) :] if cut and len(cut.pattern) > 1 else b""
        cut.times -= 1
        if not cut.times:
            faults.cut = None
        self.cut = cut
        if cut.loss == "request":
            cut.reach()
        if cut.loss == "nothing":  # it is only withheld
            self.cut = None
            faults.thawed.clear()
            cut.has_happened.set()
        return b""

    def close(self, is_orderly: bool) -> None:
        for end in (self.client, self.server):
            if not is_orderly:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            end.close()


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
