"""The entries of ``beat_schedule``: whether beat can store them. Nothing is imported or connected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.validation import find_entry_problem, find_name_problem
from redbeat.errors import EntryError, RedBeatError


@dataclass(frozen=True)
class StaticEntry:
    """An entry of ``beat_schedule``.

    Attributes:
        entry: None: it is invalid, and ``problem`` says why.
    """

    name: str
    entry: RedBeatSchedulerEntry | None
    problem: str


def read_static_entries(app: Any) -> list[StaticEntry]:
    """Return the entries of the ``beat_schedule`` of ``app``."""
    return [_read(app, name, fields) for name, fields in dict(app.conf.beat_schedule).items()]


def _read(app: Any, name: Any, fields: Any) -> StaticEntry:
    problem = find_name_problem(name, ensure_conf(app).reserved_names)
    try:
        if not isinstance(fields, Mapping) and not hasattr(fields, "schedule"):
            raise EntryError(f"{name}: must be a dict with task and schedule, got {fields!r}.", str(name))
        given = dict(fields) if isinstance(fields, Mapping) else dict(fields.__dict__)
        entry = RedBeatSchedulerEntry(**{**given, "name": name, "app": app})
        problem = problem or find_entry_problem(entry)
    except Exception as exc:  # noqa: BLE001 - the per-entry boundary
        said = str(exc) if isinstance(exc, RedBeatError) else f"{type(exc).__name__}: {exc}"
        problem = problem or said.removeprefix(f"{name}: ")
    return StaticEntry(str(name), None if problem else entry, problem or "")
