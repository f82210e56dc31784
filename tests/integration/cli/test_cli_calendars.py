"""`celery redbeat calendar`: the days on which nothing runs, from the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import Result

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.cli import confirmation
from redbeat.store import calendars as calendar_store
from tests.conftest import MakeApp
from tests.support.applying import apply
from tests.support.command_line import call
from tests.support.servers import Server

Ask = Callable[..., Result]
SPAN = "2098-12-24T18:00+00:00/2098-12-25T06:00+00:00"


@pytest.fixture
def ask(app: Celery) -> Ask:
    def run(*arguments: str) -> Result:
        done = call(app, "calendar", *arguments)
        assert done.exit_code == 0, done.output
        return done

    return run


@pytest.fixture
def holidays(app: Celery) -> Calendar:
    Calendar("free", app=app).save()
    days = {"2098-12-25": "Christmas", "2098-12-28/2098-12-31": "closed", SPAN: ""}
    made = Calendar("holidays", days, "public", app=app).save()
    for name in ("report", "letters"):
        Entry(name, "echo", "0 7 * * *", exclude="holidays", app=app).save()
    return made


def test_calendars_are_listed_with_what_is_excluded_next(ask: Ask, holidays: Calendar) -> None:
    lines = [json.loads(line) for line in ask("list", "--json").stdout.splitlines()]
    nothing = {"about": "", "days": 0, "spans": 0, "entries": 0, "next_excluded": None, "error": None}
    assert lines == [
        {"name": "free", **nothing},
        {
            "name": "holidays", "about": "public", "days": 5, "spans": 1, "entries": 2, "error": None,
            "next_excluded": "2098-12-24T18:00:00+00:00",
        },
    ]  # fmt: skip
    table = ask("list").stdout
    assert "2098-12-24 18:00 " in table
    assert "public" in table


def test_a_calendar_is_shown_with_the_entries_that_name_it(ask: Ask, holidays: Calendar) -> None:
    shown = ask("show", "holidays").stdout
    for words in ("public", "2098-12-25  Christmas", SPAN, "Named by 2 entries, letters, report"):
        assert words in shown
    found = json.loads(ask("show", "holidays", "--json").stdout)
    assert (found["days"], found["entries"]) == (holidays.days, ["letters", "report"])


def test_a_broken_calendar_is_listed_and_shown_all_the_same(
    ask: Ask, client: redis.Redis, holidays: Calendar
) -> None:
    client.hset("redbeat::calendar:holidays", "someday", "x")
    client.set("redbeat::calendar:text", "x")
    errors = {one["name"]: one["error"] for one in map(json.loads, ask("list", "--json").stdout.splitlines())}
    assert errors["free"] is None
    assert "'someday' is not a date" in errors["holidays"]
    assert "holds a string, not a hash" in errors["text"]
    assert "someday" in ask("show", "holidays").stdout


def test_days_come_and_go_and_entries_are_due_as_it_says(ask: Ask, app: Celery, holidays: Calendar) -> None:
    tomorrow = (datetime.now(timezone.utc) + timedelta(days=1)).date()
    days = [f"{tomorrow + timedelta(days=number)}=away" for number in range(3)]
    done = ask("set", "holidays", *days, "2098-01-01", "--remove", "2098-12-25", "--about", "ours")
    assert done.stdout == "Stored the calendar holidays: 8 days and 1 span.\n"
    stored = Calendar.load("holidays", app)
    assert (stored.about, "2098-12-25" in stored.days, stored.days[str(tomorrow)]) == ("ours", False, "away")
    due = Entry.get("report", app).next_due_at
    assert due is not None
    assert due.date() not in {tomorrow + timedelta(days=number) for number in range(3)}
    assert ask("set", "made", "2098-01-01=x").stdout == "Stored the calendar made: 1 day.\n"


def test_the_days_of_a_range_are_counted_each_once(ask: Ask) -> None:
    done = ask("set", "made", "2098-12-28/2098-12-31", "2098-12-25", "2098-12-30=twice")
    assert done.stdout == "Stored the calendar made: 5 days.\n"
    assert ask("set", "made", "--remove", "2098-12-25").stdout == "Stored the calendar made: 4 days.\n"
    assert json.loads(ask("list", "--json").stdout)["days"] == 4


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["set", "holidays", "christmas"], 64, "'christmas' is not a date"),
        (["set", "holidays", "2098-12-31/2098-12-30"], 64, "ends before it begins"),
        (["set", "holidays", "--remove", "2098-01-01"], 64, "there is no 2098-01-01 to remove"),
        (["set", "holidays"], 64, "There is nothing to change"),
        (["show", "holidasy"], 66, "There is no calendar 'holidasy' at redis://.* Did you mean holidays"),
        (["delete", "holidays", "free", "holidasy", "--yes"], 66, "There is no calendar 'holidasy'"),
        (["delete", "free", "holidays", "--yes"], 64, "is named by 2 entries, letters, report: let them"),
        (["delete", "free"], 64, "give --yes"),
        (["import", "holidays", "nowhere.txt"], 66, "nowhere.txt: can't be read"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else None,
)
def test_what_is_wrong_is_told_and_nothing_is_done(
    app: Celery, holidays: Calendar, arguments: list[str], code: int, words: str
) -> None:
    done = call(app, "calendar", *arguments)
    assert (done.exit_code, bool(re.search(words, done.stderr))) == (code, True), done.output
    assert Calendar.names(app) == ["free", "holidays"]
    assert Calendar.load("holidays", app) == holidays


def test_a_day_that_somebody_adds_meanwhile_stays(
    ask: Ask, app: Celery, holidays: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace, others = calendar_store.replace_calendar, [True]

    def replace_late(*arguments: Any, **options: Any) -> Any:
        if others:
            others.pop()
            Calendar("holidays", {**holidays.days, "2097-01-01": "theirs"}, app=app).save()
        return replace(*arguments, **options)

    monkeypatch.setattr(calendar_store, "replace_calendar", replace_late)
    ask("set", "holidays", "2097-01-02=mine")
    assert Calendar.load("holidays", app).days == {
        **holidays.days, "2097-01-01": "theirs", "2097-01-02": "mine",
    }  # fmt: skip


def test_calendars_are_deleted_and_those_that_are_named_by_force_only(
    ask: Ask, app: Celery, holidays: Calendar
) -> None:
    assert ask("delete", "free", "--dry-run").stderr == "1 calendar would be deleted: free.\n"
    assert ask("delete", "free", "--yes").stdout == "Deleted 1 calendar.\n"
    done = ask("delete", "holidays", "--yes", "--force")
    assert "holidays is named by 2 entries, letters, report." in done.stderr
    assert Calendar.names(app) == []


def test_a_calendar_that_is_named_while_the_question_stands_is_not_deleted(
    app: Celery, holidays: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say_yes_after_saving(_question: str, **_options: Any) -> bool:
        Entry("late", "echo", 60, exclude="free", app=app).save()
        return True

    monkeypatch.setattr(confirmation, "is_somebody_there", lambda: True)
    monkeypatch.setattr(confirmation.click, "confirm", say_yes_after_saving)
    done = call(app, "calendar", "delete", "free")
    assert (done.exit_code, "is named by 1 entry, late" in done.stderr) == (64, True), done.output
    assert Calendar.names(app) == ["free", "holidays"]


@pytest.mark.parametrize("is_wanted", [True, False])
def test_who_replaces_days_is_asked_which_would_go(
    app: Celery, holidays: Calendar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    asked: list[str] = []

    def answer(question: str, **_options: Any) -> bool:
        asked.append(question)
        return is_wanted

    monkeypatch.setattr(confirmation, "is_somebody_there", lambda: True)
    monkeypatch.setattr(confirmation.click, "confirm", answer)
    (tmp_path / "days.txt").write_text("2098-12-25 Christmas\n")
    done = call(app, "calendar", "import", "holidays", str(tmp_path / "days.txt"), "--replace")
    assert done.exit_code == (0 if is_wanted else 1)
    assert re.match(r"Remove 4 days and 1 span from the calendar holidays at redis://\S+ \(2098", asked[0])
    left = {"2098-12-25": "Christmas"} if is_wanted else holidays.days
    assert Calendar.load("holidays", app).days == left


ICS = """BEGIN:VCALENDAR
VERSION:2.0
PRODID:-//x//x//EN
BEGIN:VEVENT
UID:1@x
SUMMARY:New Year
DTSTART;VALUE=DATE:20980101
DTEND;VALUE=DATE:20980102
END:VEVENT
END:VCALENDAR
"""
FILES = {
    "a.ics": ICS,
    "lines.txt": "# ours\n2098-01-01 New Year\n\n2098-02-01/2098-02-03\n",
    "lines.csv": "2098-01-01,New Year\n2098-02-01/2098-02-03,\n",
    "list.yaml": "- 2098-01-01\n- 2098-02-01/2098-02-03\n",
    "days.yaml": "2098-01-01: New Year\n2098-02-01/2098-02-03: ''\n",
    "fields.json": '{"about": "ours", "days": {"2098-01-01": "New Year", "2098-02-01/2098-02-03": ""}}',
    "entries.yaml": "entries: {}\ncalendars:\n"
    "  school: {days: {2098-01-01: New Year, 2098-02-01/2098-02-03: ''}}\n",
}


@pytest.mark.parametrize("name", FILES)
def test_a_calendar_is_imported(ask: Ask, app: Celery, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    options = ["--until", "2099-01-01"] if name == "a.ics" else []
    assert "would be stored" in ask("import", "school", str(tmp_path / name), *options, "--dry-run").stderr
    assert Calendar.names(app) == []
    ask("import", "school", str(tmp_path / name), *options)
    days = Calendar.load("school", app).days
    expected = ["2098-01-01"] if name == "a.ics" else ["2098-01-01", "2098-02-01/2098-02-03"]
    assert sorted(days) == expected
    assert days["2098-01-01"] == ("" if name == "list.yaml" else "New Year")


def test_a_calendar_that_is_there_is_replaced_or_added_to_on_demand(
    ask: Ask, app: Celery, tmp_path: Path, holidays: Calendar
) -> None:
    path = tmp_path / "days.txt"
    path.write_text("2098-01-01 New Year\n")
    refused = call(app, "calendar", "import", "holidays", str(path))
    assert (refused.exit_code, "--replace" in refused.stderr) == (64, True)
    ask("import", "holidays", str(path), "--add")
    assert Calendar.load("holidays", app).days == {**holidays.days, "2098-01-01": "New Year"}
    assert Calendar.load("holidays", app).about == "public"
    unasked = call(app, "calendar", "import", "holidays", str(path), "--replace")
    assert (unasked.exit_code, "no terminal to ask you on: give --yes" in unasked.stderr) == (64, True)
    ask("import", "holidays", str(path), "--replace", "--yes")
    assert Calendar.load("holidays", app).days == {"2098-01-01": "New Year"}
    ask("import", "holidays", str(path), "--replace")  # no day goes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing in it", "line 1: 'nothing in it' is not a date"),
        ("2098-01-01 New Year\n# ours\n2098-13-01: x\n", "line 3: '2098-13-01: x' is not a date"),
        ("entries: {}", "has no calendar 'school'; those it has: none"),
        ("- someday\n", "'someday' is not a date"),
        ("BEGIN:VCALENDAR\nno\n", "no iCalendar file that can be used"),
        ("{", "no valid JSON"),
        ("", "holds nothing, and no days"),
    ],
)
def test_a_file_that_is_no_calendar_is_refused(app: Celery, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "file").write_text(text)
    done = call(app, "calendar", "import", "school", str(tmp_path / "file"))
    assert (done.exit_code, words in done.stderr) == (64, True), done.output
    assert Calendar.names(app) == []


def test_who_may_not_look_at_every_key_sees_what_entries_name(
    make_app: MakeApp, client: redis.Redis, server: Server, holidays: Calendar
) -> None:
    client.acl_setuser("hand", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", "-scan"])
    try:
        app = make_app(redbeat_redis_url=f"redis://hand:secret@127.0.0.1:{server.port}/1")
        done = call(app, "calendar", "list", "--json")
        assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["holidays"]
        assert "may not look at every key (SCAN)" in done.stderr
        assert call(app, "calendar", "set", "free", "2098-01-01").exit_code == 0
        text = "{calendars: {own: {days: [2098-01-01]}}, entries: {}}"
        apply(app, text)
        apply(app, "entries: {}", prune=True)
    finally:
        client.acl_deluser("hand")
    assert Calendar.names(holidays.app) == ["free", "holidays"]
