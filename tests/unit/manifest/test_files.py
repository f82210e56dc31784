"""Files of entries, and tables of django-celery-beat: what is read, and what is refused."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from hypothesis import given, settings
from hypothesis import strategies as st

from redbeat.errors import ConfigurationError, FileError
from redbeat.manifest.django_celery_beat import read_django_celery_beat
from redbeat.manifest.format import Declared, read_file, write_file
from redbeat.manifest.plan import entry_of

TEXT = """\
owner: billing
x-hourly: &hourly
  task: billing.send
  schedule: {every: 1h}
entries:
  invoices:
    task: billing.send
    schedule: {cron: "0 9 LW * *"}
    args: [1, two]
    timezone: Europe/Berlin
    start_time: 2026-01-01
  reminders:
    <<: *hourly
    enabled: false
calendars:
  holidays:
    about: no work
    days: {2026-12-25: Christmas}
"""


def test_file_is_read_with_lines_anchors_and_calendars() -> None:
    found = read_file(TEXT)
    assert found.owner == "billing"
    invoices = found.entries["invoices"]
    assert (invoices["schedule"], invoices["args"]) == ({"cron": "0 9 LW * *"}, [1, "two"])
    assert invoices["start_time"] == "2026-01-01"
    assert found.entries["reminders"]["schedule"] == {"every": "1h"}
    assert found.calendars == {"holidays": {"about": "no work", "days": {"2026-12-25": "Christmas"}}}
    assert found.lines[("entries", "invoices", "schedule")] == 8


ENTRY = "entries:\n  report:\n    task: a\n    schedule: {every: 30s}\n"


FAULTS = {
    "": "file.yaml: must begin with 'entries:', and holds nothing.",
    "a: [": "no valid YAML: ",
    "entries: !!python/object/apply:os.system ['true']": "could not determine a constructor",
    '{"entries": {]': "file.yaml, line 1: no valid YAML: ",
    '{"entries": {"a": {}, "a": {}}}': "file.yaml, line 1: no valid YAML: a appears twice.",
    "entrees: {}": "line 1: entrees: there is no such section. Did you mean entries?",
    "entries:\n  7: {}": "7 must be text; put it into quotes.",
    "entries:\n  report:\n    task: a": "line 2: report: schedule: is missing.",
    f"{ENTRY}    tiemzone: UTC": "line 5: report: tiemzone: there is no field 'tiemzone'. Did you mean",
    f"{ENTRY}    max_runs: 0": "line 5: report: max_runs: must be a whole number from 1, not 0.",
    f"{ENTRY}    task: b": "line 5: no valid YAML: task appears twice.",
    f"{ENTRY}  :schedule: {{task: a, schedule: 60}}": "that key is RedBeat's own",
    "entries:\n  report: {task: a, schedule: {evry: 30s}}": "must have just one of {cron: ...}, {every: ",
    "entries:\n  report: {task: a, schedule: {cron: 61 * * * *}}": "line 2: report: schedule: ",
    "entries:\n  a: {task: a, schedule: 5, kwargs: {x: [{b: 1, b: 2}]}}": "line 2: no valid YAML: b appears",
    "entries:\n  report: {task: a, schedule: 60, history: [1]}": "history: must be a list of texts",
    "entries:\n  report: {task: a, schedule: {every: 3, relativ: true}}": "no 'relativ' beside 'every'.",
    "calendars: {holidays: {days: 7}}": "holidays: days: must be a list of days",
}


def read_all(text: str, app: Celery) -> None:
    found = read_file(text, "file.yaml")
    for name in found.entries:
        entry_of(found, name, app)


@pytest.mark.parametrize("text", FAULTS)
def test_fault_in_a_file_names_entry_field_and_line(app: Celery, text: str) -> None:
    with pytest.raises(FileError, match=re.escape(FAULTS[text])) as caught:
        read_all(text, app)
    assert str(caught.value).startswith("file.yaml")
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


NAMES = st.text(st.characters(codec="utf-8"), min_size=1)


@settings(max_examples=40)
@given(
    st.dictionaries(
        NAMES,
        st.fixed_dictionaries(
            {"task": st.text(min_size=1), "schedule": st.just({"every": "30s"})},
            optional={"args": st.lists(JSON, max_size=3), "kwargs": st.dictionaries(st.text(), JSON)},
        ),
        max_size=3,
    ),
    st.booleans(),
)
def test_written_file_reads_back_the_same(entries: dict[str, Any], is_json: bool) -> None:
    declared = Declared("-", "billing", entries)
    text = write_file(declared, is_json=is_json)
    text.encode()
    assert read_file(text) == declared


def bomb(link: str) -> str:
    """Nine times nine values, nine times over, behind aliases."""
    lines = ["x-0: &a0 {k: [1, 2, 3, 4, 5, 6, 7, 8, 9]}"]
    lines += [f"x-{level}: &a{level} {link % ', '.join([f'*a{level - 1}'] * 9)}" for level in range(1, 10)]
    return "\n".join([*lines, "entries: {a: {task: echo, schedule: {every: 1h}, kwargs: *a9}}"])


def of(fields: str) -> str:
    return f"entries:\n  a: {{task: echo, schedule: {{every: 1h}}, {fields}}}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param(bomb("{k: [%s]}"), "line 7: its aliases (*) expand to too many values.", id="lists"),
        pytest.param(bomb("{<<: [%s]}"), "line 7: its aliases (*) expand to too many", id="merge keys"),
        pytest.param(of("args: &x [*x]"), "line 2: *x contains itself.", id="circle"),
        pytest.param(of(f"args: {'[' * 200_000}"), "line 2: is nested too deeply.", id="depth"),
        pytest.param(f'{{"x": {"1" * 5000}}}', "a number has more than 4,300 digits", id="digits"),
        pytest.param(of("kwargs: {on: 1}"), "a: kwargs: True: True must be text; put it", id="key on"),
        pytest.param("entries: {a: {stored: }}", "a: stored: must be a mapping, as export", id="no state"),
    ],
)
def test_unreadable_file_raises_file_error(text: str, reason: str) -> None:
    with pytest.raises(FileError) as caught:
        read_file(text, "file")
    assert reason in str(caught.value)


def test_aliases_may_expand_to_many_entries() -> None:
    text = "x-a: &a [1, 2, 3]\nx-b: &b {task: echo, schedule: 5, args: *a}\nentries:\n"
    found = read_file(text + "".join(f"  e{number}: {{<<: *b, enabled: no}}\n" for number in range(2500)))
    assert found.entries["e2499"] == {"task": "echo", "schedule": 5, "args": [1, 2, 3], "enabled": False}


@pytest.mark.parametrize("text", ["-1:30", "12:30:45.5"])
def test_time_of_day_is_text_not_a_base_60_number(text: str) -> None:
    entries = read_file(of(f"args: [{text}, 10, -1.5, 0x1f, 1_000, 1.0e+3, .5, .inf]")).entries
    assert entries["a"]["args"] == [text, 10, -1.5, 31, 1000, 1000.0, 0.5, float("inf")]
    declared = Declared(entries=entries)
    assert read_file(write_file(declared)).entries == entries


#: of version 2.9, without what SQLite checks or looks at
TABLES = """
CREATE TABLE django_celery_beat_intervalschedule (id integer PRIMARY KEY, every integer, period varchar(24));
CREATE TABLE django_celery_beat_solarschedule (id integer PRIMARY KEY, event varchar, latitude, longitude);
CREATE TABLE django_celery_beat_clockedschedule (id integer PRIMARY KEY, clocked_time datetime);
CREATE TABLE django_celery_beat_crontabschedule (id integer PRIMARY KEY, minute varchar(240),
    hour varchar(96), day_of_week varchar(64), day_of_month varchar, month_of_year varchar, timezone varchar);
