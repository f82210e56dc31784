"""Clients that send too much or too slowly, read nothing, or keep connections: others go on."""

from __future__ import annotations

import asyncio
import select
import socket
import time
from contextlib import suppress
from typing import Any

import pytest
from celery import Celery
from starlette.types import Receive, Scope, Send

from redbeat.access.users import User
from redbeat.store.store import Store
from redbeat.store.tokens import add_token, revoke_tokens
from redbeat.web import asgi_app, connections, live
from redbeat.web import server as web_server
from redbeat.web.access import limits
from redbeat.web.access.headers import HEADERS, SafeHeaders
from redbeat.web.access.limits import MAX_BODY_BYTES, MAX_BYTES_OF_STRANGERS, LimitedBodies
from redbeat.web.routes import MAX_FIELDS
from tests.integration.web.conftest import Browse
from tests.support.dashboards import Browser, dashboard_of, serving
from tests.support.deadlines import patience
from tests.support.polling import eventually

URLENCODED = "application/x-www-form-urlencoded"


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


def _connected(home: str) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(patience())
    client.connect(("127.0.0.1", int(home.rpartition(":")[2])))
    return client


def _read(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(1 << 16), b""))


async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


class Statuses(list[int]):
    """The statuses of the answers that were sent."""

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.append(message["status"])


def request_of(method: str = "POST", path: str = "/", **more: Any) -> dict[str, Any]:
    """The scope of a request."""
    scope = {"type": "http", "scheme": "http", "client": ("127.0.0.1", 1), "query_string": b""}
    return {**scope, "method": method, "path": path, "headers": [(b"host", b"localhost")], **more}


