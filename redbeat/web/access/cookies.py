"""The cookies: a session, a token against forged requests, and a notice for the next page.

Invariant: no script can read them, no other site sends them with a form, and over HTTPS they go over HTTPS
only.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from redbeat.web.paths import root_of

#: a notice to show on the next page, at most so many characters of it, and for so many seconds
NOTICE_CHARACTERS, NOTICE_SECONDS = 500, 30

Name = Literal["session", "csrf", "notice"]


class Cookies:
    """The cookies of one dashboard and one request.

    Arguments:
        place: tells this dashboard from others on the same machine, which have cookies of their own.
    """

    def __init__(self, place: str, request: Request) -> None:
        self._root = root_of(request.scope)
        self._mark = hashlib.sha256(f"{place} {self._root}".encode()).hexdigest()[:8]
        self._request = request

    def get(self, name: Name) -> str | None:
        """Return the value of a cookie; None: it is missing."""
        return self._request.cookies.get(f"redbeat_{name}_{self._mark}")

    def set(self, response: Response, name: Name, value: str) -> None:
        """Set a cookie; '' ends it."""
        response.set_cookie(
            f"redbeat_{name}_{self._mark}",
            value,
            max_age=0 if not value else NOTICE_SECONDS if name == "notice" else None,
            path=self._root or "/",
            secure=self._request.url.scheme == "https",
            httponly=True,
            samesite="lax" if name == "session" else "strict",  # a link from elsewhere keeps its session
        )

    @property
    def notice(self) -> str:
        """The notice for the next page; '' for none, or for a value that isn't a notice."""
        try:
            return bytes.fromhex(self.get("notice") or "").decode()
        except ValueError:
            return ""

    def set_notice(self, response: Response, words: str) -> None:
        """Have ``words`` shown on the next page."""
        self.set(response, "notice", words[:NOTICE_CHARACTERS].encode().hex())
