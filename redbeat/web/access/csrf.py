"""Against requests that another site makes in a user's name: a token in each form, and who sends it.

Owns the cookie and the field. Invariant: nothing changes unless both are the same, and the browser doesn't
say that the request comes from elsewhere.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping
from urllib.parse import urlsplit

from starlette.requests import Request

from redbeat.errors import AccessDenied

#: the name of the field in forms, and of the header where there is no form
FIELD, HEADER = "csrf_token", "x-csrf-token"

_TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
_PORTS = {"http": 80, "https": 443}


def token_of(cookie: str | None) -> str:
    """Return the token in a cookie, or a new one where there is none that can be used."""
    return cookie if cookie and _TOKEN.fullmatch(cookie) else secrets.token_urlsafe(32)


def _origin_in(text: str) -> tuple[str, str | None, int | None] | None:
    """Return the scheme, the host and the port of a URL; None: it has none."""
    try:
        found = urlsplit(text)
        return found.scheme, found.hostname, found.port or _PORTS.get(found.scheme)
    except ValueError:  # such as http://[
        return None


def check(request: Request, form: Mapping[str, object], cookie: str | None) -> None:
    """Make sure that a form was sent by one of our own pages.

    Raises:
        AccessDenied: it wasn't.
    """
    origin = request.headers.get("origin")
    if origin not in (None, "null"):
        own = _origin_in(f"{request.url.scheme}://{request.url.netloc}")
        is_own = own is not None and _origin_in(origin) == own
    else:  # a browser that is to send no referrer says "null" for forms of our own pages, too
        # Sec-Fetch-Site is sent over HTTPS and to localhost alone; without it the token decides
        is_own = request.headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    if not is_own:
        raise AccessDenied(
            "This request comes from another site, so nothing was changed. (If it doesn't, a proxy in front "
            "changes its host or scheme: see redbeat_web_proxies.)"
        )
    given = str(request.headers.get(HEADER) or form.get(FIELD) or "")
    if not cookie or not _TOKEN.fullmatch(cookie) or not hmac.compare_digest(given.encode(), cookie.encode()):
        raise AccessDenied(
            "This page is too old, or cookies are switched off, so nothing was changed. Reload it, and try "
            "again."
        )
