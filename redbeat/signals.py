"""Signals, in the style of Celery's: what has happened to runs, entries and the leader.

::

    from redbeat.signals import run_ended

    @run_ended.connect
    def tell(sender, entry, run, **kwargs):
        if run.outcome in ("failed", "lost"):
            ...

Owns the signals and the names of their arguments. All of them fire in beat, in a thread of its own: a slow
receiver delays no run. ``sender`` is the Celery app. Of runs and entries each is told at least once;
``entry`` is the entry's name, and ``run`` is as in ``entry.runs()``. Receivers must take ``**kwargs``: later
versions may give them more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery.utils import dispatch

from redbeat.log.events import RECEIVER_FAILED
from redbeat.log.logger import logger

__all__ = [
    "entry_paused",
    "entry_quarantined",
    "leader_changed",
    "run_ended",
    "run_overdue",
    "run_sent",
    "run_skipped",
    "run_started",
    "schedule_lost",
]


class Signal(dispatch.Signal):
    """A signal that reaches all its receivers, whatever one of them raises."""

    def send(self, sender: Any, **named: Any) -> list[tuple[Any, Any]]:
        """Call the receivers, and return what each has returned or raised, as Celery's does.

        Celery's catches an Exception only. A CancelledError, gevent's Timeout or a SystemExit is none, and is
        that receiver's error all the same: nobody else waits for it here.
        """
        responses: list[tuple[Any, Any]] = []
        for receiver in self._live_receivers(sender) if self.receivers else ():
            try:
                response = receiver(signal=self, sender=sender, **named)
            except BaseException as exc:
                # among greenlets beat's own end may come amid any receiver: then its place says nothing
                is_exit = isinstance(exc, (SystemExit, KeyboardInterrupt))
                logger.error(  # noqa: TRY400 - with the traceback unless it is such an exit
                    "beat: The receiver %r of %s has raised an error, and the others are told: %s: %s",
                    receiver,
                    self.name,
                    type(exc).__name__,
                    exc,
                    exc_info=not is_exit,
                    extra=RECEIVER_FAILED.of(reason=f"{type(exc).__name__}: {exc}"),
                )
                response = exc
            responses.append((receiver, response))
        return responses


#: a run's message was sent
run_sent = Signal(name="run_sent", providing_args={"entry", "run"})
#: a run wasn't sent; ``run.why`` says why
run_skipped = Signal(name="run_skipped", providing_args={"entry", "run"})
#: a worker has begun a run
run_started = Signal(name="run_started", providing_args={"entry", "run"})
#: a run is over; ``run.outcome`` says how
run_ended = Signal(name="run_ended", providing_args={"entry", "run"})
#: a run has taken longer than its entry's ``max_runtime``
run_overdue = Signal(name="run_overdue", providing_args={"entry", "run"})
#: somebody, or RedBeat itself, has paused an entry: ``note``, ``by`` and ``until`` as ``pause()`` has them
entry_paused = Signal(name="entry_paused", providing_args={"entry", "note", "by", "until"})
#: an entry can't be used; ``reason`` says why
entry_quarantined = Signal(name="entry_quarantined", providing_args={"entry", "reason"})
#: this beat has become leader: ``leader`` and ``previous`` have ``host``, ``pid`` and ``since``; ``previous``
#: is None where it isn't known; ``shards``: the numbers of those that it leads from now on, () without shards
leader_changed = Signal(name="leader_changed", providing_args={"leader", "previous", "shards"})

#: Redis has lost the schedule, which this beat leads: ``shards`` are the numbers of those that are lost, ()
#: without shards. Entries of the code are stored again; a receiver may store others
schedule_lost = Signal(name="schedule_lost", providing_args={"shards"})

OF_RUNS = {one.name: one for one in (run_sent, run_skipped, run_started, run_ended, run_overdue)}
OF_ENTRIES = {one.name: one for one in (entry_paused, entry_quarantined)}
#: those that are told from the stream of events
OF_EVENTS: Mapping[str, Any] = {**OF_RUNS, **OF_ENTRIES}
ALL: Mapping[str, Any] = {**OF_EVENTS, **{one.name: one for one in (leader_changed, schedule_lost)}}


def is_wanted(*names: str) -> bool:
    """Return True if this process has a receiver of one of these signals."""
    return any(ALL[name].receivers for name in names)
