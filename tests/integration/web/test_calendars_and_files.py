"""Calendars and files in the dashboard, and changes that take longer than a page."""

from __future__ import annotations

import json
import re
import threading
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.errors import CalendarError
from redbeat.manifest.format import Declared, read_file
from redbeat.operations import calendars, files
from redbeat.operations.actor import Actor
from redbeat.operations.files import FileToApply, FileToImport
from redbeat.web import User, jobs
from redbeat.web.pages import changing
from tests.integration.web.conftest import Add, Browse
from tests.support.dashboards import Browser, dashboard_of
from tests.support.deadlines import patience
from tests.support.forms import form_fields
from tests.support.polling import eventually

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


def test_file_of_events_becomes_days_and_an_endless_one_is_refused(app: Celery, browse: Browse) -> None:
    def put(data: bytes, **given: Any) -> list[str]:
        made = calendars.put_calendar(actor_of(app), "closed", file=data, origin="days.ics", **given)
        return list(made.document["days"])

    may_day = EVENT.format("DTSTART;VALUE=DATE:20270501\r\nSUMMARY:May Day").encode()
    assert (put(may_day, dry_run=True), Calendar.names(app)) == (["2027-05-01"], [])
    assert put(may_day) == ["2027-05-01"]
    assert put(b"2027-12-25 Christmas\n", add=True) == ["2027-05-01", "2027-12-25"]
    assert put(b"2027-12-25 Christmas\n") == ["2027-12-25"]
    every_second = EVENT.format("DTSTART:20200101T000000Z\r\nDURATION:PT1S\r\nRRULE:FREQ=SECONDLY").encode()
    with pytest.raises(CalendarError, match="recurring events occur more than 200,000 times"):
        put(every_second)
    out_of_range = EVENT.format("DTSTART:20250101\r\nDTEND:99991231\r\nRRULE:FREQ=DAILY").encode()
    for data in (b"BEGIN:VCALENDAR\r\n" * 5000, out_of_range, b"\xff\xfe", b"[" * 50_000):
        with pytest.raises(CalendarError):
            put(data)
    browser = browse()
    for name, mode, days in (
        ("closed", "add", "2027-05-01 May Day\n2027-12-25 Christmas"),
        ("closed", "replace", "2027-05-01 May Day"),
        ("new", "add", "2027-05-01 May Day"),
    ):
        sent = {"file": ("days.ics", may_day, "text/calendar")}
        page = browser.post("/calendar/import", files=sent, name=name, mode=mode).text
        shown = form_fields(page)
        assert shown["text"] == days
        assert ("These stored days go then: 2027-12-25." in page) is (mode == "replace")
        browser.send("/calendar/set", name=name, revision=shown["revision"], text=days, about="")
    assert Calendar.load("closed", app).days == Calendar.load("new", app).days == {"2027-05-01": "May Day"}


def test_calendar_typed_wrongly_comes_back_with_its_line(app: Celery, browse: Browse) -> None:
    browser = browse()
    browser.send("/calendar/set", name="closed", revision="", text="2098-01-01 New Year", about="")
    revision = form_fields(browser.read("/calendar", name="closed"))["revision"]
    wrong = {"name": "closed", "revision": revision, "about": "<ours>"}
    new = {"name": "new", "revision": "", "text": "2098-02-01", "about": ""}
    for fields, words in (
        ({**wrong, "text": "# ours\n2098-01-01\nsomeday"}, "line 3: 'someday' is not a date."),
        ({**new, "name": "closed"}, "closed: is there already"),
        ({**new, "name": ""}, "must have a name"),
        ({"name": "closed", "first": "2098-07-03", "last": "2098-07-01"}, "ends before it begins"),
    ):
        answer = browser.post("/calendar/set", **fields)
        html = unescape(answer.text)
        assert answer.status_code in (412, 422)
        assert re.search(f"Nothing was stored: [^<]*{re.escape(words)}", html)
        assert fields.get("text", "") in html
    given = {"file": ("days.txt", b"2098-01-01\nsomeday", "text/plain")}
    answer = browser.post("/calendar/import", files=given, name="closed", mode="replace", until="")
    assert answer.status_code == 422
    # somebody else was faster: what was typed stands over theirs, and is stored by another click
    Calendar.change("closed", ["2098-03-01"], app=app)
    answer = browser.post("/calendar/set", **wrong, text="2098-05-01 May")
    assert (answer.status_code, "changed meanwhile" in answer.text) == (412, True)
    again = form_fields(answer.text)
    assert (again["text"], again["about"]) == ("2098-05-01 May", "<ours>")
    browser.send("/calendar/set", **{name: again[name] for name in ("name", "revision", "text", "about")})
    assert Calendar.load("closed", app).days == {"2098-05-01": "May"}


