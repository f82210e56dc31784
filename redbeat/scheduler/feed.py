"""The feed: a thread of beat that sends signals, so that no tick waits for a receiver.

Owns a connection of its own, and the place in the stream of events up to which receivers were called.
Invariant: that place moves only after the receivers have returned, so each event is sent at least once.

Only the leader sends. Beats without a lock take turns: a beat that reads events has them for a minute.
Nothing is read unless a receiver is connected. Without a place, sending begins at the end of the stream.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from redbeat import signals
from redbeat.config.config import ensure_conf
from redbeat.errors import RedBeatError, StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.lock import LeaderLock
from redbeat.log.events import SIGNALS_FAILED
from redbeat.log.logger import logger
from redbeat.process.background import BackgroundThread
from redbeat.runs.event import arguments_of
from redbeat.store.events import Event, News, note_told, read_events
from redbeat.store.lock_tokens import Holder, holder_of
from redbeat.store.locks import LockKey
from redbeat.store.records import Fence
from redbeat.store.store import Store

#: seconds between two looks at the stream
LOOK_SECONDS = 1.0

#: seconds that ``stop`` waits for a receiver that is at work
STOP_SECONDS = 5.0


class Feed:
    """Sends the signals of one beat.

    Arguments:
        app: the Celery app.
        find_fences: returns the parts of the schedule that this beat leads, with the fences of their locks.
    """

    def __init__(self, app: Any, find_fences: Callable[[], Mapping[Keys, Fence]]) -> None:
        self._app, self._find_fences = app, find_fences
        self._teller = secrets.token_hex(8)
        self._thread = BackgroundThread("redbeat-signals", self._run)
        #: what has happened to this beat: functions that send it
        self._own_news = deque[Callable[[], None]]()

    def look(self) -> None:
        """Start the thread if there is a receiver and it does not run, or has died."""
        if signals.is_wanted(*signals.ALL):
            self._thread.start()

    def note_leader(self, taken: Sequence[tuple[int | None, LeaderLock]]) -> None:
        """Send ``leader_changed``: this beat has taken these locks together.

        Arguments:
            taken: the number of each shard, None for an unsharded schedule, and its lock.
        """
        self._note(signals.leader_changed, partial(self._send_leader_changed, taken))

    def note_lost(self, shards: tuple[int, ...]) -> None:
        """Send ``schedule_lost``: Redis has lost these shards, or the schedule."""
        self._note(signals.schedule_lost, partial(self._send, signals.schedule_lost, shards=shards))

    def _note(self, signal: Any, send: Callable[[], None]) -> None:
        if signals.is_wanted(signal.name):
            self._own_news.append(send)
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
                while self._own_news:
                    self._own_news[0]()
                    self._own_news.popleft()
                is_more = self._send_events()
                self._thread.report_recovery("Signals are sent again")
            except StoreUnavailable as exc:
                logger.debug("beat: Signals wait for Redis: %s", exc)
            except Exception as exc:  # noqa: BLE001 - if this thread ended, no signal would be sent any more
                self._thread.report("Signals can't be sent now, trying again", exc, SIGNALS_FAILED)
            if not is_more:
                self._thread.wait(LOOK_SECONDS)
        while self._own_news:
            with suppress(RedBeatError):
                self._own_news.popleft()()
        if "_store" in vars(self):
            self._store.close()

    @cached_property
    def _store(self) -> Store:  # the thread makes it: a client of a cluster connects at once
        return Store.hasty(self._app)

    def _send_leader_changed(self, taken: Sequence[tuple[int | None, LeaderLock]]) -> None:
        """Send one signal for all locks that were taken from the same beat."""
        changes: dict[tuple[str, int] | None, tuple[Holder, Holder | None, list[int]]] = {}
        for shard, lock in taken:
            leader = holder_of(lock.token)
            if leader is None:
                continue  # it was lost at once
            # the beat before was silent, or has left its token as it released the lock
            token = lock.replaced or LockKey(self._store, lock.fence.mark).token() or ""
            previous = None if token == lock.token else holder_of(token)
            before = None if previous is None else (previous.host, previous.pid)
            shards = changes.setdefault(before, (leader, previous, []))[2]
            shards += [] if shard is None else [shard]
        for leader, previous, shards in changes.values():
            self._send(signals.leader_changed, leader=leader, previous=previous, shards=tuple(sorted(shards)))

    def _send_events(self) -> bool:
        """Send what has happened since; return True if there is more."""
        fences = self._find_fences()
        if not fences or not signals.is_wanted(*signals.OF_EVENTS):
            return False
        found = read_events(self._store, fences, self._teller)
        are_more = [self._send_news(keys, news) for keys, news in found.items()]
        return any(are_more)

    def _send_news(self, keys: Keys, news: News) -> bool:
        """Send the events of one part; return True if there are more."""
        last = news.told
        for event in news.events:
            if self._thread.is_over or keys not in self._find_fences():
                break
            self._send_event(event)
            last = event.id
        is_noted = bool(news.events) and note_told(self._store, keys, self._teller, news.told, last)
        return is_noted and last == news.events[-1].id

    def _send_event(self, event: Event) -> None:
        signal = signals.OF_EVENTS.get(event.fields.get("event", ""))
        if signal is None or not signal.receivers:
            return
        arguments = arguments_of(event.fields, ensure_conf(self._app).keys)
        if arguments is None:
            logger.debug("beat: An event can't be read: %r", event)
            return
        self._send(signal, **arguments)

    def _send(self, signal: Any, **arguments: Any) -> None:
        """Call the receivers; the signal logs what they raise."""
        signal.send(sender=self._app, **arguments)
