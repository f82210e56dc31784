"""Stored messages over REST: listed, counted, shown and cancelled."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.entries.audit import find_records
from redbeat.keys import Keys
from redbeat.store.later import LaterStore
from tests.support.programs import Program
from tests.support.stored import store

MakeProgram = Callable[..., Program]
KEYS = Keys()


def test_messages_are_listed_and_counted_whoever_goes_meanwhile(
    app: Celery, client: redis.Redis, program: MakeProgram
) -> None:
    reader = program("read")
    assert reader.get("/later") == {"messages": [], "count": 0, "next": None}
    names = [f"id {number}/{number % 3}" for number in range(7)]
    for number, name in enumerate(names):
        store(app, name, args=[number], seconds=7200 + number // 3)
    client.zadd(KEYS.later, {"stray": -5})
    found, path, query = [], "/later", {"limit": 3}
    while path is not None:
        answer = reader.get(path, **query)
        assert answer["count"] == LaterStore(app).count()
        found += [one["task_id"] for one in answer["messages"]]
        LaterStore(app).cancel(found[-1:])  # the one that the cursor stands for
        client.zadd(KEYS.later, {"too late": -3})
        path, query = answer["next"], {}
    assert found == ["stray", *names]
    assert reader.get("/later", limit=0)["count"] == 6


@pytest.mark.parametrize("cursor", ["x", "WzFd", "WyJhIiwgImIiXQ", "WyJhIiwgTmFOXQ", "WyJhIiwgdHJ1ZV0"])
def test_a_cursor_that_no_answer_has_had_is_refused(program: MakeProgram, cursor: str) -> None:
    answer = program("read").ask("GET", "/later", cursor=cursor)
    assert (answer.status_code, answer.json()["field"]) == (400, "cursor")


def test_a_message_has_its_fields(app: Celery, program: MakeProgram) -> None:
    when = datetime(2098, 12, 24, 18, tzinfo=timezone.utc)
    store(app, "json/1", args=[1, when], kwargs={"a": None}, priority=3, expires=when, root_id="root")
    store(app, "pickled", args=[object], serializer="pickle")
    reader = program("read")
    [first, second] = reader.get("/later")["messages"]
    assert reader.ask("GET", "/later/json%2F1").status_code == 400, "an encoded slash"
    answer = reader.ask("GET", first["href"])
    assert answer.json() == first
    assert answer.headers["etag"] == first["etag"]
    assert first | {"eta": "", "href": "", "etag": "", "expires": ""} == {
        "task_id": "json/1",
        "task": "tasks.report",
        "eta": "",
        "args": [1, {"__type__": "datetime", "__value__": when.isoformat()}],
        "kwargs": {"a": None},
        "content_type": "application/json",
        "exchange": "",
        "routing_key": app.conf.task_default_queue,
        "priority": 3,
        "expires": "",
        "retries": 0,
        "root_id": "root",
        "parent_id": None,
        "group": None,
        "problem": None,
        "error": None,
        "href": "",
        "etag": "",
    }
    assert datetime.fromisoformat(first["eta"]) > datetime.now(timezone.utc)
    assert (second["content_type"], second["args"]) == (
        "application/x-python-serialize",
        "[<class 'object'>]",
    )


def test_what_others_have_written_is_answered_as_the_description_says(
    app: Celery, client: redis.Redis, program: MakeProgram
) -> None:
    of_json = {"task_id": "a", "task": "t", "routing_key": "q", "headers": {}, "properties": {}}
    headers = {"retries": "x", "root_id": [1], "expires": {}, "argsrepr": {}}
    fields: list[dict[str, Any]] = [
        {"body": "x"},
        {"body": "[{}, {}, 5]", "expires_at": "x", "headers": headers, "properties": {"priority": True}},
        {"body": "[7, {}, {}]", "expires_at": 1e300},
        {"body": "[[NaN], {}, {}]", "queues": {}},
        {"body": "[" * 5000, "headers": headers},
        {"body": '{"args": "text", "kwargs": ["a"]}', "expires_at": []},
    ]
    hostile = ["", "[]", "{", '{"task": 1, "body": "[]"}', *(json.dumps(of_json | one) for one in fields)]
    for number, text in enumerate(hostile):
        client.hset(KEYS.stored_message(f"{number}"), "message", text)
        client.zadd(KEYS.later, {KEYS.stored_message(f"{number}"): number - 3})
    client.zadd(KEYS.later, {KEYS.stored_message("gone"): "inf", "strange": "-inf"})
    client.set(KEYS.stored_message("text"), "no hash")
    client.zadd(KEYS.later, {KEYS.stored_message("text"): 1e300})
    reader = program("read")
    found = reader.get("/later")["messages"]
    assert len(found) == len(hostile) + 3
    for one in found:
        if one["task_id"] != "strange":  # no entry of a message could be under such a key
            reader.get(one["href"])
    assert sum(one["eta"] is None for one in found) == 6


def test_a_message_is_cancelled_once_and_that_is_in_the_audit_list(app: Celery, program: MakeProgram) -> None:
    store(app, "one", "two")
    for right in ("read", "pause", "run", "edit"):
        assert program(right).ask("DELETE", "/later/one").status_code == 403
    deleter = program("delete")
    assert deleter.ask("DELETE", "/later/one").json() == {"task_id": "one"}
    gone = deleter.ask("DELETE", "/later/one")
    assert (gone.status_code, "sent, cancelled, or never stored" in gone.text) == (404, True)
    assert deleter.ask("GET", "/later/one").status_code == 404
    assert [(one.verb, one.names, one.source) for one in find_records(app)] == [
        ("later cancel", ("one",), "api")
    ]
    assert LaterStore(app).count() == 1


def test_a_message_that_was_stored_anew_is_cancelled_only_by_who_has_seen_it(
    app: Celery, program: MakeProgram
) -> None:
    store(app, "one", args=[1])
    deleter = program("delete")
    seen = {"if-match": deleter.get("/later/one")["etag"]}
    store(app, "one", args=[2])
    answer = deleter.ask("DELETE", "/later/one", headers=seen)
    assert answer.status_code == 412
    assert answer.headers["etag"] == deleter.get("/later/one")["etag"] != seen["if-match"]
    assert (
        deleter.ask("DELETE", "/later/one", headers={"if-match": answer.headers["etag"]}).status_code == 200
    )


def test_who_was_overtaken_between_the_look_and_the_cancelling_is_told_so(
    app: Celery, program: MakeProgram, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(app, "one", args=[1])
    deleter = program("delete")
    seen, find, looks = deleter.get("/later/one")["etag"], LaterStore.find, []

    def overtaken(self: LaterStore, task_id: str) -> object:
        found = find(self, task_id)
        looks.append(found)
        if len(looks) == 1:
            store(app, "one", args=[2])
        return found

    monkeypatch.setattr(LaterStore, "find", overtaken)
    assert deleter.ask("DELETE", "/later/one", headers={"if-match": seen}).status_code == 412
    assert LaterStore(app).count() == 1
