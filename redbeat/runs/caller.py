"""Asking Redis from where tasks run, without making them wait for it.

Owns one thread of a process and its connection. Invariant: who asks waits as long as he has said, and no
longer. While an answer is late nobody waits, and what is asked then is asked after that one; when Redis is
away nothing is asked for some seconds. An error about one run costs no other run anything. In a process of a
pool the thread also renews the lease of the task at work, as the main process may hang.
"""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from redbeat.errors import RedBeatError, StoreUnavailable
from redbeat.log.logger import runs_logger
from redbeat.runs.boundary import note
from redbeat.store.runs import Delivery, Runs
from redbeat.store.store import Store

#: how long the thread itself waits for Redis
SOCKET_SECONDS = 2.0
#: how long nothing is asked when Redis is away
REST_SECONDS = 3.0
#: how often a task's own process renews its lease while that would live
RENEWALS = 4
#: an error that comes so soon means that the connection was ended while it was idle
PROMPT_SECONDS = 0.5

Value = TypeVar("Value")

#: a delivery of no run, for asking something
_NOBODY = Delivery("", "", "0", "", "")


class UnansweredError(Exception):
    """Redis hasn't answered in time, or has answered with an error.

    Attributes:
        call: the question that is still to be asked, if there is one.
    """

    call: _Call | None = None

    def cancel(self) -> None:
        """Don't ask any more, if that hasn't begun: the answer would come too late."""
        if self.call is not None:
            self.call.is_cancelled = True


class _Call:
    """A question, and its answer.

    Attributes:
        is_patient: it is asked also when Redis was away just now.
        is_done: set when it was answered, or passed over as it was cancelled.
    """

    __slots__ = ("answer", "error", "is_cancelled", "is_done", "is_patient", "question")

    def __init__(self, question: Callable[[Runs], Any], *, is_patient: bool = False) -> None:
        self.question = question
        self.is_patient = is_patient
        self.answer: Any = None
        self.error: BaseException | None = None
        self.is_done = threading.Event()
        self.is_cancelled = False


class Caller:
    """Asks Redis for one process. Its thread and its connection are made when they are first needed.

    Arguments:
        app: the Celery app.
    """

    def __init__(self, app: Any) -> None:
        self.pid = os.getpid()
        self._app = app
        self._calls: queue.SimpleQueue[_Call] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._late: _Call | None = None
        self._at_work: dict[str, tuple[Delivery, float]] = {}  # with when it has begun, monotonic
        self._lease_ms = 0
        self._renew_at = math.inf
        self._rests_until = 0.0
        self._runs: Runs | None = None

    def prepare(self) -> None:
        """Begin to connect, and don't wait for it."""
        self._put(lambda runs: runs.leased(_NOBODY))

    @contextmanager
    def renewing(self, delivery: Delivery, lease_ms: int) -> Iterator[None]:
        """Renew the lease of ``delivery`` again and again within the context."""
        self._at_work[delivery.token] = delivery, time.monotonic()
        self._lease_ms = lease_ms
        if self._renew_at == math.inf:
            self._renew_at = self._next_renewal()
            self._put(lambda _: None, is_patient=True)  # the thread waits without end
        try:
            yield
        finally:
            del self._at_work[delivery.token]

    def _next_renewal(self) -> float:
        return time.monotonic() + self._lease_ms / 1000 / RENEWALS

    def inquire(
        self, question: Callable[[Runs], Value], seconds: float, *, is_patient: bool = False
    ) -> Value:
        """Return what ``question`` returns; wait ``seconds`` for it at most.

        Arguments:
            is_patient: also if nobody else waits now.

        Raises:
            UnansweredError: there is no answer yet, or it is an error; or Redis is left alone now. In the
                first case it is asked all the same, only later.
        """
        if not is_patient and time.monotonic() < self._rests_until:
            raise UnansweredError("Redis is away")
        is_late = not is_patient and self._late is not None and not self._late.is_done.is_set()
        call = self._put(question, is_patient=is_patient)
        if not call.is_done.wait(0 if is_late else seconds):
            self._late = call
            waited = "for a while" if is_late else f"within {seconds * 1000:.0f} ms"
            unanswered = UnansweredError(f"Redis hasn't answered {waited}")
            unanswered.call = call
            raise unanswered
        if call.error is not None:
            raise UnansweredError(str(call.error)) from call.error
        answer: Value = call.answer
        return answer

    def _put(self, question: Callable[[Runs], Any], *, is_patient: bool = False) -> _Call:
        call = _Call(question, is_patient=is_patient)
        self._calls.put(call)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="redbeat-runs-caller", daemon=True)
                    thread.start()
                    self._thread = thread
        return call

    def _run(self) -> None:
        while True:
            seconds = max(self._renew_at - time.monotonic(), 0.0)
            if not seconds:
                self._renew_at = self._next_renewal()
                self._ask(_Call(self._renew, is_patient=True))
                continue
            try:
                call = self._calls.get(timeout=None if seconds == math.inf else seconds)
            except queue.Empty:
                continue
            if not call.is_cancelled:
                self._ask(call)
            call.is_done.set()

    def _renew(self, runs: Runs) -> None:
        now, held = time.monotonic(), list(self._at_work.values())
        if held:
            ages = [(delivery, now - began_at) for delivery, began_at in held]
            runs.renew(ages, self._lease_ms, held[0][0].worker)

    def _ask(self, call: _Call) -> None:
        if not call.is_patient and time.monotonic() < self._rests_until:
            call.error = UnansweredError("Redis is away")
            return
        try:
            call.answer = self._answer(call.question)
            self._rests_until = 0.0
        except Exception as exc:  # noqa: BLE001 - the thread must go on, and whoever asks is told
            call.error = exc
            if isinstance(exc, StoreUnavailable):
                self._rests_until = time.monotonic() + REST_SECONDS
            if isinstance(exc, RedBeatError):
                runs_logger.debug("runs: Redis can't be asked: %s", exc)
            else:
                note("asking Redis about a run", exc)

    def _answer(self, question: Callable[[Runs], Any]) -> Any:
        began_at = time.monotonic()
        runs = self._runs
        if runs is None:
            runs = self._runs = Runs(Store.hasty(self._app, SOCKET_SECONDS))
        try:
            return question(runs)
        except StoreUnavailable:
            if time.monotonic() - began_at > PROMPT_SECONDS:
                raise
            return question(runs)


def caller_of(app: Any) -> Caller:
    """Return the caller of this process, made at the first call."""
    caller: Caller | None = getattr(app, "redbeat_runs_caller", None)
    if caller is None or caller.pid != os.getpid():
        caller = app.redbeat_runs_caller = Caller(app)
    return caller
