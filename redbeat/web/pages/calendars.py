"""Calendars: all of them, and a year of one at a glance; their days changed, imported and deleted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial

from starlette.datastructures import UploadFile
from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.calendars import Calendar
from redbeat.entries.calendar_loading import Unusable, read_fields
from redbeat.entries.wording import local_time
from redbeat.errors import CalendarError, CalendarNotFound, EntryChanged, FileError
from redbeat.log.text import counted, shorten
from redbeat.manifest.calendar_documents import count_days
from redbeat.manifest.format import read_calendar
from redbeat.schedules.exclusions import spelled
from redbeat.store.store import Store
from redbeat.web.charts.years import draw_year
from redbeat.web.jobs import Ending, Tell
from redbeat.web.pages.changing import make_change
from redbeat.web.routes import action, page, status_of
from redbeat.web.verbs import calendars as verbs
from redbeat.web.visit import Visit

#: how many calendars a page has, and how many rows with the days of a year
PAGE, MAX_ROWS = 100, 500
#: a calendar with more days than this can't be edited as a text
MAX_EDITED = 2000
#: how many days of a file are shown before it is stored
MAX_SHOWN = 100
YEARS = range(1970, 2200)
_RETIMED = "The entries that name it get their next runs"


@dataclass(frozen=True)
class Again:
    """A form that couldn't be stored, to be shown again.

    Attributes:
        form: 'new', 'edit', 'add' or 'import'; '': there is none.
        typed: what was typed into its fields.
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


def list_calendars(visit: Visit) -> Response:
    """Return the list."""
    return _list(visit)


def _list(visit: Visit, again: Again = Again(), status: int = 200) -> Response:
    result = verbs.survey(visit.actor, visit.dashboard.jobs, is_wanted="again" in visit.query)
    found = result.found
    after = visit.query.get("after", "")
    names = sorted(name for name in (found.documents if found is not None else ()) if name > after)
    return visit.render(
        "calendars_part.html" if visit.is_fragment else "calendars.html",
        status,
        title="Calendars",
        again=again,
        result=result,
        found=found,
        names=names[:PAGE],
        more_url=visit.link("calendars", after=names[PAGE - 1]) if len(names) > PAGE else None,
        first_url=visit.link("calendars") if after else None,
        url=visit.link("calendars", after=after or None),
    )


def show_calendar(visit: Visit) -> Response:
    """Return the page of one."""
    return _show(visit, visit.query.get("name", ""))


def _show(visit: Visit, name: str, again: Again = Again(), status: int = 200) -> Response:
    result = verbs.survey(visit.actor, visit.dashboard.jobs)
    found = result.found
    named_by = found.named_by.get(name, ()) if found is not None else ()
    document = verbs.show(visit.actor, name, {name: named_by})
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
        result=result,
        document=document,
        year=year,
        rows=year.rows[:MAX_ROWS],
        years=sorted({field[:4] for field in days}),
        zone_of_days=zone,
        users=found.users.get(name, 0) if found is not None else 0,
        text=_text_of(days) if len(days) <= MAX_EDITED and not document["error"] else None,
        revision=verbs.revision_of(document),
        is_surveyed=found is not None and found.is_whole,
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
    """Add days, remove one, or put an edited text in place of what was shown."""
    form = visit.form
    typed = {name: _field(visit, name) for name in ("name", "about", "text", "first", "last", "label")}
    name, first, last = (typed[field].strip() for field in ("name", "first", "last"))
    about = typed["about"].strip() if "about" in form else None
    revision = _field(visit, "revision") if "revision" in form else None
    kind = "new" if revision == "" else "edit" if "text" in form else "add"
    added: dict[str, str] = {}
    removed, place = [*visit.names("remove")], "text"
    try:
        if first:
            place = "last" if last else "first"
            added[spelled(f"{first}/{last}" if last and last != first else first)] = typed["label"].strip()
        if "text" in form:
            edited = _days_of(name, typed["text"])
            stored = read_fields(Store(visit.app), [name])[name]
            before = {} if isinstance(stored, Unusable) else stored
            added |= {day: label for day, label in edited.items() if before.get(day) != label}
            removed += [day for day in before if day not in edited and day != "about"]
        if not added and not removed and about is None and revision != "":
            place = "first"
            raise ValueError("give a day to add.")
    except ValueError as exc:
        return _show_again(visit, name, Again(kind, typed, place, _sentence(exc)), 422)
    year, actor = next(iter([*added, *removed]), "")[:4], visit.actor

    def store(tell: Tell[str]) -> Calendar | CalendarError | EntryChanged:
        tell(_RETIMED)
        try:
            return verbs.set_(actor, name, added, without=removed, about=about, revision=revision)
        except (CalendarError, EntryChanged) as exc:
            return exc

    def end(made: Calendar | CalendarError | EntryChanged) -> Ending:
        if isinstance(made, Calendar):
            return _ending(year or None, made)
        words, status = _why_not(made, kind), status_of(made)
        is_taken = isinstance(made, EntryChanged) or not 0 < len(name) <= verbs.MAX_NAME
        place = "first" if kind == "add" else "name" if kind == "new" and is_taken else "text"
        again = Again(kind, typed, place, words)
        return Ending(
            words, ("calendars",), status=status, page=lambda visit: _show_again(visit, name, again, status)
        )

    return make_change(visit, f"Change {shorten(name, 200)}", store, end)


