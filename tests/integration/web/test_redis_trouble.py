"""What pages and programs are told while Redis is gone, stands still, loads, is full, or refuses."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.web import asgi_app, dashboard
from tests.integration.web.dashboard_walk import call_operations, fill, open_pages, send_forms
from tests.support.dashboards import Browser, dashboard_of
from tests.support.deadlines import patience
from tests.support.forms import form_fields, text_of
from tests.support.programs import Program, token_of
from tests.support.servers import Server

NO_RIGHT = "no permissions to|which one"
#: operations that need nothing of Redis, or say of each part what was refused
ANSWERING = {"GET /openapi.json", "GET /routes", "GET /doctor", "PUT /doctor/fix"}


@dataclass
class Place:
    """A server with a schedule, and the app and the token of somebody who may do everything."""

    server: Server
    admin: redis.Redis
    trusted: Celery
    token: str

    def app(self, *rules: str) -> Celery:
        """Return an app whose user of Redis has these rights, besides what lets a program in."""
        token = ("(+hget ~redbeat::tokens)", "(+time)")
        self.admin.execute_command("ACL", "SETUSER", "few", "reset", "on", ">secret", *rules, *token)
        app = Celery("few", broker=self.server.url(1), set_as_current=False)
        app.conf.redbeat_redis_url = self.server.url(0).replace("redis://", "redis://few:secret@")
        return app

    def program(self, app: Celery) -> Program:
        return Program(app, token=self.token)

    def check(self, words: str, app: Celery | None = None, *, is_read: bool = False) -> None:
        """A change on a page and over the API is refused with these words; a page is read, or isn't."""
        app = app or self.trusted
        browser, program = Browser(dashboard_of(app)), self.program(app)
        entry = {"task": "echo", "schedule": "1h"}
        refused = [
            browser.post("/calendar/set", name="new", revision="", text="2098-01-01", about=""),
            program.ask("PUT", "/entries/new", entry),
            program.ask("PUT", "/apply", {"owner": "ops", "entries": {"mine": entry}}),
        ]
        pages = [browser.get("/entries"), program.ask("GET", "/entries")]
        for answer in refused if is_read else (*refused, *pages):
            assert answer.status_code == 503, answer.text
            assert re.search(words, answer.text), answer.text
        assert not is_read or [answer.status_code for answer in pages] == [200, 200]


@pytest.fixture
def place(second: Server) -> Iterator[Place]:
    with second.client() as admin:
        app = Celery("trusted", broker=second.url(1), set_as_current=False)
        app.conf.redbeat_redis_url = second.url(0)
        yield Place(second, admin, app, token_of(app))


def test_request_while_redis_stands_still_is_answered_503_in_time(
    second: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "PATIENCE_SECONDS", 0.5)
    app = Celery("test", broker=second.url(0), set_as_current=False)
    # the app itself waits for ever
    app.conf.update(redbeat_redis_url=second.url(1), redbeat_redis_options={"retry_period": -1})
    text = token_of(app, ["read"])
    browser, stranger = Browser(dashboard_of(app)), Browser(asgi_app(app))
    browser.read("/")
    second.process.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        for path in ("/", "/api/v1/status"):
            answer = browser.get(path, headers={"authorization": f"Bearer {text}"})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert time.monotonic() - began < patience(10)
        for path, status in (("/login", 200), ("/", 401), ("/static/redbeat.css", 200)):
            assert stranger.get(path).status_code == status
    finally:
        second.process.signal(signal.SIGCONT)
    browser.read("/")


def test_form_that_redis_cant_store_is_stored_when_it_is_sent_again(second: Server) -> None:
    app = Celery("test", broker=second.url(0), set_as_current=False)
    app.conf.update(redbeat_redis_url=second.url(1), redbeat_redis_options={"retry_period": -1})
    browser = Browser(dashboard_of(app))
    fields = form_fields(browser.read("/entry/new"), "entry-form") | {"name": "new", "task": "echo"}
    second.kill()
    answer = browser.http.post("/entry/save", data=fields)
    assert (answer.status_code, "your browser has kept it" in answer.text) == (503, True)
    second.restart()
    browser.send("/entry/save", **fields)
    assert RedBeatSchedulerEntry.get("new", app).task == "echo"


def test_change_is_refused_with_the_reason_that_redis_gives(place: Place) -> None:
    reader = ("~redbeat:*", "+@read", "+@connection", "+eval", "+evalsha", "+time")
    place.check(NO_RIGHT, place.app(*reader), is_read=True)
    place.check(NO_RIGHT, place.app("+ping"))
    place.admin.replicaof("127.0.0.1", 1)
    place.check("read only replica", is_read=True)
    place.admin.replicaof("NO", "ONE")
    place.admin.config_set("maxmemory", 1)
    place.check("maxmemory", is_read=True)
    place.admin.config_set("maxmemory", 0)
    place.admin.set("redbeat::schedule", "no sorted set")
    answer = Browser(dashboard_of(place.trusted)).get("/entries")
    assert (answer.status_code, "redbeat::schedule" in answer.text) == (503, True)
    place.server.kill()
    place.check("Redis")


@pytest.mark.slow
@pytest.mark.parametrize("rules", [("+ping", "+get", "~*"), ("+eval", "+evalsha", "+select")])
def test_page_and_operation_names_the_missing_right(place: Place, rules: tuple[str, ...]) -> None:
    fill(place.trusted, place.admin)
    app, refused = place.app(*rules), 0
    browser, trusted = Browser(dashboard_of(app)), Browser(dashboard_of(place.trusted))
    for path, answer in (*open_pages(browser), *send_forms(browser, trusted)):
        assert answer.status_code < 500 or re.search(NO_RIGHT, text_of(answer.text)), (path, answer.text)
        refused += answer.status_code == 503
    assert refused > 20
    for operation, answer in call_operations(place.program(app)):
        what = f"{operation.method} {operation.path}"
        assert answer.status_code == 503 or what in ANSWERING, (what, answer.text)
        assert answer.status_code < 500 or re.search(NO_RIGHT, answer.text), (what, answer.text)
