"""redbeat_web_hide and redbeat_web_tasks: no page or answer shows what is hidden, nobody runs other tasks."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery, signature

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.audit import audited
from redbeat.errors import EntryCorrupt
from redbeat.web.api.resources import OPERATIONS
from redbeat.web.application import PAGES
from tests.faults.rounds import some_of
from tests.integration.web.conftest import Add, Browse, Programs
from tests.integration.web.test_forms import sent_calls
from tests.support.forms import form_fields
from tests.support.stored import store

#: what is looked for; of a part of it that is cut off, too
SECRET = "S3CR3T"


DAILY = {"__type__": "crontab", "minute": "0", "hour": "4"}


def of(**fields: Any) -> dict[str, Any]:
    """The hash of an entry."""
    others = {name: fields.pop(name) for name in ("policy", "meta", "error") if name in fields}
    return {"definition": {"task": "login", "schedule": DAILY, **fields}, **others}


def under(name: str, value: Any) -> dict[str, Any]:
    return of(kwargs={"user": "anna", name: value})


ENTRIES: dict[str, dict[str, Any]] = {
    "good": under("password", SECRET),
    "places": of(args=["anna", SECRET]),
    "link": of(options={"link": [{"task": "login", "args": [SECRET], "kwargs": {}}]}),
    "every": under("password", {"__type__": "interval", "every": SECRET}),
    "zone": under("password", {"__type__": "datetime", "year": 2030, "timezone": SECRET}),
    "weekday": under("password", {"__type__": "weekday", "wkday": f"{SECRET}'\"\\", "n": 1}),
    "unknown kind": under("password", {"__type__": SECRET}),
    "in a place": of(args=["anna", {"__type__": "interval", "every": SECRET}]),
    "in options": of(options={"headers": {"token": {"__type__": "cron", "expression": SECRET}}}),
    "pairs": of(kwargs=[["password", SECRET]]),
    "text": of(kwargs=json.dumps({"password": SECRET})),
    "text of arguments": of(args=f"anna {SECRET}"),
    "in a schedule": of(schedule={**DAILY, "minute": {"password": SECRET}}),
    "as a task": of(task={"password": SECRET}),
    "as enabled": of(enabled={"password": SECRET}),
    "priority": of(options={"priority": {"token": SECRET}}),
    "exchange": of(options={"exchange": {"token": SECRET}}),
    "routing key": of(options={"routing_key": [{"token": SECRET}]}),
    "meta": of(meta={"last_run_at": {"password": SECRET}}),
    "note": of(policy={"pause_note": {"token": SECRET}}),
    "ping": of(policy={"ping_url": f"ftp://u:{SECRET}@host/{SECRET}"}),
    "mapped": of(args={"password": SECRET}),
    "listed options": of(options=[{"password": SECRET}]),
    "text of all": {"definition": json.dumps(json.dumps({"kwargs": {"password": SECRET}}))},
    "no JSON, escaped": {"definition": f'{{"task": "login", "kwargs": {{"p\\u0061ssword": "{SECRET}"'},
    "no JSON, ping": {"definition": f'{{"task": "login", "ping_url": "https://pings.example/{SECRET}"'},
    "a list": {"definition": [{"password": SECRET}, {"__type__": "interval", "every": SECRET}]},
    "failing": {
        **under("password", SECRET),
        "error": {"reason": f"ValueError({SECRET!r})", "since": "2030-01-01T00:00:00+00:00", "attempts": 2},
    },
}


@pytest.fixture
def walked(app: Celery, client: redis.Redis) -> Celery:
    """An app whose schedule has these entries."""

    @app.task(name="login")
    def login(user: str, password: str) -> None:
        """Has a parameter that is hidden."""

    linked = signature("login", args=["anna", SECRET], app=app)
    failure = {**ENTRIES["failing"]["error"], "definition_sha1": "", "due": "1.0", "retry_at": "2.0"}
    for name, fields in ENTRIES.items():
        texts = {field: one if isinstance(one, str) else json.dumps(one) for field, one in fields.items()}
        client.hset(f"redbeat:{name}", mapping=texts)
        client.zadd("redbeat::schedule", {f"redbeat:{name}": 4e9})
    given = {"user": "anna", "password": SECRET}
    store(app, "kwargs", "failing", "broken", task="login", kwargs=given)
    store(app, "places", task="login", args=["anna", SECRET])
    store(app, "pickled", task="login", kwargs=given, serializer="pickle")
    store(app, "pickled places", task="login", args=["anna", SECRET], serializer="pickle")
    store(app, "linked", task="other", link=linked, args=[dict(linked)])
    for name in ("failing", "pickled"):
        client.hset(f"redbeat::later:{name}", "error", json.dumps(failure))
    message = {"task": given, "body": SECRET, "task_id": "a"}
    client.hset("redbeat::later:broken", "message", json.dumps(message))
    return app


#: the stored messages
MESSAGES = ("kwargs", "places", "pickled", "pickled places", "linked", "failing", "broken")


#: the names of entries; a stored message has one, too
NAMES = (*ENTRIES, *(f":later:{task_id}" for task_id in MESSAGES))


#: those that are looked at in every place
SHOWN = some_of(NAMES, 6)


def test_no_operation_shows_a_hidden_argument(walked: Celery, program: Programs) -> None:
    reader = program("admin")
    paths = {one.path for one in OPERATIONS if one.method == "GET"}
    for path in sorted(paths):
        for name in SHOWN if "{name}" in path else MESSAGES if "{task_id}" in path else [""]:
            query = {"task": "login"} if path == "/routes" else {}
            answer = reader.ask("GET", re.sub("{name}|{task_id}", name, path), **query)
            assert SECRET not in unescape(answer.text), (path, name)
    assert {one["task_id"] for one in reader.get("/later")["messages"]} == {*MESSAGES}


def test_no_page_shows_a_hidden_argument(walked: Celery, browse: Browse) -> None:
    browser = browse("admin")
    paths = {route.path for route in PAGES if "GET" in route.methods} - {"/live"}  # type: ignore[attr-defined]
    assert {"/", "/entry", "/entries", "/doctor", "/routes", "/entry/edit"} <= paths
    for path in ("/doctor", "/routes"):  # these look at all entries in the background
        assert "looked at" in browser.read_whole(path)
    told = {"/entry", "/entry/edit", "/entry/new", "/routes"}  # others say little of an entry
    for path in sorted(paths):
        for name in SHOWN if path in told else MESSAGES if path == "/later/message" else ["good"]:
            for more in ({}, {"as": "json"}) if path in ("/entry", "/entry/edit") else ({},):
                answer = browser.get(path, name=name, like=name, task_id=name, **more)
                assert answer.status_code < 500, (path, name, answer.text)
                assert SECRET not in unescape(answer.text), (path, name, more)
                assert path != "/later/message" or f'<dd class="mono">{name}' in answer.text


def test_no_error_of_a_change_quotes_a_hidden_argument(
    walked: Celery, program: Programs, browse: Browse
) -> None:
    editor, browser = program("edit", "run"), browse("edit")
    for name in some_of(list(ENTRIES), 10):
        sent = {"entry": name, "way": "json", "document": '{"jitter": -5}', "base": "{}"}
        for path in ("/entry/preview", "/entry/save"):
            assert SECRET not in unescape(browser.post(path, **sent).text), (path, name)
        for body in ({"schedule": "nonsense"}, {"kwargs": {"user": 1}}):
            assert SECRET not in editor.ask("PATCH", f"/entries/{name}", body).text, (name, body)
        assert SECRET not in editor.ask("PUT", f"/entries/{name}/trigger", {}).text, name
    for name in ENTRIES:
        try:
            RedBeatSchedulerEntry.from_key(name, walked)
        except EntryCorrupt as exc:
            assert SECRET not in str(exc), str(exc)  # noqa: PT017 - some can be read


def test_positional_argument_is_hidden_by_its_parameter_and_comes_back(
    app: Celery, broker: redis.Redis, browse: Browse, add: Add, program: Programs
) -> None:
    @app.task(name="log-in")
    def log_in(user: str, password: str) -> None:
        """A task that this process knows."""

    add("report", task="log-in", args=["anna", "geheim"])
    with audited(app, "bob", "cli", "set", ["report"], {"args": ["anna", "geheim"]}):
        """By the command line, which hides nothing."""
    browser, user = browse(), program()
    sent = form_fields(browser.read("/entry/edit", name="report"), "entry-form")
    browser.send("/entry/save", **sent | {"args": '["ben", "(hidden)"]'})
    assert RedBeatSchedulerEntry.get("report", app).args == ["ben", "geheim"]
    changed = user.ask("PATCH", "/entries/report", {"args": ["carl", "(hidden)"]})
    assert changed.json()["args"] == ["carl", "(hidden)"]
    assert RedBeatSchedulerEntry.get("report", app).args == ["carl", "geheim"]
    for wrong in ({"task": "echo"}, {"args": ["x", "carl", "(hidden)"]}):  # it would be shown there
        given = {"args": ["carl", "(hidden)"], **wrong}
        assert user.ask("PATCH", "/entries/report", given).status_code == 422
    browser.send("/entry/run", name="report", args='["dora", "(hidden)"]', kwargs="{}", queue="")
    assert sent_calls(broker) == [[["dora", "geheim"], {}]]
    texts = [browser.read(path, name="report") for path in ("/entry", "/entry/edit", "/entry/run", "/audit")]
    texts += [user.ask("GET", path).text for path in ("/entries/report", "/entries", "/audit", "/export")]
    planned = "{owner: me, entries: {report: {task: log-in, schedule: 1h, args: [eve, other]}}}"
    texts.append(browser.post("/files/plan", text=planned).text.partition("<form method")[0])
    for text in texts:
        assert ("geheim" in text, "other&#34;" in text) == (False, False), text


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


def test_queue_that_is_a_key_of_redbeat_is_refused(program: Programs, add: Add) -> None:
    add("own")
    one = program()
    for place, key in (("queue", "redbeat::lock"), ("routing_key", "redbeat:own"), ("reply_to", "redbeat:x")):
        asked = {**ENTRY, "options": {place: key}}
        for method, path, body in (
            ("PUT", "/entries/new", asked), ("PATCH", "/entries/own", {"options": {place: key}}),
            ("PUT", "/apply", {"owner": "x", "entries": {"new": asked}}),
            *([("PUT", "/entries/own/trigger", {"queue": key})] if place == "queue" else []),
        ):  # fmt: skip
            answer = one.ask(method, path, body)
            assert (answer.status_code, "RedBeat's own" in answer.json()["detail"]) == (403, True), path


def test_hidden_argument_is_not_handed_to_another_task(
    app: Celery, program: Programs, browse: Browse, add: Add
) -> None:
    kwargs = {"password": "hunter2", "to": "x"}
    add("mail", task="mail.send", kwargs=kwargs)
    one, browser = program("edit"), browse("edit")
    shown = {"password": "(hidden)", "to": "x"}
    fields = form_fields(browser.read("/entry/edit", name="mail"), "entry-form") | {"task": "echo"}
    for answer in (
        one.ask("PATCH", "/entries/mail", {"task": "echo"}),
        one.ask("PATCH", "/entries/mail", {"task": "echo", "kwargs": {"to": "y"}}),
        one.ask("PUT", "/entries/mail", {**ENTRY, "kwargs": shown}),
        one.ask("PUT", "/import?replace=true", {"entries": {"mail": {**ENTRY, "kwargs": shown}}}),
        browser.post("/entry/preview", **fields),
        browser.post("/entry/save", **fields),
    ):
        assert ("stays with the task" in answer.text, "hunter2" in answer.text) == (True, False)
    assert RedBeatSchedulerEntry.get("mail", app).task == "mail.send"

    changed = {"task": "echo", "kwargs": {"password": "another", "to": None}}
    assert one.ask("PATCH", "/entries/mail", changed).status_code == 200
    stored = RedBeatSchedulerEntry.get("mail", app)
    assert (stored.task, stored.kwargs) == ("echo", {"password": "another"})


def test_etag_does_not_tell_hidden_arguments_apart(client: redis.Redis, program: Programs, add: Add) -> None:
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


@pytest.mark.few_cases(3)
@pytest.mark.parametrize(
    "options", ESCAPES, ids=lambda options: "-".join([*options, *options.get("headers", [])])
)
def test_option_or_task_outside_redbeat_web_tasks_is_refused(
    app: Celery, program: Programs, browse: Browse, add: Add, options: Any
) -> None:
    app.conf.redbeat_web_tasks = ["echo"]
    add("own")
    add("linked", options=options)  # by an application's own code
    add("other", task="proj.secret")
    one, browser = program("edit", "run"), browse("edit", "run")
    definition = {**ENTRY, "schedule": {"__type__": "interval", "every": 60}, "options": options}
    bad = {**ENTRY, "options": options}
    for method, path, body in (
        ("PUT", "/entries/new", bad), ("PATCH", "/entries/own", {"options": options}),
        ("PATCH", "/entries/linked", {"options": None}), ("PUT", "/entries/linked/trigger", {"args": ["x"]}),
        ("PUT", "/entries/linked/rerun", {}),
        ("PUT", "/entries/linked/backfill", {"from": "2026-01-01T00:00:00Z"}),
        ("PUT", "/apply", {"owner": "x", "entries": {"new": bad}}),
        ("PUT", "/apply?take_over=true", {"owner": "x", "entries": {"linked": ENTRY}}),
        ("PUT", "/import", {"entries": {"new": {"stored": {"definition": definition}}}}),
        ("PUT", "/entries/other", ENTRY), ("PUT", "/entries/new", {**ENTRY, "task": "proj.secret"}),
        ("PATCH", "/entries/other", {"task": "echo"}), ("PUT", "/entries/other/trigger", {}),
        ("PUT", "/apply", {"owner": "x", "entries": {"new": {**ENTRY, "task": "proj.secret"}}}),
    ):  # fmt: skip
        answer = one.ask(method, path, body)
        assert answer.status_code == 403, (path, answer.text)
        assert "options: " in answer.json()["detail"] or "redbeat_web_tasks" in answer.json()["detail"]
    assert "/entry/run" not in browser.read("/entry", name="linked")
    for ask in (browser.get, browser.post):
        assert ask("/entry/run", name="linked").status_code == 403
    text = "{owner: a, entries: {new: {task: os.system, schedule: 1h}}}"
    refused = browser.post("/files/plan", text=text)
    assert (refused.status_code, text in refused.text) == (403, True), "what was typed stays"
    fields = form_fields(browser.read("/entry/edit", name="own"), "entry-form")
    assert browser.post("/entry/save", **{**fields, "options": json.dumps(options)}).status_code == 403
    assert RedBeatSchedulerEntry.count(app) == 3
    assert RedBeatSchedulerEntry.get("own", app).options == {}
