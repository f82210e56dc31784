"""The way in: an app whose workers track the runs of entries.

Invariant: it costs a process nothing unless it is a worker, and a worker that can't track runs works.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import bootsteps, current_app
from celery.local import Proxy
from celery.signals import task_unknown, worker_process_init

from redbeat.config.config import ensure_conf
from redbeat.errors import ConfigurationError
from redbeat.log.logger import runs_logger
from redbeat.log.text import is_utf8
from redbeat.runs import publishing
from redbeat.runs.boundary import Harmless
from redbeat.runs.caller import caller_of
from redbeat.runs.deliveries import read_delivery
from redbeat.runs.keeper import Keeper
from redbeat.runs.outcomes import error_of_unknown
from redbeat.store.runs import End

#: the attribute of an app whose workers track runs
MARK = "redbeat_tracks_runs"


def track_runs(app: Any) -> None:
    """Let the workers of ``app`` track the runs of entries: when they begin, and what becomes of them.

    To be called in the module that makes the app, so that beat and all workers have it. Calling it again does
    nothing. A worker that was started before doesn't track.
    """
    if isinstance(app, Proxy):
        app = app._get_current_object()  # noqa: SLF001
    if is_tracked(app):
        return
    setattr(app, MARK, True)
    app.steps["worker"] |= {TrackRuns, DeliverOutcomes}
    app.steps["consumer"] |= {KeepRuns}
    worker_process_init.connect(
        partial(_prepare_child, app), weak=False, dispatch_uid=f"redbeat.runs.{id(app)}"
    )


def is_tracked(app: Any) -> bool:
    """Return True if the workers of ``app`` track runs, as far as this process knows."""
    return bool(getattr(app, MARK, False))


def _prepare_child(app: Any, **_: Any) -> None:
    """Connect to Redis in a process of a pool, so that its first task needn't wait for that."""
    if current_app._get_current_object() is app:  # noqa: SLF001
        with Harmless("preparing a process for runs"):
            publishing.listen()
            caller_of(app).prepare()


class TrackRuns(bootsteps.StartStopStep):
    """Begins tracking in a worker, when its pool has started."""

    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        """Begin."""
        with Harmless("beginning to track runs"):
            try:
                parent.redbeat_tracking = _begin(parent)
            except ConfigurationError as exc:
                runs_logger.error("runs: Runs aren't tracked: %s", exc)


class KeepRuns(bootsteps.StartStopStep):
    """Starts the threads that talk to Redis, when the worker has forked all that it forks at its start.

    A process that is forked while a thread holds a lock never gets that lock; beat inside a worker is one.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def start(self, parent: Any) -> None:
        """Start them; a consumer that has lost its connection starts again."""
        tracking = getattr(parent.controller, "redbeat_tracking", None)
        if tracking is not None:
            with Harmless("beginning to track runs"):
                if not parent.pool.uses_semaphore:  # tasks run in this process
                    caller_of(parent.app).prepare()
                tracking[1].start()


class DeliverOutcomes(bootsteps.StartStopStep):
    """Ends tracking in a worker, when its pool has stopped: so all outcomes are known."""

    def include(self, parent: Any) -> bool:
        """Be the first step, as they are stopped in reverse."""
        parent.steps.insert(0, self)
        return True

    def stop(self, parent: Any) -> None:
        """Deliver what is left."""
        tracking = getattr(parent, "redbeat_tracking", None)
        if tracking is not None:
            requests, keeper = tracking
            with Harmless("ending the tracking of runs"):
                requests.take_back()
                keeper.stop()

    def terminate(self, parent: Any) -> None:
        """Do the same."""
        self.stop(parent)


def _begin(controller: Any) -> tuple[Any, Keeper]:
    # only workers need what handles their requests
    from redbeat.runs.request import Requests, Station, can_terminate

    app = controller.app
    config = ensure_conf(app)
    config.require_redis()
    if not is_utf8(controller.hostname):
        raise ConfigurationError(
            f"the worker's name {controller.hostname!r} can't be kept in Redis: it isn't UTF-8."
        )
    facts = {"pool": _name_of(controller.pool), "can_terminate": can_terminate(controller.pool)}
    keeper = Keeper(app, controller.hostname, facts, config.run_lease)
    requests = Requests(app, Station(controller, keeper))
    publishing.listen()
    task_unknown.connect(_note_unknown, weak=False, dispatch_uid="redbeat.runs.unknown")
    requests.put()
    return requests, keeper


def _note_unknown(sender: Any = None, message: Any = None, name: Any = None, **_: Any) -> None:
    """Note that the worker has thrown away the message of a run, as it doesn't know the task."""
    tracking = getattr(getattr(sender, "controller", None), "redbeat_tracking", None)
    headers = getattr(message, "headers", None)
    if tracking is None or not headers or "redbeat_entry" not in headers:
        return
    with Harmless("noting that a run's task is unknown"):
        delivery = read_delivery(headers, sender.hostname, is_soft=False)
        if delivery is not None:
            tracking[1].end(End(delivery, "rejected", error_of_unknown(str(name))))


def _name_of(pool: Any) -> str:
    from celery.concurrency import ALIASES

    path = f"{type(pool).__module__}:{type(pool).__qualname__}"
    return next((alias for alias, place in ALIASES.items() if place == path), type(pool).__qualname__)
