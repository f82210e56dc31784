"""Checks of the messages that beat would send: whether they can be encoded, and whether a worker takes them.

Invariant: nothing is sent, and no code of the application's is called but its routes.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from dateutil.parser import isoparse
from kombu.compression import get_encoder
from kombu.serialization import dumps
from kombu.utils.functional import maybe_evaluate

from redbeat.config.suggestions import did_you_mean
from redbeat.declared.modules import load_tasks
from redbeat.declared.static_entries import read_static_entries
from redbeat.diagnostics.checks.context import Context, Row
from redbeat.diagnostics.checks.finding import Finding, Severity
from redbeat.diagnostics.routes import find_route
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.validation import find_option_problem
from redbeat.log.logger import logger
from redbeat.log.text import counted, shorten

#: options that Celery writes into the message itself
_MESSAGE_OPTIONS = ("countdown", "eta", "expires", "time_limit", "soft_time_limit", "shadow")


def check_message(context: Context, row: Row) -> Iterator[Finding]:
    """Find entries whose run can't be written as a message."""
    if row.entry is None or not context.has_tasks:  # serializers are the application's own, too
        return
    if not row.entry.options and (row.stored.definition or "").count('"__type__"') <= 1:
        return  # everything but its schedule is plain JSON, so it can be encoded
    try:
        _write_message(context.app, row.entry)
    except Exception as exc:  # noqa: BLE001 - whatever a serializer raises is about this entry
        reason = find_option_problem(row.entry.options) or f"{_said(exc)}."
        yield Finding(
            Severity.ERROR,
            "unserialisable",
            context.name_of(row.key),
            f"Its run can't be written as a message: {reason}",
            "Correct its options or its arguments.",
        )


def _write_message(app: Any, entry: RedBeatSchedulerEntry) -> None:
    """Write the message of a run, as Celery does; raise what it raises."""
    encode: Any = dumps
    compress_by: Any = get_encoder
    options = _options_of(app, entry)
    expires = options.get("expires")
    if isinstance(expires, str):
        isoparse(expires)
    elif expires is not None and not isinstance(expires, datetime):
        expires + 0.0
    given = {name: options[name] for name in _MESSAGE_OPTIONS if options.get(name) is not None}
    message = app.amqp.create_task_message("0", entry.task, entry.args or (), entry.kwargs or {}, **given)
    serializer = options.get("serializer") or app.conf.task_serializer
    encode(message.body, serializer=serializer)
    encode({**message.headers, **(options.get("headers") or {})}, serializer="json")
    if options.get("compression"):
        compress_by(options["compression"])


def _said(exc: Exception) -> str:
    return f"{type(exc).__name__}: {shorten(' '.join(str(exc).split()), 200).rstrip('.')}"


def _options_of(app: Any, entry: RedBeatSchedulerEntry) -> dict[str, Any]:
    """Return the options of a run: those of its task, if that is known, overridden by the entry's."""
    task = app.tasks.get(entry.task)
    own = {} if task is None else task._get_exec_options()  # noqa: SLF001 - what its apply_async begins with
    return {**own, **(entry.options or {})}


def check_routes(context: Context) -> Iterator[Finding]:
    """Find routers of ``task_routes`` that Celery can't make, so that no message can be routed."""
    if not context.has_tasks:
        return
    evaluate: Any = maybe_evaluate
    try:
        for router in context.app.amqp.router.routes:
            evaluate(router)
    except Exception as exc:  # noqa: BLE001 - the application's own routers
        yield Finding(
            Severity.ERROR,
            "task-routes",
            "task_routes",
            f"No message can be sent, as it can't be used: {_said(exc)}.",
            "Correct the setting: a dictionary, a function, or the path of one that can be imported.",
        )


