"""The connections that are open at the endpoint: few, each for some seconds only.

Invariant: a client that sends its request at once is answered, whatever the others do. When there are too
many, the oldest one that hasn't sent its request makes room; if all have, the oldest.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass


@dataclass(eq=False)
class Connection:
    """One client.

    Attributes:
        peer: the socket to it.
        ends_at: when its time is over, monotonic.
        has_asked: its request was read.
    """

    peer: socket.socket
    ends_at: float
    has_asked: bool = False


class Connections:
    """All of them.

    Arguments:
        limit: how many there may be.
        seconds: how long each may take, reading and writing.
        clock: a monotonic clock.
    """

    def __init__(self, limit: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._seconds = seconds
        self._clock = clock
        self._open: list[Connection] = []  # the oldest first
        self._changing = threading.Lock()

    def add(self, client: socket.socket) -> Connection:
        """Note a new client; make room for it if need be."""
        connection = Connection(client, self._clock() + self._seconds)
        with self._changing:
            if len(self._open) >= self._limit:
                waiting = (one for one in self._open if not one.has_asked)
                self._end(next(waiting, self._open[0]))
            self._open.append(connection)
        return connection

    def close(self, connection: Connection) -> None:
        """Close it: the exchange is over."""
        with self._changing:
            if connection in self._open:
                self._open.remove(connection)
            connection.peer.close()

    def end_overdue(self) -> None:
        """End those whose time is over."""
        now = self._clock()
        with self._changing:
            while self._open and self._open[0].ends_at <= now:
                self._end(self._open[0])

    def _end(self, connection: Connection) -> None:
        """Let what its thread reads or writes fail; that thread closes it."""
        self._open.remove(connection)
        with suppress(OSError):  # the client has gone
            connection.peer.shutdown(socket.SHUT_RDWR)
