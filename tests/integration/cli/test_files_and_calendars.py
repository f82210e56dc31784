"""Commands about files and calendars."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner, Result

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.cli import redbeat, session
from redbeat.store.calendars import replace_calendar
from tests.conftest import MakeApp
from tests.support.applying import apply
from tests.support.command_line import call
from tests.support.schedule import SCHEDULE
from tests.support.servers import Server

FILE = """\
owner: billing
entries:
  one: {task: echo, schedule: {every: 1h}}
  two: {task: echo, schedule: {cron: "0 9 * * *"}, args: [1]}
"""


Ask = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "billing.yaml"
    path.write_text(FILE)
    return path


@pytest.fixture
def ask(app: Celery) -> Ask:
    return lambda *arguments: call(app, *map(str, arguments))


def test_plan_shows_what_apply_does(ask: Ask, app: Celery, file: Path, client: redis.Redis) -> None:
    shown = ask("plan", file)
    assert shown.exit_code == 2
    assert client.keys() == []
    done = ask("apply", file, "--yes")
    assert (done.exit_code, done.output.splitlines()[-1]) == (0, "Done.")
    assert ask("plan", file).exit_code == 0
    assert ask("apply", file).exit_code == 0  # without a change there is no question
    file.write_text(FILE.replace("every: 1h", "every: 10m").replace("two", "three"))
    shown = ask("plan", file, "--prune")
    assert (shown.exit_code, "- two\n" in shown.output) == (2, True)
    owned = [*("apply", file, "--prune", "--yes", "--owner"), "shop"]
    assert (ask(*owned).exit_code, ask(*owned, "--take-over").exit_code) == (64, 0)
    assert client.hget("redbeat:one", "owner") == "shop"
    assert ask("apply", file, "--prune", "--yes", "--take-over").exit_code == 0
    assert sorted(client.zrange(SCHEDULE, 0, -1)) == ["redbeat:one", "redbeat:three"]


def test_apply_reads_stdin(app: Celery, client: redis.Redis) -> None:
    context = SimpleNamespace(app=app, no_color=True)
    done = CliRunner().invoke(redbeat, ["apply", "-", "--yes"], obj=context, input=FILE)
    assert (done.exit_code, client.zcard(SCHEDULE)) == (0, 2)
    wrong = CliRunner().invoke(redbeat, ["apply", "-", "--yes"], obj=context, input="entries: [")
    assert (wrong.exit_code, "stdin" in wrong.output) == (64, True)


def test_export_is_imported_again(ask: Ask, app: Celery, file: Path, client: redis.Redis) -> None:
    ask("apply", file, "--yes")
    scores = client.zrange(SCHEDULE, 0, -1, withscores=True)
    for backup in (file.with_name("backup.yaml"), file.with_name("backup.json")):
        done = ask("export", backup)
        assert (done.exit_code, done.stdout) == (0, "")
        assert (backup.read_text()[0] == "{") is (backup.suffix == ".json")
        refused = ask("import", backup)
        assert (refused.exit_code, "one: is stored already" in refused.output) == (64, True)
        Entry.clear(app)
        assert ask("import", backup).exit_code == 0
        assert client.zrange(SCHEDULE, 0, -1, withscores=True) == scores
    assert "give --yes" in ask("import", backup, "--replace").stderr
    assert ask("import", backup, "--replace", "--yes").exit_code == 0
    assert not list(file.parent.glob(".backup*"))


WRONG: list[tuple[list[str], int, str]] = [
    (["plan", "/nowhere"], 66, "/nowhere: can't be read: No such file or directory."),
    (["apply", "NO-OWNER"], 64, "the entries have no owner: name one (--owner)"),
    (["apply", "LATIN", "--yes"], 64, "line 2: is no UTF-8."),
    (["apply", "FILE"], 64, "give --yes"),
    (["import", "--from-django-celery-beat", "mysql://me:secret@db/app"], 78, "mysql://me:**@db/app"),
    (["import", "--from-django-celery-beat", "sqlite:////nowhere"], 64, "there is no such file"),
    (["--url", "redis://127.0.0.1:1", "import", "--from-beat-schedule"], 64, "needs celery -A APP"),
    (["--url", "redis://127.0.0.1:1", "plan", "FILE"], 69, "127.0.0.1:1"),
]


@pytest.mark.parametrize(("arguments", "code", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_invalid_file_or_source_has_its_exit_code(
    ask: Ask, file: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, words: str
) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    (file.parent / "no-owner.yaml").write_text("entries: {}")
    (file.parent / "latin.yaml").write_bytes("# ok\n# für\n".encode("latin-1"))
    names = {"FILE": file, "NO-OWNER": file.parent / "no-owner.yaml", "LATIN": file.parent / "latin.yaml"}
    done = ask(*(names.get(argument, argument) for argument in arguments))
    assert (done.exit_code, words in done.output) == (code, True), done.output
    assert done.output.strip().splitlines()[-1].startswith(("Error: ", "Usage: "))
    assert "secret" not in done.output


SPAN = "2098-12-24T18:00+00:00/2098-12-25T06:00+00:00"


@pytest.fixture
def calendar(app: Celery) -> Ask:
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


def test_calendar_set_changes_days_and_due_times(calendar: Ask, app: Celery, holidays: Calendar) -> None:
    tomorrow = (datetime.now(timezone.utc) + timedelta(days=1)).date()
    days = [f"{tomorrow + timedelta(days=number)}=away" for number in range(3)]
    calendar("set", "holidays", *days, "2098-01-01", "--remove", "2098-12-25", "--about", "ours")
    stored = Calendar.load("holidays", app)
    assert (stored.about, "2098-12-25" in stored.days, stored.days[str(tomorrow)]) == ("ours", False, "away")
    due = Entry.get("report", app).next_due_at
    assert due
    assert not tomorrow <= due.date() <= tomorrow + timedelta(days=2)
    calendar("set", "made", "2098-01-01=x")
    assert Calendar.load("made", app).days == {"2098-01-01": "x"}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["set", "holidays", "christmas"], 64, "'christmas' is not a date"),
        (["set", "holidays", "--remove", "2098-01-01"], 64, "there is no 2098-01-01 to remove"),
        (
            ["delete", "free", "holidasy", "--yes"],
            66,
            "redis://.*: There is no calendar 'holidasy'. Did you mean holidays",
        ),
        (["delete", "free", "holidays", "--yes"], 64, "is named by 2 entries, .*--force"),
        (["delete", "free"], 64, "give --yes"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else None,
)
def test_invalid_calendar_command_changes_nothing(
    app: Celery, holidays: Calendar, arguments: list[str], code: int, words: str
) -> None:
    done = call(app, "calendar", *arguments)
    assert (done.exit_code, bool(re.search(words, done.stderr))) == (code, True), done.output
    assert Calendar.names(app) == ["free", "holidays"]
    assert Calendar.load("holidays", app) == holidays


def test_calendar_set_keeps_a_day_added_meanwhile(
    calendar: Ask, app: Celery, holidays: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = {**holidays.days, "2097-01-01": "theirs"}

    def replace_late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.undo()
        Calendar("holidays", theirs, app=app).save()
        return replace_calendar(*arguments, **options)

    monkeypatch.setattr("redbeat.calendars.replace_calendar", replace_late)
    calendar("set", "holidays", "2097-01-02=mine")
    assert Calendar.load("holidays", app).days == {**theirs, "2097-01-02": "mine"}


def test_calendar_in_use_is_deleted_by_force_only(calendar: Ask, app: Celery, holidays: Calendar) -> None:
    calendar("delete", "free", "--dry-run")
    assert Calendar.names(app) == ["free", "holidays"]
    calendar("delete", "free", "--yes")
    calendar("delete", "holidays", "--yes", "--force")
    assert Calendar.names(app) == []


def test_calendar_used_since_the_question_is_not_deleted(
    app: Celery, holidays: Calendar, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say_yes_after_saving(_question: str, **_options: Any) -> bool:
        Entry("late", "echo", 60, exclude="free", app=app).save()
        return True

    monkeypatch.setattr(session, "is_interactive", lambda: True)
    monkeypatch.setattr(session.click, "confirm", say_yes_after_saving)
    done = call(app, "calendar", "delete", "free")
    assert (done.exit_code, "is named by 1 entry, late" in done.stderr) == (64, True), done.output
    assert Calendar.names(app) == ["free", "holidays"]


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
    "days.yaml": "2098-01-01: New Year\n2098-02-01/2098-02-03: ''\n",
    "fields.json": '{"about": "ours", "days": {"2098-01-01": "New Year", "2098-02-01/2098-02-03": ""}}',
    "entries.yaml": "entries: {}\ncalendars:\n"
    "  school: {days: {2098-01-01: New Year, 2098-02-01/2098-02-03: ''}}\n",
}


@pytest.mark.parametrize("name", FILES)
def test_calendar_import_takes_every_format(calendar: Ask, app: Celery, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(FILES[name])
    options = ["--until", "2099-01-01"] if name == "a.ics" else []
    calendar("import", "school", str(tmp_path / name), *options, "--dry-run")
    assert Calendar.names(app) == []
    calendar("import", "school", str(tmp_path / name), *options)
    days = Calendar.load("school", app).days
    expected = ["2098-01-01"] if name == "a.ics" else ["2098-01-01", "2098-02-01/2098-02-03"]
    assert sorted(days) == expected
    assert days["2098-01-01"] == "New Year"


def test_calendar_import_replaces_or_adds_on_demand(
    calendar: Ask, app: Celery, tmp_path: Path, holidays: Calendar
) -> None:
    path = tmp_path / "days.txt"
    path.write_text("2098-01-01 New Year\n")
    words = ("import", "holidays", str(path))
    for more, hint in (((), "--replace"), (("--replace",), "give --yes")):
        refused = call(app, "calendar", *words, *more)
        assert (refused.exit_code, hint in refused.stderr) == (64, True)
    calendar(*words, "--add")
    added = Calendar.load("holidays", app)
    assert (added.days, added.about) == ({**holidays.days, "2098-01-01": "New Year"}, "public")
    calendar(*words, "--replace", "--yes")
    assert Calendar.load("holidays", app).days == {"2098-01-01": "New Year"}
    calendar(*words, "--replace")  # no day is removed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nothing in it", "line 1: 'nothing in it' is not a date"),
        ("2098-01-01 New Year\n# ours\n2098-13-01: x\n", "line 3: '2098-13-01: x' is not a date"),
        ("BEGIN:VCALENDAR\nno\n", "no iCalendar file that can be used"),
        ("", "holds nothing, and no days"),
    ],
)
def test_file_that_is_not_a_calendar_ends_with_64(app: Celery, tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "file").write_text(text)
    done = call(app, "calendar", "import", "school", str(tmp_path / "file"))
    assert (done.exit_code, words in done.stderr) == (64, True), done.output
    assert Calendar.names(app) == []


def test_calendars_without_the_right_to_scan_are_those_of_entries(
    make_app: MakeApp, client: redis.Redis, server: Server, holidays: Calendar
) -> None:
    client.acl_setuser("hand", enabled=True, passwords=["+secret"], keys=["*"], commands=["+@all", "-scan"])
    try:
        app = make_app(redbeat_redis_url=f"redis://hand:secret@127.0.0.1:{server.port}/1")
        done = call(app, "calendar", "list", "--json")
        assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["holidays"]
        assert "may not look at every key (SCAN)" in done.stderr
        refused = call(app, "purge")
        assert (refused.exit_code, "Users with limited rights" in refused.stderr) == (77, True)
        assert call(app, "calendar", "set", "free", "2098-01-01").exit_code == 0
        text = "{calendars: {own: {days: [2098-01-01]}}, entries: {}}"
        apply(app, text)
        apply(app, "entries: {}", prune=True)
    finally:
        client.acl_deluser("hand")
    assert Calendar.names(holidays.app) == ["free", "holidays"]
