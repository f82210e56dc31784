"""The OpenAPI document of the interface, made from the table of its operations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from redbeat.web.api.operations import HEADERS, JSON, PROBLEM, Body, Operation
from redbeat.web.api.parameters import Field
from redbeat.web.api.schemas import components, of

#: the headers of answers that aren't errors
_ANSWERED = {
    "ETag": "Tells this version from others; goes back as If-Match.",
    "Location": "The path of what was made.",
}
_ADDRESS = (
    "A name, percent-encoded. One that is empty, '.' or '..', begins with '=', or has a slash, a backslash, "
    "a percent sign or a character that doesn't print, is written as '=' and the base64url of its UTF-8. "
    "Answers have it in `href`."
)
_PLACES = {"name": _ADDRESS, "task_id": "The task id of a run, or of a stored message."}


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
                "Problem": {
                    "description": "An error, with the status code of the answer.",
                    "content": {PROBLEM: {"schema": of("Problem")}},
                }
            },
        },
    }


def _operation(operation: Operation) -> dict[str, Any]:
    made: dict[str, Any] = {
        "operationId": operation.call.__name__,
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
            "default": {"$ref": "#/components/responses/Problem"},
        },
    }
    if operation.body is not None:
        made["requestBody"] = _body(operation.body)
    return made


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
    names = (["ETag"] if operation.has_etag else []) + (["Location"] if status == 201 else [])
    headers = {name: {"description": _ANSWERED[name], "schema": {"type": "string"}} for name in names}
    return {"description": HTTPStatus(status).phrase, "headers": headers, "content": content}


def _version() -> str:
    try:
        return version("celery-redbeat")
    except PackageNotFoundError:  # its folder was copied
        return "unknown"
