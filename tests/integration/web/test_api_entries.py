"""Entries over the REST interface: etags, patches, addresses, pages of lists, and requests about many."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.entries.audit import find_records
from redbeat.entries.search import read_listed
from redbeat.manifest.plan import read_with_owners
from redbeat.operations import editing, selection
from redbeat.schedules import clocked
from redbeat.store.store import Store
from tests.integration.web.conftest import FAR, Add, Programs
from tests.support.programs import Program

HOURLY = {"__type__": "interval", "every": 3600.0, "relative": False}


def stored(app: Celery, name: str) -> Any:
    return read_listed(app, name)


def sent(app: Celery) -> int:
    """Return how many messages are on the queue."""
    with app.connection_for_write() as connection:
        return int(connection.default_channel.client.llen("celery"))


def read_all(one: Program, path: str, part: str, limit: int) -> list[Any]:
    """Return a part of this answer and of all that follow by their links."""
    found: list[Any] = []
    while path:
        answer = one.get(path)
        assert len(answer[part]) <= limit
        found += answer[part]
        path = answer["next"]
    return found


def at_once(count: int, ask: Callable[[int], Any]) -> list[Any]:
    """Return what is answered to threads that ask at the same time; each has a number."""
    barrier = threading.Barrier(count)

    def run(number: int) -> Any:
        barrier.wait()
        return ask(number)

    with ThreadPoolExecutor(count) as pool:
        return [*pool.map(run, range(count))]


def test_entry_that_is_sent_back_as_shown_stays_unchanged(program: Programs, app: Celery, add: Add) -> None:
    kwargs = {"password": "secret", "deep": [{"api_token": "x", "y": 1}]}
    limits = {"jitter": 30, "timezone": "Europe/Berlin", "ping_url": "https://example.com/secret"}
    add("report", crontab(minute="5", hour="3"), args=["a", 1], kwargs=kwargs, **limits)
    one = program()
    answer = one.ask("GET", "/entries/report")
    before, found, etag = stored(app, "report").stored, answer.json(), answer.headers["etag"]
    assert found["kwargs"] == {"password": "(hidden)", "deep": [{"api_token": "(hidden)", "y": 1}]}
    assert "secret" not in answer.text
    assert (found["href"], found["etag"]) == ("/entries/report", etag)
    again = one.ask("PUT", "/entries/report", found, {"if-match": etag})
    assert (again.status_code, again.headers["etag"]) == (200, etag), again.text
    assert one.ask("PATCH", "/entries/report", found).headers["etag"] == etag
    after = stored(app, "report").stored
    assert (after.definition, after.policy) == (before.definition, before.policy)


def test_delete_of_an_entry_changed_meanwhile_returns_412(
    program: Programs, app: Celery, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("report", jitter=1)
    client, history = Store(app).client, Store(app).keys.about("report").history
    client.lpush(history, "{}")
    one = program("delete")
    seen = one.ask("GET", "/entries/report").headers["etag"]

    def read_before_a_change(*args: Any) -> Any:
        found = read_with_owners(*args)
        add("report", jitter=2)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(editing, "read_with_owners", read_before_a_change)
        refused = one.ask("DELETE", "/entries/report", headers={"if-match": seen})
    assert (refused.status_code, stored(app, "report").policy.jitter) == (412, 2)
    removed = one.ask("DELETE", "/entries/report", headers={"if-match": refused.headers["etag"]})
    assert (removed.status_code, removed.json()["deleted"]) == (200, 1)
    assert not client.exists(history)


def test_put_honours_if_match_and_if_none_match(program: Programs, app: Celery) -> None:
    one, body = program("edit", "delete"), {"task": "echo", "schedule": HOURLY}
    only_new = {"if-none-match": "*"}
    made = one.ask("PUT", "/entries/new", body, only_new)
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/entries/new")
    seen = {"if-match": made.headers["etag"]}
    replaced = one.ask("PUT", "/entries/new", {**body, "args": [1]}, seen)
    assert replaced.status_code == 200
    late = one.ask("PUT", "/entries/new", {**body, "args": [2]}, seen)
    assert (late.status_code, late.headers["etag"]) == (412, replaced.headers["etag"])
    assert list(stored(app, "new").args) == [1]
    several = {"if-match": f'W/"x", "other", {replaced.headers["etag"]}'}
    for path, headers, status in (
        ("new", only_new, 412), ("new", several, 200), ("none", {"if-match": "*"}, 412),
        *(("new", {"if-match": wrong}, 400) for wrong in ("0a1b", '"a" "b"', "W/0", "'*'")),
        ("new", {"if-none-match": '"x"'}, 400), ("new", {"if-match": "*", **only_new}, 400),
    ):  # fmt: skip
        assert one.ask("PUT", f"/entries/{path}", body, headers).status_code == status, headers
    assert one.ask("PUT", "/entries/new", {**body, "name": "other"}).status_code == 422
    assert one.ask("DELETE", "/entries/new", headers=several).status_code == 412
    assert one.ask("DELETE", "/entries/new").json() == {"deleted": 1, "names": ["new"]}
    for method, given in (("GET", None), ("DELETE", None), ("PATCH", {"args": []})):
        assert one.ask(method, "/entries/new", given).status_code == 404


def test_patch_merges_what_it_names_and_reports_each_wrong_field(
    program: Programs, app: Celery, add: Add
) -> None:
    add("one", crontab(minute="5", hour="3"), kwargs={"a": 1, "b": {"c": 2, "d": 3}, "token": "t"}, jitter=30)
    one = program("edit")

    def patch(**fields: Any) -> Any:
        answer = one.ask("PATCH", "/entries/one", fields)
        assert answer.status_code == 200, answer.text
        return stored(app, "one")

    entry = patch(kwargs={"b": {"c": None, "e": 4}, "token": "(hidden)"}, jitter=None)
    assert (entry.kwargs, entry.policy.jitter) == ({"a": 1, "b": {"d": 3, "e": 4}, "token": "t"}, 0)
    assert str(patch(schedule={"hour": "4"}).schedule) == str(crontab(minute="5", hour="4"))
    assert patch(schedule={"__type__": "interval", "every": 60}).schedule.run_every == timedelta(seconds=60)
    assert patch(schedule="2h").schedule.run_every == timedelta(hours=2)
    assert list(patch(args=[1, [2]]).args) == [1, [2]]
    hidden = {"password": "(hidden)"}
    for fields, field in (
        ({"jitter": -1}, "jitter"), ({"nonsense": 1}, None), ({"name": "other"}, None),
        ({"schedule": {"__type__": "crontab", "minute": "99"}}, None), ({"schedule": None}, "schedule"),
        ({"options": {"priority": 300}}, "options"), ({"kwargs": hidden}, None),
        ({"kwargs": {"b": hidden}}, None),
    ):  # fmt: skip
        answer = one.ask("PATCH", "/entries/one", fields)
        assert answer.status_code == 422, answer.text
        assert field is None or (answer.json()["entry"], answer.json()["field"]) == ("one", field)
    several = one.ask("PATCH", "/entries/one", {"jitter": -1, "task": 5, "max_runs": 0}).json()
    assert several["errors"].keys() == {"jitter", "task", "max_runs"}
    assert one.ask("PUT", "/entries/two", {}).json()["errors"].keys() == {"task", "schedule"}
    reserved = one.ask("PUT", "/entries/:schedule", {"task": "t", "schedule": "1h"})
    assert (reserved.status_code, reserved.json()["errors"].keys()) == (422, {"name"}), reserved.text


def test_one_of_eight_concurrent_patches_with_one_etag_wins(program: Programs, add: Add) -> None:
    add("one", args=[-1])
    programs = [program("edit") for _ in range(8)]
    etag = programs[0].ask("GET", "/entries/one").headers["etag"]

    def change(number: int) -> Any:
        return programs[number].ask("PATCH", "/entries/one", {"args": [number]}, {"if-match": etag})

    statuses = [answer.status_code for answer in at_once(8, change)]
    assert sorted(statuses) == [200, *[412] * 7]
    assert programs[0].get("/entries/one")["args"] == [statuses.index(200)]


NAMES = [
    "plain", "a/pause", "a/pause/../b", ".", "..", "=x", "=", "count", "%2e%2e", "a b", "a?b#c", "täglich",
    "a\r\nSet-Cookie: x=1", "\0", "<script>alert(1)</script>", "\u202eabc", "x" * 5000, "a%2Fb", ";v=1", "+",
]  # fmt: skip


def test_entry_of_any_name_has_an_address_of_its_own(program: Programs, app: Celery, add: Add) -> None:
    for name in [*NAMES, "a"]:
        add(name)
    one = program()
    found = {entry["name"]: entry["href"] for entry in one.get("/entries")["entries"]}
    assert found.keys() == {*NAMES, "a"}
    assert len({*found.values()}) == len(found)
    for name, path in found.items():
        assert one.get(path)["name"] == name
        answer = one.ask("PUT", f"{path}/pause", {"note": "over"})
        assert (answer.status_code, "set-cookie" in answer.headers) == (200, False)
        assert [entry.name for entry in RedBeatSchedulerEntry.list(app, state="paused")] == [name]
        assert one.ask("DELETE", f"{path}/pause").status_code == 200


def test_list_goes_on_where_it_ended(program: Programs, app: Celery, add: Add) -> None:
    for number in range(25):
        add(f"e{number:02}", clocked(FAR + timedelta(hours=number)), task=f"t{number % 2}")
    add("off", enabled=False)
    one = program("read")
    for query, wanted in (("limit=10&task=t1", range(1, 25, 2)), ("limit=3&match=e*", range(25))):
        found = read_all(one, f"/entries?{query}", "entries", 10)
        assert [entry["name"] for entry in found] == [f"e{number:02}" for number in wanted]
    assert one.get("/count", state="disabled") == {"count": 1, "next": None}
    berlin = "2099-03-01T14:30:00+01:00"  # a plus in a query is a space
    assert one.ask("GET", f"/count?due_before={berlin}").json()["count"] == 5
    for wrong in ("x", "", "W10", "é", "bnVsbA", "e30"):
        assert one.ask("GET", "/entries", cursor=wrong).status_code == 400, wrong


def test_set_of_many_changes_the_valid_ones_in_slices(
    program: Programs, app: Celery, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "MAX_SELECTED", 4)
    for number in range(10):
        add(f"a{number}", kwargs={"keep": 1})
    add("b", task="secret")  # which nobody may schedule
    app.conf.redbeat_web_tasks = ["echo"]
    del app.redbeat_conf
    one = program("edit")
    body: dict[str, Any] = {"match": "*", "changes": {"kwargs": {"new": 2}, "jitter": 30}}
    assert len(one.put("/set", {**body, "dry_run": True})["changed"]) == 4
    assert stored(app, "a1").kwargs == {"keep": 1}
    answers = [one.put("/set", body)]
    while cursor := answers[-1]["next"]:
        answers.append(one.put("/set", {**body, "cursor": cursor}))
    changed = {name for answer in answers for name in answer["changed"]}  # one that moves may come twice
    assert sorted(changed) == [f"a{number}" for number in range(10)]
    assert {name for answer in answers for name in answer["failed"]} == {"b"}
    assert (stored(app, "a9").kwargs, stored(app, "a9").policy.jitter) == ({"keep": 1, "new": 2}, 30)
    told = one.put("/set", {"names": ["a1", "none", "a2"], "changes": {"jitter": None}})
    assert (told["changed"], [*told["failed"]], told["left"]) == (["a1", "a2"], ["none"], [])
    told = one.put("/set", {"names": ["a1", "a2"], "changes": {"jitter": -1}})
    assert ([*told["failed"]], told["changed"]) == (["a1", "a2"], [])
    for body in ({"names": ["a"], "changes": []}, {"changes": {}}, {"match": "*"}):
        assert one.ask("PUT", "/set", body).status_code == 422, body


def test_dry_run_tells_what_would_change_and_changes_nothing(
    program: Programs, app: Celery, add: Add
) -> None:
    add("a", jitter=5)
    Calendar("days", ["2098-12-24"], app=app).save()
    one = program()
    before = one.get("/entries/a")
    told = one.ask("PATCH", "/entries/a?dry_run=true", {"jitter": 60, "task": "other"})
    assert (told.json()["jitter"], told.json()["task"]) == (60, "other")
    assert told.headers["etag"] == before["etag"], "it is what was compared with"
    assert one.ask("PATCH", "/entries/a?dry_run=true", {"jitter": -1}).status_code == 422
    assert one.ask("DELETE", "/entries/a?dry_run=true").json() == {"deleted": 0, "names": ["a"]}
    assert one.ask("DELETE", "/calendars/days?dry_run=true").json() == {"deleted": 0, "names": ["days"]}
    assert one.put("/entries/a/pause", {"note": "x", "dry_run": True})["state"] == "scheduled"
    assert one.put("/entries/a/trigger", {"args": [1], "dry_run": True})["task_id"] is None
    assert (one.get("/entries/a"), Calendar.names(app), sent(app)) == (before, ["days"], 0)
    one.put("/entries/a/pause")
    assert one.ask("DELETE", "/entries/a/pause?dry_run=true").json()["state"] == "paused"
    assert stored(app, "a").paused
    for path in ("entries/no", "entries/no/pause", "calendars/no"):
        assert one.ask("DELETE", f"/{path}?dry_run=true").status_code == 404, path
    assert one.ask("DELETE", "/entries/a?dry_run=true", headers={"if-match": '"x"'}).status_code == 412
    assert {record.verb for record in find_records(app)} == {"pause"}


def test_trigger_repeated_with_its_key_sends_one_run(program: Programs, app: Celery, add: Add) -> None:
    add("one")
    one, key = program("run"), {"idempotency-key": "deploy 7f3a"}
    first = one.ask("PUT", "/entries/one/trigger", {"args": [1]}, key).json()
    again = one.ask("PUT", "/entries/one/trigger", {"args": [1]}, key).json()
    assert (again["task_id"], again["is_repeated"], first["is_repeated"]) == (first["task_id"], True, False)
    assert sent(app) == 1
    assert one.ask("PUT", "/entries/one/trigger", {"args": [2]}, key).status_code == 422
    other = program("run").ask("PUT", "/entries/one/trigger", {"args": [1]}, key).json()
    assert other["task_id"] != first["task_id"]
    assert one.put("/entries/one/trigger")["task_id"] != one.put("/entries/one/trigger", {})["task_id"]
    for wrong in ("x" * 256, "a\tb"):  # taken for no key, a repeated request would send a second run
        assert one.ask("PUT", "/entries/one/trigger", {}, {"idempotency-key": wrong}).status_code == 400
    assert sent(app) == 4
    store = Store(app)
    kept = [*store.client.scan_iter(f"{store.keys.prefix}:change:request:*")]
    assert len(kept) == 2
    assert all(0 < store.client.ttl(name) <= 24 * 3600 for name in kept)
    assert program().ask("PUT", "/pause", {"names": ["one"]}, key).status_code == 400


def test_eight_concurrent_triggers_with_one_key_send_one_run(
    program: Programs, app: Celery, add: Add
) -> None:
    add("one")
    token = program("run").token
    copies = [Program(app, token=token) for _ in range(8)]
    key = {"idempotency-key": "x"}
    answers = at_once(8, lambda number: copies[number].ask("PUT", "/entries/one/trigger", {}, key).json())
    assert len({answer["task_id"] for answer in answers}) == 1
    assert sorted(answer["is_repeated"] for answer in answers) == [False, *[True] * 7]
    assert sent(app) == 1
    assert [record.verb for record in find_records(app)] == ["trigger"]


def test_trigger_of_an_entry_whose_run_is_in_progress_returns_409(program: Programs, add: Add) -> None:
    add("one", overlap="skip")
    one = program("run")
    task_id = one.put("/entries/one/trigger")["task_id"]
    busy = one.ask("PUT", "/entries/one/trigger")
    assert (busy.status_code, busy.json()["task_id"], busy.json()["entry"]) == (409, task_id, "one")
