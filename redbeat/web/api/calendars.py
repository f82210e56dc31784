"""Calendars: the days on which entries don't run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from typing import Any

from redbeat.access import Right
from redbeat.connection.retry import is_no_permission
from redbeat.entries.calendar_loading import names_in
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryChanged, StoreRefused
from redbeat.operations.selection import BUDGET_SECONDS, decode_cursor, encode_cursor
from redbeat.web.api.choices import DRY_RUN
from redbeat.web.api.cursors import CURSOR, look_through, path_on
from redbeat.web.api.etags import changed, check, etag_of, is_conditional
from redbeat.web.api.kinds import FLAG, OBJECT, TEXT, Field, Kind, whole
from redbeat.web.api.operations import (
    CALENDAR,
    IF_MATCH,
    IF_NONE_MATCH,
    JSON,
    MERGE_PATCH,
    PLAIN,
    YAML,
    Answer,
    Body,
    Call,
    Operation,
)
from redbeat.web.api.schemas import of
from redbeat.web.verbs import calendars

#: how many calendars one answer has at most
MOST_LISTED = 200


def list_calendars(call: Call) -> Answer:
    """List the calendars, a slice at a time."""
    given, limit = call.query["cursor"], call.query["limit"]
    position = _position_at(given)
    if position is not None:
        try:
            found, following = calendars.list_(call.actor, position, limit, BUDGET_SECONDS)
        except StoreRefused as exc:
            if not is_no_permission(exc.__cause__):
                raise
            given = None  # this user of Redis may not look at every key
        else:
            cursor = None if following is None else encode_cursor([*following])
            return _listed(call, found, cursor, is_complete=True)
    names, cursor = _named_by_entries(call, given, limit)
    return _listed(call, calendars.documents(call.actor, names), cursor, is_complete=False)


def _listed(
    call: Call, found: Sequence[Mapping[str, Any]], cursor: str | None, *, is_complete: bool
) -> Answer:
    listed = [_shown(call, one) for one in found]
    following = path_on(call, "/calendars", cursor)
    return Answer({"calendars": listed, "is_complete": is_complete, "next": following})


def _position_at(cursor: str | None) -> calendars.Position | None:
    """Return where a look at all keys goes on; None: it is a look at the entries that goes on there."""
    if cursor is None:
        return calendars.Position()
    values = decode_cursor(cursor)
    if len(values) == 2 and type(values[0]) is int and 0 <= values[0] < 2**64 and isinstance(values[1], str):
        return calendars.Position(*values)
    return None


def _named_by_entries(call: Call, cursor: str | None, limit: int) -> tuple[list[str], str | None]:
    names: dict[str, None] = {}

    def has_enough(entry: RedBeatSchedulerEntry) -> bool:
        names.update(dict.fromkeys(names_in(entry.stored) if entry.stored is not None else ()))
        return len(names) >= limit

    _, following = look_through(call.app, None, has_enough, cursor, 1)
    return sorted(names), following


def show_calendar(call: Call) -> Answer:
    """Show the days of a calendar, and the entries that name it, a slice at a time."""

    def is_naming(entry: RedBeatSchedulerEntry) -> bool:
        return entry.stored is not None and call.name in names_in(entry.stored)

    shown = _shown(call, calendars.show(call.actor, call.name, {}))
    found, cursor = look_through(call.app, None, is_naming, call.query["cursor"], call.query["limit"])
    users = {"entries": sorted(str(entry.name) for entry in found)}
    return Answer(
        {**shown, **users, "next": path_on(call, shown["href"], cursor)}, headers={"ETag": shown["etag"]}
    )


def put_calendar(call: Call) -> Answer:
    """Store the days of a calendar, or add them to what is stored."""
    before = _revision(call)
    check(call, before)
    origin = "body.ics" if call.media == CALENDAR else "body"
    about, until = call.query["about"], call.query["until"]
    read = calendars.read_import(call.actor, call.name, call.body, origin, about, until)
    if call.query["dry_run"]:
        days = dict(sorted(read.days.items()))
        found = {"name": read.name, "about": read.about, "days": days, "next_excluded": None, "error": None}
        return Answer(_shown(call, found))
    is_adding = call.query["add"]
    with _telling_of_changes(call):
        calendars.import_(
            *(call.actor, read, origin),
            is_replacing=not is_adding,
            is_adding=is_adding,
            revision=_seen(call, before),
        )
    return _answer(call, 200 if before is not None else 201)


def patch_calendar(call: Call) -> Answer:
    """Add days to a calendar, and remove those that are null."""
    before = _revision(call)
    check(call, before)
    days: Mapping[str, str | None] = call.body["days"] or {}
    with _telling_of_changes(call):
        calendars.set_(
            call.actor,
            call.name,
            {day: label for day, label in days.items() if label is not None},
            without=[day for day, label in days.items() if label is None],
            about=call.body["about"],
            revision=_seen(call, before),
        )
    return _answer(call, 200 if before is not None else 201)


def delete_calendar(call: Call) -> Answer:
    """Remove a calendar."""
    before = _revision(call)
    if before is not None:
        check(call, before)
    with _telling_of_changes(call):
        calendars.delete(
            *(call.actor, [call.name]),
            force=call.query["force"],
            revision=_seen(call, before),
            dry_run=call.query["dry_run"],
        )
    return Answer({"deleted": 0 if call.query["dry_run"] else 1, "names": [call.name]})


def _seen(call: Call, before: str | None) -> str | None:
    """Return the revision on which the caller relies, which is there; None: on none."""
    return before or "" if is_conditional(call) else None


@contextmanager
def _telling_of_changes(call: Call) -> Iterator[None]:
    """Answer what is there, if it isn't what the caller has seen."""
    try:
        yield
    except EntryChanged as exc:
        raise changed(str(exc), _revision(call)) from exc


