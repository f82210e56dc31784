"""Ways in: an auth function, a link, tokens, basic auth; and cookies that stay where they belong."""

from __future__ import annotations

import asyncio
import base64
import re
from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.store.tokens import add_token, read_tokens, revoke_tokens
from redbeat.web import User, asgi_app
from redbeat.web.access.authentication import BasicAuth, Link, token_in_cookie
from redbeat.web.application import build
from tests.integration.web.conftest import Programs
from tests.support.dashboards import Browser, dashboard_of
from tests.support.forms import form_fields
from tests.support.polling import eventually
from tests.support.programs import Program, token_of


def test_auth_function_or_coroutine_names_the_user(app: Celery) -> None:
    def by_function(request: Request) -> User | None:
        name = request.headers.get("x-user")
        return User(name, ["read"]) if name else None

    async def by_coroutine(request: Request) -> User | None:
        return by_function(request)

    for auth in (by_function, by_coroutine):
        browser = Browser(asgi_app(app, auth=auth))
        assert browser.get("/").status_code == 401
        assert "carla" in browser.get("/", headers={"x-user": "carla"}).text


def test_link_becomes_a_cookie_and_works_on_this_machine_only(app: Celery) -> None:
    link = Link(User("anna", ["admin"]))
    application = build(app, [link], is_live=True, is_read_only=False)
    browser = Browser(application)
    answer = browser.get("/login", token=link.token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert ("HttpOnly" in cookie, "SameSite=lax" in cookie, link.token in cookie) == (True, True, False)
    assert "anna" in browser.read("/")
    assert Browser(application).get("/", token=link.token).status_code == 401
    wrong = Browser(application).get("/login", token=link.token[:-1])
    assert (wrong.status_code, "session" in wrong.headers.get("set-cookie", "")) == (401, False)
    other = Browser(application, address="10.0.0.9")
    other.http.cookies = browser.http.cookies
    assert other.get("/").status_code == 401
    for header in ("x-forwarded-for", "x-real-ip", "forwarded"):  # a proxy that isn't known to be one
        for path in ("/", f"/login?token={link.token}"):
            assert browser.get(path, headers={header: "127.0.0.1"}).status_code == 401


def test_typed_token_works_until_it_is_revoked(app: Celery) -> None:
    store = Store(app)
    token, text = add_token(store, "deploy", ["read", "pause"], None, "anna")
    browser = Browser(asgi_app(app))
    assert browser.get("/login", token=text).status_code == 401  # an address may be logged somewhere
    assert browser.post("/login", token="rb_x_y").status_code == 401
    assert browser.post("/login", token=text).status_code == 303
    assert "deploy" in browser.read("/")
    revoke_tokens(store, token.id)
    assert browser.get("/").status_code == 401


def test_token_or_link_from_another_machine_is_refused_with_the_reason(app: Celery) -> None:
    link = Link(User("anna", ["admin"]))
    application = build(app, [link, token_in_cookie], is_live=True, is_read_only=False)
    for address, headers in (("10.0.0.9", None), ("127.0.0.1", {"x-forwarded-for": "127.0.0.1"})):
        browser = Browser(application, address)
        for answer in (
            browser.get("/", headers=headers),
            browser.get("/login", headers=headers, token=link.token),
            *(browser.post("/login", headers=headers, token=one) for one in (token_of(app), link.token)),
        ):
            assert (answer.status_code, "on this machine alone" in answer.text) == (401, True), answer.text
            assert "redbeat_session" not in answer.headers.get("set-cookie", "")
        assert 'name="token"' not in browser.get("/login", headers=headers).text, "it would be of no use"


def test_basic_auth_takes_the_right_name_and_password_only(app: Celery) -> None:
    ways_in = [BasicAuth(User("anna", ["read"]), "pass:wörd")]
    browser = Browser(build(app, ways_in, is_live=True, is_read_only=False), address="10.0.0.9")
    assert browser.get("/").headers["www-authenticate"].startswith("Basic ")

    def answer(text: str, scheme: str = "Basic") -> int:
        given = base64.b64encode(text.encode()).decode()
        return int(browser.get("/", headers={"authorization": f"{scheme} {given}"}).status_code)

    assert answer("anna:pass:wörd") == answer("anna:pass:wörd", "basic") == 200
    for wrong in ("anna:pass", "anna:", "ben:pass:wörd", "anna", "", "anna:pass:wörd\0"):
        assert answer(wrong) == 401
    assert answer("anna:pass:wörd", "Bearer") == 401
    assert browser.get("/", headers={"authorization": "Basic ==="}).status_code == 401


def test_address_that_sent_a_wrong_password_waits_and_is_not_looked_at_meanwhile(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.redbeat_web_proxies = ["10.0.0.0/8"]
    application = build(app, [BasicAuth(User("anna", ["read"]), "right")], is_live=True, is_read_only=False)
    statuses: list[int] = []

    async def ask(password: str, client: str = "192.0.2.9") -> int:
        given = base64.b64encode(f"anna:{password}".encode())
        headers = [(b"host", b"localhost"), (b"authorization", b"Basic " + given)]
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "query_string": b""}
        scope |= {"headers": [*headers, (b"x-forwarded-for", client.encode())], "client": ("10.0.0.1", 1)}

        async def send(message: Any) -> None:
            statuses.extend([message["status"]] if message["type"] == "http.response.start" else [])

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        await application({**scope, "scheme": "http"}, receive, send)
        return statuses[-1]

    async def run() -> None:
        wrong = asyncio.create_task(ask("hunter2"))
        await asyncio.sleep(0)  # until it waits
        assert [await ask("right"), await ask("hunter3")] == [429, 429]
        assert await ask("right", "192.0.2.8") == 200
        assert not wrong.done()
        assert await wrong == 401
        assert await ask("right") == 200

    asyncio.run(run())
    assert ("192.0.2.9" in caplog.text, "hunter" in caplog.text) == (True, False)


def test_api_takes_a_valid_bearer_token_only(app: Celery, program: Programs) -> None:
    store = Store(app)
    one = program()
    revoke_tokens(store, [*read_tokens(store)][-1])
    assert one.ask("GET", "/entries").status_code == 401
    soon = Program(app, token=token_of(app, expires_at=Server(store).now() + timedelta(seconds=2)))
    eventually(lambda: soon.ask("GET", "/entries").status_code == 401)
    token = token_of(app)
    browser = Browser(asgi_app(app))
    browser.post("/login", token=token)
    assert "Overview" in browser.read("/")
    for headers in (
        {}, {"x-api-key": token}, {"cookie": f"token={token}"},
        *({"authorization": text} for text in (token, f"Basic {token}", f"Bearer {token}x", "Bearer ")),
    ):  # fmt: skip
        answer = browser.get("/api/v1/entries", headers, token=token)
        assert answer.status_code == 401, headers
        assert answer.headers["www-authenticate"].startswith("Bearer")


def test_logout_ends_the_session_of_this_browser_only(app: Celery) -> None:
    link = Link(User("anna", ["admin"]))
    application = build(app, [link, token_in_cookie], is_live=True, is_read_only=False)
    one, other = Browser(application), Browser(application)
    for browser in (one, other):
        browser.get("/login", token=link.token)
        browser.read("/audit")
    kept = dict(one.http.cookies)
    one.send("/logout")
    one.http.cookies.update(kept)
    assert one.get("/audit").status_code == 401, "a cookie that was copied is worth nothing"
    other.read("/audit")


def test_static_files_and_login_page_do_not_ask_auth(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []

    def auth(request: Request) -> User:
        asked.append(request.url.path)
        raise RuntimeError("the application's database is away")

    browser = Browser(asgi_app(app, auth=auth))
    paths = ("/static/redbeat.css", "/static/nothing", "/login", "/")
    assert [browser.get(path).status_code for path in paths] == [200, 404, 200, 500]
    assert asked == ["/login", "/"], "whether somebody is logged in is said there"


@pytest.mark.parametrize("root", ["/red", "/über uns/日本;x%", "/a\"<b>'"])
def test_links_and_cookies_stay_below_the_mounted_path(app: Celery, root: str) -> None:
    quoted = quote(root)
    site = Starlette(routes=[Mount(root, dashboard_of(app))])
    inner = Browser(site)
    inner.http.base_url = f"http://localhost{quoted}"
    page = inner.get("/entry/new")
    assert page.headers["set-cookie"].endswith(f"Path={quoted}; SameSite=strict")
    links = re.findall(r'(?:href|src|action|hx-post)="(/[^"]*)"', page.text)
    assert links
    assert all(link.startswith(f"{quoted}/") for link in links), links
    fields = {"name": "new", "task": "echo", "schedule_kind": "every", "schedule": "1h"}
    saved = inner.post("/entry/save", **{**form_fields(page.text, "entry-form"), **fields})
    assert (saved.status_code, saved.headers["location"]) == (303, f"{quoted}/entry?name=new")
    assert "new" in inner.read("/entry", name="new")


def test_cookies_over_https_are_secure(app: Celery) -> None:
    app.conf.redbeat_web_proxies = ["127.0.0.1"]
    answer = Browser(dashboard_of(app)).get("/login", headers={"x-forwarded-proto": "https"})
    assert "Secure" in answer.headers["set-cookie"]
    assert "Secure" not in Browser(dashboard_of(app)).get("/login").headers["set-cookie"]


@pytest.mark.parametrize("wrong", [True, "anna", ("anna", ["admin"]), RuntimeError("hunter2")])
def test_auth_that_raises_or_returns_no_user_lets_nobody_in_and_tells_only_the_log(
    app: Celery, caplog: pytest.LogCaptureFixture, wrong: Any
) -> None:
    def auth(_request: Request) -> Any:
        if isinstance(wrong, Exception):
            raise wrong
        return wrong

    answer = Browser(asgi_app(app, auth=auth)).get("/")
    assert (answer.status_code, "hunter2" in answer.text) == (500, False)
    assert answer.headers["x-frame-options"] == "DENY"
    assert ("hunter2" if isinstance(wrong, Exception) else "must return a redbeat.web.User") in caplog.text
