"""The dashboard among the URLs of a Django project.

::

    urlpatterns = [
        path("redbeat/", include(redbeat.web.django.urls(app, auth=user_of))),
    ]

``auth`` gets Django's own request, with its user. Invariants: Django's middlewares have seen each request,
and Django has checked its host; everything else is checked here, as in any other place. ``auth`` is called in
the request's own thread, so that Django ends the database connections that it has used.
"""

from __future__ import annotations

import inspect
import io
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from starlette.requests import Request

from redbeat.access.users import User
from redbeat.web.access.authentication import Auth
from redbeat.web.access.limits import MAX_BODY_BYTES
from redbeat.web.application import wsgi_app
from redbeat.web.paths import API, STATIC

_ASKED = "redbeat.asked"


def urls(app: Any, auth: Auth | None = None, *, read_only: bool = False) -> list[Any]:
    """Return the patterns of the dashboard, for ``include``.

    Arguments:
        app: the Celery app.
        auth: gets Django's request, and returns a :class:`redbeat.web.User`, or None for nobody; it may be a
            coroutine function. None: only browsers on this machine are let in, with a token of
            ``celery redbeat token add``.
        read_only: nobody can change anything.
    """
    from django.urls import re_path

    return [re_path(r"^(?P<below>.*)\Z", _view(app, auth, read_only))]


def _view(app: Any, auth: Auth | None, read_only: bool) -> Callable[..., Any]:
    from django.http import HttpResponse
    from django.views.decorators.csrf import csrf_exempt

    application = wsgi_app(app, auth and _answered, read_only=read_only, hosts=["*"])

    def dashboard(request: Any, below: str) -> Any:
        head: list[Any] = []
        environ = _environ_of(request, below)
        if auth is not None and not environ["PATH_INFO"].startswith((API, STATIC)):  # nobody asks there
            environ[_ASKED] = _ask(auth, request)
        body = b"".join(application(environ, lambda status, headers, _=None: head.extend((status, headers))))
        response = HttpResponse(body, status=int(head[0].partition(" ")[0]))
        del response["Content-Type"]
        for name, value in head[1]:
            if name.lower() == "set-cookie":
                response.cookies.load(value)
            elif name.lower() != "content-length":
                response[name] = value
        return response

    # each form of the dashboard has a token of its own
    return csrf_exempt(dashboard)  # type: ignore[no-any-return]


def _ask(auth: Auth, request: Any) -> Future[User | None]:
    """Return what ``auth`` returns or raises."""
    from asgiref.sync import async_to_sync

    asked: Future[User | None] = Future()
    try:
        found = auth(request)
        asked.set_result(async_to_sync(_wait_for)(found) if inspect.isawaitable(found) else found)
    except Exception as exc:  # noqa: BLE001 - the dashboard says what has gone wrong
        asked.set_exception(exc)
    return asked


async def _wait_for(found: Awaitable[User | None]) -> User | None:
    return await found


async def _answered(request: Request) -> User | None:
    """Return what the application has said of a request."""
    asked: Future[User | None] = request.scope["wsgi_environ"][_ASKED]
    return asked.result()


def _environ_of(request: Any, below: str) -> dict[str, Any]:
    """Return the WSGI environment of a Django request, which may have come over ASGI."""
    path = request.path[: len(request.path) - len(below)] if below else request.path
    environ: dict[str, Any] = {name: value for name, value in request.META.items() if isinstance(value, str)}
    environ.update(
        {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": _as_wsgi(path.rstrip("/")),
            "PATH_INFO": _as_wsgi("/" + below),
            "HTTP_HOST": request.get_host(),  # raises where ALLOWED_HOSTS doesn't have it
            "SERVER_NAME": request.META.get("SERVER_NAME") or "localhost",
            "SERVER_PORT": str(request.META.get("SERVER_PORT") or 80),
            "SERVER_PROTOCOL": request.META.get("SERVER_PROTOCOL") or "HTTP/1.1",
            "wsgi.url_scheme": request.scheme,
            "wsgi.input": request,  # not its body, which Django limits by an answer of its own
        }
    )
    scope = getattr(request, "scope", None)
    if scope is not None:  # over ASGI Django has the whole body, whether its length was told or not
        body = request.read(MAX_BODY_BYTES + 1)
        environ.update({"CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body)})
        environ.pop("HTTP_TRANSFER_ENCODING", None)
        if scope.get("raw_path"):  # how the path was written
            environ["RAW_URI"] = scope["raw_path"].decode("latin-1")
    return environ


def _as_wsgi(text: str) -> str:
    return text.encode().decode("latin-1")
