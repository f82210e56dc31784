"""The tables of django-celery-beat, as its migrations make them, become a file of entries."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from redbeat.config.masking import sanitize_url
from redbeat.errors import ConfigurationError, FileError
from redbeat.manifest.django_celery_beat import declare_rows, read_django_celery_beat
from redbeat.manifest.plan import entry_of

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
def test_a_task_becomes_an_entry(
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
def test_a_bad_row_is_named(database: Database, row: dict[str, Any], reason: str) -> None:
    url = database({"name": "one", "task": "echo", **row})
    with pytest.raises(FileError, match="the task 'one': ") as caught:
        read_django_celery_beat(url)
    assert reason in str(caught.value)


def test_what_is_no_such_database_is_told_in_a_sentence(tmp_path: Path) -> None:
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


def test_other_databases_need_sqlalchemy_and_no_password_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "sqlalchemy", None)
    with pytest.raises(ConfigurationError, match="pip install sqlalchemy") as caught:
        read_django_celery_beat("postgresql://django:secret@db/app")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://me:hunter2@host:hunter2/db", "postgresql://me:hunter2@[::1/db"]
)
def test_a_url_that_sqlalchemy_can_t_take_apart_is_told_without_its_password(url: str) -> None:
    pytest.importorskip("sqlalchemy")
    with pytest.raises(ConfigurationError, match="is no database URL") as caught:
        read_django_celery_beat(url)
    assert "me:hunter2" not in str(caught.value)


@pytest.mark.parametrize("given", ["passwd=hunter2", "pwd=hunter2", "odbc_connect=UID%3Dme%3BPWD%3Dhunter2"])
def test_passwords_that_drivers_take_from_the_query_are_masked(given: str) -> None:
    url = f"mssql+pyodbc://host/db?charset=utf8&{given}&timeout=5"
    name = given.partition("=")[0]
    assert sanitize_url(url) == f"mssql+pyodbc://host/db?charset=utf8&{name}=**&timeout=5"


def test_arguments_that_are_too_deep_are_told_with_their_task() -> None:
    row = {"id": 1, "name": "deep", "task": "echo", "interval_id": 1, "args": "[" * 100_000, "enabled": 1}
    rows = {"periodictask": [row], "intervalschedule": [{"id": 1, "every": 5, "period": "minutes"}]}
    with pytest.raises(FileError, match="the task 'deep': maximum recursion depth"):
        declare_rows(rows)
