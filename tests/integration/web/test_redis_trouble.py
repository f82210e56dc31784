"""What pages and programs are told while Redis is gone, stands still, loads, is full, or refuses."""

from __future__ import annotations

import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from redbeat.web import asgi_app
from redbeat.web.api.resources import OPERATIONS
from redbeat.web.threads import PATIENCE_SECONDS
from tests.support.dashboard_walk import call_operations, fill, open_pages, routes, send_forms
from tests.support.dashboards import Browser, dashboard_of
from tests.support.deadlines import patience
from tests.support.forms import form_fields, text_of
from tests.support.polling import eventually
from tests.support.programs import Program
from tests.support.servers import Server

NO_RIGHT = "no permissions to|which one|lacks these rights"
#: what changes something, and is refused where a user of Redis may only read
CHANGES = {
    "/entries/pause", "/entries/delete", "/entry/pause", "/entry/delete", "/entry/save", "/entry/backfill",
    "/entry/rerun", "/files/apply", "/calendar/set", "/calendar/import", "/calendar/delete",
    "PUT /entries/{name}", "PATCH /entries/{name}", "PUT /delete", "PUT /entries/{name}/pause", "PUT /pause",
    "PUT /entries/{name}/backfill", "PUT /apply", "PUT /calendars/{name}", "PATCH /calendars/{name}",
    "PUT /entries/{name}/rerun", "PUT /import",
}  # fmt: skip
#: operations that need nothing of Redis, or say of each part what was refused
ANSWERING = {"GET /routes", "GET /doctor", "PUT /doctor/fix"}
#: pages and forms that do, or that look for what they show beside the page
STILL = {
    "/login", "/entry/new", "/files", "/audit", "/runs", "/later", "/timeline", "/calendars", "/runs/rerun",
    "/doctor", "/doctor/fix", "/doctor/look", "/routes/look", "/entry/preview", "/entry/edit", "/routes",
    "/changing", "/files/export", "/entries/rows", "/entries/trigger", "/runs/rerun-chosen",
}  # fmt: skip


@dataclass
class Place:
    """A server with a schedule, and the app and the token of somebody who may do everything."""

    server: Server
    admin: redis.Redis
    trusted: Celery
    token: str

    def app(self, *rules: str) -> Celery:
        """Return an app whose user of Redis has these rights."""
        self.admin.execute_command("ACL", "SETUSER", "few", "reset", "on", ">secret", *rules)
        app = Celery("few", broker=self.server.url(1), set_as_current=False)
        app.conf.redbeat_redis_url = self.server.url(0).replace("redis://", "redis://few:secret@")
        return app

    def program(self, app: Celery) -> Program:
        return Program(app, token=self.token)

    def walk(self, app: Celery) -> Iterator[tuple[str, int, str]]:
        """Walk over everything; yield what it is, the status, and the text of the answer."""
        browser, trusted = Browser(dashboard_of(app)), Browser(dashboard_of(self.trusted))
        for path, answer in (*open_pages(browser), *send_forms(browser, trusted)):
            is_page = "<main" in answer.text
            yield path, answer.status_code, text_of(answer.text) if is_page else answer.text
        for operation, answer in call_operations(self.program(app)):
            yield f"{operation.method} {operation.path}", answer.status_code, answer.text

    def refused(self, app: Celery, words: str) -> set[str]:
        """Return what is refused with a sentence that has these words; no other answer is an error."""
        found = set()
        for what, status, text in self.walk(app):
            assert status < 500 or status == 503, (what, text)
            if status == 503:
                assert re.search(words, text), (what, text)
                found.add(what)
        return found


@pytest.fixture
def place() -> Iterator[Place]:
    with Server(enable_debug_command=True) as server, server.client() as admin:
        app = Celery("trusted", broker=server.url(1), set_as_current=False)
        app.conf.redbeat_redis_url = server.url(0)
        fill(app, admin)
        yield Place(server, admin, app, Tokens(Store(app)).add("ci", ["admin"], None)[1])


def test_page_and_operation_names_the_missing_right(place: Place) -> None:
    token = ["(+hget ~redbeat::tokens)", "(+time)"]  # else programs couldn't get in at all
    pages = {path for _, path, _ in routes()} - {"/live", "/logout"}
    operations = {f"{one.method} {one.path}" for one in OPERATIONS}
    refused = place.refused(place.app("+ping", "+get", "~*", *token), NO_RIGHT)
    assert (pages | operations) - refused <= ANSWERING | STILL
    refused = place.refused(place.app("+eval", "+evalsha", "+select", *token), NO_RIGHT)
    assert operations - refused <= ANSWERING, "scripts alone suffice for nothing"


def test_user_without_rights_to_figures_events_and_lock_sees_the_rest(place: Place) -> None:
    keys = ("~redbeat:[^:]*", "~redbeat::schedule", "~redbeat::calendar:*", "~redbeat::tokens")
    app = place.app(*keys, "+@all", "-@admin")
    assert "broken" in Browser(dashboard_of(app)).read("/entries")
    assert "PUT /entries/{name}" not in place.refused(app, NO_RIGHT)


