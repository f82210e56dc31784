"""Gathering what metrics show of the schedule: a thread of beat that asks Redis every second.

Owns a connection of its own, and what was gathered last: whoever shows it reads memory only. Invariant: one
beat at a time shows the schedule, or each shard of it: the one that leads it, as long as no other one can;
without a lock the one that takes the figures. So sums over beats are right. However many shards a beat leads,
they are asked together, in one round trip a node.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from redbeat.entries.query import STATES, states_of
from redbeat.errors import StoreRefused, StoreUnavailable
from redbeat.keys import Keys
from redbeat.leadership.leadership import Leadership
from redbeat.log.events import TELEMETRY_FAILED
from redbeat.log.logger import logger
from redbeat.process.background import BackgroundThread, surviving
from redbeat.store.figures import (
    TELLER_MS,
    Labels,
    count_entry_states,
    forget_figures,
    read_labels,
    read_totals,
    take_figures,
)
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.store.vitals import Vitals, read_vitals
from redbeat.telemetry.metrics.labels import ALL_OTHERS, OTHER, LabelBook
from redbeat.telemetry.metrics.overdue import Overdue, find_overdue, streaks_of

#: how often Redis is asked, where somebody may look, and where nobody does; seconds
LOOK_SECONDS, SELDOM_SECONDS = 1.0, 5.0
#: how often it is looked which entries are overdue, or have failed, seconds
OVERDUE_SECONDS = 10.0
#: how often it is looked whether the entries that have labels are still there, seconds
UPKEEP_SECONDS = 60.0
#: after how long without an answer the totals are read anew; less than it takes until another beat may have
#: taken some; seconds
GAP_SECONDS = 6.0
#: how many entries are counted by their states in one script, and how many scripts there are in one second
SLICE, SLICES = 60, 33
#: how many entries whose state isn't obvious are read at a time: it takes about a millisecond
OTHERS = 10
#: how many times as long as a count took nothing is counted after it; and for so many seconds at least
REST, MIN_REST_SECONDS = 10, 5.0
#: how many streaks of failures are read
MAX_STREAKS = 500
#: how long ``stop`` waits
STOP_SECONDS = 2.0


@dataclass(frozen=True)
class View:
    """What was gathered of the schedule, or of one shard of it.

    Attributes:
        shard: its number, as text; '': the schedule isn't divided.
        token: under which it was gathered: the lock's, or where there is none that of this beat.
        until: how long it may be shown, monotonic: what is older would look well when nothing is, and without
            a lock another beat shows it by then.
        totals: labels' id, colon and word, to how often that was counted.
        labels: by their ids.
        due: how many entries are due.
        oldest_seconds: how long the first of them has been due.
        states: how many entries are in each state; None: they aren't counted yet.
        states_at: when they were counted, the server's UNIX seconds.
        overdue: the entries that are overdue.
        streaks: how many of the last runs have failed in a row, by the entries' names.
        stored: how many messages are stored; None: not known.
        stored_overdue: how many of them should have been sent more than a minute ago.
    """

    shard: str
    token: str
    until: float
    totals: Mapping[str, int]
    labels: Mapping[str, Labels]
    due: int
    oldest_seconds: float
    states: Mapping[str, int] | None
    states_at: float
    overdue: Overdue
    streaks: Mapping[str, int]
    stored: int | None
    stored_overdue: int


@dataclass
class _Count:
    """A count of the entries by their states on its way."""

    begun_at: float
    now: float = 0.0
    cursor: str = "0"
    is_scanned: bool = False
    found: Counter[str] = field(default_factory=Counter)
    others: dict[str, float] = field(default_factory=dict)


class _Gathered:
    """What is known of one part of the schedule that this beat shows.

    Attributes:
        keys: the names in it.
        token: under which it was gathered.
        taken_at: when figures were taken last, monotonic.
        pending: labels that are to be stored in it, by their ids.
        totals: None: they are to be read.
        view: what may be shown of it; None: nothing yet.
    """

    def __init__(self, keys: Keys, token: str) -> None:
        self.keys = keys
        self.token = token
        self.taken_at = -math.inf
        self.pending: dict[str, Labels] = {}
        self.totals: dict[str, int] | None = None
        self.labels: dict[str, Labels] = {}
        self.overdue = Overdue()
        self.streaks: Mapping[str, int] = {}
        self.states: Mapping[str, int] | None = None
        self.states_at = 0.0
        self.count: _Count | None = None
        self.next_count_at = self.next_overdue_at = self.next_upkeep_at = 0.0
        self.view: View | None = None


class Gathering:
    """What one beat gathers of the schedule.

    Arguments:
        app: the Celery app.
        leaderships: returns this beat's part in who leads the schedule, or each shard of it.
        book: under which labels runs are counted.
        is_shown: somebody may look; otherwise figures are only taken, for what is kept in Redis.

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
        self._store: Store | None = None  # the thread makes it: a client of a cluster connects at once
        self._thread = BackgroundThread("redbeat-metrics", self._run)
        self._gone: frozenset[str] = frozenset()  # ids that the thread of the tick is to forget
        self._stored: Mapping[str, Labels] | None = None  # labels that the thread of the tick is to know
        self._next_read_at = 0.0
        self._parts: dict[Keys, _Gathered] = {}  # those that this beat may show

    def lead(self, store: Store) -> None:
        """Know the labels that are stored: this beat has become leader of the schedule, or of a shard."""
        with surviving("Reading the labels of the metrics"):  # a right may be missing
            [found] = read_labels(store, [store.keys])
            if len(self._leaderships()) > 1:
                self.book.learn(found)
            else:
                self.book.load(found)

    def look(self) -> None:
        """Start the thread; know the labels that other beats have given, and no others."""
        self._thread.start()
        if self._stored is not None:
            stored, self._stored = self._stored, None
            self.book.load({**stored, **dict(self.book.unsaved.copy())})
        if self._gone:
            gone, self._gone = self._gone, frozenset()
            self.book.forget(gone)

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop(STOP_SECONDS)

    @property
    def views(self) -> list[View]:
        """What this beat may show now, of the schedule or of its shards; those that other beats show, or that
        nothing is known of yet, are left out.
        """
        now, found = time.monotonic(), list[View]()
        parts = self._parts
        for leadership in self._leaderships():
            part = parts.get(leadership.keys)
            view = None if part is None else part.view
            if view is None or now >= view.until:
                continue
            is_same = leadership.is_certain and leadership.fence.token == view.token
            if is_same or leadership.lock_key is None:
                found.append(view)
        return found

    # -- in the thread

    def _run(self) -> None:
        while not self._thread.wait(LOOK_SECONDS if self._is_shown else SELDOM_SECONDS):
            self.gather()
        if self._store is not None:
            self._store.close()

    def gather(self) -> None:
        """Ask Redis once; what goes wrong is told, and tried again the next time."""
        try:
            self._gather()
        except StoreUnavailable as exc:
            logger.debug("beat: Metrics wait for Redis: %s", exc)
            self._read_again()
        except Exception as exc:  # noqa: BLE001 - if the thread ended, nothing would be shown any more
            self._read_again()
            self._report(exc)
        else:
            self._thread.report_recovery("Metrics of the schedule are gathered again")

    def _read_again(self) -> None:
        """Read the totals anew, as an answer may have been lost."""
        for part in self._parts.values():
            part.totals = None

    def _report(self, exc: Exception) -> None:
        if isinstance(exc, StoreRefused):  # as a rule the tick is refused, too, and tells of it
            logger.debug("beat: Metrics of the schedule can't be gathered now: %s", exc)
        else:
            self._thread.report(
                "Metrics of the schedule cannot be gathered", exc, TELEMETRY_FAILED, part="Metrics"
            )

    def _connect(self) -> Store:
        if self._store is None:
            self._store = Store.hasty(self._app)
        return self._store

    def _tokens(self) -> dict[Keys, str]:
        """Return of which parts this beat may show something, and under which token it asks for it."""
        tokens: dict[Keys, str] = {}
        for leadership in self._leaderships():
            if leadership.lock_key is None:
                tokens[leadership.keys] = self._teller
            elif leadership.is_certain and leadership.fence.token:  # else a program has made the lock
                tokens[leadership.keys] = leadership.fence.token
        return tokens

    def _gather(self) -> None:
        tokens, leaderships = self._tokens(), self._leaderships()
        self._parts = {
            keys: self._parts.get(keys) or _Gathered(keys, token) for keys, token in tokens.items()
        }
        if not tokens:
            return
        has_lock = leaderships[0].lock_key is not None
        store = self._connect()
        self._give_labels(store)
        asked_at = time.monotonic()
        gap_seconds = min(GAP_SECONDS, leaderships[0].timing.replaced_after_seconds)
        for part in self._parts.values():
            if tokens[part.keys] != part.token or asked_at > part.taken_at + gap_seconds:
                part.totals = None  # another beat may have taken some meanwhile
        asked = [(keys, tokens[keys], part.pending) for keys, part in self._parts.items()]
        found = dict(zip(self._parts, take_figures(store, asked, has_lock=has_lock), strict=True))
        if not has_lock and time.monotonic() >= self._next_read_at:  # others give and remove some, too
            self._next_read_at = time.monotonic() + UPKEEP_SECONDS
            self._stored = dict(ChainMap(*read_labels(store, list(self._parts))))
        taken = {keys: reply for keys, reply in found.items() if reply is not None}
        parts = {keys: self._parts[keys] for keys in taken}
        self._parts = parts
        if not taken:
            return
        for keys, part in parts.items():
            part.labels |= part.pending
            part.token, part.taken_at, part.pending = tokens[keys], asked_at, {}
            # Redis has lost its data, or another shard has these labels
            known, unknown = self.book.known, taken[keys].unknown
            part.pending = {id_: known[id_] for id_ in unknown if id_ in known}
        self._add(store, {keys: reply.figures for keys, reply in taken.items()})
        now = next(iter(taken.values())).now
        if due := [part for part in parts.values() if time.monotonic() >= part.next_upkeep_at]:
            self._keep_up(store, due)
            if not self._is_shown:  # else it is done more often
                self._look_at_entries(store, due, now)
        if self._is_shown:
            self._show(store, now)

    def _give_labels(self, store: Store) -> None:
        """Let new labels be stored where they are needed: those of an entry in its shard, others in all."""
        unsaved = self.book.unsaved
        while unsaved:
            id_, labels = unsaved.popleft()
            home = None if labels.entry == OTHER else store.parts.home(labels.entry)
            for part in self._parts.values():
                if home is None or part.keys == home:
                    part.pending[id_] = labels

    def _show(self, store: Store, now: float) -> None:
        """Gather what isn't counted, and show all of it."""
        parts = list(self._parts.values())
        vitals = read_vitals(store, [part.keys for part in parts])
        self._count_states(store)
        if due := [part for part in parts if time.monotonic() >= part.next_overdue_at]:
            self._look_at_entries(store, due, now)
        layout = store.config.layout
        for part, found in zip(parts, vitals, strict=True):
            shard = layout.shard_of(part.keys)
            part.view = _view_of(part, found, "" if shard is None else str(shard))

    def _look_at_entries(self, store: Store, parts: Sequence[_Gathered], now: float) -> None:
        """Find what is overdue, and what fails; what is kept of entries that are gone is forgotten so."""
        keys = [part.keys for part in parts]
        for part in parts:
            part.next_overdue_at = time.monotonic() + OVERDUE_SECONDS
        overdue, streaks = find_overdue(store, keys, now), streaks_of(store, keys, MAX_STREAKS, now)
        for part in parts:
            part.overdue, part.streaks = overdue[part.keys], streaks[part.keys]

    def _add(self, store: Store, taken: Mapping[Keys, Mapping[str, int]]) -> None:
        """Add what was taken to the totals, which are read when they aren't known."""
        unread = [keys for keys in taken if self._parts[keys].totals is None]
        unlabelled: list[Keys] = []
        for keys, counted in taken.items():
            part = self._parts[keys]
            if part.totals is None:
                continue
            for name, number in counted.items():
                part.totals[name] = part.totals.get(name, 0) + number
            if any(name.partition(":")[0] not in part.labels for name in counted):  # another beat's
                unlabelled.append(keys)
        for keys, labels in zip(unlabelled, read_labels(store, unlabelled), strict=True):
            self._parts[keys].labels |= labels
        found = read_labels(store, unread)
        for keys, labels, totals in zip(unread, found, read_totals(store, unread), strict=True):
            self._parts[keys].labels = {"": ALL_OTHERS, **labels}
            self._parts[keys].totals = totals

    def _keep_up(self, store: Store, parts: Sequence[_Gathered]) -> None:
        """Forget the labels of entries that are gone, and what was counted under labels that nobody knows."""
        for part in parts:
            part.next_upkeep_at = time.monotonic() + UPKEEP_SECONDS
        named = [(part, id_, one) for part in parts for id_, one in part.labels.items() if one.entry != OTHER]
        there = Server(store).which_exist([part.keys.entry(one.entry) for part, _, one in named])
        gone: dict[Keys, set[str]] = {part.keys: set() for part in parts}
        for (part, id_, one), is_there in zip(named, there, strict=True):
            if not is_there or not self.book.is_current(one):
                gone[part.keys].add(id_)
        for part in parts:
            totals, ids = part.totals or {}, gone[part.keys]
            left = part.labels.keys() - ids
            fields = [name for name in totals if name.partition(":")[0] not in left]
            forget_figures(store, part.keys, ids, fields)
            for name in fields:
                del totals[name]
            for id_ in ids:
                del part.labels[id_]
            self._gone |= ids

    def _count_states(self, store: Store) -> None:
        """Go on counting the entries by their states; each step takes about a millisecond.

        Shards are counted one after the other, so that it costs no more than without them.
        """
        left = SLICES
        parts = sorted(self._parts.values(), key=lambda part: (part.count is None, part.next_count_at))
        for part in parts:
            if part.count is None and time.monotonic() < part.next_count_at:
                return
            left = self._count_part(store, part, left)
            if not left:
                return

    def _count_part(self, store: Store, part: _Gathered, left: int) -> int:
        """Make at most ``left`` steps; return how many may still be made."""
        count = part.count = part.count or _Count(time.monotonic())
        while left:
            left -= 1
            if count.others:
                some = {member: count.others[member] for member in list(count.others)[:OTHERS]}
                count.found.update(states_of(self._connect(), some))
                for member in some:
                    del count.others[member]
            elif not count.is_scanned:
                page = count_entry_states(store, part.keys, count.cursor, SLICE)
                count.found.update({"scheduled": page.scheduled, "due": page.due})
                count.cursor, count.others, count.now = page.cursor, page.others, page.now
                count.is_scanned = page.cursor == "0"
            if count.is_scanned and not count.others:
                part.states = {state: count.found[state] for state in STATES}
                part.states_at, part.count = count.now, None
                took = time.monotonic() - count.begun_at
                part.next_count_at = time.monotonic() + max(REST * took * len(self._parts), MIN_REST_SECONDS)
                break
        return left


def _view_of(part: _Gathered, vitals: Vitals, shard: str) -> View:
    return View(
        shard,
        part.token,
        part.taken_at + TELLER_MS / 1000,
        dict(part.totals or {}),
        dict(part.labels),
        vitals.due,
        0.0 if vitals.oldest is None else max(vitals.now - vitals.oldest, 0.0),
        part.states,
        part.states_at,
        part.overdue,
        part.streaks,
        vitals.stored,
        vitals.overdue,
    )
