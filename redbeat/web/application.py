"""The dashboard as an application that servers and frameworks run: ``asgi_app`` and ``wsgi_app``.

Owns the order of what a request goes through: its headers, proxies and host, who sends it, its size, and then
the page or the verb.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from redbeat.config.config import ensure_conf
from redbeat.config.masking import sanitize_url
from redbeat.web import live
from redbeat.web.access.authentication import Auth, OwnAuth, TokenInCookie, WayIn
from redbeat.web.access.cookies import Cookies
from redbeat.web.access.gate import Gate
from redbeat.web.access.headers import SafeHeaders
from redbeat.web.access.hosts import LOCAL_HOSTS, AllowedHosts
from redbeat.web.access.limits import LimitedAddresses, LimitedBodies
from redbeat.web.access.proxies import TrustedProxies
from redbeat.web.access.refusals import Sending
from redbeat.web.api.problems import refuse as refuse_program
from redbeat.web.api.resources import Interface
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
from redbeat.web.processes import InEachProcess
from redbeat.web.routes import show_error
from redbeat.web.visit import Visit
from redbeat.web.warming import warm_up
from redbeat.web.wsgi import WSGIApp, adapted

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
    return build(app, _ways_in(app, auth), is_live=True, is_read_only=read_only, hosts=hosts)


def wsgi_app(
    app: Any, auth: Auth | None = None, *, read_only: bool = False, hosts: Sequence[str] | None = None
) -> WSGIApp:
    """Return the same as a WSGI application, for Flask and others. Its pages ask for news every few seconds.

    ``auth`` gets Starlette's request here, too; the WSGI environment is ``request.scope["wsgi_environ"]``.
    """
    application = build(app, _ways_in(app, auth), is_live=False, is_read_only=read_only, hosts=hosts)
    return adapted(application)


def _ways_in(app: Any, auth: Auth | None) -> list[WayIn]:
    return [TokenInCookie(app)] if auth is None else [OwnAuth(auth)]


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
        hosts: None: those of the setting, and this machine's own names; '*': any, as whoever is in front has
            looked at it.
        place: tells its cookies from those of another dashboard under the same name.
        own_host: where its server listens, another name under which it may be asked for.
    """
    config = ensure_conf(app)
    warm_up()
    dashboards = InEachProcess(lambda: Dashboard(app, ways_in, is_live=is_live, is_read_only=is_read_only))
    cookies = Cookies(place or f"{app.main}:{config.key_prefix}:{sanitize_url(str(config.redis_url))}")
    inner: ASGIApp = LimitedBodies(_Routes())
    inner = Gate(inner, app, ways_in, cookies, _refuse, is_read_only=is_read_only)
    inner = LimitedAddresses(inner)
    own = [f"[{own_host}]" if ":" in own_host else own_host] if own_host else []
    inner = AllowedHosts(inner, [*LOCAL_HOSTS, *own, *config.web_hosts] if hosts is None else hosts)
    inner = TrustedProxies(inner, config.web_proxies)
    outer: ASGIApp = SafeHeaders(inner)

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        await outer({**scope, "redbeat.dashboard": dashboards.get()}, receive, send)

    return application


class _Routes:
    """Pages, operations and files; where one fails, that is answered here."""

    def __init__(self) -> None:
        interface, files = Mount("/api/v1", Interface()), Mount(STATIC.rstrip("/"), static_files())
        self._router = Router([*PAGES, interface, files])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # a WebSocket: nobody answers it
            return
        sending = Sending(send)
        try:
            # a framework around it mustn't be told of what goes wrong here
            await self._router({**scope, "app": self._router}, receive, sending)
        except Exception as exc:
            if sending.has_begun:
                raise
            await _refuse(Request(scope, receive), exc)(scope, receive, send)


def _refuse(request: Request, exc: Exception | None) -> Response:
    """Return the answer to a request that has failed; None: nobody is known who has sent it."""
    if is_api(request.scope):
        return refuse_program(request, exc)
    visit = Visit(request.scope["redbeat.dashboard"], request)
    if exc is None:
        return ask_to_log_in(visit)
    response = show_error(visit, exc)
    if response.status_code == 405 and (methods := _methods_at(request.scope)):
        response.headers["Allow"] = ", ".join(methods)
    return response


def _methods_at(scope: Scope) -> list[str]:
    """Return what the pages at a path take: each route knows only its own, and one path may have two."""
    found = [route for route in PAGES if route.matches(scope)[0] is not Match.NONE]
    return sorted({method for route in found for method in route.methods})  # type: ignore[attr-defined]
