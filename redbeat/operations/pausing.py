"""Pausing and resuming, one entry or many."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from redbeat.access import Right
from redbeat.entries import pauses
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.marks import zone_for
from redbeat.entries.pauses import PauseResult, is_paused_for
from redbeat.entries.search import entries_called, read_listed
from redbeat.errors import ArgumentInvalid, EntryError, EntryNotFound
from redbeat.operations.actor import Actor
from redbeat.operations.editing import DryRun, EntryChange
from redbeat.operations.operation import Moment, Option, given_values, operation
from redbeat.operations.selection import NameOfEntry, Selection

Note = Annotated[str | None, Option("The reason, shown to all users.")]
Until = Annotated[
    Moment | None,
    Option("End of the pause: 2h, tomorrow 9:00, or a time. Default: until it is resumed.", ahead=True),
]


@operation("entry.pause", Right.PAUSE, "pause", "PUT /entries/{name}/pause")
def pause_entry(
    actor: Actor,
    name: NameOfEntry,
    *,
    note: Note = None,
    until: Until = None,
    by: str | None = None,
    dry_run: DryRun = False,
) -> EntryChange:
    """Pause an entry.

    An entry that is paused already gets the note and the end that are given.

    Arguments:
        by: who pauses it, where that isn't the actor.

    Raises:
        EntryNotFound: there is no such entry.
        ArgumentInvalid: ``until`` is in the past.
        EntryError: the entry is invalid.
    """
    entry = read_listed(actor.app, name)
    if entry.state == "missing":
        raise EntryNotFound(f"{entry.key}: there is no such entry.", entry.key)
    end = _end_for(actor, until, entry)
    changes = given_values(note=note, by=by, until=end)
    is_paused = entry.state == "paused"
    if dry_run or (entry.state in ("paused", "disabled") and not (is_paused and changes)):
        return EntryChange(entry, "left")
    was = {"note": entry.pause_note, "by": entry.paused_by, "until": entry.paused_until}
    before = {field: was[field] for field in changes} if is_paused else {}
    with actor.doing("pause", [name], changes, before=before):
        changed_by = by or (None if actor.has_shell else actor.user.name)
        result = pauses.pause_many(
            RedBeatSchedulerEntry,
            [name],
            actor.app,
            note,
            end,
            by or actor.user.name or None,
            changes=changes and given_values(pause_note=note, paused_by=changed_by, paused_until=end),
        )
    return _changed(actor, name, result, "changed" if is_paused else "paused")


@operation("entry.resume", Right.PAUSE, "resume", "DELETE /entries/{name}/pause")
def resume_entry(
    actor: Actor, name: NameOfEntry, *, enable: bool = False, dry_run: DryRun = False
) -> EntryChange:
    """End the pause of an entry.

    Arguments:
        enable: also enable an entry that is disabled without a pause; this takes the right to edit.

    Raises:
        EntryNotFound: there is no such entry.
        EntryError: the entry is invalid.
    """
    entry = read_listed(actor.app, name)
    if dry_run:
        return EntryChange(entry, "left")
    if enable:
        actor.require(Right.EDIT)
        entry = RedBeatSchedulerEntry.get(name, actor.app)
    with actor.doing("resume", [name]):
        if enable:
            entry.resume()
            result = PauseResult((name,))
        else:
            result = RedBeatSchedulerEntry.resume_many([name], actor.app)
    return _changed(actor, name, result, "resumed")


def _changed(actor: Actor, name: str, result: PauseResult, outcome: str) -> EntryChange:
    """Return the entry that was to be changed; raise the error that it has failed with."""
    entry = read_listed(actor.app, name)
    for reason in result.failed.values():
        raise EntryError(reason, entry.key)
    return EntryChange(entry, outcome if result.changed else "left")


@operation("entries.pause", Right.PAUSE, "pause", "PUT /pause")
def pause_entries(
    actor: Actor,
    entries: Selection,
    *,
    note: Note = None,
    until: Until = None,
    by: str | None = None,
    dry_run: DryRun = False,
    progress: pauses.Progress | None = None,
) -> PauseResult:
    """Pause many entries.

    Entries that are paused or disabled already stay as they are.

    Raises:
        ArgumentInvalid: ``until`` is in the past.
    """
    _end_for(actor, until)
    selected = entries.find(actor)
    if dry_run or not selected.names:
        return replace(_planned(actor, selected.names, _is_running), next=selected.next)
    details = given_values(match=entries.match, note=note, by=by, until=until and _shown(actor, until))
    with actor.doing("pause", selected.names, details):
        result = pauses.pause_many(
            RedBeatSchedulerEntry,
            selected.names,
            actor.app,
            note,
            lambda entry, _now: _end_for(actor, until, entry),
            by or actor.user.name or None,
            progress,
        )
    return replace(result, next=selected.next)


@operation("entries.resume", Right.PAUSE, "resume", "PUT /resume")
def resume_entries(
    actor: Actor,
    entries: Selection,
    *,
    note: Annotated[
        str | None, Option("All entries paused with this note; * and ? are wildcards.", is_pattern=True)
    ] = None,
    by: Annotated[
        str | None,
        Option(
            "All entries that this person has paused; * and ? are wildcards.",
            is_pattern=True,
            called="paused_by",
        ),
    ] = None,
    dry_run: DryRun = False,
    progress: pauses.Progress | None = None,
) -> PauseResult:
    """End the pause of many entries.

    Entries that are disabled without a pause stay disabled.
    """

    is_found_by_pause = note is not None or by is not None

    def is_meant(entry: RedBeatSchedulerEntry) -> bool:
        if entry.problem:  # whether it is paused is unknown: resuming it says why
            return not is_found_by_pause
        return entry.state == "paused" and is_paused_for(entry, note, by)

    selected = entries.find(actor, is_meant, "*") if is_found_by_pause else entries.find(actor)
    if dry_run or not selected.names:
        return replace(_planned(actor, selected.names, is_meant), next=selected.next)
    with actor.doing("resume", selected.names, given_values(match=entries.match, note=note, by=by)):
        result = RedBeatSchedulerEntry.resume_many(
            selected.names, actor.app, note=note, by=by, progress=progress
        )
    return replace(result, next=selected.next)


def _is_running(entry: RedBeatSchedulerEntry) -> bool:
    return entry.state not in ("paused", "disabled")


def _planned(actor: Actor, names: Any, is_meant: Any) -> PauseResult:
    found = entries_called(actor.app, names)
    entries = [one for one in found if one is not None and one.state != "missing"]
    changed = tuple(str(entry.name) for entry in entries if is_meant(entry))
    return PauseResult(changed, tuple(str(entry.name) for entry in entries if not is_meant(entry)))


def _end_for(
    actor: Actor, until: Moment | None, entry: RedBeatSchedulerEntry | None = None
) -> datetime | None:
    """Return the end of a pause, UTC.

    Raises:
        ArgumentInvalid: it is in the past.
    """
    if until is None:
        return None
    end = actor.time(until, None if entry is None else zone_for(entry))
    if end <= actor.now:
        raise ArgumentInvalid("until", pauses.past_end(end))
    return end


def _shown(actor: Actor, until: Moment) -> datetime | str:
    """Return the end of a pause for the audit list: as typed, where it is another one for each entry."""
    return str(until) if actor.zone is None else actor.time(until)
