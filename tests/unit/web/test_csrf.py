"""Forms count if one of our own pages has sent them."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from redbeat.errors import AccessDenied
from redbeat.web.access import csrf

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
        {"origin": "http://ops.example", "host": "OPS.example:80", "scheme": "http"},
        {"origin": "http://ops.example:8555", "host": "Ops.Example:8555", "scheme": "http"},
        {"origin": "http://[::1]:8555", "host": "[::1]:8555", "scheme": "http"},
    ],
)
def test_a_form_of_our_own_page_counts(headers: dict[str, str]) -> None:
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
def test_a_form_of_another_site_does_not(headers: dict[str, str]) -> None:
    with pytest.raises(AccessDenied, match="another site"):
        check(**headers)


@pytest.mark.parametrize("cookie", [None, "", "x" * 43])
def test_where_a_browser_says_nothing_the_token_decides(cookie: str | None) -> None:
    with pytest.raises(AccessDenied, match="too old"):
        check(scheme="http", origin="null", cookie=cookie)