def _why_not(exc: CalendarError | EntryChanged, kind: str) -> str:
    if not isinstance(exc, EntryChanged):
        return _sentence(exc)
    if kind == "new":
        return "There is a calendar of this name already."
    return f"{exc} What you have typed stands here: saved now, it takes the place of theirs."


def _sentence(exc: Exception) -> str:
    words = str(exc)
    return f"{words[:1].upper()}{words[1:]}"


def _ending(year: str | None, made: Calendar) -> Ending:
    query = {"name": made.name, "year": year}
    return Ending(f"Stored: {_counted(made)}.", ("calendar",), query, forgets=("calendars",))


def _days_of(name: str, text: str) -> Mapping[str, str]:
    if not text.strip():
        return {}
    try:
        days = read_calendar(text, name, "the text").get("days") or {}
    except FileError as exc:
        raise CalendarError(str(exc), name) from exc
    return days if isinstance(days, Mapping) else {str(day): "" for day in days}


def import_calendar(visit: Visit) -> Response:
    """Show which days a file has, and store them when that is confirmed."""
    typed = {name: _field(visit, name).strip() for name in ("name", "mode", "until", "about")}
    name, mode = typed["name"], typed["mode"]
    place = "name"
    try:
        if not name:
            raise CalendarError("A calendar must have a name.", name)
        place = "until"
        until = date.fromisoformat(typed["until"]) if typed["until"] else None
        place = "file"
        origin, data, kind = _given_file(visit)
        read = verbs.read_import(visit.actor, name, data, kind, typed["about"] or None, until)
    except ValueError as exc:
        return _show_again(visit, name, Again("import", typed, place, _sentence(exc)), 422)
    stored = read_fields(Store(visit.app), [name])[name]
    before = {} if isinstance(stored, Unusable) else stored
    is_new = isinstance(stored, Unusable) and stored.is_missing
    if visit.form.get("confirmed") == "yes":
        is_replacing, is_adding = mode == "replace", mode == "add"
        years, actor = sorted({day[:4] for day in read.days}), visit.actor
        year = next((one for one in years if one >= str(visit.now.year)), years[-1] if years else None)

        def store(tell: Tell[str]) -> Calendar:
            tell(_RETIMED)
            return verbs.import_(actor, read, origin, is_replacing=is_replacing, is_adding=is_adding)

        return make_change(visit, f"Import into {shorten(name, 200)}", store, partial(_ending, year))
    gone = sorted(before.keys() - {"about", *read.days}) if mode == "replace" else []
    return visit.render(
        "calendar_import.html",
        title=f"Import into {name}",
        name=name,
        mode=mode,
        origin=origin,
        counted=_counted(read),
        lines=[("+", f"{day} {label}".strip()) for day, label in sorted(read.days.items())][:MAX_SHOWN],
        more=max(len(read.days) - MAX_SHOWN, 0),
        gone=[("-", f"{day} {before[day]}".strip()) for day in gone][:MAX_SHOWN],
        more_gone=max(len(gone) - MAX_SHOWN, 0),
        is_new=is_new,
        is_refused=not is_new and mode not in ("add", "replace"),
        about=read.about,
        text=json.dumps({"about": read.about, "days": read.days}),
    )


def _given_file(visit: Visit) -> tuple[str, bytes, str]:
    """Return the name and the contents of a file, and the name that says how to read it.

    Once it was shown, its days come back as a text.
    """
    upload = visit.form.get("file")
    if isinstance(upload, UploadFile) and upload.filename:
        name = shorten(upload.filename, 200)
        return (
            name,
            upload.file.read(),
            f"{name[:100]}.ics" if upload.filename.lower().endswith(".ics") else name,
        )
    text = _field(visit, "text").encode("utf-8", "surrogateescape")
    return shorten(_field(visit, "origin"), 200) or "the text", text, "the text"


def delete_calendar(visit: Visit) -> Response:
    """Remove one, when that is confirmed."""
    name, force = _field(visit, "name"), visit.form.get("force") == "yes"
    if visit.form.get("confirmed") != "yes":
        fields = {"name": name} | ({"force": "yes"} if force else {})
        return visit.render(
            "calendar_confirm.html",
            title=f"Delete {name}",
            question=f"Delete the calendar {name}?",
            more="Entries that name it are quarantined when they are due." if force else "",
            fields=fields,
            name=name,
        )
    actor = visit.actor

    def remove(tell: Tell[str]) -> None:
        tell("Looking for entries that name it")
        verbs.delete(actor, [name], force=force)

    ending = Ending(f"Deleted the calendar {shorten(name, 200)}.", ("calendars",), forgets=("calendars",))
    return make_change(visit, f"Delete {shorten(name, 200)}", remove, lambda _none: ending)


def _field(visit: Visit, field: str) -> str:
    value = visit.form.get(field)
    return value if isinstance(value, str) else ""


def _counted(made: Calendar) -> str:
    days, spans = count_days(made.days)
    words = [counted(days, "day", "days")] if days or not spans else []
    return " and ".join([*words, *([counted(spans, "span", "spans")] if spans else [])])


ROUTES: list[BaseRoute] = [
    page("/calendars", list_calendars),
    page("/calendar", show_calendar),
    action("/calendar/set", set_calendar, right=Right.EDIT),
    action("/calendar/import", import_calendar, right=Right.EDIT),
    action("/calendar/delete", delete_calendar, right=Right.DELETE),
]
