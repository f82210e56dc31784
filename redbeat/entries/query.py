"""Listing all stored entries: page by page in the order of due times, or in any order.

Owns the states that an entry may be in. Invariant: at most one page is in memory, however large the schedule
is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeVar, cast

from redbeat.config.config import ensure_conf
from redbeat.decoder import decode
from redbeat.entries.due import MAX_SCORE, is_quarantined, next_due
from redbeat.entries.failures import failure_now
from redbeat.entries.loading import decode_entry
from redbeat.errors import EntryCorrupt, EntryNotFound
from redbeat.schedules.timezones import in_utc
from redbeat.store.downgrades import read_downgraded
from redbeat.store.entries import delete_entries, read_entries
from redbeat.store.members import (
    count_members,
    first_members,
    members_in_order,
    remove_members,
    scan_members,
)
from redbeat.store.records import Stored
from redbeat.store.store import Store

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

EntryT = TypeVar("EntryT", bound=Any)

#: the states of an entry, and what each means
STATES = {
    "scheduled": "it is due at a later time",
    "due": "its time has come, and beat is about to send it",
    "failing": "its last run couldn't be sent, and is tried again",
    "paused": "a user has paused it, or RedBeat has, as it fails too often",
    "disabled": "its enabled is false",
    "finished": "it never runs again, as its schedule or its policy says",
    "quarantined": "it can't be used, and error says why",
    "missing": "it is in the schedule, but its hash is gone",
    "unscheduled": "it isn't in the schedule, so beat doesn't know it",
    "downgraded": "it was taken out for celery-redbeat 2.x, and comes back when a beat of version 3 leads",
}

PAGE_SIZE = 500
#: entries that are due within ``SOON_SECONDS`` may run while the schedule is listed. At most this many of
#: them are remembered, so that they aren't listed again at their next due time
MAX_REMEMBERED = 100_000
SOON_SECONDS = 3600.0


class Coverage:
    """What is found may not be all there is, as looking had to end in time.

    Attributes:
        seen: how many entries were looked at.
        total: how many there are.
    """

    seen: int
    total: int

    @property
    def is_whole(self) -> bool:
        """Whether all were looked at; some may have come or gone meanwhile."""
        return self.seen >= self.total

    @property
    def percent(self) -> int:
        """How much was looked at: 100 only where it was all."""
        return 100 if self.is_whole else min(100 * self.seen // max(self.total, 1), 99)


def list_entries(
    cls: type[EntryT],
    app: Any,
    *,
    match: str | None = None,
    task: str | None = None,
    enabled: bool | None = None,
    state: str | None = None,
    due_before: datetime | None = None,
    offset: int = 0,
    limit: int | None = None,
) -> Iterator[EntryT]:
    """Yield the stored entries; see :meth:`redbeat.RedBeatSchedulerEntry.list`."""
    if state is not None and state not in STATES:
        raise ValueError(f"state: must be one of {', '.join(STATES)}, not {state!r}.")
    if due_before is not None and not isinstance(due_before, datetime):
        raise ValueError(f"due_before: must be a datetime, not {due_before!r}.")
    for name, number in (("offset", offset), ("limit", limit or 0)):
        if not isinstance(number, int) or number < 0:
            raise ValueError(f"{name}: must be a whole number from 0, not {number!r}.")
    last = None if due_before is None else in_utc(due_before)
    last_score = None if last is None else last.timestamp()

    def wanted() -> Iterator[EntryT]:
        store = Store(app)
        store.check_slots()
        members = ((stored, now) for _, stored, now in read_all(store, last_score))
        for stored, now in chain(members, _read_away(store, last_score)):
            if match is None or fnmatchcase(store.keys.name(stored.key), match):
                entry = entry_of(cls, stored, app, now)
                if is_wanted(entry, task=task, enabled=enabled, state=state, due_before=last):
                    yield entry

    return islice(wanted(), offset, None if limit is None else offset + limit)


def is_wanted(
    entry: Any,
    *,
    task: str | None = None,
    enabled: bool | None = None,
    state: str | None = None,
    due_before: datetime | None = None,
) -> bool:
    """Return True if these filters of :meth:`redbeat.RedBeatSchedulerEntry.list` let an entry pass."""
    if (
        (task is not None and not fnmatchcase(str(entry.task), task))
        or (enabled is not None and entry.is_enabled_at(entry.seen_at) != enabled)
        or (state is not None and entry.state != state)
    ):
        return False
    # compared for itself, as a score may be earlier than the run
    return due_before is None or ((due := entry.next_due_at) is not None and due <= due_before)


def count_entries(cls: type[EntryT], app: Any, **filters: Any) -> int:
    """Return how many entries :func:`list_entries` would yield."""
    if not any(value is not None for value in filters.values()):
        store = Store(app)
        store.check_slots()
        return count_members(store) + sum(1 for _ in _read_away(store))
    return sum(1 for _ in list_entries(cls, app, **filters))


def _read_away(store: Store, last_score: float | None = None) -> Iterator[tuple[Stored, datetime]]:
    """Yield entries that were taken out for celery-redbeat 2.x, with old scores, and the server's clock."""
    scores = read_downgraded(store)
    now, found = read_entries(store, list(scores)) if scores else (datetime.now(timezone.utc), [])
    for stored in found:
        score = scores[stored.key] or 0.0  # without an old score it is due at once when it comes back
        if stored.exists and stored.score is None and (last_score is None or score <= last_score):
            yield replace(stored, score=score, is_away=True), now


