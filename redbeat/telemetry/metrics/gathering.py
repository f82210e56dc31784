"""Gathering what metrics show of the whole schedule: a thread of beat that asks Redis every second.

Owns a connection of its own, and what was gathered last: whoever shows it reads memory only. Invariant: one
beat at a time shows the schedule: the leader, as long as no other one can lead; without a lock the one that
takes the figures. So sums over beats are right.
"""

from __future__ import annotations

import math
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from redbeat.connection.retry import is_no_permission
from redbeat.entries.query import STATES, states_of
from redbeat.errors import RedBeatError, StoreRefused, StoreUnavailable
from redbeat.leadership.elector import Leadership
from redbeat.log.logger import logger
from redbeat.process.background import BackgroundThread
from redbeat.process.memory import Memory
from redbeat.store.figures import TELLER_MS, Figures, Labels
from redbeat.store.store import Store
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
#: after how many refusals in a row a right is missing, and not for a moment only
LASTING_REFUSALS = 3
#: how long ``stop`` waits
STOP_SECONDS = 2.0


@dataclass(frozen=True)
class View:
    """What was gathered of the whole schedule.

    Attributes:
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


class Gathering:
    """What one beat gathers of the schedule.

    Arguments:
        app: the Celery app.
        leadership: this beat's part in who leads.
        book: under which labels runs are counted.
        is_shown: somebody may look; otherwise figures are only taken, for what is kept in Redis.

    Attributes:
        book: under which labels runs are counted.
    """

    def __init__(self, app: Any, leadership: Leadership, book: LabelBook, *, is_shown: bool) -> None:
        self._app = app
        self._leadership = leadership
        self.book = book
        self._is_shown = is_shown
        self._teller = secrets.token_hex(8)
        self._store: Store | None = None  # the thread makes it: a client of a cluster connects at once
        self._thread = BackgroundThread("redbeat-metrics", self._run)
        self._said = Memory[str, str]()
        self._gone: frozenset[str] = frozenset()  # ids that the thread of the tick is to forget
        self._stored: Mapping[str, Labels] | None = None  # labels that the thread of the tick is to know
        self._next_read_at = 0.0
        self._view: View | None = None
        self._token, self._taken_at = "", -math.inf
        self._refusals = 0  # in a row
        self._restart()

    def lead(self, store: Store) -> None:
        """Know the labels that are stored: this beat has become leader."""
        try:
            self.book.load(Figures(store).read_labels())
        except RedBeatError as exc:  # a right that is missing, say
            logger.debug("beat: The labels of the metrics can't be read: %s", exc)

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
    def view(self) -> View | None:
        """What this beat may show of the schedule now; None: another beat does, or none yet."""
        view = self._view
        if view is None or time.monotonic() >= view.until:
            return None
        if self._leadership.lock_key is None:
            return view
        is_same = self._leadership.is_certain and self._leadership.fence.token == view.token
        return view if is_same else None

    # -- in the thread

    def _restart(self) -> None:
        """Begin anew, as if nothing had been gathered."""
        self._view = None
        self._totals: dict[str, int] | None = None
        self._labels: dict[str, Labels] = {}
        self._overdue, self._streaks = Overdue(), dict[str, int]()
        self._states: Mapping[str, int] | None = None
        self._states_at = 0.0
        self._count: _Count | None = None
        self._next_count_at = self._next_overdue_at = self._next_upkeep_at = 0.0

    def _run(self) -> None:
        while not self._thread.wait(LOOK_SECONDS if self._is_shown else SELDOM_SECONDS):
            self.gather()
        if self._store is not None:
            self._store.close()

    def gather(self) -> None:
        """Ask Redis once; what goes wrong is told, and tried again the next time."""
        try:
            self._gather()
            self._refusals = 0
        except StoreUnavailable as exc:
            logger.debug("beat: Metrics wait for Redis: %s", exc)
            self._totals = None  # an answer may have been lost
        except RedBeatError as exc:
            self._totals = None
            self._report(exc)
        except Exception as exc:  # noqa: BLE001 - if the thread ended, nothing would be shown any more
            self._totals = None
            self._report(exc, with_traceback=True)

    def _report(self, exc: Exception, *, with_traceback: bool = False) -> None:
        if isinstance(exc, StoreRefused):  # as a rule the tick is refused, too, and tells of it
            logger.debug("beat: Metrics of the schedule can't be gathered now: %s", exc)
            self._refusals += 1
            if self._refusals >= LASTING_REFUSALS and is_no_permission(exc.__cause__):
                Figures(self._connect()).note_right(exc.__cause__)
        elif self._said.is_news(type(exc).__name__, str(exc)):
            trace = exc if with_traceback else None
            logger.error("beat: Metrics of the schedule can't be gathered now: %s", exc, exc_info=trace)

    def _connect(self) -> Store:
        if self._store is None:
            self._store = Store.hasty(self._app)
        return self._store

    def _gather(self) -> None:
        leadership = self._leadership
        has_lock = leadership.lock_key is not None
        if has_lock and not leadership.is_certain:
            self._restart()
            return
        token = leadership.fence.token if has_lock else self._teller
        if not token:  # a lock that a program has made
            return
        store = self._connect()
        figures = Figures(store)
        unsaved = dict(self._take_unsaved())
        asked_at = time.monotonic()
        gap_seconds = min(GAP_SECONDS, leadership.timing.replaced_after_seconds)
        if token != self._token or asked_at > self._taken_at + gap_seconds:
            self._totals = None  # another beat may have taken some meanwhile
        try:
            taken = figures.take(token, unsaved, has_lock=has_lock)
        except BaseException:
            self.book.unsaved.extendleft(unsaved.items())
            raise
        self._labels |= unsaved
        if not has_lock and time.monotonic() >= self._next_read_at:  # others give and remove some, too
            self._next_read_at = time.monotonic() + UPKEEP_SECONDS
            self._stored = figures.read_labels()
        if taken is None:
            self._restart()
            return
        self._token, self._taken_at = token, asked_at
        self._add(figures, taken.figures)
        self._store_again(taken.unknown)
        if time.monotonic() >= self._next_upkeep_at:
            self._next_upkeep_at = time.monotonic() + UPKEEP_SECONDS
            self._keep_up(figures)
            if not self._is_shown:  # else it is done more often
                self._look_at_entries(store, taken.now)
        if self._is_shown:
            self._show(store, figures, taken.now)

    def _show(self, store: Store, figures: Figures, now: float) -> None:
        """Gather what isn't counted, and show all of it."""
        vitals = store.vitals()
        self._count_states(figures)
        if time.monotonic() >= self._next_overdue_at:
            self._next_overdue_at = time.monotonic() + OVERDUE_SECONDS
            self._look_at_entries(store, now)
        oldest_seconds = 0.0 if vitals.oldest is None else max(vitals.now - vitals.oldest, 0.0)
        self._view = View(
            self._token,
            self._taken_at + TELLER_MS / 1000,
            dict(self._totals or {}),
            dict(self._labels),
            vitals.due,
            oldest_seconds,
            self._states,
            self._states_at,
            self._overdue,
            self._streaks,
            vitals.stored,
            vitals.overdue,
        )

    def _look_at_entries(self, store: Store, now: float) -> None:
        """Find what is overdue, and what fails; what is kept of entries that are gone is forgotten so."""
        self._overdue, self._streaks = find_overdue(store, now), dict(streaks_of(store, MAX_STREAKS, now))

    def _take_unsaved(self) -> list[tuple[str, Labels]]:
        unsaved, found = self.book.unsaved, []
        while unsaved:
            found.append(unsaved.popleft())
        return found

    def _add(self, figures: Figures, taken: Mapping[str, int]) -> None:
        """Add what was taken to the totals, which are read when they aren't known."""
        if self._totals is None:
            self._labels = {"": ALL_OTHERS, **figures.read_labels()}
            self._totals = figures.read_totals()
            return
        for name, number in taken.items():
            self._totals[name] = self._totals.get(name, 0) + number
        if any(name.partition(":")[0] not in self._labels for name in taken):  # another beat has given them
            self._labels |= figures.read_labels()

    def _store_again(self, unknown: Iterable[str]) -> None:
        """Let labels be stored that aren't, though they were: Redis has lost its data."""
        known = self.book.known
        self.book.unsaved.extend((id_, known[id_]) for id_ in unknown if id_ in known)

    def _keep_up(self, figures: Figures) -> None:
        """Forget the labels of entries that are gone, and what was counted under labels that nobody knows."""
        totals = self._totals or {}
        named = [(id_, one) for id_, one in self._labels.items() if one.entry != OTHER]
        there = figures.are_there([one.entry for _, one in named])
        gone = {
            id_
            for (id_, one), is_there in zip(named, there, strict=True)
            if not is_there or not self.book.is_current(one)
        }
        left = self._labels.keys() - gone
        fields = [name for name in totals if name.partition(":")[0] not in left]
        figures.forget(gone, fields)
        for name in fields:
            del totals[name]
        for id_ in gone:
            del self._labels[id_]
        self._gone |= gone

    def _count_states(self, figures: Figures) -> None:
        """Go on counting the entries by their states; each step takes about a millisecond."""
        if self._count is None:
            if time.monotonic() < self._next_count_at:
                return
            self._count = _Count(time.monotonic())
        count = self._count
        for _ in range(SLICES):
            if count.others:
                some = {member: count.others[member] for member in list(count.others)[:OTHERS]}
                count.found.update(states_of(self._connect(), some))
                for member in some:
                    del count.others[member]
            elif not count.is_scanned:
                page = figures.count_states(count.cursor, SLICE)
                count.found.update({"scheduled": page.scheduled, "due": page.due})
                count.cursor, count.others, count.now = page.cursor, page.others, page.now
                count.is_scanned = page.cursor == "0"
            if count.is_scanned and not count.others:
                self._states = {state: count.found[state] for state in STATES}
                self._states_at, self._count = count.now, None
                took = time.monotonic() - count.begun_at
                self._next_count_at = time.monotonic() + max(REST * took, MIN_REST_SECONDS)
                return