def test_change_is_refused_with_the_reason_by_a_read_only_replica_and_a_full_server(place: Place) -> None:
    rules = ("~redbeat:*", "+@read", "+@connection", "+eval", "+evalsha", "+time")
    assert place.refused(place.app(*rules), NO_RIGHT) >= CHANGES
    place.admin.replicaof("127.0.0.1", 1)
    refused = place.refused(place.trusted, "read only replica")
    assert refused >= CHANGES | {"PUT /entries/{name}/trigger", "/entry/run"}
    place.admin.replicaof("NO", "ONE")
    place.admin.config_set("maxmemory", 1)
    refused = place.refused(place.trusted, "maxmemory")
    assert refused >= {"PUT /entries/{name}", "PUT /apply", "/entry/save"}


@contextmanager
def loading(admin: redis.Redis) -> Iterator[None]:
    """The server loads its data as long as this lasts."""
    admin.config_set("key-load-delay", 5_000)
    admin.config_set("loading-process-events-interval-bytes", 1024)
    admin.mset({f"other:{number}": f"{number:0>2000}" for number in range(5000)})
    with admin.client() as another:
        thread = threading.Thread(target=another.execute_command, args=("DEBUG", "RELOAD"))
        thread.start()
        try:
            eventually(lambda: admin.info("persistence")["loading"] == 1, retry_on=redis.RedisError)
            yield
        finally:
            admin.config_set("key-load-delay", 0)
            thread.join()


def test_everything_says_so_while_redis_loads_has_a_wrong_key_or_is_gone(place: Place) -> None:
    browser, program = Browser(dashboard_of(place.trusted)), place.program(place.trusted)
    place.admin.rename("redbeat::schedule", "redbeat::other")
    place.admin.set("redbeat::schedule", "no sorted set")
    for path in ("/entries", "/entry?name=report"):
        answer = browser.get(path)
        assert (answer.status_code, "redbeat::schedule" in answer.text) == (503, True), path
    place.admin.rename("redbeat::other", "redbeat::schedule")
    with loading(place.admin):
        for answer in (
            *(browser.get(path) for path in ("/", "/entries", "/entry?name=report")),
            browser.post("/entry/pause", name="report"),
            program.ask("GET", "/entries"),
        ):
            assert (answer.status_code, "loading" in answer.text) == (503, True), answer.text
    place.server.kill()
    for operation, answer in call_operations(program):
        assert answer.status_code == 503, (operation.path, answer.text)
        assert answer.headers["retry-after"] == "5"


def test_request_while_redis_stands_still_is_answered_503_in_time(second: Server) -> None:
    app = Celery("test", broker=second.url(0), set_as_current=False)
    # the app itself waits for ever
    app.conf.update(redbeat_redis_url=second.url(1), redbeat_redis_options={"retry_period": -1})
    _, text = Tokens(Store(app)).add("deploy", ["read"], None)
    browser, stranger = Browser(dashboard_of(app)), Browser(asgi_app(app))
    browser.read("/")
    second.process.signal(signal.SIGSTOP)
    try:
        for path in ("/", "/api/v1/status"):
            began = time.monotonic()
            answer = browser.get(path, headers={"authorization": f"Bearer {text}"})
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert "Redis" in answer.text
            assert time.monotonic() - began < patience(3 * PATIENCE_SECONDS)
        for path, status in (("/login", 200), ("/", 401), ("/static/redbeat.css", 200)):
            assert stranger.get(path).status_code == status
    finally:
        second.process.signal(signal.SIGCONT)
    browser.read("/")
    second.kill()
    assert browser.get("/").status_code == 503
    second.restart()
    browser.read("/")


def test_typed_form_is_kept_while_redis_is_away_and_stored_afterwards(second: Server) -> None:
    app = Celery("test", broker=second.url(0), set_as_current=False)
    app.conf.update(redbeat_redis_url=second.url(1), redbeat_redis_options={"retry_period": -1})
    report = RedBeatSchedulerEntry("report", "echo", "0 9 * * *", app=app).save()
    browser, visitor = Browser(dashboard_of(app)), Browser(asgi_app(app))
    new = form_fields(browser.read("/entry/new"), "entry-form")
    new |= {"name": "<letter>", "task": "echo", "kwargs": '{"to": "anna"}'}
    old = form_fields(browser.read("/entry/edit", name="report"), "entry-form") | {"jitter": "5m"}
    visitor.post("/login", token=Tokens(Store(app)).add("deploy", ["admin"], None)[1])
    assert visitor.get("/entry/new").status_code == 200
    pause = {"name": "report", "note": "<moving>", "csrf_token": new["csrf_token"], "until": ""}
    second.kill()
    kept = []
    for fields in (new, old):
        answer = browser.http.post("/entry/save", data=fields)
        assert (answer.status_code, "Redis" in answer.text) == (503, True)
        kept.append(form_fields(answer.text, "entry-form"))
        assert kept[-1] == fields
    answer = browser.http.post("/entry/pause", data=pause)
    assert (answer.status_code, form_fields(answer.text)) == (503, pause)
    # who somebody is, is in Redis, too: their form isn't read then
    answer = visitor.post("/entry/save", **new)
    assert (answer.status_code, "your browser has kept it" in answer.text) == (503, True)
    second.restart()  # without its data
    report.save()
    for fields in kept:
        browser.send("/entry/save", **fields)
    browser.send("/entry/pause", **pause)
    assert RedBeatSchedulerEntry.get("<letter>", app).kwargs == {"to": "anna"}
    entry = RedBeatSchedulerEntry.get("report", app)
    assert (entry.jitter, entry.pause_note) == (300, "<moving>")
