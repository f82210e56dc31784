"""The dashboard below a path of real frameworks and servers, behind a proxy, under WSGI, and as a command."""

from __future__ import annotations

import base64
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch
from wsgiref.util import setup_testing_defaults

import httpx
import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.config.address import Address
from redbeat.entries.audit import find_records
from redbeat.store.nodes import Command
from redbeat.store.store import Store
from redbeat.web import User, wsgi_app
from redbeat.web import server as web_server
from redbeat.web.api.addresses import segment_of
from tests.integration.web.conftest import Add
from tests.support.apps import write_app
from tests.support.command_line import call, installed
from tests.support.daemons import Daemon
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.machine import require_program
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.programs import token_of
from tests.support.servers import Server

USERS = {"REDBEAT_WEB_USER": "ops", "REDBEAT_WEB_PASSWORD": "secret"}


_USERS = """
import redbeat.web
from project import app

RIGHTS = {"anna": ["admin"], "ben": ["read"]}

def user_of(request):
    name = request.headers.get("x-user")
    return redbeat.web.User(name, RIGHTS[name]) if name in RIGHTS else None
"""


_SITES = {
    "fastapi": """
from fastapi import FastAPI
from users import app, redbeat, user_of

site = FastAPI()
site.mount("/tools/redbeat", redbeat.web.asgi_app(app, auth=user_of))

@site.get("/")
def home():
    return "home"
""",
    "flask": """
from flask import Flask
from users import app, redbeat, user_of
from werkzeug.middleware.dispatcher import DispatcherMiddleware

site = Flask(__name__)
site.wsgi_app = DispatcherMiddleware(
    site.wsgi_app, {"/tools/redbeat": redbeat.web.wsgi_app(app, auth=user_of)}
)

@site.get("/")
def home():
    return "home"
""",
    "django": """
import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.urls import include, path

settings.configure(
    SECRET_KEY="x", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["localhost", "ops.example.com"], DEBUG=False,
    USE_X_FORWARDED_HOST=True, SECURE_PROXY_SSL_HEADER=("HTTP_X_FORWARDED_PROTO", "https"),
    MIDDLEWARE=[
        f"{__name__}.note_thread",
        "django.middleware.security.SecurityMiddleware", "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware", "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ],
)
django.setup()
import threading
import redbeat.web.django
from asgiref.sync import sync_to_async
from users import app, user_of

def note_thread(get_response):
    def respond(request):
        request.thread = threading.get_ident()
        return get_response(request)
    return respond

def in_its_thread(request):
    assert threading.get_ident() == request.thread, "Django would leave its database connections open"
    return user_of(request)

async def by_coroutine(request):
    return await sync_to_async(in_its_thread)(request)

urlpatterns = [
    path("", lambda request: HttpResponse("home")),
    path("tools/redbeat/", include(redbeat.web.django.urls(app, auth=in_its_thread))),
    path("async/", include(redbeat.web.django.urls(app, auth=by_coroutine))),
]
site, asgi_site = get_wsgi_application(), get_asgi_application()
""",
}


#: servers, and how they tell their address
_GUNICORN = ["gunicorn", "--bind=127.0.0.1:0", "--workers=2", "--preload", "--graceful-timeout=1"]


_UVICORN = ["uvicorn", "--port=0"]


_ADDRESS = re.compile(r"http://127\.0\.0\.1:(?P<port>\d+)")


_WAYS = {
    "fastapi on uvicorn": ("fastapi", [*_UVICORN, "place:site"]),
    "flask on gunicorn": ("flask", [*_GUNICORN, "place:site"]),
    "django on gunicorn": ("django", [*_GUNICORN, "place:site"]),
    "django on uvicorn": ("django", [*_UVICORN, "place:asgi_site"]),
}


def serve(server: Server, directory: Path, framework: str, command: list[str]) -> Process:
    """A site with the dashboard at /tools/redbeat, which somebody may use who says who they are."""
    write_app(directory, "project", server.url(0), redbeat_redis_url=server.url(1))
    (directory / "users.py").write_text(_USERS)
    (directory / "place.py").write_text(_SITES[framework])
    return Process([sys.executable, "-m", *command], directory, installed(directory))


