"""Celery's requests for the runs of entries: how a worker's main process hears what becomes of them.

A request is made for each message by a class that Celery derives from ``Task.Request``, which may be the
user's. Invariant: requests for other messages are exactly those that Celery would make, and what a request of
the user's does, it does here, too. Nothing in here may fail a task.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from typing import Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import TimeLimitExceeded
from celery.bootsteps import RUN
from celery.concurrency.base import BasePool
from celery.platforms import signals
from celery.utils.imports import symbol_by_name
from celery.worker.request import Request as CeleryRequest

from redbeat.log.logger import runs_logger
from redbeat.process.memory import Memory
from redbeat.runs.boundary import Harmless
from redbeat.runs.deliveries import Ticket, kept_headers, may_have_begun, read_delivery
from redbeat.runs.gate import pass_gate
from redbeat.runs.keeper import Keeper
from redbeat.runs.outcomes import Seen, Told, Verdict, judge_failure, judge_return
from redbeat.runs.processes import has_ended, has_processes, is_gone
from redbeat.runs.publishing import Present, at_work
from redbeat.store.runs import Delivery, End

#: how often a task is asked to end before it is killed
POLITE_TIMES = 3

_SAID = Memory[str, bool](100)


class Station:
    """What the requests of one worker need to know about it.

    Arguments:
        controller: Celery's worker.
        keeper: renews leases, and delivers outcomes.
    """

    def __init__(self, controller: Any, keeper: Keeper) -> None:
        self.controller = controller
        self.keeper = keeper

    @property
    def can_terminate(self) -> bool:
        """Whether the worker's pool can terminate a task."""
        return can_terminate(self.controller.pool)

    @property
    def is_listening(self) -> bool:
        """Whether the thread that handles messages hears of tasks, too.

        It doesn't while it connects to the broker again, but will; and at its end it hears of them elsewhere.
        """
        consumer = self.controller.consumer
        blueprint = consumer.blueprint
        return bool(blueprint.state == RUN and blueprint.started == len(consumer.steps))

    def call_soon(self, call: Callable[[], None]) -> None:
        """Call it in the thread in which the worker handles messages."""
        self.controller.consumer.call_soon(call)


def can_terminate(pool: Any) -> bool:
    """Return True if ``pool`` can terminate a task."""
    return getattr(pool.terminate_job, "__func__", None) is not BasePool.terminate_job


