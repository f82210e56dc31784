"""How a request is refused before anybody has looked at it: in a sentence, or for programs in a document.

Invariant: below ``/api/`` every refusal is a problem document (RFC 9457).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import PlainTextResponse, Response
from starlette.types import Message, Scope, Send

from redbeat.web.paths import is_api

PROBLEM = "application/problem+json"
#: when to try again if Redis is away, or if there is too much to do
RETRY_AFTER_SECONDS = "5"


class Sending:
    """Sends an answer on, and knows whether it has begun: then it's too late for a refusal in its place."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        self.has_begun = True
        await self._send(message)


def refuse(scope: Scope, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the answer that refuses a request."""
    if is_api(scope):
        return problem(status, sentence, headers)
    return _saying_when(PlainTextResponse(sentence + "\n", status, headers))


def problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None, **members: object
) -> Response:
    """Return a problem document.

    Arguments:
        detail: a sentence that the caller can act on.
        members: what else a program may want to know; None is left out.
    """
    document = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    document.update({name: value for name, value in members.items() if value is not None})
    # a name that isn't UTF-8 goes through as an escape
    return _saying_when(Response(json.dumps(document), status, headers, PROBLEM))


def _saying_when(answer: Response) -> Response:
    """Return ``answer``, with when to try again if that may help."""
    if answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE:
        answer.headers["Retry-After"] = RETRY_AFTER_SECONDS
    return answer
