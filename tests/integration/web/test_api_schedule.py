"""Files, calendars, and the schedule as a whole over the REST interface."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.store.store import Store
from redbeat.web.api.cursors import encoded
from tests.support.programs import Program

Add = Callable[..., RedBeatSchedulerEntry]
Programs = Callable[..., Program]
FILE = {
    "owner": "team",
    "entries": {
        "a": {"task": "echo", "schedule": "1h", "kwargs": {"token": "t"}},
        "b": {"task": "echo", "schedule": "2h"},
    },
}


def test_a_plan_is_carried_out_only_as_it_was_seen(program: Programs, add: Add) -> None:
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


def test_a_wrong_file_is_refused_with_its_line(program: Programs) -> None:
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


def test_what_was_exported_is_imported(program: Programs, add: Add) -> None:
    one = program()
    one.put("/apply", FILE)
    exported = one.get("/export")
    assert exported["entries"].keys() == {"a", "b"}
    as_yaml = one.ask("GET", "/export?format=yaml&match=a")
    assert as_yaml.headers["content-type"].startswith("application/yaml")
    assert "task: echo" in as_yaml.text
    assert "(hidden)" in as_yaml.text
    assert one.ask("PUT", "/import", exported).status_code == 422  # they are there
    assert one.put("/import?replace=true&dry_run=true", exported)["is_applied"] is False
    one.ask("DELETE", "/entries/b")
    del exported["entries"]["a"]
    assert [*one.put("/import", exported)["added"]] == ["b"]


def test_calendars_are_stored_changed_and_removed(program: Programs, app: Celery, add: Add) -> None:
    one = program()
    days = {"about": "free", "days": {"2030-12-25": "Christmas"}}
    made = one.ask("PUT", "/calendars/free%20days", days, {"if-none-match": "*"})
    assert (made.status_code, made.headers["location"]) == (201, "/api/v1/calendars/free%20days")
    assert one.ask("PUT", "/calendars/free%20days", days, {"if-none-match": "*"}).status_code == 412
    changes = {"days": {"2030-12-26": "", "2030-12-25": None}}
    patched = one.ask("PATCH", "/calendars/free%20days", changes, {"if-match": made.headers["etag"]})
    assert [*patched.json()["days"]] == ["2030-12-26"]
    late = one.ask("PATCH", "/calendars/free%20days", {"about": "x"}, {"if-match": made.headers["etag"]})
    assert (late.status_code, late.headers["etag"]) == (412, patched.headers["etag"])
    ics = (
        b"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:x\r\nBEGIN:VEVENT\r\nUID:1\r\nDTSTAMP:20260101T000000Z\r\n"
        b"DTSTART;VALUE=DATE:20260501\r\nSUMMARY:May\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n"
    )
    answer = one.ask("PUT", "/calendars/free%20days?add=true", content=ics, media="text/calendar")
    assert answer.json()["days"].keys() >= {"2030-12-26"}
    assert one.put("/calendars/free%20days", days)["days"] == days["days"]
    assert [found["name"] for found in one.get("/calendars")["calendars"]] == ["free days"]
    add("one", exclude="free days")
    assert one.get("/calendars/free%20days")["entries"] == ["one"]
    assert one.ask("DELETE", "/calendars/free%20days").status_code == 422
    assert one.ask("DELETE", "/calendars/free%20days?force=true").json()["deleted"] == 1
    for method, body in (("GET", None), ("DELETE", None)):
        assert one.ask(method, "/calendars/free%20days", body).status_code == 404
    for wrong in ({"days": ["x"]}, {"days": {"x": "y"}}, {"days": {"2030-01-01": 5}}, {"about": 5}, {"x": 1}):
        assert one.ask("PATCH", "/calendars/new", wrong).status_code == 422, wrong


def at_once(programs: Sequence[Program], ask: Callable[[Program, int], Any]) -> list[Any]:
    """What is answered to programs that begin at the same time; each has a number."""
    barrier, answers = threading.Barrier(len(programs)), dict[int, Any]()

    def run(number: int) -> None:
        barrier.wait()
        answers[number] = ask(programs[number], number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(programs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[number] for number in range(len(programs))]


def test_of_what_eight_write_into_a_calendar_at_once_nothing_is_lost(program: Programs, app: Celery) -> None:
    programs, path = [program("edit", "delete") for _ in range(8)], "/calendars/closed"
    only_new = {"if-none-match": "*"}

    def make(one: Program, number: int) -> int:
        return int(one.ask("PUT", path, {"days": {f"2030-01-0{number + 1}": ""}}, only_new).status_code)

    assert sorted(at_once(programs, make)) == [201, *[412] * 7]
    assert len(Calendar.load("closed", app).days) == 1

    def keep_trying(ask: Callable[[Program, int, dict[str, str]], Any]) -> Callable[[Program, int], int]:
        def run(one: Program, number: int) -> int:
            tries = 1
            while (answer := ask(one, number, {})).status_code == 412:
                tries += 1
            assert answer.status_code == 200, answer.text
            return tries

        return run

    def add(one: Program, number: int, _: Any) -> Any:
        seen = {"if-match": one.ask("GET", path).headers["etag"]}
        return one.ask("PATCH", path, {"days": {f"2030-02-0{number + 1}": ""}}, seen)

    def replace(one: Program, number: int, _: Any) -> Any:
        found = one.ask("GET", path)
        days = {**found.json()["days"], f"2030-03-0{number + 1}": ""}
        return one.ask("PUT", path, {"days": days}, {"if-match": found.headers["etag"]})

    def add_some(one: Program, number: int, _: Any) -> Any:
        seen = {"if-match": one.ask("GET", path).headers["etag"]}
        return one.ask("PUT", f"{path}?add=true", {"days": {f"2030-04-0{number + 1}": ""}}, seen)

    for ask in (add, replace, add_some):
        at_once(programs, keep_trying(ask))
    at_once(programs, lambda one, number: one.ask("PATCH", path, {"days": {f"2030-05-0{number + 1}": ""}}))
    days = Calendar.load("closed", app).days
    assert len(days) == 1 + 4 * 8, sorted(days)
    etag = programs[0].ask("GET", path).headers["etag"]

    def remove_or_change(one: Program, number: int) -> int:
        if number % 2:
            return int(one.ask("DELETE", path, headers={"if-match": etag}).status_code)
        return int(one.ask("PATCH", path, {"about": f"{number}"}, {"if-match": etag}).status_code)

    statuses = at_once(programs, remove_or_change)
    assert statuses.count(200) == 1, "what one has changed isn't removed, and what is removed isn't changed"
    assert programs[0].ask("GET", path).status_code == (404 if 200 in statuses[1::2] else 200)


def test_all_calendars_are_listed_slice_by_slice_with_what_names_them(
    program: Programs, app: Celery, add: Add
) -> None:
    names = {f"c{number:03}" for number in range(60)}
    for name in names:
        Calendar(name, ["2030-01-01"], app=app).save()
    for number in range(30):
        add(f"e{number:02}", exclude="c007" if number % 3 else "c000")
    one = program("read")
    for limit in (1, 7, 200):
        found, path = [], f"/calendars?limit={limit}"
        while path:
            answer = one.ask("GET", path).json()
            assert len(answer["calendars"]) <= limit
            assert answer["is_complete"]
            found += [calendar["name"] for calendar in answer["calendars"]]
            path = answer["next"]
        assert set(found) == names
    users, path = [], "/calendars/c007?limit=6"
    while path:
        answer = one.ask("GET", path).json()
        assert len(answer["entries"]) <= 6
        users += answer["entries"]
        path = answer["next"]
    assert sorted(users) == [f"e{number:02}" for number in range(30) if number % 3]
    for wrong in ("x", encoded([-1, ""]), encoded([True, ""]), encoded([2**64, ""]), encoded(["", 0])):
        assert one.ask("GET", "/calendars", cursor=wrong).status_code == 400, wrong

    user = ["on", "nopass", "allkeys", "+@all", "-scan"]
    store = Store(app)
    store.client.execute_command("ACL", "SETUSER", "default", *user)
    try:
        known, path = [], "/calendars?limit=1"
        while path:
            answer = one.ask("GET", path).json()
            assert not answer["is_complete"]
            known += [calendar["name"] for calendar in answer["calendars"]]
            path = answer["next"]
        assert set(known) == {"c007", "c000"}
    finally:
        store.client.execute_command("ACL", "SETUSER", "default", "+@all")


@pytest.mark.parametrize("path", ["/next", "/timeline", "/next?match=none*", "/timeline?match=none*"])
def test_what_is_computed_of_all_entries_ends_when_its_time_is_up_and_says_so(
    program: Programs, add: Add, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    for name in ("a", "b"):
        add(name, timedelta(hours=1))
    one = program("read")
    assert one.get(path)["is_complete"]
    monkeypatch.setattr("redbeat.web.api.entries.NEXT_SECONDS", -1)
    monkeypatch.setattr("redbeat.web.api.operating.TIMELINE_SECONDS", -1)
    assert not one.get(path)["is_complete"]


def test_the_schedule_as_a_whole_is_told(program: Programs, app: Celery, add: Add) -> None:
    for name in ("a", "b"):
        add(name, timedelta(hours=1))
    one = program()
    assert one.get("/status")["state"] == "no_leader"
    chart = one.get("/timeline", hours=6, by="prefix")
    assert (sum(chart["total"]) in (10, 11, 12), chart["is_complete"], chart["entries_seen"]) == (
        True,
        True,
        2,
    )
    found = one.get("/doctor", max_seconds=2)
    assert (found["entries"], found["repairs"]) == (2, None)
    store = Store(app)
    store.client.delete(store.keys.entry("b"))
    fixed = one.put("/doctor/fix", {"dry_run": True})
    assert "would be" in fixed["repairs"][0]
    purged = one.put("/purge", {"dry_run": True})
    assert (len(purged["leftovers"]) >= 1, purged["removed"]) == (True, 0)
    assert one.put("/purge")["removed"] >= 1
    assert one.put("/purge")["leftovers"] == []
    assert one.put("/doctor/fix")["repairs"] == []
    assert one.get("/routes", task="echo", queue="slow")["queues"] == ["slow"]
    assert one.ask("GET", "/routes").status_code == 400
    verbs = {record["verb"]: record["id"] for record in one.get("/audit")["records"]}
    assert verbs.keys() == {"purge"}
    for _ in range(3):
        one.put("/pause", {"names": ["a"]})
    page = one.get("/audit", limit=2)
    assert (len(page["records"]), len(one.get("/audit", before=page["before"])["records"])) == (2, 2)
    assert one.ask("GET", "/audit", before="x").status_code == 400
    seen, path = list[str](), "/audit?limit=2&since=1d"
    while path:
        answer = one.get(path)
        seen += [record["id"] for record in answer["records"]]
        path = answer["next"]
    assert seen == [record["id"] for record in one.get("/audit")["records"]]


def test_the_description_is_the_one_that_is_served(program: Programs) -> None:
    described = program("read").get("/openapi.json")
    assert json.dumps(described["openapi"]) == '"3.1.0"'
    assert described["servers"] == [{"url": "/api/v1"}]
    operations: list[Any] = [one for methods in described["paths"].values() for one in methods.values()]
    assert len({one["operationId"] for one in operations}) == len(operations)