def iter_names(app: Any, store: Store | None = None) -> Iterator[str]:
    """Yield the names in the schedule, in any order; one that is there all the time is yielded once."""
    store, seen = store or Store(app), set[str]()
    for page in name_pages(store):
        names = [name for name in dict.fromkeys(page) if name not in seen]
        yield from names
        seen.update(names)


def name_pages(store: Store) -> Iterator[list[str]]:
    """Yield the names in the schedule, in any order, about 500 at a time; some may come twice."""
    for page in scan_members(store):
        yield [store.keys.name(member) for member, _ in page]
    yield [store.keys.name(key) for key in read_downgraded(store)]


def clear_entries(app: Any, progress: Callable[[int], object] | None = None) -> int:
    """Remove every member of the schedule, with its entry; return how many there were."""
    store, total = Store(app), 0
    for part in map(store.of_part, store.all_parts):
        while members := first_members(part, PAGE_SIZE):
            delete_entries(part, [part.keys.entry_of(member) for member in members])
            remove_members(part, members)  # those that are bare names are still there
            total += len(members)
            if progress is not None:
                progress(total)
    delete_entries(store, [stored.key for stored, _ in _read_away(store)])
    return total


def read_all(store: Store, last_score: float | None = None) -> Iterator[tuple[str, Stored, datetime]]:
    """Yield the members of the schedule, the entries under their keys, and the server's clock.

    They are ordered by their scores, negative ones last. A member may be a bare name instead of a key.
    """
    seen: set[str] = set()
    for page in members_in_order(store, last_score):
        is_moving = store.config.layout.is_moving  # then an entry's member becomes another one
        members = [(member, score) for member, score in page if member not in seen]
        now, entries = read_entries(store, [store.keys.entry_of(member) for member, _ in members])
        for (member, score), stored in zip(members, entries, strict=True):
            if is_moving and (name := store.config.layout.name_of(member)) in seen:
                continue
            if (is_moving or score < now.timestamp() + SOON_SECONDS) and len(seen) < MAX_REMEMBERED:
                seen.add(name if is_moving else member)
            has_score = stored.exists and stored.score is not None
            yield member, stored if has_score else replace(stored, score=score), now  # a bare name has none


def entry_of(cls: type[EntryT], stored: Stored, app: Any, now: datetime) -> EntryT:
    """Return the entry that ``stored`` was at ``now``; one that can't be used has what can be read of it."""
    try:
        made: Any = decode_entry(cls, stored, app)
        made.seen_at = now
        return cast("EntryT", made)
    except (EntryCorrupt, EntryNotFound) as exc:
        entry: RedBeatSchedulerEntry = object.__new__(cls)
        try:
            given = decode(stored.definition or "{}")
        except (ValueError, RecursionError):
            given = {}
        given = given if isinstance(given, dict) else {}
        entry.__dict__.update(
            app=app,
            name=ensure_conf(app).keys.name(stored.key),
            task=given.get("task") if isinstance(given.get("task"), str) else None,
            schedule=None,
            args=(),
            kwargs={},
            options={},
            enabled=given.get("enabled") is not False,
            last_run_at=None,
            total_run_count=0,
            has_last_run_at=False,
            stored=stored,
            seen_at=now,
            problem=str(exc),
        )
        return cast("EntryT", entry)


def state_of(entry: RedBeatSchedulerEntry, stored: Stored, now: datetime) -> str:
    """Return which of the ``STATES`` an entry is in."""
    if not stored.exists:
        return "missing"
    if stored.is_away:
        return "downgraded"
    if is_quarantined(entry, stored):
        return "quarantined"
    if not entry.is_enabled_at(now):
        return "paused" if entry.paused else "disabled"
    if stored.score is None:
        return "unscheduled"
    due = next_due(entry, stored, now)
    if due is None:
        return "finished" if stored.score < MAX_SCORE else "scheduled"
    failure = failure_now(stored)
    if failure is not None and failure.attempts and failure.retry_at:
        return "failing"
    return "due" if due <= now else "scheduled"
