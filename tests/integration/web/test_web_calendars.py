"""Calendars on the dashboard: shown, changed, imported and deleted."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.entries.audit import find_records
from redbeat.errors import AccessDenied, CalendarError, CalendarNotFound, EntryChanged
from redbeat.web import User, changes
from redbeat.web.verbs import calendars
from redbeat.web.verbs.actor import Actor
from tests.support.dashboards import Browser, dashboard_of
from tests.support.deadlines import patience
from tests.support.forms import form_fields
from tests.support.polling import eventually

Add = Callable[..., RedBeatSchedulerEntry]
HOSTILE = "<img src=x onerror=alert(1)>"
EVENT = (
    "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTAMP:20260101T000000Z\r\n"
    "{}\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
)


def actor_of(app: Celery, *rights: str) -> Actor:
    return Actor(app, User("anna", rights or ("admin",)), "web", "192.0.2.7")


def test_a_calendar_is_changed_by_what_was_seen_only(app: Celery) -> None:
    actor = actor_of(app)
    calendars.set_(actor, "closed", {"2098-01-01": "New Year"}, about="public", revision="")
    seen = calendars.revision_of(calendars.show(actor, "closed"))
    Calendar.change("closed", ["2098-05-01"], app=app)
    with pytest.raises(EntryChanged, match="somebody else"):
        calendars.set_(actor, "closed", ["2098-12-25"], revision=seen)
    with pytest.raises(EntryChanged):
        calendars.set_(actor, "closed", ["2098-12-25"], revision="")  # made meanwhile
    seen = calendars.revision_of(calendars.show(actor, "closed"))
    calendars.set_(actor, "closed", ["2098-12-25"], without=["2098-01-01"], revision=seen)
    assert (Calendar.load("closed", app).days, Calendar.load("closed", app).about) == (
        {"2098-05-01": "", "2098-12-25": ""}, "public",
    )  # fmt: skip
    records = [(one.verb, one.names, one.outcome) for one in find_records(app)]
    assert records == [("calendar set", ("closed",), records[0][2])] * 2
    for name, days in (("closed", ["someday"]), ("", ["2098-01-01"]), ("x" * 301, [])):
        with pytest.raises(CalendarError):
            calendars.set_(actor, name, days)
    assert Calendar.names(app) == ["closed"]


def test_a_calendar_that_entries_name_is_deleted_by_force_only(app: Celery, add: Add) -> None:
    actor = actor_of(app)
    Calendar("closed", ["2098-01-01"], app=app).save()
    add("report", exclude="closed")
    with pytest.raises(CalendarError, match="named by 1 entry, report"):
        calendars.delete(actor, ["closed"])
    with pytest.raises(CalendarNotFound):
        calendars.delete(actor, ["closed", "none"], force=True)
    calendars.delete(actor, ["closed"], force=True)
    assert Calendar.names(app) == []


def test_a_file_of_events_becomes_days_and_one_that_never_ends_is_refused(
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


def test_each_step_with_calendars_takes_its_right(app: Celery) -> None:
    Calendar("closed", ["2098-01-01"], app=app).save()
    reader = actor_of(app, "read", "run", "pause")
    assert calendars.show(reader, "closed")["days"] == {"2098-01-01": ""}
    for call in (
        lambda: calendars.set_(reader, "closed", ["2098-05-01"]),
        lambda: calendars.read_import(reader, "closed", b"2098-05-01", "f"),
        lambda: calendars.import_(reader, Calendar("closed", app=app), "f", is_replacing=True),
        lambda: calendars.delete(actor_of(app, "edit"), ["closed"]),
    ):
        with pytest.raises(AccessDenied):
            call()
    assert list(Calendar.load("closed", app).days) == ["2098-01-01"]


def test_a_year_is_seen_at_a_glance_and_changed_from_its_page(
    app: Celery, add: Add, browse: Callable[..., Browser]
) -> None:
    browser = browse()
    Calendar(HOSTILE, app=app).save()
    add("report", exclude=HOSTILE)
    Calendar(HOSTILE, app=app).delete()
    browser.send("/calendar/set", name=HOSTILE, revision="", text="2098-01-01 New Year", about="<b>")
    Calendar.change(
        HOSTILE, ["2098-12-24/2098-12-26", "2098-03-01T08:00+00:00/2098-03-01T09:00+00:00"], app=app
    )
    page = eventually(lambda: _with(browser.read("/calendar", name=HOSTILE, year=2098), ">report<"))
    assert "4 days excluded, 1 in part" in page
    assert 'title="excluded: New Year"' in page
    assert ("<img src=x" in page, "<b>" in page) == (False, False)
    listed = eventually(lambda: _with(browser.read("/calendars"), 'data-label="Entries">1<'))
    assert ("onerror" in listed, "<img" in listed) == (True, False)
    revision = re.search(r'name="revision" value="([^"]+)"', page)
    assert revision is not None
    text = "2098-01-01 New Year\n2098-05-01 May"
    shown = browser.send("/calendar/set", name=HOSTILE, revision=revision[1], text=text, about="one\ntwo")
    assert "Stored: 2 days." in shown
    assert Calendar.load(HOSTILE, app).about == "one\ntwo"
    assert browser.post("/calendar/set", name=HOSTILE, revision=revision[1], text="").status_code == 412
    browser.send("/calendar/set", name=HOSTILE, remove="2098-05-01")
    browser.send("/calendar/set", name=HOSTILE, first="2098-07-01", last="2098-07-03", label="closed")
    assert Calendar.load(HOSTILE, app).days == {"2098-01-01": "New Year", "2098-07-01/2098-07-03": "closed"}
    for wrong in ({"first": "someday"}, {"text": "someday"}, {"first": "2098-07-03", "last": "2098-07-01"}):
        assert browser.post("/calendar/set", name=HOSTILE, **wrong).status_code == 422
    assert browser.get("/calendar", name="none").status_code == 404
    assert browser.get("/calendar", name=HOSTILE, year="9" * 50).status_code == 200


def test_what_was_typed_wrongly_comes_back_with_the_line_at_its_field(
    app: Celery, browse: Callable[..., Browser]
) -> None:
    browser = browse()
    browser.send("/calendar/set", name="closed", revision="", text="2098-01-01 New Year", about="")
    revision = form_fields(browser.read("/calendar", name="closed"))["revision"]

    def error(field: str, **fields: str) -> str:
        answer = browser.post("/calendar/set", **fields)
        assert answer.status_code in (412, 422)
        html = unescape(answer.text)
        for name in ("text", "about", "label"):
            assert fields.get(name, "") in html
        found = re.search(f'<p class="error" id="{field}-error">.*?<span>(.*?)</span>', html)
        assert found is not None, html
        return found[1]

    wrong = {"name": "closed", "revision": revision, "about": "<ours>"}
    assert "line 3: 'someday' is not a date. Write" in error(
        "edit-text", **wrong, text="# ours\n2098-01-01\nsomeday"
    )
    text = "2098-01-01\n2098-13-01 never"
    assert "line 2: '2098-13-01' is not a date: month must be in 1..12. Write 2026-12-25," in error(
        "edit-text", **wrong, text=text
    )
    assert "line 2" in error("new-text", name="new", revision="", text=text, about="<new>")
    taken = error("new-name", name="closed", revision="", text="2098-02-01", about="")
    assert taken == "There is a calendar of this name already."
    assert "must have a name" in error("new-name", name="", revision="", text="2098-02-01", about="")
    assert "ends before it begins" in error(
        "f-last", name="closed", first="2098-07-03", last="2098-07-01", label="<b>"
    )
    given = {"file": ("days.txt", b"2098-01-01\nsomeday", "text/plain")}
    answer = browser.post("/calendar/import", files=given, name="closed", mode="replace", until="")
    assert (answer.status_code, "line 2: 'someday'" in unescape(answer.text)) == (422, True)
    assert form_fields(answer.text)["mode"] == "replace"
    # somebody else was faster: what was typed stands over theirs, and is stored by another click
    Calendar.change("closed", ["2098-03-01"], app=app)
    answer = browser.post("/calendar/set", **wrong, text="2098-05-01 May")
    assert (answer.status_code, "changed it meanwhile" in answer.text) == (412, True)
    again = form_fields(answer.text)
    assert (again["text"], again["about"]) == ("2098-05-01 May", "<ours>")
    browser.send("/calendar/set", **{name: again[name] for name in ("name", "revision", "text", "about")})
    assert Calendar.load("closed", app).days == {"2098-05-01": "May"}
    Calendar.load("closed", app).delete()
    answer = browser.post("/calendar/set", **wrong, text="2098-05-01 May")
    assert (answer.status_code, form_fields(answer.text)["text"]) == (412, "2098-05-01 May")


def test_a_file_is_shown_before_it_is_stored_and_a_calendar_is_asked_about_before_it_goes(
    app: Celery, add: Add, browse: Callable[..., Browser]
) -> None:
    browser = browse()
    events = EVENT.format("DTSTART;VALUE=DATE:20270501\r\nSUMMARY:May Day").encode()
    given = {"file": ("days.ics", events, "text/calendar")}
    shown = browser.post("/calendar/import", files=given, name="closed", mode="new", until="").text
    assert ("days.ics has 1 day." in shown, Calendar.names(app)) == (True, [])
    text = re.search(r'name="text" value="([^"]+)"', shown)
    assert text is not None
    fields = {"name": "closed", "origin": "days.ics", "mode": "new", "text": unescape(text[1])}
    browser.send("/calendar/import", confirmed="yes", **fields)
    assert Calendar.load("closed", app).days == {"2027-05-01": "May Day"}
    replaced = {"name": "closed", "mode": "replace", "text": "2027-12-25"}
    assert "Replace the stored days" in browser.post("/calendar/import", **replaced).text
    assert browser.post("/calendar/import", confirmed="yes", **{**fields, "mode": ""}).status_code == 422
    add("report", exclude="closed")
    assert "Delete the calendar closed?" in browser.post("/calendar/delete", name="closed").text
    assert browser.post("/calendar/delete", name="closed", confirmed="yes").status_code == 422
    assert "Deleted the calendar closed" in browser.send(
        "/calendar/delete", name="closed", confirmed="yes", force="yes"
    )
    reader = browse("read")
    for path in ("set", "import", "delete"):
        assert reader.post(f"/calendar/{path}", name="closed").status_code == 403
    assert "Make it" not in reader.read("/calendars")


def _with(text: str, part: str) -> str | None:
    return text if part in text else None


def test_a_change_that_takes_long_has_a_page_that_says_so_and_is_made_once(
    app: Celery, browse: Callable[..., Browser], monkeypatch: pytest.MonkeyPatch
) -> None:
    browser, go_on, calls = browse("edit"), threading.Event(), list[str]()

    def set_slowly(*arguments: Any, **options: Any) -> Calendar:
        calls.append("set")
        go_on.wait(patience(20))
        return set_(*arguments, **options)

    set_ = calendars.set_
    monkeypatch.setattr(calendars, "set_", set_slowly)
    monkeypatch.setattr(changes, "WAIT_SECONDS", 0.0)
    form = {"csrf_token": browser.token(), "name": "closed", "first": "2098-01-02", "once": "click"}
    try:
        answers = [browser.http.post("/calendar/set", data=form) for _ in range(2)]
        [address] = {answer.headers["location"] for answer in answers}
        assert "get their next runs" in eventually(lambda: browser.http.get(address).text)
        stranger = Browser(dashboard_of(app, name="bob"))
        assert stranger.http.get(address).status_code == 404
        assert Calendar.names(app) == []
    finally:
        go_on.set()

    def told() -> str | None:
        return browser.http.get(address, headers={"HX-Request": "true"}).headers.get("hx-redirect")

    done = browser.http.get(str(eventually(told)))
    assert (done.status_code, done.headers["location"]) == (303, "/calendar?name=closed&year=2098")
    assert (calls, list(Calendar.load("closed", app).days)) == (["set"], ["2098-01-02"])


def test_pages_of_calendars_renew_their_parts_beside_what_one_types(
    app: Celery, browse: Callable[..., Browser]
) -> None:
    Calendar("closed", ["2098-12-25"], app=app).save()
    browser = browse()
    for path, query in (("/calendar", {"name": "closed", "year": "2098"}), ("/calendars", {})):
        page = browser.read(path, **query)
        assert 'hx-trigger="sse:change, sse:tick, every 60s"' in page
        part = browser.get(path, headers={"HX-Request": "true"}, **query).text
        assert ("<html" in part, "<textarea" in part) == (False, False)
    Calendar("closed", ["2098-12-25", "2098-12-26"], app=app).save()
    part = browser.get("/calendar", headers={"HX-Request": "true"}, name="closed", year="2098").text
    assert ("2098-12-26" in part, "Edit as text" in part) == (True, False)
