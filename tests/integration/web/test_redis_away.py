"""What is shown while Redis stands still or is gone, and that nobody waits for long."""

from __future__ import annotations

import signal
import time
from html import unescape

from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.store.store import Store
from redbeat.store.tokens import Tokens
from redbeat.web import asgi_app
from redbeat.web.threads import PATIENCE_SECONDS
from tests.support.dashboards import Browser, dashboard_of
from tests.support.deadlines import patience
from tests.support.forms import form_fields
from tests.support.servers import Server


def test_while_redis_stands_still_pages_say_so_and_who_isnt_known_needs_no_redis(second: Server) -> None:
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
        assert stranger.get("/login").status_code == 200
        assert stranger.get("/").status_code == 401
        assert stranger.get("/static/redbeat.css").status_code == 200
    finally:
        second.process.signal(signal.SIGCONT)
    browser.read("/")
    second.kill()
    answer = browser.get("/")
    assert (answer.status_code, "Redis" in answer.text) == (503, True)
    second.restart()
    browser.read("/")


def test_what_was_typed_while_redis_was_away_is_stored_when_it_is_back(second: Server) -> None:
    app = Celery("test", broker=second.url(0), set_as_current=False)
    app.conf.update(redbeat_redis_url=second.url(1), redbeat_redis_options={"retry_period": -1})
    report = RedBeatSchedulerEntry("report", "echo", "0 9 * * *", app=app).save()
    browser = Browser(dashboard_of(app))
    new = form_fields(browser.read("/entry/new"), "entry-form")
    new |= {"name": "<letter>", "task": "echo", "kwargs": '{"to": "anna"}'}
    old = form_fields(browser.read("/entry/edit", name="report"), "entry-form") | {"jitter": "5m"}
    as_json = form_fields(browser.read("/entry/edit", name="report", **{"as": "json"}), "entry-form")
    as_json["document"] = '{"name": '
    visitor = Browser(asgi_app(app))
    visitor.post("/login", token=Tokens(Store(app)).add("deploy", ["admin"], None)[1])
    assert visitor.get("/entry/new").status_code == 200
    pause = {"name": "report", "note": "<moving>", "csrf_token": new["csrf_token"], "until": ""}
    second.kill()
    kept = {}
    for path, fields in (("/entry/save", new), ("/entry/save", old), ("/entry/edit", old | {"to": "json"})):
        answer = browser.http.post(path, data=fields)
        assert (answer.status_code, "Redis" in answer.text) == (503, True)
        kept[fields["entry"]] = form_fields(answer.text, "entry-form")
        assert {**fields, **kept[fields["entry"]]} == fields
    answer = browser.http.post("/entry/save", data=as_json)
    assert form_fields(answer.text, "entry-form") == as_json
    answer = browser.http.post("/entry/pause", data=pause)
    assert (answer.status_code, "Try again" in answer.text) == (503, True)
    again = form_fields(answer.text)
    assert again == pause
    file = {"file": ("shop.yaml", b"entries: {}", "application/yaml")}
    answer = browser.http.post("/files/plan", data={"csrf_token": new["csrf_token"]}, files=file)
    assert (answer.status_code, "your browser has kept it" in answer.text) == (503, True)
    # who somebody is, is in Redis, too: their form isn't read then
    answer = visitor.post("/entry/save", **new)
    assert (answer.status_code, "your browser has kept it" in answer.text) == (503, True)
    second.restart()  # without its data
    report.save()
    for fields in kept.values():
        browser.send("/entry/save", **fields)
    browser.send("/entry/pause", **again)
    assert RedBeatSchedulerEntry.get("<letter>", app).kwargs == {"to": "anna"}
    entry = RedBeatSchedulerEntry.get("report", app)
    assert (entry.jitter, entry.pause_note) == (300, "<moving>")


def test_an_error_page_has_a_way_on_and_marks_where_it_belongs(app: Celery) -> None:
    browser = Browser(dashboard_of(app))
    for path, label in (("/entry", "entries"), ("/calendar", "calendars"), ("/nowhere", "overview")):
        html = unescape(browser.read(path, 404, name="nope"))
        assert f"To {label}</a>" in html
        assert html.count('aria-current="page"') == (0 if label == "overview" else 2)
        assert "Try again" not in html
    assert ":calendar:" not in browser.read("/calendar", 404, name="nope")
