"""Gathering the metrics of the schedule: a thread of beat that asks Redis every second.

Owns a connection of its own, and what was gathered last: scrapes read memory only. Invariant: one beat at a
time shows the schedule, or each shard of it: the one that leads it, as long as no other one can; without a
lock the one that takes the figures. So sums over beats are right. However many shards a beat leads, they are
asked together, in one round trip a node.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import ChainMap, Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from redbeat.entries.query import STATES
from redbeat.entries.search import count_part
from redbeat.errors import StoreRefused, StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.leadership import Leadership
from redbeat.log.events import TELEMETRY_FAILED
from redbeat.log.logger import logger
from redbeat.process.background import BackgroundThread, surviving
from redbeat.store.figures import (
    ALL_OTHERS,
    OTHER,
    TELLER_MS,
    Labels,
    forget_figures,
    read_labels,
    read_totals,
    take_figures,
)
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.store.vitals import Vitals, read_vitals
from redbeat.telemetry.labels import LabelBook
from redbeat.telemetry.overdue import Overdue, find_overdue, streaks_of

#: how often Redis is asked where the metrics are shown, and where figures are only taken; seconds
LOOK_SECONDS, SELDOM_SECONDS = 1.0, 5.0
#: how often overdue and failing entries are looked up, seconds
OVERDUE_SECONDS = 10.0
#: how often labels of deleted entries are removed, seconds
UPKEEP_SECONDS = 60.0
#: after how long without an answer the totals are read anew; less than it takes until another beat may have
#: taken some; seconds
GAP_SECONDS = 6.0
#: how many steps of a count of the entries by their states are made in one second
STEPS = 33
#: how many entries whose state isn't obvious are read at a time: it takes about a millisecond
OTHERS = 10
#: how many times as long as a count took nothing is counted after it; and for so many seconds at least
REST, MIN_REST_SECONDS = 10, 5.0
#: how many streaks of failures are read
MAX_STREAKS = 500
#: how long ``stop`` waits
STOP_SECONDS = 2.0


@dataclass
class View:
    """What a beat knows of the schedule, or of one shard of it. Its thread writes it, scrapes read it.

    Attributes:
        keys: the names in it.
        token: under which it is gathered: the lock's, or without a lock that of this beat.
        shard: its number; None for an unsharded schedule.
        taken_at: when figures were last taken, monotonic.
        pending: labels to be stored in it, by their ids.
        totals: labels' id, colon and word, to how often that was counted.
        labels: by their ids.
        is_stale: labels and totals are to be read.
        vitals: None: not known yet.
        states: how many entries are in each state; None: they aren't counted yet.
        states_at: when they were counted, the server's UNIX seconds.
        overdue: the entries that are overdue.
        streaks: how many of the last runs have failed in a row, by the entries' names.
    """

    keys: Keys
    token: str
    shard: int | None
    taken_at: float = -math.inf
    pending: dict[str, Labels] = field(default_factory=dict)
    totals: dict[str, int] = field(default_factory=dict)
    labels: dict[str, Labels] = field(default_factory=dict)
    is_stale: bool = True
    vitals: Vitals | None = None
    states: Mapping[str, int] | None = None
    states_at: float = 0.0
    overdue: Overdue = field(default_factory=Overdue)
    streaks: Mapping[str, int] = field(default_factory=dict)
    next_overdue_at: float = 0.0
    next_upkeep_at: float = 0.0


class Gathering:
    """What one beat gathers of the schedule; a part of its telemetry.

    Arguments:
        app: the Celery app.
        leaderships: returns this beat's part in who leads the schedule, or each shard of it.
        book: under which labels runs are counted.
        is_shown: the metrics are shown; otherwise figures are only taken, for the dashboard's last hour.

    Attributes:
        book: under which labels runs are counted.
    """

    def __init__(
        self, app: Any, leaderships: Callable[[], Sequence[Leadership]], book: LabelBook, *, is_shown: bool
    ) -> None:
        self._app = app
        self._leaderships = leaderships
        self.book = book
        self._is_shown = is_shown
        self._teller = secrets.token_hex(8)
        self._thread = BackgroundThread("redbeat-metrics", self._run)
        self._for_book = deque[Callable[[], None]]()  # what the thread of the tick is to change in the book
        self._next_read_at = 0.0
        self._parts: dict[Keys, View] = {}  # those that this beat may show
        self._counting = self._count_states()

    def lead(self, store: Store) -> None:
        """Know the labels that are stored: this beat has become leader of the schedule, or of a shard."""
        with surviving("Reading the labels of the metrics"):  # a right may be missing
            [found] = read_labels(store, [store.keys])
            self.book.load(found, keeps_known=len(self._leaderships()) > 1)

    def look(self) -> None:
        """Start the thread; know the labels that other beats have stored or removed."""
        self._thread.start()
        while self._for_book:
            self._for_book.popleft()()

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop(STOP_SECONDS)

    @property
    def views(self) -> list[View]:
        """What this beat may show now, of the schedule or of its shards."""
        # what is older would look well when nothing is, and without a lock another beat shows it by then
        oldest, parts = time.monotonic() - TELLER_MS / 1000, self._parts
        return [
            view
            for leadership in self._leaderships()
            if (view := parts.get(leadership.keys)) is not None
            and (view.vitals is not None and view.taken_at > oldest)
            and view.token == self._token_of(leadership)
        ]

    def _token_of(self, leadership: Leadership) -> str:
        """Return the token under which this beat may show the schedule, or a shard; '': it may not."""
        if leadership.lock_key is None:
            return self._teller
        return leadership.fence.token if leadership.is_certain else ""  # '' if a program has made the lock

    # -- in the thread

    def _run(self) -> None:
        while not self._thread.wait(LOOK_SECONDS if self._is_shown else SELDOM_SECONDS):
            self.gather()
        if "_store" in vars(self):
            self._store.close()

    @cached_property
    def _store(self) -> Store:  # the thread makes it: a client of a cluster connects at once
        return Store.hasty(self._app)

    def gather(self) -> None:
        """Ask Redis once; an error is logged, and the next call tries again."""
        try:
            self._gather()
        except Exception as exc:  # noqa: BLE001 - if the thread ended, nothing would be shown any more
            self._counting = self._count_states()
            for part in self._parts.values():
                part.is_stale = True  # an answer may have been lost
            if isinstance(exc, (StoreUnavailable, StoreRefused)):  # the tick reports it, too
                logger.debug("beat: Metrics of the schedule can't be gathered now: %s", exc)
            else:
                what = "Metrics of the schedule cannot be gathered"
                self._thread.report(what, exc, TELEMETRY_FAILED, part="Metrics")
        else:
            self._thread.report_recovery("Metrics of the schedule are gathered again")

    def _gather(self) -> None:
        leaderships = self._leaderships()
        tokens = {one.keys: token for one in leaderships if (token := self._token_of(one))}
        if not tokens:
            self._parts = {}
            return
        store, has_lock = self._store, leaderships[0].lock_key is not None
        layout = store.config.layout
        self._parts = {
            keys: self._parts.get(keys) or View(keys, token, layout.shard_of(keys))
            for keys, token in tokens.items()
        }
        self._give_labels(store)
        asked_at = time.monotonic()
        asked = [(keys, tokens[keys], part.pending) for keys, part in self._parts.items()]
        replies = take_figures(store, asked, has_lock=has_lock)
        if not has_lock and asked_at >= self._next_read_at:  # other beats store and remove some, too
            self._next_read_at = asked_at + UPKEEP_SECONDS
            stored = dict(ChainMap(*read_labels(store, list(self._parts))))
            self._for_book.append(partial(self.book.load, stored))
        gap_seconds = min(GAP_SECONDS, leaderships[0].timing.replaced_after_seconds)
        taken = {}
        for (keys, part), reply in zip(self._parts.items(), replies, strict=True):
            if reply is None:
                continue  # another beat shows it
            taken[keys] = part
            if tokens[keys] != part.token or asked_at > part.taken_at + gap_seconds:
                part.is_stale = True  # another beat may have taken some meanwhile
            part.labels |= part.pending
            part.token, part.taken_at = tokens[keys], asked_at
            # Redis has lost its data, or another shard has these labels
            part.pending = {id_: self.book.known[id_] for id_ in reply.unknown if id_ in self.book.known}
            for name, number in reply.figures.items():
                part.totals[name] = part.totals.get(name, 0) + number
                part.is_stale = part.is_stale or _id_in(name) not in part.labels  # stored by another beat
            now = reply.now
        self._parts = taken
        if taken:
            self._read_stale(store)
            self._look_at_entries(store, now)
            if self._is_shown:
                for _ in range(STEPS):
                    next(self._counting)
                for part, vitals in zip(taken.values(), read_vitals(store, list(taken)), strict=True):
                    part.vitals = vitals

    def _give_labels(self, store: Store) -> None:
        """Let new labels be stored where they are needed: labels of an entry in its shard, others in all."""
        unsaved = self.book.unsaved
        while unsaved:
            id_, labels = unsaved.popleft()
            home = None if labels.entry == OTHER else store.parts.home(labels.entry)
            for part in self._parts.values():
                if home is None or part.keys == home:
                    part.pending[id_] = labels

    def _read_stale(self, store: Store) -> None:
        stale = [part for part in self._parts.values() if part.is_stale]
        keys = [part.keys for part in stale]
        for part, labels, totals in zip(
            stale, read_labels(store, keys), read_totals(store, keys), strict=True
        ):
            part.labels, part.totals, part.is_stale = {"": ALL_OTHERS, **labels}, totals, False

    def _look_at_entries(self, store: Store, now: float) -> None:
        """Find overdue and failing entries, and forget what is kept of deleted ones, from time to time."""
        at = time.monotonic()
        if due := [part for part in self._parts.values() if at >= part.next_upkeep_at]:
            self._forget_deleted(store, due)
        if due := [part for part in self._parts.values() if at >= part.next_overdue_at]:
            keys = [part.keys for part in due]
            overdue, streaks = find_overdue(store, keys, now), streaks_of(store, keys, MAX_STREAKS, now)
            for part in due:
                part.overdue, part.streaks = overdue[part.keys], streaks[part.keys]
                part.next_overdue_at = at + OVERDUE_SECONDS

    def _forget_deleted(self, store: Store, parts: Sequence[View]) -> None:
        """Forget the labels of deleted entries, and what was counted under unknown labels."""
        named = [(part, id_, one) for part in parts for id_, one in part.labels.items() if one.entry != OTHER]
        exist = Server(store).which_exist([part.keys.entry(one.entry) for part, _, one in named])
        gone = {
            id_
            for (_, id_, one), exists in zip(named, exist, strict=True)
            if not exists or not self.book.is_current(one)
        }
        for part in parts:
            left = {id_: one for id_, one in part.labels.items() if id_ not in gone}
            fields = [name for name in part.totals if _id_in(name) not in left]
            forget_figures(store, part.keys, part.labels.keys() - left.keys(), fields)
            part.labels = left
            part.totals = {name: part.totals[name] for name in part.totals.keys() - fields}
            part.next_upkeep_at = time.monotonic() + UPKEEP_SECONDS
        if gone:
            self._for_book.append(partial(self.book.forget, gone))

    def _count_states(self) -> Iterator[None]:
        """Count the entries of all parts by their states, over and over; yield about every millisecond."""
        while True:
            began_at = time.monotonic()
            for part in list(self._parts.values()):
                found = Counter[str]()
                for step in count_part(self._store, part.keys, OTHERS):
                    counted_at, counts = step
                    found.update(counts)
                    yield
                part.states, part.states_at = {state: found[state] for state in STATES}, counted_at
            now = time.monotonic()
            rest_until = now + max(REST * (now - began_at), MIN_REST_SECONDS)
            while time.monotonic() < rest_until and all(
                part.states is not None for part in self._parts.values()
            ):
                yield


def _id_in(name: str) -> str:
    """Return the id of the labels under which a figure is counted."""
    return name.partition(":")[0]
