"""Calendars: listed, shown, changed, imported from files of any format, and deleted.

A broken calendar is listed and shown, too, with its error. With a revision, an operation changes a calendar
only as the user has seen it: Redis compares it in the step in which it is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from typing import Annotated, Any

from redbeat.access import Right
from redbeat.calendars import (
    Calendar,
    changed_from,
    entries_in_words,
    error_of_change,
    find_users,
    read_seen,
    store_calendar,
)
from redbeat.entries.calendar_loading import StoredCalendar, Unusable, read_stored
from redbeat.errors import CalendarError, CalendarNotFound, ConfigurationError, StoreRefused
from redbeat.log.text import counted, shorten
from redbeat.manifest.format import decode_file, read_calendar
from redbeat.operations.actor import Actor
from redbeat.operations.editing import DryRun
from redbeat.operations.operation import Option, operation
from redbeat.schedules.exclusions import Exclusions, spelled
from redbeat.store.calendars import replace_calendar
from redbeat.store.server import Server
from redbeat.store.store import Store

#: how long the name and the free text may be, characters
MAX_NAME, MAX_ABOUT = 300, 10_000
#: how many calendars are read at once
READ_AT_ONCE = 20


def list_names(actor: Actor) -> tuple[list[str], bool]:
    """Return the names of the stored calendars, and whether these are all.

    Without the right to scan keys they are the names that entries use.
    """
    actor.require(Right.READ)
    try:
        return Calendar.names(actor.app), True
    except StoreRefused:
        return sorted(find_users(Store(actor.app))), False


@operation("calendars.list", Right.READ, "calendar list")
def list_all(
    actor: Actor, progress: Callable[[list[dict[str, Any]], bool], object] = lambda _found, _is_complete: None
) -> tuple[list[dict[str, Any]], bool]:
    """Return the documents of all calendars with the numbers of their days and spans; whether these are all.

    Arguments:
        progress: called with the same now and then, with None in place of the entries that name a calendar.
    """
    names, is_complete = list_names(actor)
    found: list[dict[str, Any]] = []
    for begin in range(0, len(names), READ_AT_ONCE):
        for document in documents(actor, names[begin : begin + READ_AT_ONCE], {}):
            days, spans = count_days(document["days"])
            found.append({**document, "days": days, "spans": spans, "entries": None})
        progress(found, is_complete)
    users = find_users(Store(actor.app), names, lambda _count: progress(found, is_complete))
    return [{**document, "entries": users.get(document["name"], [])} for document in found], is_complete


def documents(actor: Actor, names: Iterable[str], users: Mapping[str, Sequence[str]]) -> list[dict[str, Any]]:
    """Return calendars as plain JSON.

    Arguments:
        users: the entries that name them, by the calendars' names.
    """
    store = Store(actor.app)
    zone, now = actor.app.timezone, Server(store).now()
    found = []
    for name, stored in read_stored(store, names).items():
        excluded = stored.excluded
        following = None if isinstance(excluded, Unusable) else excluded.next_excluded(now, zone)
        if isinstance(following, datetime):
            following = following.astimezone(zone)
        found.append(
            {
                "name": name,
                "about": stored.about,
                "days": stored.days,
                "entries": list(users.get(name, ())),
                "next_excluded": following and following.isoformat(),
                "error": excluded.reason if isinstance(excluded, Unusable) else None,
                "revision": stored.revision,
            }
        )
    return found


@operation("calendar.show", Right.READ, "calendar show")
def show(actor: Actor, name: str, users: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Return the document of one calendar.

    Arguments:
        users: the entries that name it, if that is known already; None: they are looked for.

    Raises:
        CalendarNotFound: it is missing.
    """
    find(actor, name)
    [document] = documents(actor, [name], find_users(Store(actor.app), [name]) if users is None else users)
    return document


def find(actor: Actor, name: str, revision: str | None = None) -> StoredCalendar:
    """Return a stored calendar, which may be unusable.

    Raises:
        CalendarNotFound: it is missing.
        EntryChanged: it has another revision.
    """
    actor.require(Right.READ)
    stored = read_seen(Store(actor.app), name, revision)
    if stored.is_missing:
        raise CalendarNotFound(f"There is no calendar {shorten(name, 200)!r}.", name)
    return stored


@operation("calendar.set", Right.EDIT, "calendar set")
def set_(
    actor: Actor,
    name: str,
    days: Mapping[str, str | None],
    *,
    about: Annotated[str | None, Option("What the calendar is for.")] = None,
    revision: str | None = None,
) -> Calendar:
    """Add days to a calendar, and remove others; return it. If it is missing, it is created.

    Arguments:
        days: days and spans with their labels; None for one to remove.
        about: None: it stays.
        revision: as :func:`redbeat.calendars.store_calendar` takes it.

    Raises:
        EntryChanged: it isn't as it was seen.
        CalendarError: it is unusable, it has no such day to remove, or one of ``days`` isn't a day or a span.
    """
    _check_texts(name, about)
    try:
        labels = {day: label for day, label in days.items() if label is not None}
        added = Calendar(name, labels, app=actor.app).days
        removed = [spelled(day) for day, label in days.items() if label is None]
    except ValueError as exc:
        raise CalendarError(str(exc), name) from exc

    def change(stored: StoredCalendar) -> Calendar:
        return changed_from(stored, added, removed, about, actor.app)

    details = {"days": added or None, "remove": removed or None, "about": about}
    return _store(actor, "calendar set", name, change, details, revision)


