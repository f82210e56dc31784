"""The server of ``celery redbeat web``: uvicorn, with the dashboard alone, until it is stopped.

Invariant: it listens where no other machine can reach it, unless users have passwords; no token is logged.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from redbeat.access.rights import rights_of
from redbeat.access.users import User
from redbeat.config.address import Address
from redbeat.config.networks import is_any, is_loopback
from redbeat.errors import ConfigurationError
from redbeat.web.access.authentication import BasicAuth, Link, TokenInCookie, WayIn
from redbeat.web.access.headers import SafeHeaders
from redbeat.web.access.refusals import Sending, refuse
from redbeat.web.application import build
from redbeat.web.connections import CLOSE, MAX_HEADER_BYTES, Connection, LimitedHeads

#: the variables of the environment with the name, the password and the rights of a user
USER, PASSWORD, RIGHTS = "REDBEAT_WEB_USER", "REDBEAT_WEB_PASSWORD", "REDBEAT_WEB_RIGHTS"

#: how long a connection waits for its next request, and how long open pages keep the server from stopping
KEEP_ALIVE_SECONDS, STOP_SECONDS = 10, 2
#: how many connections may wait to be accepted
BACKLOG = 512
#: by how much a beat on the same machine goes first
NICENESS = 5
#: how long a thread that computes in the background keeps the interpreter while a page wants it, at the most:
#: a page asks Redis dozens of times, and wants it after each answer. Python's own value is ten times as much
SWITCH_SECONDS = 0.0005


@dataclass(frozen=True)
class Serving:
    """How the dashboard is served.

    Attributes:
        address: where it listens.
        is_read_only: nobody can change anything.
        root_path: the path under which a reverse proxy has it, such as /redbeat; empty for none.
    """

    address: Address
    is_read_only: bool = False
    root_path: str = ""


def find_basic_auth(environ: Mapping[str, str]) -> BasicAuth | None:
    """Return the user whom the environment names; None: it names none.

    Raises:
        ConfigurationError: it names one without a password, or with rights that there aren't.
    """
    name, password = environ.get(USER, ""), environ.get(PASSWORD, "")
    if not name and not password:
        return None
    if not name or not password or ":" in name:
        raise ConfigurationError(
            f"{USER} and {PASSWORD} must both be set, and the name must not have a colon."
        )
    given = [one.strip() for one in environ.get(RIGHTS, "read").split(",") if one.strip()]
    try:
        rights = rights_of(given)
    except ValueError as exc:
        raise ConfigurationError(f"{RIGHTS}: {exc}") from exc
    return BasicAuth(User(name, rights), password)


def serve(app: Any, serving: Serving, me: str, basic: BasicAuth | None, tell: Callable[[str], None]) -> None:
    """Serve the dashboard of ``app`` until a signal ends it.

    Arguments:
        me: the name of whoever comes by the link.
        basic: the user who has a password; None: there is none, and there is a link instead.
        tell: is told the address, with the link's token, once the server listens.

    Raises:
        ConfigurationError: it would listen to other machines without passwords, or a setting can't be used.
        OSError: it can't listen there.
    """
    address = serving.address
    if basic is None and not _is_local(address.host):
        raise ConfigurationError(
            f"{address} can be reached from other machines, and the dashboard is open to this one alone "
            f"unless users have passwords: set {USER}, {PASSWORD} and {RIGHTS} in the environment."
        )
    listener = _listen(address)
    try:
        address = replace(address, port=listener.getsockname()[1])
        link = Link(User(me, ["admin"])) if basic is None else None
        ways_in: list[WayIn] = [basic] if basic is not None else []
        if link is not None:
            ways_in = [link, TokenInCookie(app)]
        application = build(
            app,
            ways_in,
            is_live=True,
            is_read_only=serving.is_read_only,
            place=str(address),
            own_host=address.host,
        )
        config = uvicorn.Config(
            SafeHeaders(LimitedHeads(EndingWell(BelowRoot(application)))),
            root_path=serving.root_path,
            interface="asgi3",
            http=Connection,
            ws="none",
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        shown = replace(address, host="localhost") if is_any(address.host) else address
        place = f"http://{shown}{serving.root_path}/"
        tell(place if link is None else f"{place}login?token={quote(link.token)}")
        logging.getLogger("uvicorn.error").addFilter(_OncePerMinute())
        with suppress(OSError):
            os.nice(NICENESS)
        sys.setswitchinterval(SWITCH_SECONDS)
        _Server(config).run(sockets=[listener])
    finally:
        listener.close()


class BelowRoot:
    """An application that answers below its root path also where no proxy has cut that off."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root, path = scope["root_path"], scope["path"]
        if root and f"{path}/".startswith(f"{root}{root}/"):  # uvicorn puts it before each path
            scope = {**scope, "path": path[len(root) :]}
        await self._app(scope, receive, send)


class EndingWell:
    """An application that says that it ends where uvicorn cancels a request: it takes longer than that waits.

    What the request has begun to change in a thread goes on; its outcome isn't seen.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = Sending(send)
        try:
            await self._app(scope, receive, sending)
        except asyncio.CancelledError:
            if not sending.has_begun:
                sentence = "The dashboard was stopped meanwhile. What was asked for may have been done."
                await refuse(scope, 503, sentence, CLOSE)(scope, receive, send)


class _OncePerMinute(logging.Filter):
    """Lets each message of the server through once a minute: it has one for each request that it refuses."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether ``record`` is logged."""
        now = time.monotonic()
        if record.levelno >= logging.ERROR or now - self._said.get(record.msg, -math.inf) > 60:
            self._said[record.msg] = now
            return True
        return False


class _Server(uvicorn.Server):
    """A server that ends well when a signal ends it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """End orderly at a signal; uvicorn itself would raise it once more then."""
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)


def _listen(address: Address) -> socket.socket:
    found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, where = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _is_local(host: str) -> bool:
    """Tell whether only this machine can reach what listens at ``host``."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(is_loopback(str(one[4][0])) for one in found)
