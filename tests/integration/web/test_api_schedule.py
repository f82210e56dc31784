"""Files, calendars, stored messages and the schedule as a whole over the REST interface."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.calendars import Calendar
from redbeat.diagnostics.findings import Diagnosis
from redbeat.entries.timeline import GROUPS
from redbeat.keys import Keys
from redbeat.operations import calendars
from redbeat.operations.selection import encode_cursor
from redbeat.store.later import LaterStore
from redbeat.store.members import count_members
from redbeat.store.store import Store
from tests.integration.web.conftest import Add, Programs
from tests.integration.web.test_api_entries import at_once, read_all
from tests.integration.web.test_calendars_and_files import EVENT
from tests.support.programs import Program
from tests.support.stored import store

FILE = {
    "owner": "team",
    "entries": {
        "a": {"task": "echo", "schedule": "1h", "kwargs": {"token": "t"}},
        "b": {"task": "echo", "schedule": "2h"},
    },
}


KEYS = Keys()


def test_plan_is_applied_only_as_it_was_seen(program: Programs, add: Add) -> None:
    one = program("edit")
    planned = one.ask("PUT", "/plan", FILE)
    assert planned.json()["added"].keys() == {"a", "b"}
    assert planned.json()["added"]["a"]["kwargs"] == {"token": "(hidden)"}
    assert one.get("/count")["count"] == 0
    add("b", timedelta(hours=5))
    seen = {"if-match": planned.headers["etag"]}
    late = one.ask("PUT", "/apply", FILE, seen)
    assert late.status_code == 412
    again = one.ask("PUT", "/plan", FILE)
    assert late.headers["etag"] == again.headers["etag"]
    done = one.ask("PUT", "/apply", FILE, {"if-match": again.headers["etag"]}).json()
    assert (done["is_applied"], [*done["changed"]]) == (True, ["b"])
    assert one.put("/apply", FILE)["is_applied"] is False
    text = b"owner: team\nentries:\n  a:\n    task: echo\n    schedule: 1h\n"
    answer = one.ask("PUT", "/apply?prune=true", content=text, media="application/yaml")
    assert (answer.status_code, answer.json()["right"]) == (403, "delete")
    answer = program("edit", "delete").ask(
        "PUT", "/apply?prune=true", content=text, media="application/yaml; charset=UTF-8"
    )
    assert [*answer.json()["removed"]] == ["b"]


def test_invalid_file_is_refused_with_its_line(program: Programs) -> None:
    one = program()
    for content, line in (
        (b"entries:\n  a:\n    task: echo\n    schedule: 1h\n    nonsense: 1\n", 5),
        (b"owner: x\nentries:\n  a: {task: 1}\n", 3),
        (b"\xff", 1),
        (b"a: &a [*a]", 1),
        (b"", None),
        (b"[" * 5000, None),
    ):
        answer = one.ask("PUT", "/plan?owner=x", content=content, media="text/yaml")
        assert answer.status_code == 422, (content[:50], answer.text)
        assert line is None or answer.json()["line"] == line, answer.text
    assert one.ask("PUT", "/plan", {"entries": {}}).status_code == 422  # without an owner
    assert one.ask("PUT", "/plan?owner=%0a", FILE).status_code == 400
    assert one.ask("PUT", "/apply?owner=x", content=b"{}", media="text/html").status_code == 415


def test_calendar_honours_etags_and_the_entries_that_name_it(
    program: Programs, app: Celery, add: Add
) -> None:
    one = program()
    days = {"about": "free", "days": {"2030-12-25": "Christmas"}}
    made = one.ask("PUT", "/calendars/free%20days", days, {"if-none-match": "*"})
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/calendars/free%20days")
    assert one.ask("PUT", "/calendars/free%20days", days, {"if-none-match": "*"}).status_code == 412
    changes = {"days": {"2030-12-26": "", "2030-12-25": None}}
    patched = one.ask("PATCH", "/calendars/free%20days", changes, {"if-match": made.headers["etag"]})
    assert [*patched.json()["days"]] == ["2030-12-26"]
    for method, body in (("PATCH", {"about": "x"}), ("DELETE", None)):
        late = one.ask(method, "/calendars/free%20days", body, {"if-match": made.headers["etag"]})
        assert (late.status_code, late.headers["etag"]) == (412, patched.headers["etag"])
    ics = EVENT.format("DTSTART;VALUE=DATE:20300501").encode()
    answer = one.ask("PUT", "/calendars/free%20days?add=true", content=ics, media="text/calendar")
    assert answer.json()["days"].keys() == {"2030-12-26", "2030-05-01"}
    assert one.put("/calendars/free%20days", days)["days"] == days["days"]
    add("one", exclude="free days")
    assert one.get("/calendars/free%20days")["entries"] == ["one"]
    assert one.ask("DELETE", "/calendars/free%20days").status_code == 422
    assert one.ask("DELETE", "/calendars/free%20days?force=true").json()["deleted"] == 1
    assert one.ask("GET", "/calendars/free%20days").status_code == 404
    for wrong in ({"days": ["x"]}, {"days": {"x": "y"}}, {"days": {"2030-01-01": 5}}, {"about": 5}, {"x": 1}):
        assert one.ask("PATCH", "/calendars/new", wrong).status_code == 422, wrong


def test_delete_of_a_calendar_changed_meanwhile_returns_412(
    program: Programs, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, find_users = program(), calendars.find_users
    Calendar("closed", ["2030-01-01"], app=app).save()
    seen = one.ask("GET", "/calendars/closed").headers["etag"]

    def find_after_a_change(store: Store, names: Any) -> Any:
        Calendar("closed", ["2030-02-02"], app=app).save()
        return find_users(store, names)

    monkeypatch.setattr(calendars, "find_users", find_after_a_change)
    assert one.ask("DELETE", "/calendars/closed", headers={"if-match": seen}).status_code == 412
    assert list(Calendar.load("closed", app).days) == ["2030-02-02"]


def test_concurrent_changes_of_a_calendar_lose_no_day(program: Programs, app: Celery) -> None:
    programs, path = [program("edit", "delete") for _ in range(8)], "/calendars/closed"

    def make(number: int) -> int:
        days = {f"2030-01-0{number + 1}": ""}
        made = programs[number].ask("PUT", path, {"days": days}, {"if-none-match": "*"})
        return int(made.status_code)

    def add_seen(number: int) -> None:
        status = 412
        while status == 412:
            found = programs[number].ask("GET", path)
            days = {**found.json()["days"], f"2030-03-0{number + 1}": ""}
            sent = programs[number].ask("PUT", path, {"days": days}, {"if-match": found.headers["etag"]})
            status = sent.status_code
        assert status == 200

    def add_unseen(number: int) -> None:
        programs[number].ask("PATCH", path, {"days": {f"2030-05-0{number + 1}": ""}})

    assert sorted(at_once(8, make)) == [201, *[412] * 7]
    at_once(8, add_seen)
    at_once(8, add_unseen)
    assert len(Calendar.load("closed", app).days) == 1 + 2 * 8


def test_calendars_are_listed_in_slices_with_the_entries_that_name_them(
    program: Programs, app: Celery, add: Add
) -> None:
    names = [f"c{number:02}" for number in range(20)]
    for name in names:
        Calendar(name, ["2030-01-01"], app=app).save()
    for number in range(12):
        add(f"e{number:02}", exclude="c07" if number % 3 else "c00")
    one = program("read")
    for limit in (1, 7, 200):
        found = read_all(one, f"/calendars?limit={limit}", "calendars", limit)
        assert sorted(calendar["name"] for calendar in found) == names
    users = [f"e{number:02}" for number in range(12) if number % 3]
    assert sorted(read_all(one, "/calendars/c07?limit=3", "entries", 3)) == users
    for wrong in (
        "x",
        encode_cursor([-1, ""]),
        encode_cursor([True, ""]),
        encode_cursor([2**64, ""]),
        encode_cursor(["", 0]),
    ):
        assert one.ask("GET", "/calendars", cursor=wrong).status_code == 400, wrong
    client = Store(app).client
    client.execute_command("ACL", "SETUSER", "default", "-scan")
    try:
        answer = one.get("/calendars")
    finally:
        client.execute_command("ACL", "SETUSER", "default", "+@all")
    names = [calendar["name"] for calendar in answer["calendars"]]
    assert (sorted(names), answer["is_complete"]) == (["c00", "c07"], False), "those that entries name"


def test_timeline_has_rows_by_every_group(program: Programs, add: Add) -> None:
    add("shop.a", timedelta(hours=5))
    for group in GROUPS:
        rows = program("read").get(f"/timeline?by={group}")["entries"]
        assert len(rows) == 1, group


@pytest.mark.parametrize("path", ["/next", "/timeline?match=none*"])
def test_computation_over_all_entries_that_runs_out_of_time_says_so(
    program: Programs, add: Add, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    for name in ("a", "b"):
        add(name, timedelta(hours=1))
    one = program("read")
    assert one.get(path)["is_complete"]
    monkeypatch.setattr("redbeat.operations.reading.NEXT_SECONDS", -1)
    monkeypatch.setattr("redbeat.operations.operating.TIMELINE_SECONDS", -1)
    assert not one.get(path)["is_complete"]


def test_second_heavy_operation_at_a_time_gets_503(
    program: Programs, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = program()
    found: list[Any] = []
    heavy = (
        ("GET", "/timeline", None),
        ("GET", "/next", None),
        ("PUT", "/calendars/closed", {"2030-01-01": "x"}),  # looks for the entries that name it
        ("PATCH", "/calendars/closed", {"days": {"2030-01-01": "x"}}),
        ("DELETE", "/calendars/closed", None),
        ("GET", "/export", None),
    )

    def examine(*_given: Any, **_options: Any) -> Any:
        found.extend(Program(app, (), one.http.app, one.token).ask(*asked) for asked in heavy)
        return Diagnosis()

    monkeypatch.setattr("redbeat.operations.operating.examine", examine)
    assert one.ask("GET", "/doctor").status_code == 200
    assert [answer.status_code for answer in found] == [503] * len(heavy)
    assert one.ask("GET", "/timeline").status_code == 200


def test_audit_list_goes_on_where_it_ended(program: Programs, add: Add) -> None:
    add("a")
    one = program()
    for _ in range(3):
        one.put("/pause", {"names": ["a"]})
        one.put("/resume", {"names": ["a"]})
    seen = read_all(one, "/audit?limit=2&since=1d", "records", 2)
    assert seen == one.get("/audit")["records"]
    assert len(seen) == 6
    assert one.ask("GET", "/audit", before="x").status_code == 400


def test_stored_messages_are_listed_though_some_go_meanwhile(
    app: Celery, client: redis.Redis, program: Programs
) -> None:
    reader = program("read")
    assert reader.get("/later") == {"messages": [], "count": 0, "next": None}
    names = [f"id {number}/{number % 3}" for number in range(7)]
    for number, name in enumerate(names):
        store(app, name, args=[number], seconds=7200 + number // 3)
    client.zadd(KEYS.later, {"stray": 5})
    found, path, query = [], "/later", {"limit": 3}
    while path is not None:
        answer = reader.get(path, **query)
        assert answer["count"] == count_members(LaterStore(app))
        found += [one["task_id"] for one in answer["messages"]]
        LaterStore(app).cancel(found[-1:])  # the one that the cursor stands for
        client.zadd(KEYS.later, {"too late": 7})
        path, query = answer["next"], {}
    assert found == ["stray", *names]
    assert reader.get("/later", limit=0)["count"] == 6


def test_message_stored_anew_is_cancelled_only_with_its_etag(app: Celery, program: Programs) -> None:
    store(app, "one", args=[1])
    deleter = program("delete")
    seen = {"if-match": deleter.get("/later/one")["etag"]}
    store(app, "one", args=[2])
    answer = deleter.ask("DELETE", "/later/one", headers=seen)
    assert answer.status_code == 412
    assert answer.headers["etag"] == deleter.get("/later/one")["etag"] != seen["if-match"]
    newer = {"if-match": answer.headers["etag"]}
    assert deleter.ask("DELETE", "/later/one", headers=newer).status_code == 200
