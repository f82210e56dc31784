"""Calendars and files in the dashboard, and changes that take longer than a page."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.errors import CalendarError
from redbeat.manifest.format import Declared, read_file
from redbeat.web import User
from redbeat.web.access.cookies import decoded
from redbeat.web.verbs import calendars, files
from redbeat.web.verbs.actor import Actor
from tests.integration.web.conftest import Add, Browse
from tests.support.apps import write_app
from tests.support.command_line import installed
from tests.support.dashboards import Browser
from tests.support.deadlines import patience
from tests.support.forms import form_fields
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.servers import Server

EVENT = (
    "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTAMP:20260101T000000Z\r\n"
    "{}\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
)


TEXT = """
owner: shop
entries:
  report: {task: billing.report, schedule: 1h, kwargs: {api_token: s3cret, size: 3}}
calendars:
  closed: {days: ["2098-01-01"]}
"""


def actor_of(app: Celery, *rights: str) -> Actor:
    return Actor(app, User("anna", rights or ("admin",)), "web", "192.0.2.7")


def apply(actor: Actor, text: str = TEXT, **options: Any) -> files.Applied:
    return files.apply(actor, read_file(text), **options)


def kwargs_of(app: Celery, name: str) -> dict[str, Any]:
    return RedBeatSchedulerEntry.get(name, app).kwargs


def test_file_of_events_becomes_days_and_an_endless_one_is_refused(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor = actor_of(app)
    given = EVENT.format("DTSTART;VALUE=DATE:20270501\r\nSUMMARY:May Day").encode()
    read = calendars.read_import(actor, "closed", given, "days.ics")
    assert (read.days, Calendar.names(app)) == ({"2027-05-01": "May Day"}, [])
    calendars.import_(actor, read, "days.ics")
    with pytest.raises(CalendarError, match="already"):
        calendars.import_(actor, read, "days.ics")
    more = calendars.read_import(actor, "closed", b"2027-12-25 Christmas\n", "days.txt")
    calendars.import_(actor, more, "days.txt", is_adding=True)
    assert list(Calendar.load("closed", app).days) == ["2027-05-01", "2027-12-25"]
    calendars.import_(actor, more, "days.txt", is_replacing=True)
    assert list(Calendar.load("closed", app).days) == ["2027-12-25"]
    every_second = EVENT.format("DTSTART:20200101T000000Z\r\nDURATION:PT1S\r\nRRULE:FREQ=SECONDLY").encode()
    monkeypatch.setattr(calendars, "MOST_SECONDS", 0.2)
    with pytest.raises(CalendarError, match="processor time"):
        calendars.read_import(actor, "closed", every_second, "days.ics")
    monkeypatch.undo()
    out_of_range = EVENT.format("DTSTART:20250101\r\nDTEND:99991231\r\nRRULE:FREQ=DAILY").encode()
    for data in (b"BEGIN:VCALENDAR\r\n" * 5000, out_of_range, b"\xff\xfe", b"[" * 50_000):
        with pytest.raises(CalendarError):
            calendars.read_import(actor, "closed", data, "days.ics")


def test_calendar_typed_wrongly_comes_back_with_its_line(app: Celery, browse: Browse) -> None:
    browser = browse()
    browser.send("/calendar/set", name="closed", revision="", text="2098-01-01 New Year", about="")
    revision = form_fields(browser.read("/calendar", name="closed"))["revision"]
    wrong = {"name": "closed", "revision": revision, "about": "<ours>"}
    new = {"name": "new", "revision": "", "text": "2098-02-01", "about": ""}
    for field, fields, words in (
        ("edit-text", {**wrong, "text": "# ours\n2098-01-01\nsomeday"}, "line 3: 'someday' is not a date."),
        ("edit-text", {**wrong, "text": "2098-01-01\n2098-13-01"}, "line 2: '2098-13-01' is not a date"),
        ("new-name", {**new, "name": "closed"}, "There is a calendar of this name already."),
        ("new-name", {**new, "name": ""}, "must have a name"),
        ("f-last", {"name": "closed", "first": "2098-07-03", "last": "2098-07-01"}, "ends before it begins"),
    ):
        answer = browser.post("/calendar/set", **fields)
        html = unescape(answer.text)
        assert answer.status_code in (412, 422)
        found = re.search(f'<p class="error" id="{field}-error">.*?<span>(.*?)</span>', html)
        assert found is not None, html
        assert words in found[1]
        assert fields.get("text", "") in html
    given = {"file": ("days.txt", b"2098-01-01\nsomeday", "text/plain")}
    answer = browser.post("/calendar/import", files=given, name="closed", mode="replace", until="")
    assert (answer.status_code, "line 2: 'someday'" in unescape(answer.text)) == (422, True)
    # somebody else was faster: what was typed stands over theirs, and is stored by another click
    Calendar.change("closed", ["2098-03-01"], app=app)
    answer = browser.post("/calendar/set", **wrong, text="2098-05-01 May")
    assert (answer.status_code, "changed it meanwhile" in answer.text) == (412, True)
    again = form_fields(answer.text)
    assert (again["text"], again["about"]) == ("2098-05-01 May", "<ours>")
    browser.send("/calendar/set", **{name: again[name] for name in ("name", "revision", "text", "about")})
    assert Calendar.load("closed", app).days == {"2098-05-01": "May"}


def test_export_hides_arguments_and_comes_back_with_them(app: Celery, add: Add) -> None:
    apply(actor := actor_of(app))
    add("watched", ping_url="https://hc-ping.com/secret-uuid")
    app.redbeat_redis.hset("redbeat:report", "policy", '{"exclude": "closed"}')
    exported = files.export(actor)
    text = json.dumps(exported.declared.entries)
    assert ("s3cret" in text, "secret-uuid" in text, exported.skipped) == (False, False, ())
    assert list(exported.declared.calendars) == ["closed"]
    exported.declared.entries["report"]["kwargs"]["size"] = 4
    given = Declared("export", None, exported.declared.entries, exported.declared.calendars)
    files.import_(actor, given, is_replacing=True)
    assert kwargs_of(app, "report") == {"api_token": "s3cret", "size": 4}
    assert RedBeatSchedulerEntry.get("watched", app).ping_url == "https://hc-ping.com/secret-uuid"


def test_export_leaves_out_what_may_hide_secrets_in_an_unusual_form(app: Celery, client: Any) -> None:
    text = '{"task":"t","x":1,"schedule":{"__type__":"interval","every":60},"kwargs":{"password":"s3cret"}}'
    client.hset("redbeat:odd", "definition", text)
    client.zadd("redbeat::schedule", {"redbeat:odd": 5e9})
    exported = files.export(actor_of(app))
    assert (dict(exported.declared.entries), len(exported.skipped)) == ({}, 1)
    assert "s3cret" not in exported.skipped[0]


def download(browser: Browser, **query: str) -> str:
    """What an export has written, when it is there."""
    answer = browser.get("/files/export", **query)
    where = answer.headers.get("location")

    def ready() -> Any:
        found = answer if where is None else browser.get(where)
        return "attachment" in found.headers.get("content-disposition", "") and found

    return str(eventually(ready).text)


def test_export_that_was_left_is_not_given_to_the_next_request(
    add: Add, browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, is_read = files.export, threading.Event()

    def export(*given: Any, **options: Any) -> Any:
        found = real(*given, **options)
        assert is_read.wait(patience(30))
        return found

    monkeypatch.setattr(files, "export", export)
    browser = browse("edit")
    add("old", schedule=60)
    left = browser.get("/files/export").headers["location"]
    assert "The file is being written" in browser.read(left)
    add("new", schedule=60)
    is_read.set()
    eventually(lambda: "The file is there" in browser.get(left, headers={"HX-Request": "true"}).text)
    assert "new" in download(browser)
    assert "new" not in browser.read(left), "it is the one that was begun"


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


@pytest.mark.slow
def test_long_change_is_told_by_each_process_of_a_server_and_lost_with_its_own(
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
