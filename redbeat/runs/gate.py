"""The gate: what happens in the process, thread or greenlet that runs a task, before a run's task is begun.

One command takes the run's lease. Invariant: without Redis the task is begun all the same, at most 50 ms
later, or two seconds if its message comes once more; and no message is taken for done whose run isn't over
elsewhere.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import SoftTimeLimitExceeded
from celery import current_app

from redbeat.errors import StoreRefused, StoreUnavailable
from redbeat.log.logger import runs_logger
from redbeat.process.memory import Memory
from redbeat.runs import publishing
from redbeat.runs.boundary import Harmless
from redbeat.runs.caller import UnansweredError, caller_of
from redbeat.runs.deliveries import Ticket
from redbeat.runs.outcomes import Busy, Duplicate, Expired, Superseded, Told
from redbeat.runs.publishing import Present, at_work, present
from redbeat.store.runs import Answer, Begun

#: how long a delivery whose run another delivery has begun waits for the end of that one, before its message
#: is put back
BUSY_SECONDS = 1.0
#: how often it looks
LOOK_SECONDS = 0.1
#: a lease that ends later than was said by more than this was renewed
RENEWED_SECONDS = 0.5
_SAID = Memory[str, str](1_000)

#: so many gates in a row without an answer, or so long, and it is said; and not again so soon
SILENT_TIMES = 100
SILENT_SECONDS = 60.0
SAY_AGAIN_SECONDS = 3600.0

#: how long ``is_mine`` waits for Redis, and what would be dropped without an answer
ASK_SECONDS = 2.0


class Silence:
    """Says that Redis doesn't answer the gates of this process in time, or refuses to, if that goes on: the
    task doesn't notice.

    Arguments:
        clock: a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._times = 0
        self._since = 0.0
        self._say_at = -math.inf

    def note_answer(self) -> None:
        """Note that a gate was answered."""
        self._times = 0

    def note_silence(self, refusal: object = None) -> None:
        """Note that a gate wasn't answered in time; or that Redis has refused to, with ``refusal``."""
        now = self._clock()
        self._since = self._since if self._times else now
        self._times += 1
        is_long = self._times >= SILENT_TIMES or now - self._since >= SILENT_SECONDS
        if is_long and now >= self._say_at:
            self._say_at = now + SAY_AGAIN_SECONDS
            why = "Redis answers too slowly, or not at all" if refusal is None else str(refusal)
            runs_logger.warning(
                "runs: Runs are begun without asking: %s. %d gates in a row had no answer within %.0f ms "
                "each, so a message that is delivered twice may run twice at once.",
                why,
                self._times,
                publishing.PATIENCE_SECONDS * 1000,
            )


_SILENCE = Silence()


