"""Drafts: entries as a user types them, checked before they are stored.

Invariant: what is hidden stays hidden in everything that is shown, and a draft changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from redbeat.diagnostics.hints import hint_at_ping_host, hint_at_task
from redbeat.entries.describe import description_of, zones_in_words
from redbeat.entries.documents import find_problems
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.forms import IGNORED_FIELDS, placed
from redbeat.entries.marks import Mark, marks_of
from redbeat.entries.notation import schedule_in_short
from redbeat.entries.search import read_listed
from redbeat.entries.upcoming import next_runs
from redbeat.errors import AccessDenied, EntryChanged, EntryError, EntryNotFound, RedBeatError
from redbeat.manifest.plan import differing
from redbeat.operations.editing import draft, fields_of, whole
from redbeat.operations.hiding import hide, hiding_of, without_hidden
from redbeat.web.pages.entry_form import document_of, editable, read_json
from redbeat.web.visit import Visit

#: how many next runs a preview has
NEXT_RUNS = 10

#: a line of a diff: '+' or '-', and text
Line = tuple[str, str]


@dataclass
class Draft:
    """An entry as a user wants it to be.

    Attributes:
        name: of the entry that is changed; '': it is a new one.
        base: its editable document as they have seen it, what is hidden in it hidden; {} for a new one.
        revision: of that document.
        given: the editable document that they want.
        problems: what is wrong with it, by field; under '' what belongs to no field.
        way: 'form' or 'json'.
        text: what they have typed as JSON.
        before: the entry as it is stored by now; None: it is missing.
    """

    name: str
    base: Mapping[str, Any]
    revision: str
    given: dict[str, Any] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    way: str = "form"
    text: str = ""
    before: RedBeatSchedulerEntry | None = None

    @property
    def is_new(self) -> bool:
        """Whether the entry is added."""
        return not self.name

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that they have changed; None: they have emptied it."""
        return {name: after for name, (_, after) in differing(self.base, self.given).items()}

    @property
    def needs(self) -> list[str]:
        """The fields of a new entry that are still empty."""
        return [name for name in ("name", "task") if self.is_new and not self.given.get(name)]

    def forgive(self) -> None:
        """Let a new entry be without a name and a task so far: that is not a mistake while the user types."""
        for name in self.needs:
            self.problems.pop(name, None)