class TrackedExecution:
    """One delivery of a run, as the worker's main process knows it.

    Attributes:
        delivery: which it is.
        accepted_at: when its task was begun, monotonic; 0: it wasn't yet.
        pid: the process of its own that its task was begun in; None: there is none.
        is_over: its outcome is known.
        has_told: its process has told its result after it was to be killed, and lives.
        untold_seconds: for how long its task has ended, and its outcome isn't known.
        seen: what has happened to it.
        told: what the process that ran the task has told.
    """

    def __init__(self, station: Station, request: Any, delivery: Delivery) -> None:
        self.delivery = delivery
        self.accepted_at = 0.0
        self.pid: int | None = None
        self.is_over = False
        self.has_told = False
        self.untold_seconds = 0.0
        self.seen = Seen()
        self.told: Told | None = None
        self._station = station
        self._request = weakref.ref(request)
        self._terminations = 0

    def ticket(self, request: Any) -> Ticket:
        """Return what the process that runs the task is told."""
        headers = request.request_dict
        return Ticket(
            self.delivery,
            kept_headers(headers),
            headers.get("expires"),
            self._station.keeper.lease_ms,
            not request.task.acks_late,
            self.is_expired(request),
            bool((request.delivery_info or {}).get("redelivered")),
            os.getpid(),
        )

    def is_expired(self, request: Any) -> bool:
        """Return True if the message has expired, and yet its run may have been begun before that.

        So it is if a worker was killed amid a task that acknowledges late. The gate knows more.
        """
        info, now = request.delivery_info or {}, time.time()
        if not (request.expires and info.get("redelivered") and request.task.acks_late):
            return False
        due_at = float(self.delivery.due)
        return now > request.expires.timestamp() and may_have_begun(request.request_dict, due_at, now)

    def accept(self, pid: int) -> None:
        """Note that the task has been begun, in the process ``pid``."""
        self.accepted_at = time.monotonic()
        self.pid = pid if has_processes(self._station.controller.pool) else None
        self._station.keeper.hold(self)

    def has_ended(self) -> bool:
        """Return True if the task has ended, as far as can be seen without the thread that tells of it."""
        request = self._request()
        with Harmless("looking for the process of a run"):
            if request is not None and self._station.is_listening:
                return has_ended(self._station.controller.pool, request.worker_pid)
        return False

    def is_gone(self) -> bool:
        """Return True if the process that its task was begun in has ended, or is done with the task."""
        return self.has_told or self.pid is None or is_gone(self.pid)

    def end(self, verdict: Verdict | None, *, is_killed: bool = False) -> None:
        """Deliver its outcome, unless it has one already; None: this delivery has none.

        Arguments:
            is_killed: Celery is about to kill its process, which may be at work until then.
        """
        if self.is_over:
            self.has_told = self.has_told or not is_killed
            return
        self.is_over = True
        if verdict is None:
            return
        seconds: float | None = None
        if self.told is not None:
            seconds = self.told.run_seconds
        elif self.accepted_at:
            seconds = time.monotonic() - self.accepted_at
        outcome, error, retry_seconds = verdict
        end = End(self.delivery, outcome, error, seconds, retry_seconds)
        if is_killed and self.pid is not None:
            self._station.keeper.end_when_gone(self, end)
        else:
            self._station.keeper.end(end)

    def terminate(self, why: str) -> None:
        """Let the worker terminate the task, first politely."""
        if not self._station.can_terminate:
            if _SAID.is_news("can't terminate", True):
                runs_logger.warning(
                    "runs: This worker's pool can't terminate a task, so a run that is to be replaced, or "
                    "takes too long, goes on until it ends by itself (%s).",
                    self.delivery.name,
                )
            return
        self.seen.terminated_for = why
        self._station.call_soon(self._terminate_now)

    def _terminate_now(self) -> None:
        request = self._request()
        if request is None or self.is_over:
            return
        with Harmless("terminating a task"):
            pool = self._station.controller.pool
            self._terminations += 1
            signal = "TERM" if self._terminations <= POLITE_TIMES else "KILL"
            if self._terminations == 1:
                runs_logger.warning(
                    "runs: The run %s of %s is terminated: %s.",
                    self.delivery.task_id,
                    self.delivery.name,
                    self.seen.terminated_for,
                )
            if self.seen.is_revoked or request.worker_pid is None:
                _terminate_again(request, pool, signal)
            else:
                request.terminate(pool, signal=signal)


def _terminate_again(request: Any, pool: Any, signal: str) -> None:
    """Send the signal once more, without announcing it once more."""
    if request.worker_pid is not None:
        pool.terminate_job(request.worker_pid, signals.signum(signal))


