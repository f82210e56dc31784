"""The table of the REST interface, and how a request becomes a call of one of its operations.

Invariant: an operation is called only by a user who has its right, with values that its table allows; and
whatever goes wrong, the answer is a problem document.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from math import isfinite
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from redbeat.config.config import ensure_conf
from redbeat.errors import ArgumentInvalid
from redbeat.log.text import as_stored
from redbeat.operations.actor import Actor
from redbeat.operations.hiding import MAX_DEPTH, MAX_VALUES
from redbeat.operations.table import OPERATIONS as TABLE
from redbeat.schedules.times import TypedTime
from redbeat.web.api.addresses import check_slashes, name_of, segment_of
from redbeat.web.api.derived import endpoint_of
from redbeat.web.api.openapi import document_of
from redbeat.web.api.operations import HEADERS, JSON, Answer, Call, Operation
from redbeat.web.api.parameters import read_members, read_query
from redbeat.web.api.problems import Refusal, problem_of, refuse
from redbeat.web.paths import root_of

OPERATIONS: Sequence[Operation] = [endpoint_of(one) for one in TABLE if one.rest]

#: the commands of the command line that aren't here, and why
NOT_HERE: Mapping[str, str] = {
    "token": "a token can't make more tokens; the command line makes and revokes them",
    "web": "it starts this interface",
    "monitoring": "it is a folder of files",
    "downgrade": "it is done once, before beats of celery-redbeat 2.x take over",
    "reshard": "it takes long, and goes with a change of the settings of all programs",
    "singleton": "it runs a command on the machine that calls it",
    "later release": "it is done once, before another scheduler takes over",
}


class Resource:
    """What is below one path: an ASGI application.

    Arguments:
        operations: by the methods that the path takes.
    """

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self._operations = operations

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request = Request(scope, receive)
        dashboard = scope["redbeat.dashboard"]
        place: dict[str, str] = {}
        try:
            check_slashes(scope)
            place |= {name: name_of(segment) for name, segment in request.path_params.items()}
            operation = self._operation_for(request.method)
            scope["redbeat.user"].require(operation.right)
            body = b"" if operation.body is None else await request.body()
            response: Response = await dashboard.run(_answer, request, operation, place, body)
        except Exception as exc:  # noqa: BLE001 - whatever it is, the caller gets a problem document
            response = problem_of(exc, ensure_conf(dashboard.app).keys, place)
        if request.method == "HEAD":
            response.body = b""
        await response(scope, receive, send)

    def _operation_for(self, method: str) -> Operation:
        found = self._operations.get("GET" if method == "HEAD" else method)
        if found is None:
            allowed = ", ".join(sorted({*self._operations, *(["HEAD"] if "GET" in self._operations else [])}))
            raise Refusal(405, f"This takes {allowed}.", {"Allow": allowed})
        return found


def _answer(request: Request, operation: Operation, place: Mapping[str, str], body: bytes) -> Response:
    with request.scope["redbeat.dashboard"].alone() if operation.is_heavy else nullcontext():
        return _carry_out(request, operation, place, body)


async def _describe(request: Request) -> Response:
    return JSONResponse(document_of(OPERATIONS, root_of(request.scope)))


def interface() -> Starlette:
    """Return the REST interface, to be mounted below its path."""
    methods: dict[str, dict[str, Operation]] = {}
    for one in OPERATIONS:
        methods.setdefault(one.path, {})[one.method] = one
    resources = [Route(path, Resource(found)) for path, found in methods.items()]
    made = Starlette(
        routes=[*resources, Route("/openapi.json", _describe)], exception_handlers={HTTPException: refuse}
    )
    made.router.redirect_slashes = False
    return made


def _carry_out(request: Request, operation: Operation, place: Mapping[str, str], body: bytes) -> Response:
    dashboard = request.scope["redbeat.dashboard"]
    query: dict[str, Any] | None = None
    try:
        query = read_query(operation.query, request.query_params.multi_items())
        given = _body_of(request, operation, body)
        headers = dict.fromkeys(HEADERS, "")
        for name in HEADERS:
            if name in operation.headers:
                headers[name] = ", ".join(request.headers.getlist(name))
            elif name in request.headers and operation.method != "GET":
                raise Refusal(400, f"{name} has no meaning here.")  # its sender relies on it
        address = request.client.host if request.client else ""
        actor = Actor(dashboard.app, request.scope["redbeat.user"], "api", address, dashboard.app.timezone)
        path = re.sub(r"{(\w+)}", lambda found: segment_of(place[found[1]]), operation.path)
        call = Call(
            *(actor, place, _with_times(actor, query), _with_times(actor, given)),
            *(headers, root_of(request.scope), path),
        )
        return _rendered(operation.call(call))
    except ArgumentInvalid as exc:
        is_in_query = query is None or exc.field in query
        raise Refusal(400 if is_in_query else 422, str(exc), field=exc.field) from exc


def _with_times(actor: Actor, values: Any) -> Any:
    """Return values with typed times read by the server's clock, in the app's time zone."""
    if not isinstance(values, dict):
        return values
    return {
        name: actor.time(value) if isinstance(value, TypedTime) else value for name, value in values.items()
    }


def _rendered(answer: Answer) -> Response:
    if answer.media:
        text = str(answer.document).encode("utf-8", "surrogateescape")
        return Response(text, answer.status, answer.headers, answer.media)
    # a name that isn't UTF-8 goes through as an escape
    try:
        text = json.dumps(answer.document, allow_nan=False, default=_iso).encode()
    except ValueError:  # a stored number that JSON doesn't have
        text = json.dumps(_finite(answer.document), default=_iso).encode()
    return Response(text, answer.status, answer.headers, JSON)


def _iso(value: Any) -> str:
    return str(value.isoformat())


def _finite(value: Any) -> Any:
    """Return ``value`` with null for each number that JSON doesn't have."""
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, list):
        return [*map(_finite, value)]
    return None if isinstance(value, float) and not isfinite(value) else value


