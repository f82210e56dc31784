"""Changes of a dashboard with several processes: begun once, found by each, told of if theirs is killed."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from celery import Celery

from redbeat.calendars import Calendar
from redbeat.errors import EntryChanged
from redbeat.web import changes
from redbeat.web.access.cookies import decoded
from redbeat.web.verbs import calendars, files
from tests.support.apps import write_app
from tests.support.command_line import installed
from tests.support.dashboards import Browser, dashboard_of
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.servers import Server

#: a calendar is changed once something stands in `go`; each answer says which process it comes from
_SITE = """
import os
import redbeat.web
from redbeat.connection.client import get_redis
from redbeat.web import changes
from redbeat.web.pages import changing
from redbeat.web.verbs import calendars
from project import app

changes.WAIT_SECONDS, changes.TELL_SECONDS, changing.SILENT_SECONDS = 0.0, 0.1, 3.0
set_ = calendars.set_

def set_slowly(*arguments, **options):
    client = get_redis(app)
    client.rpush("begun", os.getpid())
    client.blpop("go", 0)
    return set_(*arguments, **options)

calendars.set_ = set_slowly

def user_of(request):
    return redbeat.web.User(request.headers["x-user"], ["admin"])

dashboard = redbeat.web.wsgi_app(app, auth=user_of)

def site(environ, start_response):
    def start(status, headers, *more):
        return start_response(status, [*headers, ("X-Process", str(os.getpid()))], *more)
    return dashboard(environ, start)
