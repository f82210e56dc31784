"""Calls about the runs of entries: to the service that an entry's policy names, ``ping_url``.

Where runs are tracked: ``URL/start`` when a worker has begun a run, ``URL`` when it has succeeded, and
``URL/fail`` when it has failed, was lost or never started. Elsewhere: ``URL`` when it was sent. Invariant:
only hosts in ``redbeat_ping_hosts`` are called, as whoever may write entries chooses the URL; and neither a
tick nor another receiver waits for a call.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from redbeat import signals
from redbeat.config.config import ensure_conf
from redbeat.config.ping_urls import PingUrl, is_allowed, parse_ping_url
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import try_decode
from redbeat.errors import RedBeatError
from redbeat.history import FAILED_OUTCOMES
from redbeat.log.events import PING_REFUSED, PINGS_LEFT_OUT, TELEMETRY_FAILED
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.process.background import BackgroundThread
from redbeat.process.memory import Memory
from redbeat.runs.run import Run
from redbeat.runs.tracking import is_tracked
from redbeat.store.entries import read_entries
from redbeat.store.records import Stored
from redbeat.store.store import Store
from redbeat.telemetry.pings.calls import CallFailed, Services, call
from redbeat.telemetry.pings.waiting_calls import Call, WaitingCalls

#: how many events wait for their entries to be read, at most, and how many are read at a time
MAX_HEARD, READ_ENTRIES = 10_000, 500

#: how long it is remembered what an entry's policy says; seconds
MEMORY_SECONDS = 10.0

#: how long nothing is asked of Redis while it is away; and how long the thread sleeps at the most
AWAY_SECONDS, SLEEP_SECONDS = 1.0, 60.0

#: how long ``stop`` waits for calls that are on their way
STOP_SECONDS = 1.0

#: what is called at the end of a run
_ENDS = {"succeeded": "", **dict.fromkeys(FAILED_OUTCOMES, "fail")}


@dataclass(frozen=True)
class _Heard:
    """What has happened to a run: 'sent', 'start', 'fail', or '' for its success."""

    entry: str
    what: str
    at: float


@dataclass(frozen=True)
class _Wish:
    """What the policy of an entry asks for.

    Attributes:
        url: None: nothing.
        are_tracked: its runs are.
        until: when it is read anew, monotonic.
    """

    url: PingUrl | None
    are_tracked: bool
    until: float


class EntryPings:
    """Calls the services of entries, in one beat, which hears of runs while it leads.

    Arguments:
        app: the Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._hosts = ensure_conf(app).ping_hosts
        self._heard: deque[_Heard] = deque()
        self._taken: list[_Heard] = []  # from there, while their entries are read
        self._left_out = 0
        self._waiting = WaitingCalls()
        self._services = Services()
        self._wishes = Memory[str, _Wish](limit=MAX_HEARD)
        self._said = Memory[str, str]()
        self._store: Store | None = None  # the thread makes it: a client of a cluster connects at once
        self._thread = BackgroundThread("redbeat-entry-pings", self._run)
        self._ends_at = 0.0

    def look(self) -> None:
        """Start the thread, and listen, if that isn't so yet."""
        if not self._thread.is_running:
            for signal, receiver in self._receivers():
                signal.connect(receiver, sender=self._app, weak=False)
        self._thread.start()

    def _receivers(self) -> list[tuple[Any, Any]]:
        receivers = [(signals.run_started, self._hear_start), (signals.run_ended, self._hear_end)]
        # where all runs are tracked nobody needs to be told that they are sent
        return receivers if is_tracked(self._app) else [(signals.run_sent, self._hear_sent), *receivers]

    def stop(self) -> None:
        """Stop; what was heard has a second."""
        self._ends_at = time.monotonic() + STOP_SECONDS
        for signal, receiver in self._receivers():
            signal.disconnect(receiver, sender=self._app)
        self._thread.stop(STOP_SECONDS)

    # -- in the thread of signals

    def _hear_sent(self, entry: str, **_: Any) -> None:
        self._hear(entry, "sent")

    def _hear_start(self, entry: str, **_: Any) -> None:
        self._hear(entry, "start")

    def _hear_end(self, entry: str, run: Run, **_: Any) -> None:
        what = _ENDS.get(run.outcome or "")
        if what is not None:
            self._hear(entry, what)

    def _hear(self, entry: str, what: str) -> None:
        while len(self._heard) >= MAX_HEARD:
            self._heard.popleft()
            self._left_out += 1
        self._heard.append(_Heard(entry, what, time.monotonic()))
        self._thread.wake()

    # -- in the thread

    def _run(self) -> None:
        while True:
            seconds = self.step()
            if self._thread.is_over and (seconds or time.monotonic() >= self._ends_at):
                break
            self._thread.wait(seconds)
        if self._store is not None:
            self._store.close()

    def step(self) -> float:
        """Do what there is to do; return for how long nothing is."""
        try:
            self._read()
            one = self._waiting.take(time.monotonic())
            if one is not None:
                self._call(one)
        except RedBeatError:  # beat itself tells that Redis is away
            return AWAY_SECONDS
        except Exception as exc:  # noqa: BLE001 - if this thread ended, nobody would be told any more
            what = "The services of entries can't be told now, trying again"
            self._thread.report(what, exc, TELEMETRY_FAILED, part="EntryPings")
            return AWAY_SECONDS
        if self._heard:
            return 0.0
        seconds = self._waiting.seconds_to_next(time.monotonic())
        return SLEEP_SECONDS if seconds is None else min(seconds, SLEEP_SECONDS)

    def _read(self) -> None:
        """Let the calls wait that entries ask for about what was heard."""
        now = time.monotonic()
        while self._heard and len(self._taken) < READ_ENTRIES:
            self._taken.append(self._heard.popleft())
        wishes = self._find_wishes({one.entry for one in self._taken}, now)
        for one in self._taken:
            self._add(one, wishes[one.entry])
        self._taken.clear()
        if self._left_out and not self._heard:
            logger.warning(
                "beat: More has happened to runs than entries' services could be told of in time: of %d "
                "events nobody was told.",
                self._left_out,
                extra=PINGS_LEFT_OUT.of(count=self._left_out),
            )
            self._left_out = 0

    def _find_wishes(self, names: set[str], now: float) -> dict[str, _Wish]:
        """Return what the policy of each entry asks for: of some as it is remembered, of others as it is."""
        known = {name: self._wishes[name] for name in names if name in self._wishes}
        old = sorted(name for name in names if name not in known or known[name].until <= now)
        if not old:
            return known
        if self._store is None:
            self._store = Store.hasty(self._app)
        _, found = read_entries(self._store, [self._store.keys.entry(name) for name in old])
        for name, stored in zip(old, found, strict=True):
            before, until = known.get(name), now + MEMORY_SECONDS
            if not stored.exists and before is not None:  # an entry that is deleted when its run is sent
                known[name] = replace(before, until=until)
            else:
                known[name] = self._wish_of(name, stored, until)
            self._wishes[name] = known[name]  # which may forget all others
        return known

    def _wish_of(self, name: str, stored: Stored, until: float) -> _Wish:
        nothing = _Wish(None, are_tracked=False, until=until)
        if "ping_url" not in (stored.policy or "") and "ping_url" not in (stored.definition or ""):
            return nothing
        try:
            entry = try_decode(RedBeatSchedulerEntry, stored, self._app)
        except Exception as exc:  # noqa: BLE001 - the per-entry boundary: others are to be told of theirs
            self._refuse(name, f"{type(exc).__name__}: {exc}")
            return nothing
        if entry is None or entry.policy.ping_url is None:
            return nothing
        url = parse_ping_url(entry.policy.ping_url)
        if not is_allowed(url, self._hosts):
            self._refuse(name, f"{url.authority} isn't in redbeat_ping_hosts")
            return nothing
        return _Wish(url, entry.policy.needs_tracking or is_tracked(self._app), until)

    def _add(self, heard: _Heard, wish: _Wish) -> None:
        if wish.url is None or (heard.what == "sent" and wish.are_tracked):
            return
        url = wish.url if heard.what in ("", "sent") else wish.url.followed_by(heard.what)
        self._waiting.add(Call(url, heard.entry, heard.at))

    def _call(self, one: Call) -> None:
        try:
            call(one.url)
        except CallFailed as exc:
            if exc.is_final:
                self._refuse(one.entry, f"{one.url.service}: {exc}")
                return
            self._services.note_failed(one.url, exc, one.entry)
            self._waiting.note_failed(one, time.monotonic())
        else:
            self._said.pop(one.entry, "")
            self._services.note_well(one.url, self._waiting.note_well(one.url.service), one.entry)

    def _refuse(self, entry: str, reason: str) -> None:
        """Log why the service of an entry isn't told: once, until that changes."""
        if self._said.is_news(entry, reason):
            logger.warning(
                "beat: Nobody is told of the runs of %s (ping_url): %s",
                printable(entry),
                reason,
                extra=PING_REFUSED.of(entry=entry, reason=reason),
            )
