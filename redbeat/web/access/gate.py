"""The gate: who sends a request, and how much of a body is read, before any page or operation is called.

Invariant: behind it each request has a user in ``scope["redbeat.user"]``, None only where everybody may ask;
below ``/api/`` the user of a bearer token, whatever cookies or passwords came with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redbeat.access.users import User
from redbeat.web.access.authentication import bearer_of, user_of_token
from redbeat.web.access.cookies import Cookies
from redbeat.web.paths import OPEN, STATIC, is_api, path_of

if TYPE_CHECKING:
    from redbeat.web.dashboard import Dashboard

#: the largest body, and that of a client that isn't logged in
MAX_BODY_BYTES, MAX_BYTES_OF_STRANGERS = 4 * 1024 * 1024, 16 * 1024

#: answers a request that doesn't get in, with the error; None: its user is unknown
Refusal = Callable[[Request, Exception | None], Response]


class Gate:
    """Let requests through to ``app`` whose user may read; ``refuse`` answers the others."""

    def __init__(self, app: ASGIApp, refuse: Refusal) -> None:
        self._app = app
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        request, path = Request(scope, receive), path_of(scope)
        dashboard: Dashboard = scope["redbeat.dashboard"]
        scope["redbeat.cookies"] = Cookies(dashboard.place, request)
        is_open = path.startswith(OPEN)
        user, problem = None, None
        try:
            if not path.startswith(STATIC):
                user = await _find_user(dashboard, request)
        except Exception as exc:  # noqa: BLE001 - Redis is unreachable, or the application's own code fails
            problem = exc
        if user is None and not is_open:
            await self._refuse(request, problem)(scope, receive, send)
            return
        scope["redbeat.user"] = user.only_reading() if user is not None and dashboard.is_read_only else user
        if scope["method"] not in ("GET", "HEAD"):
            receive = _limited(receive, MAX_BYTES_OF_STRANGERS if user is None else MAX_BODY_BYTES)
        await self._app(scope, receive, send)


async def _find_user(dashboard: Dashboard, request: Request) -> User | None:
    if is_api(request.scope):
        text = bearer_of(request)
        return None if text is None else await user_of_token(dashboard, text)
    for way in dashboard.ways_in:
        user = await way(request)
        if user is not None:
            return user
    return None


def _limited(receive: Receive, most: int) -> Receive:
    """Return ``receive`` for a body of at most ``most`` bytes."""
    size, is_whole = 0, False

    async def receive_part() -> Message:
        nonlocal size, is_whole
        message = await receive()
        if message["type"] == "http.disconnect" and not is_whole:
            raise HTTPException(400, "The body has ended too soon.")
        size += len(message.get("body", b""))
        is_whole = is_whole or not message.get("more_body", False)
        if size > most:
            raise HTTPException(413, f"The body is larger than {most} bytes.", {"Connection": "close"})
        return message

    return receive_part
