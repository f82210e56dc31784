"""The periodic tasks in the database of django-celery-beat, read as a file of entries.

SQLite is read with Python's own library, all other databases with SQLAlchemy. Invariant: nothing is written
there.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from redbeat.config.masking import sanitize_url
from redbeat.errors import ConfigurationError, FileError
from redbeat.manifest.format import Declared
from redbeat.schedules.crontab import CRON_FIELDS

TABLES = ("periodictask", "intervalschedule", "crontabschedule", "clockedschedule", "solarschedule")
QUERIES = {table: f"SELECT * FROM django_celery_beat_{table}" for table in TABLES}  # noqa: S608 - constants

_SECONDS = {"days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1, "microseconds": 1e-6}

#: name of a table, without its prefix, to its rows
Rows = Mapping[str, list[dict[str, Any]]]


def read_django_celery_beat(url: str) -> Declared:
    """Return the periodic tasks in the database at ``url``.

    Arguments:
        url: ``sqlite:///relative/path``, ``sqlite:////absolute/path``, or one that SQLAlchemy knows.

    Raises:
        ConfigurationError: SQLAlchemy or a driver is needed, and isn't installed; or ``url`` isn't a URL.
        FileError: the database can't be read, or a row in it can't be used.
    """
    scheme, shown = url.partition("://")[0], sanitize_url(url)
    if "://" not in url:
        raise ConfigurationError(f"{shown!r} is no database URL; write it as sqlite:///db.sqlite3.")
    read = _read_sqlite if scheme == "sqlite" else _read_by_sqlalchemy
    return _declare_rows(read(url, shown), shown)


def _read_sqlite(url: str, shown: str) -> Rows:
    parts = urlsplit(url)
    path = Path(unquote(parts.path[1:]))
    if parts.netloc or not path.is_file():
        raise FileError(f"{shown}: there is no such file; an absolute path has four slashes.", shown)
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return {
                table: [dict(row) for row in connection.execute(query)] for table, query in QUERIES.items()
            }
    except sqlite3.Error as exc:
        raise FileError(f"{shown}: can't be read: {exc}.", shown) from exc


def _read_by_sqlalchemy(url: str, shown: str) -> Rows:
    try:
        import sqlalchemy
    except ImportError as exc:
        raise ConfigurationError(
            f"{shown}: databases other than SQLite are read with SQLAlchemy, which isn't installed: "
            "pip install sqlalchemy, and the driver of the database."
        ) from exc
    try:
        with sqlalchemy.create_engine(url).connect() as connection:
            return {
                table: [dict(row) for row in connection.execute(sqlalchemy.text(query)).mappings()]
                for table, query in QUERIES.items()
            }
    except ImportError as exc:
        raise ConfigurationError(f"{shown}: the driver of the database isn't installed: {exc}.") from exc
    except sqlalchemy.exc.SQLAlchemyError as exc:
        words = " ".join(str(getattr(exc, "orig", None) or exc).split())
        raise FileError(f"{shown}: can't be read: {words}.", shown) from exc
    except ValueError as exc:  # a bad port, say; its text isn't shown, as it may quote a part of a password
        raise ConfigurationError(f"{shown!r} is no database URL; write it as sqlite:///db.sqlite3.") from exc


def _declare_rows(rows: Rows, origin: str) -> Declared:
    """Return the rows of the five tables as a file of entries.

    Raises:
        FileError: a row can't be used; the message names its task.
    """
    schedules = {table: {row["id"]: row for row in rows[table]} for table in TABLES[1:]}
    entries: dict[str, dict[str, Any]] = {}
    for row in rows["periodictask"]:
        try:
            entries[row["name"]] = _fields_of(row, schedules)
        except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as exc:
            reason = f"{exc} is missing." if isinstance(exc, KeyError) else str(exc)
            raise FileError(f"{origin}: the task {row.get('name')!r}: {reason}", origin) from exc
    return Declared(origin, None, entries)


def _fields_of(row: Mapping[str, Any], schedules: Mapping[str, Any]) -> dict[str, Any]:
    schedule, zone, is_clocked = _schedule_of(row, schedules)
    options = {name: row.get(name) for name in ("queue", "exchange", "routing_key", "priority")}
    options["headers"] = _json(row, "headers", {}) or None
    fields = {
        "task": row["task"],
        "schedule": schedule,
        "timezone": zone,
        "args": _json(row, "args", []) or None,
        "kwargs": _json(row, "kwargs", {}) or None,
        "options": {name: value for name, value in options.items() if value not in (None, "")} or None,
        "enabled": None if row["enabled"] else False,
        "one_off": True if row.get("one_off") or is_clocked else None,
        "start_time": _moment(row.get("start_time")),
        "end_time": _moment(row.get("expires")),
        "last_run_at": _moment(row.get("last_run_at")),
        "expires_after": row.get("expire_seconds") or None,
        "total_run_count": row.get("total_run_count") or None,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _schedule_of(row: Mapping[str, Any], schedules: Mapping[str, Any]) -> tuple[Any, str | None, bool]:
    """Return the schedule, its time zone, and whether it is a single time."""

    def found(kind: str) -> Mapping[str, Any] | None:
        key = row.get(f"{kind}_id")
        if key is None:
            return None
        one: Mapping[str, Any] | None = schedules[f"{kind}schedule"].get(key)
        if one is None:
            raise ValueError(f"its {kind} schedule {key} is missing.")
        return one

    if interval := found("interval"):
        if interval["period"] not in _SECONDS:
            raise ValueError(f"its interval has an unknown period, {interval['period']!r}.")
        return {"every": round(interval["every"] * _SECONDS[interval["period"]], 6)}, None, False
    if cron := found("crontab"):
        # django-celery-beat allows spaces after commas
        parts = ["".join(str(cron[field]).split()) for field in CRON_FIELDS]
        return {"cron": " ".join(parts)}, str(cron.get("timezone") or "UTC"), False
    if clocked := found("clocked"):
        return {"at": _moment(clocked["clocked_time"])}, None, True
    if solar := found("solar"):
        lat, lon = float(solar["latitude"]), float(solar["longitude"])
        return {"solar": solar["event"], "lat": lat, "lon": lon}, None, False
    raise ValueError("it has no schedule.")


def _json(row: Mapping[str, Any], name: str, default: Any) -> Any:
    value = row.get(name)
    if isinstance(value, str):
        value = json.loads(value or "null")
    if value is None:
        return default
    if not isinstance(value, type(default)):
        raise ValueError(f"its {name} are {value!r}.")
    return value


def _moment(value: Any) -> str | None:
    """Return a time as ISO 8601; a naive one is UTC, as in databases without time zones."""
    if value is None or value == "":
        return None
    moment = datetime.fromisoformat(value.replace("Z", "+00:00")) if isinstance(value, str) else value
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return str(moment.isoformat())
