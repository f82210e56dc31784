"""The OpenAPI document of the interface, made from the table of its operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from redbeat.access import Right
from redbeat.web.api.operations import HEADERS, JSON, PROBLEM, Answer, Body, Call, Operation
from redbeat.web.api.parameters import Field
from redbeat.web.api.schemas import components, of

#: what any operation may answer besides, and when
_PROBLEMS = {
    400: "The path, the query, a header or the JSON of the body can't be understood.",
    401: "There is no token, or it has expired or was revoked.",
    403: "The token doesn't have the right, or the task isn't one of redbeat_web_tasks.",
    404: "There is no such thing.",
    405: "The path takes other methods.",
    408: "The body took too long to arrive.",
    409: "Another run, or another request, is in the way; try again later.",
    411: "The body has no Content-Length, and the server can't read it then.",
    412: "It isn't as it was seen.",
    413: "The body is too large.",
    414: "The path and the query are too long.",
    415: "The body has another media type.",
    422: "A value isn't allowed.",
    431: "The head of the request is too large.",
    500: "A setting can't be used, or there is a defect; the log says more.",
    503: "Redis or the broker can't be reached, or there are too many requests.",
}
#: the headers of answers, and which of them problems have
_ANSWERED = {
    "Accept": "The media types of bodies that are taken, of others than PATCH.",
    "Accept-Patch": "The media types of bodies that PATCH takes.",
    "Allow": "The methods that there are.",
    "ETag": "Tells this version from others; goes back as If-Match.",
    "Location": "The path of what was made.",
    "Retry-After": "When to try again, in seconds.",
    "WWW-Authenticate": "What is to be shown: a bearer token.",
}
_OF_PROBLEMS = {
    401: ("WWW-Authenticate",),
    405: ("Allow",),
    412: ("ETag",),
    415: ("Accept", "Accept-Patch"),
    503: ("Retry-After",),
}
_ADDRESS = (
    "A name, percent-encoded. One that is empty, '.' or '..', begins with '=', or has a slash, a backslash, "
    "a percent sign or a character that doesn't print, is written as '=' and the base64url of its UTF-8. "
    "Answers have it in `href`."
)
_PLACES = {"name": _ADDRESS, "task_id": "The task id of a run, or of a stored message."}


def document_operation(call: Callable[[Call], Answer]) -> Operation:
    """Return the operation that answers the document."""
    return Operation(
        *("GET", "/openapi.json", "", Right.READ, "This document.", call), {200: {"type": "object"}}
    )


def document_of(operations: Sequence[Operation], root: str) -> dict[str, Any]:
    """Return the document.

    Arguments:
        root: the path of the interface.
    """
    derived = {name: schema for one in operations for name, schema in one.components.items()}
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "RedBeat",
            "version": _version(),
            "description": "See and change the schedule of a Celery beat. A token of `celery redbeat token "
            "add` goes with each request; an operation takes the right that it names in `x-right`.",
        },
        "servers": [{"url": root or "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": {**components(), **derived},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                str(status): {
                    "description": words,
                    "headers": _answered(_OF_PROBLEMS.get(status, ())),
                    "content": {PROBLEM: {"schema": of("Problem")}},
                }
                for status, words in _PROBLEMS.items()
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.about,
        "x-right": operation.right.value,
        "x-command": operation.verb,
        "parameters": [
            *(_place(name) for name in re.findall(r"{(\w+)}", operation.path)),
            *(_parameter(field) for field in operation.query),
            *(_header(name) for name in operation.headers),
        ],
        "responses": {
            **{
                str(status): _answer(operation, status, schema)
                for status, schema in operation.answers.items()
            },
            **{
                str(status): {"$ref": f"#/components/responses/{status}"}
                for status in _problems_of(operation)
            },
        },
    }
    if operation.body is not None:
        made["requestBody"] = _body(operation.body)
    return made


def _problems_of(operation: Operation) -> list[int]:
    left = set[int]()
    if "{" not in operation.path:
        left.add(404)
    if operation.body is None:
        left |= {408, 411, 413, 415}
    if operation.method == "GET":
        left |= {409, 412}
    return [status for status in _PROBLEMS if status not in left]


def _place(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1}
    return {"name": name, "in": "path", "required": True, "description": _PLACES[name], "schema": schema}


def _parameter(field: Field) -> dict[str, Any]:
    is_list = field.schema.get("type") == "array"
    return {
        "name": field.name,
        "in": "query",
        "required": field.is_needed,
        "description": field.about,
        "schema": field.schema,
        **({"style": "form", "explode": False} if is_list else {}),
    }


def _header(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "in": "header",
        "required": False,
        "description": HEADERS[name],
        "schema": {"type": "string"},
    }


def _body(body: Body) -> dict[str, Any]:
    if body.is_file:
        content: dict[str, Any] = {
            media: {"schema": {"type": "object"} if media == JSON else {"type": "string"}}
            for media in body.media
        }
    else:
        schema = of(body.component) if body.component else _members(body)
        content = {media: {"schema": schema} for media in body.media}
    return {"required": body.is_needed, "content": content}


def _members(body: Body) -> dict[str, Any]:
    one_of = [{"required": [name]} for name in body.exactly_one]
    return {
        "type": "object",
        "properties": {field.name: {**field.schema, "description": field.about} for field in body.fields},
        "required": [field.name for field in body.fields if field.is_needed],
        "additionalProperties": False,
        **({"oneOf": one_of} if one_of else {}),
    }


def _answer(operation: Operation, status: int, schema: Any) -> dict[str, Any]:
    content: dict[str, Any] = {JSON: {"schema": schema}}
    if any(field.name == "format" for field in operation.query):
        content["application/yaml"] = {"schema": {"type": "string"}}
    names = [
        name for name, is_there in (("ETag", operation.has_etag), ("Location", status == 201)) if is_there
    ]
    return {"description": HTTPStatus(status).phrase, "headers": _answered(names), "content": content}


def _answered(names: Iterable[str]) -> dict[str, Any]:
    return {name: {"description": _ANSWERED[name], "schema": {"type": "string"}} for name in names}


def _version() -> str:
    try:
        return version("celery-redbeat")
    except PackageNotFoundError:  # its folder was copied
        return "unknown"
