"""Pausing and resuming, one entry or many."""

from __future__ import annotations

from collections.abc import Sequence

from redbeat.access import Right
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.pauses import PauseResult, is_paused_for
from redbeat.entries.query import entries_called
from redbeat.errors import EntryError
from redbeat.operations import pausing
from redbeat.web.api.choices import CHOICE, DRY_RUN, ONE_CHOICE, chosen_names
from redbeat.web.api.cursors import Wanted
from redbeat.web.api.entries import found_entry, stored_answer
from redbeat.web.api.kinds import AHEAD, FLAG, PATTERN, TEXT, Field
from redbeat.web.api.operations import Answer, Body, Call, Operation
from redbeat.web.api.schemas import of

NOTE = (
    Field("note", TEXT, "The reason, which others see."),
    Field(
        "until", AHEAD, "When it runs again by itself: 2h, tomorrow 9:00, or a time. Default: when resumed."
    ),
)
_DRY_RUN_OF_ONE = Field("dry_run", FLAG, "Change nothing, and answer the entry as it is.", default=False)
#: instead of names, or besides a pattern
OF_PAUSE = (
    Field("note", PATTERN, "All entries paused with this note; * and ? are wildcards."),
    Field("paused_by", PATTERN, "All entries that this person has paused; * and ? are wildcards."),
)


def pause_entry(call: Call) -> Answer:
    """Pause an entry; one that is paused already gets what is given."""
    found = found_entry(call)
    until = call.body["until"]
    if call.body["dry_run"]:
        call.actor.require(Right.PAUSE)
        return stored_answer(call, found)
    pausing.pause_one(call.actor, call.name, call.body["note"], until)
    return stored_answer(call, found_entry(call))


def resume_entry(call: Call) -> Answer:
    """End the pause of an entry."""
    found = found_entry(call)
    if call.query["dry_run"]:
        call.actor.require(Right.PAUSE)
        return stored_answer(call, found)
    for name, reason in pausing.resume(call.actor, [call.name]).failed.items():
        raise EntryError(reason, name)
    return stored_answer(call, found_entry(call))


def pause_entries(call: Call) -> Answer:
    """Pause many entries; those that are paused or disabled already stay as they are."""

    def is_running(entry: RedBeatSchedulerEntry) -> bool:
        return entry.state not in ("paused", "disabled", "missing")

    names, cursor = chosen_names(call, is_running)
    until = call.body["until"]
    if call.body["dry_run"]:
        return _planned(call, names, is_running, cursor)
    return _many(
        pausing.pause(call.actor, names, call.body["note"], until) if names else PauseResult(), cursor
    )


def resume_entries(call: Call) -> Answer:
    """End the pause of many entries; those that are disabled without one stay so."""
    note, by = call.body["note"], call.body["paused_by"]

    def is_resting(entry: RedBeatSchedulerEntry) -> bool:
        return entry.state == "paused" and is_paused_for(entry, note, by)

    is_by_pause = note is not None or by is not None
    names, cursor = chosen_names(call, is_resting, "*" if is_by_pause else None)
    if call.body["dry_run"]:
        return _planned(call, names, is_resting, cursor)
    return _many(pausing.resume(call.actor, names, note, by) if names else PauseResult(), cursor)


def _planned(call: Call, names: Sequence[str], is_meant: Wanted, cursor: str | None) -> Answer:
    """Answer what would become of entries."""
    call.actor.require(Right.PAUSE)
    found = [one for one in entries_called(RedBeatSchedulerEntry, call.app, names) if one is not None]
    changed = [str(entry.name) for entry in found if is_meant(entry)]
    left = [str(entry.name) for entry in found if not is_meant(entry)]
    return _many(PauseResult(tuple(changed), tuple(left)), cursor)


def _many(result: PauseResult, cursor: str | None) -> Answer:
    told = {"changed": [*result.changed], "left": [*result.left], "failed": dict(result.failed)}
    return Answer({**told, "next": cursor})


OPERATIONS: Sequence[Operation] = (
    Operation(
        *("PUT", "/entries/{name}/pause", "pause", Right.PAUSE, "Pause an entry.", pause_entry),
        {200: of("Entry")},
        body=Body((*NOTE, _DRY_RUN_OF_ONE)),
        has_etag=True,
    ),
    Operation(
        *(
            "DELETE",
            "/entries/{name}/pause",
            "resume",
            Right.PAUSE,
            "End the pause of an entry.",
            resume_entry,
        ),
        {200: of("Entry")},
        (_DRY_RUN_OF_ONE,),
        has_etag=True,
    ),
    Operation(
        *("PUT", "/pause", "pause", Right.PAUSE, "Pause many entries.", pause_entries),
        {200: of("Paused")},
        body=Body((*CHOICE, *NOTE, DRY_RUN), is_needed=True, exactly_one=ONE_CHOICE),
    ),
    Operation(
        *("PUT", "/resume", "resume", Right.PAUSE, "End the pause of many entries.", resume_entries),
        {200: of("Paused")},
        body=Body((*CHOICE, *OF_PAUSE, DRY_RUN), is_needed=True),
    ),
)