def test_form_of_a_million_fields_and_header_full_of_escapes_are_refused_without_parsing(
    browse: Browse,
) -> None:
    browser = browse()
    for content, status in (
        (b"&" * MAX_BODY_BYTES, 400),
        (b"a&" * (MAX_BODY_BYTES // 2), 400),
        (b"a=1&" * (MAX_FIELDS + 1), 400),
        (b"a=1&" * (MAX_FIELDS - 1), 403),
        (b"x" * (MAX_BODY_BYTES + 1), 413),
    ):
        began = time.process_time()
        answer = browser.http.post("/login", content=content, headers={"content-type": URLENCODED})
        assert (answer.status_code, time.process_time() - began < 2) == (status, True), content[:5]
    escapes = '"' + '\\"' * 15_000 + '"'
    began = time.process_time()
    assert browser.get("/login", headers={"cookie": f"redbeat_session={escapes}"}).status_code == 200
    assert time.process_time() - began < 2


def test_stranger_may_send_no_more_than_a_token_needs(app: Celery) -> None:
    stranger = Browser(asgi_app(app))
    assert stranger.http.post("/entries/delete", content=b"x" * MAX_BODY_BYTES).status_code == 401
    large = b"token=" + b"x" * MAX_BYTES_OF_STRANGERS
    assert stranger.http.post("/login", content=large).status_code == 413
    _, text = add_token(Store(app), "deploy", ["read"], None, "anna")
    assert stranger.post("/login", token=text).status_code == 303


def test_bodies_held_at_once_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redbeat.web.access.limits.MAX_HELD_BYTES", 3 * MAX_BODY_BYTES)
    statuses = Statuses()
    clients = held = 0

    async def inner(_scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal held
        assert len((await receive())["body"]) == MAX_BODY_BYTES
        held += 1
        while held + statuses.count(503) < clients:  # until each is held or refused
            await asyncio.sleep(0)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    def sending() -> Receive:
        parts = iter([True, False])

        async def receive() -> Any:
            await asyncio.sleep(0)
            return {"type": "http.request", "body": b"x" * (MAX_BODY_BYTES // 2), "more_body": next(parts)}

        return receive

    async def run() -> None:
        nonlocal clients, held
        limited = LimitedBodies(inner)
        for clients in (8, 3):
            held = 0
            statuses.clear()
            scopes = [request_of(**{"redbeat.user": User("anna", ["read"])}) for _ in range(clients)]
            await asyncio.gather(*(limited(scope, sending(), statuses.send) for scope in scopes))
            assert sorted(statuses) == [200] * held + [503] * (clients - held)
            assert held <= 3
        assert held == 3, "what has gone is held no more"

    asyncio.run(run())


def test_slow_body_is_given_up_sooner_for_a_stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = Statuses()

    async def inner(_scope: Scope, receive: Receive, _send: Send) -> None:
        await receive()
        raise AssertionError

    async def begin_and_stop() -> Any:
        if not beginning:
            await asyncio.Event().wait()
        return beginning.pop()

    async def run(user: User | None) -> None:
        sent = LimitedBodies(inner)(request_of(**{"redbeat.user": user}), begin_and_stop, statuses.send)
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
    assert statuses == [408, 408]


def test_request_cut_off_by_a_shutdown_is_answered_503() -> None:
    messages: list[Any] = []

    async def begin(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        messages.append(message)

    async def run(path: str) -> None:
        ending: Any = web_server.EndingWell(begin)
        task = asyncio.create_task(ending(request_of(path=path), None, send))
        await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(run("/entries/trigger"))
    assert (messages[0]["status"], b"was stopped" in messages[1]["body"]) == (503, True)
    messages.clear()
    asyncio.run(run("/begun"))
    assert [one["type"] for one in messages] == ["http.response.start"]


def test_stream_ends_when_its_token_is_revoked(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CHECK_SECONDS", 0.0)
    monkeypatch.setattr(live, "AT_LEAST_SECONDS", 0.05)
    store = Store(app)
    token, text = add_token(store, "deploy", ["read"], None, "anna")
    application = asgi_app(app)
    browser = Browser(application)
    assert browser.post("/login", token=text).status_code == 303
    assert browser.http.head("/live").status_code == 204
    cookie = "; ".join(f"{name}={value}" for name, value in browser.http.cookies.items())
    with serving(application) as home, _connected(home) as stream:
        stream.sendall(f"GET /live HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n".encode())
        told = b""
        while told.count(b"event: tick") < 3:
            told += stream.recv(4096)
        revoke_tokens(store, token.id)
        while b"\r\n0\r\n\r\n" not in told:
            part = stream.recv(4096)
            assert part, told
            told += part


def test_streams_open_at_once_are_limited_and_given_back(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 3)
    application = dashboard_of(app)

    async def open_pages(*, have_gone: bool = False) -> list[int]:
        statuses = Statuses()

        async def receive() -> Any:
            while not have_gone and len(statuses) < 8:
                await asyncio.sleep(0.01)
            return {"type": "http.disconnect"}

        pages = (application(request_of("GET", "/live"), receive, statuses.send) for _ in range(8))
        await asyncio.gather(*pages)
        return sorted(statuses)

    async def run() -> None:
        await open_pages(have_gone=True)
        for _ in range(2):  # they give their places back
            assert await open_pages() == [200] * 3 + [204] * 5

    asyncio.run(run())


def test_client_that_reads_nothing_is_cut_off_and_a_reader_is_not(
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
            assert len(_read(client)) < size
        monkeypatch.setattr(connections, "READ_SECONDS", patience(10))
        with ask() as client:
            assert len(_read(client)) > size


def test_head_that_drips_in_is_cut_off_and_a_used_connection_stays_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "HEAD_SECONDS", 1.0)
    options: dict[str, Any] = {"http": connections.Connection, "timeout_keep_alive": 600}
    with serving(answer, lifespan="off", **options) as home, _connected(home) as used:
        used.sendall(HEAD)
        assert b" 204 " in used.recv(4096)
        with _connected(home) as slow:
            slow.sendall(HEAD[:20])
            # each byte that comes brings it no more time
            eventually(lambda: select.select([slow], [], [], 0)[0] or not slow.send(b"x"))
            with suppress(ConnectionError):
                assert slow.recv(4096) == b""
        used.sendall(HEAD)
        assert b" 204 " in used.recv(4096)


def test_connection_beyond_the_limit_gets_503_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 1)
    with serving(answer, http=connections.Connection, lifespan="off") as home, _connected(home) as first:
        first.sendall(HEAD)
        assert b" 204 " in first.recv(4096)
        with _connected(home) as second:
            second.sendall(HEAD)
            told = _read(second).lower()
        assert all(part in told for part in (b" 503 ", b"retry-after: 5", b"x-frame-options: deny"))
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
def test_malformed_large_or_ambiguous_head_ends_its_connection(head: bytes, status: bytes) -> None:
    application = SafeHeaders(connections.LimitedHeads(answer))
    with (
        serving(application, http=connections.Connection, lifespan="off") as home,
        _connected(home) as client,
    ):
        client.sendall(head)
        told = _read(client)
    assert told.split()[1] == status
    for name, value in HEADERS:
        assert f"\r\n{name}: {value}\r\n".lower().encode() in told.lower()
