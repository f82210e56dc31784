"""Check-ins of runs at Sentry's cron monitors, sent by beat from what is told of runs.

A check-in begins when the run is sent, and ends with the run's outcome, where runs are tracked. Where they
aren't, the worker that has run the task ends it (``worker_check_ins``). Invariant: a run has one check-in,
however often it is told of and tried; and whatever Sentry does, no run waits for it.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any, NamedTuple

from redbeat import signals
from redbeat.config.config import ensure_conf
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.errors import EntryCorrupt, EntryNotFound, StoreUnavailable
from redbeat.log.events import ENTRY_UNMONITORED
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.process.memory import Memory
from redbeat.runs.run import Run
from redbeat.store.entries import read_entries
from redbeat.store.store import Store
from redbeat.task_ids import task_id_of
from redbeat.telemetry.sentry.monitors import Monitor, Monitors, monitors_of, set_monitors
from redbeat.telemetry.sentry.sentry import (
    Outlet,
    Status,
    excluded_by,
    find_integration,
    give_back,
    is_taken_over,
    take_over,
)

#: for how long an entry isn't read again; no entry with a monitor is due more often
KEPT_SECONDS = 30.0

#: Sentry takes six check-ins of an entry in a minute: of so many runs the beginnings, the ends, and one more
MINUTE, MAX_BEGUN = 60.0, 2

#: of so many entries it is said that they have no monitor
MAX_SAID = 50

#: outcomes of runs that did what they should
_WELL = ("succeeded", "ignored")


_UID = "redbeat.telemetry.sentry.check_ins"


class _Known(NamedTuple):
    """What is known of an entry.

    Attributes:
        own_id: the task id that all its runs have; None: each has one of its own.
        monitor: Sentry's; a str: why there is none.
        until: when it is to be read again, monotonic.
    """

    key: str
    own_id: str | None
    monitor: Monitor | str
    until: float

    def is_scheduled(self, run: Run) -> bool:
        """Tell whether the schedule is why ``run`` was sent, and not somebody who has asked for it."""
        due = run.due.isoformat(timespec="microseconds")
        return run.task_id in (task_id_of(self.key, due), self.own_id)


class CheckIns:
    """The check-ins of one beat: a part of what it shows of itself.

    Arguments:
        app: the Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._integration: Any = None
        self._store: Store | None = None  # of the thread that tells
        self._outlet = Outlet()
        self._known = Memory[str, _Known]()
        #: an entry's name and a run's due time to when Sentry was told of it last, monotonic
        self._told = Memory[tuple[str, datetime], float](100_000)
        #: name to when the last check-ins of the entry began, monotonic
        self._begun = Memory[str, tuple[float, ...]](100_000)
        self._said = Memory[str, str](100_000)
        self._receivers = {
            signals.run_sent: self._note_sent,
            signals.run_started: self._note_started,
            signals.run_ended: self._note_ended,
        }

    # -- in the thread of the tick

    def look(self) -> None:
        """Take over from Sentry's own integration, where it is asked to monitor entries."""
        config = ensure_conf(self._app)
        integration = find_integration() if config.sentry else None
        if integration is None:
            self.stop()
        elif integration is not self._integration or not is_taken_over(integration):
            self.stop()
            self._begin(integration)

    def _begin(self, integration: Any) -> None:
        monitors = Monitors.excluding(self._app, excluded_by(integration))
        take_over(integration)
        self._integration = integration
        if not ensure_conf(self._app).history:
            logger.warning("beat: Sentry isn't told when runs are sent, as redbeat_history is 0.")
        set_monitors(self._app, monitors)
        for signal, receiver in self._receivers.items():
            signal.connect(receiver, sender=self._app, weak=False, dispatch_uid=_UID)
        logger.info("beat: Sentry's monitors are RedBeat's own: one check-in a run.")

    def stop(self) -> None:
        """Let go of it again."""
        if self._integration is None:
            return
        for signal in self._receivers:
            signal.disconnect(sender=self._app, dispatch_uid=_UID)
        set_monitors(self._app, None)
        self._outlet.stop()
        give_back(self._integration)
        self._integration = None
        if self._store is not None:
            self._store.close()

    # -- in the thread that tells

    def _note_sent(self, entry: str, run: Run, **_: Any) -> None:
        if (entry, run.due) not in self._told:  # a worker may begin it before it is recorded as sent
            self._tell(entry, run, "in_progress")

    def _note_started(self, entry: str, run: Run, **_: Any) -> None:
        told_at = self._told.get((entry, run.due))
        if told_at is None or time.monotonic() > told_at + MINUTE:
            self._tell(entry, run, "in_progress")

    def _note_ended(self, entry: str, run: Run, **_: Any) -> None:
        self._tell(entry, run, "ok" if run.outcome in _WELL else "error")

    def _tell(self, name: str, run: Run, status: Status) -> None:
        found = self._find(name)
        if found is None or not isinstance(found.monitor, dict) or not found.is_scheduled(run):
            return
        now = time.monotonic()
        if (name, run.due) not in self._told and not self._may_begin(name, now):
            return
        self._told[name, run.due] = now
        self._outlet.send(name, run.due, status, found.monitor, run.run_seconds)

    def _may_begin(self, name: str, now: float) -> bool:
        """Note that the check-in of a run of an entry is to begin; tell whether it may.

        It may not if Sentry has to take too many of the entry in a minute, as when many missed runs are made
        up for: it might drop the end of one whose beginning it has taken.
        """
        recent = [at for at in self._begun.get(name, ()) if at > now - MINUTE]
        if len(recent) >= MAX_BEGUN:
            return False
        self._begun[name] = (*recent, now)
        return True

    def _find(self, name: str) -> _Known | None:
        """Return what is known of an entry; None: nothing, as it is gone, or can't be used."""
        monitors, known = monitors_of(self._app), self._known.get(name)
        if monitors is None:
            return None
        if known is not None and time.monotonic() < known.until:
            return known
        key = ensure_conf(self._app).keys.entry(name)
        try:
            if self._store is None:
                self._store = Store.hasty(self._app)
            _, [stored] = read_entries(self._store, [key])
            entry = decode_entry(RedBeatSchedulerEntry, stored, self._app)
        except (EntryNotFound, EntryCorrupt, StoreUnavailable) as exc:
            logger.debug("beat: Sentry is told of %s as it was, if at all: %s", printable(name), exc)
            return known
        monitor = monitors.find(name, entry.schedule, entry.policy)
        if isinstance(monitor, str) and monitor:
            self._say(name, monitor)
        found = _Known(key, entry.options.get("task_id"), monitor, time.monotonic() + KEPT_SECONDS)
        self._known[name] = found
        return found

    def _say(self, name: str, reason: str) -> None:
        """Log, once for each entry and reason, why Sentry has no monitor of it."""
        if not self._said.is_news(name, reason):
            return
        if len(self._said) <= MAX_SAID:
            extra = ENTRY_UNMONITORED.of(entry=name, reason=reason)
            logger.warning("beat: %s has no monitor at Sentry: %s.", printable(name), reason, extra=extra)
        elif len(self._said) == MAX_SAID + 1:
            logger.warning("beat: More entries have no monitor at Sentry; with -l DEBUG the log names them.")
        else:
            logger.debug("beat: %s has no monitor at Sentry: %s.", printable(name), reason)
