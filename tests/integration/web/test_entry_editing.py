"""Entries added and edited in the dashboard: as a form, as JSON, by two people, with hidden arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape

import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.audit import audited
from tests.support.dashboards import Browser
from tests.support.forms import form_fields
from tests.support.gallery import HOSTILE
from tests.support.programs import Program

Browse = Callable[..., Browser]
Add = Callable[..., RedBeatSchedulerEntry]

SECRET = {"password": "geheim", "to": "a@b"}


def opened(browser: Browser, name: str, **query: str) -> dict[str, str]:
    return form_fields(browser.read("/entry/edit", name=name, **query), "entry-form")


def preview(browser: Browser, **fields: str) -> str:
    answer = browser.post("/entry/preview", {"hx-request": "true"}, **fields)
    assert answer.status_code == 200, answer.text
    return unescape(answer.text)


def test_a_form_that_is_sent_back_untouched_changes_nothing(
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


def test_an_unchanged_form_stops_no_entry_that_2x_has_enabled_in_its_pause(
    app: Celery, client: redis.Redis, browse: Browse, add: Add
) -> None:
    add("report", 3600).pause("first\nsecond", by="eve")
    off = client.hget("redbeat:report", "definition")
    client.hset("redbeat:report", "definition", off.replace('"enabled": false', '"enabled": true'))
    before = client.hgetall("redbeat:report")
    browser = browse()
    listed = browser.read("/entries")
    assert "second" not in listed
    assert re.findall(r'<form class="inline-form"[^>]*action="/entries/(\w+)"', listed) == [
        "trigger",
        "pause",
    ]
    sent = opened(browser, "report")
    assert sent["state"] == "runs"
    assert "Nothing was changed." in browser.send("/entry/save", **sent)
    assert client.hgetall("redbeat:report") == before
    browser.send("/entry/save", **sent | {"jitter": "5s"})
    entry = RedBeatSchedulerEntry.get("report", app)
    assert (entry.state, entry.jitter, entry.pause_note) == ("scheduled", 5, "first\nsecond")


def test_an_entry_with_nan_among_its_arguments_is_edited(
    app: Celery, client: redis.Redis, browse: Browse
) -> None:
    definition = '{"task": "t", "schedule": {"__type__": "interval", "every": 60}, "kwargs": {"x": NaN}}'
    client.hset("redbeat:report", "definition", definition)
    client.zadd("redbeat::schedule", {"redbeat:report": 5e9})
    browser = browse()
    sent = opened(browser, "report")
    assert sent["kwargs"] == '{"x": NaN}'
    assert "Nothing was changed." in browser.send("/entry/save", **sent)
    assert "Changed report." in browser.send("/entry/save", **sent | {"jitter": "5s"})
    sent = opened(browser, "report")
    assert (sent["kwargs"], sent["jitter"]) == ('{"x": NaN}', "5s")  # stored as 2.x stores it
    assert '"kwargs": {"x": NaN}' in client.hget("redbeat:report", "definition")
    assert "Changed report." in browser.send("/entry/save", **sent | {"kwargs": '{"x": 1}'})


def test_what_is_changed_is_stored_and_the_rest_stays(
    app: Celery, client: redis.Redis, browse: Browse, add: Add
) -> None:
    add("report", "30 7 * * *", kwargs=SECRET, jitter=90, ping_url="https://hc-ping.com/geheim").reschedule()
    client.hset(
        "redbeat:report", "definition", client.hget("redbeat:report", "definition")[:-1] + ', "theirs": 1}'
    )
    browser = browse()
    sent = opened(browser, "report")
    sent |= {
        "schedule_kind": "every",
        "schedule": "2h",
        "jitter": "",
        "kwargs": sent["kwargs"].replace("a@b", "c@d"),
    }
    shown = preview(browser, **sent)
    assert "Every 2 hours" in shown
    assert shown.count("<time") >= 10
    for line in ("jitter: 90", 'kwargs: {"password": "(hidden)", "to": "c@d"}', "schedule: every 2h"):
        assert line in shown, line
    html = browser.send("/entry/save", **sent)
    assert "Changed report. Next run:" in html
    entry = RedBeatSchedulerEntry.get("report", app)
    assert entry.kwargs == {"password": "geheim", "to": "c@d"}
    assert (entry.description, entry.jitter) == ("Every 2 hours", 0)
    assert entry.ping_url == "https://hc-ping.com/geheim"
    assert '"theirs": 1' in client.hget("redbeat:report", "definition")


def test_a_positional_argument_is_hidden_by_its_parameter_on_every_page_and_comes_back(
    app: Celery, browse: Browse, add: Add, program: Callable[..., Program]
) -> None:
    @app.task(name="log-in")
    def log_in(user: str, password: str) -> None:
        """A task that this process knows."""

    add("report", task="log-in", args=["anna", "geheim"])
    with audited(app, "bob", "cli", "set", ["report"], {"args": ["anna", "geheim"]}):
        """By the command line, which hides nothing."""
    browser, user = browse(), program()
    sent = opened(browser, "report")
    assert json.loads(sent["args"]) == ["anna", "(hidden)"]
    assert "Nothing was changed." in browser.send("/entry/save", **sent)
    sent["args"] = '["ben", "(hidden)"]'
    assert "Changed report." in browser.send("/entry/save", **sent)
    assert RedBeatSchedulerEntry.get("report", app).args == ["ben", "geheim"]
    changed = user.ask("PATCH", "/entries/report", {"args": ["carl", "(hidden)"]})
    assert (changed.status_code, changed.json()["args"]) == (200, ["carl", "(hidden)"])
    assert RedBeatSchedulerEntry.get("report", app).args == ["carl", "geheim"]
    for wrong in ({"task": "echo"}, {"args": ["x", "carl", "(hidden)"]}):  # it would be shown there
        given = {"args": ["carl", "(hidden)"], **wrong}
        assert user.ask("PATCH", "/entries/report", given).status_code == 422
    browser.send("/entry/run", name="report", args='["dora", "(hidden)"]', kwargs="{}", queue="")
    texts = [browser.read(path, name="report") for path in ("/entry", "/entry/edit", "/entry/run", "/audit")]
    texts += [user.ask("GET", path).text for path in ("/entries/report", "/entries", "/audit", "/export")]
    planned = "{owner: me, entries: {report: {task: log-in, schedule: 1h, args: [eve, other]}}}"
    texts.append(browser.post("/files/plan", text=planned).text.partition("<form method")[0])
    for text in texts:
        assert ("geheim" in text, "other&#34;" in text) == (False, False), text
    assert "carl" in texts[0]


def test_what_is_hidden_can_be_replaced_but_not_invented(app: Celery, browse: Browse, add: Add) -> None:
    add("report", "30 7 * * *", kwargs=SECRET)
    browser = browse()
    sent = opened(browser, "report")
    new = {**sent, "kwargs": '{"password": "neu", "to": "a@b"}'}
    shown = preview(browser, **new)
    assert "neu" not in shown
    assert "kwargs: what is hidden in it" in shown
    browser.send("/entry/save", **new)
    assert RedBeatSchedulerEntry.get("report", app).kwargs["password"] == "neu"
    sent = opened(browser, "report") | {"kwargs": '{"other_token": "(hidden)"}'}
    answer = browser.post("/entry/save", **sent)
    assert answer.status_code == 422
    assert "there is no value that this stands for" in unescape(answer.text)


def test_two_people_edit_one_entry_and_the_second_chooses(app: Celery, browse: Browse, add: Add) -> None:
    add("report", "30 7 * * *", kwargs=SECRET, jitter=90)
    anna, eve = browse(), browse()
    of_anna, of_eve = opened(anna, "report"), opened(eve, "report")
    anna.send("/entry/save", **of_anna | {"jitter": "5m", "timezone": "Asia/Tokyo"})
    answer = eve.post("/entry/save", **of_eve | {"jitter": "10m", "queue": HOSTILE})
    assert answer.status_code == 412
    html = unescape(answer.text)
    assert "Somebody else has changed this meanwhile" in html
    for line in ("jitter: 300", "timezone: Asia/Tokyo", "jitter: 600", "take theirs", "Save mine over it"):
        assert line in html, line
    assert "last change of it: set by anna, " in html
    assert '<a href="/entry?name=report"' in html
    # whoever goes on editing has what they typed over theirs
    going_on = form_fields(eve.send("/entry/edit", **form_fields(answer.text)), "entry-form")
    assert (going_on["jitter"], going_on["timezone"], going_on["queue"]) == (
        "10m",
        "Asia/Tokyo",
        HOSTILE,
    )
    assert going_on["revision"] == form_fields(answer.text)["revision"] != of_eve["revision"]
    assert "geheim" not in answer.text
    assert "<img" not in answer.text
    entry = RedBeatSchedulerEntry.get("report", app)
    assert entry.jitter == 300
    eve.send("/entry/save", **form_fields(answer.text))
    entry = RedBeatSchedulerEntry.get("report", app)
    assert (entry.jitter, entry.timezone) == (600, "Asia/Tokyo")
    assert entry.options == {"queue": HOSTILE}
    assert entry.kwargs == SECRET


def test_an_entry_that_was_removed_meanwhile_can_be_added_once_more(
    app: Celery, browse: Browse, add: Add
) -> None:
    add("report", "30 7 * * *", jitter=90).delete()
    add("report", "30 7 * * *", jitter=90)
    for way, changes in (("form", {"jitter": "5m"}), ("json", {})):
        browser = browse()
        sent = opened(browser, "report", **{"as": way}) | changes
        if way == "json":
            sent["document"] = json.dumps({**json.loads(sent["document"]), "jitter": 600})
        RedBeatSchedulerEntry.get("report", app).delete()
        answer = browser.post("/entry/save", **sent)
        assert answer.status_code == 412
        assert "has removed this entry" in answer.text
        browser.send("/entry/save", **form_fields(answer.text))
        assert RedBeatSchedulerEntry.get("report", app).jitter == (300 if way == "form" else 600)


def test_errors_stand_at_their_fields_while_one_types_and_when_it_is_saved(
    app: Celery, browse: Browse, add: Add
) -> None:
    add("report", "30 7 * * *")
    browser = browse()
    wrong = {"schedule": "61 * * * *", "jitter": "soon", "args": "[1", "timezone": "Mars", "max_runs": "0"}
    sent = opened(browser, "report") | wrong
    shown = preview(browser, **sent)
    assert "5 things are wrong" in shown
    for field in wrong:
        assert f'id="f-{field}-problem" class="problem" hx-swap-oob="true"><p' in shown, field
    assert 'id="f-kwargs-problem" class="problem" hx-swap-oob="true"></div>' in shown
    answer = browser.post("/entry/save", **sent)
    assert answer.status_code == 422
    assert answer.text.count('aria-invalid="true"') == len(wrong)
    # on a phone the fields are far below
    assert "<title>Error: Edit: report" in answer.text
    summary = answer.text.partition('role="alert" tabindex="-1" autofocus')[2].partition('class="tabs"')[0]
    for field in wrong:
        assert f'<a href="#f-{field}">' in summary, field
        assert f'id="f-{field}"' in answer.text, field
    for text in wrong.values():
        assert text in unescape(answer.text), text  # what was typed stays
    assert RedBeatSchedulerEntry.get("report", app).jitter == 0


def test_an_entry_is_added_and_its_name_must_be_new(app: Celery, browse: Browse, add: Add) -> None:
    add("report", "30 7 * * *")
    browser = browse()
    sent = form_fields(browser.read("/entry/new"), "entry-form") | {"task": "echo"}
    answer = browser.post("/entry/save", **sent | {"name": "report"})
    assert answer.status_code == 412
    assert "There is an entry of this name already." in answer.text
    assert "that key is RedBeat's own" in preview(browser, **sent | {"name": ":schedule"})
    assert "It still needs a name." in preview(browser, **sent | {"name": ""})
    nameless = browser.post("/entry/save", **sent | {"name": "", "task": ""})
    assert nameless.status_code == 422
    assert "An entry must have a name" in nameless.text
    assert "It is missing." in nameless.text
    new = browser.read("/entry/new")
    assert "It still needs a name and a task." in new
    assert 'class="error"' not in new
    assert "Added new." in browser.send("/entry/save", **sent | {"name": "new", "state": "disabled"})
    assert RedBeatSchedulerEntry.get("new", app).state == "disabled"
    copied = form_fields(browser.read("/entry/new", like="report"), "entry-form")
    assert (copied["name"], copied["schedule"]) == ("", "30 7 * * *")


def test_what_can_not_be_stored_is_told_at_its_field_while_one_types(
    app: Celery, browse: Browse, add: Add
) -> None:
    add("report", 3600)
    browser = browse()
    sent = opened(browser, "report")
    new = form_fields(browser.read("/entry/new"), "entry-form") | {"task": "echo"}
    for fields, field, words in (
        ({**sent, "exclude": "nowhere"}, "exclude", "There is no calendar 'nowhere'"),
        ({**sent, "priority": "300"}, "priority", "It must be from 0 to 255"),
        ({**new, "name": "report"}, "name", "There is an entry of this name already."),
    ):
        shown = preview(browser, **fields)
        assert "It can't be stored as it is." in shown
        assert words in shown
        answer = browser.post("/entry/save", **fields)
        assert answer.status_code in (412, 422)
        told = unescape(answer.text).partition(f'id="f-{field}-problem"')[2].partition("</div>")[0]
        assert words in told
    assert "It can be stored." in preview(browser, **{**new, "name": "x"})


def test_what_runs_have_made_of_an_entry_is_no_change_of_it(
    app: Celery, browse: Browse, add: Add, program: Callable[..., Program]
) -> None:
    add("report", 3600)
    browser = browse()
    sent = opened(browser, "report", **{"as": "json"})
    document = json.loads(sent["document"])
    bookkeeping = {"total_run_count": 7, "last_run_at": "2020-01-01T00:00:00+00:00", "owner": "me"}
    sent["document"] = json.dumps({**document, **bookkeeping})
    assert "Nothing so far." in preview(browser, **sent)
    assert "Nothing was changed." in browser.send("/entry/save", **sent)
    changed = program().ask("PATCH", "/entries/report", {"jitter": 5, "total_run_count": 7})
    assert changed.json()["total_run_count"] == 0
    audit = browser.read("/audit")
    assert "jitter" in audit
    assert "total_run_count" not in audit


def test_a_draft_with_a_mistake_is_not_shown_the_other_way(browse: Browse, add: Add) -> None:
    add("report", 3600)
    browser = browse()
    sent = opened(browser, "report", **{"as": "json"})
    document = json.loads(sent["document"])
    for wrong in (
        {"one_off": "no"}, {"metrics": "maybe"}, {"enabled": "no"}, {"overlap": "bogus"}, {"tracks": 7},
        {"schedule": {"every": "30s", "relativ": True}}, {"options": {"priority": 300}}, {"jitter": "soon"},
    ):  # fmt: skip
        answer = browser.post(
            "/entry/edit", **sent | {"document": json.dumps({**document, **wrong})}, to="form"
        )
        assert answer.status_code == 422, wrong
        assert "only then it can be shown the other way" in answer.text
        assert f'<a href="#f-document">{next(iter(wrong))}</a>: ' in answer.text
        assert form_fields(answer.text, "entry-form")["way"] == "json"


def test_a_schedule_that_is_a_number_is_its_seconds(app: Celery, browse: Browse, add: Add) -> None:
    add("report", 3600)
    browser = browse()
    sent = opened(browser, "report") | {"schedule_kind": "json", "schedule": "45"}
    assert "Every 45 seconds" in preview(browser, **sent)
    as_json = form_fields(browser.post("/entry/edit", **sent, to="json").text, "entry-form")
    as_json["document"] = json.dumps({**json.loads(as_json["document"]), "schedule": 30})
    as_form = form_fields(browser.post("/entry/edit", **as_json, to="form").text, "entry-form")
    assert "Every 30 seconds" in preview(browser, **as_form)
    browser.send("/entry/save", **as_form)
    assert RedBeatSchedulerEntry.get("report", app).description == "Every 30 seconds"


def test_a_draft_becomes_json_and_a_form_again(browse: Browse, add: Add) -> None:
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
    assert "It is no JSON" in broken.text


def test_a_pause_is_edited_and_ended_by_its_state(app: Celery, browse: Browse, add: Add) -> None:
    add("report", "30 7 * * *")
    browser = browse()
    browser.send("/entry/save", **opened(browser, "report") | {"state": "paused", "pause_note": HOSTILE})
    entry = RedBeatSchedulerEntry.get("report", app)
    assert (entry.state, entry.pause_note, entry.paused_by) == ("paused", HOSTILE, "anna")
    browser.send("/entry/save", **opened(browser, "report") | {"state": "runs"})
    entry = RedBeatSchedulerEntry.get("report", app)
    assert (entry.state, entry.pause_note, entry.paused) == ("scheduled", None, False)


def test_tasks_that_are_not_allowed_here_are_neither_set_nor_changed(
    app: Celery, browse: Browse, add: Add
) -> None:
    app.conf.redbeat_web_tasks = ["mail.*"]
    add("report", "30 7 * * *", task="os.system")
    add("letter", "30 7 * * *", task="mail.send")
    browser = browse()
    html = unescape(browser.read("/entry", name="report"))
    assert "'os.system' isn't one of redbeat_web_tasks" in html
    assert "/entry/run" not in html
    assert browser.post("/entry/save", **opened(browser, "report") | {"jitter": "5m"}).status_code == 403
    sent = opened(browser, "letter") | {"task": "os.system"}
    assert "isn't one of redbeat_web_tasks" in preview(browser, **sent)
    answer = browser.post("/entry/save", **sent)
    assert answer.status_code == 403
    assert "isn't one of redbeat_web_tasks" in unescape(answer.text)
    assert RedBeatSchedulerEntry.get("letter", app).task == "mail.send"


def test_hints_are_told_after_saving(app: Celery, browse: Browse, add: Add) -> None:

    @app.task(name="mail.send")
    def send() -> None: ...

    add("letter", "30 7 * * *", task="mail.send")
    browser = browse()
    html = browser.send("/entry/save", **opened(browser, "letter") | {"task": "mail.sent"})
    assert "The application has no task &#39;mail.sent&#39;." in html


def test_garbage_in_a_form_is_refused_in_words(browse: Browse, add: Add) -> None:
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
