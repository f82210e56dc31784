"""A program that uses the REST interface, and holds each answer against the interface's own description."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from celery import Celery
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from redbeat.store.store import Store
from redbeat.store.tokens import add_token
from redbeat.web import asgi_app
from redbeat.web.api.openapi import document_of
from redbeat.web.api.resources import OPERATIONS
from tests.support.dashboards import HOME

API = "/api/v1"
_NUMBERS = itertools.count(1)
#: the headers of answers that a program may go by
_TOLD = ("ETag", "Location")
_DESCRIPTION: dict[str, Any] = document_of(OPERATIONS, API)


def token_of(app: Celery, rights: Iterable[str] = ("admin",), name: str = "", expires_at: Any = None) -> str:
    """The text of a new token."""
    return add_token(Store(app), name or f"program {next(_NUMBERS)}", rights, expires_at)[1]


class Program:
    """Send requests with a token."""

    def __init__(
        self, app: Celery, rights: Iterable[str] = ("admin",), application: Any = None, token: str = ""
    ) -> None:
        self.token = token or token_of(app, rights)
        self.http = TestClient(
            application or asgi_app(app),
            base_url=HOME,
            raise_server_exceptions=False,
            client=("127.0.0.1", 1),
        )

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
        media: str = "",
        **query: Any,
    ) -> Any:
        """Return the answer, once it is as the interface's description has it."""
        sent = {"authorization": f"Bearer {self.token}", **(headers or {})}
        if body is not None:
            content = json.dumps(body).encode()
            media = media or ("application/merge-patch+json" if method == "PATCH" else "application/json")
        if media:
            sent["content-type"] = media
        answer = self.http.request(method, API + path, content=content, headers=sent, params=query or None)
        _check(method, path, answer)
        return answer

    def get(self, path: str, **query: Any) -> Any:
        """Return the document under a path."""
        answer = self.ask("GET", path, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def put(self, path: str, body: Any = None, **query: Any) -> Any:
        """Return the document that is answered to a PUT."""
        answer = self.ask("PUT", path, body, **query)
        assert answer.status_code == 200, answer.text
        return answer.json()


def _check(method: str, path: str, answer: Any) -> None:
    """Compare an answer with the description of its operation."""
    status = answer.status_code
    assert status != 500, answer.text
    if status >= 400:
        assert answer.headers["content-type"] == "application/problem+json", answer.text
        if method != "HEAD":
            _check_schema({"$ref": "#/components/schemas/Problem"}, answer.json())
            assert (answer.json()["status"], bool(answer.json()["detail"])) == (status, True)
    operation = _operation_at("GET" if method == "HEAD" else method, path)
    if operation is None:
        assert status >= 400 or path == "/openapi.json"
        return
    described = _DESCRIPTION["paths"][operation.path][operation.method.lower()]["responses"]
    for name in _TOLD if status < 400 else ():
        assert name not in answer.headers or name in described[str(status)]["headers"], (path, name)
    if status < 400 and method != "HEAD" and answer.headers["content-type"] == "application/json":
        _check_schema(operation.answers[status], answer.json())


def _operation_at(method: str, path: str) -> Any:
    for operation in OPERATIONS:
        pattern = re.sub(r"{\w+}", "[^/]+", operation.path)
        if operation.method == method and re.fullmatch(pattern, path.partition("?")[0]):
            return operation
    return None


def _check_schema(schema: Any, document: Any) -> None:
    Draft202012Validator({**schema, "components": _DESCRIPTION["components"]}).validate(document)
