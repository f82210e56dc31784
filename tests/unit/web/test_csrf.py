"""Forms count if one of our own pages has sent them."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from redbeat.errors import AccessDenied
from redbeat.web.access import csrf

TOKEN = csrf.token_of(None)


def check(**headers: str) -> None:
    """Check a form with the right token that came with these headers."""
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "scheme": "https", "server": ("ops.example", 443), "path": "/"}
    request = Request({**scope, "query_string": b"", "headers": [(b"host", b"ops.example"), *raw]})
    csrf.check(request, {csrf.FIELD: TOKEN}, TOKEN)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "https://ops.example", "sec_fetch_site": "same-origin"},
        # what browsers send with a form of a page whose Referrer-Policy is no-referrer
        {"origin": "null", "sec_fetch_site": "same-origin"},
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
        {"origin": "null"},
        {"sec_fetch_site": "cross-site"},
    ],
)
def test_a_form_of_another_site_does_not(headers: dict[str, str]) -> None:
    with pytest.raises(AccessDenied, match="another site"):
        check(**headers)
