"""``calendar list``, ``show``, ``set``, ``import`` and ``delete``.

Invariant: what somebody has seen is what they change: with a revision, a calendar that was changed since then
stays as it is; Redis compares it in the step in which it is changed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any, NamedTuple

from redbeat.access import Right
from redbeat.calendars import Calendar, changed_from, find_users, save_over
from redbeat.entries.calendar_loading import ABOUT, Unusable, calendar_from, names_in, read_fields
from redbeat.entries.query import Coverage
from redbeat.errors import (
    CalendarError,
    CalendarNotFound,
    ConfigurationError,
    EntryChanged,
    StoreRefused,
)
from redbeat.log.text import counted, shorten
from redbeat.manifest.calendar_documents import (
    calendar_documents,
    calendar_of_file,
    count_days,
)
from redbeat.operations.actor import Actor
from redbeat.schedules.exclusions import spelled
from redbeat.store.calendars import replace_calendar, scan_calendar_names
from redbeat.store.entries import read_entries
from redbeat.store.members import count_members, scan_members
from redbeat.store.store import Store
from redbeat.web.jobs import Jobs, Pace, Result, Tell

#: how much processor time a survey of all calendars may take, and how old it may be; seconds
BUDGET_SECONDS, FRESH_SECONDS = 10.0, 3.0
#: how long a page waits for it, seconds
WAIT_SECONDS = 0.03
#: how many calendars are read at once, and how many entries that name one are kept
READ_AT_ONCE, MAX_NAMED = 20, 200
#: how long the name and the free text may be, characters
MAX_NAME, MAX_ABOUT = 300, 10_000


class Position(NamedTuple):
    """Where a look for all calendars goes on: at a cursor of the server's, behind a name."""

    cursor: int = 0
    after: str = ""


def list_(
    actor: Actor, position: Position, limit: int, seconds: float
) -> tuple[list[dict[str, Any]], Position | None]:
    """Return documents of calendars, without the entries that name them, and where to go on; None: the end.

    A calendar may come twice, in two lists. It ends after ``limit`` of them, or after so many seconds.

    Raises:
        StoreRefused: this user of Redis may not look at every key.
    """
    actor.require(Right.READ)
    store, ends_at = Store(actor.app), time.perf_counter() + seconds
    found, after = list[str](), position.after
    cursor, goes_on = position.cursor, True
    while goes_on:
        names, following = scan_calendar_names(store, cursor)
        new = [name for name in names if name > after and name not in found][: limit - len(found)]
        found += new
        if new and new[-1] != names[-1]:
            return documents(actor, found), Position(cursor, new[-1])
        cursor, after = following, ""
        if not cursor:
            return documents(actor, found), None
        goes_on = len(found) < limit and time.perf_counter() < ends_at
    return documents(actor, found), Position(cursor)


