"""Calls about the runs of entries: to the service that an entry's policy names, ``ping_url``.

Where runs are tracked: ``URL/start`` when a worker has begun a run, ``URL`` when it has succeeded, and
``URL/fail`` when it has failed, was lost or never started. Elsewhere: ``URL`` when it was sent. Invariant:
only hosts in ``redbeat_ping_hosts`` are called, as a user who may write entries chooses the URL; and neither
a tick nor another receiver waits for a call.
"""

from __future__ import annotations

import time
from collections import deque
from functools import partial
from typing import Any, NamedTuple

from redbeat import signals
from redbeat.config.config import ensure_conf
from redbeat.config.ping_urls import is_allowed, parse_ping_url
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.errors import RedBeatError
from redbeat.history import FAILED_OUTCOMES
from redbeat.log.events import PING_REFUSED, PINGS_LEFT_OUT, TELEMETRY_FAILED
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.process.background import BackgroundThread
from redbeat.process.memory import Memory
from redbeat.runs.run import Run
from redbeat.runs.tracking import is_tracked
from redbeat.telemetry.ping_calls import Call, CallFailed, Service, call
from redbeat.telemetry.telemetry import KnownEntries

#: how many events wait at most, and of how many the entries are read at a time
MAX_HEARD, READ_ENTRIES = 10_000, 500

#: how many services are called; the one with the fewest calls makes room for another
MAX_SERVICES = 100

#: how long nothing is asked of Redis while it is away; and how long the thread sleeps at the most
AWAY_SECONDS, SLEEP_SECONDS = 1.0, 60.0

#: how long ``stop`` waits for calls that are in progress
STOP_SECONDS = 1.0

_UID = "redbeat.telemetry.entry_pings"

#: the call at the end of a run
_ENDS = {"succeeded": "", **dict.fromkeys(FAILED_OUTCOMES, "fail")}


class _Heard(NamedTuple):
    """An event of a run: 'sent', 'start', 'fail', or '' for its success."""

    entry: str
    what: str
    at: float


class EntryPings:
    """Calls the services of entries, in one beat, which hears of runs while it leads.

    Arguments:
        app: the Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._hosts = ensure_conf(app).ping_hosts
        self._heard: deque[_Heard] = deque()
        self._left_out = 0
        self._services: dict[str, Service] = {}
        self._entries = KnownEntries(app, "ping_url")
        self._said = Memory[str, str]()
        self._thread = BackgroundThread("redbeat-entry-pings", self._run)
        self._ends_at = 0.0

    def look(self) -> None:
        """Start the thread, and listen, if that isn't so yet."""
        if not self._thread.is_running:
            receivers: dict[Any, Any] = {
                signals.run_started: partial(self._hear, what="start"),
                signals.run_ended: self._hear_end,
            }
            if not is_tracked(self._app):  # else the ends of runs are enough
                receivers[signals.run_sent] = partial(self._hear, what="sent")
            for signal, receiver in receivers.items():
                signal.connect(receiver, sender=self._app, weak=False, dispatch_uid=_UID)
        self._thread.start()

    def stop(self) -> None:
        """Stop; events that were heard have a second."""
        self._ends_at = time.monotonic() + STOP_SECONDS
        for signal in (signals.run_started, signals.run_ended, signals.run_sent):
            signal.disconnect(sender=self._app, dispatch_uid=_UID)
        self._thread.stop(STOP_SECONDS)

    # -- in the thread of signals

    def _hear_end(self, entry: str, run: Run, **_: Any) -> None:
        what = _ENDS.get(run.outcome or "")
        if what is not None:
            self._hear(entry, what)

    def _hear(self, entry: str, what: str, **_: Any) -> None:
        if len(self._heard) >= MAX_HEARD:
            self._left_out += 1
        else:
            self._heard.append(_Heard(entry, what, time.monotonic()))
        self._thread.wake()

    # -- in the thread

    def _run(self) -> None:
        while True:
            seconds = self.step()
            if self._thread.is_over and (seconds or time.monotonic() >= self._ends_at):
                break
            self._thread.wait(seconds)
        self._entries.close()

    def step(self) -> float:
        """Call each service once; return for how long there is nothing to do."""
        try:
            self._read()
            for service in list(self._services.values()):
                one = service.take(time.monotonic())
                if one is not None:
                    self._call(service, one)
                if not service.calls and not service.failures:
                    del self._services[service.name]
        except RedBeatError:  # beat itself reports that Redis is away
            return AWAY_SECONDS
        except Exception as exc:  # noqa: BLE001 - if this thread ended, no service would be called any more
            what = "The services of entries can't be told now, trying again"
            self._thread.report(what, exc, TELEMETRY_FAILED, part="EntryPings")
            return AWAY_SECONDS
        if self._heard:
            return 0.0
        next_at = [service.again_at for service in self._services.values() if service.calls]
        return min(max(min(next_at, default=1e12) - time.monotonic(), 0.0), SLEEP_SECONDS)

    def _read(self) -> None:
        """Let the calls wait that entries ask for about the events."""
        events = [self._heard.popleft() for _ in range(min(len(self._heard), READ_ENTRIES))]
        try:
            entries = self._entries.find({event.entry for event in events})
        except BaseException:
            self._heard.extendleft(reversed(events))
            raise
        for event in events:
            entry = entries[event.entry]
            if entry is not None and entry.policy.ping_url is not None:
                self._add(event, entry, entry.policy.ping_url)
        if self._left_out and not self._heard:
            logger.warning(
                "beat: More has happened to runs than entries' services could be told of in time: %d events "
                "were left out.",
                self._left_out,
                extra=PINGS_LEFT_OUT.of(count=self._left_out),
            )
            self._left_out = 0

    def _add(self, event: _Heard, entry: RedBeatSchedulerEntry, text: str) -> None:
        url = parse_ping_url(text)
        if not is_allowed(url, self._hosts):
            self._refuse(event.entry, f"{url.authority} isn't in redbeat_ping_hosts")
            return
        if event.what == "sent":
            if entry.policy.needs_tracking or is_tracked(self._app):
                return
        elif event.what:
            url = url.followed_by(event.what)
        if url.service not in self._services and len(self._services) >= MAX_SERVICES:
            fewest = min(self._services, key=lambda name: len(self._services[name].calls))
            self._left_out += len(self._services.pop(fewest).calls)
        service = self._services.setdefault(url.service, Service(url.service))
        service.add(Call(url, event.entry, event.at))

    def _call(self, service: Service, one: Call) -> None:
        try:
            call(one.url)
        except CallFailed as exc:
            if exc.is_final:
                self._refuse(one.entry, f"{service.name}: {exc}")
            else:
                service.note_failed(exc, one.entry)
                service.retry(one, time.monotonic())
        else:
            self._said.pop(one.entry, "")
            service.note_well(one.entry)

    def _refuse(self, entry: str, reason: str) -> None:
        """Log why the service of an entry isn't called: once, until that changes."""
        if self._said.is_news(entry, reason):
            logger.warning(
                "beat: The ping_url of %s isn't called: %s",
                printable(entry),
                reason,
                extra=PING_REFUSED.of(entry=entry, reason=reason),
            )
