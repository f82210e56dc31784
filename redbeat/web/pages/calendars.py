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
from redbeat.errors import CalendarNotFound, EntryChanged, RedBeatError
from redbeat.log.text import shorten
from redbeat.manifest.format import read_calendar
from redbeat.operations import calendars
from redbeat.operations.calendars import AllCalendars, CalendarChange, days_in_words
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
#: how many days of a file are shown before it is stored
MAX_SHOWN = 100
YEARS = range(1970, 2200)
#: how old a list of all calendars may be, and how long a page waits for it; seconds
FRESH_SECONDS, WAIT_SECONDS = 3.0, 0.03
_RETIMED = "The entries that name it get their next runs"


@dataclass(frozen=True)
class Again:
    """A form that couldn't be stored, to be shown again.

    Attributes:
        form: 'new', 'edit', 'add' or 'import'; '': there is none.
        typed: the contents of its fields.
        wrong: the field that is wrong, and ``problem`` why.
    """

    form: str = ""
    typed: Mapping[str, str] = field(default_factory=dict)
    wrong: str = ""
    problem: str = ""

    def value(self, form: str, name: str, otherwise: str = "") -> str:
        """Return what stands in a field."""
        return self.typed.get(name, otherwise) if form == self.form else otherwise

    def error(self, form: str, name: str) -> str:
        """Return what is wrong with a field."""
        return self.problem if (form, name) == (self.form, self.wrong) else ""


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
            edited, stored = _days_of(name, typed["text"]), read_one(Store(actor.app), name).days
            changes = dict.fromkeys(day for day in stored if day not in edited)
            changes |= {day: label for day, label in edited.items() if stored.get(day) != label}
        elif not removed:
            changes[f"{first}/{last}" if last else first] = typed["label"].strip()
        made = calendars.set_calendar(actor, name, days=changes, about=about, seen=seen)
        return _ending((first or next(iter(removed), ""))[:4] or None, made)

    def again(visit: Visit, error: RedBeatError, status: int) -> Response:
        words, place = _sentence(error), "text"
        if kind == "add":
            place = "last" if last else "first"
        elif kind == "new" and isinstance(error, EntryChanged):
            words, place = "There is a calendar of this name already.", "name"
        elif kind == "new" and not 0 < len(name) <= calendars.MAX_NAME:
            place = "name"
        elif isinstance(error, EntryChanged):
            words = f"{words} What you have typed stands here: saved now, it takes the place of theirs."
        return _show_again(visit, name, Again(kind, typed, place, words), status)

    return make_form_change(visit, f"Change {shorten(name, 200)}", store, again, ("calendars",))


def _sentence(exc: Exception) -> str:
    words = str(exc)
    return f"{words[:1].upper()}{words[1:]}"


def _ending(year: str | None, made: CalendarChange) -> Ending:
    query = {"name": made.document["name"], "year": year}
    words = f"Stored: {days_in_words(made.document['days'])}."
    return Ending(words, ("calendar",), query, forgets=("calendars",))


def _days_of(name: str, text: str) -> Mapping[str, str]:
    days = read_calendar(text, name, "the text").get("days") if text.strip() else None
    return Calendar(name, days or {}).days


def import_calendar(visit: Visit) -> Response:
    """Show which days a file has, and store them when that is confirmed."""
    typed = {name: visit.typed(name).strip() for name in ("name", "mode", "until", "about")}
    name, mode, actor = typed["name"], typed["mode"], visit.actor
    place = "until"
    try:
        until = date.fromisoformat(typed["until"]) if typed["until"] else None
        place = "file" if name else "name"
        origin, data, kind = _given_file(visit)
        read = calendars.read_import(actor, name, data, kind, typed["about"] or None, until)
    except ValueError as exc:
        return _show_again(visit, name, Again("import", typed, place, _sentence(exc)), 422)
    if visit.is_confirmed:
        years = sorted({day[:4] for day in read.days})
        year = next((one for one in years if one >= str(visit.now.year)), years[-1] if years else None)

        def store(tell: Tell[str]) -> Ending:
            tell(_RETIMED)
            return _ending(year, calendars.import_(actor, read, origin, mode))

        return make_change(visit, f"Import into {shorten(name, 200)}", store)
    stored = read_one(Store(visit.app), name)
    gone = [day for day in stored.days if day not in read.days] if mode == "replace" else []
    return visit.render(
        "calendar_import.html",
        title=f"Import into {name}",
        name=name,
        mode=mode,
        origin=origin,
        counted=days_in_words(read.days),
        lines=_lines("+", read.days, sorted(read.days)),
        more=max(len(read.days) - MAX_SHOWN, 0),
        gone=_lines("-", stored.days, gone),
        more_gone=max(len(gone) - MAX_SHOWN, 0),
        is_new=stored.is_missing,
        is_refused=not stored.is_missing and mode not in ("add", "replace"),
        about=read.about,
        text=json.dumps({"about": read.about, "days": read.days}),
    )


def _lines(sign: str, labels: Mapping[str, str], days: Sequence[str]) -> list[tuple[str, str]]:
    return [(sign, f"{day} {labels[day]}".strip()) for day in days[:MAX_SHOWN]]


def _given_file(visit: Visit) -> tuple[str, bytes, str]:
    """Return the name and the contents of a file, and the name that says how to read it.

    Once it was shown, its days come back as a text.
    """
    upload = visit.form.get("file")
    if isinstance(upload, UploadFile) and upload.filename:
        name = shorten(upload.filename, 200)
        is_ical = upload.filename.lower().endswith(".ics")
        return name, upload.file.read(), f"{name[:100]}.ics" if is_ical else name
    text = visit.typed("text").encode("utf-8", "surrogateescape")
    return shorten(visit.typed("origin"), 200) or "the text", text, "the text"


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