class Tasks:
    """What the application knows of its tasks, and the workers of their queues; asked once."""

    def __init__(self) -> None:
        self._is_known = False
        self._reported: set[str] = set()
        self._queues: dict[str, list[str]] = {}

    def load(self, context: Context) -> Iterator[Finding]:
        """Import the modules with the application's tasks; find out whether that works."""
        app = context.app
        if not context.has_tasks:
            return
        try:
            load_tasks(app)
        except Exception as exc:  # noqa: BLE001 - the application's own code
            yield Finding(
                Severity.WARNING,
                "tasks-unknown",
                str(app.main or "app"),
                f"The modules with its tasks can't be imported: {_said(exc)}.",
                "Correct its settings imports and include; until then unknown tasks can't be found.",
            )
            return
        # if the application imports no tasks at all where beat runs, none of them is reported as unknown
        self._is_known = any(not name.startswith("celery.") for name in app.tasks)

    def check_static_tasks(self, context: Context) -> Iterator[Finding]:
        """Find entries of ``beat_schedule`` whose task is unknown, stored or not."""
        for static in read_static_entries(context.app):
            if static.entry is not None:
                yield from self._check_name(context, static.name, static.entry)

    def check_task(self, context: Context, row: Row) -> Iterator[Finding]:
        """Find entries whose task the application doesn't have."""
        if row.entry is not None:
            yield from self._check_name(context, context.name_of(row.key), row.entry)

    def _check_name(self, context: Context, name: str, entry: RedBeatSchedulerEntry) -> Iterator[Finding]:
        if not self._is_known or entry.task in context.app.tasks or name in self._reported:
            return
        self._reported.add(name)
        yield Finding(
            Severity.WARNING,
            "unknown-task",
            name,
            f"The application has no task {entry.task!r}.{did_you_mean(entry.task, context.app.tasks)}",
            "Correct the name; if only the workers import that task, nothing is wrong.",
        )

    def note_queue(self, context: Context, row: Row) -> Iterator[Finding]:
        """Note which queue the entry's runs go to, for :meth:`check_queues`."""
        entry = row.entry
        if entry is None or context.workers_seconds is None or not entry.is_enabled_at(context.now):
            return
        try:
            options = entry.options or {}
            route = find_route(context.app, entry.task, entry.args or (), entry.kwargs or {}, options)
        except Exception as exc:  # noqa: BLE001 - the application's own routes, and queues it doesn't have
            yield Finding(
                Severity.ERROR,
                "no-route",
                context.name_of(row.key),
                f"Its route can't be computed: {_said(exc)}.",
                "Correct its queue, or task_routes and task_queues.",
            )
            return
        for queue in route.queues if route.exchange_type != "fanout" else ():  # a fan-out needs no listeners
            self._queues.setdefault(queue, []).append(context.name_of(row.key))

    def check_queues(self, context: Context) -> Iterator[Finding]:
        """Find queues to which entries' runs go, and from which no worker that answers takes."""
        if context.workers_seconds is None or not self._queues:
            return
        try:
            replies = context.app.control.inspect(timeout=context.workers_seconds).active_queues()
        except Exception as exc:  # noqa: BLE001 - whatever the broker's transport raises
            logger.debug("doctor: no worker could be asked: %r", exc)
            yield Finding(
                Severity.ERROR,
                "broker",
                "broker_url",
                f"The workers can't be asked, as the broker can't be used: {_said(exc)}.",
                "Check whether it runs, and whether broker_url is right.",
            )
            return
        if not replies:
            yield Finding(
                Severity.WARNING,
                "no-worker",
                "workers",
                f"No worker has answered within {context.workers_seconds:g} s.",
                "Start one, or give them longer: --workers takes a number of seconds.",
            )
            return
        consumed = {str(queue["name"]) for queues in replies.values() for queue in queues or ()}
        for queue, names in sorted(self._queues.items()):
            if queue in consumed:
                continue
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            yield Finding(
                Severity.WARNING,
                "no-consumer",
                queue,
                f"The runs of {shown} go to this queue, and no worker takes from it "
                f"({counted(len(replies), 'worker', 'workers')} answered).",
                "Start a worker with -Q, or correct the entries' queue.",
            )
