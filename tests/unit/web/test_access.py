"""Who gets in: tokens, rights, hosts, proxies, forms of other sites, addresses."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import unquote

import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette import _utils
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from redbeat.access import Right, rights_of
from redbeat.access.tokens import Token, make_token, parse_token, read_token
from redbeat.config.networks import parse_networks
from redbeat.errors import AccessDenied
from redbeat.web.access import csrf
from redbeat.web.access.proxies import IS_FORWARDED, TrustedProxies
from redbeat.web.api.addresses import BadAddress, check_slashes, name_of, segment_of
from tests.support.dashboards import Browser, dashboard_of

TOKEN = csrf.token_of(None)


def check(
    scheme: str = "https", host: str = "ops.example", cookie: str | None = TOKEN, **headers: str
) -> None:
    """Check a form with a token that came with these headers."""
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "scheme": scheme, "server": ("ops.example", 443), "path": "/"}
    request = Request({**scope, "query_string": b"", "headers": [(b"host", host.encode()), *raw]})
    csrf.check(request, {csrf.FIELD: TOKEN}, cookie)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "https://ops.example", "sec_fetch_site": "same-origin"},
        # what browsers send with a form of a page whose Referrer-Policy is no-referrer
        {"origin": "null", "sec_fetch_site": "same-origin"},
        # the same over plain HTTP: Sec-Fetch-Site is sent over HTTPS and to the browser's own machine alone
        {"origin": "null", "scheme": "http"},
        # a browser leaves the scheme's own port out, a program or a proxy may write it
        {"origin": "https://ops.example", "host": "ops.example:443"},
        {"origin": "http://ops.example:8555", "host": "Ops.Example:8555", "scheme": "http"},
        {"origin": "http://[::1]:8555", "host": "[::1]:8555", "scheme": "http"},
    ],
)
def test_form_of_an_own_page_counts(headers: dict[str, str]) -> None:
    check(**headers)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://other.example", "sec_fetch_site": "cross-site"},
        {"origin": "http://ops.example", "sec_fetch_site": "same-origin"},
        {"origin": "null", "sec_fetch_site": "cross-site"},
        {"origin": "null", "sec_fetch_site": "same-site"},
        {"origin": "https://ops.example:444", "host": "ops.example:443"},
        {"origin": "https://ops.example:80"},
        {"origin": "https://ops.example:port"},
        {"origin": "https://"},
        {"sec_fetch_site": "cross-site"},
    ],
)
def test_form_of_another_site_is_refused(headers: dict[str, str]) -> None:
    with pytest.raises(AccessDenied, match="another site"):
        check(**headers)


def test_form_with_a_wrong_token_is_refused() -> None:
    for cookie in (None, "", "x" * 43):
        with pytest.raises(AccessDenied, match="too old"):
            check(scheme="http", origin="null", cookie=cookie)


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((host, 200) for host in ("localhost", "LOCALHOST:8555", "127.0.0.1:1", "[::1]:1", "tower:8080")),
        ("a.b.example.com", 200),
        *((host, 400) for host in ("", " ", "evil.com", "localhost.evil.com", "localhost@evil.com")),
        *((host, 400) for host in ("example.com", "badexample.com", "[::2]", "localhost:port")),
        *((host, 400) for host in ("evil.com#localhost", "localhost/", "localhost, a")),
    ],
)
def test_host_is_allowed_if_it_is_named(fake_app: Celery, host: str, status: int) -> None:
    is_old = not hasattr(_utils, "parse_host_header")
    if is_old and host in ("[::1]:1", "localhost:port", "LOCALHOST:8555"):
        pytest.skip("this version of Starlette cuts hosts at their first colon, and refuses capitals")
    fake_app.conf.redbeat_web_hosts = ["tower", "*.example.com"]
    answer = Browser(dashboard_of(fake_app)).get("/static/redbeat.css", headers={"host": host})
    assert answer.status_code == status


def seen(
    middleware: Any, *args: Any, headers: list[tuple[str, str]], client: str | None, path: str = "/x"
) -> Any:
    """What the application behind a middleware is told: its scope, or the answer's status."""
    told: list[Any] = []

    async def inner(scope: Scope, _receive: Receive, _send: Send) -> None:
        told.append(scope)

    async def send(message: Any) -> None:
        told.append(message.get("status"))

    scope = {
        "type": "http", "method": "GET", "scheme": "http", "path": path, "root_path": "", "query_string": b"",
        "client": None if client is None else (client, 1),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in headers],
    }  # fmt: skip
    asyncio.run(middleware(inner, *args)(scope, None, send))
    return told[0]


