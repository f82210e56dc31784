"""Runs that people ask for: one now, or those of a span in the past. Sent by the caller, beat isn't needed.

Each message says that it is manual, and the entry's history does so, too. The schedule isn't touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from celery.beat import BeatLazyFunc
from celery.result import AsyncResult

from redbeat.archive import add_record, note_backfilled, read_backfilled, server_now
from redbeat.errors import EntryError
from redbeat.history import sent_record
from redbeat.interrupts import hold_interrupts
from redbeat.lua import score_text
from redbeat.preview import runs_between
from redbeat.store import CHUNK_SIZE, Store
from redbeat.task_ids import task_id_of
from redbeat.zones import in_utc

__all__ = ["backfill", "trigger"]


def trigger(entry: Any, overrides: Mapping[str, Any]) -> AsyncResult:
    """Send one run of ``entry`` now; see :meth:`redbeat.RedBeatSchedulerEntry.trigger`."""
    store = Store(entry.app)
    now = server_now(store)
    task_id = str(overrides.get("task_id") or uuid.uuid4())
    result = _send(entry, now, {**overrides, "task_id": task_id})
    add_record(store, entry.key, sent_record(score_text(now.timestamp()), task_id, is_manual=True), now)
    return result


def backfill(
    entry: Any, start: datetime, end: datetime, dry_run: bool, progress: Callable[[int], object] | None
) -> list[datetime]:
    """Send the runs of ``entry`` in a span; see :meth:`redbeat.RedBeatSchedulerEntry.backfill`."""
    store = Store(entry.app)
    now = server_now(store)
    if in_utc(end) < in_utc(start):
        raise EntryError(f"{entry.key}: backfill: end must not be before start.", entry.key)
    sent: list[datetime] = []
    for dues in _in_chunks(runs_between(entry, start, min(in_utc(end), now))):
        known = read_backfilled(store, entry.key, [score_text(due.timestamp()) for due in dues])
        for due, is_known in zip(dues, known, strict=True):
            if is_known:
                continue
            with hold_interrupts():  # sent, noted and counted, or none of it
                if not dry_run:
                    _send_past_run(entry, store, due.astimezone(timezone.utc))
                sent.append(due)
                if progress is not None:
                    progress(len(sent))
    return sent


def _send_past_run(entry: Any, store: Store, due: datetime) -> None:
    nominal = score_text(due.timestamp())
    _send(entry, due, {"task_id": task_id_of(entry.key, due.isoformat(timespec="microseconds"))})
    # sent first: killed in between, it is sent again, with the same id
    note_backfilled(store, entry.key, nominal)
    add_record(store, entry.key, sent_record(nominal, is_manual=True), server_now(store))


def _in_chunks(dues: Iterator[datetime]) -> Iterator[list[datetime]]:
    chunk: list[datetime] = []
    for due in dues:
        chunk.append(due)
        if len(chunk) == CHUNK_SIZE:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _send(entry: Any, due: datetime, overrides: Mapping[str, Any]) -> AsyncResult:
    options = {**(entry.options or {}), **overrides}
    args = options.pop("args", entry.args) or ()
    kwargs = options.pop("kwargs", entry.kwargs) or {}
    headers = {**((entry.options or {}).get("headers") or {}), **(options.get("headers") or {})}
    options["headers"] = {
        **headers,
        "redbeat_entry": entry.name,
        "redbeat_due": due.isoformat(timespec="microseconds"),
        "redbeat_manual": True,
    }
    if isinstance(args, str):  # Celery refuses it, too; here it would be a list of its letters
        raise EntryError(f"{entry.key}: args must be a list, not {args!r}.", entry.key)
    args = [value() if isinstance(value, BeatLazyFunc) else value for value in args]
    kwargs = {name: value() if isinstance(value, BeatLazyFunc) else value for name, value in kwargs.items()}
    task = entry.app.tasks.get(entry.task)
    if task is not None:
        return task.apply_async(args, kwargs, **options)
    return entry.app.send_task(entry.task, args, kwargs, **options)
