"""What one beat has of one part of the schedule: of a shard, or of all of it where there are none.

Owns its fetches and what is known of it: when its first entry is due, whether more is due, whether the code's
entries are stored. What it is sent with belongs to the beat. Invariant: nothing is sent of a part that this
beat doesn't lead.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial

from redbeat.errors import StoreUnavailable
from redbeat.leadership.elector import Leadership
from redbeat.scheduler.batch import Batch
from redbeat.scheduler.context import Context
from redbeat.scheduler.decisions import Decision, Send
from redbeat.scheduler.delayed import StoredMessages, plan_message
from redbeat.scheduler.prepared import LookAhead
from redbeat.scheduler.source import Fetcher
from redbeat.scheduler.supervision import Supervision
from redbeat.schedules.occurrences import Excluded
from redbeat.store.later import LaterStore
from redbeat.store.records import DueEntry, Fence, Fetched, Head, LockStatus
from redbeat.store.rounds import FetchAsked
from redbeat.store.store import Store
from redbeat.store.upcoming import Upcoming

#: how often a broker that is away is tried again
BROKER_RETRY_SECONDS = 1.0

#: a part that wasn't looked at for so long is fetched from: no wait for anything was that long
UNSEEN_SECONDS = 2.0
#: the same while entries move from one layout to another: they may be due soon after they have come
MOVING_SECONDS = 0.25

#: a part whose node didn't answer is left alone until the heartbeat has renewed its lock; where there is no
#: heartbeat, for so long
AWAY_SECONDS = 5.0

#: a fetch may have found no entries so long before it is noticed that the lock was gone with them
NOTICED_SECONDS = 1.0

#: fetches are asked for ahead while at most so many shards send in a tick: each takes a connection
MAX_AHEAD = 4


class Shard:
    """One part of the schedule, in one beat.

    Arguments:
        store: has that part.
        leadership: this beat's part in who leads it.
        context: what all shards of this beat share.
        deliver: delivers batches.
        apart: returns a context that keeps what goes wrong with a shard from the others.
        lease_ms: how long beats without a lock hide what they fetched from each other.

    Attributes:
        head_score: when its first entry is due, UNIX seconds; None: none is, or it isn't known.
        has_backlog: the last fetch has left entries due.
        has_statics: the code's entries were stored since this beat leads it.
        is_lock_retaken: the lock was gone, and ``take_lost`` has not found out yet if the entries were, too.
    """

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        context: Context,
        deliver: Callable[[Sequence[Batch]], None],
        apart: Callable[[Shard], AbstractContextManager[None]],
        lease_ms: int,
    ) -> None:
        self.store = store
        self.leadership = leadership
        self._context = context
        self._apart = apart
        self._leased_ms = lease_ms
        self._broker = context.broker
        self._figures = context.figures
        self._later = LaterStore.beside(store)
        self._messages = StoredMessages(self._later, context.suspects, self._begin_messages, deliver)
        lookahead_seconds = store.config.lookahead
        upcoming = Upcoming(store, lookahead_seconds) if lookahead_seconds else None
        self.look_ahead = LookAhead(upcoming, leadership, context)
        self._fetcher = Fetcher(store, context.suspects)
        self._supervision = Supervision(
            store, lambda: context.hooks.Entry, context.reports, store.config.run_lease
        )
        self.head_score: float | None = None
        self.has_backlog = False
        self.has_statics = False
        self._emptied_at: (
            float | None
        ) = -math.inf  # when the last entry had gone, monotonic; None: there are some
        self.is_lock_retaken = False
        self._trouble = ""
        self._away: StoreUnavailable | None = None
        self._away_at = 0.0  # since when its node hasn't answered, monotonic
        self._next_at = 0.0  # when to fetch next, monotonic
        self._seen_at = 0.0  # when it was fetched from, or looked at, last

    @property
    def fence(self) -> Fence:
        """What writes to this part are checked against."""
        return self.leadership.fence

    @property
    def _lease_ms(self) -> int:
        return 0 if self.leadership.lock_key else self._leased_ms

    # -- whose turn it is

    @property
    def is_due(self) -> bool:
        """Whether something of it is known to be due."""
        return (self.has_backlog or self.head_score is not None) and time.monotonic() >= self._next_at

    @property
    def wants_fetch(self) -> bool:
        """Whether it is time to fetch: something may be due, or nobody has looked for long."""
        now = time.monotonic()
        unseen_seconds = MOVING_SECONDS if self.store.config.layout.is_moving else UNSEEN_SECONDS
        return now >= self._next_at or now >= self._seen_at + unseen_seconds

    @property
    def fetched_at(self) -> float:
        """When it was fetched from last, monotonic."""
        return self._fetcher.fetched_at

    @property
    def seconds_left(self) -> float:
        """The seconds until the next fetch."""
        return max(self._next_at - time.monotonic(), 0.0)

    def note_woken(self) -> None:
        """Note that somebody has changed this part: something may be due."""
        self._next_at = 0.0

    def note_trouble(self, exc: Exception) -> None:
        """Note why nothing can be sent of it now; it is tried again after a pause."""
        now = time.monotonic()
        self._trouble, self.has_backlog = str(exc), False
        self._next_at, self._seen_at = now + self.leadership.timing.look_seconds, now

    def note_away(self, exc: StoreUnavailable) -> None:
        """Note that its node doesn't answer: it isn't asked for a while, as all other parts would wait."""
        self.note_trouble(exc)
        self._away, self._away_at = exc, time.monotonic()

    @property
    def node_name(self) -> str | None:
        """On which node of a cluster it is, as far as is known."""
        return self.store.node_of(self.store.keys)

    @property
    def away(self) -> StoreUnavailable | None:
        """The error of its node, which doesn't answer, so that it isn't asked; None: it is."""
        if self.leadership.silent is not None:
            return self.leadership.silent
        if self._away is None:
            return None
        renewed_at = self.leadership.renewed_at
        if renewed_at is None:
            return self._away if time.monotonic() < self._away_at + AWAY_SECONDS else None
        return self._away if renewed_at <= self._away_at else None

    @property
    def trouble(self) -> str:
        """What keeps it from being sent, while other shards are; '': nothing does."""
        away = self.away
        return self._trouble if away is None else str(away)

    # -- one batch

    @property
    def has_prepared(self) -> bool:
        """Whether the time of prepared runs has come; with a backlog they wait for what was due before."""
        return not self.has_backlog and self.look_ahead.is_due

    def begin_prepared(self) -> Batch:
        """Return a batch of prepared runs whose time has come."""
        fetched = Fetched(LockStatus.HELD, self.look_ahead.now, None, has_more=False, rows=[])
        return self._batch(fetched, prepared=self.look_ahead.take_due())

    def note_prepared(self, batch: Batch) -> bool:
        """Note that prepared runs were sent; return whether to go on."""
        self.look_ahead.note_next(batch.next_scores())
        return not (self._broker.is_away or batch.is_in_doubt)

    def _batch(self, fetched: Fetched, prepared: Sequence[Send] | None = None) -> Batch:
        return Batch(
            self.store,
            self.leadership,
            self.fence,
            fetched,
            self._context.planner.plan,
            partial(self._apart, self),
            is_leased=self._lease_ms > 0 and prepared is None,
            prepared=prepared,
            is_in_doubt=fetched.is_partial,
        )

    def fetch(self) -> Fetched:
        """Fetch due entries."""
        fetched = self._fetcher.fetch(self.fence, self._lease_ms)
        self._note_fetched(fetched)
        return fetched

    @property
    def fetches_alone(self) -> bool:
        """Whether its next fetch isn't asked for together with others: it is on its way."""
        return self._fetcher.is_alone

    def begin_fetch(self, max_entries: int) -> FetchAsked:
        """Return what is to be fetched, of so many entries at most; :meth:`note_fetch` takes the answer."""
        return self._fetcher.asked(self.fence, self._lease_ms, max_entries)

    def note_fetch(self, asked: FetchAsked, fetched: Fetched) -> None:
        """Note the answer to what was asked, as soon as it has come."""
        self._fetcher.note(fetched, asked)
        self._note_fetched(fetched)

    def note_retaken(self) -> None:
        """Note that the lock was gone and is taken back: what the code has may be gone, too."""
        self.has_statics, self.is_lock_retaken = False, True

    def note_taken(self) -> None:
        """Record that this beat leads now; another beat may have changed the entries of the code."""
        self.has_statics = False
        if self.leadership.is_data_missing:
            self.leadership.is_data_missing = False
            self._emptied_at, self.is_lock_retaken = None, True

    def take_lost(self, static_keys: Sequence[str]) -> bool:
        """Return True if the entries were gone with the lock.

        Arguments:
            static_keys: of some of the entries that come from the code.

        Raises StoreUnavailable, StoreRefused and StoreCorrupt; then the next call asks again.
        """
        emptied_at = self._emptied_at
        if emptied_at is None:
            had_entries = True
        elif emptied_at == -math.inf:  # nothing was fetched yet
            had_entries = bool(static_keys)
        else:  # entries that had gone before the lock were deleted
            had_entries = emptied_at >= self.leadership.retaken_at - NOTICED_SECONDS
        is_lost = had_entries and self.store.is_lost(static_keys)
        self.is_lock_retaken = False
        return is_lost

    def _note_fetched(self, fetched: Fetched) -> None:
        if fetched.rows or fetched.has_more or fetched.next_score is not None:
            self._emptied_at = None
        elif self._emptied_at is None and not fetched.is_ahead:
            self._emptied_at = time.monotonic()
        self._seen_at, self._away = time.monotonic(), None
        self._messages.note(fetched, self._fetcher.fetched_at)
        if not fetched.is_ahead:
            self.look_ahead.note_clock(fetched.now)
            self._context.clock.note(fetched.now)
            self._context.reports.note_clock(fetched.now)
        self._supervision.watch.note_answer(None if fetched.is_ahead else fetched.now)

    def begin(self, fetched: Fetched) -> Batch:
        """Return the batch of what was fetched; :meth:`note_sent` follows when it was delivered."""
        return self._batch(fetched)

    def note_sent(self, batch: Batch, *, batches: int = 1) -> float | None:
        """Note what became of a batch.

        Returns how long to wait then, 0 when more is due, and infinity as long as nothing is scheduled; None:
        fetch again at once, as this fetch may have missed what is due now.

        Arguments:
            batches: how many shards send one in this tick.
        """
        seconds = self._note_sent(batch, is_ahead_wanted=batches <= MAX_AHEAD)
        self._trouble = ""
        self._next_at = time.monotonic() + (seconds or 0.0)
        return seconds

    def _note_sent(self, batch: Batch, *, is_ahead_wanted: bool) -> float | None:
        fetched = batch.fetched
        self._fetcher.note_batch(batch)
        self.has_backlog = fetched.has_more or batch.is_cut
        if batch.is_cut:  # what is still due goes before what was asked for ahead
            self._fetcher.close()
        has_settled = self._supervision.settle(fetched, batch.fence)
        if fetched.rows:
            is_ahead_safe = batch.is_pushed and batch.is_from_templates
            self._fetcher.may_ask_ahead = is_ahead_safe and is_ahead_wanted
        if self._broker.is_away:
            return BROKER_RETRY_SECONDS
        next_scores = batch.next_scores()
        if batch.recorded:
            self._broker.note_well()
            self.look_ahead.note_next(next_scores)
        if batch.is_in_doubt:
            return self.leadership.timing.look_seconds
        if fetched.has_more or batch.is_cut or has_settled or self.store.has_retaken_lock:
            return 0
        if fetched.is_ahead:
            return None
        delay_seconds = self._seconds_to_next(fetched, next_scores.values())
        left_seconds = self._fetcher.seconds_to_left_behind()
        return delay_seconds if left_seconds is None else min(delay_seconds, left_seconds)

    def _seconds_to_next(self, fetched: Fetched, next_scores: Iterable[float]) -> float:
        scores = [*next_scores] if fetched.next_score is None else [*next_scores, fetched.next_score]
        self.head_score = min([score for score in scores if score >= 0], default=None)
        known = [at for at in (self.head_score, fetched.next_deadline) if at is not None]
        if not known:
            return math.inf
        elapsed = time.monotonic() - self._fetcher.fetched_at
        return max(min(known) - fetched.now - elapsed, 0)

    def _begin_messages(self, fetched: Fetched) -> Batch:
        batch = self._batch(fetched)
        batch.store, batch.plan = self._later, self._plan_message
        return batch

    def _plan_message(self, row: DueEntry, now: float, _calendars: Mapping[str, Excluded]) -> Decision:
        hooks = self._context.hooks
        return plan_message(hooks.Entry, hooks.app, row, now)

    def send_messages(self) -> float:
        """Send one batch of the stored messages that are due; return how long to wait, 0 when more are."""
        if self._messages.seconds_left == 0 and not self._broker.is_away:
            batch = self._messages.send(self.fence, self._lease_ms)
            self._figures.later += batch.deleted
            if self._broker.is_away:
                return BROKER_RETRY_SECONDS
            if batch.recorded:
                self._broker.note_well()
            if self.store.has_retaken_lock:
                return 0
        left = self._messages.seconds_left
        return math.inf if left is None else left

    # -- between two batches

    @property
    def wants_to_prepare(self) -> bool:
        """Whether runs that are due soon should be prepared now."""
        return self.look_ahead.is_wanted(self.head_score)

    def note_head(self, head: Head) -> bool:
        """Note what a look at this part has found; tell whether that ends the wait."""
        self._seen_at, self._away = time.monotonic(), None
        has_changed = head.score != self.head_score or head.later != self._messages.head_score
        self.look_ahead.note_clock(head.now)
        self._context.clock.note(head.now)
        self._supervision.watch.note_answer(head.now)
        if has_changed or head.is_due:  # is_due: the server's clock may have jumped
            self._next_at = 0.0
            return True
        return False

    def forget(self) -> None:
        """Forget what was prepared, and what was known: another beat leads."""
        self.look_ahead.forget()
        self.has_backlog, self.head_score, self._next_at, self._trouble = False, None, 0.0, ""
        self._away = None

    def close(self) -> None:
        """Wait for what is on its way, while the lock is held, and drop it."""
        self._fetcher.close()
