"""Calendars: listed, shown, changed, imported from files of any format, and deleted.

A broken calendar is listed and shown, too, with its error. With a revision, an operation changes a calendar
only as the user has seen it: Redis compares it in the step in which it is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any

from redbeat.access import Right
from redbeat.calendars import (
    Calendar,
    changed_from,
    entries_in_words,
    find_users,
    read_known,
    store_calendar,
)
from redbeat.config.suggestions import did_you_mean
from redbeat.entries.calendar_loading import ABOUT, StoredCalendar, Unusable, names_in, read_stored
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import CalendarError, CalendarNotFound, ConfigurationError, EntryChanged, StoreRefused
from redbeat.log.text import counted, shorten
from redbeat.manifest.format import decode_file, read_calendar
from redbeat.operations.actor import Actor
from redbeat.operations.editing import Deleted, DryRun
from redbeat.operations.operation import Option, Seen, SeenOption, given_values, operation
from redbeat.operations.selection import Cursor, decode_cursor, encode_cursor, invalid_cursor, look_at_each
from redbeat.schedules.exclusions import Exclusions
from redbeat.store.calendars import replace_calendar
from redbeat.store.server import Server
from redbeat.store.store import Store

Name = Annotated[str, Option("The name of the calendar.")]
About = Annotated[str | None, Option("What the calendar is for. Default: as the file says.")]
Until = Annotated[
    date | None, Option("Take events of an iCalendar file up to this date. Default: five years from now.")
]
Force = Annotated[
    bool, Option("Also delete calendars that entries name; such an entry is quarantined when it is due.")
]

#: how long the name and the free text may be, characters
MAX_NAME, MAX_ABOUT = 300, 10_000


#: the documents of all calendars by their names, with the numbers of their days and spans, and whether these
#: are all
AllCalendars = tuple[Mapping[str, dict[str, Any]], bool]


@dataclass(frozen=True)
class CalendarList:
    """Calendars, without the entries that name them.

    Attributes:
        calendars: their documents.
        is_complete: False: without the right to scan keys only calendars that entries name are known.
        next: the cursor to go on with; None: these were the last ones.
    """

    calendars: Sequence[Mapping[str, Any]]
    is_complete: bool
    next: str | None


@dataclass(frozen=True)
class CalendarAndEntries:
    """A calendar's document with some of the entries that name it; ``next`` as in ``CalendarList``."""

    document: Mapping[str, Any]
    next: str | None


@dataclass(frozen=True)
class CalendarChange:
    """A calendar's document after a change; ``is_new``: the calendar was missing."""

    document: Mapping[str, Any]
    is_new: bool


@operation("calendars.page", Right.READ, "calendar", "GET /calendars")
def list_calendars(
    actor: Actor,
    *,
    limit: Annotated[int, Option("At most this many.", least=1, most=200)] = 50,
    cursor: Cursor = None,
) -> CalendarList:
    """All calendars."""
    names, is_complete = list_names(actor)
    if cursor is not None:
        after = decode_cursor(cursor)
        if len(after) != 1 or not isinstance(after[0], str):
            raise invalid_cursor()
        names = [name for name in names if name > after[0]]
    following = encode_cursor([names[limit - 1]]) if len(names) > limit else None
    return CalendarList(documents(actor, names[:limit], {}), is_complete, following)


def list_names(actor: Actor) -> tuple[list[str], bool]:
    """Return the names of the stored calendars, and whether these are all.

    Without the right to scan keys they are the names that entries use.
    """
    try:
        return Calendar.names(actor.app), True
    except StoreRefused:
        return sorted(find_users(Store(actor.app))), False


@operation("calendars.list", Right.READ, "calendar list")
def list_all(actor: Actor, progress: Callable[[int], object] = lambda _count: None) -> AllCalendars:
    """Return all calendars.

    Arguments:
        progress: called with how many entries were looked at so far.
    """
    names, is_complete = list_names(actor)
    users, found = find_users(Store(actor.app), names, progress), dict[str, dict[str, Any]]()
    for document in documents(actor, names, users):
        days, spans = count_days(document["days"])
        found[document["name"]] = {**document, "days": days, "spans": spans}
    return found, is_complete


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


@operation("calendar.show", Right.READ, "calendar", "GET /calendars/{name}")
def show_calendar(
    actor: Actor,
    name: Name,
    *,
    limit: Annotated[int, Option("At most this many entries.", least=1, most=1000)] = 100,
    cursor: Cursor = None,
) -> CalendarAndEntries:
    """The days of a calendar, and the entries that name it.

    Raises:
        CalendarNotFound: it is missing.
    """

    def is_naming(entry: RedBeatSchedulerEntry) -> bool:
        return entry.stored is not None and name in names_in(entry.stored)

    document = show(actor, name, {})
    found, following = look_at_each(actor.app, None, is_naming, cursor, limit)
    return CalendarAndEntries(
        {**document, "entries": sorted(str(one.entry.name) for one in found)}, following
    )


