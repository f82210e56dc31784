"""An entry added and changed: as a form or as JSON, with a preview as one types, and told if it has changed
meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.diagnostics.hints import hint_at_beat_schedule, known_tasks
from redbeat.entries.search import read_listed
from redbeat.entries.upcoming import next_run_in_words
from redbeat.entries.wording import label_of, one_line, when_in
from redbeat.errors import (
    AccessDenied,
    EntryChanged,
    EntryError,
    EntryNotFound,
)
from redbeat.operations.editing import put_entry, revision_of, set_entry
from redbeat.operations.operation import Seen
from redbeat.web.pages.entry_drafts import (
    Draft,
    Line,
    check,
    diff_lines,
    hints_of,
    note_error,
    preview,
    read_draft,
    shown_document,
    typed_in,
)
from redbeat.web.pages.entry_form import EXAMPLES, GROUPS, LABELS, form_of, zone_named
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit

#: what a new entry begins with
NEW: dict[str, Any] = {"name": "", "task": "", "schedule": {"cron": "0 9 * * mon-fri"}, "enabled": True}
#: how many names of tasks are suggested
MOST_SUGGESTED = 1000


def show_new(visit: Visit) -> Response:
    """Show the form of a new entry; ``like``: with the fields of another one."""
    visit.user.require_adding()
    found, like = Draft("", {}, "", dict(NEW)), visit.query.get("like")
    if like:
        found.given = {**shown_document(read_listed(visit.app, like)), "name": ""}
    return _show(visit, found)


def show_edit(visit: Visit) -> Response:
    """Show the form of a stored entry."""
    entry = read_listed(visit.app, visit.query.get("name", ""))
    document = shown_document(entry)
    found = Draft(str(entry.name), document, revision_of(entry), dict(document), before=entry)
    if entry.problem or visit.query.get("as") == "json":  # what is invalid may not fit into the fields
        found.way = "json"
    if entry.problem:
        check(visit, found)
    return _show(visit, found)


def switch(visit: Visit) -> Response:
    """Show a draft in the other way: what was typed as a form as JSON, and back."""
    found = read_draft(visit)
    found.forgive()
    if found.problems:  # what is wrong, the other way may not show
        found.problems.setdefault("", "Put this right first: only then it can be shown the other way.")
        return _show(visit, found, 422)
    found.way, found.text = "json" if visit.form.get("to") == "json" else "form", ""
    return _show(visit, found)


def show_preview(visit: Visit) -> Response:
    """Show what is wrong with a draft, or what it would make of the entry."""
    found = read_draft(visit)
    found.forgive()
    seen = preview(visit, found)
    return visit.render("entry_preview.html", draft=found, seen=seen, groups=GROUPS)


def save(visit: Visit) -> Response:
    """Store a draft, unless another user has changed the entry."""
    found = read_draft(visit)
    if not found.is_new and found.before is None:  # its hidden arguments have gone with it
        return _show_removed(visit, found)
    if found.problems:
        return _show(visit, found, 422)
    try:
        if found.is_new:
            name = str(found.given["name"])
            made = put_entry(visit.actor, name, values=found.given, seen=Seen()).entry
        elif found.changes:
            name, seen = found.name, Seen([found.revision])
            made = set_entry(visit.actor, name, changes=found.changes, seen=seen, is_merged=False).entry
        else:
            return visit.see("entry", notice="Nothing was changed.", name=found.name)
    except AccessDenied as exc:
        if not visit.may("edit"):
            raise
        note_error(visit, found, exc)
        return _show(visit, found, 403)
    except EntryChanged as exc:
        if not found.is_new:
            return _show_conflict(visit, found)
        note_error(visit, found, exc)
        return _show(visit, found, 412)
    except EntryNotFound:
        return _show_removed(visit, found)
    except EntryError as exc:
        if preview(visit, found) is not None:  # it says at which field
            note_error(visit, found, exc)
        return _show(visit, found, 422)
    done = "Added" if found.is_new else "Changed"
    when = ", ".join(filter(None, next_run_in_words(made, visit.zone, visit.now, when_in)))
    hints = [*hints_of(visit, found), hint_at_beat_schedule(visit.app, [name])]
    words = [f"{done} {one_line(name, 100)}. Next run: {when}.", *filter(None, hints)]
    return visit.see("entry", notice=" ".join(words), name=name)


def _show_conflict(visit: Visit, found: Draft) -> Response:
    """Show a user's changes over the changes that another user has stored in between."""
    seen, changes = found.base, found.changes
    found.before = read_listed(visit.app, found.name)
    found.base, found.revision = shown_document(found.before), revision_of(found.before)
    merged = {**found.base, **changes}
    found.given, found.text = {name: value for name, value in merged.items() if value is not None}, ""
    return _show(visit, found, 412, theirs=diff_lines(seen, found.base, visit.app))


def _show_removed(visit: Visit, found: Draft) -> Response:
    """Show the draft of an entry that another user has removed meanwhile, as one of a new entry."""
    document = {"name": found.name, **found.given}
    problem = (
        f"The entry {one_line(found.name, 100)} was removed since you opened it. Add it again, or cancel."
    )
    return _show(visit, Draft("", {}, "", document, {"": problem}, found.way), 412)


def _show(visit: Visit, found: Draft, status: int = 200, theirs: Sequence[Line] | None = None) -> Response:
    """Show the page of a draft.

    Arguments:
        theirs: what another user has changed since the page was opened; None: nothing.
    """
    form = typed_in(visit)
    if status == 412 or found.way != "form" or form.get("way") != "form":
        form = form_of(found.given, zone_named(found.given.get("timezone"), visit.app.timezone))
    return visit.render(
        "entry_edit.html",
        status,
        title="New entry" if found.is_new else "Edit",
        draft=found,
        theirs=theirs,
        seen=preview(visit, found),
        form=form,
        set_fields={name for name, value in form.items() if value and (name, value) != ("state", "runs")}
        | set(found.problems),
        base=json.dumps(found.base, default=str) if found.base else "",
        groups=GROUPS,
        labels=LABELS,
        examples=EXAMPLES,
        app_zone=label_of(visit.app.timezone),
        tasks=known_tasks(visit.app)[:MOST_SUGGESTED],
    )


ROUTES: list[BaseRoute] = [
    page("/entry/new", show_new, right=Right.EDIT),
    page("/entry/edit", show_edit, right=Right.EDIT),
    action("/entry/edit", switch, right=Right.EDIT),
    action("/entry/preview", show_preview, right=Right.EDIT),
    action("/entry/save", save, right=Right.EDIT),
]