FORWARDED = [
    ("host", "inner"), ("x-forwarded-for", "6.6.6.6, 9.9.9.9, 10.0.0.2"), ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "redbeat.example.com"), ("x-forwarded-prefix", "/tools/redbeat/"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("6.6.6.6, 9.9.9.9:50123, 10.0.0.2:443", "9.9.9.9"),
        ("[2001:db8::1]:50123", "2001:db8::1"),
        ("2001:db8::1", "2001:db8::1"),
        ("unknown", "unknown"),
    ],
)
def test_trusted_proxy_is_believed_but_not_what_came_before_it(said: str, address: str) -> None:
    headers = [*FORWARDED, ("x-forwarded-for", said)]
    del headers[1]
    scope = seen(TrustedProxies, parse_networks(["10.0.0.0/8"]), headers=headers, client="10.0.0.1")
    assert scope["client"][0] == address  # the last one that isn't a proxy of ours
    assert (scope["scheme"], dict(scope["headers"])[b"host"]) == ("https", b"redbeat.example.com")
    assert (scope["root_path"], scope["path"]) == ("/tools/redbeat", "/tools/redbeat/x")


def test_forwarded_request_is_never_one_from_this_machine() -> None:
    networks, host = parse_networks(["10.0.0.0/8"]), ("host", "inner")
    for client, header, wanted in (
        ("10.0.0.1", ("x-forwarded-for", "127.0.0.1, 10.0.0.2"), True),
        ("127.0.0.1", ("x-forwarded-for", "127.0.0.1, 10.0.0.2"), True),
        ("127.0.0.1", ("accept", "text/html"), False),
        ("10.0.0.1", ("x-real-ip", "127.0.0.1"), True),
        ("127.0.0.1", ("x-forwarded-proto", "https"), True),
        ("127.0.0.1", ("via", "1.1 proxy"), True),
    ):
        scope = seen(TrustedProxies, networks, headers=[host, header], client=client)
        assert scope[IS_FORWARDED] is wanted, (client, header)


@pytest.mark.parametrize("client", ["11.0.0.1", "::1", "127.0.0.1", None])
def test_forwarded_headers_of_others_are_ignored(client: str | None) -> None:
    scope = seen(TrustedProxies, parse_networks(["10.0.0.0/8"]), headers=FORWARDED, client=client)
    assert (scope["client"] or [None])[0] == client
    assert (scope["scheme"], scope["root_path"], scope["path"]) == ("http", "", "/x")
    assert dict(scope["headers"])[b"host"] == b"inner"


@pytest.mark.parametrize(
    "prefix", ["//evil.com", "/a/../b", "javascript:x", '/"><script>', "/a b", "x", "/./a"]
)
def test_forwarded_prefix_that_is_not_a_plain_path_is_ignored(prefix: str) -> None:
    headers = [("x-forwarded-prefix", prefix)]
    scope = seen(TrustedProxies, parse_networks(["unix"]), headers=headers, client=None)
    assert (scope["root_path"], scope["path"]) == ("", "/x")


def test_admin_includes_all_rights_and_the_others_read() -> None:
    assert rights_of(["admin"]) == set(Right)
    for right in set(Right) - {Right.ADMIN}:
        assert rights_of([right]) == {right, Right.READ}
    assert rights_of([]) == set()


@pytest.mark.parametrize("names", ["reed", ["read", ""], ["READ"], ["read", "*"], [None]])
def test_unknown_right_is_refused(names: list[str]) -> None:
    with pytest.raises(ValueError, match="there is no right"):
        rights_of(names)


