"""What somebody does in the dashboard, without a browser: opens the link, fills in a form, sends it."""

import re
from http.cookiejar import CookieJar
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, build_opener


class Visitor:
    """Somebody who has opened the link: from then on a cookie says who they are."""

    def __init__(self, link: str) -> None:
        self._link = link
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))
        self._read(link)

    def fill_in(self, path: str, **fields: str) -> None:
        """Send a form with these fields, and with the token that pages have against forged requests."""
        found = re.search(r'"X-CSRF-Token": "([\w-]+)"', self._read("/"))
        sent = urlencode({"csrf_token": found[1] if found else "", **fields})
        with self._opener.open(urljoin(self._link, path), sent.encode()) as answer:
            answer.read()

    def _read(self, path: str) -> str:
        with self._opener.open(urljoin(self._link, path)) as answer:
            return str(answer.read().decode())
