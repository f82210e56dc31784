"""Logging in with the printed link or with a token, and logging out."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.web.access.authentication import find_user
from redbeat.web.access.cookies import Cookies
from redbeat.web.routes import open_action, open_page
from redbeat.web.visit import Visit


def ask_to_log_in(visit: Visit) -> Response:
    """Return the page for somebody who isn't known: it asks for a token, where one would do."""
    response = visit.render(
        "login.html", 401, title="Log in", takes_token=visit.dashboard.takes_token, problem=""
    )
    if visit.dashboard.takes_password:
        response.headers["WWW-Authenticate"] = 'Basic realm="RedBeat", charset="UTF-8"'
    return response


def show_login(visit: Visit) -> Response:
    """Take the token of the link, or ask for one."""
    token = visit.query.get("token", "")
    link = visit.dashboard.link
    # only the link's own token may stand in an address: a server that logs addresses must not log others
    session = None if link is None or not token else link.session_for(token)
    if session is None:
        return visit.render(
            "login.html",
            401 if token else 200,
            title="Log in",
            takes_token=visit.dashboard.takes_token,
            problem="This link is no longer good: each start of the dashboard prints another one."
            if token
            else "",
        )
    return _logged_in(visit, session)


def log_in(visit: Visit) -> Response:
    """Take a token that was typed."""
    token = str(visit.form.get("token", "")).strip()
    link = visit.dashboard.link
    session = link.session_for(token) if link is not None else None
    if session is None and visit.dashboard.takes_token and find_user(visit.app, token) is not None:
        session = token
    if session is None:
        return visit.render(
            "login.html",
            401,
            title="Log in",
            takes_token=visit.dashboard.takes_token,
            problem="There is no such token, or it has expired.",
        )
    return _logged_in(visit, session)


def log_out(visit: Visit) -> Response:
    """Forget who it was."""
    response, cookies = visit.see("login"), _cookies(visit)
    session, link = cookies.session(visit.request), visit.dashboard.link
    if session is not None and link is not None:
        link.end(session)
    cookies.end_session(visit.request, response)
    return response


def _logged_in(visit: Visit, session: str) -> Response:
    response = visit.see()
    _cookies(visit).set_session(visit.request, response, session)
    return response


def _cookies(visit: Visit) -> Cookies:
    cookies: Cookies = visit.request.scope["redbeat.cookies"]
    return cookies


ROUTES: list[BaseRoute] = [
    open_page("/login", show_login),
    open_action("/login", log_in),
    open_action("/logout", log_out),
]
