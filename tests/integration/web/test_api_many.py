"""Many entries changed, run, backfilled, paused and removed by one request over the REST interface."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.entries.audit import find_records
from redbeat.errors import BrokerUnavailable
from redbeat.web.api import many
from tests.support.programs import Program

Add = Callable[..., RedBeatSchedulerEntry]
Programs = Callable[..., Program]


def sent(app: Celery) -> int:
    """How many messages are on the queue."""
    with app.connection_for_write() as connection:
        return int(connection.default_channel.client.llen("celery"))


def get(app: Celery, name: str) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry.get(name, app)


def go_on(one: Program, path: str, body: dict[str, Any], headers: Any = None) -> list[Any]:
    """The answers to a body that is sent until all is done."""
    answers, cursor = [], ""
    while cursor is not None:
        answer = one.ask("PUT", path, {**body, **({"cursor": cursor} if cursor else {})}, headers)
        assert answer.status_code == 200, answer.text
        answers.append(answer.json())
        cursor = answers[-1]["next"]
    return answers


def test_fields_of_many_are_changed_and_what_is_wrong_stops_none(
    program: Programs, app: Celery, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "MOST", 4)
    for number in range(10):
        add(f"a{number}", kwargs={"keep": 1})
    add("b", task="secret")
    app.conf.redbeat_web_tasks = ["echo"]
    del app.redbeat_conf
    one, change = program("edit"), {"kwargs": {"new": 2}, "jitter": 30}
    planned = go_on(one, "/set", {"match": "*", "changes": change, "dry_run": True})
    assert sum(len(answer["changed"]) for answer in planned) == 10
    assert get(app, "a1").kwargs == {"keep": 1}
    answers = go_on(one, "/set", {"match": "*", "changes": change})
    assert len(answers) >= 3
    changed = {name for answer in answers for name in answer["changed"]}  # one that moves may come twice
    assert sorted(changed) == [f"a{number}" for number in range(10)]
    assert {name for answer in answers for name in answer["failed"]} == {"b"}
    assert (get(app, "a9").kwargs, get(app, "a9").policy.jitter) == ({"keep": 1, "new": 2}, 30)
    told = one.put("/set", {"names": ["a1", "none", "a2"], "changes": {"jitter": None}})
    assert (told["changed"], [*told["failed"]], told["left"]) == (["a1", "a2"], ["none"], [])
    for wrong in ({"jitter": -1}, {"nonsense": 1}, {"name": "x"}, {"schedule": None}):
        told = one.put("/set", {"names": ["a1", "a2"], "changes": wrong})
        assert ([*told["failed"]], told["changed"]) == (["a1", "a2"], []), wrong
    for body in ({"names": ["a"]}, {"names": ["a"], "changes": []}, {"changes": {}}, {"match": "*"}):
        assert one.ask("PUT", "/set", body).status_code == 422, body
    assert (
        program("run", "delete", "pause").ask("PUT", "/set", {"match": "*", "changes": {}}).status_code == 403
    )


def test_many_are_run_once_each_however_often_the_request_is_tried(
    program: Programs, app: Celery, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(many, "MOST", 3)
    for number in range(7):
        add(f"a{number}")
    one, key = program("run"), {"idempotency-key": "deploy"}
    assert {*go_on(one, "/trigger", {"match": "a*", "dry_run": True})[0]["sent"].values()} == {None}
    assert sent(app) == 0
    first = go_on(one, "/trigger", {"match": "a*", "args": [1]}, key)
    again = go_on(one, "/trigger", {"match": "a*", "args": [1]}, key)
    ids = {name: task_id for answer in first for name, task_id in answer["sent"].items()}
    assert len(ids) == len({*ids.values()}) == sent(app) == 7
    assert ids == {name: task_id for answer in again for name, task_id in answer["sent"].items()}
    assert sorted(name for answer in again for name in answer["repeated"]) == sorted(ids)
    told = one.put("/trigger", {"names": ["a0", "none"]})
    assert ([*told["sent"]], [*told["failed"]]) == (["a0"], ["none"])
    assert len(find_records(app, verb="trigger")) == 8

    really = many.send_one

    def fail_at_third(call: Any, name: str) -> Any:
        if name == "a2":
            raise BrokerUnavailable("The broker can't be used.", name)
        return really(call, name)

    monkeypatch.setattr(many, "send_one", fail_at_third)
    told = one.put("/trigger", {"names": ["a0", "a1", "a2", "a3"]})
    assert ([*told["sent"]], told["left"], told["failed"]) == (["a0", "a1"], ["a2", "a3"], {})
    assert one.ask("PUT", "/trigger", {"names": told["left"]}).status_code == 503
    monkeypatch.setattr(many, "MOST_SECONDS", 0.0)
    told = one.put("/trigger", {"match": "a*"})
    assert len(told["sent"]) == 1
    names = [name for answer in go_on(one, "/trigger", {"match": "a[013456]"}) for name in answer["sent"]]
    assert sorted(names) == ["a0", "a1", "a3", "a4", "a5", "a6"], "each once, one a request"


def test_many_are_backfilled_and_a_request_sends_no_more_than_its_limit(
    program: Programs, app: Celery, add: Add
) -> None:
    for name in ("a", "b", "c"):
        entry = add(name, timedelta(hours=1))
    now = entry.seen_at
    assert now is not None
    one = program("run")
    span = {"from": (now - timedelta(hours=4, seconds=-30)).isoformat(), "to": now.isoformat()}
    planned = go_on(one, "/backfill", {"match": "*", **span, "dry_run": True})
    assert (sent(app), sorted(planned[0]["runs"])) == (0, ["a", "b", "c"])
    total = sum(len(dues) for dues in planned[0]["runs"].values())
    answers = go_on(one, "/backfill", {"match": "*", **span, "limit": 5})
    assert [sum(map(len, answer["runs"].values())) <= 5 for answer in answers] == [True] * len(answers)
    assert (len(answers), sent(app)) == (3, total)
    assert all(not answer["runs"] for answer in go_on(one, "/backfill", {"match": "*", **span}))
    assert sent(app) == total
    told = one.put("/backfill", {"names": ["a"], "from": "2020-01-01T00:00:00Z", "limit": 3})
    assert ([*told["failed"]], told["runs"]) == (["a"], {})
    assert one.ask("PUT", "/backfill", {"names": ["a"]}).status_code == 422


def test_what_would_be_paused_resumed_and_deleted_is_told_and_left(
    program: Programs, app: Celery, add: Add
) -> None:
    for name in ("a", "b", "c"):
        add(name)
    add("off", enabled=False)
    one = program("pause", "delete")
    told = one.put("/pause", {"match": "*", "dry_run": True})
    assert (sorted(told["changed"]), told["left"]) == (["a", "b", "c"], [])
    assert not get(app, "a").paused
    one.put("/pause", {"names": ["a"], "note": "release 7"})
    one.put("/pause", {"names": ["b"], "note": "holiday"})
    told = one.put("/pause", {"names": ["a", "c", "off", "none"], "dry_run": True})
    assert (told["changed"], told["left"]) == (["c"], ["a", "off"])
    assert one.put("/resume", {"note": "release*", "dry_run": True})["changed"] == ["a"]
    assert one.put("/resume", {"note": "release*", "match": "b"})["changed"] == []
    assert one.put("/resume", {"paused_by": "nobody"})["changed"] == []
    assert one.put("/resume", {"note": "release*"})["changed"] == ["a"]
    assert one.put("/resume", {"names": ["a", "b"], "note": "x"})["left"] == ["a", "b"]
    told = one.put("/delete", {"match": "*", "dry_run": True})
    assert (told["deleted"], sorted(told["names"])) == (0, ["a", "b", "c", "off"])
    assert RedBeatSchedulerEntry.count(app) == 4
    assert one.ask("PUT", "/resume", {}).status_code == 422


def test_a_file_of_a_calendar_is_looked_at_before_it_is_stored(
    program: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = program()
    answer = one.ask("PUT", "/calendars/new?dry_run=true&about=free", {"days": {"2030-01-02": "x"}})
    assert (answer.json()["days"], answer.json()["about"]) == ({"2030-01-02": "x"}, "free")
    assert one.ask("GET", "/calendars/new").status_code == 404
    assert one.ask("PUT", "/calendars/new?until=tomorrow", {"days": {}}).status_code == 400
    events = "".join(
        f"BEGIN:VEVENT\r\nUID:{year}\r\nDTSTAMP:20260101T000000Z\r\nDTSTART;VALUE=DATE:{year}0501\r\nEND:VEVENT\r\n"
        for year in (2027, 2029)
    )
    text = f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\n{events}END:VCALENDAR\r\n".encode()
    answer = one.ask("PUT", "/calendars/new?until=2028-01-01", content=text, media="text/calendar")
    assert [*answer.json()["days"]] == ["2027-05-01"]
    monkeypatch.setitem(sys.modules, "icalendar", None)
    answer = one.ask("PUT", "/calendars/new", content=text, media="text/calendar")
    assert (answer.status_code, "celery-redbeat[calendar]" in answer.json()["detail"]) == (422, True)


def test_what_a_request_about_one_entry_or_calendar_would_do_is_told_and_left(
    program: Programs, app: Celery, add: Add
) -> None:
    add("a", jitter=5)
    Calendar("days", ["2098-12-24"], app=app).save()
    Calendar("named", ["2098-12-24"], app=app).save()
    add("keeper", exclude="named")
    one = program()
    before = one.get("/entries/a")
    told = one.ask("PATCH", "/entries/a?dry_run=true", {"jitter": 60, "task": "other"})
    assert (told.json()["jitter"], told.json()["task"]) == (60, "other")
    assert told.headers["etag"] == before["etag"], "it is what was compared with"
    refused = one.ask("PATCH", "/entries/a?dry_run=true", {"jitter": -1})
    assert (refused.status_code, refused.json()["field"]) == (422, "jitter")
    assert one.ask("DELETE", "/entries/a?dry_run=true").json() == {"deleted": 0, "names": ["a"]}
    assert one.put("/entries/a/pause", {"note": "x", "dry_run": True})["state"] == "scheduled"
    assert one.put("/entries/a/trigger", {"args": [1], "dry_run": True})["task_id"] is None
    assert one.get("/entries/a") == before
    assert sent(app) == 0
    one.put("/entries/a/pause")
    assert one.ask("DELETE", "/entries/a/pause?dry_run=true").json()["state"] == "paused"
    assert get(app, "a").paused
    for method, path, body in (
        ("PATCH", "/entries/no?dry_run=true", {"jitter": 1}),
        ("DELETE", "/entries/no?dry_run=true", None),
        ("DELETE", "/entries/no/pause?dry_run=true", None),
        ("DELETE", "/calendars/no?dry_run=true", None),
        ("PUT", "/entries/no/pause", {"dry_run": True}),
        ("PUT", "/entries/no/trigger", {"dry_run": True}),
    ):
        assert one.ask(method, path, body).status_code == 404, path
    seen = {"if-match": '"another"'}
    assert one.ask("DELETE", "/entries/a?dry_run=true", headers=seen).status_code == 412
    assert one.ask("DELETE", "/calendars/days?dry_run=true").json() == {"deleted": 0, "names": ["days"]}
    assert one.ask("DELETE", "/calendars/named?dry_run=true").status_code == 422
    assert one.ask("GET", "/calendars/days").status_code == 200
    assert {record.verb for record in find_records(app)} == {"pause"}