def visitor(url: str, **headers: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers=headers, timeout=patience())


def token_in(page: httpx.Response) -> str:
    [found] = re.findall(r"X-CSRF-Token[^:]*: (?:&#34;|\")([\w-]{43})", page.text)
    return str(found)


def post(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    return client.post(path, data={"csrf_token": token_in(client.get("login")), **fields})


@pytest.mark.slow
@pytest.mark.parametrize("way", _WAYS)
def test_dashboard_works_below_a_path_of_a_real_framework(
    way: str, server: Server, tmp_path: Path, app: Celery, add: Add
) -> None:
    add("report")
    framework, command = _WAYS[way]
    with serve(server, tmp_path, framework, command) as site:
        port = site.wait_for(_ADDRESS)["port"]
        home = f"http://localhost:{port}/"
        assert "home" in httpx.get(home, timeout=patience()).text
        check_dashboard(f"{home}tools/redbeat/", "/tools/redbeat")
        check_interface(f"{home}tools/redbeat/", "/tools/redbeat", token_of(app))
        if framework == "django":
            check_dashboard(f"{home}async/", "/async")
            check_name_and_scheme(f"{home}tools/redbeat/")
        if framework == "fastapi":
            with httpx.stream("GET", f"{home}tools/redbeat/live", headers={"x-user": "ben"}) as stream:
                assert next(stream.iter_lines()).startswith("retry: ")
                site.signal(signal.SIGTERM)
                site.wait()  # an open page doesn't hold it
        assert not has_traceback(site.output())


def check_dashboard(url: str, root: str) -> None:
    """The dashboard at this address lets its users in, keeps below its root, and takes their forms."""
    stranger, reader, admin = (visitor(url, **{"x-user": name}) for name in ("", "ben", "anna"))
    assert stranger.get("").status_code == 401
    assert stranger.get("", headers={"host": "evil.com"}).status_code in (400, 404)

    page = reader.get("")
    assert (page.status_code, page.headers["x-frame-options"]) == (200, "DENY")
    links = re.findall(r'(?:href|src|action|hx-get|hx-post|sse-connect)="(/[^"]*)"', page.text)
    assert links
    assert all(link.startswith(f"{root}/") for link in links), links
    style = next(link for link in links if "redbeat.css" in link)
    assert "text/css" in reader.get(str(httpx.URL(url).join(style))).headers["content-type"]
    assert [reader.get(path).status_code for path in ("nothing", "api/v1/entries")] == [404, 401]

    done = post(admin, "logout")
    assert (done.status_code, done.headers["location"]) == (303, f"{root}/login")
    assert f"Path={root}" in done.headers["set-cookie"]
    assert admin.post("logout", data={"csrf_token": "x" * 43}).status_code == 403


def check_name_and_scheme(url: str) -> None:
    """Forms count under the name and the scheme that the framework takes from its proxy."""
    said = {"x-forwarded-host": "ops.example.com", "x-forwarded-proto": "https", "x-user": "ben"}
    page = httpx.get(f"{url}login", headers=said, timeout=patience())
    token, cookie = token_in(page), page.headers["set-cookie"].partition(";")[0]
    sent = {**said, "origin": "https://ops.example.com", "cookie": cookie}
    answer = httpx.post(f"{url}logout", data={"csrf_token": token}, headers=sent, timeout=patience())
    assert answer.status_code == 303


def check_interface(url: str, root: str, token: str, *, host: str = "localhost", is_raw: bool = True) -> None:
    """The REST interface at this address takes a token, any name and a large body, and compares and sets."""
    headers = {"authorization": f"Bearer {token}", "host": host}
    program = httpx.Client(base_url=f"{url}api/v1", headers=headers, timeout=patience())
    for name in ("a/pause", "täglich", "a"):
        path = f"/entries/{segment_of(name)}"
        entry = {"task": "echo", "schedule": "1h"}
        made = program.put(path, json=entry, headers={"if-none-match": "*"})
        assert (made.status_code, made.headers["location"]) == (201, f"{root}/api/v1{path}"), made.text
        changed = program.patch(path, json={"args": [1]}, headers={"if-match": made.headers["etag"]})
        assert changed.json()["args"] == [1]
        assert program.get(path).json()["name"] == name
    if is_raw:
        assert program.put("/entries/a%2Fpause", json={}).status_code == 400, "it isn't the pause of a"
        assert program.put("/pause", json={"names": ["x" * 3_000_000]}).status_code == 200
        assert program.put("/pause", json={"names": ["x" * 5_000_000]}).status_code == 413
    listed = program.get("/entries?limit=1").json()
    assert program.get(listed["next"]).json()["entries"]
    assert program.put("/delete", json={"names": ["a/pause", "täglich", "a"]}).json()["deleted"] == 3


@pytest.fixture
def command(server: Server, tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Start `celery redbeat web` on a free port."""
    started: list[Process] = []

    def start(*options: str, extra: str = "", **environment: str) -> Process:
        write_app(tmp_path, "project", server.url(0), redbeat_redis_url=server.url(1), extra=extra)
        words = [sys.executable, "-m", "celery", "-A", "project", "redbeat", "web", "--port=0", *options]
        started.append(Process(words, tmp_path, {**installed(tmp_path), **environment}))
        return started[-1]

    yield start
    for process in started:
        process.stop()


def test_command_prints_a_link_that_works_and_logs_no_token(
    command: Callable[..., Process], app: Celery
) -> None:
    process = command()
    link = process.wait_for(re.compile(r"http://127\.0\.0\.1:(?P<port>\d+)/login\?token=(?P<token>[\w-]+)"))
    browser = visitor(link[0].split("login")[0])
    came = browser.get(link[0])
    assert (came.status_code, came.headers["location"]) == (303, "/")
    assert "Overview" in browser.get("").text
    store = Store(app)
    store.ask(Command("hset", store.keys.tokens, "brokenid", "{"))
    bearer = {"authorization": f"Bearer rb_brokenid_{'s3cret' * 7}x"}
    assert browser.get("api/v1/status", headers=bearer).status_code == 401
    process.wait_for("The token brokenid in redbeat::tokens can't be used")
    process.signal(2)
    assert process.wait() == 0
    assert process.output().count(link["token"]) == 1
    assert "s3cret" not in process.output()
    assert not has_traceback(process.output())


def test_command_that_would_be_open_or_cannot_work_ends_with_the_reason(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.log, "setup", lambda **_: None)
    for options, environment, words in (
        (("--host=0.0.0.0",), {}, "can be reached from other machines"),
        ((), {"REDBEAT_WEB_USER": "ops"}, "must both be set"),
        ((), {**USERS, "REDBEAT_WEB_RIGHTS": "rood"}, "rood"),
        (("--root-path=//evil",), {}, "must be a path"),
        (("--host=192.0.2.1",), USERS, "Can't listen at 192.0.2.1:0"),
    ):
        with patch.dict(os.environ, environment):
            done = call(app, "web", "--port=0", *options)
        assert (done.exit_code != 0, words in done.stderr) == (True, True), done.stderr


def test_command_sends_pages_at_once_on_a_connection_that_stays(command: Callable[..., Process]) -> None:
    """A body that waits for the ACK of its head comes 40 ms later, each time."""
    place = command(**USERS).wait_for(re.compile(r"http://127\.0\.0\.1:\d+/"))[0]
    with visitor(place) as browser:
        took = [browser.get("static/icon.svg").elapsed.total_seconds() for _ in range(30)]
    assert min(took[10:]) < 0.03


@pytest.mark.slow
def test_link_below_a_root_path_works_with_and_without_a_proxy_that_strips_it(
    command: Callable[..., Process], app: Celery
) -> None:
    process = command("--root-path=/redbeat", "--host=0.0.0.0", **USERS)
    place = process.wait_for(re.compile(r"http://localhost:(?P<port>\d+)(?P<path>/redbeat/)"))
    process.wait_for("It can be asked for as localhost")
    for prefix in ("/redbeat", ""):
        url = f"http://localhost:{place['port']}{prefix}"
        page = httpx.get(f"{url}/", auth=("ops", "secret"), timeout=patience())
        assert 'href="/redbeat/static/redbeat.css' in page.text
        assert httpx.get(f"{url}/static/redbeat.css", timeout=patience()).status_code == 200
        program = {"authorization": f"Bearer {token_of(app)}"}
        for path, status in (("status", 200), ("entries/=eA", 404)):
            answer = httpx.get(f"{url}/api/v1/{path}", headers=program, timeout=patience())
            assert (answer.status_code, "application/" in answer.headers["content-type"]) == (status, True)


@pytest.mark.services
def test_paths_behind_nginx_with_a_prefix_are_below_it(
    command: Callable[..., Process], app: Celery, add: Add
) -> None:
    settings = "app.conf.update(redbeat_web_proxies=['127.0.0.1'], redbeat_web_hosts=['ops.example.com'])"
    process = command(extra=settings, **USERS, REDBEAT_WEB_RIGHTS="read,pause")
    port = process.wait_for(_ADDRESS)["port"]
    process.wait_for("by the names in redbeat_web_hosts: ops.example.com")
    add("rests")
    basic = base64.b64encode(b"ops:secret").decode()
    ops = visitor(f"http://127.0.0.1:{port}/", authorization=f"Basic {basic}")
    assert post(ops, "entries/delete", name="rests", confirmed="yes").status_code == 403
    assert post(ops, "entries/pause", name="rests", confirmed="yes").status_code == 303
    assert RedBeatSchedulerEntry.get("rests", app).paused
    with Nginx(
        f"""location /redbeat/ {{
            proxy_pass http://127.0.0.1:{port}/;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_set_header X-Forwarded-Proto https;
            proxy_set_header X-Forwarded-Prefix /redbeat;
            proxy_buffering off;
        }}"""
    ) as nginx:
        url = f"http://127.0.0.1:{nginx.port}/redbeat/"
        own = {"host": "ops.example.com"}
        assert httpx.get(url, headers=own).headers["www-authenticate"].startswith("Basic")
        page = httpx.get(url, headers=own, auth=("ops", "secret"))
        assert 'href="/redbeat/static/redbeat.css' in page.text
        assert re.search("Path=/redbeat.*Secure", page.headers["set-cookie"])
        for forged in ({"host": "evil.com"}, {"host": "evil.com", "x-forwarded-host": "localhost"}):
            assert httpx.get(url, headers=forged, auth=("ops", "secret")).status_code == 400
        with httpx.stream(
            "GET", f"{url}live", headers=own, auth=("ops", "secret"), timeout=patience()
        ) as live:
            assert live.headers["content-type"].startswith("text/event-stream")
            assert next(live.iter_lines()).startswith("retry:")
        # it decodes paths
        check_interface(url, "/redbeat", token_of(app), host="ops.example.com", is_raw=False)


def test_command_without_options_listens_on_this_machine_only(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[Address] = []
    monkeypatch.setattr(web_server, "serve", lambda _app, address, *_, **__: served.append(address))
    monkeypatch.setattr(app.log, "setup", lambda **_: None)
    done = call(app, "web")
    assert done.exit_code == 0, done.stderr
    assert served == [Address("127.0.0.1", 8555)]


PURGE = b'{"dry_run": true}'


def ask(application: Any, method: str, path: str, body: bytes = b"", **more: Any) -> httpx.Response:
    """The answer to a request, of whose environment ``more`` are other variables."""
    environ = {"REQUEST_METHOD": method, "PATH_INFO": path, "HTTP_HOST": "localhost", "QUERY_STRING": ""}
    environ |= {"REMOTE_ADDR": "127.0.0.1", "CONTENT_TYPE": "application/json"}
    environ |= {"CONTENT_LENGTH": str(len(body) or ""), "wsgi.input": io.BytesIO(body), **more}
    setup_testing_defaults(environ)
    head: list[Any] = []
    parts = application(environ, lambda status, headers, _=None: head.extend((status, headers)))
    content = b"".join(parts)
    return httpx.Response(int(head[0][:3]), headers=head[1], content=content)


@pytest.fixture
def application(app: Celery) -> Any:
    return wsgi_app(app, auth=lambda _request: User("anna", ["admin"]))


@pytest.fixture
def bearer(app: Celery) -> dict[str, str]:
    return {"HTTP_AUTHORIZATION": f"Bearer {token_of(app)}"}


@pytest.mark.parametrize(
    "length",
    [
        {"HTTP_TRANSFER_ENCODING": "chunked", "CONTENT_LENGTH": ""},
        {"HTTP_TRANSFER_ENCODING": "chunked"},
        *({"CONTENT_LENGTH": length} for length in ("abc", "-5", "1_7", "+17", "9" * 5000)),
    ],
)
def test_wsgi_body_of_unknown_length_is_refused(
    application: Any, app: Celery, bearer: dict[str, str], length: dict[str, str]
) -> None:
    answer = ask(application, "PUT", "/api/v1/purge", PURGE, **bearer, **length)
    assert (answer.status_code, answer.headers["content-type"]) == (411, "application/problem+json")
    assert "Content-Length" in answer.json()["detail"]
    assert ask(application, "POST", "/logout", b"csrf_token=x", **length).status_code == 411
    assert find_records(app, verb="purge") == []


def test_wsgi_path_that_is_not_utf8_is_not_a_server_error(application: Any, bearer: dict[str, str]) -> None:
    assert ask(application, "GET", "/\xff").status_code == 404
    answer = ask(application, "GET", "/api/v1/entries/\xff", **bearer)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    answer = ask(application, "GET", "/entries", QUERY_STRING="match=t\xc3\xa4glich&x=\xff")
    assert (answer.status_code, "täglich" in answer.text) == (200, True)


def read_lost(self: io.BytesIO, size: int | None = -1) -> bytes:
    """Read from a connection that is lost at its end."""
    if data := io.BytesIO.read(self, size):
        return data
    raise ConnectionResetError


@pytest.mark.parametrize("kind", [io.BytesIO, type("Lost", (io.BytesIO,), {"read": read_lost})])
def test_wsgi_body_that_ends_too_soon_is_answered_at_once(
    application: Any, bearer: dict[str, str], kind: type[io.BytesIO]
) -> None:
    for method, path, sent in (("PUT", "/api/v1/purge", PURGE[:-1]), ("POST", "/login", b"")):
        given: Any = {**bearer, "CONTENT_LENGTH": "17", "wsgi.input": kind(sent)}
        answer = ask(application, method, path, **given)
        assert (answer.status_code, "too soon" in answer.text) == (400, True)


def test_wsgi_server_that_forks_answers_in_its_child(application: Any, add: Add) -> None:
    add("report")

    def answers() -> bool:
        for path, words in (("/entries", "report"), ("/doctor", "1 entry"), ("/", "1 of 1")):
            eventually(lambda path=path, words=words: re.search(words, ask(application, "GET", path).text))
        return True

    assert answers()
    pid = os.fork()
    if not pid:
        is_right = False
        try:
            is_right = answers()  # the threads that have read the names and looked for faults aren't here
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitpid(pid, 0)[1] == 0


class Nginx(Daemon):
    """An nginx that serves these locations."""

    _name = "nginx"
    _port_taken = re.compile(r"Address already in use")

    def __init__(self, locations: str) -> None:
        self._program, self._locations = require_program("nginx"), locations
        super().__init__()

    def _configure(self) -> None:
        paths = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{name}_temp_path {self.directory}/{name};" for name in paths)
        listening = f"listen 127.0.0.1:{self.port}; {self._locations}"
        (self.directory / "nginx.conf").write_text(
            f"daemon off; master_process off; pid {self.directory}/pid; error_log stderr notice;"
            f"events {{}} http {{ access_log off; {temporary} server {{ {listening} }} }}"
        )

    def _launch(self) -> Process:
        process = Process([self._program, "-e", "stderr", "-c", self.directory / "nginx.conf"])
        process.wait_for("getrlimit(RLIMIT_NOFILE)")  # it listens by then
        return process
