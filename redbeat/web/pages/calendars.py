"""Calendars: all of them, and a year of one at a glance; their days changed, imported and deleted."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import date
from functools import partial
from typing import Any

from starlette.datastructures import UploadFile
from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.calendars import Calendar
from redbeat.entries.calendar_loading import Unusable, read_fields
from redbeat.entries.wording import local_time
from redbeat.errors import CalendarError, FileError
from redbeat.log.text import counted, shorten
from redbeat.manifest.calendar_documents import count_days
from redbeat.manifest.format import read_calendar
from redbeat.store.store import Store
from redbeat.web.changes import Ending, Tell
from redbeat.web.charts.years import draw_year
from redbeat.web.pages.changing import make_change
from redbeat.web.routes import action, page
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


def list_calendars(visit: Visit) -> Response:
    """Return the list."""
    result = verbs.survey(visit.actor, visit.dashboard.background, is_wanted="again" in visit.query)
    found = result.found
    after = visit.query.get("after", "")
    names = sorted(name for name in (found.documents if found is not None else ()) if name > after)
    return visit.render(
        "calendars_part.html" if visit.is_fragment else "calendars.html",
        title="Calendars",
        result=result,
        found=found,
        names=names[:PAGE],
        more_url=visit.link("calendars", after=names[PAGE - 1]) if len(names) > PAGE else None,
        first_url=visit.link("calendars") if after else None,
        url=visit.link("calendars", after=after or None),
    )


def show_calendar(visit: Visit) -> Response:
    """Return the page of one."""
    name = visit.query.get("name", "")
    result = verbs.survey(visit.actor, visit.dashboard.background)
    found = result.found
    named_by = found.named_by.get(name, ()) if found is not None else ()
    document = verbs.show(visit.actor, name, {name: named_by})
    return _show(visit, document, result=result)


def _show(visit: Visit, document: Mapping[str, Any], **context: Any) -> Response:
    name, zone = str(document["name"]), visit.app.timezone
    today = local_time(visit.now, zone).date()
    given = visit.query.get("year", "")
    number = int(given) if re.fullmatch("[0-9]{4}", given) and int(given) in YEARS else today.year
    days: Mapping[str, str] = document["days"]
    year = draw_year(days, number, zone, today)
    found = context["result"].found
    return visit.render(
        "calendar.html",
        title=name,
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
        **context,
    )


def _text_of(days: Mapping[str, str]) -> str:
    """Return days as people edit them: one in each line with its label, or JSON where a label needs that."""
    if all(label == " ".join(label.split()) and label.isprintable() for label in days.values()):
        return "\n".join(f"{day} {label}".strip() for day, label in sorted(days.items()))
    return json.dumps(dict(sorted(days.items())), indent=1)


def set_calendar(visit: Visit) -> Response:
    """Add days, remove one, or put an edited text in place of what was shown."""
    name, form = _field(visit, "name").strip(), visit.form
    about = _field(visit, "about").strip() if "about" in form else None
    revision = _field(visit, "revision") if "revision" in form else None
    added: dict[str, str] = {}
    removed = [*visit.names("remove")]
    if first := _field(visit, "first").strip():
        last = _field(visit, "last").strip()
        added[f"{first}/{last}" if last and last != first else first] = _field(visit, "label").strip()
    if "text" in form:
        edited = _days_of(name, _field(visit, "text"))
        stored = read_fields(Store(visit.app), [name])[name]
        before = {} if isinstance(stored, Unusable) else stored
        added |= {day: label for day, label in edited.items() if before.get(day) != label}
        removed += [day for day in before if day not in edited and day != "about"]
    if not added and not removed and about is None and revision != "":
        raise CalendarError(f"{shorten(name, 200)}: give a day to add.", name)
    year, actor = next(iter([*added, *removed]), "")[:4], visit.actor

    def store(tell: Tell) -> Calendar:
        tell(_RETIMED)
        return verbs.set_(actor, name, added, without=removed, about=about, revision=revision)

    return make_change(visit, f"Change {shorten(name, 200)}", store, partial(_ending, year or None))


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
    name, mode = _field(visit, "name").strip(), _field(visit, "mode")
    if not name:
        raise CalendarError("A calendar must have a name.", name)
    origin, data, kind = _given_file(visit)
    typed = _field(visit, "until").strip()
    try:
        until = date.fromisoformat(typed) if typed else None
    except ValueError as exc:
        raise CalendarError(f"until: {exc}.", name) from exc
    read = verbs.read_import(visit.actor, name, data, kind, _field(visit, "about").strip() or None, until)
    stored = read_fields(Store(visit.app), [name])[name]
    before = {} if isinstance(stored, Unusable) else stored
    is_new = isinstance(stored, Unusable) and stored.is_missing
    if visit.form.get("confirmed") == "yes":
        is_replacing, is_adding = mode == "replace", mode == "add"
        years, actor = sorted({day[:4] for day in read.days}), visit.actor
        year = next((one for one in years if one >= str(visit.now.year)), years[-1] if years else None)

        def store(tell: Tell) -> Calendar:
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

    def remove(tell: Tell) -> None:
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
