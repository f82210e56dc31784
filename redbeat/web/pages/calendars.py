"""Calendars: all of them, and a year of one at a glance; their days changed, imported and deleted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from starlette.datastructures import UploadFile
from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.calendars import Calendar
from redbeat.entries.calendar_loading import read_one
from redbeat.entries.wording import local_time
from redbeat.errors import CalendarError, CalendarNotFound, EntryChanged, RedBeatError
from redbeat.log.text import shorten
from redbeat.manifest.format import read_calendar
from redbeat.operations import calendars
from redbeat.operations.calendars import AllCalendars, days_in_words
from redbeat.operations.operation import Seen
from redbeat.store.store import Store
from redbeat.web.charts.years import draw_year
from redbeat.web.jobs import Ending, Pace, Result, Tell
from redbeat.web.pages.changing import make_change, make_form_change
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit

#: how many calendars a page has, and how many rows with the days of a year
PAGE, MAX_ROWS = 100, 500
#: a calendar with more days than this can't be edited as a text
MAX_EDITED = 2000
YEARS = range(1970, 2200)
#: how old a list of all calendars may be, and how long a page waits for it; seconds
FRESH_SECONDS, WAIT_SECONDS = 3.0, 0.03
_RETIMED = "The entries that name it get their next runs"


@dataclass(frozen=True)
class Again:
    """A form that is shown with values of its own.

    Attributes:
        form: 'new', 'edit', 'add' or 'import'; '': there is none.
        typed: the contents of its fields.
        problem: why it couldn't be stored; '': it is to be saved, as a file has filled it.
        gone: the stored days that aren't in the file, and go when it is saved.
    """

    form: str = ""
    typed: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
    gone: Sequence[str] = ()

    def value(self, form: str, name: str, otherwise: str = "") -> str:
        """Return what stands in a field."""
        return self.typed.get(name, otherwise) if form == self.form else otherwise


def _list_all(visit: Visit, *, is_wanted: bool = False) -> Result[AllCalendars]:
    """Return all calendars as they were found last, and look again in the background if that is old."""
    actor = visit.actor

    def work(_tell: Tell[AllCalendars]) -> AllCalendars:
        pace = Pace()
        return calendars.list_all(actor, lambda _count: pace.rest())

    return visit.dashboard.jobs.read(
        "calendars",
        None,
        work,
        fresh_seconds=FRESH_SECONDS,
        is_wanted=is_wanted,
        wait_seconds=WAIT_SECONDS,
    )


def list_calendars(visit: Visit) -> Response:
    """Return the list."""
    return _list(visit)


def _list(visit: Visit, again: Again = Again(), status: int = 200) -> Response:
    result = _list_all(visit, is_wanted="again" in visit.query)
    documents, is_complete = result.found or ({}, True)
    after = visit.query.get("after", "")
    names = sorted(name for name in documents if name > after)
    return visit.render(
        "calendars_part.html" if visit.is_fragment else "calendars.html",
        status,
        title="Calendars",
        again=again,
        result=result,
        is_complete=is_complete,
        documents=[documents[name] for name in names[:PAGE]],
        more_url=visit.link("calendars", after=names[PAGE - 1]) if len(names) > PAGE else None,
        first_url=visit.link("calendars") if after else None,
        url=visit.link("calendars", after=after or None),
    )


def show_calendar(visit: Visit) -> Response:
    """Return the page of one."""
    return _show(visit, visit.query.get("name", ""))


def _show(visit: Visit, name: str, again: Again = Again(), status: int = 200) -> Response:
    listed, _ = _list_all(visit).found or ({}, True)
    users = listed.get(name, {}).get("entries")
    document = calendars.show(visit.actor, name, {name: users or ()})
    zone = visit.app.timezone
    today = local_time(visit.now, zone).date()
    given = visit.query.get("year", "")
    number = int(given) if re.fullmatch("[0-9]{4}", given) and int(given) in YEARS else today.year
    days: Mapping[str, str] = document["days"]
    year = draw_year(days, number, zone, today)
    return visit.render(
        "calendar_part.html" if visit.is_fragment else "calendar.html",
        status,
        title=name,
        here=visit.link("calendar", name=name, year=given or None),
        again=again,
        document=document,
        year=year,
        rows=year.rows[:MAX_ROWS],
        years=sorted({field[:4] for field in days}),
        zone_of_days=zone,
        users=len(users or ()),
        are_users_known=users is not None,
        text=_text_of(days) if len(days) <= MAX_EDITED and not document["error"] else None,
        previous_url=visit.link("calendar", name=name, year=number - 1) if number - 1 in YEARS else None,
        next_url=visit.link("calendar", name=name, year=number + 1) if number + 1 in YEARS else None,
    )


def _show_again(visit: Visit, name: str, again: Again, status: int) -> Response:
    """Show the page with a form as it was filled in, and what is wrong with it."""
    if again.form != "new":
        try:
            return _show(visit, name, again, status)
        except CalendarNotFound:
            form = "new" if again.form == "edit" else again.form  # it is made anew
            again = replace(again, form=form)
    return _list(visit, again, status)


def _text_of(days: Mapping[str, str]) -> str:
    """Return days as people edit them: one in each line with its label, or JSON where a label needs that."""
    if all(label == " ".join(label.split()) and label.isprintable() for label in days.values()):
        return "\n".join(f"{day} {label}".strip() for day, label in sorted(days.items()))
    return json.dumps(dict(sorted(days.items())), indent=1)


def set_calendar(visit: Visit) -> Response:
    """Add a day, remove one, or put an edited text in place of what was shown."""
    form, actor = visit.form, visit.actor
    typed = {name: visit.typed(name) for name in ("name", "about", "text", "first", "last", "label")}
    name, first, last = (typed[field].strip() for field in ("name", "first", "last"))
    about = typed["about"].strip() if "about" in form else None
    removed, has_text = [*visit.names("remove")], "text" in form
    seen = Seen([*filter(None, [visit.typed("revision")])]) if "revision" in form else None
    kind = "new" if seen == Seen([]) else "edit" if has_text else "add"

    def store(tell: Tell[str]) -> Ending:
        tell(_RETIMED)
        changes: dict[str, str | None] = dict.fromkeys(removed)
        if has_text:
            text = typed["text"].strip() or "{}"
            days = read_calendar(text, name, "the text").get("days") or {}
            edited, stored = Calendar(name, days).days, read_one(Store(actor.app), name).days
            changes = dict.fromkeys(day for day in stored if day not in edited)
            changes |= {day: label for day, label in edited.items() if stored.get(day) != label}
        elif not removed:
            changes[f"{first}/{last}" if last else first] = typed["label"].strip()
        made = calendars.set_calendar(actor, name, days=changes, about=about, seen=seen)
        query = {"name": name, "year": (first or next(iter(removed), ""))[:4] or None}
        words = f"Stored: {days_in_words(made.document['days'])}."
        return Ending(words, ("calendar",), query, forgets=("calendars",))

    def again(visit: Visit, error: RedBeatError, status: int) -> Response:
        words = str(error)
        if kind == "edit" and isinstance(error, EntryChanged):
            words = f"{words} What you have typed stands here: saved now, it takes the place of theirs."
        return _show_again(visit, name, Again(kind, typed, words), status)

    return make_form_change(visit, f"Change {shorten(name, 200)}", store, again, ("calendars",))


def import_calendar(visit: Visit) -> Response:
    """Show a form with the days of a file, as they would stand after it is saved; nothing is stored."""
    typed = {field: visit.typed(field) for field in ("name", "mode", "until")}
    name = typed["name"].strip()
    try:
        until = date.fromisoformat(typed["until"]) if typed["until"] else None
        upload = visit.form.get("file")
        if not isinstance(upload, UploadFile) or not upload.filename:
            raise CalendarError("choose a file.", name)
        origin = shorten(upload.filename, 200)
        read = calendars.read_import(visit.actor, name, upload.file.read(), origin, until=until)
        stored = read_one(Store(visit.app), name)
        days = read.days if typed["mode"] == "replace" else {**stored.days, **read.days}
        if len(days) > MAX_EDITED:
            words = f"{origin}: has more than {MAX_EDITED} days: use celery redbeat calendar import."
            raise CalendarError(words, name)
    except ValueError as exc:
        return _show_again(visit, name, Again("import", typed, str(exc)), 422)
    form = {"name": name, "about": read.about or stored.about, "text": _text_of(days)}
    gone = [day for day in stored.days if day not in days]
    return _show_again(visit, name, Again("new" if stored.is_missing else "edit", form, gone=gone), 200)


def delete_calendar(visit: Visit) -> Response:
    """Remove one, when that is confirmed."""
    name, force = visit.typed("name"), visit.form.get("force") == "yes"
    if not visit.is_confirmed:
        fields = {"name": name} | ({"force": "yes"} if force else {})
        return visit.ask(
            f"Delete the calendar {name}?",
            "Delete",
            visit.link("calendar", "delete"),
            fields.items(),
            back=visit.link("calendar", name=name),
            more="Entries that name it are quarantined when they are due." if force else "",
        )
    actor = visit.actor

    def remove(tell: Tell[str]) -> Ending:
        tell("Looking for entries that name it")
        calendars.delete_calendar(actor, name, force=force)
        return Ending(f"Deleted the calendar {shorten(name, 200)}.", ("calendars",), forgets=("calendars",))

    return make_change(visit, f"Delete {shorten(name, 200)}", remove)


ROUTES: list[BaseRoute] = [
    page("/calendars", list_calendars),
    page("/calendar", show_calendar),
    action("/calendar/set", set_calendar, right=Right.EDIT),
    action("/calendar/import", import_calendar, right=Right.EDIT),
    action("/calendar/delete", delete_calendar, right=Right.DELETE),
]
