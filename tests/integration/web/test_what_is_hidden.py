"""A walk over all pages and operations that only show, with entries of which parts are hidden.

A new page or operation is walked over by itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
import redis
from celery import Celery, signature

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import EntryCorrupt
from redbeat.web.api.resources import OPERATIONS
from redbeat.web.application import PAGES
from tests.faults.rounds import some_of
from tests.support.dashboards import Browser
from tests.support.polling import eventually
from tests.support.programs import Program
from tests.support.stored import store

#: what is looked for; of a part of it that is cut off, too
SECRET = "S3CR3T"
DAILY = {"__type__": "crontab", "minute": "0", "hour": "4"}
DAY = {"year": 2030, "month": 1, "day": 1}


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
    "minute": under("password", {"__type__": "crontab", "minute": f"{SECRET},5"}),
    "freq": under("password", {"__type__": "rrule", "freq": SECRET}),
    "zone": under("password", {"__type__": "datetime", **DAY, "timezone": SECRET}),
    "year": under("password", {"__type__": "datetime", **DAY, "year": SECRET}),
    "weekday": under("password", {"__type__": "weekday", "wkday": f"{SECRET}'\"\\", "n": 1}),
    "unknown kind": under("password", {"__type__": SECRET}),
    "in a place": of(args=["anna", {"__type__": "interval", "every": SECRET}]),
    "in options": of(options={"headers": {"token": {"__type__": "cron", "expression": SECRET}}}),
    "pairs": of(kwargs=[["password", SECRET]]),
    "text": of(kwargs=json.dumps({"password": SECRET})),
    "text of arguments": of(args=f"anna {SECRET}"),
    "as a schedule": of(schedule={"password": SECRET}),
    "in a schedule": of(schedule={**DAILY, "minute": {"password": SECRET}}),
    "as a task": of(task={"password": SECRET}),
    "as enabled": of(enabled={"password": SECRET}),
    "priority": of(options={"priority": {"token": SECRET}}),
    "queue": of(options={"queue": {"token": SECRET}}),
    "exchange": of(options={"exchange": {"token": SECRET}}),
    "exchange type": of(options={"exchange_type": {"token": SECRET}}),
    "routing key": of(options={"routing_key": [{"token": SECRET}]}),
    "expires": of(options={"expires": {"token": SECRET}}),
    "meta": of(meta={"last_run_at": {"password": SECRET}}),
    "note": of(policy={"pause_note": {"token": SECRET}}),
    "ping": of(policy={"ping_url": f"ftp://u:{SECRET}@host/{SECRET}"}),
    "listed": of(kwargs=[{"password": SECRET}]),
    "mapped": of(args={"password": SECRET}),
    "listed options": of(options=[{"password": SECRET}]),
    "text of all": {"definition": json.dumps(json.dumps({"kwargs": {"password": SECRET}}))},
    "no JSON, escaped": {"definition": f'{{"task": "login", "kwargs": {{"p\\u0061ssword": "{SECRET}"'},
    "no JSON, ping": {"definition": f'{{"task": "login", "ping_url": "https://pings.example/{SECRET}"'},
    "no JSON": {"definition": f'{{"task": "login", "kwargs": {{"password": "{SECRET}"'},
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

    for name, fields in ENTRIES.items():
        texts = {field: one if isinstance(one, str) else json.dumps(one) for field, one in fields.items()}
        client.hset(f"redbeat:{name}", mapping=texts)
        client.zadd("redbeat::schedule", {f"redbeat:{name}": 4e9})
    given = {"user": "anna", "password": SECRET}
    store(app, "kwargs", task="login", kwargs=given)
    store(app, "places", task="login", args=["anna", SECRET])
    store(app, "pickled", task="login", kwargs=given, serializer="pickle")
    store(app, "pickled places", task="login", args=["anna", SECRET], serializer="pickle")
    linked = signature("login", args=["anna", SECRET], app=app)
    store(app, "linked", task="other", link=linked, args=[dict(linked)])
    store(app, "failing", task="login", kwargs=given)
    for name in ("failing", "pickled"):
        client.hset(f"redbeat::later:{name}", "error", json.dumps(ENTRIES["failing"]["error"] | FAILING))
    store(app, "broken", task="login", kwargs=given)
    client.hset(
        "redbeat::later:broken", "message", json.dumps({"task": given, "body": SECRET, "task_id": "a"})
    )
    return app


#: the stored messages
MESSAGES = ("kwargs", "places", "pickled", "pickled places", "linked", "failing", "broken")
#: the names of entries; a stored message has one, too
NAMES = (*ENTRIES, *(f":later:{task_id}" for task_id in MESSAGES))
#: those that are looked at in every place
SHOWN = some_of(NAMES, 9)
#: what else beat writes about an entry that couldn't be sent
FAILING = {"definition_sha1": "", "due": "1.0", "retry_at": "2.0", "is_asked": False}


def test_no_operation_that_only_shows_has_it_in_its_answer(
    walked: Celery, program: Callable[..., Program]
) -> None:
    reader = program("admin")
    paths = {one.path for one in OPERATIONS if one.method == "GET"}
    for path in sorted(paths):
        for name in SHOWN if "{name}" in path else MESSAGES if "{task_id}" in path else [""]:
            query = {"task": "login"} if path == "/routes" else {}
            answer = reader.ask("GET", re.sub("{name}|{task_id}", name, path), **query)
            assert SECRET not in unescape(answer.text), (path, name)
    assert {one["task_id"] for one in reader.get("/later")["messages"]} == {*MESSAGES}


def test_no_page_has_it(walked: Celery, browse: Callable[..., Browser]) -> None:
    browser = browse("admin")
    paths = {route.path for route in PAGES if "GET" in route.methods} - {"/live"}  # type: ignore[attr-defined]
    assert {"/", "/entry", "/entries", "/doctor", "/routes", "/entry/edit"} <= paths
    for path in ("/doctor", "/routes"):  # these look at all entries in the background
        assert eventually(lambda path=path: "looked at" in browser.read(path))
    told = {"/entry", "/entry/edit", "/entry/new", "/routes"}  # others say little of an entry
    for path in sorted(paths):
        for name in SHOWN if path in told else MESSAGES if path == "/later/message" else ["good"]:
            for more in ({}, {"as": "json"}) if path in ("/entry", "/entry/edit") else ({},):
                answer = browser.get(path, name=name, like=name, task_id=name, **more)
                assert answer.status_code < 500, (path, name, answer.text)
                assert SECRET not in unescape(answer.text), (path, name, more)
                assert path != "/later/message" or f'<dd class="mono">{name}' in answer.text


def test_whoever_changes_or_runs_an_entry_is_not_told_it_by_what_is_wrong(
    walked: Celery, program: Callable[..., Program], browse: Callable[..., Browser]
) -> None:
    editor, browser = program("edit", "run"), browse("edit")
    asked = (
        ("PATCH", "", {"enabled": False}),
        ("PATCH", "", {"schedule": "nonsense"}),
        ("PUT", "/trigger", {}),
        ("PATCH", "", {"kwargs": {"user": 1}}),
    )
    for name in ENTRIES:
        sent = {"entry": name, "way": "json", "document": '{"jitter": -5}', "base": "{}"}
        for path in ("/entry/preview", "/entry/save"):
            assert SECRET not in unescape(browser.post(path, **sent).text), (path, name)
        for method, path, body in asked:
            answer = editor.ask(method, f"/entries/{name}{path}", body)
            assert SECRET not in answer.text, (name, path, body)


def test_what_a_task_is_given_is_quoted_by_no_error_of_the_reader(walked: Celery) -> None:
    for name in ENTRIES:
        try:
            RedBeatSchedulerEntry.from_key(name, walked)
        except EntryCorrupt as exc:
            assert SECRET not in str(exc), str(exc)  # noqa: PT017 - some can be read
