"""The feed: a thread of beat that tells the receivers of signals what has happened.

Owns a connection of its own, and the place in the stream up to which it was told. Invariant: whatever a
receiver does, no tick waits for it; and an event counts as told only after its receivers have returned, so
that each is told at least once.

Only the leader tells. Beats without a lock take turns: who reads events has them for a minute. Nothing is
read unless a receiver is connected. Where nothing was ever told, telling begins at the end of the stream.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from redbeat import signals
from redbeat.config.config import ensure_conf
from redbeat.errors import StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.lock import LeaderLock
from redbeat.log.events import SIGNALS_FAILED
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten
from redbeat.process.background import BackgroundThread
from redbeat.runs.event import arguments_of
from redbeat.store.events import Event, News, note_told, read_events
from redbeat.store.lock_tokens import Holder, holder_of
from redbeat.store.locks import LockKey
from redbeat.store.records import Fence
from redbeat.store.store import Store

#: how often it is looked whether something has happened
LOOK_SECONDS = 1.0

#: while receivers are quick, it is noted this often up to where they were told
NOTE_SECONDS = 0.2

#: how long ``stop`` waits for a receiver that is at work
STOP_SECONDS = 5.0


class Feed:
    """Tells what has happened, in one beat.

    Arguments:
        app: the Celery app.
        find_fences: returns which parts of the schedule this beat leads, and what says so.
    """

    def __init__(self, app: Any, find_fences: Callable[[], Mapping[Keys, Fence]]) -> None:
        self._app = app
        self._find_fences = find_fences
        self._teller = secrets.token_hex(8)
        self._store: Store | None = None  # the thread makes it: a client of a cluster connects at once
        self._thread = BackgroundThread("redbeat-signals", self._run)
        self._won: deque[Sequence[tuple[int | None, LeaderLock]]] = deque()
        self._lost: deque[tuple[int, ...]] = deque()
        self._unnoted: set[tuple[Keys, str]] = set()  # ids of events that were told of, which isn't noted yet

    def look(self) -> None:
        """Start the thread if there is a receiver, and it doesn't run, or has died."""
        if self._thread.is_running:
            return
        if self._thread.was_started:  # something like gevent's Timeout has come while no receiver was at work
            logger.error("beat: The thread that sends signals has ended, and is started again.")
        if signals.is_wanted(*signals.ALL):
            self._thread.start()

    def note_leader(self, taken: Sequence[tuple[int | None, LeaderLock]]) -> None:
        """Note that this beat has become leader by taking these locks at once, which is told of.

        Arguments:
            taken: the number of each shard, None for a schedule without any, and its lock.
        """
        if signals.is_wanted(signals.leader_changed.name):
            self._won.append(taken)
            self._thread.wake()

    def note_lost(self, shards: tuple[int, ...]) -> None:
        """Note that Redis has lost the schedule, or these shards of it; it is told of also if beat ends."""
        if signals.is_wanted(signals.schedule_lost.name):
            self._lost.append(shards)
            self._thread.wake()

    def stop(self) -> None:
        """Stop the thread; a receiver that is at work has a few seconds to finish."""
        if not self._thread.stop(STOP_SECONDS):
            logger.warning("beat: A receiver of a signal is still at work, and isn't waited for.")

    # -- in the thread

    def _run(self) -> None:
        while not self._thread.is_over:
            is_more = False
            try:
                self._tell_of_losses()
                self._tell_of_leaders()
                is_more = self._tell_of_events()
                self._thread.report_recovery("Signals are sent again")
            except StoreUnavailable as exc:
                logger.debug("beat: Signals wait for Redis: %s", exc)
            except Exception as exc:  # noqa: BLE001 - if this thread ended, nothing would be told any more
                self._thread.report("Signals can't be sent now, trying again", exc, SIGNALS_FAILED)
            if not is_more:
                self._thread.wait(LOOK_SECONDS)
        self._tell_of_losses()
        if self._store is not None:
            self._store.close()

    def _tell_of_losses(self) -> None:
        while self._lost:
            self._send(signals.schedule_lost, shards=self._lost.popleft())

    def _connect(self) -> Store:
        if self._store is None:
            self._store = Store.hasty(self._app)
        return self._store

    def _tell_of_leaders(self) -> None:
        while self._won and not self._thread.is_over:
            changes: dict[tuple[str, int] | None, tuple[Holder, Holder | None, list[int]]] = {}
            for shard, lock in self._won[0]:
                leader = holder_of(lock.token)
                if leader is None:
                    continue  # it was lost at once
                previous = self._find_previous(lock)
                before = None if previous is None else (previous.host, previous.pid)
                shards = changes.setdefault(before, (leader, previous, []))[2]
                shards += [] if shard is None else [shard]
            self._won.popleft()
            for leader, previous, shards in changes.values():
                self._send(
                    signals.leader_changed, leader=leader, previous=previous, shards=tuple(sorted(shards))
                )

    def _find_previous(self, lock: LeaderLock) -> Holder | None:
        """Return who led before, as far as that is known: it was silent, or has released the lock."""
        token = lock.replaced or LockKey(self._connect(), lock.fence.mark).token() or ""
        return None if token == lock.token else holder_of(token)

    def _tell_of_events(self) -> bool:
        """Tell of what has happened since; return whether there is more."""
        fences = self._find_fences()
        if not fences or not signals.is_wanted(*signals.OF_EVENTS):
            return False
        found = read_events(self._connect(), fences, self._teller)
        are_more = [self._tell_of_news(keys, news) for keys, news in found.items()]
        return any(are_more)

    def _tell_of_news(self, keys: Keys, news: News) -> bool:
        """Tell of what has happened in one part; return whether there is more."""
        if not news.events:
            return False
        told, noted_at = news.told, time.monotonic()
        last = told
        for event in news.events:
            if self._thread.is_over or keys not in self._find_fences():
                break
            self._tell(keys, event)
            last = event.id
            if time.monotonic() > noted_at + NOTE_SECONDS:
                if not self._note(keys, told, last, is_done=False):
                    return False
                told, noted_at = last, time.monotonic()
        return self._note(keys, told, last, is_done=True) and last == news.events[-1].id

    def _note(self, keys: Keys, told: str, last: str, *, is_done: bool) -> bool:
        is_noted = note_told(self._connect(), keys, self._teller, told, last, is_done=is_done)
        self._unnoted = {one for one in self._unnoted if one[0] != keys}
        return is_noted

    def _tell(self, keys: Keys, event: Event) -> None:
        if (keys, event.id) in self._unnoted:  # Redis went away before it could be noted
            return
        self._unnoted.add((keys, event.id))
        signal = signals.OF_EVENTS.get(event.fields.get("event", ""))
        if signal is None or not signal.receivers:
            return
        arguments = arguments_of(event.fields, ensure_conf(self._app).keys)
        if arguments is None:
            logger.debug("beat: An event can't be read: %s", shorten(printable(repr(event))))
            return
        self._send(signal, **arguments)

    def _send(self, signal: Any, **arguments: Any) -> None:
        """Call the receivers; the signal logs what they raise."""
        signal.send(sender=self._app, **arguments)
