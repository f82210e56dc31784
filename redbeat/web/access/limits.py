"""How much one request may send, and how long it may take to do so.

Invariant: a body that is too large or too slow is given up before a page or a verb sees any of it; and
however many bodies arrive at once, no more than ``MAX_HELD_BYTES`` of them are in memory, and next to nothing
of those whose senders aren't known.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redbeat.web.access.refusals import refuse

#: the largest body, and how long it may take to arrive, also over a line of half a megabit a second
MAX_BODY_BYTES, MAX_BODY_SECONDS = 4 * 1024 * 1024, 90.0
#: likewise for somebody who isn't known and may only log in
MAX_BYTES_OF_STRANGERS, MAX_SECONDS_OF_STRANGERS = 16 * 1024, 10.0
#: how much of all bodies is in memory at a time, besides as much of each as a stranger may send
MAX_HELD_BYTES = 64 * 1024 * 1024
#: the longest address with its query
MAX_ADDRESS_BYTES = 16 * 1024
#: stands in the scope of a request whose body can't be read: its server doesn't know where it ends
UNKNOWN_LENGTH = "redbeat.unknown_length"


class LimitedAddresses:
    """Let only requests through to ``app`` whose address isn't too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        is_http = scope["type"] == "http"
        if is_http and len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_ADDRESS_BYTES:
            await _refuse(scope, "The address is too long.", 414)(scope, receive, send)
            return
        await self._app(scope, receive, send)


class _TooLarge(Exception):
    """A body is larger than it may be."""


class _TooMany(Exception):
    """All bodies together are."""


@dataclass
class _Body:
    """What has arrived of a body."""

    data: bytes = b""
    held: int = 0


class LimitedBodies:
    """Read the body of each request as a whole, and hand it to ``app`` if it is within the limits.

    It stands behind the gate, which tells who is known.
    """

    def __init__(self, app: ASGIApp, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, send)  # nobody reads a body of these
            return
        is_known = scope.get("redbeat.user") is not None
        max_bytes = self._max_bytes if is_known else min(self._max_bytes, MAX_BYTES_OF_STRANGERS)
        seconds = MAX_BODY_SECONDS if is_known else MAX_SECONDS_OF_STRANGERS
        body = _Body()
        try:
            try:
                if UNKNOWN_LENGTH in scope:
                    sentence = "The body must have a Content-Length here, a whole number of bytes."
                    await _refuse(scope, sentence, 411)(scope, receive, send)
                    return
                if _told_bytes(scope) > max_bytes:
                    raise _TooLarge
                await asyncio.wait_for(self._read(body, receive, max_bytes), seconds)
            except asyncio.TimeoutError:
                await _refuse(scope, "The body took too long to arrive.", 408)(scope, receive, send)
                return
            except _TooLarge:
                await _refuse(scope, f"The body is larger than {max_bytes} bytes.", 413)(scope, receive, send)
                return
            except _TooMany:
                sentence = "Too much is being sent at the moment. Try again in a few seconds."
                await _refuse(scope, sentence, 503)(scope, receive, send)
                return
            except ConnectionError:  # somebody may still read; and WSGI has no way of not answering
                await _refuse(scope, "The body has ended too soon.", 400)(scope, receive, send)
                return
            await self._app(scope, _receiving(body, receive), send)
        finally:
            self._held -= body.held

    async def _read(self, body: _Body, receive: Receive, max_bytes: int) -> None:
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ConnectionError
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > max_bytes:
                raise _TooLarge
            held = max(size - MAX_BYTES_OF_STRANGERS, 0)
            self._held += held - body.held
            body.held = held
            if self._held > MAX_HELD_BYTES:
                raise _TooMany
            if not message.get("more_body"):
                body.data = b"".join(parts)
                return


def _told_bytes(scope: Scope) -> int:
    """Return how large a body is by its own account; 0 where it doesn't say."""
    told = dict(scope["headers"]).get(b"content-length", b"")
    return int(told) if len(told) <= 20 and told.isdigit() else 0


def _receiving(body: _Body, receive: Receive) -> Receive:
    is_read = False

    async def receive_body() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body.data, "more_body": False}

    return receive_body


def _refuse(scope: Scope, sentence: str, status: int) -> ASGIApp:
    return refuse(scope, status, sentence, {"Connection": "close"})
