"""One exchange of HTTP on one connection: the head of a request is read, and an answer written.

Owns as much of the protocol as is needed to serve some pages: GET and HEAD, one request a connection, no
bodies. Invariant: whatever a client sends, no more than MAX_HEAD_BYTES of it is kept, and it gets a page that
it was asked for by its exact path, or an error of one sentence. How long a client may take is its caller's
matter (``connections``).
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus

#: how much of a request is read: its line and its headers
MAX_HEAD_BYTES = 8192

#: how long it is waited before more is read of a request that hasn't come as a whole: one that comes byte by
#: byte takes no more of the processor than others
PAUSE_SECONDS = 0.05

#: what a client has sent besides is read and dropped for so long, and so often: if a connection is closed
#: with something unread, the client may lose the answer
LINGER_SECONDS, LINGER_READS = 1.0, 20

_CHUNK_BYTES, _LINGER_BYTES = 4096, 65_536
#: a request's line, and how one may begin
_LINE = re.compile(rb"([A-Z-]{1,20}) ([!-~]+) HTTP/([0-9])\.[0-9]")
_BEGINNING = re.compile(rb"[A-Z-]{0,20}(?: [!-~]*(?: [!-~]*)?)?\r?")
_END = re.compile(rb"\r?\n\r?\n")
_NAME = re.compile(rb"[!#-'*+.^-z|~0-9A-Z-]+")


@dataclass(frozen=True)
class Request:
    """What was asked: the path without its query, and the headers by their lower-case names."""

    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True)
class Response:
    """An answer.

    Attributes:
        headers: others than those of every answer.
    """

    status: HTTPStatus
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


Page = Callable[[Request], Response]


class RequestRefused(Exception):
    """A request that isn't answered by a page.

    Attributes:
        response: what it gets instead.
    """

    def __init__(self, status: HTTPStatus, sentence: str, **headers: str) -> None:
        super().__init__(sentence)
        self.response = text_response(status, sentence, **headers)


def text_response(status: HTTPStatus, sentence: str, **headers: str) -> Response:
    """Return ``sentence`` as an answer."""
    return Response(status, "text/plain; charset=utf-8", f"{sentence}\n".encode(), headers)


def read_head(client: socket.socket) -> bytes:
    """Return the head of a request without the empty line at its end.

    Raises:
        RequestRefused: it is too long, or is no request.
        OSError: the client has gone, or takes too long.
    """
    head, received, is_line_read = b"", 0, False
    while True:
        data = client.recv(_CHUNK_BYTES)
        if not data:
            raise ConnectionError("the client has gone")
        received += len(data)
        head = head + data if is_line_read else (head + data).lstrip(b"\r\n")
        line, end, _ = head.partition(b"\n")
        if not is_line_read:
            is_well_formed = _LINE.fullmatch(line.removesuffix(b"\r")) if end else _BEGINNING.fullmatch(line)
            if not is_well_formed:
                raise RequestRefused(HTTPStatus.BAD_REQUEST, "This is no request of HTTP/1.1.")
            is_line_read = bool(end)
        found = _END.search(head)
        if (found.start() if found else received) > MAX_HEAD_BYTES:
            sentence = "The request's head is too long."
            raise RequestRefused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, sentence)
        if found:
            return head[: found.start()]
        time.sleep(PAUSE_SECONDS)


def respond(head: bytes, pages: Mapping[str, Page]) -> tuple[Response, bool]:
    """Return the answer to a request, and whether its body is to be written: HEAD wants none."""
    line, *lines = re.split(rb"\r?\n", head)
    found = _LINE.fullmatch(line)
    assert found is not None  # noqa: S101 - read_head has checked it
    method, target, version = found[1].decode(), found[2].decode(), int(found[3])
    try:
        if version != 1:
            raise RequestRefused(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Only HTTP/1 is spoken here.")
        headers = _read_headers(lines)
        path = target.partition("?")[0]
        page = pages.get(path)
        if page is None:
            sentence = f"There is no such page here, only {', '.join(pages)}."
            raise RequestRefused(HTTPStatus.NOT_FOUND, sentence)
        if method not in ("GET", "HEAD"):
            sentence = "Only GET and HEAD are answered."
            raise RequestRefused(HTTPStatus.METHOD_NOT_ALLOWED, sentence, Allow="GET, HEAD")
        return page(Request(path, headers)), method == "GET"
    except RequestRefused as exc:
        return exc.response, method != "HEAD"


def _read_headers(lines: list[bytes]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        before, colon, after = line.partition(b":")
        if not colon or not _NAME.fullmatch(before):
            raise RequestRefused(HTTPStatus.BAD_REQUEST, "The request has a line that is no header.")
        # not by one expression: with many spaces it would take as long as a thousand requests
        name, value = before.decode().lower(), after.strip(b" \t").decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def write(client: socket.socket, response: Response, *, has_body: bool = True) -> None:
    """Write an answer, and end the connection's side of ours.

    Raises:
        OSError: the client has gone, or takes too long.
    """
    headers = {
        "Date": formatdate(usegmt=True),
        "Content-Type": response.content_type,
        "Content-Length": str(len(response.body)),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Connection": "close",
        **response.headers,
    }
    lines = [f"HTTP/1.1 {response.status.value} {response.status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    client.sendall("\r\n".join([*lines, "", ""]).encode("latin-1") + (response.body if has_body else b""))
    client.shutdown(socket.SHUT_WR)
    client.settimeout(LINGER_SECONDS)
    for _ in range(LINGER_READS):
        if not client.recv(_LINGER_BYTES):
            break
        time.sleep(PAUSE_SECONDS)
