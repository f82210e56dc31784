"""A dashboard in this process, and a browser without scripts that looks at it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import uvicorn
from a2wsgi import WSGIMiddleware
from celery import Celery
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from redbeat.web import User, asgi_app

from .deadlines import patience
from .polling import eventually

#: where the dashboard seems to be
HOME = "http://localhost"
#: what users may have written into an entry
HOSTILE = "<img src=x onerror=alert(1)>\u202egnp.exe\x1b[31m" + "\u0430" * 40


class Browser:
    """A browser without scripts: keeps cookies, and sends each form with the token of the login page."""

    def __init__(self, application: ASGIApp, address: str = "127.0.0.1") -> None:
        self.http = TestClient(
            application,
            base_url=HOME,
            client=(address, 50_000),
            follow_redirects=False,
            raise_server_exceptions=False,
        )

    def get(self, path: str, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        """Return the answer as it comes."""
        return self.http.get(path, params=query or None, headers=headers)

    def read(self, path: str, status: int = 200, **query: Any) -> str:
        """Return the HTML of a page."""
        answer = self.get(path, **query)
        assert answer.status_code == status, (answer.status_code, answer.text[:2000])
        return str(answer.text)

    def read_whole(self, path: str, **query: Any) -> str:
        """Return the HTML of a page once no part of it is still being computed."""
        return str(eventually(lambda: 'hx-trigger="load' not in (html := self.read(path, **query)) and html))

    def token(self) -> str:
        """Return the token against forged requests, which is that of a cookie."""
        cookies = self.http.cookies
        if not any("redbeat_csrf" in name for name in cookies):
            self.get("/login")
        return next(value for name, value in cookies.items() if "redbeat_csrf" in name)

    def post(
        self, path: str, headers: Mapping[str, str] | None = None, files: Any = None, **fields: Any
    ) -> Any:
        """Return the answer to a form. Line breaks are sent as browsers do: each as CR LF."""
        given = {
            name: value.replace("\n", "\r\n") if isinstance(value, str) else value
            for name, value in {"csrf_token": self.token(), **fields}.items()
        }
        answer = self.http.post(path, data=given, headers=headers, files=files)
        address = answer.headers.get("location", "")
        if "/changing?" in address:  # it takes long on a busy machine
            answer = eventually(lambda: 'id="changing"' not in (made := self.http.get(address)).text and made)
        return answer

    def send(self, path: str, **fields: Any) -> str:
        """Return the HTML of the page that is shown after a form was sent."""
        answer = self.post(path, **fields)
        if answer.status_code == 303:
            answer = self.http.get(answer.headers["location"])
        assert answer.status_code == 200, (answer.status_code, answer.text[:2000])
        return str(answer.text)


def dashboard_of(
    app: Celery, rights: Iterable[str] = ("admin",), name: str = "anna", **options: Any
) -> ASGIApp:
    """The dashboard of an app, in which everybody is a user with these rights."""
    user = User(name, rights)

    def auth(_request: Request) -> User:
        return user

    return asgi_app(app, auth=auth, **options)


@contextmanager
def serving(application: ASGIApp, **options: Any) -> Iterator[str]:
    """Serve a dashboard on a free port of this machine, for a real browser; yields its address.

    ``options``: of uvicorn.
    """
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    # a page that is still open holds a stream
    config = uvicorn.Config(application, log_level="warning", timeout_graceful_shutdown=1, **options)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://localhost:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(patience(20))
        listening.close()


def serving_wsgi(application: Any) -> AbstractContextManager[str]:
    """Serve a WSGI application likewise."""
    return serving(WSGIMiddleware(application))
