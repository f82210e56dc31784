"""The queue of an entry: the one in its options, else the one to which Celery's routes send its task.

Invariant: an entry whose queue can't be told has none; nothing is sent or declared.
"""

from __future__ import annotations

from typing import Any

from celery.app.routes import MapRoute

from redbeat.diagnostics.routes import find_route
from redbeat.entries.entry import RedBeatSchedulerEntry

_PLACES = ("queue", "exchange", "routing_key", "exchange_type")


class Queues:
    """The queues of an app's entries; asked for each task once, if the app routes by the task alone."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._by_task: dict[str, str] = {}
        self._is_by_task = all(isinstance(one, MapRoute) for one in app.amqp.router.routes)

    def of(self, entry: RedBeatSchedulerEntry) -> str:
        """Return the name of the queue; '' where it can't be told."""
        options = entry.options or {}
        queue = options.get("queue")
        if isinstance(queue, str) and queue:
            return queue
        if entry.problem:
            return ""
        if not self._is_by_task or any(options.get(one) for one in _PLACES):
            return self._routed(entry)
        task = str(entry.task)
        if task not in self._by_task:
            self._by_task[task] = self._routed(entry)
        return self._by_task[task]

    def _routed(self, entry: RedBeatSchedulerEntry) -> str:
        try:
            route = find_route(self._app, str(entry.task), entry.args, entry.kwargs, entry.options or {})
        except Exception:  # noqa: BLE001 - a route may be any function of the application's
            return ""
        return route.queues[0] if route.queues else route.declared or ""
