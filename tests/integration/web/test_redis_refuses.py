"""What pages and programs are told where Redis refuses: a right is missing, it is full, or it loads."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.schedules import clocked
from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from redbeat.web.api.resources import DESCRIPTION, OPERATIONS
from redbeat.web.application import PAGES
from tests.integration.web.conftest import FAR
from tests.support.dashboards import Browser, dashboard_of
from tests.support.forms import form_fields
from tests.support.polling import eventually
from tests.support.programs import Program
from tests.support.servers import Server

FILE = "{owner: ops, entries: {mine: {task: echo, schedule: 60}}}"
#: what a form has; each route takes what it knows
FORM: dict[str, Any] = {
    "name": "report",
    "shown": "report",
    "first": "2098-07-01",
    "begin": "3h",
    "since": "1d",
    "task_id": "one",
    "due": "2020-01-01T00:00:00+00:00",
    "confirmed": "yes",
    "token": "rb_abcdefgh_" + "x" * 43,
}
#: and what it has for one path
FORMS: dict[str, dict[str, Any]] = {
    "/files/plan": {"text": FILE, "owner": ""},
    "/files/apply": {"text": FILE, "owner": ""},
    "/runs/rerun-chosen": {"run": '["report", "2020-01-01T00:00:00+00:00"]'},
    "/calendar/import": {"text": "2098-07-01", "mode": "replace", "name": "closed"},
    "/calendar/set": {"name": "closed"},
    "/calendar/delete": {"name": "closed", "force": "yes"},
}
#: bodies with which an operation gets to Redis
BODIES: dict[str, Any] = {
    "PUT /entries/{name}": {"task": "echo", "schedule": "1h"},
    "PATCH /entries/{name}": {"args": [1]},
    "PUT /entries/{name}/backfill": {"from": "2020-01-01T00:00:00Z", "to": "2020-01-01T05:00:00Z"},
    "PUT /rerun": {"since": "1d"},
    "PUT /set": {"names": ["report"], "changes": {"args": [2]}},
    "PUT /backfill": {"names": ["report"], "from": "2020-01-01T00:00:00Z"},
    "PUT /plan": {"owner": "ops", "entries": {"a": {"task": "echo", "schedule": "1h"}}},
    "PUT /apply": {"owner": "ops", "entries": {"a": {"task": "echo", "schedule": "1h"}}},
    "PUT /import": {"entries": {"a": {"task": "echo", "schedule": "1h"}}},
    "PUT /calendars/{name}": {"days": {"2030-01-01": ""}},
    "PATCH /calendars/{name}": {"days": {"2030-01-02": ""}},
} | {f"PUT /{verb}": {"names": ["report"]} for verb in ("pause", "resume", "delete", "trigger")}
QUERIES: dict[str, dict[str, Any]] = {
    "GET /routes": {"task": "echo"},
    "GET /doctor": {"max_seconds": 1},
    "GET /entries/{name}/why": {"at": "2098-01-01T08:00:00Z"},
    "DELETE /calendars/{name}": {"force": "true"},
}
#: operations that need nothing of Redis, and those that say for each part what was refused
ANSWERING = {"api GET /routes", "api GET /doctor", "api PUT /doctor/fix"}
#: pages that need nothing of Redis, or look beside, and say themselves what was refused
STILL = {
    *("GET /login", "POST /login", "POST /logout", "GET /entry/new", "GET /files", "GET /audit", "GET /runs"),
    "GET /later",
    *("GET /timeline", "GET /calendars", "GET /runs/rerun", "GET /doctor", "POST /doctor/fix"),
    *("GET /doctor/fix", "GET /doctor/look", "GET /routes/look", "POST /entry/preview", "POST /entry/edit"),
    *("GET /routes", "GET /changing", "GET /files/export"),
}
#: forms that say of each entry what was refused
SAID_OF_EACH = {"POST /entries/rows", "POST /entries/trigger", "POST /runs/rerun-chosen"}
#: what changes something here; a schedule that can only be read refuses all of it
CHANGES = {
    *("POST /entries/pause", "POST /entries/delete", "POST /entry/pause", "POST /entry/delete"),
    *("POST /entry/save", "POST /entry/backfill", "POST /entry/rerun", "POST /files/apply"),
    *("POST /calendar/set", "POST /calendar/import", "POST /calendar/delete"),
    *(
        "api PUT /entries/{name}",
        "api PATCH /entries/{name}",
        "api DELETE /entries/{name}",
        "api PUT /delete",
    ),
    *(
        "api PUT /entries/{name}/pause",
        "api PUT /pause",
        "api PUT /entries/{name}/backfill",
        "api PUT /apply",
    ),
    *("api PUT /calendars/{name}", "api PATCH /calendars/{name}", "api DELETE /calendars/{name}"),
    *("api PUT /entries/{name}/rerun", "api PUT /import"),
}
NO_RIGHT = "no permissions to|which one|lacks these rights"


@dataclass
class Place:
    """A server with a schedule, and what the dashboard reaches it by."""

    server: Server
    admin: redis.Redis
    trusted: Celery
    token: str

    def app(self, *rules: str) -> Celery:
        """An app whose user of Redis has these rights; none are given: all."""
        if not rules:
            return self.trusted
        self.admin.execute_command("ACL", "SETUSER", "few", "reset", "on", ">secret", *rules)
        app = Celery("few", broker=self.server.url(1), set_as_current=False)
        app.conf.redbeat_redis_url = self.server.url(0).replace("redis://", "redis://few:secret@")
        return app

    def walk(self, app: Celery) -> Iterator[tuple[str, int, str]]:
        """Go to each page, send each form and call each operation; yield the status and the text of each."""
        trusted, browser = Browser(dashboard_of(self.trusted)), Browser(dashboard_of(app))
        program, csrf = Program(app, token=self.token), browser.token()
        forms = dict(FORMS)
        with suppress(AssertionError):  # Redis is gone for all
            new = form_fields(trusted.read("/entry/new"), "entry-form")
            new |= {"task": "echo", "name": "made"}
            for path in ("/entry/save", "/entry/edit", "/entry/preview"):
                forms[path] = new
            plan = form_fields(trusted.post("/files/plan", **forms["/files/plan"]).text)
            forms["/files/apply"] = {**plan, "text": FILE}
        for route in PAGES:
            path = str(route.path)  # type: ignore[attr-defined]
            if path == "/live":
                continue
            name = "closed" if path.startswith("/calendar") else "report"
            if "GET" in route.methods:  # type: ignore[attr-defined]
                answer = browser.get(path, name=name)
            else:
                given = {**FORM, "name": name, **forms.get(path, {}), "csrf_token": csrf}
                answer = browser.post(path, **given)
            method = "GET" if "GET" in route.methods else "POST"  # type: ignore[attr-defined]
            shown = re.search(r"<main.*</main>", answer.text, re.DOTALL)
            words = re.sub(r"<[^>]*>|\s+", " ", answer.text if shown is None else shown[0])
            yield f"{method} {path}", answer.status_code, unescape(words)
        for operation in (*OPERATIONS, DESCRIPTION):
            what = f"{operation.method} {operation.path}"
            name = "closed" if "calendars" in operation.path else "report"
            path = operation.path.replace("{name}", name).replace("{task_id}", "one")
            body = BODIES.get(what, {} if operation.body is not None else None)
            answer = program.ask(operation.method, path, body, **QUERIES.get(what, {}))
            yield f"api {what}", answer.status_code, answer.text

    def refused(self, app: Celery, words: str) -> set[str]:
        """What is refused with a sentence that has these words; nothing else is wrong."""
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
        Calendar("closed", ["2098-12-25"], app=app).save()
        RedBeatSchedulerEntry("report", "echo", clocked(FAR), app=app, exclude="closed").save()
        RedBeatSchedulerEntry("paused", "echo", clocked(FAR), app=app).save().pause("why")
        yield Place(server, admin, app, Tokens(Store(app)).add("ci", ["admin"], None)[1])


ALL = {f"api {one.method} {one.path}" for one in OPERATIONS}


def test_without_rights_each_page_and_operation_says_which_one_is_missing(place: Place) -> None:
    token = ["(+hget ~redbeat::tokens)", "(+time)"]  # else programs couldn't get in at all
    refused = place.refused(place.app("+ping", "+get", "~*", *token), NO_RIGHT)
    assert refused >= ALL - ANSWERING
    pages = {f"{method} {route.path}" for route in PAGES for method in route.methods - {"HEAD"}}  # type: ignore[attr-defined]
    assert refused >= pages - STILL - SAID_OF_EACH - {"GET /live"}
    refused = place.refused(place.app("+eval", "+evalsha", "+select", *token), NO_RIGHT)
    assert refused >= ALL - ANSWERING, "scripts alone suffice for nothing"


def test_who_may_not_read_figures_events_or_the_lock_sees_the_rest(place: Place) -> None:
    keys = ("~redbeat:[^:]*", "~redbeat::schedule", "~redbeat::calendar:*", "~redbeat::tokens")
    app = place.app(*keys, "+@all", "-@admin")
    assert "api PUT /entries/{name}" not in place.refused(app, NO_RIGHT)
    browser = Browser(dashboard_of(app))
    assert "paused" in browser.read("/entries")


def test_who_may_only_read_is_told_so_where_something_is_to_be_changed(place: Place) -> None:
    rules = ("~redbeat:*", "+@read", "+@connection", "+eval", "+evalsha", "+time")
    assert place.refused(place.app(*rules), NO_RIGHT) >= CHANGES
    place.admin.replicaof("127.0.0.1", 1)
    refused = place.refused(place.trusted, "read only replica")
    assert refused >= CHANGES | {"api PUT /entries/{name}/trigger", "POST /entry/run"}
    place.admin.replicaof("NO", "ONE")
    place.admin.config_set("maxmemory", 1)
    refused = place.refused(place.trusted, "maxmemory")
    assert refused >= {"api PUT /entries/{name}", "api PUT /apply", "POST /entry/save"}


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


def test_while_redis_loads_its_data_or_is_gone_everything_says_so(place: Place) -> None:
    with loading(place.admin):
        browser, program = Browser(dashboard_of(place.trusted)), Program(place.trusted, token=place.token)
        for path in ("/", "/entries", "/entry?name=report"):
            answer = browser.get(path)
            assert (answer.status_code, "loading" in answer.text) == (503, True), answer.text
        for answer in (browser.post("/entry/pause", name="report"), program.ask("GET", "/entries")):
            assert (answer.status_code, "loading" in answer.text) == (503, True), answer.text
    assert Browser(dashboard_of(place.trusted)).get("/entries").status_code == 200
    place.server.kill()
    assert place.refused(place.trusted, "can't be used") >= ALL, "nobody can be known"


def test_a_key_of_another_kind_is_named(place: Place) -> None:
    browser = Browser(dashboard_of(place.trusted))
    place.admin.rename("redbeat::schedule", "redbeat::other")
    place.admin.set("redbeat::schedule", "no sorted set")
    for path in ("/entries", "/entry?name=report"):
        answer = browser.get(path)
        assert (answer.status_code, "redbeat::schedule" in answer.text) == (503, True), path