class TrackedRequest:
    """What a request for a run does besides. To be mixed into a class of requests, in front of it."""

    _redbeat_station: Station  # of the class, see sort_requests
    _redbeat_run: TrackedExecution | None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._redbeat_run = None
        super().__init__(*args, **kwargs)
        with Harmless("reading the message of a run"):
            station = self._redbeat_station
            this: Any = self
            delivery = read_delivery(this.request_dict, this.hostname, is_soft=not station.can_terminate)
            if delivery is not None:
                self._redbeat_run = TrackedExecution(station, self, delivery)

    def execute_using_pool(self, pool: Any, **kwargs: Any) -> Any:
        """Send the task to the pool, with the gate in front of it."""
        ticket: Ticket | None = None
        if self._redbeat_run is not None:
            with Harmless("preparing the gate of a run"):
                ticket = self._redbeat_run.ticket(self)
        if ticket is None:
            return super().execute_using_pool(pool, **kwargs)  # type: ignore[misc]
        # as Celery's quick way does, which has the pool built in
        return CeleryRequest.execute_using_pool(self, _GatedPool(pool, ticket), **kwargs)

    def maybe_expire(self) -> Any:
        """Leave it to the gate whether a run goes on that may have been begun before its message expired."""
        if self._redbeat_run is not None:
            with Harmless("looking whether the message of a run has expired"):
                if self._redbeat_run.is_expired(self):
                    return False
        return super().maybe_expire()  # type: ignore[misc]

    def on_accepted(self, pid: Any, *args: Any, **kwargs: Any) -> Any:
        """Note that the task has begun."""
        if self._redbeat_run is not None:
            with Harmless("noting that a run has begun"):
                self._redbeat_run.accept(pid)
        return super().on_accepted(pid, *args, **kwargs)  # type: ignore[misc]

    def on_success(self, result: Any, **kwargs: Any) -> Any:
        """Note that the task has returned, or has raised an exception."""
        run = self._redbeat_run
        if run is None:
            return super().on_success(result, **kwargs)  # type: ignore[misc]
        if isinstance(result, tuple) and len(result) == 4:
            *plain, run.told = result
            result = tuple(plain)
        try:
            with self._redbeat_publishing():
                return super().on_success(result, **kwargs)  # type: ignore[misc]
        finally:
            with Harmless("noting the outcome of a run"):
                if isinstance(result, tuple) and not result[0]:
                    run.end(judge_return(run.told, run.seen))
                else:
                    self._redbeat_end(result[1] if isinstance(result, tuple) else result)

    def on_failure(self, exc_info: Any, *args: Any, **kwargs: Any) -> Any:
        """Note what the task has raised, or that its process was lost."""
        try:
            with self._redbeat_publishing():
                return super().on_failure(exc_info, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._redbeat_end(exc_info)

    def on_timeout(self, soft: bool, timeout: Any) -> Any:
        """Note that the task has reached its hard time limit."""
        try:
            with self._redbeat_publishing():
                return super().on_timeout(soft, timeout)  # type: ignore[misc]
        finally:
            run = self._redbeat_run
            if run is not None and not soft:
                outcome = "requeued" if run.seen.is_requeued else "failed"
                run.end(Verdict(outcome, f"TimeLimitExceeded: {timeout}"), is_killed=True)

    def reject(self, requeue: bool = False) -> Any:
        """Note that the message goes back to its queue, or is rejected before its task has begun."""
        run, this = self._redbeat_run, self
        if run is not None and not getattr(this, "acknowledged", False):
            run.seen.is_requeued = run.seen.is_requeued or bool(requeue)
            if not run.accepted_at:
                run.end(Verdict("requeued" if requeue else "rejected"))
        return super().reject(requeue=requeue)  # type: ignore[misc]

    def send_event(self, type: str, **fields: Any) -> Any:  # noqa: A002 - Celery's name
        """Note what Celery thinks of the task."""
        if self._redbeat_run is not None:
            self._redbeat_run.seen.events += (type,)
        return super().send_event(type, **fields)  # type: ignore[misc]

    def _announce_revoked(self, reason: Any, terminated: Any, signum: Any, expired: Any) -> Any:
        run = self._redbeat_run
        if run is not None:
            run.seen.is_revoked = True
        try:
            return super()._announce_revoked(reason, terminated, signum, expired)  # type: ignore[misc]
        finally:
            # one that is at work has ended only when its process says so
            if run is not None and not (terminated and run.accepted_at):
                run.end(Verdict("expired" if expired else "revoked", "" if expired else str(reason)))

    def _announce_cancelled(self, *args: Any, **kwargs: Any) -> Any:
        this: Any = self
        is_redelivered = this.task.acks_late and not this.acknowledged
        try:
            return super()._announce_cancelled(*args, **kwargs)  # type: ignore[misc]
        finally:
            if self._redbeat_run is not None:
                self._redbeat_run.end(
                    Verdict("requeued" if is_redelivered else "revoked", "cancelled by the worker"),
                    is_killed=True,
                )

    def _redbeat_end(self, exc_info: Any) -> None:
        run = self._redbeat_run
        if run is None:
            return
        with Harmless("noting the outcome of a run"):
            exc = getattr(exc_info, "exception", exc_info)
            if isinstance(exc, ExceptionWithTraceback):
                exc = exc.exc
            task: Any = getattr(self, "task", None)
            verdict = judge_failure(exc, run.told, run.seen, float(task.default_retry_delay))
            # billiard tells of a hard time limit first, and then kills the process
            run.end(verdict, is_killed=isinstance(exc, TimeLimitExceeded) and run.told is None)
        if not run.is_over:  # the exception can't even be looked at
            run.end(Verdict("failed"))

    def _redbeat_publishing(self) -> Any:
        """Return a context in which what Celery sends for the task is known as the run's."""
        run, this = self._redbeat_run, self
        present = None
        if run is not None:
            with Harmless("preparing what a run sends"):
                request: Any = this
                present = Present(request.app, run.ticket(request))
        return at_work(present)


class _GatedPool:
    """A pool in which a run's task goes through the gate first."""

    def __init__(self, pool: Any, ticket: Ticket) -> None:
        self._pool = pool
        self._ticket = ticket

    def apply_async(self, target: Any, args: Any = (), **options: Any) -> Any:
        """Let ``target`` be called by the gate."""
        return self._pool.apply_async(pass_gate, args=(self._ticket, target, *args), **options)


def sort_requests(base: type, station: Station) -> type:
    """Return a class like ``base`` whose subclasses make tracked requests for the messages of runs.

    For all other messages they make the same as without it.
    """

    def make(cls: Any, message: Any, *args: Any, **options: Any) -> Any:
        headers = options.get("headers")
        if headers is None:
            headers = message.headers
        if headers and "redbeat_entry" in headers:
            cls = cls.__dict__.get("_redbeat_tracked") or _track(cls, station)
        if inherited is object.__new__:
            return inherited(cls)
        return inherited(cls, message, *args, **options)

    inherited: Any = base.__new__
    return type(base)(base.__name__, (base,), {"__slots__": (), "__new__": make, "_redbeat_base": base})


def _track(cls: Any, station: Station) -> type:
    names = {"__slots__": (), "_redbeat_station": station}
    cls._redbeat_tracked = type(cls)(cls.__name__, (TrackedRequest, cls), names)
    made: type = cls._redbeat_tracked
    return made


class Requests:
    """Puts tracked requests into an app's tasks, and takes them out again.

    Arguments:
        app: the Celery app.
        station: the worker.
    """

    def __init__(self, app: Any, station: Station) -> None:
        self._app = app
        self._station = station
        self._sorted: dict[Any, type | None] = {}
        self._before: list[tuple[Any, Any]] = []

    def put(self) -> None:
        """Do so for all tasks that there are, and those that are defined later."""
        for task in list(self._app.tasks.values()):
            self._replace(task)
        self._replace(self._app.Task)

    def take_back(self) -> None:
        """Let everything be as before."""
        while self._before:
            owner, request = self._before.pop()
            owner.Request = request

    def _replace(self, owner: Any) -> None:
        was = owner.Request
        made = self._sorted_of(was)
        if made is not None:
            self._before.append((owner, was))
            owner.Request = made

    def _sorted_of(self, request: Any) -> type | None:
        if request not in self._sorted:
            self._sorted[request] = None
            with Harmless(f"tracking the requests of {request}"):
                base = symbol_by_name(request)
                if issubclass(base, CeleryRequest):
                    self._sorted[request] = sort_requests(base, self._station)
                else:
                    runs_logger.warning(
                        "runs: Tasks with %s aren't tracked: it isn't derived from Celery's Request.", base
                    )
        return self._sorted[request]
