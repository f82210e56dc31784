"""The keeper: a thread of a worker's main process that renews runs' leases, and delivers their outcomes.

Owns a connection, and all that the worker knows of the runs that it has in progress. Invariant: a lease is
renewed only while Celery knows the request, and not for long after its task has ended, so what nobody will
ever hear of again ends by itself. While
Redis is away outcomes are kept, 10,000 at most, and delivered later. A run whose lease or outcome can't be
written costs no other run anything.
"""

from __future__ import annotations

import json
import math
import os
import queue
import threading
import time
import weakref
from collections import deque
from typing import Any, NamedTuple, Protocol

from redbeat.connection.retry import is_no_permission, is_transient
from redbeat.errors import (
    ConfigurationError,
    RedBeatError,
    StoreCorrupt,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.log.logger import runs_logger
from redbeat.process.memory import Memory
from redbeat.runs.boundary import Harmless, note
from redbeat.store.runs import Delivery, End, Runs
from redbeat.store.store import Store

#: how many outcomes are kept while Redis is away
MAX_KEPT = 10_000
#: how many are delivered in one round trip
BATCH = 500
#: how long the first of them waits for others
GATHER_SECONDS = 0.005
#: how often is looked whether a process that is being killed has ended
KILLED_SECONDS = 0.02
#: how often a worker says that it lives, when it has nothing to renew
ROW_SECONDS = 15.0
#: how long after an error Redis is asked again
RETRY_SECONDS = 1.0
#: how often it is said that a right is missing
RIGHTS_SECONDS = 3600.0
#: how long the thread waits for Redis
SOCKET_SECONDS = 2.0
#: how long it has at the end of the worker
LAST_SECONDS = 3.0
#: how long a task may have ended before its outcome is told; after that its lease isn't renewed
UNTOLD_SECONDS = 30.0
#: a task is seen so often to have ended, at least: the whole worker may have been stopped in between
UNTOLD_LOOKS = 3
#: an outcome, or a lease, that can't be written by itself is given up after so many tries
MAX_REFUSALS = 3


class Execution(Protocol):
    """One delivery of a run that the worker has begun."""

    delivery: Delivery
    accepted_at: float  # monotonic
    is_over: bool
    untold_seconds: float  # for how long its task has ended, as has_ended said

    def has_ended(self) -> bool:
        """Return True if its task has ended, whoever knows."""

    def is_gone(self) -> bool:
        """Return True if the process that its task was begun in has ended, or is done with the task."""

    def terminate(self, why: str) -> None:
        """Terminate the task, as beat wants it; called again and again until it has ended."""


class _Killed(NamedTuple):
    """An execution whose outcome is known, and whose process is being killed."""

    execution: Execution
    end: End
    at: float  # monotonic


class _Stop:
    """What tells the thread to end."""


class Keeper:
    """Keeps the runs of one worker.

    Arguments:
        app: the Celery app.
        worker: the worker's name.
        facts: what the worker says of itself: its pool, and whether that can terminate a task.
        lease_seconds: how long a lease lives.
    """

    def __init__(self, app: Any, worker: str, facts: dict[str, Any], lease_seconds: float) -> None:
        self.worker = worker
        self.lease_ms = int(lease_seconds * 1000)
        self._app = app
        self._pid = os.getpid()
        self._row = json.dumps({**facts, "lease": lease_seconds})[1:-1]
        self._period_seconds = lease_seconds / 10
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._held: dict[str, weakref.ref[Any]] = {}
        self._killed: dict[str, _Killed] = {}
        self._ends: deque[End] = deque()
        self._refusals: dict[str, int] = {}
        self._store: Store | None = None
        self._renew_at = 0.0
        self._looked_at = 0.0
        self._row_at = 0.0
        self._deliver_at = 0.0
        self._is_stopping = False
        self._is_out = False
        self._say_rights_at = -math.inf
        self._said = Memory[str, str](100)  # key to what was logged of its type
        self._has_dropped = False
        self._has_started = False
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="redbeat-runs-keeper", daemon=True)

    def start(self) -> None:
        """Start the thread, unless it was started before."""
        if not self._has_started:
            self._has_started = True
            self._thread.start()

    def stop(self) -> None:
        """Deliver what is left, and end the thread; that takes some seconds at most."""
        if self._thread.is_alive() and os.getpid() == self._pid:
            self._news.put(_Stop())
            self._thread.join(LAST_SECONDS + SOCKET_SECONDS)

    def hold(self, execution: Execution) -> None:
        """Renew the lease of ``execution`` from now on, until its end."""
        self._tell(weakref.ref(execution))

    def end(self, end: End) -> None:
        """Deliver what became of an execution."""
        self._tell(end)

    def end_when_gone(self, execution: Execution, end: End) -> None:
        """Deliver what became of an execution when its process has ended; renew its lease until then."""
        self._tell(_Killed(execution, end, time.monotonic()))

    def _tell(self, news: Any) -> None:
        if not self._has_ended and os.getpid() == self._pid:
            self._news.put(news)

    # -- all that follows is the thread's own

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._take_news()
                try:
                    self._work()
                except Exception as exc:  # noqa: BLE001 - without this thread no run is tracked any more
                    self._note_failure(exc)
            self._finish()
        except ConfigurationError as exc:
            runs_logger.error("runs: Runs aren't tracked: %s", exc)
        finally:
            self._has_ended = True

    def _take_news(self) -> None:
        """Wait for news, or until there is something to do."""
        until = self._deliver_at if self._ends else self._renew_at
        seconds = max(min(until, self._renew_at) - time.monotonic(), 0.0)
        if self._killed:
            seconds = min(seconds, KILLED_SECONDS)
        try:
            news = self._news.get(timeout=seconds) if seconds else self._news.get_nowait()
            time.sleep(GATHER_SECONDS)
            while True:
                self._note(news)
                news = self._news.get_nowait()
        except queue.Empty:
            return

    def _note(self, news: Any) -> None:
        if isinstance(news, End):
            self._held.pop(news.delivery.token, None)
            self._ends.append(news)
            if len(self._ends) > MAX_KEPT:
                self._drop()
        elif isinstance(news, _Killed):
            token = news.end.delivery.token
            self._killed[token], self._held[token] = news, weakref.ref(news.execution)
        elif isinstance(news, _Stop):
            self._is_stopping = True
        else:
            execution = news()
            if execution is not None and not execution.is_over:
                if not self._held:
                    self._renew_at = min(self._renew_at, time.monotonic() + self._period_seconds)
                self._held[execution.delivery.token] = news

    def _drop(self) -> None:
        self._ends.popleft()
        if not self._has_dropped:
            self._has_dropped = True
            runs_logger.warning(
                "runs: Redis is away, and %d outcomes wait to be noted: the oldest are forgotten, so their "
                "runs will be lost.",
                MAX_KEPT,
            )

    def _note_gone(self) -> None:
        """Note the outcomes of killed executions whose processes have ended.

        A process that lives for long, as it handles the signal, goes on renewing the lease itself.
        """
        for token, killed in list(self._killed.items()):
            if killed.execution.is_gone():
                del self._killed[token]
                self._note(killed.end)
            elif time.monotonic() - killed.at >= UNTOLD_SECONDS:
                del self._killed[token]

    def _work(self) -> None:
        self._note_gone()
        now = time.monotonic()
        if self._ends and now >= self._deliver_at:
            self._deliver()
        if now >= self._renew_at:
            self._renew(now)

    def _runs(self) -> Runs:
        if self._store is None:
            self._store = Store.hasty(self._app, SOCKET_SECONDS)
        return Runs(self._store)

    def _deliver(self) -> None:
        runs, left = self._runs(), len(self._ends)
        while left > 0:
            batch = [self._ends[place] for place in range(min(left, BATCH))]
            left -= len(batch)
            try:
                runs.end(batch)
            except Exception as exc:
                if _is_about_all(exc):
                    raise
                self._deliver_singly(runs, batch)
                continue
            for end in batch:
                self._ends.popleft()
                self._refusals.pop(end.delivery.token, None)
            self._note_well()
        if self._ends:  # not at once again
            self._deliver_at = time.monotonic() + RETRY_SECONDS
        self._has_dropped = False

    def _deliver_singly(self, runs: Runs, batch: list[End]) -> None:
        """Deliver what can be; the others stay, to be tried again, but not for ever."""
        for end in batch:
            try:
                runs.end([end])
            except Exception as exc:
                if _is_about_all(exc):
                    raise
                self._ends.popleft()
                if not self._is_given_up(end.delivery, "noting the outcome", exc):
                    self._ends.append(end)
                continue
            self._ends.popleft()
            self._refusals.pop(end.delivery.token, None)
            self._note_well()

    def _is_given_up(self, delivery: Delivery, what: str, exc: Exception) -> bool:
        """Note that something about one run can't be written; tell whether it isn't tried again."""
        refusals = self._refusals[delivery.token] = self._refusals.get(delivery.token, 0) + 1
        if refusals < MAX_REFUSALS:
            return False
        del self._refusals[delivery.token]
        if is_no_permission(exc):
            self._note_rights(exc)
        else:
            note(f"{what} of a run of {delivery.name}", exc)
        return True

    def _note_rights(self, exc: Exception) -> None:
        """Log, once an hour at most, that the worker's user of Redis lacks a right."""
        now = time.monotonic()
        if now >= self._say_rights_at:
            self._say_rights_at = now + RIGHTS_SECONDS
            runs_logger.warning(
                "runs: Runs aren't tracked as they should be, and tasks go on: the worker's user of Redis "
                "lacks rights (docs: runs, worker.acl has the whole rule). What becomes of its runs isn't "
                "noted, so they will be lost or never_started: %s",
                exc,
            )

    def _renew(self, now: float) -> None:
        held = self._executions(now)
        self._renew_at = now + (self._period_seconds if self._held else ROW_SECONDS)
        if not held and now < self._row_at:
            return
        runs = self._runs()
        ages = [(one.delivery, now - one.accepted_at) for one in held]
        try:
            answers = runs.renew(ages, self.lease_ms, self.worker, self._row)
        except Exception as exc:
            if not held or _is_about_all(exc) or isinstance(exc, StoreCorrupt) or is_no_permission(exc):
                raise
            answers = self._renew_singly(runs, ages)
        self._row_at = now + ROW_SECONDS
        self._note_well()
        for one in held:
            why = answers.get(one.delivery.token)
            if why is not None:
                with Harmless("terminating a task"):
                    one.terminate(why)

    def _renew_singly(self, runs: Runs, ages: list[tuple[Delivery, float]]) -> dict[str, str]:
        """Renew what leases can be renewed; the others are tried again, but not for ever."""
        answers = runs.renew([], self.lease_ms, self.worker, self._row)
        for delivery, age_seconds in ages:
            try:
                answers |= runs.renew([(delivery, age_seconds)], self.lease_ms, self.worker)
            except Exception as exc:
                if _is_about_all(exc):
                    raise
                if self._is_given_up(delivery, "renewing the lease", exc):
                    self._held.pop(delivery.token, None)
        return answers

    def _executions(self, now: float) -> list[Execution]:
        """Return the executions whose leases are to be renewed.

        Not those that have only begun: their leases are new, or still to be refused by the gate. Nor those
        whose end nobody tells.
        """
        found: list[Execution] = []
        seconds = min(now - self._looked_at, UNTOLD_SECONDS / UNTOLD_LOOKS)
        self._looked_at = now
        for token, reference in list(self._held.items()):
            execution = reference()
            if execution is not None and token in self._killed:
                found.append(execution)
            elif execution is None or execution.is_over:
                del self._held[token]
                self._refusals.pop(token, None)
            elif now - execution.accepted_at >= self._period_seconds:
                _count_untold(execution, seconds)
                if execution.untold_seconds < UNTOLD_SECONDS:
                    found.append(execution)
        return found

    def _note_failure(self, exc: Exception) -> None:
        if isinstance(exc, ConfigurationError):
            raise exc
        now = time.monotonic()
        self._deliver_at = now + RETRY_SECONDS
        # after the outcomes: else they would wait for as long as leases can't be renewed
        self._renew_at = self._deliver_at + min(RETRY_SECONDS, self._period_seconds)
        if not isinstance(exc, RedBeatError):
            note("keeping the leases of runs", exc)
        if isinstance(exc, StoreCorrupt):  # what doesn't need that key goes well again and again
            if self._said.is_news(exc.key, str(exc)):
                runs_logger.error("runs: Runs can't be tracked as they should, and tasks go on: %s", exc)
        elif is_no_permission(exc):
            self._note_rights(exc)
        elif not self._is_out:
            self._is_out = True
            runs_logger.warning(
                "runs: Runs can't be tracked at the moment, and tasks go on: %s "
                "(outcomes are kept and noted later; when Redis is back, leases are renewed before beat "
                "takes a run for lost).",
                exc.plain if isinstance(exc, StoreUnavailable) else exc,
            )

    def _note_well(self) -> None:
        self._deliver_at = 0.0
        if self._is_out:
            self._is_out = False
            runs_logger.warning("runs: Runs are tracked again.")

    def _finish(self) -> None:
        """Deliver what is left, and say that the worker has ended."""
        gives_up_at = time.monotonic() + LAST_SECONDS
        while True:
            try:
                self._note_gone()
                self._deliver()
                if not self._killed:
                    self._runs().forget_worker(self.worker)
                    break
            except Exception as exc:  # noqa: BLE001 - the worker ends, whatever happens here
                self._note_failure(exc)
            if time.monotonic() >= gives_up_at:
                break
            time.sleep(KILLED_SECONDS if self._killed else 0.1)
        left = len(self._ends) + len(self._killed)
        if left:
            runs_logger.warning("runs: The outcomes of %d runs can't be noted; they will be lost.", left)
        if self._store is not None:
            self._store.close()


def _count_untold(execution: Execution, seconds: float) -> None:
    """Note that ``seconds`` have gone by, if its task has ended; else none have."""
    if not execution.has_ended():
        execution.untold_seconds = 0.0
        return
    before, execution.untold_seconds = execution.untold_seconds, execution.untold_seconds + seconds
    if before < UNTOLD_SECONDS <= execution.untold_seconds:
        runs_logger.error(
            "runs: The run %s of %s has ended, and this worker's main thread doesn't say how: it seems to "
            "hang, so restart the worker. The run's lease isn't renewed any more, so it will be lost.",
            execution.delivery.task_id,
            execution.delivery.name,
        )


def _is_about_all(exc: Exception) -> bool:
    """Return True if ``exc`` is about Redis as a whole, so that no other run fares better."""
    if isinstance(exc, (StoreUnavailable, ConfigurationError)):
        return True
    is_passing = exc.__cause__ is not None and is_transient(exc.__cause__)
    return isinstance(exc, StoreRefused) and (exc.is_login or is_passing)
