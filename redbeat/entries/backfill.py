"""Runs that people ask for: one now (``trigger``), or those of a span in the past (``backfill``).

The caller sends them itself, without beat. Each message is marked as manual, and so is its record in the
entry's history. The schedule isn't touched.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone, tzinfo
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery.result import AsyncResult
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from redbeat.config.suggestions import find_typos
from redbeat.entries.sending import send
from redbeat.entries.upcoming import runs_between
from redbeat.entries.wording import when_in
from redbeat.errors import EntryError, LockNotAcquired
from redbeat.history import record_of
from redbeat.log.text import counted
from redbeat.process.signals import hold_interrupts
from redbeat.schedules.timezones import in_utc
from redbeat.store.histories import are_backfilled, backfilling, note_backfilled, note_request, read_request
from redbeat.store.parts import in_chunks
from redbeat.store.records import score_text
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.task_ids import request_id_of, task_id_of

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: a name that resembles one of these is a typo; any other may be an option of the task or the broker
_OVERRIDES = ("args", "kwargs", "queue", "exchange", "routing_key", "priority", "expires", "countdown", "eta")

#: how long the same request waits for itself, seconds
PATIENCE_SECONDS = 3.0


def trigger(entry: RedBeatSchedulerEntry, overrides: Mapping[str, Any]) -> AsyncResult:
    """Send one run of ``entry`` now; see :meth:`redbeat.RedBeatSchedulerEntry.trigger`."""
    typos = find_typos(overrides, _OVERRIDES)
    if typos:
        raise EntryError(f"{entry.key}: trigger: there is no {typos}.", entry.key)
    store = Store(entry.app)
    now = Server(store).now()
    task_id = str(overrides.get("task_id") or uuid.uuid4())
    record = record_of(score_text(now.timestamp()), id=task_id, manual=True)
    return send(entry, now, {**overrides, "task_id": task_id}, record, now)


@retry(
    retry=retry_if_exception_type(LockNotAcquired),
    stop=stop_after_delay(PATIENCE_SECONDS),
    wait=wait_fixed(0.02),
    reraise=True,
)
def trigger_once(
    entry: RedBeatSchedulerEntry,
    request: str,
    overrides: Mapping[str, Any],
    sending: AbstractContextManager[None],
) -> tuple[str, bool]:
    """Send one run of ``entry`` now, unless the same request has done so within a day.

    It is sent before that is remembered: after a kill in between it is sent again, with the same id. It waits
    while another process, or an earlier try of it, is sending runs of the entry.

    Returns the task id of the run, and whether an earlier try has sent it.

    Arguments:
        sending: is entered around the sending, if this call sends the run.

    Raises:
        EntryError: the request has sent a run with other arguments.
        LockNotAcquired: that takes longer than ``PATIENCE_SECONDS``.
    """
    store, task_id = Store(entry.app), request_id_of(entry.key, request)
    if _is_sent(entry, task_id, overrides):
        return task_id, True
    with backfilling(store, entry.key):
        if _is_sent(entry, task_id, overrides):
            return task_id, True
        with sending:
            trigger(entry, {**overrides, "task_id": task_id})
        note_request(store, task_id, _digest_of(overrides))
    return task_id, False


def _is_sent(entry: RedBeatSchedulerEntry, task_id: str, overrides: Mapping[str, Any]) -> bool:
    """Return True if a request has sent this run; raise EntryError if it did so with other arguments."""
    found = read_request(Store(entry.app), task_id)
    if found not in (None, _digest_of(overrides)):
        raise EntryError(f"{entry.key}: trigger: the same key was used for other arguments.", entry.key)
    return found is not None


def _digest_of(overrides: Mapping[str, Any]) -> str:
    text = json.dumps(overrides, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def backfill(
    entry: RedBeatSchedulerEntry,
    start: datetime,
    end: datetime,
    dry_run: bool,
    *,
    limit: int | None,
    progress: Callable[[int], object] | None,
) -> list[datetime]:
    """Send the runs of ``entry`` in a span; see :meth:`redbeat.RedBeatSchedulerEntry.backfill`."""
    store = Store(entry.app)
    now = Server(store).now()
    for name, moment in (("start", start), ("end", end)):
        if not isinstance(moment, datetime):
            raise EntryError(f"{entry.key}: backfill: {name} must be a datetime, not {moment!r}.", entry.key)
    if in_utc(end) < in_utc(start):
        raise EntryError(f"{entry.key}: backfill: end must not be before start.", entry.key)
    dues = _missing(entry, store, runs_between(entry, start, min(in_utc(end), now)))
    if limit is not None:  # the runs are counted before the first one is sent
        found = list(islice(dues, limit + 1))
        dues = iter(found)
        if len(found) > limit:
            raise EntryError(
                f"{entry.key}: backfill: that span has more than {limit} runs, which is the limit; name a "
                "shorter one.",
                entry.key,
            )
    sent: list[datetime] = []
    alone: AbstractContextManager[Callable[[], None]] = nullcontext(lambda: None)
    if not dry_run:
        alone = backfilling(store, entry.key)
    with alone as hold:
        for due in dues:
            with hold_interrupts(5.0):  # a run is sent, noted and counted, or none of these
                hold()
                if not dry_run and not _send_past_run(entry, store, due.astimezone(timezone.utc)):
                    continue
                sent.append(due)
                if progress is not None:
                    progress(len(sent))
    return sent


def _missing(entry: RedBeatSchedulerEntry, store: Store, dues: Iterator[datetime]) -> Iterator[datetime]:
    """Yield those of ``dues`` that ``backfill`` hasn't sent yet."""
    for chunk in in_chunks(dues):
        known = are_backfilled(store, entry.key, [score_text(due.timestamp()) for due in chunk])
        yield from (due for due, is_known in zip(chunk, known, strict=True) if not is_known)


def _send_past_run(entry: RedBeatSchedulerEntry, store: Store, due: datetime) -> bool:
    nominal = score_text(due.timestamp())
    if are_backfilled(store, entry.key, [nominal])[0]:  # by another backfill, before this one began
        return False
    task_id = task_id_of(entry.key, due.isoformat(timespec="microseconds"))
    record, now = record_of(nominal, manual=True), Server(store).now()
    send(entry, due, {"task_id": task_id}, record, now, is_alone=False)
    # sent before it is noted: after a kill in between it is sent again, with the same id
    note_backfilled(store, entry.key, nominal)
    return True


def told_of_beginnings(
    found: Sequence[tuple[RedBeatSchedulerEntry, Sequence[datetime]]], first: datetime, zone: tzinfo
) -> str:
    """Return what is to be said of runs before entries were stored, and before their start_time; '': nothing.

    Arguments:
        found: entries with their runs from ``first`` on that a backfill has sent, or would send.
    """
    words, early, stored_at = "", 0, first
    starts = [entry.policy.start_time for entry, _ in found]
    started = [start for start in starts if start is not None and start > first]
    if started:
        which = f"their start_time: {counted(len(started))}"
        which = f"{when_in(started[0], zone)}, its start_time" if len(found) == 1 else which
        words += f" There are none before {which}."
    for entry, dues in found:
        if not entry.total_run_count and entry.last_run_at is not None:  # before its first run
            stored_at = in_utc(entry.last_run_at)
            early += sum(due < stored_at for due in dues)
    if early:
        is_all = early == sum(len(dues) for _, dues in found)
        are = "All of them are" if is_all else counted(early, "of them is", "of them are")
        when = f"{when_in(stored_at, zone)}, when it was" if len(found) == 1 else "their entries were"
        words += f" {are} from before {when} stored."
    return words
