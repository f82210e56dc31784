"""The dashboard as an application that servers and frameworks run: ``asgi_app`` and ``wsgi_app``.

Owns the order of what a request goes through: its headers, proxies and host, who sends it, its size, and then
the page or the verb.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from redbeat.config.config import ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.web import live
from redbeat.web.access.authentication import Auth, WayIn, own_auth, token_in_cookie
from redbeat.web.access.gate import Gate
from redbeat.web.access.headers import SafeHeaders
from redbeat.web.access.proxies import TrustedProxies
from redbeat.web.api.problems import refuse as refuse_program
from redbeat.web.api.resources import interface
from redbeat.web.assets import static_files
from redbeat.web.dashboard import Dashboard
from redbeat.web.pages import (
    audit,
    calendars,
    changing,
    doctor,
    entries,
    entries_chosen,
    entry,
    entry_actions,
    entry_editing,
    files,
    later,
    login,
    overview,
    routing,
    runs,
    runs_chosen,
    timeline,
)
from redbeat.web.pages.login import ask_to_log_in
from redbeat.web.paths import STATIC, is_api
from redbeat.web.routes import show_error
from redbeat.web.visit import Visit
from redbeat.web.wsgi import WSGIApp, adapted

#: the names of this machine
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")

_ROOMS = (
    login,
    live,
    overview,
    entries,
    entries_chosen,
    entry,
    entry_actions,
    entry_editing,
    timeline,
    runs,
    runs_chosen,
    later,
    doctor,
    files,
    calendars,
    routing,
    audit,
    changing,
)
PAGES: Sequence[BaseRoute] = [route for room in _ROOMS for route in room.ROUTES]


def asgi_app(
    app: Any, auth: Auth | None = None, *, read_only: bool = False, hosts: Sequence[str] | None = None
) -> ASGIApp:
    """Return the dashboard of ``app`` as an ASGI application, to be mounted anywhere.

    Arguments:
        app: the Celery app.
        auth: gets each request (Starlette's), and returns a :class:`User`, or None for nobody; it may be a
            coroutine function. None: only browsers on this machine are let in, with a token of
            ``celery redbeat token add``.
        read_only: nobody can change anything.
        hosts: the names under which it may be asked for, instead of the setting ``redbeat_web_hosts``; '*'
            for any, where whoever is in front has looked at it.

    Raises:
        ConfigurationError: a setting can't be used.
    """
    return build(app, _ways_in(auth), is_live=True, is_read_only=read_only, hosts=hosts)


def wsgi_app(
    app: Any, auth: Auth | None = None, *, read_only: bool = False, hosts: Sequence[str] | None = None
) -> WSGIApp:
    """Return the same as a WSGI application, for Flask and others. Its pages ask for news every few seconds.

    ``auth`` gets Starlette's request here, too; the WSGI environment is ``request.scope["wsgi_environ"]``.
    """
    return adapted(build(app, _ways_in(auth), is_live=False, is_read_only=read_only, hosts=hosts))


def _ways_in(auth: Auth | None) -> list[WayIn]:
    return [token_in_cookie] if auth is None else [own_auth(auth)]


def build(
    app: Any,
    ways_in: Sequence[WayIn],
    *,
    is_live: bool,
    is_read_only: bool,
    hosts: Sequence[str] | None = None,
    place: str = "",
    own_host: str = "",
) -> ASGIApp:
    """Return the dashboard with these ways in.

    Arguments:
        hosts: None: those of the setting, and this machine's own names; '*': any, as the server in front has
            checked the host.
        place: tells its cookies from those of another dashboard under the same name.
        own_host: where its server listens, another name under which it may be asked for.
    """
    config = ensure_conf(app)
    place = place or f"{app.main}:{config.key_prefix}:{sanitize_url(str(config.redis_url))}"
    if hosts is None:
        own = [f"[{own_host}]" if ":" in own_host else own_host] if own_host else []
        hosts = [*_LOCAL_HOSTS, *own, *config.web_hosts]

    @cache
    def dashboard_in(_process: int) -> Dashboard:
        """A server may fork after it has loaded the application; threads and connections aren't inherited."""
        return Dashboard(app, ways_in, is_live=is_live, is_read_only=is_read_only, place=place)

    pages = Starlette(
        routes=[*PAGES, Mount("/api/v1", interface()), Mount(STATIC.rstrip("/"), static_files())],
        exception_handlers={HTTPException: _refuse},
    )
    gate = TrustedHostMiddleware(Gate(pages, _refuse), hosts, www_redirect=False)
    outer = SafeHeaders(TrustedProxies(gate, config.web_proxies))

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await outer({**scope, "redbeat.dashboard": dashboard_in(os.getpid())}, receive, send)

    return application


def _refuse(request: Request, exc: Exception | None) -> Response:
    """Return the answer to a request that has failed; None: its user is unknown."""
    if is_api(request.scope):
        return refuse_program(request, exc)
    visit = Visit(request.scope["redbeat.dashboard"], request)
    return ask_to_log_in(visit) if exc is None else show_error(visit, exc)
