"""The gate: who somebody is, before any page or verb is called.

Invariant: what comes behind it has a user, in ``scope["redbeat.user"]``, None where anybody may ask, and a
way to ask again who that is, in ``scope["redbeat.find_user"]``; below ``/api/`` one who has shown a bearer
token, whatever cookies or passwords came with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from redbeat.access.users import User
from redbeat.web.access.authentication import WayIn, bearer_of, user_of_token
from redbeat.web.access.cookies import Cookies
from redbeat.web.paths import OPEN, STATIC, is_api, path_of

#: answers a request that doesn't get in: the request, and what went wrong, None where nobody is known
Refusal = Callable[[Request, Exception | None], Response]


class Gate:
    """Let those through to ``app`` who may read.

    Arguments:
        celery_app: whose tokens count below ``/api/``.
        ways_in: the ways in which users of pages show who they are; the first that knows somebody counts.
        is_read_only: nobody may do more than read.
        refuse: makes the answer to everybody else.
    """

    def __init__(
        self,
        app: ASGIApp,
        celery_app: Any,
        ways_in: Sequence[WayIn],
        cookies: Cookies,
        refuse: Refusal,
        *,
        is_read_only: bool,
    ) -> None:
        self._app = app
        self._celery_app = celery_app
        self._ways_in = ways_in
        self._cookies = cookies
        self._refuse = refuse
        self._is_read_only = is_read_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["redbeat.cookies"] = self._cookies
        request = Request(scope, receive)
        find: Callable[[Request], Awaitable[User | None]]
        find = self._by_bearer if is_api(scope) else self._by_any
        path = path_of(scope)
        is_open = path.startswith(OPEN)
        user: User | None = None
        try:
            if not path.startswith(STATIC):
                user = await find(request)
        except Exception as exc:  # noqa: BLE001 - Redis can't be asked, or the application's own code fails
            if not is_open:  # a stranger may ask for that, too
                await self._refuse(request, exc)(scope, receive, send)
                return
        if user is not None and self._is_read_only:
            user = user.only_reading()
        scope["redbeat.user"] = user

        async def find_again() -> User | None:
            return await find(request)

        scope["redbeat.find_user"] = find_again
        if user is None and not is_open:
            await self._refuse(request, None)(scope, receive, send)
            return
        await self._app(scope, receive, self._marking(request, send))

    def _marking(self, request: Request, send: Send) -> Send:
        """Return what sends an answer, and makes a browser known that has just shown a password."""
        mark = request.scope.get("redbeat.mark", "")
        if not mark or mark == self._cookies.mark(request):
            return send
        header = self._cookies.header_of_mark(request, mark)

        async def send_marking(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("set-cookie", header)
            await send(message)

        return send_marking

    async def _by_bearer(self, request: Request) -> User | None:
        text = bearer_of(request)
        return None if text is None else await user_of_token(request, self._celery_app, text)

    async def _by_any(self, request: Request) -> User | None:
        for way in self._ways_in:
            user = await way.find(request)
            if user is not None:
                return user
        return None
