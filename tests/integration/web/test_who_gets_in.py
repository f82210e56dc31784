"""Who gets in, by which ways, and what every answer says to a browser."""

from __future__ import annotations

import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from redbeat import RedBeatSchedulerEntry
from redbeat.access import Right
from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from redbeat.web import User, asgi_app
from redbeat.web.access.attempts import SECONDS_EACH, TRIES
from redbeat.web.access.authentication import BasicAuth, Link, TokenInCookie
from redbeat.web.access.limits import MAX_ADDRESS_BYTES, MAX_BODY_BYTES
from redbeat.web.application import PAGES, build
from tests.support.dashboards import Browser, dashboard_of
from tests.support.forms import form_fields

Browse = Callable[..., Browser]
#: what every answer says; written out here, as the code's own list would agree with anything
SAFE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
#: pages that anybody may see
OPEN = {("/login", "GET"), ("/login", "POST"), ("/logout", "POST")}
#: forms that change nothing: the names of the rows that are shown may be too long for an address
QUESTIONS = {("/entries/rows", "POST")}


def routes() -> Iterator[tuple[str, str, Any]]:
    """Each path, its method, and the right that its endpoint asks for."""
    for route in PAGES:
        for method in route.methods - {"HEAD"}:  # type: ignore[attr-defined]
            yield route.path, method, getattr(route.endpoint, "right", None)  # type: ignore[attr-defined]


def test_nobody_sees_or_changes_anything_without_being_known(app: Celery) -> None:
    application = asgi_app(app)
    for path, method, right in routes():
        browser = Browser(application)
        answer = browser.get(path) if method == "GET" else browser.post(path)
        if (path, method) not in OPEN:
            assert answer.status_code == 401, (path, method, answer.text)
        assert right is not None or (path, method) in OPEN or path == "/live"
    for path in ("/api/v1/entries", "/api", "/api/v1/../../", "/nothing"):
        assert Browser(application).get(path).status_code == 401, path


def test_each_change_takes_more_than_the_right_to_read(browse: Browse) -> None:
    reader = browse("read")
    for path, method, right in routes():
        if (path, method) in QUESTIONS:
            assert right is Right.READ, path
            assert reader.post(path).status_code == 200, path
        elif method == "POST" and (path, method) not in OPEN:
            assert right is not Right.READ, path
            answer = reader.post(path)
            assert answer.status_code == 403, (path, answer.text)
            assert "takes the right" in answer.text


def test_where_nobody_may_change_anything_an_admin_may_not(app: Celery) -> None:
    browser = Browser(dashboard_of(app, read_only=True))
    browser.read("/")
    for path, method, _ in routes():
        if method == "POST" and (path, method) not in OPEN | QUESTIONS:
            answer = browser.post(path)
            assert answer.status_code == 403, path
            assert "This dashboard is read-only" in answer.text


def test_somebody_without_rights_sees_nothing(app: Celery) -> None:
    assert Browser(dashboard_of(app, rights=())).get("/").status_code == 403


def test_the_application_says_who_somebody_is_by_a_function_or_a_coroutine(app: Celery) -> None:
    def by_function(request: Request) -> User | None:
        name = request.headers.get("x-user")
        return User(name, ["read"]) if name else None

    async def by_coroutine(request: Request) -> User | None:
        return by_function(request)

    for auth in (by_function, by_coroutine):
        browser = Browser(asgi_app(app, auth=auth))
        assert browser.get("/").status_code == 401
        assert "carla" in browser.get("/", headers={"x-user": "carla"}).text


