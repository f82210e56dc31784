"""Who makes room when too many are connected."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from redbeat.telemetry.endpoint.connections import Connection, Connections


class Clients:
    """The far ends of connections, by the order in which they came."""

    def __init__(self, connections: Connections, at_end: ExitStack) -> None:
        self._connections, self._at_end = connections, at_end
        self.ends: list[socket.socket] = []

    def connect(self) -> Connection:
        near, far = map(self._at_end.enter_context, socket.socketpair())
        far.setblocking(False)
        self.ends.append(far)
        return self._connections.add(near)

    def ended(self) -> list[int]:
        """Which of them were ended."""
        found = []
        for index, end in enumerate(self.ends):
            try:
                end.recv(1)
                found.append(index)
            except BlockingIOError:
                pass
        return found


@pytest.fixture
def at_end() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_oldest_that_has_not_asked_makes_room_and_then_the_oldest(at_end: ExitStack) -> None:
    clients = Clients(Connections(limit=3, seconds=10), at_end)
    made = [clients.connect() for _ in range(3)]
    made[0].has_asked = True
    assert clients.ended() == []
    clients.connect().has_asked = True
    assert clients.ended() == [1]
    made[2].has_asked = True
    clients.connect()
    assert clients.ended() == [0, 1]
    clients.connect()
    assert clients.ended() == [0, 1, 4]


def test_one_that_is_closed_makes_room_for_another(at_end: ExitStack) -> None:
    connections = Connections(limit=1, seconds=10)
    clients = Clients(connections, at_end)
    for _ in range(3):
        made = clients.connect()
        connections.close(made)
        connections.close(made)
        assert made.peer.fileno() == -1


def test_the_time_of_each_counts_from_its_own_beginning(at_end: ExitStack) -> None:
    now = 0.0
    connections = Connections(limit=9, seconds=10, clock=lambda: now)
    clients = Clients(connections, at_end)
    clients.connect()
    now = 5.0
    clients.connect()
    now = 10.0
    connections.end_overdue()
    assert clients.ended() == [0]
    now = 15.0
    connections.end_overdue()
    assert clients.ended() == [0, 1]