def pass_gate(ticket: Ticket, trace: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Return what ``trace(*args)`` returns, which runs the task of a run, and what to tell the main process.

    If the run may not begin, return what Celery's ``trace`` does when a task has raised Ignore or Reject.
    """
    run = Present(current_app._get_current_object(), ticket)  # noqa: SLF001 - as Celery does here
    refusal: Exception | None = None
    with Harmless("asking whether a run may begin"):
        publishing.listen()
        refusal = _find_refusal(run)
    try:
        if refusal is not None:
            return _refuse(ticket, refusal)
        began_at = time.monotonic()
        with at_work(run), _renewing(run):
            result = trace(*args)
    finally:
        if run.unanswered is not None:  # who takes a lease now would hold it in vain
            run.unanswered.cancel()
    return (*result, Told(time.monotonic() - began_at, run.successor_seconds))


def _renewing(run: Present) -> AbstractContextManager[None]:
    """Return a context in which this process renews the run's lease itself, if it isn't the main process.

    That one may hang, perhaps before it has heard that the task has begun.
    """
    ticket = run.ticket
    if ticket.main_pid == os.getpid():
        return nullcontext()
    return caller_of(run.app).renewing(ticket.delivery, ticket.lease_ms)


def _find_refusal(run: Present) -> Exception | None:
    begun = _begin(run)
    if begun is not None and begun.answer is Answer.BUSY:
        with suppress(SoftTimeLimitExceeded):
            begun = _wait(run, begun)
    if begun is None and run.ticket.is_expired:  # as without tracking
        return Expired("its message has expired, and Redis doesn't say whether it was begun before")
    if begun is None or begun.answer is Answer.GO:
        return None
    if begun.answer is Answer.OVER:
        # another task of a workflow has attempts of its own
        if run.ticket.delivery.root or not run.ticket.is_doubtful:
            return None
        return Duplicate("its message was delivered twice, and a later attempt has ended")
    if begun.answer is Answer.EXPIRED:
        return Expired("its message has expired, and no worker had begun it in time")
    if begun.answer is Answer.SUPERSEDED:
        return Superseded("another run holds its entry")
    if run.ticket.is_acked_early:
        return Duplicate("its message was delivered twice, and the task that was begun first goes on")
    return Busy("its message was delivered twice, and the task that was begun first goes on", requeue=True)


def _begin(run: Present) -> Begun | None:
    """Return what Redis says; None: nothing, or not in time."""
    ticket = run.ticket
    seconds = ASK_SECONDS if ticket.is_doubtful else publishing.PATIENCE_SECONDS
    try:
        begun = caller_of(run.app).inquire(
            lambda runs: runs.begin(ticket.delivery, ticket.lease_ms, is_expired=ticket.is_expired),
            seconds,
            is_patient=ticket.is_doubtful,
        )
    except UnansweredError as exc:
        run.unanswered = exc
        is_refused = isinstance(exc.__cause__, StoreRefused)
        _SILENCE.note_silence(exc.__cause__ if is_refused else None)
        runs_logger.debug("runs: %s is begun without asking: %s", ticket.delivery.task_id, exc)
        return None
    _SILENCE.note_answer()
    run.has_begun = begun.answer is Answer.GO
    return begun


def _wait(run: Present, begun: Begun) -> Begun | None:
    """Wait until the other delivery has ended, or is known to go on; return what Redis says then.

    A message that was acknowledged can't be put back. So it counts as a duplicate only when the lease of the
    other delivery has been renewed, which shows that its worker lives.
    """
    is_acked = run.ticket.is_acked_early
    lease_ends_at = time.monotonic() + begun.wait_seconds
    gives_up_at = lease_ends_at + RENEWED_SECONDS if is_acked else time.monotonic() + BUSY_SECONDS
    while time.monotonic() < gives_up_at:
        time.sleep(LOOK_SECONDS)
        answer = _begin(run)
        if answer is None:
            continue  # Redis was there just now, and said that another delivery is at work
        if answer.answer is not Answer.BUSY:
            return answer
        if is_acked and time.monotonic() + answer.wait_seconds > lease_ends_at + RENEWED_SECONDS:
            return answer
    return None if is_acked else begun


def _refuse(ticket: Ticket, refusal: Exception) -> tuple[Any, ...]:
    delivery = ticket.delivery
    # a message that is put back comes again every second
    level = logging.WARNING if _SAID.is_news(delivery.task_id, refusal.args[0]) else logging.DEBUG
    runs_logger.log(
        level, "runs: The run %s of %s isn't begun: %s.", delivery.task_id, delivery.name, refusal.args[0]
    )
    try:
        raise refusal
    except (Superseded, Expired, Duplicate, Busy):
        return 1, ExceptionInfo(internal=True), 0.0, Told(0.0)


def is_mine() -> bool:
    """Return whether the task that calls this still has its entry to itself; True outside of tracked runs.

    It hasn't if its lease was lost, as that of a worker is that was stopped for longer than its leases live,
    or if it is overdue and its entry's ``overlap`` isn't ``"allow"``: another run of the entry may have
    begun.

    Raises:
        StoreUnavailable: Redis doesn't answer, so that nobody can tell.
    """
    run = present()
    if run is None:
        return True
    delivery, caller = run.ticket.delivery, caller_of(run.app)
    try:
        record = caller.inquire(lambda runs: runs.leased(delivery), ASK_SECONDS, is_patient=True)
        if record is not None or run.has_begun:
            return record is not None and not record.has_let_go
        # Redis was away when it was begun, so nobody could take the lease
        begun = caller.inquire(
            lambda runs: runs.begin(delivery, run.ticket.lease_ms), ASK_SECONDS, is_patient=True
        )
    except UnansweredError as exc:
        raise StoreUnavailable(f"Nobody can tell whose run this is: {exc}.") from exc
    run.has_begun = begun.answer is Answer.GO
    return run.has_begun