def documents(actor: Actor, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the documents of calendars, without the entries that name them."""
    return calendar_documents(actor.app, names, {})


@dataclass(frozen=True)
class Survey(Coverage):
    """What was found of all calendars, and of the entries that name them.

    Attributes:
        documents: of the calendars, by their names: as ``calendar_documents`` returns them, but with the
            numbers of their ``days`` and ``spans``, and without entries.
        is_complete: these are all; False: those that entries name, as this user may not scan keys.
        users: how many entries name a calendar.
        named_by: the first of them.
        seen: how many entries were looked at.
        total: how many there are.
    """

    documents: Mapping[str, Mapping[str, Any]]
    is_complete: bool
    users: Mapping[str, int]
    named_by: Mapping[str, Sequence[str]]
    seen: int
    total: int


def survey(actor: Actor, jobs: Jobs, *, is_wanted: bool = False) -> Result[Survey]:
    """Return what was found last, and look again in the background if that is old."""
    actor.require(Right.READ)
    work = partial(_survey, actor.app)
    return jobs.read(
        "calendars",
        None,
        work,
        fresh_seconds=FRESH_SECONDS,
        is_wanted=is_wanted,
        wait_seconds=WAIT_SECONDS,
    )


def _survey(app: Any, tell: Tell[Survey]) -> Survey:
    store, pace = Store(app), Pace(BUDGET_SECONDS)
    total, seen = count_members(store), 0
    users, named_by = Counter[str](), dict[str, list[str]]()
    is_complete = True
    try:
        names = Calendar.names(app)
    except StoreRefused:
        names, is_complete = [], False
    documents = _summaries(app, names, pace)
    for page in scan_members(store):
        _, found = read_entries(store, [store.keys.entry_of(member) for member, _ in page])
        for stored in found:
            for name in names_in(stored):
                users[name] += 1
                if len(named_by.setdefault(name, [])) < MAX_NAMED:
                    named_by[name].append(store.keys.name(stored.key))
        seen += len(page)
        pace.rest()
        if pace.is_over:
            break
        tell(Survey(documents, is_complete, dict(users), dict(named_by), seen, total))
    else:
        total = seen
    if missing := [name for name in users if name not in documents]:
        documents = {**documents, **_summaries(app, missing, pace)}
    return Survey(documents, is_complete, users, named_by, seen, total)


def _summaries(app: Any, names: Sequence[str], pace: Pace) -> dict[str, dict[str, Any]]:
    summaries = {}
    for begin in range(0, len(names), READ_AT_ONCE):
        for document in calendar_documents(app, names[begin : begin + READ_AT_ONCE], {}):
            days, spans = count_days(document["days"])
            summaries[document["name"]] = {**document, "days": days, "spans": spans}
            pace.rest()
    return summaries


def show(actor: Actor, name: str, users: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Return the document of one calendar.

    Arguments:
        users: the entries that name it, if that is known already; None: they are looked for.

    Raises:
        CalendarNotFound: there is none.
    """
    actor.require(Right.READ)
    fields = _read(actor, name)
    if isinstance(fields, Unusable) and fields.is_missing:
        raise _not_found(name)
    [document] = calendar_documents(actor.app, [name], users)
    return document


def _not_found(name: str) -> CalendarNotFound:
    return CalendarNotFound(f"There is no calendar {shorten(name, 200)!r}.", name)


def revision_of(document: Mapping[str, Any]) -> str:
    """Return what tells one version of a calendar's document from another."""
    return _digest_of(document["days"], document["about"], document["error"])


def _digest_of(days: Mapping[str, str], about: str, error: str | None) -> str:
    text = json.dumps([days, about, error], sort_keys=True)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:20]


def revision_now(actor: Actor, name: str) -> str:
    """Return the revision of the calendar ``name``; '': there is none."""
    actor.require(Right.READ)
    return _revision_of(name, _read(actor, name))


def _revision_of(name: str, fields: dict[str, str] | Unusable) -> str:
    if isinstance(fields, Unusable):
        return "" if fields.is_missing else _digest_of({}, "", fields.reason)
    read = calendar_from(name, fields)
    days = {day: label for day, label in fields.items() if day != ABOUT}
    return _digest_of(days, fields.get(ABOUT, ""), read.reason if isinstance(read, Unusable) else None)


def _read_as_seen(actor: Actor, name: str, revision: str) -> dict[str, str] | Unusable:
    """Return the fields of a calendar as somebody has seen it."""
    fields = _read(actor, name)
    if revision != _revision_of(name, fields):
        raise _changed(actor, name)
    return fields


def _changed(actor: Actor, name: str) -> EntryChanged:
    key = Store(actor.app).keys.calendar(name)
    return EntryChanged(f"The calendar {shorten(name, 200)}: somebody else has changed it meanwhile.", key)


def _save_as_seen(actor: Actor, calendar: Calendar, before: dict[str, str] | Unusable) -> Calendar:
    if not save_over(calendar, before):
        raise _changed(actor, calendar.name)
    return calendar


def set_(
    actor: Actor,
    name: str,
    days: Mapping[Any, str] | Iterable[Any] = (),
    *,
    without: Iterable[Any] = (),
    about: str | None = None,
    revision: str | None = None,
) -> Calendar:
    """Add days to a calendar, and remove others; return it. If there is none, it is created.

    Arguments:
        days, without, about: as :meth:`redbeat.calendars.Calendar.change` takes them.
        revision: of the calendar as it was seen, '' for none; None: whatever it is.

    Raises:
        EntryChanged: it isn't as it was seen.
        CalendarError: it can't be used, it has no such day to remove, or one of ``days`` isn't a day or a
            span.
    """
    actor.require(Right.EDIT)
    _check_texts(name, about)
    try:
        added, removed = Calendar(name, days, app=actor.app).days, [*map(spelled, without)]
    except ValueError as exc:
        raise CalendarError(str(exc), name) from exc
    details = _given({"days": added or None, "remove": removed or None, "about": about})
    if revision is None:
        with actor.doing("calendar set", [name], details):
            return Calendar.change(name, added, without=removed, about=about, app=actor.app)
    before = _read_as_seen(actor, name, revision)
    changed = changed_from(name, before, added, removed, about, actor.app)
    with actor.doing("calendar set", [name], details):
        return _save_as_seen(actor, changed, before)


