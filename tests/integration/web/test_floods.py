"""Clients that send too much, or open too many streams: others go on."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from celery import Celery

from redbeat.store.store import Store
from redbeat.store.tokens import add_token, revoke_tokens
from redbeat.web import asgi_app, live
from redbeat.web.access.gate import MAX_BODY_BYTES, MAX_BYTES_OF_STRANGERS
from redbeat.web.routes import MAX_FIELDS
from tests.integration.web.conftest import Browse
from tests.support.dashboards import Browser, dashboard_of

URLENCODED = "application/x-www-form-urlencoded"


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
    assert (
        stranger.http.post("/login", content=large, headers={"content-type": URLENCODED}).status_code == 413
    )
    _, text = add_token(Store(app), "deploy", ["read"], None, "anna")
    assert stranger.post("/login", token=text).status_code == 303


def test_stream_ends_and_the_next_one_is_refused_when_its_token_is_revoked(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "STREAM_SECONDS", 0.2)
    monkeypatch.setattr(live, "AT_LEAST_SECONDS", 0.05)
    store = Store(app)
    token, text = add_token(store, "deploy", ["read"], None, "anna")
    browser = Browser(asgi_app(app))
    assert browser.post("/login", token=text).status_code == 303
    assert browser.http.head("/live").status_code == 204
    assert "event: tick" in browser.read("/live"), "it has ended"
    revoke_tokens(store, token.id)
    assert browser.get("/live").status_code == 401


def test_streams_open_at_once_are_limited_and_given_back(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_STREAMS", 3)
    application = dashboard_of(app)

    async def run() -> None:
        for _ in range(2):  # they give their places back
            statuses, closed = Statuses(), asyncio.Event()

            async def receive(closed: asyncio.Event = closed) -> Any:
                await closed.wait()
                return {"type": "http.disconnect"}

            pages = []
            for number in range(1, 6):
                page = application(request_of("GET", "/live"), receive, statuses.send)
                pages.append(asyncio.create_task(page))
                while len(statuses) < number:
                    await asyncio.sleep(0.01)
            assert statuses == [200] * 3 + [204] * 2
            closed.set()
            await asyncio.gather(*pages)

    asyncio.run(run())
