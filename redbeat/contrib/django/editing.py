"""An entry that is added or changed in the admin: from what was typed to what is stored, or to what is wrong.

Invariant: what somebody has seen is what they change. If somebody else was faster nothing is stored, and both
changes are shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from redbeat.contrib.django.access import AdminVisit
from redbeat.contrib.django.forms import BASE, REVISION, DocumentForm, EntryForm, FieldsForm
from redbeat.contrib.django.summary import Summary, summary_of
from redbeat.diagnostics.hints import hint_at_beat_schedule
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import read_listed
from redbeat.entries.wording import one_line, relative
from redbeat.errors import AccessDenied, EntryChanged, EntryError, EntryNotFound
from redbeat.operations import editing
from redbeat.operations.editing import revision_of
from redbeat.web.pages.entry_drafts import (
    NAME_IS_TAKEN,
    Draft,
    diff_lines,
    draft_of_entry,
    hints_of,
    note_denied,
    note_error,
    read_draft,
    shown_document,
)
from redbeat.web.pages.entry_editing import NEW, json_text, last_change, told, zone_of
from redbeat.web.pages.entry_form import form_of

#: the value of ``as`` in an address that asks for an entry as JSON
JSON = "json"


@dataclass
class Conflict:
    """What somebody else has made of an entry meanwhile.

    Attributes:
        told: who, and when, a sentence.
        theirs: the lines of their change.
        mine: those of the change that wasn't stored.
    """

    told: str
    theirs: list[tuple[str, str]]
    mine: list[tuple[str, str]]


@dataclass
class Saved:
    """What has become of a form that was sent.

    Attributes:
        form: it, with what is wrong.
        entry: as it is stored now; None: it isn't.
        changed: the names of the fields that were changed.
        words: what is told; ``hints`` besides.
        conflict: None: nobody else was faster.
        status: of the page that shows it; ``summary`` what it says above the form, None: nothing.
    """

    form: EntryForm
    entry: RedBeatSchedulerEntry | None = None
    changed: list[str] = field(default_factory=list)
    words: str = ""
    hints: list[str] = field(default_factory=list)
    conflict: Conflict | None = None
    status: int = 200
    summary: Summary | None = None


def new_form(visit: AdminVisit, like: str = "") -> EntryForm:
    """Return the form of a new entry; ``like``: with the fields of another one."""
    given = dict(NEW)
    if like:
        given = {**shown_document(read_listed(RedBeatSchedulerEntry, visit.app, like)), "name": ""}
    return _form_of(visit, Draft("", {}, "", given))


def form_of_entry(visit: AdminVisit, entry: RedBeatSchedulerEntry, *, as_json: bool = False) -> EntryForm:
    """Return the form of a stored entry. One that can't be used is shown as JSON, and says what is wrong."""
    found = draft_of_entry(entry)
    if entry.problem or as_json:
        found.way = JSON
    return _form_of(visit, found)


def form_as_typed(visit: AdminVisit, posted: Any, name: str = "") -> EntryForm:
    """Return the form that was sent, with what was typed into it; Redis isn't asked."""
    if "document" in posted:
        return DocumentForm(posted, shown={})
    return FieldsForm(posted, shown=posted.dict(), is_new=not name, app=visit.app)


def save(visit: AdminVisit, posted: Any, name: str = "") -> Saved:
    """Store what was typed.

    Arguments:
        posted: the fields of the form.
        name: of the entry that is changed; '': it is a new one.

    Raises:
        AccessDenied: this user may not.
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    form = form_as_typed(visit, posted, name)
    typed = {**form.typed(), "entry": name, "way": JSON if form.is_json else "form"}
    if name and posted.keys().isdisjoint((BASE, REVISION)):  # of a program, which hasn't seen the page
        typed |= _seen_now(visit, name)
    if form.errors:
        return Saved(form)
    found = read_draft(visit, typed)
    result = Saved(form, changed=sorted(found.changes))
    if name and found.before is None:
        words = "It has been deleted meanwhile. To keep it, add it anew."
        result.conflict = Conflict(words, [], _lines(visit, found.base, found.given))
        return result
    if not found.problems:
        _store(visit, found, result)
    if found.problems:
        form.note_problems(found.problems)
        result.entry = None
    return result


def _seen_now(visit: AdminVisit, name: str) -> dict[str, str]:
    try:
        entry = read_listed(RedBeatSchedulerEntry, visit.app, name)
    except EntryNotFound:
        return {}
    return _hidden_fields(draft_of_entry(entry))


def _store(visit: AdminVisit, found: Draft, result: Saved) -> None:
    """Store a draft in which nothing was found wrong, and note what has become of it."""
    if not found.is_new and not found.changes:
        result.entry, result.words = found.before, "Nothing was changed."
        return
    try:
        if found.is_new:
            made = editing.add(visit.actor, found.given)
        else:
            made = editing.set_(visit.actor, found.name, found.changes, found.revision)
    except AccessDenied as exc:
        if not visit.may("edit"):
            raise
        note_denied(found, exc)
    except EntryChanged:
        if found.is_new:
            found.problems["name"] = NAME_IS_TAKEN
        else:
            _note_conflict(visit, found, result)
    except EntryError as exc:
        note_error(visit, found, exc)
    else:
        result.entry = made
        result.words = told(visit, made, "Added" if found.is_new else "Changed")
        result.hints = [*hints_of(visit, found), hint_at_beat_schedule(visit.app, [str(made.name)])]
        result.hints = [hint for hint in result.hints if hint]


def _note_conflict(visit: AdminVisit, found: Draft, result: Saved) -> None:
    """Prepare a form with both changes, of which the user's own counts where both have changed a field."""
    entry = read_listed(RedBeatSchedulerEntry, visit.app, found.name)
    theirs = shown_document(entry)
    merged = {name: value for name, value in {**theirs, **found.changes}.items() if value is not None}
    record = last_change(visit, found.name)
    who = "Somebody else has changed it"
    if record is not None:
        who = f"{one_line(record.user, 80) or 'Somebody'} has changed it {relative(record.at, visit.now)}"
    result.conflict = Conflict(
        f"{who}, after you had opened this page. Nothing was stored. The form has both changes now: look at "
        "it, and save it again.",
        _lines(visit, found.base, theirs),
        _lines(visit, found.base, found.given),
    )
    result.summary = summary_of(visit, entry)
    result.form = _form_of(visit, Draft(found.name, theirs, revision_of(entry), merged, way=found.way))


def _lines(visit: AdminVisit, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str]]:
    return diff_lines(before, after, visit.app)


def _form_of(visit: AdminVisit, found: Draft) -> EntryForm:
    """Return the form that shows a draft."""
    hidden = _hidden_fields(found)
    if found.way == JSON:
        return DocumentForm(shown={**hidden, "document": json_text(found.given)})
    texts = form_of(found.given, zone_of(visit, found.given))
    return FieldsForm(shown={**texts, **hidden}, is_new=found.is_new, app=visit.app)


def _hidden_fields(found: Draft) -> dict[str, str]:
    base = json.dumps(found.base, default=str) if found.base else ""
    return {BASE: base, REVISION: found.revision}
