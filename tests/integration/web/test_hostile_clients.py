"""Clients that send too much or too little, read nothing, or stay after they have lost their rights."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable
from html import unescape
from typing import Any
from unittest.mock import Mock, patch

import httpx
import pytest
import redis
import uvicorn
from celery import Celery
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from redbeat.calendars import Calendar
from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from redbeat.web import asgi_app, connections, live
from redbeat.web import server as web_server
from redbeat.web.access import limits
from redbeat.web.access.authentication import Link, TokenInCookie
from redbeat.web.access.headers import HEADERS, SafeHeaders
from redbeat.web.access.limits import MAX_BODY_BYTES, MAX_BYTES_OF_STRANGERS, LimitedBodies
from redbeat.web.access.users import User
from redbeat.web.application import build
from redbeat.web.routes import MAX_FIELDS
from tests.support.dashboards import Browser, dashboard_of, serving
from tests.support.deadlines import patience
from tests.support.polling import eventually

Browse = Callable[..., Browser]
URLENCODED = "application/x-www-form-urlencoded"
FEW_SECONDS = 2.0
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def took(browser: Browser, **request: Any) -> tuple[int, float]:
    """The status of the answer to a form, and the seconds that it has taken."""
    began = time.monotonic()
    answer = browser.http.post("/login", **request)
    return answer.status_code, time.monotonic() - began


def test_forms_of_a_million_fields_and_headers_full_of_escapes_cost_next_to_nothing(browse: Browse) -> None:
    browser = browse()
    for content, wanted in (
        (b"&" * MAX_BODY_BYTES, 400),
        (b"a&" * (MAX_BODY_BYTES // 2), 400),
        (b"a=1&" * (MAX_FIELDS + 1), 400),
        (b"a=1&" * (MAX_FIELDS - 1), 403),
    ):
        status, seconds = took(browser, content=content, headers={"content-type": URLENCODED})
        assert (status, seconds < patience(FEW_SECONDS)) == (wanted, True), seconds
    escapes = '"' + '\\"' * 15_000 + '"'
    began = time.monotonic()
    assert browser.get("/login", headers={"cookie": f"redbeat_session={escapes}"}).status_code == 200
    assert time.monotonic() - began < patience(FEW_SECONDS)


def test_a_form_in_another_encoding_and_an_origin_that_is_none_are_refused_in_words(browse: Browse) -> None:
    browser = browse()
    part = f'--b\r\nContent-Disposition: form-data; name="csrf_token"\r\n\r\n{browser.token()}\r\n'
    part += '--b\r\nContent-Disposition: form-data; name="token"\r\n\r\n\\ud800\r\n--b--\r\n'
    kind = "multipart/form-data; boundary=b; charset=unicode_escape"
    answer = browser.http.post("/login", content=part.encode(), headers={"content-type": kind})
    assert (answer.status_code, "UTF-8" in answer.text) == (400, True)
    for origin in ("http://[", "http://[::1", "://", "\xff"):
        answer = browser.post("/logout", headers={"origin": origin.encode("latin-1")})  # type: ignore[dict-item]
        assert (answer.status_code, "another site" in answer.text) == (403, True), origin


def test_numbers_of_any_length_and_names_that_are_not_unicode_are_answered(
    app: Celery, client: redis.Redis, browse: Browse
) -> None:
    Calendar("days", ["2030-12-24"], app=app).save()
    name = b"redbeat:\xff\xfe<b>"
    client.hset(name, "definition", b'{"task": "\\ud800", "schedule": {"__type__": "interval", "every": 60}}')
    client.zadd("redbeat::schedule", {name: 5e9})
    browser, digits = browse(), "9" * 5000
    for path, query in (
        ("/entries", {"offset": digits}),
        ("/entries", {"sort": "name", "after": "a", "offset": digits}),
        ("/timeline", {"more": digits}),
        ("/calendar", {"name": "days", "year": digits}),
        ("/calendar", {"name": "days", "year": "02030999999"}),
        ("/doctor", {"first": digits}),
        ("/runs", {"limit": digits}),
    ):
        assert browser.get(path, **query).status_code == 200, (path, query)
    eventually(lambda: "quarantined" in browser.read("/doctor"))
    for path in ("/", "/entries", "/entries?sort=name", "/routes", "/timeline"):
        assert "defect" not in browser.read(path), path


def test_a_pattern_that_takes_long_to_prepare_is_refused_in_words(browse: Browse) -> None:
    browser = browse()
    long = "*a" * 151
    for path, field in (
        *(("/entries", field) for field in ("match", "task", "queue")),
        *((path, "match") for path in ("/runs", "/runs/rerun", "/timeline", "/files/export")),
        *(("/audit", field) for field in ("user", "verb")),
    ):
        page = browser.get(path, **{field: long}).text
        assert f"{field}: must have 300 characters at the most" in page, path
    answer = browser.post("/runs/rerun", match=long, since="1d", confirmed="yes")
    assert answer.status_code == 422


def test_a_stranger_may_send_as_much_as_a_token_needs(app: Celery) -> None:
    stranger = Browser(asgi_app(app))
    assert stranger.http.post("/entries/delete", content=b"x" * MAX_BODY_BYTES).status_code == 401
    large = b"token=" + b"x" * MAX_BYTES_OF_STRANGERS
    assert stranger.http.post("/login", content=large).status_code == 413
    _, text = Tokens(Store(app)).add("deploy", ["read"], None, "anna")
    assert stranger.post("/login", token=text).status_code == 303


def test_bodies_that_arrive_together_are_held_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redbeat.web.access.limits.MAX_HELD_BYTES", 3 * MAX_BODY_BYTES)
    statuses: list[int] = []
    held = 0

    async def inner(_scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal held
        assert len((await receive())["body"]) == MAX_BODY_BYTES
        held += 1
        while held + statuses.count(503) < clients:  # until each is held or refused
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
            assert message["status"] != 503 or (b"retry-after", b"5") in message["headers"]

    def sending() -> Receive:
        parts = iter([True, False])

        async def receive() -> Any:
            await asyncio.sleep(0)
            half = b"x" * (MAX_BODY_BYTES // 2)
            return {"type": "http.request", "body": half, "more_body": next(parts)}

        return receive

    async def run() -> None:
        nonlocal clients, held
        limited = LimitedBodies(inner)
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
        scope["redbeat.user"] = User("anna", ["read"])
        for clients in (8, 3):
            held = 0
            statuses.clear()
            await asyncio.gather(*(limited({**scope}, sending(), send) for _ in range(clients)))
            assert sorted(statuses) == [200] * held + [503] * (clients - held)
            assert held <= 3
        assert held == 3, "what has gone is held no more"

    clients = 0
    asyncio.run(run())


def test_what_takes_longer_than_a_server_waits_at_its_end_is_told_so() -> None:
    messages: list[Any] = []

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def receive() -> Any:
        raise AssertionError

    async def send(message: Any) -> None:
        messages.append(message)

    async def run() -> None:
        task = asyncio.create_task(web_server.EndingWell(answer)(scope, receive, send))
        await asyncio.sleep(0)
        task.cancel()
        await task

    scope = {"type": "http", "method": "POST", "path": "/entries/trigger", "headers": []}
    asyncio.run(run())
    assert messages[0]["status"] == 503
    assert b"was stopped" in messages[1]["body"]
    messages.clear()
    scope["path"] = "/begun"
    asyncio.run(run())
    assert [one["type"] for one in messages] == ["http.response.start"]


def test_logging_out_ends_the_session_of_this_browser_and_no_other(app: Celery) -> None:
    link = Link(User("anna", ["admin"]))
    application = build(app, [link, TokenInCookie(app)], is_live=True, is_read_only=False)
    one, other = Browser(application), Browser(application)
    for browser in (one, other):
        browser.get("/login", token=link.token)
        browser.read("/audit")
    kept = dict(one.http.cookies)
    one.send("/logout")
    one.http.cookies.update(kept)
    assert one.get("/audit").status_code == 401, "a cookie that was copied is worth nothing"
    other.read("/audit")


def test_a_stream_ends_when_its_user_may_not_read_any_more(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(live, "AT_LEAST_SECONDS", 0.05)
    tokens = Tokens(Store(app))
    token, text = tokens.add("deploy", ["read"], None, "anna")
    with serving(asgi_app(app)) as home:
        cookie = _log_in(home, text)
        assert httpx.head(f"{home}/live", headers={"cookie": cookie}, timeout=patience()).status_code == 204
        head = f"GET /live HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n"
        with _connected(home) as stream:
            stream.sendall(head.encode())
            told = b""
            while told.count(b"event: tick") < 3:
                told += stream.recv(4096)
            tokens.revoke(token.id)
            while b"\r\n0\r\n\r\n" not in told:
                part = stream.recv(4096)
                assert part, told
                told += part


def test_of_pages_that_are_opened_at_once_no_more_than_a_few_have_streams(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 3)
    application = dashboard_of(app)
    leave = asyncio.Event()

    async def open_page(statuses: list[int], *, has_gone: bool = False) -> None:
        async def receive() -> Any:
            if not has_gone:
                await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])
                if len(statuses) == 8:
                    leave.set()

        host = (b"host", b"localhost")
        scope = {"type": "http", "method": "GET", "path": "/live", "query_string": b"", "headers": [host]}
        await application({**scope, "scheme": "http", "client": ("127.0.0.1", 1)}, receive, send)

    async def run() -> None:
        await asyncio.gather(*(open_page([], has_gone=True) for _ in range(8)))
        for _ in range(2):  # they give their places back
            leave.clear()
            statuses: list[int] = []
            await asyncio.gather(*(open_page(statuses) for _ in range(8)))
            assert sorted(statuses) == [200] * 3 + [204] * 5

    asyncio.run(run())


def _log_in(home: str, token: str) -> str:
    with httpx.Client(base_url=home) as client:
        found = re.search(r'"X-CSRF-Token": "([\w-]{43})"', unescape(client.get("/login").text))
        assert found
        answer = client.post("/login", data={"csrf_token": found[1], "token": token})
        assert answer.status_code == 303
        return "; ".join(f"{name}={value}" for name, value in client.cookies.items())


def _connected(home: str) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(patience())
    client.connect(("127.0.0.1", int(home.rpartition(":")[2])))
    return client


def test_who_reads_nothing_of_an_answer_is_given_up_and_who_reads_it_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "READ_SECONDS", 0.3)
    size = 30 * 1024 * 1024
    left: list[str] = []

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * size, "more_body": True})
        await send({"type": "http.response.body"})
        left.append("sent")

    with serving(answer, http=connections.Connection, lifespan="off") as home:

        def ask() -> socket.socket:
            client = _connected(home)
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return client

        with ask() as client:
            eventually(lambda: left == ["sent"], timeout=20)  # as the connection was lost
            assert _read(client) < size
        monkeypatch.setattr(connections, "READ_SECONDS", patience(10))
        with ask() as client:
            assert _read(client) > size


async def _answer(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


def test_a_head_has_its_time_from_its_first_byte_on_and_a_connection_in_use_isnt_closed() -> None:
    timers: list[asyncio.TimerHandle] = []

    def are_running() -> list[bool]:
        return [not one.cancelled() for one in timers]

    async def run() -> None:
        loop = asyncio.get_running_loop()
        transport = Mock(spec=asyncio.Transport)
        transport.is_closing.return_value = False
        transport.get_extra_info.return_value = None
        config = uvicorn.Config(_answer, lifespan="off", log_config=None)
        connection = connections.Connection(config, ServerState(), {}, loop)

        def call_later(seconds: float, callback: Any, *arguments: Any) -> asyncio.TimerHandle:
            timer = asyncio.TimerHandle(loop.time() + seconds, callback, arguments, loop)
            timers.append(timer)
            return timer

        with patch.object(loop, "call_later", call_later):
            connection.connection_made(transport)
            assert are_running() == [True]
            connection.data_received(HEAD)
            assert are_running() == [False], "the head has come"
            await asyncio.gather(*connection.tasks)
            assert are_running() == [False, True], "the next one is waited for, by uvicorn"
            connection.data_received(HEAD[:20])
            assert are_running() == [False, False, True]
            connection.data_received(HEAD[20:-2])
            assert are_running() == [False, False, True], "its second part brings it no more time"
            connection.data_received(HEAD[-2:])
            assert are_running() == [False] * 3
            await asyncio.gather(*connection.tasks)
            connection.data_received(HEAD[:-2])
            assert are_running() == [False] * 4 + [True]
            transport.close.assert_not_called()
            timers[-1]._run()  # type: ignore[attr-defined]  # noqa: SLF001 - its time is over
            transport.close.assert_called_once_with()
            connection.connection_lost(None)
            assert not any(are_running()[5:])

    asyncio.run(run())


def test_connections_beyond_the_limit_are_told_so_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    with serving(_answer, http=connections.Connection, lifespan="off") as home, _connected(home) as first:
        first.sendall(HEAD)
        assert b" 204 " in first.recv(4096)
        with _connected(home) as second:
            second.sendall(HEAD)
            told = b"".join(iter(lambda: second.recv(4096), b"")).lower()
        assert b" 503 " in told
        assert b"retry-after: 5" in told
        assert b"x-frame-options: deny" in told
        first.sendall(HEAD)
        assert b" 204 " in first.recv(4096)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Large: " + b"x" * 100_000 + b"\r\n\r\n", b"431"),
        (
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            b"400",
        ),
    ],
)
def test_a_head_that_is_no_http_too_large_or_ambiguous_ends_its_connection(
    head: bytes, status: bytes
) -> None:
    application = SafeHeaders(connections.LimitedHeads(_answer))
    with (
        serving(application, http=connections.Connection, lifespan="off") as home,
        _connected(home) as client,
    ):
        client.sendall(head)
        told = b"".join(iter(lambda: client.recv(4096), b""))
    assert told.split()[1] == status
    for name, value in HEADERS:
        assert f"\r\n{name}: {value}\r\n".lower().encode() in told.lower()


def _read(client: socket.socket) -> int:
    """Read to the end, and return how many bytes there were."""
    read = 0
    while part := client.recv(1 << 16):
        read += len(part)
    return read


def test_a_body_that_arrives_too_slowly_is_given_up_sooner_where_its_sender_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[bytes] = []
    statuses: list[int] = []

    async def inner(_scope: Scope, receive: Receive, _send: Send) -> None:
        seen.append((await receive())["body"])

    async def begin_and_stop() -> Any:
        if not beginning:
            await asyncio.Event().wait()
        return beginning.pop()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    async def run(user: User | None) -> None:
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": []}
        sent = LimitedBodies(inner)({**scope, "redbeat.user": user}, begin_and_stop, send)
        await asyncio.wait_for(sent, patience())

    assert (limits.MAX_BODY_SECONDS, limits.MAX_SECONDS_OF_STRANGERS) == (90.0, 10.0)
    for user, short, long in (
        (None, "MAX_SECONDS_OF_STRANGERS", "MAX_BODY_SECONDS"),
        (User("anna", ["read"]), "MAX_BODY_SECONDS", "MAX_SECONDS_OF_STRANGERS"),
    ):
        monkeypatch.setattr(limits, short, 0.05)
        monkeypatch.setattr(limits, long, 2 * patience())
        beginning = [{"type": "http.request", "body": b"half", "more_body": True}]
        asyncio.run(run(user))
    assert (statuses, seen) == ([408, 408], [])
