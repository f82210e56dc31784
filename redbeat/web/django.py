"""The dashboard among the URLs of a Django project.

::

    urlpatterns = [
        path("redbeat/", include(redbeat.web.django.urls(app, auth=user_of))),
    ]

``auth`` gets Django's own request, with its user. Invariants: Django's middlewares have seen each request,
and Django has decided on its host and scheme; everything else is checked here, as in any other place.
``auth`` is called in the request's own thread, so that Django ends the database connections that it has used.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

from starlette.requests import Request

from redbeat.access.users import User
from redbeat.web.access.authentication import Auth
from redbeat.web.access.gate import MAX_BODY_BYTES
from redbeat.web.application import wsgi_app
from redbeat.web.paths import API, STATIC

_USER = "redbeat.user"
#: headers that Django has read, if its settings say so
_READ_BY_DJANGO = ("HTTP_X_FORWARDED_HOST", "HTTP_X_FORWARDED_PREFIX", "HTTP_X_FORWARDED_PROTO")


def urls(app: Any, auth: Auth | None = None, *, read_only: bool = False) -> list[Any]:
    """Return the patterns of the dashboard, for ``include``.

    Arguments:
        app: the Celery app.
        auth: gets Django's request, and returns a :class:`redbeat.web.User`, or None for nobody; it may be a
            coroutine function. What it raises is Django's to answer, such as ``PermissionDenied``. None: only
            browsers on this machine are let in, with a token of ``celery redbeat token add``.
        read_only: nobody can change anything.
    """
    from django.urls import re_path

    return [re_path(r"^(?P<below>.*)\Z", dashboard(app, auth, read_only=read_only))]


def dashboard(app: Any, auth: Auth | None = None, *, read_only: bool = False) -> Callable[..., Any]:
    """Return the view of the dashboard, which gets a request and the path below the dashboard's own."""
    from asgiref.sync import async_to_sync, iscoroutinefunction
    from django.http import HttpResponse
    from django.views.decorators.csrf import csrf_exempt

    application = wsgi_app(app, auth and _answered, read_only=read_only, hosts=["*"])
    ask: Callable[[Any], Any] | None = async_to_sync(auth) if iscoroutinefunction(auth) else auth

    @csrf_exempt  # each form of the dashboard has a token of its own
    def view(request: Any, below: str) -> Any:
        head: list[Any] = []
        environ = _environ_of(request, below)
        if ask is not None and not environ["PATH_INFO"].startswith((API, STATIC)):  # neither asks for a login
            environ[_USER] = ask(request)
        body = b"".join(application(environ, lambda status, headers, _=None: head.extend((status, headers))))
        response = HttpResponse(body, status=int(head[0].partition(" ")[0]))
        del response["Content-Type"]
        for name, value in head[1]:
            if name.lower() == "set-cookie":
                response.cookies.load(value)
            elif name.lower() != "content-length":
                response[name] = value
        return response

    return view  # type: ignore[no-any-return]


async def _answered(request: Request) -> User | None:
    """Return what the application's ``auth`` has said of a request."""
    user: User | None = request.scope["wsgi_environ"][_USER]
    return user


def _environ_of(request: Any, below: str) -> dict[str, Any]:
    """Return the WSGI environment of a Django request, which may have come over ASGI."""
    from django.urls import get_script_prefix

    # not request.path, which over ASGI is without FORCE_SCRIPT_NAME
    root = get_script_prefix().rstrip("/") + request.path_info.removesuffix(below)
    environ: dict[str, Any] = {name: value for name, value in request.META.items() if isinstance(value, str)}
    environ.update({name: "" for name in _READ_BY_DJANGO if name in environ})
    environ.update(
        {
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": _as_wsgi(root.rstrip("/")),
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
