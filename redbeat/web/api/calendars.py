"""Calendars: the days on which entries don't run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from redbeat.access import Right
from redbeat.entries.calendar_loading import ABOUT, StoredCalendar, names_in, read_one
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import EntryChanged
from redbeat.operations import calendars
from redbeat.operations.selection import decode_cursor, encode_cursor, invalid_cursor
from redbeat.store.store import Store
from redbeat.web.api.cursors import CURSOR, look_through, path_on
from redbeat.web.api.derived import field_of
from redbeat.web.api.etags import changed, check, etag_of, is_conditional
from redbeat.web.api.kinds import FLAG, OBJECT, Field, Kind, whole
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

#: how many calendars one answer has at most
MOST_LISTED = 200


def list_calendars(call: Call) -> Answer:
    """List the calendars, a slice at a time."""
    names, is_complete = calendars.list_names(call.actor)
    if call.query["cursor"] is not None:
        after = decode_cursor(call.query["cursor"])
        if len(after) != 1 or not isinstance(after[0], str):
            raise invalid_cursor()
        names = [name for name in names if name > after[0]]
    chosen = names[: call.query["limit"]]
    following = path_on(call, encode_cursor(chosen[-1:]) if len(names) > len(chosen) else None)
    listed = [_shown(call, one) for one in calendars.documents(call.actor, chosen, {})]
    return Answer({"calendars": listed, "is_complete": is_complete, "next": following})


def show_calendar(call: Call) -> Answer:
    """Show the days of a calendar, and the entries that name it, a slice at a time."""

    def is_naming(entry: RedBeatSchedulerEntry) -> bool:
        return entry.stored is not None and call.name in names_in(entry.stored)

    shown = _shown(call, calendars.show(call.actor, call.name, {}))
    found, cursor = look_through(call.app, None, is_naming, call.query["cursor"], call.query["limit"])
    users = {"entries": sorted(str(entry.name) for entry in found)}
    return Answer({**shown, **users, "next": path_on(call, cursor)}, headers={"ETag": shown["etag"]})


def put_calendar(call: Call) -> Answer:
    """Store the days of a calendar, or add them to what is stored."""
    with _as_seen(call) as (stored, revision):
        origin = "body.ics" if call.media == CALENDAR else "body"
        given = calendars.read_import.arguments(call.query)
        read = calendars.read_import(call.actor, call.name, call.body, origin, **given)
        if call.query["dry_run"]:
            made = StoredCalendar(read.name, {ABOUT: read.about, **read.days})
            found = {"name": read.name, "about": read.about, "days": made.days, "revision": made.revision}
            return Answer(_shown(call, {**found, "next_excluded": None, "error": None}))
        mode = "add" if call.query["add"] else "replace"
        calendars.import_(call.actor, read, origin, mode, revision)
    return _answer(call, is_new=stored.is_missing)


def patch_calendar(call: Call) -> Answer:
    """Add days to a calendar, and remove those that are null."""
    days, about = call.body["days"] or {}, call.body["about"]
    with _as_seen(call) as (stored, revision):
        calendars.set_(call.actor, call.name, days, about=about, revision=revision)
    return _answer(call, is_new=stored.is_missing)


def delete_calendar(call: Call) -> Answer:
    """Remove a calendar."""
    calendars.find(call.actor, call.name)
    with _as_seen(call) as (_, revision):
        calendars.delete(call.actor, [call.name], revision=revision, **call.query)
    return Answer({"deleted": 0 if call.query["dry_run"] else 1, "names": [call.name]})


@contextmanager
def _as_seen(call: Call) -> Iterator[tuple[StoredCalendar, str | None]]:
    """Return the stored calendar, and the revision on which the caller relies, None for any.

    A calendar that isn't as the caller has seen it, also when it is changed, is answered with its revision.
    """

    def read() -> StoredCalendar:
        return read_one(Store(call.app), call.name)

    stored = read()
    check(call, stored.revision or None)
    try:
        yield stored, stored.revision if is_conditional(call) else None
    except EntryChanged as exc:
        raise changed(str(exc), read().revision or None) from exc


def _answer(call: Call, *, is_new: bool) -> Answer:
    shown = _shown(call, calendars.show(call.actor, call.name, {}))
    location = {"Location": call.root + shown["href"]} if is_new else {}
    return Answer(shown, 201 if is_new else 200, {"ETag": shown["etag"], **location})


def _shown(call: Call, document: Mapping[str, Any]) -> dict[str, Any]:
    href = call.href("calendars", str(document["name"]))
    shown = {name: value for name, value in document.items() if name not in ("entries", "revision")}
    return {**shown, "href": href, "etag": etag_of(document["revision"])}


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


DAYS = Kind({"type": "object", "additionalProperties": {"type": ["string", "null"]}}, _days)

_ONE = "/calendars/{name}"
_STORED = {200: of("Calendar"), 201: of("Calendar")}

OPERATIONS: Sequence[Operation] = (
    Operation(
        *("GET", "/calendars", "calendar", Right.READ, "All calendars.", list_calendars),
        {200: of("Calendars")},
        (Field("limit", whole(1, MOST_LISTED), "At most so many.", default=50), CURSOR),
    ),
    Operation(
        *("GET", _ONE, "calendar", Right.READ, "The days of a calendar, and who names it.", show_calendar),
        {200: of("CalendarAndEntries")},
        (Field("limit", whole(1, 1000), "At most so many entries.", default=100), CURSOR),
        has_etag=True,
    ),
    Operation(
        *("PUT", _ONE, "calendar", Right.EDIT, "Store the days of a file as a calendar.", put_calendar),
        _STORED,
        (
            Field("add", FLAG, "Add the days to those that are stored.", default=False),
            *map(field_of, calendars.read_import.parameters),
            Field("dry_run", FLAG, "Store nothing, and answer the days of the file.", default=False),
        ),
        Body(media=(JSON, CALENDAR, YAML, PLAIN), is_needed=True),
        (IF_MATCH, IF_NONE_MATCH),
        has_etag=True,
        is_heavy=True,
    ),
    Operation(
        *("PATCH", _ONE, "calendar", Right.EDIT, "Add days; null removes one.", patch_calendar),
        _STORED,
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
        *("DELETE", _ONE, "calendar", Right.DELETE, "Remove a calendar.", delete_calendar),
        {200: of("Deleted")},
        [*map(field_of, calendars.delete.parameters)],
        headers=(IF_MATCH,),
        is_heavy=True,
    ),
)
