"""The names under which the dashboard may be asked for, against DNS rebinding and forged Host headers.

Invariant: a request for any other host is refused before anybody looks at it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from redbeat.log.text import printable, shorten
from redbeat.web.access.refusals import refuse

#: how this machine is called by itself
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")

_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(?::(?P<port>\d{1,5}))?")


def is_allowed(host: str, allowed: Sequence[str]) -> bool:
    """Tell whether ``host``, the value of a Host header, is one of ``allowed``.

    ``*.example.com`` allows all names below, and a name without a port is allowed with each.
    """
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name, port = found["name"].lower().rstrip("."), found["port"]
    for one in map(str.lower, allowed):
        pattern = _HOST.fullmatch(one.removeprefix("*."))
        if pattern is None or (pattern["port"] and pattern["port"] != port):
            continue
        is_below = name.endswith("." + pattern["name"])
        if is_below if one.startswith("*.") else name == pattern["name"]:
            return True
    return False


class AllowedHosts:
    """Let only requests for ``hosts`` through to ``app``; '*' among them: whoever is in front has looked at
    them."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http" and "*" not in self._hosts:
            hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
            if len(hosts) != 1 or not is_allowed(hosts[0], self._hosts):
                shown = shorten(printable(", ".join(hosts)), 200) or "no host"
                sentence = (
                    f"{shown}: this host isn't allowed. redbeat_web_hosts has the names under which the "
                    "dashboard may be asked for."
                )
                await refuse(scope, 400, sentence)(scope, receive, send)
                return
        await self._app(scope, receive, send)