def _answer(call: Call, status: int = 200) -> Answer:
    shown = _shown(call, calendars.show(call.actor, call.name, {}))
    location = {"Location": call.root + shown["href"]} if status == 201 else {}
    return Answer(shown, status, {"ETag": shown["etag"], **location})


def _shown(call: Call, document: Mapping[str, Any]) -> dict[str, Any]:
    href = call.href("calendars", str(document["name"]))
    shown = {name: value for name, value in document.items() if name != "entries"}
    return {**shown, "href": href, "etag": etag_of(calendars.revision_of(document))}


def _revision(call: Call) -> str | None:
    return calendars.revision_now(call.actor, call.name) or None


def _days(value: Any) -> dict[str, str | None]:
    days: dict[str, str | None] = OBJECT.read(value)
    for label in days.values():
        if label is not None and not isinstance(label, str):
            raise ValueError("must have texts, or null for a day to remove.")
    return days


def _about(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text.")
    return value


def _date(value: Any) -> date:
    try:
        return date.fromisoformat(str(value))
    except ValueError:
        raise ValueError("must be a date: 2030-12-24.") from None


DATE = Kind({"type": "string", "format": "date"}, _date)
DAYS = Kind({"type": "object", "additionalProperties": {"type": ["string", "null"]}}, _days)

OPERATIONS: Sequence[Operation] = (
    Operation(
        *("GET", "/calendars", "calendar", Right.READ, "All calendars.", list_calendars),
        {200: of("Calendars")},
        (Field("limit", whole(1, MOST_LISTED), "At most so many.", default=50), CURSOR),
    ),
    Operation(
        *(
            "GET",
            "/calendars/{name}",
            "calendar",
            Right.READ,
            "The days of a calendar, and who names it.",
            show_calendar,
        ),
        {200: of("CalendarAndEntries")},
        (Field("limit", whole(1, 1000), "At most so many entries.", default=100), CURSOR),
        has_etag=True,
    ),
    Operation(
        *(
            "PUT",
            "/calendars/{name}",
            "calendar",
            Right.EDIT,
            "Store the days of a file as a calendar.",
            put_calendar,
        ),
        {200: of("Calendar"), 201: of("Calendar")},
        (
            Field("add", FLAG, "Add the days to those that are stored.", default=False),
            Field("about", TEXT, "What the calendar is for. Default: as the file says."),
            Field(
                "until", DATE, "Events of an iCalendar file up to this date. Default: five years from now."
            ),
            Field("dry_run", FLAG, "Store nothing, and answer the days of the file.", default=False),
        ),
        Body(media=(JSON, CALENDAR, YAML, PLAIN), is_needed=True),
        (IF_MATCH, IF_NONE_MATCH),
        has_etag=True,
        is_heavy=True,
    ),
    Operation(
        *(
            "PATCH",
            "/calendars/{name}",
            "calendar",
            Right.EDIT,
            "Add days; null removes one.",
            patch_calendar,
        ),
        {200: of("Calendar"), 201: of("Calendar")},
        body=Body(
            (
                Field("days", DAYS, "Days and spans, each with its label; null removes it."),
                Field("about", Kind({"type": "string"}, _about), "What the calendar is for."),
            ),
            media=(MERGE_PATCH, JSON),
            is_needed=True,
        ),
        headers=(IF_MATCH,),
        has_etag=True,
        is_heavy=True,
    ),
    Operation(
        *("DELETE", "/calendars/{name}", "calendar", Right.DELETE, "Remove a calendar.", delete_calendar),
        {200: of("Deleted")},
        (
            Field(
                "force",
                FLAG,
                "Also one that entries name; they are quarantined when they are due.",
                default=False,
            ),
            DRY_RUN,
        ),
        headers=(IF_MATCH,),
        is_heavy=True,
    ),
)