def show(actor: Actor, name: str, users: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Return the document of one calendar.

    Arguments:
        users: the entries that name it, if that is known already; None: they are looked for.

    Raises:
        CalendarNotFound: it is missing.
    """
    actor.require(Right.READ)
    _read_existing(actor, name)
    [document] = documents(actor, [name], find_users(Store(actor.app), [name]) if users is None else users)
    return document


def _read_existing(actor: Actor, name: str) -> StoredCalendar:
    stored = read_known(Store(actor.app), name)
    if stored.is_missing:
        hint = did_you_mean(name, list_names(actor)[0])
        raise CalendarNotFound(f"There is no calendar {shorten(name, 200)!r}.{hint}", name)
    return stored


@operation("calendar.set", Right.EDIT, "calendar", "PATCH /calendars/{name}", is_heavy=True)
def set_calendar(
    actor: Actor,
    name: Name,
    *,
    days: Annotated[
        dict[str, str | None] | None, Option("Days and spans, each with its label; null removes it.")
    ] = None,
    about: Annotated[str | None, Option("What the calendar is for.", may_be_empty=True)] = None,
    seen: SeenOption = None,
) -> CalendarChange:
    """Add days; null removes one.

    A missing calendar is created.

    Raises:
        EntryChanged: it isn't as it was seen.
        CalendarError: it is unusable, it has no such day to remove, or one of ``days`` isn't a day or a span.
    """
    _check_texts(name, about)
    changes = days or {}

    def change(stored: StoredCalendar) -> Calendar:
        return changed_from(stored, changes, about, actor.app)

    added = {day: label for day, label in changes.items() if label is not None}
    removed = [day for day, label in changes.items() if label is None]
    details = {"days": added or None, "remove": removed or None, "about": about}
    return _store(actor, "calendar set", name, change, details, seen)


@operation("calendar.put", Right.EDIT, "calendar import", "PUT /calendars/{name}", is_heavy=True)
def put_calendar(
    actor: Actor,
    name: Name,
    *,
    file: Annotated[
        bytes,
        Option("The file.", media=("application/json", "text/calendar", "application/yaml", "text/plain")),
    ],
    add: Annotated[bool, Option("Add the days to those that are stored.")] = False,
    about: About = None,
    until: Until = None,
    dry_run: Annotated[bool, Option("Store nothing, and answer the days of the file.")] = False,
    seen: SeenOption = None,
    origin: str = "body",
) -> CalendarChange:
    """Store the days of a file as a calendar.

    Arguments:
        origin: the file's name.

    Raises:
        EntryChanged: it isn't as it was seen.
        CalendarError: the file is unusable, or needs a package that is missing.
    """
    if seen is not None:
        _check_seen(seen, read_known(Store(actor.app), name))
    read = read_import(actor, name, file, origin, about, until)
    if dry_run:
        made = StoredCalendar(name, {ABOUT: read.about, **read.days})
        document = {"name": name, "about": read.about, "days": made.days, "revision": made.revision}
        return CalendarChange({**document, "next_excluded": None, "error": None}, is_new=False)

    def change(stored: StoredCalendar) -> Calendar:
        return changed_from(stored, read.days, read.about or None, actor.app) if add else read

    details = {"file": origin, "days": len(read.days), "replace": not add or None}
    return _store(actor, "calendar import", name, change, details, seen)


def read_import(
    actor: Actor, name: str, data: bytes, origin: str, about: About = None, until: Until = None
) -> Calendar:
    """Return the calendar ``name`` with the days of a file; nothing is changed.

    Arguments:
        data: an iCalendar file, a file of entries that has this calendar, YAML, JSON, or a day in each line.

    Raises: as ``put_calendar``.
    """
    actor.require(Right.EDIT)
    _check_texts(name, about)
    try:
        text = decode_file(data, origin)
        if text.lstrip()[:15].upper() == "BEGIN:VCALENDAR":
            return Calendar.from_ical(name, data, until, about or "", actor.app)
        fields = read_calendar(text, name, origin)
        stands = fields.get("about", "") if about is None else about
        return Calendar(name, fields.get("days") or (), stands, actor.app)
    except (ConfigurationError, ValueError) as exc:
        if actor.has_shell and isinstance(exc, ConfigurationError):
            raise
        raise CalendarError(str(exc), name) from exc


def _store(
    actor: Actor,
    verb: str,
    name: str,
    change: Callable[[StoredCalendar], Calendar],
    details: Mapping[str, Any],
    seen: Seen | None,
) -> CalendarChange:
    store = Store(actor.app)

    def change_seen(stored: StoredCalendar) -> Calendar:
        if seen is not None:
            _check_seen(seen, stored)
        return change(stored)

    stored = read_known(store, name)
    change_seen(stored)  # what is refused doesn't go into the audit list
    with actor.doing(verb, [name], given_values(**details)):
        store_calendar(name, change_seen, actor.app)
    [document] = documents(actor, [name], {})
    return CalendarChange(document, stored.is_missing)


def _check_seen(seen: Seen, stored: StoredCalendar) -> None:
    try:
        seen.check(stored.name, stored.revision or None)
    except EntryChanged as exc:
        exc.revision = stored.revision or None
        raise


@operation("calendar.delete", Right.DELETE, "calendar delete", "DELETE /calendars/{name}", is_heavy=True)
def delete_calendar(
    actor: Actor, name: Name, *, force: Force = False, dry_run: DryRun = False, seen: SeenOption = None
) -> Deleted:
    """Remove a calendar.

    Raises:
        EntryChanged: it isn't as it was seen.
        CalendarNotFound: it is missing.
        CalendarError: entries name it.
    """
    store, stored = Store(actor.app), _read_existing(actor, name)
    if seen is not None:
        _check_seen(seen, stored)
    users = [] if force else find_users(store, [name]).get(name)
    if users:
        raise CalendarError(
            f"The calendar {shorten(name, 200)!r} is named by {entries_in_words(users)}: let them name "
            "another one, or none (unset exclude); or delete it all the same (--force), and they are "
            "quarantined when they are due.",
            name,
        )
    if not dry_run:
        with actor.doing("calendar delete", [name], {"force": True} if force else {}):
            if not replace_calendar(store, name, {}, None if seen is None else stored.read):
                _check_seen(Seen([stored.revision]), read_known(store, name))
    return Deleted(0 if dry_run else 1, [name])


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
