"""A client of beat's endpoint: one request on one connection."""

from __future__ import annotations

import http.client
import json
import socket
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .deadlines import patience


@dataclass(frozen=True)
class Answer:
    """An answer; the names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def fetch(place: int | Path, path: str, method: str = "GET", **headers: str) -> Answer:
    """Ask the endpoint at a port or at a unix socket; OSError or HTTPException if it does not answer."""
    with closing(http.client.HTTPConnection("127.0.0.1")) as connection:
        connection.sock = connect(place)
        connection.request(method, path, headers=headers)
        response = connection.getresponse()
        found = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, found, response.read())


def connect(place: int | Path) -> socket.socket:
    client = socket.socket(socket.AF_INET if isinstance(place, int) else socket.AF_UNIX)
    client.settimeout(patience())
    client.connect(("127.0.0.1", place) if isinstance(place, int) else str(place))
    return client


def send(place: int | Path, data: bytes) -> bytes:
    """Return all that is answered to these bytes until the connection ends."""
    with connect(place) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: client.recv(65_536), b""))
