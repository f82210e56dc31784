"""The dashboard among the URLs of a Django project.

::

    urlpatterns = [
        path("redbeat/", include(redbeat.web.django.urls(app, auth=user_of))),
    ]

``auth`` gets Django's own request, with its user. Invariant: Django's middlewares have seen each request, and
Django has checked its host; everything else is checked here, as in any other place.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from redbeat.web.access.authentication import Auth
from redbeat.web.application import wsgi_app


def urls(app: Any, auth: Auth | None = None, *, read_only: bool = False) -> list[Any]:
    """Return the patterns of the dashboard, for ``include``.

    Arguments:
        app: the Celery app.
        auth: gets Django's request, and returns a :class:`redbeat.web.User`, or None for nobody. None: only
            browsers on this machine are let in, with a token of ``celery redbeat token add``.
        read_only: nobody can change anything.
    """
    from django.urls import re_path

    return [re_path(r"^(?P<below>.*)\Z", _view(app, auth, read_only))]


def _view(app: Any, auth: Auth | None, read_only: bool) -> Callable[..., Any]:
    from django.http import HttpResponse
    from django.views.decorators.csrf import csrf_exempt

    application = wsgi_app(app, auth, read_only=read_only, hosts=["*"])

    def dashboard(request: Any, below: str) -> Any:
        request.get_host()  # raises where ALLOWED_HOSTS doesn't have it
        head: list[Any] = []
        environ = _environ_of(request, below)
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


def _environ_of(request: Any, below: str) -> dict[str, Any]:
    """Return the WSGI environment of a Django request, which may have come over ASGI."""
    path = request.path[: len(request.path) - len(below)] if below else request.path
    body = request.body
    environ: dict[str, Any] = {name: value for name, value in request.META.items() if isinstance(value, str)}
    environ.update(
        REQUEST_METHOD=request.method,
        SCRIPT_NAME=_as_wsgi(path.rstrip("/")),
        PATH_INFO=_as_wsgi("/" + below),
        CONTENT_LENGTH=str(len(body)),
        SERVER_NAME=request.META.get("SERVER_NAME") or "localhost",
        SERVER_PORT=str(request.META.get("SERVER_PORT") or 80),
        SERVER_PROTOCOL=request.META.get("SERVER_PROTOCOL") or "HTTP/1.1",
    )
    raw = getattr(request, "scope", {}).get("raw_path")
    if raw:  # over ASGI: how the path was written
        environ["RAW_URI"] = raw.decode("latin-1")
    environ["wsgi.url_scheme"] = request.scheme
    environ["wsgi.input"] = io.BytesIO(body)
    environ["redbeat.request"] = request
    return environ


def _as_wsgi(text: str) -> str:
    return text.encode().decode("latin-1")