# -- bodies


def _body_of(request: Request, operation: Operation, data: bytes) -> Any:
    """Return the values of a request's body."""
    wanted = operation.body
    if wanted is None:
        return None
    given, _, parameters = request.headers.get("content-type", "").partition(";")
    media = given.strip().lower()
    if not data and not wanted.is_needed:
        return read_members(wanted.fields, {})
    if request.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise Refusal(415, "The body must not be compressed.", {"Accept-Encoding": "identity"})
    if media not in wanted.media or parameters.replace(" ", "").lower() not in ("", "charset=utf-8"):
        header = "Accept-Patch" if request.method == "PATCH" else "Accept"
        types = ", ".join(wanted.media)
        raise Refusal(415, f"The Content-Type must be one of {types}, in UTF-8.", {header: types})
    if wanted.is_file:
        return data
    value = _read_json(data)
    if not isinstance(value, dict):
        raise Refusal(422, "The body must be a JSON object.")
    if wanted.component:
        return value
    return read_members(wanted.fields, value)


def _read_json(data: bytes) -> Any:
    """Return the value of a JSON text; stricter than Python's reader.

    Raises:
        Refusal: it isn't JSON, has a name twice, NaN or Infinity, or is nested too deeply.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_unique)
    except RecursionError:
        raise Refusal(400, f"The body is nested more than {MAX_DEPTH} deep.") from None
    except ValueError as exc:  # UnicodeDecodeError, and numbers of thousands of digits, too
        raise Refusal(400, f"The body is no JSON: {exc}.") from None
    _check(value)
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} isn't allowed")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("an object has a name twice")
    return made


def _check(value: Any) -> None:
    """Refuse what is nested too deeply or has too many values, and text that no key of Redis can have."""
    level, count = [value], 0
    for _ in range(MAX_DEPTH):
        inside: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inside += [*one, *one.values()]
            elif isinstance(one, list):
                inside += one
            elif isinstance(one, str) and not one.isascii():
                try:
                    as_stored(one)
                except UnicodeEncodeError:
                    raise Refusal(400, "The body has text that isn't Unicode.") from None
            elif isinstance(one, float) and not isfinite(one):
                raise Refusal(400, "The body has a number that is too large.")
        if not inside:
            return
        count += len(inside)
        if count > MAX_VALUES:
            raise Refusal(422, f"The body has more than {MAX_VALUES:,} values.")
        level = inside
    raise Refusal(400, f"The body is nested more than {MAX_DEPTH} deep.")
