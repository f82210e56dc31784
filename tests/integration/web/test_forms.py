"""Forms of entries: added and edited as fields or JSON, by two users at once; paused, run and backfilled."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from datetime import datetime, timezone
from html import unescape
from typing import Any

import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.audit import find_records
from tests.integration.web.conftest import Add, Browse
from tests.integration.web.dashboard_walk import fill, send_forms
from tests.support.dashboards import HOSTILE, Browser
from tests.support.forms import form_fields
from tests.support.schedule import messages

SECRET = {"password": "geheim", "to": "a@b"}


def sent_calls(broker: redis.Redis, queue: str = "celery") -> list[list[Any]]:
    """Return the arguments of the messages on a queue, the oldest first."""
    return [json.loads(b64decode(message["body"]))[:2] for message in messages(broker, queue)]


def opened(browser: Browser, name: str, **query: str) -> dict[str, str]:
    return form_fields(browser.read("/entry/edit", name=name, **query), "entry-form")


def preview(browser: Browser, **fields: str) -> str:
    answer = browser.post("/entry/preview", {"hx-request": "true"}, **fields)
    assert answer.status_code == 200, answer.text
    return unescape(answer.text)


def test_unconfirmed_form_changes_nothing_where_it_asks_first(
    app: Celery, client: redis.Redis, broker: redis.Redis, browse: Browse
) -> None:
    del broker  # runs are sent to it
    fill(app, client)
    for path, answer in send_forms(browse(), confirmed=""):
        assert answer.status_code < 500, path
    asking_nothing = {"trigger", "set", "calendar set", "apply"}
    assert {record.verb for record in find_records(app)} == asking_nothing


def test_form_sent_back_untouched_changes_nothing(
    app: Celery, client: redis.Redis, browse: Browse, add: Add
) -> None:
    add(
        "report", "30 7 * * mon-fri", kwargs=SECRET, options={"queue": "q", "headers": {"api_token": "x"}},
        timezone="Asia/Tokyo", start_time="2020-01-01T00:00:00", jitter=90, ping_url="https://hc-ping.com/geheim",
    )  # fmt: skip
    before = client.hgetall("redbeat:report")
    browser = browse()
    for way in ("form", "json"):
        sent = opened(browser, "report", **{"as": way})
        assert "geheim" not in json.dumps(sent)
        assert "Nothing so far." in preview(browser, **sent)
        assert "Nothing was changed." in browser.send("/entry/save", **sent)
    assert client.hgetall("redbeat:report") == before


def test_form_stores_what_is_changed_and_keeps_the_rest(
    app: Celery, client: redis.Redis, browse: Browse, add: Add
) -> None:
    add("report", "30 7 * * *", kwargs=SECRET, jitter=90, ping_url="https://hc-ping.com/geheim").reschedule()
    definition = client.hget("redbeat:report", "definition")
    client.hset("redbeat:report", "definition", f'{definition[:-1]}, "theirs": 1}}')
    browser = browse()
    sent = opened(browser, "report")
    sent |= {"schedule_kind": "every", "schedule": "2h", "jitter": ""}
    sent["kwargs"] = sent["kwargs"].replace("a@b", "c@d")
    shown = preview(browser, **sent)
    assert shown.count("<time") >= 10
    for line in ("jitter: 90", 'kwargs: {"password": "(hidden)", "to": "c@d"}', "schedule: every 2h"):
        assert line in shown, line
    browser.send("/entry/save", **sent)
    entry = RedBeatSchedulerEntry.get("report", app)
    assert entry.kwargs == {"password": "geheim", "to": "c@d"}
    assert (entry.description, entry.jitter) == ("Every 2 hours", 0)
    assert entry.ping_url == "https://hc-ping.com/geheim"
    assert '"theirs": 1' in client.hget("redbeat:report", "definition")


def test_second_of_two_editors_gets_412_and_chooses(app: Celery, browse: Browse, add: Add) -> None:
    add("report", "30 7 * * *", kwargs=SECRET, jitter=90)
    anna, eve = browse(), browse()
    of_anna, of_eve = opened(anna, "report"), opened(eve, "report")
    anna.send("/entry/save", **of_anna | {"jitter": "5m", "timezone": "Asia/Tokyo"})
    answer = eve.post("/entry/save", **of_eve | {"jitter": "10m", "queue": HOSTILE})
    assert answer.status_code == 412
    for line in ("jitter: 300", "timezone: Asia/Tokyo", "jitter: 600"):
        assert line in unescape(answer.text), line
    assert ("geheim" in answer.text, "<img" in answer.text) == (False, False)
    assert RedBeatSchedulerEntry.get("report", app).jitter == 300
    going_on = form_fields(answer.text, "entry-form")
    typed = (going_on["jitter"], going_on["timezone"], going_on["queue"])
    assert typed == ("10m", "Asia/Tokyo", HOSTILE), "what eve has typed stands over what anna has stored"
    eve.send("/entry/save", **going_on)
    entry = RedBeatSchedulerEntry.get("report", app)
    assert (entry.jitter, entry.timezone, entry.options) == (600, "Asia/Tokyo", {"queue": HOSTILE})
    new = form_fields(eve.read("/entry/new"), "entry-form") | {"name": "report", "task": "other"}
    assert eve.post("/entry/save", **new).status_code == 412, "there is such an entry"
    assert entry.kwargs == RedBeatSchedulerEntry.get("report", app).kwargs == SECRET
    add("mail", "30 7 * * *")
    of_eve = opened(eve, "mail") | {"jitter": "5m"}
    RedBeatSchedulerEntry.get("mail", app).delete()
    answer = eve.post("/entry/save", **of_eve)
    assert (answer.status_code, "was removed" in answer.text) == (412, True)
    eve.send("/entry/save", **form_fields(answer.text, "entry-form"))
    assert RedBeatSchedulerEntry.get("mail", app).jitter == 300, "it is added once more"


def test_errors_stand_at_their_fields_in_preview_and_save(app: Celery, browse: Browse, add: Add) -> None:
    add("report", "30 7 * * *")
    browser = browse()
    wrong = {"schedule": "61 * * * *", "jitter": "soon", "args": "[1", "timezone": "Mars", "max_runs": "0"}
    sent = opened(browser, "report") | wrong
    shown = preview(browser, **sent)
    for field in wrong:
        assert f'id="f-{field}-problem" class="problem" hx-swap-oob="true"><p' in shown, field
    assert 'id="f-kwargs-problem" class="problem" hx-swap-oob="true"></div>' in shown
    answer = browser.post("/entry/save", **sent)
    assert (answer.status_code, answer.text.count('aria-invalid="true"')) == (422, len(wrong))
    summary = answer.text.partition('role="alert" tabindex="-1" autofocus')[2].partition('class="tabs"')[0]
    for field, text in wrong.items():
        assert f'<a href="#f-{field}">' in summary, "on a phone the fields are far below"
        assert text in unescape(answer.text), "what was typed stays"
    assert RedBeatSchedulerEntry.get("report", app).jitter == 0, "nothing is stored"
    shown = preview(browser, **opened(browser, "report") | {"exclude": "nonesuch"})
    assert 'id="f-exclude-problem" class="problem" hx-swap-oob="true"><p' in shown, "Redis is asked for it"


def test_draft_becomes_json_and_a_form_again(browse: Browse, add: Add) -> None:
    add("report", "30 7 * * *", kwargs=SECRET)
    browser = browse()
    sent = opened(browser, "report") | {"jitter": "5m"}
    as_json = form_fields(browser.post("/entry/edit", **sent, to="json").text, "entry-form")
    assert json.loads(as_json["document"])["jitter"] == 300
    html = browser.post("/entry/edit", **as_json, to="form").text
    assert form_fields(html, "entry-form") == sent
    assert "+ </span>jitter: 300" in html  # the preview is there without a script, too
    broken = browser.post("/entry/edit", **as_json | {"document": "{"}, to="form")
    assert broken.status_code == 422


def test_garbage_in_a_form_is_refused(browse: Browse, add: Add) -> None:
    add("report", "30 7 * * *")
    browser = browse()
    sent = opened(browser, "report")
    garbage = [
        {"base": "[" * 50_000}, {"base": "5"}, {"way": "json", "document": "[" * 50_000},
        {"way": "json", "document": '{"name": 5}'},
        {"way": "json", "document": '{"kwargs": {"password": "(hidden)"}}'},
        {"schedule_kind": "x" * 1000}, {"entry": "\x00\ud7ff"}, {"revision": "é"}, {"state": "<b>"},
        {"timezone": "../../etc/passwd"}, {"schedule_kind": "json", "schedule": '{"__type__": []}'},
        {"schedule_kind": "cron", "schedule": "*" * 10_000},
        {"schedule_kind": "rrule", "schedule": "FREQ=DAILY;COUNT=99999999999999999999"},
    ]  # fmt: skip
    for fields in garbage:
        for path in ("preview", "save", "edit"):
            answer = browser.post(f"/entry/{path}", **{**sent, **fields})
            assert answer.status_code in (200, 303, 404, 412, 422), (fields, path, answer.status_code)


def test_pause_takes_times_in_the_zone_of_the_viewer(app: Celery, browse: Browse, add: Add) -> None:
    add("report", "30 7 * * *", timezone="Asia/Tokyo")
    browser = browse("pause")
    browser.http.cookies.set("redbeat-zone", "America%2FNew_York")
    fields = {"name": "report", "note": "kept", "confirmed": "yes"}
    for until in ("yesterday", "2020-01-01T00:00", "soon"):
        answer = browser.post("/entries/pause?back=entry", until=until, **fields)
        assert (answer.status_code, 'value="kept"' in answer.text) == (422, True)
    assert "Paused report." in browser.send("/entries/pause?back=entry", until="2099-01-01T09:00", **fields)
    entry = RedBeatSchedulerEntry.get("report", app)
    assert entry.paused_until == datetime(2099, 1, 1, 14, tzinfo=timezone.utc)
    assert (entry.pause_note, entry.paused_by) == ("kept", "anna")


def test_run_now_sends_other_arguments_and_keeps_hidden_ones(
    app: Celery, browse: Browse, broker: redis.Redis, add: Add
) -> None:
    add("report", kwargs=SECRET, args=[1], options={"queue": "celery"})
    browser = browse("run")
    own = form_fields(browser.read("/entry/run", name="report"))
    assert "geheim" not in json.dumps(own)
    html = browser.send("/entry/run", **own)
    [task_id] = set(re.findall(r"its task id is ([\w-]+)", html))
    assert f"its task id is {task_id}" in browser.send("/entry/run", **own)
    browser.send("/entry/run", **own | {"args": "[2, 3]", "kwargs": own["kwargs"].replace("a@b", "c@d")})
    browser.send("/entry/run", **own | {"args": "[]", "kwargs": "", "queue": "other"})
    assert sent_calls(broker) == [[[1], SECRET], [[2, 3], {"password": "geheim", "to": "c@d"}]]
    assert sent_calls(broker, "other") == [[[], {}]]
    for field, text in (("args", "{}"), ("kwargs", "["), ("kwargs", '{"x_token": "(hidden)"}')):
        answer = browser.post("/entry/run", **own | {field: text})
        assert (answer.status_code, form_fields(answer.text)[field]) == (422, text)
    assert len(sent_calls(broker)) == 2
