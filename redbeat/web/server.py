"""The server of ``celery redbeat web``: uvicorn, with the dashboard alone, until it is stopped.

Invariant: it listens where no other machine can reach it, unless users have passwords; no token is logged.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from redbeat.access.rights import rights_of
from redbeat.access.users import User
from redbeat.config.address import Address
from redbeat.config.networks import is_any, is_loopback
from redbeat.errors import ConfigurationError
from redbeat.web.access.authentication import BasicAuth, Link, WayIn, token_in_cookie
from redbeat.web.application import build

#: the variables of the environment with the name, the password and the rights of a user
USER, PASSWORD, RIGHTS = "REDBEAT_WEB_USER", "REDBEAT_WEB_PASSWORD", "REDBEAT_WEB_RIGHTS"

#: how many connections are held, how long one waits for its next request, and how long requests keep the
#: server from stopping
MAX_CONNECTIONS, KEEP_ALIVE_SECONDS, STOP_SECONDS = 1000, 10, 10
#: how much of a head is kept that isn't whole
MAX_HEADER_BYTES = 32 * 1024
#: by how much a beat on the same machine goes first
NICENESS = 5
#: how long a thread that computes in the background keeps the interpreter while a page wants it, at the most:
#: a page asks Redis dozens of times, and wants it after each answer. Python's own value is ten times as much
SWITCH_SECONDS = 0.0005


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


def serve(
    app: Any,
    address: Address,
    me: str,
    basic: BasicAuth | None,
    tell: Callable[[str], None],
    *,
    is_read_only: bool = False,
    root_path: str = "",
) -> None:
    """Serve the dashboard of ``app`` until a signal ends it.

    Arguments:
        me: the name of the user who comes by the link.
        basic: the user who has a password; None: there is a link instead.
        tell: is told the address, with the link's token, once the server listens.
        root_path: the path under which a reverse proxy has it, such as /redbeat; empty for none.

    Raises:
        ConfigurationError: it would listen to other machines without passwords, or a setting is invalid.
        OSError: it can't listen there.
    """
    if basic is None and not _is_local(address.host):
        raise ConfigurationError(
            f"{address} can be reached from other machines, and the dashboard is open to this one alone "
            f"unless users have passwords: set {USER}, {PASSWORD} and {RIGHTS} in the environment."
        )
    is_v6 = ":" in address.host
    with socket.create_server(
        (address.host, address.port),
        family=socket.AF_INET6 if is_v6 else socket.AF_INET,
        dualstack_ipv6=is_v6 and socket.has_dualstack_ipv6(),
        backlog=MAX_CONNECTIONS,
    ) as listener:
        # else a body waits 40 ms for the ACK of its head; asyncio looks for a protocol, which this has not
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        address = replace(address, port=listener.getsockname()[1])
        link = Link(User(me, ["admin"])) if basic is None else None
        ways_in: list[WayIn] = [link, token_in_cookie] if link is not None else []
        if basic is not None:
            ways_in = [basic]
        application = build(
            app, ways_in, is_live=True, is_read_only=is_read_only, place=str(address), own_host=address.host
        )
        config = uvicorn.Config(
            _below(root_path, application),
            interface="asgi3",
            http="h11",
            ws="none",
            lifespan="off",
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        )
        shown = replace(address, host="localhost") if is_any(address.host) else address
        place = f"http://{shown}{root_path}/"
        tell(place if link is None else f"{place}login?token={quote(link.token)}")
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # it warns of each request that it refuses
        with suppress(OSError):
            os.nice(NICENESS)
        sys.setswitchinterval(SWITCH_SECONDS)
        for one in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises the one that has ended it once more
            signal.signal(one, signal.SIG_IGN)
        uvicorn.Server(config).run(sockets=[listener])


def _below(root: str, app: ASGIApp) -> ASGIApp:
    """Return an application that answers below ``root``, whether a proxy has cut that off or not."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if not f"{path}/".startswith(f"{root}/"):
            path = root + path
        await app({**scope, "root_path": root, "path": path}, receive, send)

    return application


def _is_local(host: str) -> bool:
    """Return True if only this machine can reach what listens at ``host``."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(is_loopback(str(one[4][0])) for one in found)