@pytest.mark.parametrize("wrong", [True, "anna", {"name": "anna"}, ("anna", ["admin"])])
def test_anything_but_a_user_lets_nobody_in(
    app: Celery, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    answer = Browser(asgi_app(app, auth=lambda _request: wrong)).get("/")
    assert answer.status_code == 500
    assert "its auth has failed" in answer.text
    assert "auth must return a redbeat.web.User" in caplog.text


def test_an_auth_that_raises_lets_nobody_in_and_tells_the_log_alone(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    def auth(_request: Request) -> User:
        raise RuntimeError("hunter2")

    answer = Browser(asgi_app(app, auth=auth)).get("/")
    assert (answer.status_code, "hunter2" in answer.text) == (500, False)
    assert "its auth has failed" in answer.text
    assert "RuntimeError: hunter2" in caplog.text
    assert answer.headers["x-frame-options"] == "DENY"


def test_the_link_becomes_a_cookie_at_once_and_works_on_this_machine_alone(app: Celery) -> None:
    link = Link(User("anna", ["admin"]))
    application = build(app, [link], is_live=True, is_read_only=False)
    browser = Browser(application)
    answer = browser.get("/login", token=link.token)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert link.token not in cookie
    assert "anna" in browser.read("/")
    assert Browser(application).get("/").status_code == 401
    assert Browser(application).get("/", token=link.token).status_code == 401
    wrong = Browser(application).get("/login", token=link.token[:-1])
    assert (
        wrong.status_code,
        "set-cookie" in wrong.headers and "session" in wrong.headers["set-cookie"],
    ) == (401, False)

    other = Browser(application, address="10.0.0.9")
    other.http.cookies = browser.http.cookies
    assert other.get("/").status_code == 401

    for header in ("x-forwarded-for", "x-real-ip", "forwarded"):  # a proxy that isn't known to be one
        for path in ("/", f"/login?token={link.token}"):
            assert browser.get(path, headers={header: "127.0.0.1"}).status_code == 401
    browser.send("/logout")
    assert browser.get("/").status_code == 401


def test_a_stored_token_is_typed_and_kept_until_it_is_revoked(app: Celery) -> None:
    tokens = Tokens(Store(app))
    token, text = tokens.add("deploy", ["read", "pause"], None, "anna")
    browser = Browser(asgi_app(app))
    assert browser.get("/login", token=text).status_code == 401  # an address may be logged somewhere
    assert browser.post("/login", token="rb_x_y").status_code == 401
    assert browser.post("/login", token=text).status_code == 303
    assert "deploy" in browser.read("/")
    stranger = Browser(asgi_app(app), address="10.0.0.9")
    stranger.http.cookies = browser.http.cookies
    assert stranger.get("/").status_code == 401
    tokens.revoke(token.id)
    assert browser.get("/").status_code == 401


def test_who_asks_from_elsewhere_is_told_why_no_token_lets_them_in(app: Celery) -> None:
    text = Tokens(Store(app)).add("deploy", ["read"], None, "anna")[1]
    link = Link(User("anna", ["admin"]))
    application = build(app, [link, TokenInCookie(app)], is_live=True, is_read_only=False)
    forwarded = {"x-forwarded-for": "127.0.0.1"}
    for browser, headers in (
        (Browser(application, address="10.0.0.9"), None),
        (Browser(application), forwarded),
    ):
        for answer in (
            browser.get("/", headers=headers),
            browser.get("/login", headers=headers, token=link.token),
            browser.post("/login", headers=headers, token=text),
            browser.post("/login", headers=headers, token=link.token),
        ):
            assert (answer.status_code, "on this machine alone" in answer.text) == (401, True), answer.text
            assert "redbeat_session" not in answer.headers.get("set-cookie", "")
        assert 'name="token"' not in browser.get("/login", headers=headers).text, "it would be of no use"


def test_a_name_and_a_password_are_asked_for_by_the_browser(app: Celery) -> None:
    application = build(
        app, [BasicAuth(User("anna", ["read"]), "pass:wörd")], is_live=True, is_read_only=False
    )
    browser = Browser(application, address="10.0.0.9")
    asked = browser.get("/")
    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic ")

    def answer(text: str, scheme: str = "Basic") -> int:
        given = base64.b64encode(text.encode()).decode()
        return int(browser.get("/", headers={"authorization": f"{scheme} {given}"}).status_code)

    assert answer("anna:pass:wörd") == answer("anna:pass:wörd", "basic") == 200
    for wrong in ("anna:pass", "anna:", "ben:pass:wörd", "anna", "", "anna:pass:wörd\0"):
        assert answer(wrong) == 401
    assert answer("anna:pass:wörd", "Bearer") == 401
    assert browser.get("/", headers={"authorization": "Basic ==="}).status_code == 401


def test_who_sends_many_wrong_passwords_must_wait_and_whoever_is_logged_in_goes_on(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    app.conf.redbeat_web_proxies = ["10.0.0.0/8"]
    ways_in = [BasicAuth(User("anna", ["read"]), "right")]
    application = build(app, ways_in, is_live=True, is_read_only=False)

    def answer(browser: Browser, password: str, client: str = "192.0.2.9", path: str = "/") -> Any:
        given = base64.b64encode(f"anna:{password}".encode()).decode()
        headers = {"authorization": f"Basic {given}", "x-forwarded-for": client}
        return browser.get(path, headers=headers)

    anna, guesser = Browser(application, address="10.0.0.1"), Browser(application, address="10.0.0.1")
    known = answer(anna, "right").headers.get_list("set-cookie")
    [mark] = [cookie for cookie in known if cookie.startswith("redbeat_known_")]
    assert "HttpOnly" in mark
    assert not [one for one in answer(anna, "right").headers.get_list("set-cookie") if "known" in one]
    began = time.monotonic()
    found = [answer(guesser, f"hunter{number}") for number in range(TRIES + 1)]
    assert [one.status_code for one in found] == [401] * TRIES + [429]
    assert 1 <= int(found[-1].headers["retry-after"]) <= SECONDS_EACH
    assert "Wait" in found[-1].text
    assert "www-authenticate" not in found[-1].headers
    assert answer(guesser, "right").status_code == 429
    assert time.monotonic() - began < SECONDS_EACH, "nobody waits"
    assert answer(guesser, "right", path="/static/redbeat.css").status_code == 200
    assert answer(guesser, "right", "192.0.2.8").status_code == 200
    assert answer(anna, "right").status_code == 200
    assert answer(Browser(application, address="10.0.0.1"), "right").status_code == 429
    assert Browser(application, address="10.0.0.1").get("/").status_code == 401
    assert "192.0.2.9" in caplog.text
    assert "hunter" not in caplog.text


def test_a_form_of_another_site_or_without_its_token_changes_nothing(
    browse: Browse, add: Callable[..., RedBeatSchedulerEntry]
) -> None:
    browser = browse()
    for headers in (
        {"origin": "http://evil.com"},
        {"origin": "null", "sec-fetch-site": "cross-site"},
        {"origin": "https://localhost"},
        {"origin": "http://localhost:81"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        answer = browser.post("/logout", headers=headers)
        assert (answer.status_code, "another site" in answer.text) == (403, True), headers
    for fields in ({"csrf_token": ""}, {"csrf_token": "x" * 43}, {"csrf_token": "x" * 100_000}):
        assert browser.post("/logout", **fields).status_code == 403
    token = browser.token()
    browser.http.cookies.clear()
    assert browser.http.post("/logout", data={"csrf_token": token}).status_code == 403
    assert browser.post("/logout", headers={"origin": "http://localhost"}).status_code == 303
    assert browser.post("/logout", headers={"sec-fetch-site": "same-origin"}).status_code == 303


def test_every_answer_tells_the_browser_what_not_to_do(app: Celery, browse: Browse) -> None:
    answers = [
        browse().get("/"),
        browse().get("/nothing"),
        browse().get("/static/redbeat.css"),
        browse().get("/static/nothing"),
        browse().get("/", headers={"host": "evil.com"}),
        browse().get("/api/v1/entries"),
        browse().get("/", x="x" * MAX_ADDRESS_BYTES),
        browse("read").post("/", token="x"),
        Browser(asgi_app(app)).get("/"),
    ]
    assert {answer.status_code for answer in answers} == {200, 400, 401, 404, 405, 414}
    for answer in answers:
        for name, value in SAFE_HEADERS.items():
            assert answer.headers[name] == value
    assert answers[0].headers["cache-control"] == "no-store"


def test_what_pages_look_like_and_the_page_to_log_in_need_nobody_to_say_who_it_is(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def auth(request: Request) -> User:
        asked.append(request.url.path)
        raise RuntimeError("the application's database is away")

    browser = Browser(asgi_app(app, auth=auth))
    assert browser.get("/static/redbeat.css").status_code == 200
    assert browser.get("/static/nothing").status_code == 404
    assert not asked
    assert browser.get("/login").status_code == 200
    assert browser.get("/").status_code == 500


def test_a_file_is_kept_for_a_year_under_the_mark_of_its_own_contents_alone(browse: Browse) -> None:
    browser = browse()
    own = re.search(r'"(/static/redbeat\.css)\?v=(\w+)"', browser.read("/"))
    assert own
    path, mark = own.groups()
    assert "immutable" in browser.get(path, v=mark).headers["cache-control"]
    for other in ({}, {"v": "x" * 12}, {"v": ""}, {"v": mark, "w": "1"}):
        answer = browser.get(path, **other)  # of a page that another version has made, say
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-cache"), other


def test_where_a_method_is_not_taken_the_answer_has_those_that_are(browse: Browse) -> None:
    browser = browse()
    for path, allowed in (
        ("/", "GET, HEAD"),
        ("/login", "GET, HEAD, POST"),
        ("/logout", "POST"),
        ("/entry/delete", "GET, HEAD, POST"),
        ("/live", "GET, HEAD"),
        ("/static/redbeat.css", "GET, HEAD"),
        ("/static/nothing", "GET, HEAD"),
    ):
        answer = browser.http.put(path)
        assert (answer.status_code, answer.headers.get("allow")) == (405, allowed), path


def test_over_https_cookies_go_over_https_only(app: Celery) -> None:
    app.conf.redbeat_web_proxies = ["127.0.0.1"]
    answer = Browser(dashboard_of(app)).get("/login", headers={"x-forwarded-proto": "https"})
    assert "Secure" in answer.headers["set-cookie"]
    assert "Secure" not in Browser(dashboard_of(app)).get("/login").headers["set-cookie"]


def test_bodies_are_limited(browse: Browse) -> None:
    browser = browse()
    large = browser.http.post("/login", content=b"x" * (MAX_BODY_BYTES + 1))
    assert large.status_code == 413
    many = browser.http.post(
        "/login",
        content=b"&".join(b"a=1" for _ in range(5000)),
        headers={"content-type": "application/x-www-form-urlencoded"},
    )
    assert many.status_code in (
        400,
        403,
    )  # with older Starlettes the fields count, and there is no token among them


@pytest.mark.parametrize(
    "path",
    [
        "/static/../application.py",
        "/static/%2e%2e/application.py",
        "/static//etc/passwd",
        "/static/..%2fserver.py",
    ],
)
def test_no_path_leads_out_of_the_static_files(browse: Browse, path: str) -> None:
    answer = browse().get(path)
    assert answer.status_code == 404
    assert "import" not in answer.text


def test_the_api_takes_bearer_tokens_alone(app: Celery) -> None:
    _, text = Tokens(Store(app)).add("deploy", ["read"], None, "anna")
    link = Link(User("anna", ["admin"]))
    ways_in = [link, TokenInCookie(app), BasicAuth(User("ben", ["admin"]), "x")]
    browser = Browser(build(app, ways_in, is_live=True, is_read_only=False))
    browser.get("/login", token=link.token)
    browser.read("/")
    basic = base64.b64encode(b"ben:x").decode()
    for headers in ({}, {"authorization": f"Basic {basic}"}, {"authorization": f"Bearer {link.token}"}):
        answer = browser.get("/api/v1/entries", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"
    answer = browser.get("/api/v1/nothing", headers={"authorization": f"Bearer {text}"})
    assert answer.status_code == 404


def test_the_foot_of_a_page_says_what_its_user_may_do_and_until_when(app: Celery) -> None:
    end = datetime(2098, 1, 2, 9, 30, tzinfo=timezone.utc)
    _, text = Tokens(Store(app)).add("deploy", ["read", "pause"], end, "anna")
    for is_read_only, words in ((False, "read, pause"), (True, "read, as this dashboard is read-only")):
        browser = Browser(asgi_app(app, read_only=is_read_only))
        assert "may:" not in browser.read("/login")
        assert browser.post("/login", token=text).status_code == 303
        foot = browser.read("/files").partition('<footer class="footer">')[2]
        assert f'deploy may: {words}, until <time datetime="2098-01-02T09:30:00Z">' in foot
    assert "anna may: all (admin)<" in Browser(dashboard_of(app)).read("/files")


@pytest.mark.parametrize("root", ["/red", "/über uns/日本;x%", "/a\"<b>'"])
def test_it_can_be_mounted_below_any_path(app: Celery, root: str) -> None:
    quoted = quote(root)
    site = Starlette(routes=[Mount(root, dashboard_of(app))])
    inner = Browser(site)
    inner.root = quoted
    page = inner.get("/entry/new")
    assert page.headers["set-cookie"].endswith(f"Path={quoted}; SameSite=strict")
    links = re.findall(r'(?:href|src|action|hx-post)="(/[^"]*)"', page.text)
    assert links
    assert all(link.startswith(f"{quoted}/") for link in links), links
    fields = {"name": "new", "task": "echo", "schedule_kind": "every", "schedule": "1h"}
    saved = inner.post("/entry/save", **{**form_fields(page.text, "entry-form"), **fields})
    assert (saved.status_code, saved.headers["location"]) == (303, f"{quoted}/entry?name=new")
    assert "new" in inner.read("/entry", name="new")


def test_dashboards_of_two_servers_share_no_cookies() -> None:
    names = []
    for server in ("one.invalid", "two.invalid"):
        app = Celery("same", broker="memory://", set_as_current=False)
        app.conf.redbeat_redis_url = f"redis://{server}"
        cookies = Browser(asgi_app(app)).get("/login").headers["set-cookie"]
        names.append(cookies.partition("=")[0])
    assert len({*names[:2]}) == 2


def test_of_two_cookies_of_one_name_that_of_the_longest_path_counts(app: Celery) -> None:
    browser = Browser(dashboard_of(app))
    name = browser.get("/login").headers["set-cookie"].partition("=")[0]
    own, outer = "o" * 43, "x" * 43  # browsers send them in this order
    answer = Browser(dashboard_of(app)).get("/entry/new", headers={"cookie": f"{name}={own}; {name}={outer}"})
    assert (own in answer.text, outer in answer.text) == (True, False)


def test_htmx_evaluates_no_text_and_adds_no_script_and_no_style(browse: Browse) -> None:
    [told] = re.findall(r"<meta name=\"htmx-config\" content='([^']*)'>", browse().read("/"))
    config = json.loads(unescape(told))
    for setting in ("allowEval", "allowScriptTags", "includeIndicatorStyles"):
        assert config[setting] is False, setting
    assert config["selfRequestsOnly"] is True
