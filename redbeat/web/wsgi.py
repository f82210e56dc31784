"""The dashboard for WSGI: what its adapter to ASGI takes for granted, and what WSGI forbids.

Invariant: whatever a client sends, or stops to send, the request is answered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from functools import cache
from string import printable
from threading import Lock
from typing import Any
from urllib.parse import quote

from a2wsgi import ASGIMiddleware
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: marks a body whose end the server doesn't know
_UNKNOWN_LENGTH = "redbeat.unknown_length"
#: of a body, in bytes
_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)

WSGIApp = Callable[[dict[str, Any], Any], Iterable[bytes]]


def adapted(app: ASGIApp) -> WSGIApp:
    """Return ``app`` as a WSGI application; each process starts an event loop with its first request."""
    lock = Lock()

    @cache
    def adapter_in(_process: int) -> Any:
        return ASGIMiddleware(_of_wsgi(app))  # type: ignore[arg-type]

    def serve(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with lock:
            adapter = adapter_in(os.getpid())
        answer = adapter(_readable(environ), start_response)
        try:
            for part in answer:  # noqa: UP028 - who ends this early doesn't end the answer
                yield part
        finally:
            for _ in answer:  # what nobody reads any more is made to its end: the event loop waits for that
                pass

    return serve


def _of_wsgi(app: ASGIApp) -> ASGIApp:
    """Take from the WSGI environment what its adapter leaves out: the client's address without a port, and
    whether the body's length is known; and leave out of answers what WSGI forbids."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        environ = scope["wsgi_environ"]
        address = environ.get("REMOTE_ADDR") or ""

        async def receive_body() -> Message:
            if _UNKNOWN_LENGTH in environ:
                raise HTTPException(411, "The body must have a Content-Length here, a whole number of bytes.")
            message = await receive()
            # a body that has ended too soon: the adapter would say for ever that there is more of it
            is_cut_off = message.get("more_body") and not message["body"]
            return {"type": "http.disconnect"} if is_cut_off else message

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":  # connections are the server's own matter
                headers = [one for one in message["headers"] if one[0].lower() != b"connection"]
                message = {**message, "headers": headers}
            await send(message)

        await app({**scope, "client": (address, 0) if address else None}, receive_body, send_head)

    return application


class _Input:
    """The body of a request of WSGI, which just ends where its connection is lost: the adapter would leave
    the request unanswered for ever."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def read(self, size: int) -> bytes:
        """Return the next bytes, at most so many; none at the end."""
        try:
            data: bytes = self._inner.read(size)
        except OSError:
            return b""
        return data


def _readable(environ: dict[str, Any]) -> dict[str, Any]:
    """Return a WSGI environment that its adapter can read: it takes UTF-8 and whole numbers for granted."""
    made = {**environ, "wsgi.input": _Input(environ["wsgi.input"])}
    for name in ("SCRIPT_NAME", "PATH_INFO"):
        path = environ.get(name, "").encode("latin-1", "replace").decode("utf-8", "replace")
        made[name] = path.encode().decode("latin-1")
    made["QUERY_STRING"] = quote(environ.get("QUERY_STRING", ""), safe=printable, encoding="latin-1")
    if "HTTP_TRANSFER_ENCODING" in environ or not _LENGTH.fullmatch(environ.get("CONTENT_LENGTH") or "0"):
        made.update({"CONTENT_LENGTH": "0", _UNKNOWN_LENGTH: True})
    return made
