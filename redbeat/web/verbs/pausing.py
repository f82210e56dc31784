"""``pause`` and ``resume``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from redbeat.access import Right
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.pauses import PauseResult
from redbeat.errors import EntryError
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.web.verbs.actor import Actor


def pause(actor: Actor, names: Sequence[str], note: str | None, until: datetime | None) -> PauseResult:
    """Pause entries, as :meth:`redbeat.RedBeatSchedulerEntry.pause_many` does."""
    actor.require(Right.PAUSE)
    with actor.doing("pause", names, _given(note, until)):
        return RedBeatSchedulerEntry.pause_many(names, actor.app, note=note, until=until, by=actor.user.name)


def change_pause(actor: Actor, name: str, note: str | None, until: datetime | None) -> None:
    """Change the note and the end of an entry's pause; what is None stays, and one that isn't paused, too.

    Raises:
        EntryNotFound: there is no such entry.
        EntryError: the end is in the past, or the entry can't be used.
    """
    actor.require(Right.PAUSE)
    entry = RedBeatSchedulerEntry.get(name, actor.app)
    if not entry.paused:
        return
    if until is not None and until <= Server(Store(actor.app)).now():
        raise EntryError(f"{entry.key}: the pause's end {until} is in the past.", entry.key)
    given = {"pause_note": note, "paused_by": actor.user.name, "paused_until": until}
    changes: Any = {field: value for field, value in given.items() if value is not None}
    before = {"note": entry.pause_note, "until": entry.paused_until}
    with actor.doing("pause", [name], _given(note, until), before=before):
        entry.update(**changes)


def _given(note: str | None, until: datetime | None) -> dict[str, Any]:
    return {name: value for name, value in (("note", note), ("until", until)) if value is not None}


def resume(actor: Actor, names: Sequence[str], note: str | None = None, by: str | None = None) -> PauseResult:
    """End the pause of entries, as :meth:`redbeat.RedBeatSchedulerEntry.resume_many` does."""
    actor.require(Right.PAUSE)
    details = {one: value for one, value in (("note", note), ("by", by)) if value is not None}
    with actor.doing("resume", names, details):
        return RedBeatSchedulerEntry.resume_many(names, actor.app, note=note, by=by)
