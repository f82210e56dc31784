"""A connection through the proxy of the tests: what is forwarded, and the faults that befall it on the way.

Invariant: each direction is forwarded in the order read, one chunk at a time, so that a fault meets the bytes
that come after it began. Everything here runs in the event loop of the proxy.
"""

from __future__ import annotations

import asyncio
import math
import socket
import struct
import threading
from dataclasses import dataclass, field
from typing import Literal, NoReturn

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
