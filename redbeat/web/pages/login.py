"""Logging in with the printed link or with a token, and logging out."""

from __future__ import annotations

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.web.access.authentication import find_user, is_local
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit

#: why somebody can't log in by the link or a token, whom their cookie wouldn't let in
FROM_ELSEWHERE = (
    "The printed link and tokens are for browsers on this machine alone, and this request comes from another "
    "one, or through a proxy. To let others in, celery redbeat web takes a user with a password, and a "
    "dashboard that is mounted in an application takes auth."
)


def ask_to_log_in(visit: Visit) -> Response:
    """Return the page for somebody who isn't known: it asks for a token, where one would do."""
    response = _login_page(visit, 401)
    if visit.dashboard.takes_password:
        response.headers["WWW-Authenticate"] = 'Basic realm="RedBeat", charset="UTF-8"'
    return response


def show_login(visit: Visit) -> Response:
    """Take the token of the link, or ask for one."""
    token = visit.query.get("token", "")
    if not token:
        return _login_page(visit, 200)
    # only the link's own token may stand in an address: a server that logs addresses must not log others
    problem = "This link is no longer good: each start of the dashboard prints another one."
    return _log_in(visit, _session_by_link(visit, token), problem)


def log_in(visit: Visit) -> Response:
    """Take a token that was typed."""
    token = visit.typed("token").strip()
    session = _session_by_link(visit, token)
    if session is None and _takes_token(visit) and find_user(visit.app, token) is not None:
        session = token
    return _log_in(visit, session, "There is no such token, or it has expired.")


def _log_in(visit: Visit, session: str | None, problem: str) -> Response:
    if session is None:
        return _login_page(visit, 401, problem)
    response = visit.see()
    visit.cookies.set(response, "session", session)
    return response


def _takes_token(visit: Visit) -> bool:
    return visit.dashboard.takes_token and is_local(visit.request)


def _session_by_link(visit: Visit, token: str) -> str | None:
    link = visit.dashboard.link
    return link.session_for(token) if link is not None and is_local(visit.request) else None


def _login_page(visit: Visit, status: int, problem: str = "") -> Response:
    takes_token = _takes_token(visit)
    if visit.dashboard.takes_token and not takes_token:
        problem = FROM_ELSEWHERE
    return visit.render("login.html", status, title="Log in", takes_token=takes_token, problem=problem)


def log_out(visit: Visit) -> Response:
    """End the session."""
    response = visit.see("login")
    session, link = visit.cookies.get("session"), visit.dashboard.link
    if session is not None and link is not None:
        link.end(session)
    visit.cookies.set(response, "session", "")
    return response


ROUTES: list[BaseRoute] = [
    page("/login", show_login, right=None),
    action("/login", log_in, right=None),
    action("/logout", log_out, right=None),
]
