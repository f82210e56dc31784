"""Errors of the REST interface, as problem documents (RFC 9457)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from redbeat.entries.forms import placed
from redbeat.errors import (
    AccessDenied,
    CalendarError,
    CallRefused,
    EntryBusy,
    EntryChanged,
    EntryError,
    FileError,
    RunNotSent,
)
from redbeat.keys import Keys
from redbeat.web.api.addresses import BadAddress
from redbeat.web.api.operations import PROBLEM, etag_of
from redbeat.web.routes import RETRY_AFTER_SECONDS, sentence_of, status_of

#: what errors of files call options, which are parameters and fields here
OPTION = re.compile(r"--(owner|take-over|replace)\b")


class Refusal(Exception):
    """A request that can't be carried out as it is; nothing was changed.

    Attributes:
        status: the status code.
        detail: why, a sentence.
        headers: of the answer.
        members: what else a program may want to know.
    """

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, **members: object
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = headers
        self.members = members


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
    response = Response(json.dumps(document), status, headers, PROBLEM)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        response.headers["Retry-After"] = RETRY_AFTER_SECONDS
    return response


def problem_of(exc: Exception, keys: Keys, place: Mapping[str, str]) -> Response:
    """Return the problem document of an error.

    Arguments:
        keys: of the schedule, from which the name of an entry is known.
        place: what stands in the braces of the path.
    """
    if isinstance(exc, Refusal):
        return problem(exc.status, exc.detail, exc.headers, **exc.members)
    if isinstance(exc, BadAddress):
        return problem(400, str(exc))
    sentence = sentence_of(exc)
    if isinstance(exc, FileError):  # what is an option of the command line is a parameter here
        sentence = OPTION.sub(lambda found: found[1].replace("-", "_"), sentence)
    headers = exc.headers if isinstance(exc, HTTPException) else None
    if isinstance(exc, EntryChanged) and exc.revision is not None:
        headers = {"ETag": etag_of(exc.revision)}
    return problem(status_of(exc), sentence, headers, **_members_of(exc, keys, place))


def _members_of(exc: Exception, keys: Keys, place: Mapping[str, str]) -> dict[str, object]:
    if isinstance(exc, AccessDenied):
        return {"right": exc.right, "field": exc.field}
    if isinstance(exc, CalendarError):
        return {"calendar": exc.name}
    if isinstance(exc, FileError):
        return {"line": exc.line}
    if isinstance(exc, RunNotSent):
        return {"entry": exc.name, "field": "args" if isinstance(exc, CallRefused) else None}
    if isinstance(exc, EntryError):
        name = keys.name(exc.key) if keys.owns(exc.key) else exc.key or place.get("name", "")
        busy = exc.task_id if isinstance(exc, EntryBusy) else None
        is_state = isinstance(exc, (EntryChanged, EntryBusy))
        field = None if is_state else placed(str(exc), exc.key)[0] or None
        field = next(filter(None, exc.problems), field)
        return {"entry": name or None, "task_id": busy, "field": field, "errors": exc.problems or None}
    return {}


def refuse(_request: Request, exc: Exception | None) -> Response:
    """Return the answer to a request that reaches no operation; None: its user is unknown."""
    if isinstance(exc, HTTPException) and exc.status_code == 404:
        return problem(
            404,
            "Not found. See openapi.json for the available endpoints. A name with a slash is written "
            "as = and the base64url of its UTF-8.",
        )
    if exc is not None:
        headers = exc.headers if isinstance(exc, HTTPException) else None
        return problem(status_of(exc), sentence_of(exc), headers)
    return problem(
        401,
        "This takes a token: 'Authorization: Bearer TOKEN', which celery redbeat token add makes.",
        {"WWW-Authenticate": 'Bearer realm="RedBeat"'},
    )
