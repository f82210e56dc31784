"""Entries as JSON documents, one shape for all surfaces: what is known of one, what stands in Redis, and
what is wrong with its values.

An entry's document is its ``to_dict``, and ``list`` and ``show`` add what they know besides.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.decoder import DEFINITION_FIELDS
from redbeat.entries.due import MAX_SCORE, is_pause_over
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.forms import placed, without_secrets
from redbeat.entries.runs import Last, read_last, read_running
from redbeat.entries.upcoming import next_runs as runs_of
from redbeat.entries.validation import find_entry_problem, find_name_problem
from redbeat.entries.wording import one_line, when_in
from redbeat.errors import EntryError, StoreCorrupt
from redbeat.history import PastRun
from redbeat.log.text import is_utf8
from redbeat.policy.policy import FIELDS, LENGTHS, PAUSE_FIELDS, given_of
from redbeat.runs.figures import Figures
from redbeat.runs.run import Run
from redbeat.schedules.durations import length_in_words
from redbeat.schedules.timezones import moment_of
from redbeat.store.records import Stored

NEXT_RUNS, LAST_RUNS = 5, 10
#: stand for fields that are wrong or missing, so that the others are looked at
_STAND_INS = {"name": "entry", "task": "task", "schedule": 3600}


def iso(moment: datetime | None) -> str | None:
    """Return ``moment`` in ISO 8601; None for None."""
    return None if moment is None else moment.isoformat()


def outcome_of(last: Last) -> dict[str, Any]:
    """Return what ``list`` and ``show`` add to an entry's document about its last runs."""
    return {"last_outcome": last.outcome, "failures_in_a_row": last.failures}


def document_of(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the document of an entry that was listed: its ``to_dict``, without secrets."""
    try:
        return without_secrets(entry.to_dict())
    except EntryError as exc:  # a schedule of a class that isn't registered here
        return {
            "name": entry.name,
            "task": entry.task,
            "schedule": None,
            "enabled": entry.enabled,
            "state": entry.state,
            "next_due_at": iso(entry.next_due_at),
            "description": entry.description,
            "error": entry.error or str(exc),
        }


# -- all that is known of one


@dataclass(frozen=True)
class Overview:
    """What is known of an entry. What can't be read or computed is missing with a reason.

    Attributes:
        entry: as it is listed; it may be one that can't be used.
        next_runs: those that its schedule has, in the zone that was asked for.
        problem: why they can't be computed; '': they can.
        running: its runs in progress.
        history: its last runs, the newest first.
        last: the outcome of the last one.
        figures: of its past runs.
        spoilt: why history and figures can't be read; '': they can.
    """

    entry: RedBeatSchedulerEntry
    next_runs: Sequence[datetime]
    problem: str
    running: Sequence[Run]
    history: Sequence[PastRun]
    last: Last
    figures: Figures
    spoilt: str

    @property
    def past(self) -> list[PastRun]:
        """Its last runs without those in progress."""
        in_progress = {run.task_id for run in self.running}
        return [run for run in self.history if run.task_id is None or run.task_id not in in_progress]

    @property
    def looked_at(self) -> datetime | None:
        """When beat looks at it next, whether it can be used or not; None: never."""
        score = None if self.entry.stored is None else self.entry.stored.score
        return moment_of(score) if score and 0 < score < MAX_SCORE else None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain JSON."""
        return {
            **document_of(self.entry),
            "next_runs": [iso(due) for due in self.next_runs],
            **outcome_of(self.last),
            "running": [run.to_dict() for run in self.running],
            "figures": self.figures.to_dict(),
            "history": [run.to_dict() for run in self.history],
        }


def overview_of(
    entry: RedBeatSchedulerEntry,
    zone: tzinfo,
    *,
    next_runs: int = NEXT_RUNS,
    last_runs: int = LAST_RUNS,
    after: datetime | None = None,
) -> Overview:
    """Return what is known of ``entry``, which was listed; its next runs are those later than ``after``."""
    history, figures, last, spoilt = list[PastRun](), Figures(), Last(), ""
    try:
        history, figures = [*entry.history(last_runs)], entry.figures()
        [last] = read_last(entry.app, [entry.key])
    except StoreCorrupt as exc:
        spoilt = one_line(exc)
    upcoming, problem = list[datetime](), ""
    try:
        if entry.schedule is not None:
            upcoming = runs_of(entry, next_runs, after, zone, entry.seen_at)
    except (EntryError, ValueError, OverflowError) as exc:
        problem = str(exc)
    return Overview(entry, upcoming, problem, read_running(entry), history, last, figures, spoilt)


def policy_rows(entry: RedBeatSchedulerEntry, zone: tzinfo) -> list[tuple[str, str]]:
    """Return the fields of the policy that aren't defaults."""
    rows = []
    left_out = PAUSE_FIELDS if is_pause_over(entry, entry.seen_at) else ()
    for field, value in without_secrets(given_of(entry.policy)).items():
        if field in left_out:
            continue
        if isinstance(value, bool):
            text = "yes" if value else "no"
        elif field in LENGTHS:
            text = length_in_words(value)
        else:
            text = when_in(value, zone) if isinstance(value, datetime) else one_line(value)
        rows.append((field, text))
    return rows


# -- what stands in Redis of one


def raw_fields(stored: Stored | None) -> dict[str, Any]:
    """Return the fields of an entry in its definition and its policy, as far as these are JSON objects.

    Nothing is added and nothing is checked.
    """
    found: dict[str, Any] = {}
    if stored is not None:
        found = {**(read_object(stored.definition) or {}), **(read_object(stored.policy) or {})}
    return {name: found[name] for name in (*DEFINITION_FIELDS, *FIELDS) if found.get(name) is not None}


def read_object(text: str | None) -> Mapping[str, Any] | None:
    """Return the JSON object that ``text`` is; None: it isn't one."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# -- what is wrong with the values of one


def find_problems(values: Mapping[str, Any], app: Any) -> dict[str, str]:
    """Return all that is wrong with ``values``, as ``from_dict`` takes them: a sentence for each field.

    ``from_dict`` names what it finds first; a form shows everything at once. Under '' is what belongs to no
    field.
    """
    problems: dict[str, str] = {}
    name = values.get("name")
    words = find_name_problem(name, ensure_conf(app).reserved_names)
    if words or not is_utf8(str(name)):
        problems["name"] = words or "It must be UTF-8."
    for field in ("task", "schedule"):
        if values.get(field) in (None, "", {}):
            problems[field] = "It is missing."
    left = {field: value for field, value in values.items() if field not in (*problems, "name")}
    for _ in range(len(values) + 1):
        try:
            words = find_entry_problem(RedBeatSchedulerEntry.from_dict({**_STAND_INS, **left}, app))
        except EntryError as exc:
            words = str(exc)
        if not words:
            break
        field, sentence = placed(words, str(_STAND_INS["name"]))
        field = field if field in left else ""
        problems.setdefault(field, sentence)
        if left.pop(field, None) is None:
            break
    return problems