NOW = datetime(2030, 1, 1, tzinfo=timezone.utc)


def made(**given: Any) -> tuple[Token, str]:
    values = {"rights": ["pause"], "created_at": NOW, "expires_at": NOW + timedelta(days=1), **given}
    return make_token("ci", created_by="ann", **values)


def test_stored_token_has_no_secret_and_is_read_again() -> None:
    token, text = made()
    secret = text[12:]
    assert parse_token(text) == (token.id, secret)
    assert [token.has_secret(one) for one in (secret, secret[:-1], secret.swapcase())] == [True, False, False]
    stored = token.to_json()
    assert read_token(token.id, stored) == token
    assert json.loads(stored)["hash"] == hashlib.sha256(secret.encode()).hexdigest()
    shown = repr(token) + str(token.to_dict())
    assert (secret in stored + shown, token.digest in shown) == (False, False)
    assert token.rights == {Right.READ, Right.PAUSE}


def test_token_expires_at_its_time() -> None:
    token, _ = made()
    assert not token.is_expired(NOW + timedelta(hours=23))
    assert token.is_expired(NOW + timedelta(days=1))
    assert not made(expires_at=None)[0].is_expired(NOW + timedelta(days=40_000))


def test_malformed_token_is_not_parsed() -> None:
    good = "rb_12345678_" + "a" * 43
    assert parse_token(good) == ("12345678", "a" * 43)
    for wrong in (
        *("", "rb_", "x", "rb_12345678_", good[:-1], good.replace("rb_1", "rb_"), f"{good}a", f"{good}\n"),
        *(f" {good}", good.replace("a", "ä"), good.replace("rb", "RB")),
    ):
        assert parse_token(wrong) is None, wrong


@pytest.mark.parametrize(
    "wrong",
    [
        "", "[]", "[" * 5000, {"hash": "x"}, {"hash": "A" * 64}, {"rights": ["root"]}, {"rights": "admin"},
        {"rights": [["read"]]}, {"expires_at": 5}, {"expires_at": "2030-01-01T00:00:00"}, {"expires_at": ...},
    ],
    ids=str,
)  # fmt: skip
def test_malformed_stored_token_raises_value_error(wrong: Any) -> None:
    text = wrong
    if isinstance(wrong, dict):
        fields = {**json.loads(made()[0].to_json()), **wrong}
        text = json.dumps({name: value for name, value in fields.items() if value is not ...})
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        read_token("12345678", text)


NAMES = st.one_of(
    st.text(max_size=30),
    st.text("/.=%\\ +;a", max_size=6),
    st.binary(max_size=20).map(lambda data: data.decode("utf-8", "surrogateescape")),
).filter(
    lambda name: all(not "\ud800" <= char <= "\udc7f" and not "\udd00" <= char <= "\udfff" for char in name)
)


@settings(max_examples=60)
@given(NAMES, NAMES)
def test_two_names_have_two_addresses(one: str, other: str) -> None:
    assert (unquote(segment_of(one)) == unquote(segment_of(other))) is (one == other)


@settings(max_examples=60)
@given(NAMES)
def test_address_of_a_name_is_one_segment_and_comes_back(name: str) -> None:
    segment = unquote(segment_of(name))
    assert (name_of(segment), "/" in segment) == (name, False)


@pytest.mark.parametrize("path", ["/entries/a%2Fpause", "/entries/a%2fpause"])
def test_encoded_slash_or_malformed_base64_is_refused(path: str) -> None:
    for scope in ({"raw_path": path.encode()}, {"wsgi_environ": {"RAW_URI": path}}):
        with pytest.raises(BadAddress, match="slash"):
            check_slashes(scope)
    check_slashes({"raw_path": b"/entries/a?x=%2F"})
    for segment in ("=*", "=a", "= ", "=é", "=YQ===", "=Y Q", "\ufffd"):
        with pytest.raises(BadAddress):
            name_of(segment)
