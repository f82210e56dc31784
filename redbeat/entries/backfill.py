"""Runs that people ask for: one now (``trigger``), or those of a span in the past (``backfill``).

The caller sends them itself, without beat. Each message is marked as manual, and so is its record in the
entry's history. The schedule isn't touched.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any

from celery.beat import BeatLazyFunc
from celery.result import AsyncResult

from redbeat.broker.ground import options_of_task
from redbeat.config.suggestions import find_typos
from redbeat.entries.preview import runs_between
from redbeat.entries.validation import find_kind_problem
from redbeat.errors import EntryError
from redbeat.history import sent_record
from redbeat.policy.expiry import queue_limit_of, wait_seconds
from redbeat.policy.headers import headers_of
from redbeat.process.signals import hold_interrupts
from redbeat.schedules.timezones import in_utc
from redbeat.store.chunks import in_chunks
from redbeat.store.histories import Histories
from redbeat.store.records import score_text
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.task_ids import task_id_of

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: a name that resembles one of these is a typo; any other may be an option of the task or the broker
_OVERRIDES = ("args", "kwargs", "queue", "exchange", "routing_key", "priority", "expires", "countdown", "eta")


def trigger(entry: RedBeatSchedulerEntry, overrides: Mapping[str, Any]) -> AsyncResult:
    """Send one run of ``entry`` now; see :meth:`redbeat.RedBeatSchedulerEntry.trigger`."""
    typos = find_typos(overrides, _OVERRIDES)
    if typos:
        raise EntryError(f"{entry.key}: trigger: there is no {typos}.", entry.key)
    store = Store(entry.app)
    now = Server(store).now()
    task_id = str(overrides.get("task_id") or uuid.uuid4())
    result = send(entry, now, {**overrides, "task_id": task_id}, now)
    record = sent_record(score_text(now.timestamp()), task_id, is_manual=True)
    Histories(store).add(entry.key, record, now)
    return result


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
                f"{entry.key}: backfill: that span has more than {limit} runs; name a shorter one, or a "
                "higher limit.",
                entry.key,
            )
    sent: list[datetime] = []
    alone: AbstractContextManager[Callable[[], None]] = nullcontext(lambda: None)
    if not dry_run:
        alone = Histories(store).backfilling(entry.key)
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
        known = Histories(store).are_backfilled(entry.key, [score_text(due.timestamp()) for due in chunk])
        yield from (due for due, is_known in zip(chunk, known, strict=True) if not is_known)


def _send_past_run(entry: RedBeatSchedulerEntry, store: Store, due: datetime) -> bool:
    histories, nominal = Histories(store), score_text(due.timestamp())
    if histories.are_backfilled(entry.key, [nominal])[0]:  # by another backfill, before this one began
        return False
    send(entry, due, {"task_id": task_id_of(entry.key, due.isoformat(timespec="microseconds"))})
    # sent before it is noted: after a kill in between it is sent again, with the same id
    histories.note_backfilled(entry.key, nominal)
    histories.add(entry.key, sent_record(nominal, is_manual=True), Server(store).now())
    return True


def send(
    entry: RedBeatSchedulerEntry, due: datetime, overrides: Mapping[str, Any], now: datetime | None = None
) -> AsyncResult:
    """Send one run of ``entry`` that somebody asks for.

    Arguments:
        overrides: ``args``, ``kwargs``, and options of ``apply_async``.
        now: when it is sent; it doesn't wait longer than the entry's ``queue_timeout``. None: it waits for
            ever, as it is one of many.
    """
    options = {**(entry.options or {}), **overrides}
    args = options.pop("args", entry.args) or ()
    kwargs = options.pop("kwargs", entry.kwargs) or {}
    for field, value in (("args", args), ("kwargs", kwargs)):  # else args='ab' would be 'a' and 'b'
        problem = find_kind_problem(field, value)
        if problem:
            raise EntryError(f"{entry.key}: {field} {problem}.", entry.key)
    headers = {**((entry.options or {}).get("headers") or {}), **(options.get("headers") or {})}
    options["headers"] = {
        **headers,
        "redbeat_entry": entry.name,
        "redbeat_due": due.isoformat(timespec="microseconds"),
        "redbeat_manual": True,
        **_limit(entry, options, now),
    }
    args = [value() if isinstance(value, BeatLazyFunc) else value for value in args]
    kwargs = {name: value() if isinstance(value, BeatLazyFunc) else value for name, value in kwargs.items()}
    task = entry.app.tasks.get(entry.task)
    if task is not None:
        return task.apply_async(args, kwargs, **options)
    return entry.app.send_task(entry.task, args, kwargs, **options)


def _limit(entry: RedBeatSchedulerEntry, options: dict[str, Any], now: datetime | None) -> dict[str, Any]:
    """Let a message sent at ``now`` expire by the entry's ``queue_timeout``; return the policy's headers.

    Its ``expires_after`` counts from the due time, and is for the runs that beat sends.
    """
    policy, app, seconds = replace(entry.policy, expires_after=None), entry.app, None
    if now is not None:
        of_task = options_of_task(app.tasks.get(entry.task))
        seconds = queue_limit_of(policy, options, of_task, now, app.timezone)
        if seconds is not None:
            wait = wait_seconds(options, now, app.timezone)
            options["expires"] = now + timedelta(seconds=seconds + wait)
    return headers_of(policy, seconds)
