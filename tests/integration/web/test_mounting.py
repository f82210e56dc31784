"""The dashboard mounted below a path of real frameworks on real servers, and behind a real proxy."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.store.store import Store
from redbeat.web.api.addresses import segment_of
from tests.support.apps import write_app
from tests.support.command_line import installed
from tests.support.deadlines import patience
from tests.support.nginx import Nginx
from tests.support.processes import Process
from tests.support.programs import token_of
from tests.support.servers import Server

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
    "starlette": """
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from users import app, redbeat, user_of

site = Starlette(
    routes=[
        Route("/", lambda request: PlainTextResponse("home")),
        Mount("/tools", routes=[Mount("/redbeat", redbeat.web.asgi_app(app, auth=user_of))]),
    ]
)
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
    SECRET_KEY="x", ROOT_URLCONF=__name__, ALLOWED_HOSTS=["localhost"], DEBUG=False,
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware", "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware", "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ],
)
django.setup()
import redbeat.web.django
from users import app, user_of

urlpatterns = [
    path("", lambda request: HttpResponse("home")),
    path("tools/redbeat/", include(redbeat.web.django.urls(app, auth=user_of))),
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
    "starlette on uvicorn": ("starlette", [*_UVICORN, "place:site"]),
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


class Visitor:
    """A browser at one path of a site."""

    def __init__(self, url: str, **headers: str) -> None:
        self.http = httpx.Client(base_url=url, headers=headers, timeout=patience(), follow_redirects=False)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(path, **options)

    def post(self, path: str, **fields: str) -> httpx.Response:
        found = re.search(r"X-CSRF-Token[^:]*: (?:&#34;|\")([\w-]{43})", self.get("login").text)
        assert found
        return self.http.post(path, data={"csrf_token": found[1], **fields})


@pytest.mark.parametrize("way", _WAYS)
def test_it_works_below_a_path_of_a_real_framework(
    way: str, server: Server, tmp_path: Path, app: Celery, add: Callable[..., RedBeatSchedulerEntry]
) -> None:
    add("report")
    framework, command = _WAYS[way]
    with serve(server, tmp_path, framework, command) as site:
        port = site.wait_for(_ADDRESS)["port"]
        home = f"http://localhost:{port}/"
        assert "home" in httpx.get(home, timeout=patience()).text
        check_dashboard(f"{home}tools/redbeat/", "/tools/redbeat")
        check_interface(f"{home}tools/redbeat/", "/tools/redbeat", token_of(app))
        if framework in ("fastapi", "starlette"):
            with httpx.stream("GET", f"{home}tools/redbeat/live", headers={"x-user": "ben"}) as stream:
                assert next(stream.iter_lines()).startswith("retry: ")
                site.signal(signal.SIGTERM)
                site.wait()  # an open page doesn't hold it
        assert "Traceback" not in site.output()


def check_dashboard(url: str, root: str) -> None:
    """The dashboard at this address lets its users in, keeps below its root, and takes their forms."""
    stranger, reader, admin = (
        Visitor(url),
        Visitor(url, **{"x-user": "ben"}),
        Visitor(url, **{"x-user": "anna"}),
    )
    assert stranger.get("").status_code == 401
    assert stranger.get("", headers={"host": "evil.com"}).status_code in (400, 404)

    page = reader.get("")
    assert page.status_code == 200
    assert "Overview" in page.text
    assert page.headers["x-frame-options"] == "DENY"
    links = re.findall(r'(?:href|src|action|hx-get|hx-post|sse-connect)="(/[^"]*)"', page.text)
    assert links
    assert all(link.startswith(f"{root}/") for link in links), links
    style = next(link for link in links if "redbeat.css" in link)
    assert "text/css" in reader.get(str(httpx.URL(url).join(style))).headers["content-type"]
    assert reader.get("nothing").status_code == 404
    assert reader.get("api/v1/entries").status_code == 401

    done = admin.post("logout")
    assert (done.status_code, done.headers["location"]) == (303, f"{root}/login")
    assert f"Path={root}" in done.headers["set-cookie"]
    forged = admin.http.post("logout", data={"csrf_token": "x" * 43})
    assert forged.status_code == 403


def check_interface(url: str, root: str, token: str, *, host: str = "localhost", is_raw: bool = True) -> None:
    """The REST interface of the dashboard at this address takes a token, any name, and compares and sets."""
    headers = {"authorization": f"Bearer {token}", "host": host}
    program = httpx.Client(base_url=f"{url}api/v1", headers=headers, timeout=patience())
    for name in ("a/pause", "täglich", "a"):
        path = f"/entries/{segment_of(name)}"
        entry = {"task": "echo", "schedule": "1h"}
        made = program.put(path, json=entry, headers={"if-none-match": "*"})
        assert (made.status_code, made.headers["location"]) == (201, f"{root}/api/v1{path}"), made.text
        assert program.put(path, json=entry, headers={"if-none-match": "*"}).status_code == 412
        changed = program.patch(path, json={"args": [1]}, headers={"if-match": made.headers["etag"]})
        assert changed.json()["args"] == [1]
        assert program.get(path).json()["name"] == name
    if is_raw:
        assert program.put("/entries/a%2Fpause", json={}).status_code == 400, "it isn't the pause of a"
    assert program.request("BREW", "/entries/a").status_code in (400, 405)
    listed = program.get("/entries?limit=1").json()
    assert listed["next"].startswith("/entries?")
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


def test_the_command_prints_a_link_that_works_once_it_is_opened_and_never_logs_a_token(
    command: Callable[..., Process], app: Celery
) -> None:
    process = command()
    link = process.wait_for(re.compile(r"http://127\.0\.0\.1:(?P<port>\d+)/login\?token=(?P<token>[\w-]+)"))
    browser = Visitor(link[0].split("login")[0])
    assert browser.get("").status_code == 401
    came = browser.get(link[0])
    assert (came.status_code, came.headers["location"]) == (303, "/")
    assert "Overview" in browser.get("").text
    assert browser.get("static/redbeat.css").status_code == 200
    store = Store(app)
    store.ask(lambda client: client.hset(store.keys.tokens, "brokenid", "{"), store.keys.tokens, "hash")
    bearer = {"authorization": f"Bearer rb_brokenid_{'s3cret' * 7}x"}
    assert browser.get("api/v1/status", headers=bearer).status_code == 401
    process.wait_for("The token brokenid in redbeat::tokens can't be used")
    process.signal(2)
    assert process.wait() == 0
    assert process.output().count(link["token"]) == 1
    assert "s3cret" not in process.output()
    assert "Traceback" not in process.output()


@pytest.mark.parametrize(
    ("options", "environment", "words"),
    [
        (["--host=0.0.0.0"], {}, "can be reached from other machines"),
        (["--host=::"], {}, "can be reached from other machines"),
        ([], {"REDBEAT_WEB_USER": "ops"}, "must both be set"),
        (
            [],
            {"REDBEAT_WEB_USER": "o", "REDBEAT_WEB_PASSWORD": "p", "REDBEAT_WEB_RIGHTS": "rood"},
            "no right 'rood'",
        ),
        (["--root-path=//evil"], {}, "must be a path"),
        (["--host=a b"], {}, "no host"),
        (
            ["--host=192.0.2.1"],
            {"REDBEAT_WEB_USER": "o", "REDBEAT_WEB_PASSWORD": "p"},
            "Can't listen at 192.0.2.1:0",
        ),
    ],
)
def test_what_would_be_open_or_cannot_work_ends_in_one_sentence(
    command: Callable[..., Process], options: list[str], environment: dict[str, str], words: str
) -> None:
    process = command(*options, **environment)
    assert process.wait() != 0
    assert words in process.output()
    assert "Traceback" not in process.output()


def test_behind_a_proxy_with_a_prefix_all_paths_are_below_it(
    command: Callable[..., Process], app: Celery
) -> None:
    users = {"REDBEAT_WEB_USER": "ops", "REDBEAT_WEB_PASSWORD": "secret", "REDBEAT_WEB_RIGHTS": "read,pause"}
    settings = (
        "app.conf.redbeat_web_proxies = ['127.0.0.1']\napp.conf.redbeat_web_hosts = ['ops.example.com']"
    )
    process = command(extra=settings, **users)
    port = process.wait_for(_ADDRESS)["port"]
    process.wait_for("by the names in redbeat_web_hosts: ops.example.com")
    with Nginx(
        f"""location /redbeat/ {{
            proxy_pass http://127.0.0.1:{port}/;
            proxy_http_version 1.1;
            proxy_set_header Host $host;
            proxy_set_header X-Forwarded-Host $host;
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
        assert page.status_code == 200
        assert 'href="/redbeat/static/redbeat.css' in page.text
        assert "Path=/redbeat" in page.headers["set-cookie"]
        assert "Secure" in page.headers["set-cookie"]
        assert httpx.get(f"{url}static/redbeat.css", headers=own).status_code == 200
        for forged in ({"host": "evil.com"}, {"host": "evil.com", "x-forwarded-host": "localhost"}):
            assert httpx.get(url, headers=forged, auth=("ops", "secret")).status_code == 400
        with httpx.stream(
            "GET", f"{url}live", headers=own, auth=("ops", "secret"), timeout=patience()
        ) as live:
            assert live.headers["content-type"].startswith("text/event-stream")
            assert next(live.iter_lines()).startswith("retry:")
        # it decodes paths
        check_interface(url, "/redbeat", token_of(app), host="ops.example.com", is_raw=False)
