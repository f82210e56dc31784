"""Who is asking: the ways in which a user shows who they are.

Owns the link that ``celery redbeat web`` prints, basic authentication, and the cookie in which a browser
keeps a token. Invariant: no secret is kept or logged in plain text, and each is compared in constant time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import inspect
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request

from redbeat.access.users import User
from redbeat.config.networks import is_loopback
from redbeat.errors import RedBeatError
from redbeat.log.logger import web_logger as logger
from redbeat.log.text import printable, shorten
from redbeat.store.store import Store
from redbeat.store.tokens import find_token
from redbeat.web.access.proxies import IS_FORWARDED

if TYPE_CHECKING:
    from redbeat.web.dashboard import Dashboard

#: what a mounted dashboard is given: it returns who asks, None for nobody, and may be a coroutine function
Auth = Callable[[Any], User | Awaitable[User | None] | None]

#: how many browsers may be logged in by the link at a time; the first is forgotten
MAX_SESSIONS = 1000
#: how long the answer to a wrong password takes, seconds; its address waits for it
WRONG_SECONDS = 1


#: one way in which users show who they are: it returns who asks, None where that can't be told this way
WayIn = Callable[[Request], Awaitable[User | None]]


def own_auth(auth: Auth) -> WayIn:
    """Return the callable of the application in which the dashboard is mounted as a way in."""

    async def find(request: Request) -> User | None:
        try:
            found: Any = await run_in_threadpool(auth, request)
            if inspect.isawaitable(found):
                found = await found
        except RedBeatError:  # it has asked Redis, say
            raise
        except Exception as exc:
            raise _auth_failed(exc) from exc
        if found is not None and not isinstance(found, User):
            kind = type(found).__name__
            raise _auth_failed(TypeError(f"auth must return a redbeat.web.User or None, not {kind}"))
        return found

    return find


def _auth_failed(exc: Exception) -> HTTPException:
    logger.error("No user is let in, as the auth of the application has failed: %r", exc, exc_info=exc)
    sentence = "The application can't say who you are: its auth has failed. The server's log says why."
    return HTTPException(500, sentence)


class Link:
    """The link that is printed once, as a notebook server does: its token becomes a cookie at once.

    Each browser has a session of its own, which ends when it logs out.

    Arguments:
        user: who comes by it.
    """

    def __init__(self, user: User) -> None:
        self.token = secrets.token_urlsafe(32)
        self._user = user
        self._sessions: dict[bytes, None] = {}

    def session_for(self, token: str) -> str | None:
        """Return a cookie's value for somebody who has the link's token, else None."""
        if not hmac.compare_digest(_digest(token), _digest(self.token)):
            return None
        session = secrets.token_urlsafe(32)
        self._sessions[_digest(session)] = None
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.pop(next(iter(self._sessions)), None)
        return session

    def end(self, session: str) -> None:
        """Let a cookie's value count no more."""
        self._sessions.pop(_digest(session), None)

    async def __call__(self, request: Request) -> User | None:
        """Return the link's user, if the cookie is the link's and the browser is on this machine."""
        if not is_local(request):
            return None
        session = request.scope["redbeat.cookies"].get("session")
        # by its digest, so that how long it takes tells nothing of what the others are
        return self._user if session is not None and _digest(session) in self._sessions else None


async def token_in_cookie(request: Request) -> User | None:
    """Return the user of the token of ``celery redbeat token add`` that the browser keeps in a cookie.

    It was typed into the page that asks for one, and counts if the browser is on this machine.
    """
    session = request.scope["redbeat.cookies"].get("session")
    if session is None or not is_local(request):
        return None
    return await user_of_token(request.scope["redbeat.dashboard"], session)


class BasicAuth:
    """A user name and a password, as browsers ask for them.

    An address that has sent a wrong one waits ``WRONG_SECONDS`` for the answer, and what else it sends
    meanwhile isn't looked at. So each address has one try a second, however many connections it has.

    Arguments:
        user: who has this name and password.
    """

    def __init__(self, user: User, password: str) -> None:
        self._user = user
        self._digest = _digest(f"{user.name}:{password}")
        self._waiting: set[str] = set()

    async def __call__(self, request: Request) -> User | None:
        """Return the user, if name and password are right.

        Raises:
            HTTPException: this address waits for the answer to a wrong password.
        """
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        address = request.client.host if request.client else ""
        if address in self._waiting:
            sentence = f"The last password was wrong. Wait {WRONG_SECONDS} s before you try again."
            raise HTTPException(429, sentence, {"Retry-After": str(WRONG_SECONDS)})
        try:
            text = base64.b64decode(given.strip(), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        if hmac.compare_digest(_digest(text), self._digest):
            return self._user
        logger.warning("web: wrong password from %s", shorten(printable(address), 100) or "a local client")
        self._waiting.add(address)
        try:
            await asyncio.sleep(WRONG_SECONDS)
        finally:
            self._waiting.discard(address)
        return None


def is_local(request: Request) -> bool:
    """Return True if a request comes straight from this machine."""
    if request.scope.get(IS_FORWARDED):
        return False
    return is_loopback(request.client.host if request.client else None)


def bearer_of(request: Request) -> str | None:
    """Return the token of ``Authorization: Bearer``, None where there is none."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    return given.strip() or None if scheme.lower() == "bearer" else None


async def user_of_token(dashboard: Dashboard, text: str) -> User | None:
    """Return the user of a stored token; None: it is missing, or it has expired or was revoked."""
    return await dashboard.run(find_user, dashboard.app, text, limiter=dashboard.user_limiter)


def find_user(app: Any, text: str) -> User | None:
    """Return the same, in a thread that may wait."""
    token = find_token(Store(app), text)
    return None if token is None else User(token.name, token.rights, token.expires_at)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()
