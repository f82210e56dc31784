"""An entry added and changed: as a form or as JSON, with a preview as one types, and told if it has changed
meanwhile.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.diagnostics.hints import hint_at_beat_schedule, known_tasks
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.query import read_listed
from redbeat.entries.wording import label_of, next_run_in_words, one_line, when_in
from redbeat.errors import AccessDenied, EntryChanged, EntryError, EntryNotFound
from redbeat.log.text import printable_json
from redbeat.schedules.timezones import zone_called
from redbeat.web.pages.entry import see_entry
from redbeat.web.pages.entry_drafts import (
    Draft,
    check,
    diff_lines,
    draft_of_entry,
    hints_of,
    note_error,
    preview,
    read_draft,
    shown_document,
)
from redbeat.web.pages.entry_form import EXAMPLES, GROUPS, form_of
from redbeat.web.routes import action, page
from redbeat.web.verbs import editing
from redbeat.web.verbs.editing import revision_of
from redbeat.web.visit import Visit

#: what a new entry begins with
_NEW: dict[str, Any] = {"name": "", "task": "", "schedule": {"cron": "0 9 * * mon-fri"}, "enabled": True}
#: how many names of tasks are suggested
MOST_SUGGESTED = 1000


def show_new(visit: Visit) -> Response:
    """Show the form of a new entry; ``like``: with the fields of another one."""
    found = Draft("", {}, "", dict(_NEW), way=_way(visit))
    like = visit.query.get("like")
    if like:
        found.given = {**shown_document(read_listed(RedBeatSchedulerEntry, visit.app, like)), "name": ""}
    return _show(visit, found)


def show_edit(visit: Visit) -> Response:
    """Show the form of a stored entry."""
    entry = read_listed(RedBeatSchedulerEntry, visit.app, visit.query.get("name", ""))
    found = draft_of_entry(entry)
    found.way = _way(visit)
    if entry.problem:
        found.way = "json"  # what can't be used may not fit into the fields
        check(visit, found)
    return _show(visit, found)


def _way(visit: Visit) -> str:
    return "json" if visit.query.get("as") == "json" else "form"


def switch(visit: Visit) -> Response:
    """Show a draft in the other way: what was typed as a form as JSON, and back."""
    found = read_draft(visit)
    found.forgive()
    wanted = "json" if visit.form.get("to") == "json" else "form"
    if "" in found.problems or (wanted == "json" and found.problems):
        return _show(visit, found, 422)  # it would be lost
    found.way, found.text = wanted, ""
    return _show(visit, found)


def show_preview(visit: Visit) -> Response:
    """Show what is wrong with a draft, or what it would make of the entry."""
    found = read_draft(visit)
    found.forgive()
    seen = preview(visit, found)
    return visit.render("entry_preview.html", draft=found, seen=seen, groups=GROUPS)


def save(visit: Visit) -> Response:
    """Store a draft, if nobody else has changed the entry."""
    found = read_draft(visit)
    if not found.is_new and found.before is None:  # its hidden arguments have gone with it
        return _show_conflict(visit, found, is_gone=True)
    if found.problems:
        return _show(visit, found, 422)
    try:
        made = _store(visit, found)
    except AccessDenied as exc:
        if not visit.may("edit"):
            raise
        found.problems["task"] = str(exc)
        return _show(visit, found, 403)
    except EntryChanged:
        if found.is_new:
            found.problems["name"] = "There is an entry of this name already."
            return _show(visit, found, 412)
        return _show_conflict(visit, found)
    except EntryNotFound:
        return _show_conflict(visit, found, is_gone=True)
    except EntryError as exc:
        note_error(visit, found, exc)
        return _show(visit, found, 422)
    if made is None:
        return see_entry(visit, found.name, "Nothing was changed.")
    hints = [*hints_of(visit, found), hint_at_beat_schedule(visit.app, [str(made.name)])]
    words = " ".join([_told(visit, made, "Added" if found.is_new else "Changed"), *filter(None, hints)])
    return see_entry(visit, str(made.name), words)


def _store(visit: Visit, found: Draft) -> RedBeatSchedulerEntry | None:
    if found.is_new:
        return editing.add(visit.actor, found.given)
    changes = found.changes
    return editing.set_(visit.actor, found.name, changes, found.revision) if changes else None


def _told(visit: Visit, entry: RedBeatSchedulerEntry, done: str) -> str:
    when = ", ".join(filter(None, next_run_in_words(entry, visit.zone, visit.now, when_in)))
    return f"{done} {one_line(entry.name, 100)}. Next run: {when}."


def _show_conflict(visit: Visit, found: Draft, *, is_gone: bool = False) -> Response:
    """Show what somebody else has made of the entry meanwhile, and let the user choose."""
    theirs: dict[str, Any] = {}
    if not is_gone:
        found.before = read_listed(RedBeatSchedulerEntry, visit.app, found.name)
        theirs = shown_document(found.before)
    sent = [
        (name, value)
        for name, value in visit.form.multi_items()
        if isinstance(value, str) and name not in ("csrf_token", "revision", "confirmed", "entry", "base")
    ]
    if is_gone and found.way == "form":
        sent.append(("name", found.name))
    sent += [] if is_gone else [("entry", found.name), ("base", json.dumps(found.base))]
    return visit.render(
        "entry_conflict.html",
        412,
        title="Changed meanwhile",
        draft=found,
        is_gone=is_gone,
        fields=[*sent, ("revision", "" if is_gone or found.before is None else revision_of(found.before))],
        theirs=diff_lines(found.base, theirs, visit),
        mine=diff_lines(found.base, found.given, visit),
        result=diff_lines(theirs, {**theirs, **found.changes}, visit) if theirs else [],
    )


def _show(visit: Visit, found: Draft, status: int = 200) -> Response:
    form = {name: value for name, value in visit.form.items() if isinstance(value, str)}
    if found.way != "form" or form.get("way") != "form":
        form = form_of(found.given, _zone_of(visit, found))
    if not found.text:
        found.text = printable_json(json.dumps(found.given, indent=2, ensure_ascii=False, default=str))
    return visit.render(
        "entry_edit.html",
        status,
        title="New entry" if found.is_new else "Edit",
        draft=found,
        seen=preview(visit, found),
        form=form,
        set_fields={name for name, value in form.items() if value and (name, value) != ("state", "runs")}
        | set(found.problems),
        base=json.dumps(found.base, default=str) if found.base else "",
        groups=GROUPS,
        examples=EXAMPLES,
        app_zone=label_of(visit.app.timezone),
        tasks=known_tasks(visit.app)[:MOST_SUGGESTED],
    )


def _zone_of(visit: Visit, found: Draft) -> Any:
    """Return the zone in which times of the form are: that of the entry's time zone, else the app's."""
    name = found.given.get("timezone")
    with suppress(ValueError):
        if isinstance(name, str):
            return zone_called(name)
    return visit.app.timezone


ROUTES: list[BaseRoute] = [
    page("/entry/new", show_new, right=Right.EDIT),
    page("/entry/edit", show_edit, right=Right.EDIT),
    action("/entry/edit", switch, right=Right.EDIT),
    action("/entry/preview", show_preview, right=Right.EDIT),
    action("/entry/save", save, right=Right.EDIT),
]
