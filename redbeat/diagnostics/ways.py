"""Which way the messages of an entry go, judged by this program's code, which may be another than beat's."""

from __future__ import annotations

from typing import Any

from celery.utils.imports import load_extension_class_names
from kombu.utils.imports import symbol_by_name

from redbeat.declared.modules import load_tasks
from redbeat.delivery import guard
from redbeat.delivery.placeholders import Call, kind_of
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.log.text import joined
from redbeat.scheduler.encoder import why_no_template
from redbeat.schedulers import RedBeatScheduler


def find_obstacle(app: Any, entry: RedBeatSchedulerEntry) -> str:
    """Return all that lets each message of ``entry`` be made by ``apply_async``; '': they are compiled.

    The modules with the tasks of ``app`` are imported, and may raise anything. Nothing is sent, and no server
    is asked.
    """
    load_tasks(app)
    return joined(find_app_obstacle(app), find_entry_obstacle(app, entry))


def document_of_way(obstacle: str | None) -> dict[str, Any] | None:
    """Return as plain JSON which way messages go, by what ``find_obstacle`` has found; None: not known."""
    return None if obstacle is None else {"compiled": not obstacle, "reason": obstacle or None}


def find_app_obstacle(app: Any) -> str:
    """Return all that keeps every message of ``app`` from being compiled; '': nothing does."""
    return joined(guard.find_obstacle(app, _scheduler_of(app)), guard.find_broker_obstacle(app))


def find_entry_obstacle(app: Any, entry: RedBeatSchedulerEntry) -> str:
    """Return what in ``entry`` and its task keeps its messages from being compiled; '': nothing does."""
    call = Call(
        entry.name,
        entry.task,
        list(entry.args or ()),
        entry.kwargs or {},
        entry.options or {},
        entry.policy.expires_after,
    )
    kind = kind_of(call)
    return joined(
        why_no_template(entry),
        guard.find_task_obstacle(app.tasks.get(entry.task)),
        *(kind.split("; ") if isinstance(kind, str) else ()),
    )


def _scheduler_of(app: Any) -> type[RedBeatScheduler]:
    """Return the class of the setting ``beat_scheduler``, if it is made from RedBeat's."""
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    name = app.conf.beat_scheduler
    found: Any = symbol_by_name(name, aliases=aliases) if name else None  # type: ignore[no-untyped-call]
    return found if isinstance(found, type) and issubclass(found, RedBeatScheduler) else RedBeatScheduler
