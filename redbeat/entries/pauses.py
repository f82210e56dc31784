"""Pausing and resuming many entries.

Owns the decision which of them stay as they are. Invariant: pausing many changes only entries that run, so
one that is paused already keeps its note; resuming changes only entries that are paused, so a disabled one
stays disabled; and where the code or a file says nothing about a pause, storing its entries ends none.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from redbeat.entries.loading import decode_entry
from redbeat.errors import EntryError
from redbeat.policy.policy import PAUSE_FIELDS
from redbeat.schedules.timezones import shown
from redbeat.store.entries import write_entries
from redbeat.store.events import add_paused_events
from redbeat.store.parts import in_chunks
from redbeat.store.records import Stored, Write
from redbeat.store.store import Store

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

Progress = Callable[[int], object]


@dataclass(frozen=True)
class PauseResult:
    """The result of pausing or resuming many entries: their names, without those that don't
    exist.

    Attributes:
        changed: those that were paused, or resumed.
        left: those that stay as they were: they were paused or disabled already, or weren't paused.
        failed: name to a sentence that says why it couldn't be changed.
        next: the cursor with which to go on, where not all matching entries were looked at in one call.
    """

    changed: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    next: str | None = None


def is_paused_for(entry: RedBeatSchedulerEntry, note: str | None, by: str | None) -> bool:
    """Return True if ``entry`` is paused with this note and by this person.

    Arguments:
        note, by: the text, or a pattern with ``*`` and ``?``; None: any.
    """
    return bool(entry.paused) and all(
        wanted is None or (found is not None and (found == wanted or fnmatchcase(found, wanted)))
        for found, wanted in ((entry.pause_note, note), (entry.paused_by, by))
    )


def keep_pause(entry: RedBeatSchedulerEntry, before: RedBeatSchedulerEntry, fields: Container[str]) -> None:
    """Let ``entry`` be paused as ``before`` is, which it replaces.

    Arguments:
        fields: the names of those that ``entry`` was given: if they say whether it is paused, that counts.
    """
    if before.paused and not any(name in fields for name in ("enabled", *PAUSE_FIELDS)):
        entry.enabled = before.enabled
        entry.set_policy({name: getattr(before.policy, name) for name in PAUSE_FIELDS})


def rest(
    entry: RedBeatSchedulerEntry, now: datetime, note: str | None, until: datetime | None, by: str | None
) -> None:
    """Set the fields of ``entry`` that pause it; this doesn't store it.

    Raises:
        EntryError: ``until`` isn't later than ``now``.
    """
    entry.enabled = False
    entry.set_policy({"paused": True, "pause_note": note, "paused_by": by, "paused_until": until})
    _check_end(entry, now)


def end_pause(entry: RedBeatSchedulerEntry) -> None:
    """Set the fields of ``entry`` that end its pause; this doesn't store it."""
    entry.enabled = True
    entry.set_policy(dict.fromkeys(PAUSE_FIELDS))


def _check_end(entry: RedBeatSchedulerEntry, now: datetime) -> None:
    if entry.paused_until is not None and entry.paused_until <= now:
        raise EntryError(f"{entry.key}: until: {past_end(entry.paused_until)}", entry.key)


def past_end(end: datetime) -> str:
    """Return why a pause can't end then."""
    return f"{shown(end)} is in the past; give a later time."


def pause_many(
    cls: type[Any],
    names: Iterable[str],
    app: Any,
    note: str | None,
    until: datetime | Callable[[Any, datetime], datetime | None] | None,
    by: str | None,
    progress: Progress | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
) -> PauseResult:
    """Pause entries; see :meth:`redbeat.RedBeatSchedulerEntry.pause_many`.

    Arguments:
        until: a time, or a function that returns it for an entry and the server's time.
        changes: the fields that a pause gets which has begun already; none: it stays as it is.
    """
    ends: dict[str, datetime | None] = {}

    def rest_if_it_runs(entry: RedBeatSchedulerEntry, now: datetime) -> bool:
        ends.pop(entry.name, None)
        if entry.is_enabled_at(now):
            rest(entry, now, note, until(entry, now) if callable(until) else until, by)
            ends[entry.name] = entry.paused_until
        elif entry.paused and changes:
            entry.set_policy(changes)
            _check_end(entry, now)
        else:
            return False
        return True

    result = _change_many(cls, names, app, rest_if_it_runs, progress)
    begun = [(name, ends[name]) for name in result.changed if name in ends]
    add_paused_events(Store(app), begun, note, by)
    return result


def resume_many(
    cls: type[Any],
    names: Iterable[str],
    app: Any,
    note: str | None,
    by: str | None,
    progress: Progress | None,
) -> PauseResult:
    """Resume entries; see :meth:`redbeat.RedBeatSchedulerEntry.resume_many`."""

    def go_on(entry: RedBeatSchedulerEntry, now: datetime) -> bool:
        if entry.is_enabled_at(now) or not is_paused_for(entry, note, by):
            return False
        end_pause(entry)
        return True

    return _change_many(cls, names, app, go_on, progress)


def _change_many(
    cls: type[Any],
    names: Iterable[str],
    app: Any,
    change: Callable[[Any, datetime], bool],
    progress: Progress | None,
) -> PauseResult:
    """Store those entries for which ``change`` returns True, 500 at a time; compare and set."""
    if isinstance(names, (str, bytes)):
        raise TypeError(f"give a list of names, not one name: write [{names!r}].")
    store, done = Store(app), 0
    outcomes: dict[str, str] = {}
    failed: dict[str, str] = {}

    def plan(stored: Stored, now: datetime) -> Write | None:
        name = store.keys.name(stored.key)
        for known in (outcomes, failed):  # called again if somebody has changed the entry meanwhile
            known.pop(name, None)
        if not stored.exists:
            return None
        try:
            entry = decode_entry(cls, stored, app)
            is_changed = change(entry, now)
            write: Write | None = entry.plan_save(stored, now) if is_changed else None
        except EntryError as exc:
            failed[name] = str(exc)
            return None
        outcomes[name] = "changed" if is_changed else "left"
        return write

    for chunk in in_chunks(names):
        some = dict.fromkeys(chunk)
        write_entries(store, [store.keys.entry_of(name) for name in some], plan)
        done += len(some)
        if progress is not None:
            progress(done)
    return PauseResult(
        tuple(name for name, outcome in outcomes.items() if outcome == "changed"),
        tuple(name for name, outcome in outcomes.items() if outcome == "left"),
        failed,
    )
