"""Reverse proxies: which of them are believed when they say for whom they ask, and under which address.

Owns ``X-Forwarded-For``, ``-Proto``, ``-Host`` and ``-Prefix``. Invariant: of anybody else these headers mean
nothing but that the request hasn't come straight from a browser on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from redbeat.config.networks import Network, is_in

#: what a prefix may look like: anything else would end up in links
_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")

#: an address as some proxies write it: of IPv6 in brackets, with the client's port, another each time
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|(\d+\.\d+\.\d+\.\d+))(?::\d+)?", re.ASCII)

#: says of a request that somebody has forwarded it: it isn't from this machine, whatever its address
IS_FORWARDED = "redbeat.is_forwarded"
_FORWARDING, _FORWARDING_ALL = (b"forwarded", b"via", b"x-real-ip"), b"x-forwarded-"


class TrustedProxies:
    """Put what a trusted proxy says in its place, for ``app``.

    Arguments:
        proxies: the addresses of the trusted ones.
    """

    def __init__(self, app: ASGIApp, proxies: Sequence[Network]) -> None:
        self._app = app
        self._proxies = proxies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            is_forwarded = any(
                name in _FORWARDING or name.startswith(_FORWARDING_ALL) for name, _ in scope["headers"]
            )
            scope = {**scope, IS_FORWARDED: is_forwarded}
            if self._is_trusted(scope.get("client")):
                scope = self._as_said(scope)
        await self._app(scope, receive, send)

    def _is_trusted(self, client: Sequence[object] | None) -> bool:
        # without an address it is a unix socket, which the file system protects
        return is_in(str(client[0]) if client and client[0] else "unix", self._proxies)

    def _as_said(self, scope: Scope) -> Scope:
        headers = Headers(scope=scope)
        chain = [
            _without_port(one.strip())
            for one in ",".join(headers.getlist("x-forwarded-for")).split(",")
            if one.strip()
        ]
        while len(chain) > 1 and is_in(chain[-1], self._proxies):
            chain.pop()
        if chain:
            scope["client"] = (chain[-1], 0)
        scheme = headers.get("x-forwarded-proto", "").strip().lower()
        if scheme in ("http", "https"):
            scope["scheme"] = scheme
        host = headers.get("x-forwarded-host", "").strip()
        if host:
            others = [(name, value) for name, value in scope["headers"] if name != b"host"]
            scope["headers"] = [*others, (b"host", host.encode("latin-1"))]
        prefix = headers.get("x-forwarded-prefix", "").strip().rstrip("/")
        if prefix and _PREFIX.fullmatch(prefix) and not set(prefix.split("/")) & {".", ".."}:
            scope["root_path"] = prefix + scope.get("root_path", "")
            scope["path"] = prefix + scope["path"]
        return scope


def _without_port(address: str) -> str:
    found = _ADDRESS.fullmatch(address)
    return (found[1] or found[2]) if found else address
