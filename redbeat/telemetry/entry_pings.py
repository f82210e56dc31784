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
from typing import Any

from redbeat import signals
from redbeat.config.config import ensure_conf
from redbeat.config.ping_urls import PingUrl, is_allowed, parse_ping_url
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
from redbeat.telemetry.ping_calls import CallFailed, Service, call
from redbeat.telemetry.telemetry import KnownEntries

#: how many events, and how many calls, wait at most; and of how many events the entries are read at a time
MAX_WAITING, READ_ENTRIES = 10_000, 500

#: how long nothing is asked of Redis while it is away; and how long the thread sleeps without calls
AWAY_SECONDS, SLEEP_SECONDS = 1.0, 60.0

#: how long ``stop`` waits for calls that are in progress
STOP_SECONDS = 1.0

_UID = "redbeat.telemetry.entry_pings"

#: the call at the end of a run
_ENDS = {"succeeded": "", **dict.fromkeys(FAILED_OUTCOMES, "fail")}


class EntryPings:
    """Calls the services of entries, in one beat, which hears of runs while it leads.

    Arguments:
        app: the Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._hosts = ensure_conf(app).ping_hosts
        #: names of entries with 'sent', 'start', 'fail', or '' for a success
        self._heard: deque[tuple[str, str]] = deque()
        #: by service, the one whose turn it is first: the calls that wait, with the names of their entries
        self._calls: dict[str, dict[PingUrl, str]] = {}
        self._left_out = 0
        self._services = Memory[str, Service]()
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
        if len(self._heard) >= MAX_WAITING:
            self._left_out += 1
        else:
            self._heard.append((entry, what))
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
        """Call the next service that isn't left alone; return for how long there is nothing to do."""
        try:
            self._read()
            now = time.monotonic()
            name = next((name for name in self._calls if self._service(name).again_at <= now), None)
            if name is not None:
                self._call(name)
        except RedBeatError:  # beat itself reports that Redis is away
            return AWAY_SECONDS
        except Exception as exc:  # noqa: BLE001 - if this thread ended, no service would be called any more
            what = "The services of entries can't be told now, trying again"
            self._thread.report(what, exc, TELEMETRY_FAILED, part="EntryPings")
            return AWAY_SECONDS
        if self._heard or name is not None:
            return 0.0
        pauses = (service.again_at - now for service in self._services.values() if service.again_at > now)
        return min(pauses, default=SLEEP_SECONDS)

    def _service(self, name: str) -> Service:
        if name not in self._services:
            self._services[name] = Service(name)
        return self._services[name]

    def _read(self) -> None:
        """Let the calls wait that entries ask for about the events."""
        events = [self._heard[index] for index in range(min(len(self._heard), READ_ENTRIES))]
        entries = self._entries.find({name for name, _ in events})
        for name, what in events:
            self._heard.popleft()
            entry = entries[name]
            if entry is not None and entry.policy.ping_url is not None:
                self._add(entry, what, entry.policy.ping_url)
        if self._left_out and not self._heard:
            logger.warning(
                "beat: More has happened to runs than entries' services could be told of in time: %d events "
                "were left out.",
                self._left_out,
                extra=PINGS_LEFT_OUT.of(count=self._left_out),
            )
            self._left_out = 0

    def _add(self, entry: RedBeatSchedulerEntry, what: str, text: str) -> None:
        """Let a call wait, behind all others of its service; if the same one waits already, instead of it."""
        url = parse_ping_url(text)
        if not is_allowed(url, self._hosts):
            self._refuse(entry.name, f"{url.authority} isn't in redbeat_ping_hosts")
            return
        if what == "sent":
            if entry.policy.needs_tracking or is_tracked(self._app):
                return
        elif what:
            url = url.followed_by(what)
        calls = self._calls.setdefault(url.service, {})
        calls.pop(url, None)
        calls[url] = entry.name
        if sum(map(len, self._calls.values())) > MAX_WAITING:
            self._take(max(self._calls, key=lambda name: len(self._calls[name])))
            self._left_out += 1

    def _take(self, name: str) -> tuple[PingUrl, str]:
        """Take the first call of a service, which then comes behind the other services."""
        calls = self._calls.pop(name)
        url = next(iter(calls))
        entry = calls.pop(url)
        if calls:
            self._calls[name] = calls
        return url, entry

    def _call(self, name: str) -> None:
        service, (url, entry) = self._service(name), self._take(name)
        try:
            call(url)
        except CallFailed as exc:
            if exc.is_final:
                self._refuse(entry, f"{service.name}: {exc}")
            else:
                service.note_failed(exc, entry)
                self._calls[name] = {url: entry, **self._calls.get(name, {})}
        else:
            self._said.pop(entry, "")
            service.note_well()

    def _refuse(self, entry: str, reason: str) -> None:
        """Log why the service of an entry isn't called: once, until that changes."""
        if self._said.is_news(entry, reason):
            logger.warning(
                "beat: The ping_url of %s isn't called: %s",
                printable(entry),
                reason,
                extra=PING_REFUSED.of(entry=entry, reason=reason),
            )
