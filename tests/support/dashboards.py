"""A dashboard in this process, and a browser without scripts that looks at it."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from html import unescape
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import uvicorn
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
    """Keeps cookies, follows what it is sent to, and sends each form with the token of its page.

    Arguments:
        application: the dashboard.
        address: of this browser.
        root: the path below which the application believes to be.
    """

    def __init__(self, application: ASGIApp, address: str = "127.0.0.1", root: str = "") -> None:
        self.http = TestClient(
            application,
            base_url=HOME,
            root_path=root,
            client=(address, 50_000),
            follow_redirects=False,
            raise_server_exceptions=False,
        )
        self.root = root

    def get(self, path: str, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        """The answer for a path below the root, as it comes."""
        return self.http.get(f"{self.root}{path}", params=query or None, headers=headers)

    def read(self, path: str, status: int = 200, **query: Any) -> str:
        """The HTML of a page."""
        answer = self.get(path, **query)
        assert answer.status_code == status, (answer.status_code, answer.text[:2000])
        return str(answer.text)

    def token(self, page: str = "/login") -> str:
        """The token against forged requests, from a page."""
        found = re.search(r'"X-CSRF-Token": "([^"]*)"', unescape(self.get(page).text))
        assert found, page
        return found[1]

    def post(
        self, path: str, headers: Mapping[str, str] | None = None, files: Any = None, **fields: Any
    ) -> Any:
        """The answer to a form, as it comes. Line breaks are sent as browsers do: each as CR LF."""
        given = {
            name: value.replace("\n", "\r\n") if isinstance(value, str) else value
            for name, value in {"csrf_token": self.token(), **fields}.items()
        }
        answer = self.http.post(f"{self.root}{path}", data=given, headers=headers, files=files)
        # what takes long on a busy machine is waited for
        changing = answer.headers.get("location", "").startswith(f"{self.root}/changing?")
        return eventually(lambda: self._made(answer.headers["location"])) if changing else answer

    def _made(self, url: str) -> Any:
        answer = self.http.get(url)
        return None if 'id="changing"' in answer.text else answer

    def send(self, path: str, **fields: Any) -> str:
        """The HTML of the page that is shown after a form was sent."""
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


class _Threads(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library calls it so
        """Say nothing."""


@contextmanager
def serving_wsgi(application: Any) -> Iterator[str]:
    """The same for one of WSGI."""
    with make_server("127.0.0.1", 0, application, _Threads, _Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://localhost:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(patience(20))


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
