"""A client of beat's endpoint: one request on one connection, and what came of it."""

from __future__ import annotations

import http.client
import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .deadlines import patience


@dataclass(frozen=True)
class Answer:
    """What was answered; the headers' names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def fetch(place: int | Path, path: str, method: str = "GET", **headers: str) -> Answer:
    """Ask the endpoint at a port, or at a unix socket; OSError or HTTPException when it doesn't answer."""
    connection = http.client.HTTPConnection("127.0.0.1", place if isinstance(place, int) else 0)
    connection.sock = connect(place)
    try:
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())
    finally:
        connection.close()


def connect(place: int | Path) -> socket.socket:
    """A connection to it."""
    if isinstance(place, int):
        return socket.create_connection(("127.0.0.1", place), timeout=patience())
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(patience())
    client.connect(str(place))
    return client


def send(place: int | Path, data: bytes) -> bytes:
    """Everything that is answered to these bytes, until the connection is ended."""
    with connect(place) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65_536), b""))