CREATE TABLE django_celery_beat_periodictask (id integer PRIMARY KEY, name varchar(200), task varchar(200),
    args text DEFAULT '[]', kwargs text DEFAULT '{}', queue varchar(200), exchange varchar(200),
    routing_key varchar(200), expires datetime, enabled bool DEFAULT 1, last_run_at datetime,
    total_run_count integer DEFAULT 0, date_changed datetime, description text DEFAULT '', crontab_id integer,
    interval_id integer, solar_id integer, one_off bool DEFAULT 0, start_time datetime, priority integer,
    headers text DEFAULT '{}', clocked_id integer, expire_seconds integer);
INSERT INTO django_celery_beat_intervalschedule
    VALUES (1, 10, 'seconds'), (2, 500000, 'microseconds'), (3, 1, 'eons');
INSERT INTO django_celery_beat_solarschedule VALUES (1, 'sunrise', 52.5, 13.4);
INSERT INTO django_celery_beat_clockedschedule VALUES (1, '2090-01-01 00:00:00');
INSERT INTO django_celery_beat_crontabschedule
    VALUES (1, '30', '4, 16', 'mon-fri', '*', '*', 'Europe/Berlin');
"""


Database = Callable[..., str]


@pytest.fixture
def database(tmp_path: Path) -> Database:
    """A database whose table of tasks has these rows; its URL."""

    def make(*rows: dict[str, Any]) -> str:
        path = tmp_path / "db.sqlite3"
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(TABLES)
            for row in rows:
                marks = ", ".join("?" * len(row))
                names = ", ".join(row)
                insert = f"INSERT INTO django_celery_beat_periodictask ({names}) VALUES ({marks})"
                connection.execute(insert, [*row.values()])
            connection.commit()
        return f"sqlite:///{path}"

    return make


ROWS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {"interval_id": 1, "args": '[1, "x"]', "kwargs": '{"a": null}', "queue": "q", "priority": 3}
        | {"headers": '{"h": 1}', "expire_seconds": 30},
        {"schedule": {"every": 10}, "args": [1, "x"], "kwargs": {"a": None}, "expires_after": 30}
        | {"options": {"queue": "q", "priority": 3, "headers": {"h": 1}}},
    ),
    (
        {"interval_id": 2, "enabled": 0, "exchange": "e", "routing_key": "r", "queue": ""},
        {"schedule": {"every": 0.5}, "enabled": False, "options": {"exchange": "e", "routing_key": "r"}},
    ),
    (
        {"crontab_id": 1, "start_time": "2025-01-01 00:00:00", "expires": "2095-01-01 00:00:00"}
        | {"last_run_at": "2026-01-05 03:30:00.5", "total_run_count": 42},
        {"schedule": {"cron": "30 4,16 * * mon-fri"}, "timezone": "Europe/Berlin"}
        | {"start_time": "2025-01-01T00:00:00+00:00", "end_time": "2095-01-01T00:00:00+00:00"}
        | {"last_run_at": "2026-01-05T03:30:00.500000+00:00", "total_run_count": 42},
    ),
    ({"clocked_id": 1, "one_off": 1}, {"schedule": {"at": "2090-01-01T00:00:00+00:00"}, "one_off": True}),
    ({"solar_id": 1}, {"schedule": {"solar": "sunrise", "lat": 52.5, "lon": 13.4}}),
    ({"interval_id": 1, "one_off": 1}, {"schedule": {"every": 10}, "one_off": True}),
]


@pytest.mark.parametrize(("row", "expected"), ROWS, ids=str)
def test_periodic_task_becomes_an_entry(
    app: Celery, database: Database, row: dict[str, Any], expected: dict[str, Any]
) -> None:
    row = {name: f"{value}00000" if str(value).endswith(".5") else value for name, value in row.items()}
    found = read_django_celery_beat(database({"name": "one", "task": "echo", **row}))
    assert found.entries == {"one": {"task": "echo", **expected}}
    entry = entry_of(found, "one", app)
    assert entry.total_run_count == expected.get("total_run_count", 0)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"interval_id": 9}, "its interval schedule 9 is missing."),
        ({"interval_id": 3}, "unknown period, 'eons'"),
        ({}, "it has no schedule."),
        ({"interval_id": 1, "args": "{}"}, "its args are {}."),
        ({"interval_id": 1, "kwargs": "{oops"}, "Expecting property name"),
    ],
)
def test_invalid_periodic_task_is_named(database: Database, row: dict[str, Any], reason: str) -> None:
    url = database({"name": "one", "task": "echo", **row})
    with pytest.raises(FileError, match="the task 'one': ") as caught:
        read_django_celery_beat(url)
    assert reason in str(caught.value)


def test_url_without_such_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.sqlite3").touch()
    (tmp_path / "text.sqlite3").write_text("no database, but long enough to have a header of its own")
    for url, error, reason in (
        ("db.sqlite3", ConfigurationError, "is no database URL"),
        (f"sqlite:///{tmp_path}/missing", FileError, "there is no such file"),
        (f"sqlite:///{tmp_path}/empty.sqlite3", FileError, "no such table"),
        (f"sqlite:///{tmp_path}/text.sqlite3", FileError, "not a database"),
    ):
        with pytest.raises(error, match=reason):
            read_django_celery_beat(url)


@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2@host:hunter2/db", "postgresql://me:hunter2@[::1/db"]
)
def test_invalid_database_url_is_shown_without_its_password(url: str) -> None:
    pytest.importorskip("sqlalchemy")
    with pytest.raises(ConfigurationError, match="is no database URL") as caught:
        read_django_celery_beat(url)
    assert "me:hunter2" not in str(caught.value)