def test_export_hides_arguments_and_comes_back_with_them(app: Celery, add: Add) -> None:
    files.apply_file(actor := actor_of(app), FileToApply(read_file(TEXT)))
    add("watched", exclude="closed", ping_url="https://hc-ping.com/secret-uuid")
    exported = files.export_file(actor)
    text = json.dumps(exported.declared.entries)
    assert ("s3cret" in text, "secret-uuid" in text, [*exported.skipped]) == (False, False, [])
    assert [*exported.declared.calendars] == ["closed"]
    exported.declared.entries["report"]["kwargs"]["size"] = 4
    given = Declared("export", None, exported.declared.entries, exported.declared.calendars)
    files.import_file(actor, FileToImport(given, replace=True))
    assert RedBeatSchedulerEntry.get("report", app).kwargs == {"api_token": "s3cret", "size": 4}
    assert RedBeatSchedulerEntry.get("watched", app).ping_url == "https://hc-ping.com/secret-uuid"


def test_export_leaves_out_what_may_hide_secrets_in_an_unusual_form(app: Celery, client: Any) -> None:
    text = '{"task":"t","x":1,"schedule":{"__type__":"interval","every":60},"kwargs":{"password":"s3cret"}}'
    client.hset("redbeat:odd", "definition", text)
    client.zadd("redbeat::schedule", {"redbeat:odd": 5e9})
    exported = files.export_file(actor_of(app))
    assert (dict(exported.declared.entries), len(exported.skipped)) == ({}, 1)
    assert "s3cret" not in exported.skipped[0]


def test_export_is_downloaded_with_the_chosen_entries(add: Add, browse: Browse) -> None:
    for name in ("old", "new"):
        add(name, schedule=60)
    answer = browse("edit").get("/files/export?match=n*&format=json")
    assert answer.headers["content-disposition"] == 'attachment; filename="schedule.json"'
    assert [*answer.json()["entries"]] == ["new"]


def test_error_of_a_file_names_the_field_of_the_form(browse: Browse) -> None:
    text = "entries: {new: {task: echo, schedule: 1h}}"
    page = unescape(browse("edit").post("/files/plan", text=text).text)
    assert ("name one (Owner)" in page, "--owner" in page) == (True, False)


def test_second_export_at_a_time_gets_503_and_says_why(
    browse: Browse, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, real, found = browse("edit"), files.export_file, list[Any]()

    def export(*given: Any, **options: Any) -> Any:
        found.append(browser.get("/files/export"))
        return real(*given, **options)

    monkeypatch.setattr(files, "export_file", export)
    assert browser.get("/files/export").status_code == 200
    assert [one.status_code for one in found] == [503]
    assert "Try again in a few seconds" in found[0].text
    assert browser.get("/files/export").status_code == 200


def test_long_change_is_shown_by_each_process_and_never_begun_twice(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two dashboards share what they know through Redis, as two processes of a server do."""
    monkeypatch.setitem(jobs.Jobs.change.__kwdefaults__ or {}, "wait_seconds", 0.0)
    monkeypatch.setattr(jobs, "RECORD_SECONDS", 0.05)
    monkeypatch.setattr(changing, "SILENT_SECONDS", 0.5)
    real, begun, go = calendars.set_calendar, list[str](), threading.Event()

    def set_slowly(*arguments: Any, **options: Any) -> Any:
        begun.append("")
        assert go.wait(patience())
        return real(*arguments, **options)

    monkeypatch.setattr(calendars, "set_calendar", set_slowly)
    both = [Browser(dashboard_of(app)) for _ in range(2)]
    token = both[0].token()
    both[1].http.cookies = both[0].http.cookies

    def click(once: str) -> str:
        form = {"csrf_token": token, "name": "closed", "first": "2098-01-02", "once": once}
        [address] = {one.http.post("/calendar/set", data=form).headers["location"] for one in both}
        return str(address)

    address = click("one")
    for browser in both:
        assert "so far" in browser.read(address)
    assert Browser(dashboard_of(app, name="bob")).get(address).status_code == 404
    go.set()
    for browser in both:
        made = eventually(lambda browser=browser: (a := browser.get(address)).status_code == 303 and a)
        assert made.headers["location"] == "/calendar?name=closed&year=2098"
        [notice] = [value for name, value in made.cookies.items() if name.startswith("redbeat_notice")]
        assert bytes.fromhex(notice).decode() == "Stored: 1 day."
    go.clear()
    monkeypatch.setattr(jobs, "RECORD_SECONDS", 3600.0)  # as if the process had been killed
    address = click("two")
    eventually(lambda: "The process that was at it has ended, it seems" in both[1].read(address))
    assert click("two") == address
    assert len(begun) == 2, "a change whose end is unknown is not begun again"
    assert 0 < client.ttl(f"redbeat::change:{address.partition('id=')[2]}") <= 600
    go.set()
