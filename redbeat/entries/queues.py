"""Whether the queue that an entry names is one that the app has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redbeat.config.suggestions import did_you_mean


def find_queue_problem(app: Any, options: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the queue that ``options`` name, a sentence; None when nothing is.

    An app with ``task_create_missing_queues`` takes any name for a new queue.
    """
    queue = options.get("queue")
    if app.conf.task_create_missing_queues or not is_missing(app, queue):
        return None
    return (
        f"options: queue: there is no queue {queue!r} in task_queues, and task_create_missing_queues is off."
        f"{did_you_mean(str(queue), app.amqp.queues)}"
    )


def is_missing(app: Any, queue: Any) -> bool:
    """Tell whether ``queue`` is the name of none that the app has."""
    known = app.amqp.queues
    return isinstance(queue, str) and bool(queue) and queue not in known and queue not in known.aliases
