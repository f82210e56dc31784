"""The connections of ``celery redbeat web``: how many there are, and how much and how long one may take.

Invariant: a client that is slow, silent or no client of HTTP at all takes no more than these bounds.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from redbeat.web.access.headers import HEADERS, SafeHeaders
from redbeat.web.access.refusals import refuse

#: how many connections are held at a time
MAX_CONNECTIONS = 1000
#: how long the head of a request may take to arrive
HEAD_SECONDS = 10.0
#: how long the reader of an answer may stand still; a slow line may take a while to empty a full buffer
READ_SECONDS = 120.0
#: the largest head of a request
MAX_HEADER_BYTES = 32 * 1024

CLOSE = {"Connection": "close"}


class LimitedHeads:
    """Refuse requests whose head is too large, or tells twice where the body ends.

    uvicorn limits what it keeps of a head that isn't whole, and not one that comes at once.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        names = {name for name, _ in scope["headers"]}
        size = len(scope["raw_path"]) + len(scope["query_string"])
        size += sum(len(name) + len(value) for name, value in scope["headers"])
        answer: ASGIApp = self._app
        if size > MAX_HEADER_BYTES:
            answer = refuse(scope, 431, "The head of the request is too large.", CLOSE)
        elif {b"content-length", b"transfer-encoding"} <= names:  # a proxy in front may have cut elsewhere
            sentence = "The request has both a Content-Length and a Transfer-Encoding."
            answer = refuse(scope, 400, sentence, CLOSE)
        await answer(scope, receive, send)


async def _refuse_connection(scope: Scope, receive: Receive, send: Send) -> None:
    sentence = "There are too many connections at the moment. Try again in a few seconds."
    await refuse(scope, 503, sentence, CLOSE)(scope, receive, send)


class Connection(H11Protocol):
    """A connection that is given up if a head doesn't come in time, or if nobody reads what it answers.

    A head has HEAD_SECONDS from its first byte on, and so has the first byte of all. Between an answer and
    the next head it is uvicorn that waits.
    """

    def connection_made(self, transport: Any) -> None:
        """Begin to wait."""
        super().connection_made(transport)
        self._reading: asyncio.TimerHandle | None = None
        self._waiting: asyncio.TimerHandle | None = None
        if len(self.connections) > MAX_CONNECTIONS:
            self.logger.warning("There are more than %s connections.", MAX_CONNECTIONS)
            self.app = SafeHeaders(_refuse_connection)
        self._look_for_head()

    def data_received(self, data: bytes) -> None:
        """Take what has come, which is perhaps a part of a head."""
        super().data_received(data)
        self._look_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._wait_no_more()
        self.resume_writing()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, with the headers that every answer has."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            headers = [*HEADERS, ("Content-Type", "text/plain; charset=utf-8"), *CLOSE.items()]
            head = ["HTTP/1.1 400 Bad Request", *(f"{name}: {value}" for name, value in headers)]
            self.transport.write("\r\n".join([*head, "", f"{msg}\n"]).encode())
        self.transport.close()

    def pause_writing(self) -> None:
        """Begin to look whether what is to be sent grows less."""
        super().pause_writing()
        if self._reading is None:
            self._look_again(None)

    def resume_writing(self) -> None:
        """Look no more."""
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _look_again(self, before: int | None) -> None:
        left = self.transport.get_write_buffer_size()
        if before is not None and left >= before:
            self.transport.abort()
        else:
            self._reading = self.loop.call_later(READ_SECONDS, self._look_again, left)

    def _look_for_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _give_up(self) -> None:
        self.transport.close()  # once what is left was read
        self._waiting = self.loop.call_later(READ_SECONDS, self.transport.abort)