"""
_GUNICORN = ["gunicorn", "--bind=127.0.0.1:0", "--workers=2", "--graceful-timeout=1", "place:site"]
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(?P<port>\d+)")


class Visitor:
    """A browser that has a new connection for each request, so that each process gets some."""

    def __init__(self, port: str, user: str = "anna") -> None:
        self.url, self.headers = f"http://localhost:{port}", {"x-user": user}
        self.cookies = dict(self.ask("GET", "/login").cookies)
        self.token = next(value for name, value in self.cookies.items() if name.startswith("redbeat_csrf"))

    def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        cookies = getattr(self, "cookies", {})
        with httpx.Client(headers=self.headers, cookies=cookies, timeout=patience()) as client:
            return client.request(method, self.url + path, **options)

    def of_each(self, method: str, path: str, **options: Any) -> list[httpx.Response]:
        """The answer of each of the two processes."""
        found: dict[str, httpx.Response] = {}

        def ask() -> bool:
            answer = self.ask(method, path, **options)
            found[answer.headers["x-process"]] = answer
            return len(found) == 2

        eventually(ask)
        return list(found.values())


def test_each_process_of_a_real_server_tells_of_a_change_that_one_begins_once_and_of_its_end_by_force(
    server: Server, tmp_path: Path, client: redis.Redis
) -> None:
    write_app(tmp_path, "project", server.url(0), redbeat_redis_url=server.url(1))
    (tmp_path / "place.py").write_text(_SITE)
    with Process([sys.executable, "-m", *_GUNICORN], tmp_path, installed(tmp_path)) as site:
        port = site.wait_for(_ADDRESS)["port"]
        visitor = Visitor(port)

        def click(once: str, day: str) -> str:
            form = {"csrf_token": visitor.token, "name": "closed", "first": day, "once": once}
            [address] = {
                one.headers["location"] for one in visitor.of_each("POST", "/calendar/set", data=form)
            }
            return str(address)

        address = click("one", "2098-01-02")
        for answer in visitor.of_each("GET", address):
            assert (answer.status_code, "so far" in answer.text) == (200, True), answer.text
        for answer in Visitor(port, "bob").of_each("GET", address):
            assert answer.status_code == 404
        client.rpush("go", 1)
        eventually(lambda: {one.status_code for one in visitor.of_each("GET", address)} == {303})
        for answer in visitor.of_each("GET", address):
            assert answer.headers["location"] == "/calendar?name=closed&year=2098"
            [notice] = [value for name, value in answer.cookies.items() if name.startswith("redbeat_notice")]
            assert decoded(notice) == "Stored: 1 day."
        address = click("two", "2098-01-03")
        assert client.llen("begun") == 2, "each click has begun one change"
        os.kill(int(client.lindex("begun", -1) or 0), signal.SIGKILL)
        told = "The process that was at it has ended, it seems"
        eventually(lambda: all(told in one.text for one in visitor.of_each("GET", address)))
        assert click("two", "2098-01-03") == address
        assert client.llen("begun") == 2, "what nobody knows the end of isn't begun again"
        assert 0 < client.ttl(f"redbeat::change:{address.partition('id=')[2]}") <= 600


@pytest.fixture
def processes(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Browser]]:
    """Two dashboards as two processes have them, whose changes are all looked at on a page of their own."""
    monkeypatch.setattr(changes, "WAIT_SECONDS", 0.0)

    def make(**settings: Any) -> list[Browser]:
        app.conf.update(settings)
        return [Browser(dashboard_of(app, name="anna")) for _ in range(2)]

    return make


def test_a_plan_is_told_in_words_by_another_process_and_nothing_of_the_file_is_kept_in_redis(
    processes: Callable[..., list[Browser]], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = processes(redbeat_web_hide=["password"])
    go_on, plan = threading.Event(), files.plan

    def plan_slowly(*arguments: Any, **options: Any) -> Any:
        go_on.wait(patience(20))
        return plan(*arguments, **options)

    monkeypatch.setattr(files, "plan", plan_slowly)
    text = "{owner: ops, entries: {mine: {task: echo, schedule: 60, kwargs: {password: s3cret}}}}"
    form = {"csrf_token": first.token(), "text": text, "owner": "", "once": "click"}
    try:
        address = first.http.post("/files/plan", data=form).headers["location"]
    finally:
        go_on.set()
    told = eventually(lambda: _with(second.http.get(address), "Entries: 1 to add"))
    assert (told.status_code, told.headers["connection"]) == (200, "close"), "the next look may find the page"
    assert "is looked for" in told.text
    assert "s3cret" not in str([client.get(key) for key in client.keys("redbeat::change:*")])
    page = first.read(address)
    assert "mine" in page
    assert "Apply" in page


@contextmanager
def failing(patch: pytest.MonkeyPatch, verb: str) -> Iterator[None]:
    """A change of calendars is at work in this block, and finds at its end that somebody else was quicker."""
    go_on = threading.Event()

    def fail(*_arguments: Any, **_options: Any) -> None:
        go_on.wait(patience(20))
        raise EntryChanged("closed: somebody else has changed it meanwhile.", "")

    patch.setattr(calendars, verb, fail)
    try:
        yield
    finally:
        go_on.set()


def test_an_error_is_told_by_another_process_with_its_status(
    processes: Callable[..., list[Browser]], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = processes()
    form = {"csrf_token": first.token(), "name": "closed", "confirmed": "yes", "once": "click"}
    with failing(monkeypatch, "delete"):
        address = first.http.post("/calendar/delete", data=form).headers["location"]
        headers = {"HX-Request": "true"}
        assert "so far" in second.http.get(address, headers=headers).text
    eventually(lambda: "hx-redirect" in second.http.get(address, headers=headers).headers)
    for browser in (first, second):
        assert "closed: somebody else has changed it meanwhile." in unescape(
            browser.read(address, status=412)
        )


def test_an_error_that_gives_a_form_back_is_told_by_another_process_which_looks_for_the_form(
    processes: Callable[..., list[Browser]], app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = processes()
    Calendar("closed", ["2098-01-01"], app=app).save()
    form = {"csrf_token": first.token(), "name": "closed", "first": "2098-01-02", "once": "click"}
    with failing(monkeypatch, "set_"):
        address = first.http.post("/calendar/set", data=form).headers["location"]
        assert "so far" in second.read(address)
    told = eventually(lambda: "Look again" in (page := second.read(address)) and page)
    assert "closed: somebody else has changed it meanwhile." in unescape(told)
    assert "tone-danger" in told
    page = first.read(address, status=412)
    assert "closed: somebody else has changed it meanwhile." in unescape(page)
    assert 'value="2098-01-02"' in page


def _with(answer: Any, words: str) -> Any:
    return answer if words in answer.text else None
