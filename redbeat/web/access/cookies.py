"""The cookies: who somebody is, where somebody was, against forged requests, and a notice for the next page.

Invariant: no script can read them, no other site sends them with a form, and over HTTPS they go over HTTPS
only.
"""

from __future__ import annotations

import hashlib

from starlette.requests import Request
from starlette.responses import Response

from redbeat.web.access import csrf
from redbeat.web.paths import root_of

#: a notice to show on the next page, at most so many characters of it, and for so many seconds
NOTICE_CHARACTERS, NOTICE_SECONDS = 500, 30
#: for how long a browser is known in which somebody has logged in, seconds
MARK_SECONDS = 30 * 24 * 3600


class Cookies:
    """The names of one dashboard's cookies; two of them on one machine don't share any.

    Arguments:
        place: tells this dashboard from others, whatever it is.
    """

    def __init__(self, place: str) -> None:
        mark = hashlib.sha256(place.encode()).hexdigest()[:8]
        self._session = f"redbeat_session_{mark}"
        self._csrf = f"{csrf.COOKIE}_{mark}"
        self._notice = f"redbeat_notice_{mark}"
        self._mark = f"redbeat_known_{mark}"

    def session(self, request: Request) -> str | None:
        """Return what the browser has got when its user logged in."""
        return value_of(request, self._session)

    def mark(self, request: Request) -> str:
        """Return by what the browser is known; '' if it isn't."""
        return value_of(request, self._mark) or ""

    def header_of_mark(self, request: Request, value: str) -> str:
        """Return the header that makes the browser known by ``value``."""
        response = Response()
        self._set(request, response, self._mark, value, samesite="lax", max_age=MARK_SECONDS)
        return response.headers["set-cookie"]

    def csrf(self, request: Request) -> str | None:
        """Return the token against forged requests."""
        return value_of(request, self._csrf)

    def notice(self, request: Request) -> str:
        """Return the notice for the next page."""
        return decoded(value_of(request, self._notice) or "")

    def set_session(self, request: Request, response: Response, value: str) -> None:
        """Log the browser in."""
        self._set(request, response, self._session, value, samesite="lax")

    def set_csrf(self, request: Request, response: Response, value: str) -> None:
        """Give the browser a token against forged requests."""
        self._set(request, response, self._csrf, value, samesite="strict")

    def set_notice(self, request: Request, response: Response, words: str) -> None:
        """Have ``words`` shown on the next page."""
        self._set(request, response, self._notice, encoded(words), samesite="strict", max_age=NOTICE_SECONDS)

    def end_session(self, request: Request, response: Response) -> None:
        """Log the browser out."""
        response.delete_cookie(self._session, path=_path(request))

    def end_notice(self, request: Request, response: Response) -> None:
        """Don't show the notice again."""
        response.delete_cookie(self._notice, path=_path(request))

    def _set(self, request: Request, response: Response, name: str, value: str, **options: object) -> None:
        is_secure = request.url.scheme == "https"
        response.set_cookie(
            name,
            value,
            path=_path(request),
            secure=is_secure,
            httponly=True,
            **options,  # type: ignore[arg-type]
        )


def value_of(request: Request, name: str) -> str | None:
    """Return the value of a cookie as it was sent; None: there is none.

    Of several, as of one dashboard below another, the first: browsers begin with that of the longest path.
    Ours need no escapes, and the standard library takes seconds for a header that is full of them.
    """
    for header in request.headers.getlist("cookie"):
        for one in header.split(";"):
            given, _, value = one.partition("=")
            if given.strip() == name:
                return value.strip()
    return None


def _path(request: Request) -> str:
    return root_of(request.scope) or "/"


def encoded(words: str) -> str:
    """Return ``words`` as a cookie's value."""
    return words[:NOTICE_CHARACTERS].encode().hex()


def decoded(value: str) -> str:
    """Return the words in a cookie's value; '' for anything else."""
    try:
        return bytes.fromhex(value).decode()
    except ValueError:
        return ""
