"""Who may run and edit some tasks can't run others so, write to RedBeat's own keys, or see what is hidden."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.store.store import Store
from tests.support.dashboards import Browser
from tests.support.forms import form_fields
from tests.support.programs import Program

Add = Callable[..., RedBeatSchedulerEntry]
ENTRY = {"task": "echo", "schedule": {"every": "1h"}}
OTHER = {"task": "os.system", "args": ["id"], "kwargs": {}, "options": {}, "subtask_type": None}

#: options that have a worker run another task than the entry's own
ESCAPES: list[dict[str, Any]] = [
    {"headers": {"task": "os.system"}},
    {"headers": {"headers": {"task": "os.system"}}},  # when it is tried again
    {"headers": {"callbacks": [OTHER]}},
    {"link": [OTHER]},
    {"link_error": OTHER},
    {"chain": [OTHER]},
    {"chord": OTHER},
]


@pytest.mark.few_cases(3)
@pytest.mark.parametrize(
    "options", ESCAPES, ids=lambda options: "-".join([*options, *options.get("headers", [])])
)
def test_no_option_has_another_task_run(
    app: Celery, program: Callable[..., Program], browse: Callable[..., Browser], add: Add, options: Any
) -> None:
    app.conf.redbeat_web_tasks = ["echo"]
    add("own")
    add("linked", options=options)  # by an application's own code
    one, browser = program("edit", "run"), browse("edit", "run")
    definition = {**ENTRY, "schedule": {"__type__": "interval", "every": 60}, "options": options}
    for method, path, body in (
        ("PUT", "/entries/new", {**ENTRY, "options": options}),
        ("PATCH", "/entries/own", {"options": options}),
        ("PATCH", "/entries/linked", {"options": None}),
        ("PUT", "/entries/linked/trigger", {"args": ["x"]}),
        ("PUT", "/entries/linked/rerun", {}),
        ("PUT", "/entries/linked/rerun", {"dry_run": True}),
        ("PUT", "/entries/linked/backfill", {"from": "2026-01-01T00:00:00Z"}),
        ("PUT", "/apply", {"owner": "x", "entries": {"new": {**ENTRY, "options": options}}}),
        ("PUT", "/apply?take_over=true", {"owner": "x", "entries": {"linked": ENTRY}}),
        ("PUT", "/import", {"entries": {"new": {"stored": {"definition": definition}}}}),
    ):
        answer = one.ask(method, path, body)
        assert answer.status_code == 403, (path, answer.text)
        assert "options: " in answer.json()["detail"]
    html = browser.read("/entry", name="linked")
    assert "/entry/run" not in html
    assert browser.get("/entry/run", name="linked").status_code == 403
    assert browser.post("/entry/run", name="linked").status_code == 403
    text = "{owner: a, entries: {new: {task: os.system, schedule: 1h}}}"
    refused = browser.post("/files/plan", text=text)
    assert (refused.status_code, text in refused.text) == (403, True), "what was typed stays"
    assert "&#39;os.system&#39; isn&#39;t one of redbeat_web_tasks" in refused.text
    fields = form_fields(browser.read("/entry/edit", name="own"), "entry-form")
    sent = {**fields, "options": json.dumps(options)}
    assert browser.post("/entry/save", **sent).status_code == 403
    shown = browser.post("/entry/preview", {"hx-request": "true"}, **sent).text
    assert "error" not in shown.split('id="f-task-problem"')[1].split("</div>")[0]
    assert "error" in shown.split('id="f-options-problem"')[1].split("</div>")[0]
    assert RedBeatSchedulerEntry.count(app) == 2
    assert RedBeatSchedulerEntry.get("own", app).options == {}


def test_where_all_tasks_are_allowed_an_entry_may_call_another_one_after_it(
    app: Celery, program: Callable[..., Program]
) -> None:
    one = program()
    assert one.ask("PUT", "/entries/new", {**ENTRY, "options": {"link": [OTHER]}}).status_code == 201
    answer = one.ask("PUT", "/entries/other", {**ENTRY, "options": {"headers": {"task": "os.system"}}})
    assert answer.status_code == 403


@pytest.mark.parametrize("place", ["queue", "routing_key", "reply_to"])
def test_no_queue_is_a_key_of_redbeats_own(
    app: Celery, program: Callable[..., Program], add: Add, place: str
) -> None:
    add("own")
    one = program()
    for key in ("redbeat::lock", "redbeat:own"):
        asked = {**ENTRY, "options": {place: key}}
        for method, path, body in (
            ("PUT", "/entries/new", asked),
            ("PATCH", "/entries/own", {"options": {place: key}}),
            ("PUT", "/apply", {"owner": "x", "entries": {"new": asked}}),
            *([("PUT", "/entries/own/trigger", {"queue": key})] if place == "queue" else []),
        ):
            answer = one.ask(method, path, body)
            assert answer.status_code == 403, (path, answer.text)
            assert "RedBeat's own" in answer.json()["detail"]
    assert not Store(app).ask(lambda client: client.exists("redbeat::lock"), "redbeat::lock", "string")


def test_what_is_hidden_is_not_handed_to_another_task(
    app: Celery, program: Callable[..., Program], browse: Callable[..., Browser], add: Add
) -> None:
    kwargs = {"password": "hunter2", "to": "x"}
    add("mail", task="mail.send", kwargs=kwargs)
    one, browser = program("edit"), browse("edit")
    shown = {"password": "(hidden)", "to": "x"}
    for method, path, body in (
        ("PATCH", "/entries/mail", {"task": "echo"}),
        ("PATCH", "/entries/mail", {"task": "echo", "kwargs": {"to": "y"}}),
        ("PUT", "/entries/mail", {**ENTRY, "kwargs": shown}),
        ("PUT", "/import?replace=true", {"entries": {"mail": {**ENTRY, "kwargs": shown}}}),
    ):
        answer = one.ask(method, path, body)
        assert answer.status_code == 422, (method, path, answer.text)
        assert "stays with the task" in answer.json()["detail"]
        assert "hunter2" not in answer.text
    fields = form_fields(browser.read("/entry/edit", name="mail"), "entry-form")
    for path in ("preview", "save"):
        answer = browser.post(f"/entry/{path}", **{**fields, "task": "echo"})
        assert "stays with the task" in answer.text
        assert "hunter2" not in answer.text
    assert RedBeatSchedulerEntry.get("mail", app).task == "mail.send"

    changed = {"task": "echo", "kwargs": {"password": "another", "to": None}}
    assert one.ask("PATCH", "/entries/mail", changed).status_code == 200
    stored = RedBeatSchedulerEntry.get("mail", app)
    assert (stored.task, stored.kwargs) == ("echo", {"password": "another"})


def test_an_etag_tells_versions_apart_by_what_is_shown_of_them(
    client: redis.Redis, program: Callable[..., Program], add: Add
) -> None:
    reader = program("read")

    def etag_of(definition: str | None = None, **values: Any) -> str:
        add("mail", **values)
        if definition is not None:
            client.hset("redbeat:mail", "definition", definition)
        return str(reader.get("/entries/mail")["etag"])

    seen = etag_of(kwargs={"password": "hunter2", "to": "anna"})
    assert etag_of(kwargs={"password": "4711", "to": "anna"}) == seen, "else it could be found out by trying"
    assert etag_of(kwargs={"password": "hunter2", "to": "ben"}) != seen
    broken = '{"task": "echo", "kwargs": {"password": "%s"'
    assert etag_of(broken % "hunter2") == etag_of(broken % "4711")
    assert etag_of("{1") != etag_of("{2")
