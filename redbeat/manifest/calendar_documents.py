"""Calendars as people look at them: which there are, what each excludes, which entries name it; and those of
files in any format.

Invariant: a broken calendar is shown, too, with what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Any

from redbeat.calendars import Calendar, find_users
from redbeat.entries.calendar_loading import ABOUT, Unusable, calendar_from, read_fields
from redbeat.errors import StoreRefused
from redbeat.manifest.format import decode_file, read_calendar
from redbeat.schedules.exclusions import Exclusions
from redbeat.store.server import Server
from redbeat.store.store import Store


def calendar_names(app: Any) -> tuple[list[str], bool]:
    """Return the names of the stored calendars, and whether they are all.

    Without the right to scan keys they are those that entries name.
    """
    try:
        return Calendar.names(app), True
    except StoreRefused:
        return sorted(find_users(Store(app))), False


def calendar_exists(app: Any, name: str) -> bool:
    """Tell whether there is a calendar of this name, be it one that can't be used."""
    fields = read_fields(Store(app), [name])[name]
    return not (isinstance(fields, Unusable) and fields.is_missing)


def calendar_documents(
    app: Any, names: Iterable[str], users: Mapping[str, Sequence[str]] | None = None
) -> list[dict[str, Any]]:
    """Return calendars as plain JSON, with the entries that name them and what they exclude next.

    Arguments:
        users: these entries, by the calendars' names; None: they are looked for among all entries.
    """
    store = Store(app)
    zone, now = app.timezone, Server(store).now()
    found = read_fields(store, names)
    if users is None:
        users = find_users(store, found) if found else {}
    documents = []
    for name, fields in found.items():
        read = calendar_from(name, fields)
        days = (
            {}
            if isinstance(fields, Unusable)
            else {day: fields[day] for day in sorted(fields) if day != ABOUT}
        )
        following = read.next_excluded(now, zone) if isinstance(read, Exclusions) else None
        if isinstance(following, datetime):
            following = following.astimezone(zone)
        documents.append(
            {
                "name": name,
                "about": "" if isinstance(fields, Unusable) else fields.get(ABOUT, ""),
                "days": days,
                "entries": list(users.get(name, ())),
                "next_excluded": following and following.isoformat(),
                "error": read.reason if isinstance(read, Unusable) else None,
            }
        )
    return documents


def count_days(fields: Iterable[str]) -> tuple[int, int]:
    """Return how many days and how many spans these fields of a calendar exclude."""
    dates = [field for field in fields if not ("T" in field or ":" in field)]
    spans = sum("T" in field or ":" in field for field in fields)
    try:
        return Exclusions(dates).count_days(), spans
    except ValueError:  # a broken calendar is listed, too
        return len(dates), spans


def calendar_of_file(
    name: str, data: bytes, origin: str, about: str | None = None, until: date | None = None, app: Any = None
) -> Calendar:
    """Return the calendar ``name`` with the days of a file; it isn't stored.

    Arguments:
        data: an iCalendar file, a file of entries that has this calendar, YAML, JSON, or a day in each line.
        origin: the file's name.
        about: free text; None: the file's.
        until: of an iCalendar file only events up to this date; default: five years from now.

    Raises:
        ConfigurationError: a package that is needed isn't installed.
        ValueError: it can't be used; FileError is one.
    """
    text = decode_file(data, origin)
    if origin.lower().endswith(".ics") or text.lstrip()[:15].upper() == "BEGIN:VCALENDAR":
        return Calendar.from_ical(name, data, until, about or "", app)
    fields = read_calendar(text, name, origin)
    return Calendar(name, fields.get("days") or (), fields.get("about", "") if about is None else about, app)