def shown_document(entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the editable document of a stored entry as it is shown."""
    return editable(hide(fields_of(entry), hiding_of(entry.app)))


def read_draft(visit: Visit) -> Draft:
    """Return the draft that a form was sent with, and note what is wrong with it.

    Raises:
        EntryError: the page's own fields in it have been changed.
        StoreUnavailable: Redis can't be asked whether it can be stored.
    """
    form = typed_in(visit)
    found = Draft(form.get("entry", ""), _base_of(form.get("base", "")), form.get("revision", ""))
    found.way = "json" if form.get("way") == "json" else "form"
    found.text = form.get("document", "")
    if not found.is_new:
        form = {**form, "name": found.name}
        with suppress(EntryNotFound):
            found.before = read_listed(visit.app, found.name)
    if found.way == "json":
        _read_json(found)
    else:
        found.given, found.problems = document_of(
            form, found.base, app_zone=visit.app.timezone, now=visit.now, user=visit.actor.user.name
        )
    if "" not in found.problems:
        check(visit, found)
    return found


def typed_in(visit: Visit) -> dict[str, str]:
    """Return the texts of a form's fields."""
    return {name: value for name, value in visit.form.items() if isinstance(value, str)}


def _base_of(text: str) -> dict[str, Any]:
    try:
        base = json.loads(text or "{}")  # with NaN, too, which other programs write
    except (ValueError, RecursionError):
        base = None
    if not isinstance(base, dict):
        raise EntryError("This page can't be sent as it is: load it again.", "")
    return base


def _read_json(found: Draft) -> None:
    try:
        given = dict(read_json(found.text, dict, "an object"))
    except ValueError as exc:
        found.problems[""] = str(exc)
        return
    if not found.is_new and given.setdefault("name", found.name) != found.name:
        found.problems["name"] = "An entry keeps its name: add another one, and delete this."
    # the document of an export has what runs have made of the entry, too: that stays as it is
    found.given = {
        name: value for name, value in given.items() if value is not None and name not in IGNORED_FIELDS
    }


def check(visit: Visit, found: Draft) -> None:
    """Note what is wrong with a draft, at each field."""
    try:
        complete = whole(visit.actor, found.given, found.before)
    except EntryError as exc:
        note_error(visit, found, exc)
        return
    hiding = hiding_of(visit.app)
    for name, words in find_problems(complete, visit.app).items():
        found.problems.setdefault(name, without_hidden(words, complete, hiding))


def note_error(visit: Visit, found: Draft, exc: EntryError | AccessDenied) -> None:
    """Note why a draft can't be stored, at the field that the error names; it may quote what is stored."""
    if found.is_new and isinstance(exc, EntryChanged):
        found.problems["name"] = "There is an entry of this name already."
        return
    (place, words), hiding = (
        placed(str(exc), str(found.given.get("name") or found.name)),
        hiding_of(visit.app),
    )
    if isinstance(exc, AccessDenied) and exc.field != place:
        place, words = exc.field or "", str(exc)
    for document in (found.given, {} if found.before is None else fields_of(found.before)):
        words = without_hidden(words, document, hiding)
    found.problems.setdefault(place, words)


def preview(visit: Visit, found: Draft) -> dict[str, Any] | None:
    """Return what a draft would make of an entry, for the page; None: something is wrong with it.

    It has when the entry runs, in words; the next runs with their marks, and why they can't be computed; the
    change; and hints.
    """
    if found.problems:
        return None
    needs = found.needs
    try:
        if needs:
            given = whole(visit.actor, {**found.given, **dict.fromkeys(needs, "-")}, None)
            made: RedBeatSchedulerEntry = RedBeatSchedulerEntry.from_dict(given, visit.app)
        else:
            made = draft(visit.actor, found.given, found.before)
        made.check_save(if_unchanged="name" not in needs)
    except (AccessDenied, EntryError) as exc:
        note_error(visit, found, exc)
    if found.problems:
        return None
    if made.stored is not None and found.changes:
        made.stored = replace(made.stored, error=None)  # as saving a change does
    if not made.has_last_run_at and made.stored is None:
        made.last_run_at = made.known_last_run_at = visit.now  # as the server has it when the entry is stored
    runs, marks, trouble = [], list[list[Mark]](), ""
    try:
        runs = next_runs(made, NEXT_RUNS, None, visit.zone, visit.now)
        marks = marks_of(made, runs, visit.zone, visit.now)
    except (EntryError, ValueError, OverflowError) as exc:  # its calendar is missing, it takes too long
        trouble = str(exc).removeprefix(f"{made.key}: ")
        marks = [[] for _ in runs]
    return {
        "description": description_of(made, visit.zone),
        "zones": zones_in_words(made, visit.zone),
        "runs": list(zip(runs, marks, strict=True)),
        "trouble": trouble,
        "diff": diff_lines(found.base, found.given, visit.app),
        "hints": hints_of(visit, found),
        "needs": needs,
    }


def hints_of(visit: Visit, found: Draft) -> list[str]:
    """Return what is worth knowing of a draft: it is valid, but may not be what was meant."""
    task, ping_url = map(found.changes.get, ("task", "ping_url"))
    hints = [hint_at_task(visit.app, str(task))] if task else []
    if ping_url:
        with suppress(ValueError, RedBeatError):  # it is masked
            hints.append(hint_at_ping_host(visit.app, str(ping_url)))
    return [hint for hint in hints if hint]


def diff_lines(before: Mapping[str, Any], after: Mapping[str, Any], app: Any) -> list[Line]:
    """Return what differs between two editable documents, field by field; what is hidden stays hidden."""
    hiding, tasks = hiding_of(app), (before.get("task"), after.get("task"))
    shown_before, shown_after = hide(before, hiding, *tasks), hide(after, hiding, *tasks)
    lines: list[Line] = []
    for name in differing(before, after):
        was, now = shown_before.get(name), shown_after.get(name)
        if was == now:
            lines.append(("~", f"{name}: what is hidden in it"))
            continue
        if was is not None:
            lines.append(("-", f"{name}: {_text(name, was)}"))
        if now is not None:
            lines.append(("+", f"{name}: {_text(name, now)}"))
    return lines


def _text(name: str, value: Any) -> str:
    if name == "schedule":
        return schedule_in_short(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
