"""Whether the queue that an entry names may be used, and the app has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redbeat.config.suggestions import did_you_mean
from redbeat.delivery.reserved_names import find_reserved


def find_queue_problem(app: Any, options: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the names in ``options``, a sentence; None: nothing is.

    With ``task_create_missing_queues`` any queue that isn't reserved is allowed, as Celery then creates it.
    """
    reserved = find_reserved(app, options)
    if reserved is not None:
        return reserved
    queue = options.get("queue")
    if app.conf.task_create_missing_queues or not is_missing(app, queue):
        return None
    return (
        f"options: queue: there is no queue {queue!r} in task_queues, and task_create_missing_queues is off."
        f"{did_you_mean(str(queue), app.amqp.queues)}"
    )


def is_missing(app: Any, queue: Any) -> bool:
    """Tell whether ``queue`` is a name, and the app has no queue of this name."""
    known = app.amqp.queues
    return isinstance(queue, str) and bool(queue) and queue not in known and queue not in known.aliases