def read_import(
    actor: Actor, name: str, data: bytes, origin: str, about: str | None = None, until: date | None = None
) -> Calendar:
    """Return the calendar ``name`` with the days of a file, as ``celery redbeat calendar import`` reads it.

    Nothing is changed.

    Raises:
        CalendarError: the file can't be used, or needs a package that is missing.
    """
    actor.require(Right.EDIT)
    _check_texts(name, about)
    try:
        return calendar_of_file(name, data, origin, about, until, actor.app)
    except RecursionError:
        raise CalendarError(f"{origin}: is nested too deeply.", name) from None
    except (ValueError, ConfigurationError) as exc:
        raise CalendarError(str(exc), name) from exc


def import_(
    actor: Actor,
    read: Calendar,
    origin: str,
    *,
    is_replacing: bool = False,
    is_adding: bool = False,
    revision: str | None = None,
) -> Calendar:
    """Store a calendar that ``read_import`` has returned; return it.

    Arguments:
        is_replacing: put its days in place of the stored ones.
        is_adding: add its days to the stored ones.
        revision: of the calendar as it was seen, '' for none; None: whatever it is.

    Raises:
        EntryChanged: it isn't as it was seen.
        CalendarError: there is a calendar of this name, and it is to be neither replaced nor added to.
    """
    actor.require(Right.EDIT)
    before = _read(actor, read.name) if revision is None else _read_as_seen(actor, read.name, revision)
    is_new = isinstance(before, Unusable) and before.is_missing
    taken = CalendarError(f"There is a calendar {shorten(read.name, 200)!r} already.", read.name)
    if not is_new and not is_replacing and not is_adding:
        raise taken
    about = read.about or None
    if is_adding and revision is not None:
        read = changed_from(read.name, before, read.days, (), about, actor.app)
    details = _given({"file": origin, "days": len(read.days), "replace": is_replacing})
    with actor.doing("calendar import", [read.name], details):
        if revision is not None:
            return _save_as_seen(actor, read, before)
        if is_replacing:
            return read.save()
        if is_adding:
            return Calendar.change(read.name, read.days, about=about, app=actor.app)
        if not save_over(read, before):
            raise taken
        return read


def delete(
    actor: Actor,
    names: Sequence[str],
    *,
    force: bool = False,
    revision: str | None = None,
    dry_run: bool = False,
) -> None:
    """Remove calendars; for a dry run only look whether that is possible.

    Arguments:
        force: also those that entries name; such an entry is quarantined when it is due.
        revision: of the only one as it was seen; None: whatever it is.

    Raises:
        EntryChanged: it isn't as it was seen.
        CalendarNotFound: one of them doesn't exist.
        CalendarError: entries name one.
    """
    actor.require(Right.DELETE)
    store, chosen = Store(actor.app), [*dict.fromkeys(names)]
    for name, fields in read_fields(store, chosen).items():
        if isinstance(fields, Unusable) and fields.is_missing:
            raise _not_found(name)
    before = None if revision is None else _read_as_seen(actor, chosen[0], revision)
    if not force:
        _check_users(store, chosen)
    if dry_run:
        return
    with actor.doing("calendar delete", chosen, _given({"force": force})):
        for name in chosen:
            read = before.kind if isinstance(before, Unusable) else before
            if not replace_calendar(store, name, {}, read):
                raise _changed(actor, name)


def _check_users(store: Store, names: Collection[str]) -> None:
    for name, entries in find_users(store, names).items():
        rest = (
            f", {shorten(entries[0], 100)} and others"
            if len(entries) > 1
            else f", {shorten(entries[0], 100)}"
        )
        raise CalendarError(
            f"The calendar {shorten(name, 200)!r} is named by {counted(len(entries), 'entry', 'entries')}"
            f"{rest}: let them name another one, or none; or delete it all the same (force), and they are "
            "quarantined when they are due.",
            name,
        )


def _check_texts(name: str, about: str | None) -> None:
    if len(name) > MAX_NAME:
        raise CalendarError(f"{shorten(name, 100)}: the name has more than {MAX_NAME} characters.", name)
    if about is not None and len(about) > MAX_ABOUT:
        raise CalendarError(f"{name}: its text has more than {MAX_ABOUT} characters.", name)


def _read(actor: Actor, name: str) -> dict[str, str] | Unusable:
    fields = read_fields(Store(actor.app), [name])[name]
    if isinstance(fields, Unusable) and fields.kind is None:
        raise StoreRefused(fields.reason)  # it isn't the calendar's fault
    return fields


def _given(details: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in details.items() if value is not None and value is not False}
