"""What servers of WSGI hand on as it comes: bodies of no length, paths in no encoding, readers who leave."""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from celery import Celery
from starlette.requests import Request

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.audit import find_records
from redbeat.web import User, wsgi_app
from tests.support.polling import eventually
from tests.support.programs import token_of

PURGE = b'{"dry_run": true}'


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    text: str


def environ_of(method: str, path: str, body: bytes = b"", **more: str) -> dict[str, Any]:
    """The environment of a request, of which ``more`` are other variables."""
    return {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "QUERY_STRING": "",
        "SERVER_NAME": "localhost",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_HOST": "localhost",
        "REMOTE_ADDR": "127.0.0.1",
        "CONTENT_LENGTH": str(len(body) or ""),
        "CONTENT_TYPE": "application/json",
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(body),
        **more,
    }


def ask(application: Any, *args: Any, **more: str) -> Answer:
    """The answer to a request."""
    head: list[Any] = []
    parts = application(
        environ_of(*args, **more), lambda status, headers, _=None: head.extend((status, headers))
    )
    text = b"".join(parts).decode()
    return Answer(int(head[0][:3]), {name.lower(): value for name, value in head[1]}, text)


@pytest.fixture
def application(app: Celery) -> Any:
    return wsgi_app(app, auth=lambda _request: User("anna", ["admin"]))


@pytest.fixture
def bearer(app: Celery) -> dict[str, str]:
    return {"HTTP_AUTHORIZATION": f"Bearer {token_of(app)}"}


@pytest.mark.parametrize(
    "length",
    [
        {"HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": ""},
        {"HTTP_TRANSFER_ENCODING": "chunked"},
        *({"CONTENT_LENGTH": length} for length in ("abc", "-5", "1_7", "+17", "9" * 5000)),
    ],
)
def test_a_body_whose_length_is_not_known_is_refused_and_never_taken_for_none(
    application: Any, app: Celery, bearer: dict[str, str], length: dict[str, str]
) -> None:
    answer = ask(application, "PUT", "/api/v1/purge", PURGE, **bearer, **length)
    assert (answer.status, answer.headers["content-type"]) == (411, "application/problem+json")
    assert "Content-Length" in json.loads(answer.text)["detail"]
    answer = ask(application, "POST", "/logout", b"csrf_token=x", **length)
    assert (answer.status, "Content-Length" in answer.text) == (411, True)
    assert find_records(app, verb="purge") == []
    assert ask(application, "PUT", "/api/v1/purge", PURGE, **bearer).status == 200


class Lost(io.BytesIO):
    """The body of a request whose connection is lost at its end."""

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if not data:
            raise ConnectionResetError
        return data


@pytest.mark.parametrize("kind", [io.BytesIO, Lost])
@pytest.mark.parametrize("sent", [PURGE[:-1], b""])
def test_a_body_that_ends_too_soon_is_answered_at_once(
    application: Any, bearer: dict[str, str], sent: bytes, kind: type[io.BytesIO]
) -> None:
    for path in ("/api/v1/purge", "/login"):
        method = "POST" if path == "/login" else "PUT"
        given: Any = {**bearer, "CONTENT_LENGTH": "17", "wsgi.input": kind(sent)}
        answer = ask(application, method, path, **given)
        assert (answer.status, "too soon" in answer.text) == (400, True)


def test_what_is_no_utf8_in_an_address_is_none_of_ours_and_no_defect(
    application: Any, bearer: dict[str, str]
) -> None:
    assert ask(application, "GET", "/\xff").status == 404
    answer = ask(application, "GET", "/api/v1/entries/\xff", **bearer)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    answer = ask(application, "GET", "/entries", QUERY_STRING="match=t\xc3\xa4glich&x=\xff")
    assert (answer.status, "täglich" in answer.text) == (200, True)


def test_an_answer_that_nobody_reads_to_its_end_leaves_nothing_behind(
    app: Celery, add: Callable[..., RedBeatSchedulerEntry]
) -> None:
    add("report")
    loops = set[Any]()

    async def auth(_request: Request) -> User:
        loops.add(asyncio.get_running_loop())
        return User("anna", ["read"])

    application = wsgi_app(app, auth=auth)
    for _ in range(3):
        answer: Any = application(environ_of("GET", "/entries"), lambda *_: None)
        assert b"report" in next(answer)
        answer.close()
    [loop] = loops
    eventually(lambda: not asyncio.all_tasks(loop))


def test_a_server_that_forks_after_its_first_requests_answers_in_its_child_too(
    application: Any, add: Callable[..., RedBeatSchedulerEntry]
) -> None:
    add("report")

    def answers() -> bool:
        for path, query in (("/entries", "sort=name"), ("/doctor", ""), ("/", "")):
            eventually(partial(_is_whole, application, path, query))
        return True

    assert answers()
    pid = os.fork()
    if not pid:
        is_right = False
        try:
            is_right = answers()  # the threads that have read the names and looked for faults aren't here
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitpid(pid, 0)[1] == 0


def _is_whole(application: Any, path: str, query: str) -> bool:
    answer = ask(application, "GET", path, QUERY_STRING=query)
    assert answer.status == 200, answer.text
    return "report" in answer.text or (path != "/entries" and "1 entry" in answer.text)
