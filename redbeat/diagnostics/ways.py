"""Which way the messages of an entry go, judged by this program's code, which may be another than beat's."""

from __future__ import annotations

from typing import Any

from celery.utils.imports import load_extension_class_names
from kombu.utils.imports import symbol_by_name

from redbeat.beat.plain import why_not_plain
from redbeat.broker.holes import Call
from redbeat.broker.originals import Originals
from redbeat.broker.ways import find_broker_obstacle, find_call_obstacle, find_setting_obstacle
from redbeat.config.config import ensure_conf
from redbeat.diagnostics.routes import load_tasks
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.schedulers import RedBeatScheduler


def find_obstacle(app: Any, entry: RedBeatSchedulerEntry) -> str:
    """Return why each message of ``entry`` is made by the task's own ``apply_async``; '': they are compiled.

    The modules with the tasks of ``app`` are imported, and may raise anything. Nothing is sent, and no server
    is asked.
    """
    load_tasks(app)
    config, originals = ensure_conf(app), Originals(app)
    call = Call(
        entry.name,
        entry.task,
        list(entry.args or ()),
        entry.kwargs or {},
        entry.options or {},
        entry.policy.expires_after,
    )
    return (
        find_setting_obstacle(config, has_lock=config.lock_key is not None)
        or find_broker_obstacle(app)
        or originals.find_obstacle(_scheduler_of(app))
        or why_not_plain(entry)
        or find_call_obstacle(originals, app.tasks.get(entry.task), call)
    )


def _scheduler_of(app: Any) -> type[RedBeatScheduler]:
    """Return the class of the setting ``beat_scheduler``, if it is made from RedBeat's."""
    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    name = app.conf.beat_scheduler
    found: Any = symbol_by_name(name, aliases=aliases) if name else None  # type: ignore[no-untyped-call]
    return found if isinstance(found, type) and issubclass(found, RedBeatScheduler) else RedBeatScheduler
