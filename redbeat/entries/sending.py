"""One run that somebody asks for, sent by this process: by ``trigger``, ``backfill`` or ``rerun``.

Invariant: it keeps to the entry's ``overlap``, and is recorded before a worker can note what becomes of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery.beat import BeatLazyFunc
from celery.result import AsyncResult
from kombu.exceptions import EncodeError, OperationalError

from redbeat.config.masking import sanitize_url
from redbeat.delivery.reserved_names import find_reserved
from redbeat.delivery.templates import options_of_task
from redbeat.entries.validation import find_problem
from redbeat.entries.wording import one_line
from redbeat.errors import BrokerUnavailable, CallRefused, EntryBusy, EntryError, RedBeatError, RunNotSent
from redbeat.policy.messages import headers_of, queue_limit_of, wait_seconds
from redbeat.runs.limits import limits_of
from redbeat.runs.progress import holder_in_words
from redbeat.runs.tracking import is_tracked
from redbeat.store.entries import add_records, record_text, refuse_messages
from redbeat.store.histories import take_from_history
from redbeat.store.records import Held, TrackedRun, score_text
from redbeat.store.runs import Runs
from redbeat.store.store import Store

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry


@contextmanager
def naming_the_broker(app: Any, name: str) -> Iterator[None]:
    """Turn any error of sending a message of the entry ``name`` into one sentence.

    Raises:
        RunNotSent: in place of an error of the task, the serializer or the broker.
    """
    # kombu counts KeyError among the errors of Redis, but any code may raise one
    broken = tuple(kind for kind in app.connection_for_write().connection_errors if kind is not KeyError)
    try:
        yield
    except RedBeatError:
        raise
    except (OperationalError, *broken) as exc:
        url = sanitize_url(app.conf.broker_write_url or app.conf.broker_url or "the default broker")
        raise BrokerUnavailable(f"The broker {url} can't be used: {one_line(exc)}", name) from exc
    except Exception as exc:
        refused = CallRefused if isinstance(exc, (TypeError, EncodeError)) else RunNotSent
        raise refused(f"{one_line(name)} can't be sent: {one_line(repr(exc))}", name) from exc


def send(
    entry: RedBeatSchedulerEntry,
    due: datetime,
    overrides: Mapping[str, Any],
    record: str | None,
    now: datetime,
    *,
    is_alone: bool = True,
) -> AsyncResult:
    """Send one run of ``entry`` that somebody asks for, and record it.

    It is recorded before it is sent: a worker may note at once what becomes of it. If it can't be sent, its
    record is taken back.

    Arguments:
        overrides: its ``task_id``, ``args``, ``kwargs``, and options of ``apply_async``.
        record: of its history; None: it has that already.
        now: when it is sent.
        is_alone: it doesn't wait longer than the entry's ``queue_timeout``. False: it waits for ever, as it
            is one of many.

    Raises:
        EntryBusy: another run holds it back.
        EntryError: it is the entry of a stored message.
    """
    store, task_id = Store(entry.app), str(overrides["task_id"])
    refuse_messages(store, [entry.key])
    run = _reserve(entry, store, task_id, due, overrides, now)
    if record is not None:
        add_records(store, [(entry.key, record_text(record, now))])
    try:
        result = _publish(entry, due, overrides, now if is_alone else None)
    except BaseException:
        if record is not None:
            take_from_history(store, entry.key, record)
        if run is not None:
            Runs(store).take_back(entry.key, task_id)
        raise
    if run is not None:
        Runs(store).note_published(entry.key, task_id, run)
    return result


def _reserve(
    entry: RedBeatSchedulerEntry,
    store: Store,
    task_id: str,
    due: datetime,
    overrides: Mapping[str, Any],
    now: datetime,
) -> TrackedRun | None:
    """Reserve a run, if the entry's runs are tracked, and return it; None: they aren't.

    Raises:
        EntryBusy: another run holds it back.
    """
    policy = entry.policy
    if not (policy.needs_tracking or is_tracked(entry.app)):
        return None
    options = {**(entry.options or {}), **overrides}
    seconds = policy.queue_seconds + wait_seconds(options, now, entry.app.timezone)
    nominal = score_text(due.timestamp())
    run = TrackedRun(nominal, limits_of(policy), seconds, policy.overlap)
    found = Runs(store).reserve(entry.key, task_id, run)
    if isinstance(found, Held):
        raise EntryBusy(
            f"{entry.key}: its overlap is {policy.overlap}, and {holder_in_words(found)}; "
            "try again when that one has ended.",
            entry.key,
            found.by or None,
        )
    if found is not None:
        raise EntryBusy(f"{entry.key}: {found}.", entry.key)
    return run


def _publish(
    entry: RedBeatSchedulerEntry, due: datetime, overrides: Mapping[str, Any], now: datetime | None
) -> AsyncResult:
    options = {**(entry.options or {}), **overrides}
    args = options.pop("args", entry.args) or ()
    kwargs = options.pop("kwargs", entry.kwargs) or {}
    # else args='ab' would be 'a' and 'b'
    problem = find_problem({"args": args, "kwargs": kwargs}) or find_reserved(entry.app, options)
    if problem:
        raise EntryError(f"{entry.key}: {problem}", entry.key)
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
