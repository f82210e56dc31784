"""Entries over the REST interface: each document as it is described, and compare and set."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.query import read_listed
from redbeat.errors import EntryChanged
from redbeat.manifest.plan import read_with_owners
from redbeat.schedules import clocked
from redbeat.store.store import Store
from redbeat.web.api.addresses import segment_of
from redbeat.web.verbs import editing
from tests.integration.web.conftest import FAR
from tests.support.programs import Program

Add = Callable[..., RedBeatSchedulerEntry]
Programs = Callable[..., Program]
HOURLY = {"__type__": "interval", "every": 3600.0, "relative": False}


def stored(app: Celery, name: str) -> Any:
    return read_listed(RedBeatSchedulerEntry, app, name)


def test_what_is_shown_can_be_sent_back_and_changes_nothing(program: Programs, app: Celery, add: Add) -> None:
    add(
        "report",
        crontab(minute="5", hour="3"),
        args=["a", 1],
        kwargs={"password": "hunter2", "deep": [{"api_token": "x", "y": 1}]},
        jitter=30,
        timezone="Europe/Berlin",
        exclude=None,
        ping_url="https://example.com/secret",
    )
    one = program()
    answer = one.ask("GET", "/entries/report")
    before, found = stored(app, "report").stored, answer.json()
    assert found["kwargs"] == {"password": "(hidden)", "deep": [{"api_token": "(hidden)", "y": 1}]}
    assert "secret" not in answer.text
    assert "hunter2" not in answer.text
    assert (found["href"], found["etag"]) == ("/entries/report", answer.headers["etag"])

    again = one.ask("PUT", "/entries/report", found, {"if-match": answer.headers["etag"]})
    assert again.status_code == 200, again.text
    assert (again.status_code, again.headers["etag"]) == (200, answer.headers["etag"])
    patched = one.ask("PATCH", "/entries/report", found)
    assert patched.headers["etag"] == answer.headers["etag"]
    after = stored(app, "report").stored
    assert (after.definition, after.policy) == (before.definition, before.policy)


def test_an_entry_that_changes_while_it_is_looked_at_isnt_removed(
    program: Programs, app: Celery, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("report", jitter=1)
    one = program("delete")
    seen = one.ask("GET", "/entries/report").headers["etag"]

    def read_before_a_change(*args: Any) -> Any:
        found = read_with_owners(*args)
        add("report", jitter=2)
        return found

    with monkeypatch.context() as patched:
        patched.setattr(editing, "read_with_owners", read_before_a_change)
        refused = one.ask("DELETE", "/entries/report", headers={"if-match": seen})
    assert refused.status_code == 412
    assert stored(app, "report").policy.jitter == 2
    removed = one.ask("DELETE", "/entries/report", headers={"if-match": refused.headers["etag"]})
    assert (removed.status_code, removed.json()["deleted"]) == (200, 1)
    assert one.ask("GET", "/entries/report").status_code == 404


def test_an_entry_that_changes_while_it_is_replaced_is_looked_at_again(
    program: Programs, app: Celery, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, draft, moved = program("edit"), editing.draft, dict[str, Any]()

    def slow_draft(*given: Any) -> Any:
        made = draft(*given)
        if moved:  # by somebody else, in between
            add("one", **moved)
            moved.clear()
        return made

    monkeypatch.setattr(editing, "draft", slow_draft)
    add("one", kwargs={"password": "old"})
    seen = one.get("/entries/one")
    moved["kwargs"] = {"password": "rotated"}
    one.put("/entries/one", {**seen, "args": [1]})
    assert (stored(app, "one").kwargs, [*stored(app, "one").args]) == ({"password": "rotated"}, [1])

    app.conf.redbeat_web_tasks = ["echo"]
    del app.redbeat_conf
    moved["task"] = "proj.secret"
    assert one.ask("PUT", "/entries/one", {**seen, "kwargs": {}}).status_code == 403
    assert stored(app, "one").task == "proj.secret"


def test_whoever_relies_on_nothing_is_asked_to_come_back_if_others_always_come_between(
    program: Programs, add: Add, monkeypatch: pytest.MonkeyPatch
) -> None:
    add("one")
    monkeypatch.setattr("redbeat.entries.optimistic.time.sleep", lambda _seconds: None)

    def draft(*_given: Any) -> Any:
        raise EntryChanged("somebody else has changed it meanwhile.", "")

    one = program("edit")
    seen = one.get("/entries/one")
    monkeypatch.setattr(editing, "draft", draft)
    for method, body in (("PUT", seen), ("PATCH", {"args": [1]})):
        answer = one.ask(method, "/entries/one", body)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5"), answer.text
        assert one.ask(method, "/entries/one", body, {"if-match": seen["etag"]}).status_code == 412


def test_an_entry_is_made_once_and_replaced_only_as_it_was_seen(program: Programs, app: Celery) -> None:
    one, body = program("edit", "delete"), {"task": "echo", "schedule": HOURLY}
    only_new = {"if-none-match": "*"}
    made = one.ask("PUT", "/entries/new", body, only_new)
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/entries/new")
    assert one.ask("PUT", "/entries/new", body, only_new).status_code == 412
    replaced = one.ask("PUT", "/entries/new", {**body, "args": [1]}, {"if-match": made.headers["etag"]})
    assert replaced.status_code == 200
    late = one.ask("PUT", "/entries/new", {**body, "args": [2]}, {"if-match": made.headers["etag"]})
    assert (late.status_code, late.headers["etag"]) == (412, replaced.headers["etag"])
    assert list(stored(app, "new").args) == [1]
    assert one.ask("PUT", "/entries/new", {**body, "args": [3]}).status_code == 200
    several = {"if-match": f'W/"x", "other", {one.ask("GET", "/entries/new").headers["etag"]}'}
    assert one.ask("PUT", "/entries/new", body, several).status_code == 200
    assert one.ask("PUT", "/entries/none", body, {"if-match": "*"}).status_code == 412
    for wrong in ("0a1b", '"a" "b"', "W/0", "'*'"):
        assert one.ask("PUT", "/entries/new", body, {"if-match": wrong}).status_code == 400, wrong
    assert one.ask("PUT", "/entries/new", body, {"if-none-match": '"x"'}).status_code == 400
    assert one.ask("PUT", "/entries/new", body, {"if-match": "*", **only_new}).status_code == 400
    assert one.ask("PUT", "/entries/new", {**body, "name": "other"}).status_code == 422
    assert one.ask("DELETE", "/entries/new", headers={"if-match": '"x"'}).status_code == 412
    assert one.ask("DELETE", "/entries/new", headers=several).status_code == 412
    assert one.ask("DELETE", "/entries/new").json() == {"deleted": 1, "names": ["new"]}
    for method, given in (("GET", None), ("DELETE", None), ("PATCH", {"args": []})):
        assert one.ask(method, "/entries/new", given).status_code == 404


def test_a_patch_changes_what_it_names_and_nothing_else(program: Programs, app: Celery, add: Add) -> None:
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
    assert str(patch(schedule={"cron": "1 2 * * *"}).schedule) == str(crontab(minute="1", hour="2"))
    assert patch(schedule={"every": "5m"}).schedule.run_every == timedelta(minutes=5)
    assert patch(schedule="2h").schedule.run_every == timedelta(hours=2)
    assert list(patch(args=[1, [2]]).args) == [1, [2]]
    for fields, field in (
        ({"task": 5}, "task"),
        ({"jitter": -1}, "jitter"),
        ({"nonsense": 1}, None),
        ({"schedule": {"__type__": "crontab", "minute": "99"}}, None),
        ({"name": "other"}, None),
        ({"options": {"priority": 300}}, "options"),
        ({"schedule": None}, "schedule"),
    ):
        answer = one.ask("PATCH", "/entries/one", fields)
        assert (answer.status_code, answer.json()["entry"]) == (422, "one"), answer.text
        assert field is None or answer.json()["field"] == field, answer.text
    several = one.ask("PATCH", "/entries/one", {"jitter": -1, "task": 5, "max_runs": 0}).json()
    assert several["errors"].keys() == {"jitter", "task", "max_runs"}
    assert one.ask("PUT", "/entries/two", {}).json()["errors"].keys() == {"task", "schedule"}
    assert one.ask("PUT", "/entries/two", {"task": "echo", "schedule": {"minute": "5"}}).status_code == 422
    assert (
        "(hidden)" in one.ask("PATCH", "/entries/one", {"kwargs": {"password": "(hidden)"}}).json()["detail"]
    )
    deep = {"kwargs": {"b": {"password": "(hidden)"}}}
    assert one.ask("PATCH", "/entries/one", deep).status_code == 422


def test_of_eight_who_change_what_they_have_seen_one_wins_each_round(program: Programs, add: Add) -> None:
    add("one", args=[-1])
    programs = [program("edit") for _ in range(8)]
    for number in range(3):
        etag = programs[0].ask("GET", "/entries/one").headers["etag"]
        barrier, statuses = threading.Barrier(8), list[tuple[int, int]]()

        def change(place: int, etag: str = etag, barrier: Any = barrier, statuses: Any = statuses) -> None:
            barrier.wait()
            args = {"args": [place, etag]}
            answer = programs[place].ask("PATCH", "/entries/one", args, {"if-match": etag})
            statuses.append((answer.status_code, place))

        threads = [threading.Thread(target=change, args=(place,)) for place in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(status for status, _ in statuses) == [200, *[412] * 7], number
        [winner] = (place for status, place in statuses if status == 200)
        assert programs[0].get("/entries/one")["args"] == [winner, etag]


def test_eight_who_change_other_fields_all_win(program: Programs, app: Celery, add: Add) -> None:
    add("one")
    programs = [program("edit") for _ in range(8)]
    statuses: list[int] = []

    def change(place: int) -> None:
        answer = programs[place].ask("PATCH", "/entries/one", {"kwargs": {f"k{place}": place}})
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=change, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * 8
    assert stored(app, "one").kwargs == {f"k{place}": place for place in range(8)}


NAMES = [
    "plain",
    "a/pause",
    "a/pause/../b",
    ".",
    "..",
    "=x",
    "=",
    "count",
    "%2e%2e",
    "a b",
    "a?b#c",
    "täglich",
    "日本",
    "a\r\nSet-Cookie: x=1",
    "\0",
    "<script>alert(1)</script>",
    "\u202eabc",
    "a\\b",
    "x" * 5000,
    "a%2Fb",
    ";v=1",
    "+",
]


def test_an_entry_of_any_name_has_its_own_address(program: Programs, app: Celery, add: Add) -> None:
    for name in [*NAMES, "a"]:
        add(name)
    one = program()
    found = {entry["name"]: entry["href"] for entry in one.get("/entries")["entries"]}
    assert found.keys() == {*NAMES, "a"}
    assert len({*found.values()}) == len(found)
    for name, path in found.items():
        answer = one.ask("GET", path)
        assert answer.status_code == 200, (name, path, answer.text)
        assert answer.json()["name"] == name
        answer = one.ask("PUT", f"{path}/pause", {"note": "over"})
        assert answer.status_code == 200
        assert "set-cookie" not in answer.headers
        assert [entry.name for entry in RedBeatSchedulerEntry.list(app, state="paused")] == [name]
        assert one.ask("DELETE", f"{path}/pause").status_code == 200


def test_a_new_entry_of_any_name_is_made_under_its_address(program: Programs, app: Celery) -> None:
    one = program()
    for name in ("a\r\nSet-Cookie: x=1", "a/b", "täglich", "%0d%0a"):
        path = f"/entries/{segment_of(name)}"
        made = one.ask("PUT", path, {"task": "echo", "schedule": "1h"})
        assert (made.status_code, made.headers["location"]) == (201, f"/api/v1{path}")
        assert (made.json()["name"], "set-cookie" in made.headers) == (name, False)
        assert stored(app, name).task == "echo"
    answer = one.ask("PUT", "/entries/%3Aschedule", {"task": "echo", "schedule": "1h"})
    assert (answer.status_code, answer.json()["field"]) == (422, "name")


def test_a_slash_in_a_name_never_addresses_another_entry(program: Programs, app: Celery, add: Add) -> None:
    add("a")
    add("a/pause")
    one = program()
    answer = one.ask("PUT", "/entries/a%2Fpause", {"task": "echo", "schedule": HOURLY})
    assert answer.status_code == 400
    assert "=YS9wYXVzZQ" in answer.json()["detail"]
    assert one.ask("DELETE", "/entries/a%2Fpause").status_code == 400
    assert not stored(app, "a").paused
    for path in (
        "/entries//",
        "/entries/",
        "/entries/a//pause",
        "/entries/%2e%2e",
        "/entries/=%20",
        "/entries/=a*",
    ):
        assert one.ask("GET", path).status_code in (400, 404, 405), path
    assert one.ask("GET", "/entries/%ff").status_code == 400


def test_a_list_goes_on_where_it_ended(program: Programs, app: Celery, add: Add) -> None:
    for number in range(25):
        add(f"e{number:02}", clocked(FAR + timedelta(hours=number)), task=f"t{number % 2}")
    add("off", enabled=False)
    one, found, path = program("read"), [], "/entries?limit=10&task=t1"
    while path:
        answer = one.ask("GET", path).json()
        assert len(answer["entries"]) <= 10
        found += [entry["name"] for entry in answer["entries"]]
        path = answer["next"]
    assert found == [f"e{number:02}" for number in range(1, 25, 2)]
    path, matching = "/entries?limit=3&match=e*", []
    while path:
        answer = one.ask("GET", path).json()
        matching += [entry["name"] for entry in answer["entries"]]
        path = answer["next"]
    assert matching == [f"e{number:02}" for number in range(25)]
    assert one.get("/count") == {"count": 26, "next": None}
    assert one.get("/count", state="disabled")["count"] == 1
    assert one.get("/count", due_before=(FAR + timedelta(hours=4)).isoformat())["count"] == 5
    berlin = "2099-03-01T14:30:00+01:00"  # a plus in a query is a space
    assert one.ask("GET", f"/count?due_before={berlin}").json()["count"] == 5
    assert one.get("/entries", match="e0?", enabled="true")["entries"][0]["last_outcome"] is None
    for wrong in ("x", "", "W10", "é", "bnVsbA", "e30"):
        assert one.ask("GET", "/entries", cursor=wrong).status_code == 400, wrong


def test_an_entry_that_cannot_be_used_is_shown_and_deleted(program: Programs, app: Celery, add: Add) -> None:
    store = Store(app)
    for name, definition in (
        ("bad", '{"task": "x", "schedule": {"__type__": "nonsense"}}'),
        (
            "deep",
            '{"task": "x", "schedule": {"__type__": "interval", "every": 60}, "args": '
            + "[" * 900
            + "]" * 900
            + "}",
        ),
        ("nan", '{"task": "x", "schedule": {"__type__": "interval", "every": 60}, "args": [NaN, Infinity]}'),
        ("text", "no JSON"),
    ):
        add(name)
        store.client.hset(store.keys.entry(name), "definition", definition)
    one = program()
    assert {entry["name"] for entry in one.get("/entries")["entries"]} == {"bad", "deep", "nan", "text"}
    for name in ("bad", "deep", "nan", "text"):
        assert one.ask("GET", f"/entries/{name}").status_code == 200
        assert one.ask("GET", f"/entries/{name}/why").status_code == 200
        assert one.ask("GET", f"/entries/{name}/next").status_code in (200, 422)
        assert one.ask("PATCH", f"/entries/{name}", {"description": "d"}).status_code in (200, 422)
        assert one.ask("PATCH", f"/entries/{name}", {"args": []}).status_code in (200, 422)
        assert one.ask("DELETE", f"/entries/{name}").status_code == 200


def test_many_are_paused_resumed_and_deleted_by_name_or_pattern(
    program: Programs, app: Celery, add: Add
) -> None:
    for name in ("a1", "a2", "a3", "b"):
        add(name)
    add("a4", enabled=False)
    one = program()
    told = one.put("/pause", {"match": "a*", "note": "release", "until": "2h"})
    assert (sorted(told["changed"]), told["next"]) == (["a1", "a2", "a3"], None)
    assert stored(app, "a1").pause_note == "release"
    assert one.put("/pause", {"names": ["a1", "b", "gone"]})["left"] == ["a1"]
    assert sorted(one.put("/resume", {"match": "*"})["changed"]) == ["a1", "a2", "a3", "b"]
    assert not stored(app, "a4").enabled
    assert one.put("/delete", {"names": ["b", "gone"]})["names"] == ["b", "gone"]
    assert one.put("/delete", {"match": "a*"})["deleted"] == 4
    assert one.get("/count")["count"] == 0
    for body in (
        {},
        {"names": ["a"], "match": "a"},
        {"names": []},
        {"names": "a"},
        {"match": ""},
        {"names": [1]},
    ):
        assert one.ask("PUT", "/pause", body).status_code == 422, body


def test_a_pause_can_be_sent_again_with_another_note(program: Programs, app: Celery, add: Add) -> None:
    add("one")
    one = program("pause")
    one.put("/entries/one/pause", {"note": "first"})
    one.put("/entries/one/pause", {"note": "second", "until": "2098-01-01T00:00:00Z"})
    entry = stored(app, "one")
    assert (entry.pause_note, entry.paused_until.year) == ("second", 2098)
    one.put("/entries/one/pause")
    assert stored(app, "one").pause_note == "second"
    assert one.ask("PUT", "/entries/one/pause", {"until": "2001-01-01T00:00:00Z"}).status_code == 422
    assert one.ask("DELETE", "/entries/one/pause").json()["state"] == "scheduled"
    assert one.ask("PUT", "/entries/none/pause").status_code == 404


@pytest.mark.parametrize(
    "path", ["/entries/one/next?count=3", "/entries/one/why", "/entries/one/route", "/next"]
)
def test_what_the_command_line_tells_of_an_entry_is_told(program: Programs, add: Add, path: str) -> None:
    add("one", crontab(minute="5", hour="3"), timezone="Europe/Berlin", options={"queue": "reports"})
    found = program("read").ask("GET", path).json()
    assert found.get("runs", True)
    assert found.get("queues", ["reports"]) == ["reports"]
