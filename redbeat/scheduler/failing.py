"""Entries that fail too often: they are paused, with a note that says why.

Owns what ``pause_after_failures`` and ``resume_after`` do. Invariant: an entry is paused by compare and set,
as it is now: one that somebody has paused, deleted or given another policy meanwhile stays as it is. The
failures are forgotten only when the pause was told of, so a beat that is killed in between tells of it again;
while it is at that, their count is marked.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.entries.pauses import rest
from redbeat.errors import LockLost, StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.history import decode_history
from redbeat.log.events import ENTRY_PAUSED
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.containment import let_through
from redbeat.store.entries import Entries
from redbeat.store.events import Events
from redbeat.store.histories import Histories
from redbeat.store.records import Fence, Stored, Write
from redbeat.store.runs import Failing, Runs
from redbeat.store.store import Store

#: who pauses these entries
PAUSED_BY = "redbeat"
#: how their notes begin
_NOTE = "paused after"

#: how many records are looked at for the last error
_RECORDS = 20


def pause_failing(
    store: Store, entry_class: type[RedBeatSchedulerEntry], app: Any, fence: Fence, keys: Sequence[str]
) -> None:
    """Pause those of the entries under ``keys`` that have failed as often as their policy says.

    Raises:
        LockLost: another beat holds the lock.
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """
    for key, failing in zip(keys, Runs(store).counted(keys), strict=True):
        if failing.in_a_row:
            _pause(store, entry_class, app, fence, key, failing)


def _pause(
    store: Store,
    entry_class: type[RedBeatSchedulerEntry],
    app: Any,
    fence: Fence,
    key: str,
    failing: Failing,
) -> None:
    """Pause one entry, if it is to be; tell of that, and count from the beginning."""
    found: RedBeatSchedulerEntry | None = None
    runs = Runs(store)
    name, note = store.keys.name(key), ""

    def decide(stored: Stored, now: datetime) -> Write | None:
        nonlocal found, note
        found = None
        if not stored.exists:
            return None
        entry = decode_entry(entry_class, stored, app)
        most = entry.policy.pause_after_failures
        if most is None or failing.in_a_row < most:
            return None
        found = entry
        if not entry.is_enabled_at(now):
            return None
        runs.mark_being_paused(key, failing)
        note = note or _note_of(store, key, failing.in_a_row)
        seconds = entry.policy.resume_after
        until = None if seconds is None else now + timedelta(seconds=seconds)
        rest(entry, now, note, until, PAUSED_BY)
        return entry.plan_save(stored, now)

    try:
        Entries(store).write([key], decide, fence)
    except (LockLost, StoreCorrupt, StoreRefused, StoreUnavailable):
        raise
    except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: the entry's class may be the application's
        let_through(exc)
        logger.error(  # noqa: TRY400 - the sentence says it all
            "beat: Entry %s fails too often and can't be paused: %s",
            printable(name),
            str(exc).removeprefix(f"{printable(key)}: "),
        )
        return
    if found is None:
        return
    if note:
        logger.warning(
            "beat: Paused %s: %s",
            printable(name),
            note,
            extra=ENTRY_PAUSED.of(entry=name, until=found.paused_until, reason=note),
        )
    is_paused = found.paused_by == PAUSED_BY and (found.pause_note or "").startswith(_NOTE)
    if is_paused and (note or failing.is_being_paused):
        Events(store).add_paused([(name, found.paused_until)], found.pause_note, PAUSED_BY)
    runs.forget_failures(key)


def _note_of(store: Store, key: str, failures: int) -> str:
    records: list[str] = []
    with suppress(StoreCorrupt):  # nothing depends on a history
        records = Histories(store).read(key, _RECORDS)
    last = next(
        (
            run.error or f"the run due at {run.due:%Y-%m-%d %H:%M:%S} UTC was lost"
            for run in decode_history(records, lambda _due: "")
            if run.outcome in ("failed", "lost")
        ),
        "",
    )
    count = "a failure" if failures == 1 else f"{failures} failures in a row"
    note = f"{_NOTE} {count}"
    return shorten(printable(f"{note}; the last: {last}" if last else note))
