"""Checks of the application: its tasks, routes and schedules in the code, and messages of entries.

Invariant: nothing is sent, and no code of the application's is called but its routes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kombu.compression import get_encoder
from kombu.serialization import dumps
from kombu.utils.functional import maybe_evaluate

from redbeat.config.suggestions import did_you_mean
from redbeat.declared.collection import collect_declared, load_tasks, read_static_entries
from redbeat.diagnostics.checks.context import Context, Row, said
from redbeat.diagnostics.findings import Finding, found
from redbeat.diagnostics.routes import Group, ask_workers
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.validation import find_option_problem
from redbeat.errors import DeclarationError
from redbeat.log.logger import logger
from redbeat.log.text import counted, printable
from redbeat.store.entries import read_entries
from redbeat.store.parts import in_chunks

#: options that Celery writes into the message itself
_MESSAGE_OPTIONS = ("countdown", "eta", "expires", "time_limit", "soft_time_limit", "shadow")


def load(context: Context) -> Iterator[Finding]:
    """Import the modules with the application's tasks; find out whether that works."""
    if not context.has_tasks:
        return
    try:
        load_tasks(context.app)
    except Exception as exc:  # noqa: BLE001 - the application's own code
        yield found("tasks-unknown", str(context.app.main or "app"), said=said(exc))
        return
    # if the application imports no tasks at all where beat runs, none of them is reported as unknown
    context.knows_tasks = any(not name.startswith("celery.") for name in context.app.tasks)


def check_static_entries(context: Context) -> Iterator[Finding]:
    """Find entries of ``beat_schedule`` that beat can't store, or whose task is unknown."""
    for static in read_static_entries(context.app):
        if static.problem:
            yield found("static", printable(static.name), problem=static.problem.rstrip("."))
        if static.entry is not None:
            yield from _check_task(context, static.name, static.entry)


def check_declared(context: Context) -> Iterator[Finding]:
    """Find schedules in the code that beat can't store, or that it hasn't stored yet."""
    if not context.has_tasks:
        return
    try:
        declared = collect_declared(context.app)
    except DeclarationError as exc:
        place = exc.places[0]
        yield found("declaration", place, problem=str(exc).removeprefix(f"{place}: "))
        return
    for declaration, reason in declared.strays.items():
        yield found("stray-declaration", declaration.place, reason=reason)
    places = {
        context.store.keys.entry(name): entry.declaration.place for name, entry in declared.entries.items()
    }
    for chunk in in_chunks(list(places)):
        for stored in read_entries(context.store, chunk)[1]:
            if not stored.exists:
                yield found("not-stored", context.name_of(stored.key), place=places[stored.key])


def check_task(context: Context, row: Row) -> Iterator[Finding]:
    """Find entries whose task the application doesn't have."""
    if row.entry is not None:
        yield from _check_task(context, row.name, row.entry)


def _check_task(context: Context, name: str, entry: RedBeatSchedulerEntry) -> Iterator[Finding]:
    if context.knows_tasks and entry.task not in context.app.tasks:
        hint = did_you_mean(entry.task, context.app.tasks)
        yield found("unknown-task", name, task=entry.task, hint=hint)


def check_routes(context: Context) -> Iterator[Finding]:
    """Find routers of ``task_routes`` that Celery can't make, so that no message can be routed."""
    if not context.has_tasks:
        return
    evaluate: Any = maybe_evaluate
    try:
        for router in context.app.amqp.router.routes:
            evaluate(router)
    except Exception as exc:  # noqa: BLE001 - the application's own routers
        yield found("task-routes", "task_routes", said=said(exc))


def check_message(context: Context, row: Row) -> Iterator[Finding]:
    """Find entries whose run can't be written as a message."""
    if row.entry is None or not context.has_tasks:  # serializers are the application's own, too
        return
    if not row.entry.options and (row.stored.definition or "").count('"__type__"') <= 1:
        return  # everything but its schedule is plain JSON, so it can be encoded
    reason = find_option_problem(row.entry.options or {})
    try:
        _write_message(context.app, row.entry)
    except Exception as exc:  # noqa: BLE001 - whatever a serializer raises is about this entry
        reason = reason or f"{said(exc)}."
    if reason:
        yield found("unserialisable", row.name, reason=reason)


def _write_message(app: Any, entry: RedBeatSchedulerEntry) -> None:
    """Write the message of a run, as Celery does; raise what it raises."""
    encode: Any = dumps
    compress_by: Any = get_encoder
    task = app.tasks.get(entry.task)
    own = {} if task is None else task._get_exec_options()  # noqa: SLF001 - what its apply_async begins with
    options = {**own, **(entry.options or {})}
    given = {name: options[name] for name in _MESSAGE_OPTIONS if options.get(name) is not None}
    message = app.amqp.create_task_message("0", entry.task, entry.args or (), entry.kwargs or {}, **given)
    encode(message.body, serializer=options.get("serializer") or app.conf.task_serializer)
    encode({**message.headers, **(options.get("headers") or {})}, serializer="json")
    if options.get("compression"):
        compress_by(options["compression"])


def note_destination(context: Context, row: Row) -> Iterator[Finding]:
    """Note where the entry's runs go, for :func:`check_queues`."""
    if context.workers_seconds is not None and row.entry and row.entry.is_enabled_at(context.now):
        context.destinations.add(row.entry)
    yield from ()


def check_queues(context: Context) -> Iterator[Finding]:
    """Find entries without a route, and queues from which no worker that answers takes."""
    destinations = list(context.destinations)
    for group in destinations:
        if group.problem:
            names = _entries_of(group)
            yield found("no-route", "task_routes", names=names, problem=group.problem.rstrip("."))
    if context.workers_seconds is None or not destinations:
        return
    try:
        consumed, answered = ask_workers(context.app, context.workers_seconds)
    except Exception as exc:  # noqa: BLE001 - whatever the broker's transport raises
        logger.debug("doctor: no worker could be asked: %r", exc)
        yield found("broker", "broker_url", said=said(exc))
        return
    if not answered:
        yield found("no-worker", "workers", seconds=context.workers_seconds)
        return
    workers = counted(answered, "worker", "workers")
    for group in destinations:
        for queue in group.queues:
            if queue not in consumed and not group.is_fanout:  # a fan-out needs no listeners
                yield found("no-consumer", queue, names=_entries_of(group), workers=workers)


def _entries_of(group: Group) -> str:
    more = f" and {group.count - len(group.names)} more" if group.count > len(group.names) else ""
    return ", ".join(map(printable, group.names)) + more