@operation("calendar.read", Right.EDIT, "calendar import")
def read_import(
    actor: Actor,
    name: str,
    data: bytes,
    origin: str,
    about: Annotated[str | None, Option("What the calendar is for. Default: as the file says.")] = None,
    until: Annotated[
        date | None,
        Option("Events of an iCalendar file up to this date. Default: five years from now."),
    ] = None,
) -> Calendar:
    """Return the calendar ``name`` with the days of a file; nothing is changed.

    Arguments:
        data: an iCalendar file, a file of entries that has this calendar, YAML, JSON, or a day in each line.
        origin: the file's name.

    Raises:
        CalendarError: the file is unusable, or needs a package that is missing.
    """
    _check_texts(name, about)
    try:
        text = decode_file(data, origin)
        if origin.lower().endswith(".ics") or text.lstrip()[:15].upper() == "BEGIN:VCALENDAR":
            return Calendar.from_ical(name, data, until, about or "", actor.app)
        fields = read_calendar(text, name, origin)
        stands = fields.get("about", "") if about is None else about
        return Calendar(name, fields.get("days") or (), stands, actor.app)
    except (ValueError, ConfigurationError) as exc:
        raise CalendarError(str(exc), name) from exc


@operation("calendar.import", Right.EDIT, "calendar import")
def import_(
    actor: Actor,
    read: Calendar,
    origin: str,
    mode: str = "new",
    revision: str | None = None,
    *,
    dry_run: bool = False,
) -> Calendar:
    """Store a calendar that ``read_import`` has returned; return it. A dry run stores nothing.

    Arguments:
        mode: 'add' its days to the stored ones, 'replace' these, or, 'new', refuse to change a stored one.
        revision: as :func:`redbeat.calendars.store_calendar` takes it.

    Raises:
        EntryChanged: it isn't as it was seen.
        CalendarError: a calendar of this name exists, and ``mode`` is 'new'.
    """

    def change(stored: StoredCalendar) -> Calendar:
        if mode == "add":
            return changed_from(stored, read.days, (), read.about or None, actor.app)
        if mode != "replace" and not stored.is_missing:
            raise CalendarError(
                f"The calendar {shorten(read.name, 200)!r} exists already: replace its days (--replace), or "
                "add the file's days to them (--add).",
                read.name,
            )
        return read

    if dry_run:
        return change(read_seen(Store(actor.app), read.name, revision))
    details = {"file": origin, "days": len(read.days), "replace": mode == "replace" or None}
    return _store(actor, "calendar import", read.name, change, details, revision)


def _store(
    actor: Actor,
    verb: str,
    name: str,
    change: Callable[[StoredCalendar], Calendar],
    details: Mapping[str, Any],
    revision: str | None,
) -> Calendar:
    change(read_seen(Store(actor.app), name, revision))  # what is refused doesn't go into the audit list
    given = {field: value for field, value in details.items() if value is not None}
    with actor.doing(verb, [name], given):
        return store_calendar(name, change, actor.app, revision)


@operation("calendars.delete", Right.DELETE, "calendar delete")
def delete(
    actor: Actor,
    names: Sequence[str],
    *,
    force: Annotated[
        bool, Option("Also calendars that entries name; such an entry is quarantined when it is due.")
    ] = False,
    dry_run: DryRun = False,
    revision: str | None = None,
) -> dict[str, list[str]]:
    """Delete calendars; return the entries that name them. A dry run only looks whether that is possible.

    Arguments:
        revision: of the only one, as :func:`redbeat.calendars.store_calendar` takes it.

    Raises:
        EntryChanged: it isn't as it was seen.
        CalendarNotFound: one of them is missing.
        CalendarError: entries name one.
    """
    store, found = Store(actor.app), {name: find(actor, name, revision) for name in dict.fromkeys(names)}
    users = find_users(store, found)
    for name, entries in users.items() if not force else ():
        raise CalendarError(
            f"The calendar {shorten(name, 200)!r} is named by {entries_in_words(entries)}: let them name "
            "another one, or none (unset exclude); or delete it by force, and they are quarantined when they "
            "are due.",
            name,
        )
    if not dry_run:
        with actor.doing("calendar delete", [*found], {"force": True} if force else {}):
            for name, stored in found.items():
                if not replace_calendar(store, name, {}, None if revision is None else stored.read):
                    raise error_of_change(store, name)
    return users


def _check_texts(name: str, about: str | None) -> None:
    if len(name) > MAX_NAME:
        raise CalendarError(f"{shorten(name, 100)}: the name has more than {MAX_NAME} characters.", name)
    if about is not None and len(about) > MAX_ABOUT:
        raise CalendarError(f"{name}: its text has more than {MAX_ABOUT} characters.", name)


def count_days(fields: Iterable[str]) -> tuple[int, int]:
    """Return how many days and how many spans these fields of a calendar exclude."""
    dates = [field for field in fields if not ("T" in field or ":" in field)]
    spans = sum("T" in field or ":" in field for field in fields)
    try:
        return Exclusions(dates).count_days(), spans
    except ValueError:  # a broken calendar is listed, too
        return len(dates), spans


def days_in_words(fields: Iterable[str]) -> str:
    """Return how many days and spans these fields exclude."""
    days, spans = count_days(fields)
    words = [counted(days, "day", "days")] if days or not spans else []
    return " and ".join([*words, *([counted(spans, "span", "spans")] if spans else [])])
