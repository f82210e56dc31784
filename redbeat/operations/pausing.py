"""``pause`` and ``resume``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from redbeat.access import Right
from redbeat.entries import pauses
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.pauses import Paused, PauseResult
from redbeat.operations.actor import Actor


def pause(actor: Actor, names: Sequence[str], note: str | None, until: datetime | None) -> PauseResult:
    """Pause entries, as :meth:`redbeat.RedBeatSchedulerEntry.pause_many` does."""
    actor.require(Right.PAUSE)
    with actor.doing("pause", names, _given(note, until)):
        return RedBeatSchedulerEntry.pause_many(names, actor.app, note=note, until=until, by=actor.user.name)


def pause_one(actor: Actor, name: str, note: str | None, until: datetime | None) -> Paused:
    """Pause an entry; one that is paused already gets the note and the end that are given.

    Raises:
        EntryNotFound: there is no such entry.
        EntryError: the end is in the past, or the entry can't be used.
    """
    actor.require(Right.PAUSE)
    entry, given = RedBeatSchedulerEntry.get(name, actor.app), _given(note, until)
    was = {"note": entry.pause_note, "until": entry.paused_until} if entry.state == "paused" else {}
    if entry.state in ("paused", "disabled") and not (was and given):
        return "left"
    before = {field: was[field] for field in given if field in was}
    changed_by = actor.user.name if given else None
    with actor.doing("pause", [name], given, before=before):
        return pauses.pause_one(
            RedBeatSchedulerEntry,
            name,
            actor.app,
            note,
            lambda _entry, _now: until,
            by=actor.user.name,
            changed_by=changed_by,
        )


def _given(note: str | None, until: datetime | None) -> dict[str, Any]:
    return {name: value for name, value in (("note", note), ("until", until)) if value is not None}


def resume(actor: Actor, names: Sequence[str], note: str | None = None, by: str | None = None) -> PauseResult:
    """End the pause of entries, as :meth:`redbeat.RedBeatSchedulerEntry.resume_many` does."""
    actor.require(Right.PAUSE)
    details = {one: value for one, value in (("note", note), ("by", by)) if value is not None}
    with actor.doing("resume", names, details):
        return RedBeatSchedulerEntry.resume_many(names, actor.app, note=note, by=by)
