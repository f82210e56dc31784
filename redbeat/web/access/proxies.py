"""Reverse proxies: which of them are believed when they say for whom they ask, and under which address.

Owns ``X-Forwarded-Host`` and ``-Prefix``; uvicorn's middleware reads ``-For`` and ``-Proto``. Invariant: from
any other client these headers mean only that the request hasn't come straight from a browser on this machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from redbeat.config.networks import Network, is_in

#: the form of a prefix: anything else would end up in links
_PREFIX = re.compile(r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)*")

#: marks a forwarded request: it isn't from this machine, whatever its address
IS_FORWARDED = "redbeat.is_forwarded"
_FORWARDING = ("forwarded", "via", "x-real-ip", "x-forwarded-")


class TrustedProxies:
    """Apply the ``X-Forwarded-`` headers of trusted proxies to each request of ``app``.

    Arguments:
        proxies: the addresses of the trusted ones.
    """

    def __init__(self, app: ASGIApp, proxies: Sequence[Network]) -> None:
        self._app = app
        self._proxies = proxies
        self._for_and_proto: Any = ProxyHeadersMiddleware(app, [*map(str, proxies)])  # type: ignore[arg-type]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        client = scope.get("client") or ("unix", 0)  # the file system protects a unix socket
        client = (client[0].removeprefix("::ffff:"), client[1])
        headers = MutableHeaders(raw=[*scope["headers"]])
        scope = {
            **scope,
            "headers": headers.raw,
            IS_FORWARDED: any(name.startswith(_FORWARDING) for name in headers),
        }
        if not is_in(client[0], self._proxies):
            await self._app(scope, receive, send)
            return
        scope["client"] = client
        if host := headers.get("x-forwarded-host", "").strip():
            headers["host"] = host
        prefix = headers.get("x-forwarded-prefix", "").strip().rstrip("/")
        if _PREFIX.fullmatch(prefix):
            scope["root_path"] = prefix + scope.get("root_path", "")
            scope["path"] = prefix + scope["path"]
        await self._for_and_proto(scope, receive, send)
