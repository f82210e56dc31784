"""State that a beat keeps per shard. An unsharded schedule is one shard.

Owns the fetches of a shard, and what is known of it: when its first entry is due, whether more is due,
whether the entries of the code are stored. The broker, the planner and the encoder belong to the beat
(``context.py``). Invariant: nothing is sent of a shard that this beat does not lead.

In a backlog the next batch is asked for while the one before it is still planned and sent. Invariant: what
was fetched ahead could be fetched now; what it has missed, an ordinary fetch finds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import partial

from redbeat.errors import RedBeatError, StoreUnavailable
from redbeat.layout import shard_of
from redbeat.leadership.leadership import Leadership
from redbeat.scheduler.batch import Batch
from redbeat.scheduler.context import Context
from redbeat.scheduler.decisions import Send
from redbeat.scheduler.delayed import plan_message
from redbeat.scheduler.prepared import LookAhead
from redbeat.scheduler.supervision import settle_deadlines
from redbeat.store.ahead import FetchAhead, fetch_ahead
from redbeat.store.records import Fetched, Head, LockStatus, Stored
from redbeat.store.store import Store

#: a silence of Redis that is shorter, or than a third of a lease, leaves workers time to renew; seconds
SILENCE_SECONDS = 3.0
#: by how much the server's clock may get ahead between two answers
JUMP_SECONDS = 1.0

#: seconds after which a shard is tried again whose node did not answer, if no heartbeat renews its lock
AWAY_SECONDS = 5.0

#: seconds before a lock is noticed to be gone in which a fetch may have found the schedule empty already
NOTICED_SECONDS = 1.0

#: fetches are asked for ahead while at most so many shards send in a tick: each takes a connection
MAX_AHEAD = 4

#: how soon stored messages are tried again where the broker cannot take all; seconds
SOON_SECONDS = 1.0

#: an answer that is read later than this is asked for again, seconds
FRESH_SECONDS = 1.0


class State(Enum):
    """What a beat can do with a shard."""

    #: this beat does not lead it
    STANDBY = "standby"
    #: due entries are fetched and sent
    READY = "ready"
    #: Redis refused the last step; the shard is tried again after a pause
    BLOCKED = "blocked"
    #: its node did not answer; the shard is left alone until the heartbeat has renewed its lock
    AWAY = "away"


class Watch:
    """Record since when a server answers, and its clock goes on: so long workers could renew their leases.

    Arguments:
        silence_seconds: it counts anew after a longer silence, and after a jump of the server's clock.
        clock: a monotonic clock.
    """

    def __init__(self, silence_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._silence_seconds = silence_seconds
        self._clock = clock
        self._since = 0.0
        self._answered_at = -math.inf
        self._ahead_seconds = 0.0

    def note_answer(self, server_now: float | None) -> None:
        """Record that it has just answered.

        Arguments:
            server_now: the time of its clock, UNIX seconds; None: that was read some time ago.
        """
        now = self._clock()
        ahead_seconds = self._ahead_seconds if server_now is None else server_now - now
        has_jumped = ahead_seconds - self._ahead_seconds > JUMP_SECONDS
        if now - self._answered_at > self._silence_seconds or has_jumped:
            self._since = now
        self._answered_at, self._ahead_seconds = now, ahead_seconds

    @property
    def seconds(self) -> float:
        """For how long it answers without such a silence, up to its last answer."""
        return max(self._answered_at - self._since, 0.0)


class Shard:
    """One shard of the schedule, in one beat.

    Arguments:
        store: has the shard.
        leadership: who leads it.
        context: what all shards of this beat share.
        fail: records an error as the outcome of this shard, or raises it if it ends the tick.

    Attributes:
        own_keys: keys of RedBeat's own that are not entries', and what others of them begin with.
        number: which shard it is; None: the schedule is not sharded.
        fail: records an error as the outcome of this shard, or raises it if it ends the tick.
        state: what this beat can do with it.
        problem: why it is blocked or away; it may have been so lately if it is ready.
        head_score: when its first entry is due, UNIX seconds; None: none is, or it isn't known.
        has_backlog: the last fetch has left entries due.
        has_statics: the code's entries were stored since this beat leads it.
        is_lock_retaken: the lock was gone, and ``take_lost`` has not found out yet if the entries were, too.
        next_at: when to fetch next, monotonic.
        seen_at: when Redis last said what is due in it, monotonic.
        fetched_at: when it was last fetched from, monotonic.
        ahead: the next batch, which was asked for ahead; None: it was not.
        messages_score: when its first stored message is to be sent, UNIX seconds; None: there is none.
        messages_at: the same, monotonic; inf: there is none.
        look_ahead: its prepared runs.
    """

    #: how long beats without a lock hide what they fetched from each other
    LEASE_MS = 30_000

    def __init__(
        self,
        store: Store,
        leadership: Leadership,
        context: Context,
        fail: Callable[[Shard, BaseException], None],
    ) -> None:
        self.store = store
        self.own_keys = store.own_keys
        self.number = store.config.layout.shard_of(store.keys)
        self.leadership = leadership
        self._context = context
        self.fail = partial(fail, self)
        self.look_ahead = LookAhead(leadership, context, self.find_misplaced)
        self._watch = Watch(max(store.config.run_lease / 3, SILENCE_SECONDS))
        self.state = State.STANDBY
        self.problem: RedBeatError | None = None
        self.head_score: float | None = None
        self.has_backlog = False
        self.has_statics = False
        self.is_lock_retaken = False
        self.next_at = self.seen_at = self.fetched_at = 0.0
        self.messages_score: float | None = None
        self.messages_at, self._messages_not_before = math.inf, 0.0
        self._away_at = 0.0  # monotonic
        #: when the last entry had gone, monotonic; None: there are some; -inf: nothing was fetched yet
        self._emptied_at: float | None = -math.inf
        self.ahead: FetchAhead | None = None
        # it pays after a batch from templates only; another sink would publish what has changed since
        self._may_ask_ahead = False

    # -- its state

    def block(self, problem: RedBeatError) -> None:
        """Record why nothing can be sent of it now; it is tried again after a pause."""
        now = time.monotonic()
        self.state, self.problem, self.has_backlog = State.BLOCKED, problem, False
        self.next_at, self.seen_at = now + self.leadership.timing.look_seconds, now

    def leave_alone(self, problem: StoreUnavailable) -> None:
        """Record that its node does not answer: all other shards would wait for it, too."""
        self.leadership.own.leave_alone()
        if self.leadership.is_leader:
            self.block(problem)
            self.state, self._away_at = State.AWAY, time.monotonic()

    def follow_node(self) -> None:
        """Update the state by what the heartbeat has found out about its node."""
        silent, away_at = self.leadership.unreachable, self._away_at
        if silent is not None:
            if self.state is not State.AWAY:
                self.leave_alone(silent)
        elif self.leadership.confirmed_at > away_at or time.monotonic() >= away_at + AWAY_SECONDS:
            self.state = State.BLOCKED

    @property
    def node_name(self) -> str | None:
        """The node of a cluster that it is on, as far as that is known."""
        return self.store.node_of(self.store.keys)

    def note_retaken(self) -> None:
        """Record that the lock was gone and is taken back: the entries of the code may be gone, too."""
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
        elif emptied_at == -math.inf:
            had_entries = bool(static_keys)
        else:  # entries that had gone before the lock were deleted
            had_entries = emptied_at >= self.store.retaken_lock_at - NOTICED_SECONDS
        is_lost = had_entries and self.store.is_lost(static_keys)
        self.is_lock_retaken = False
        return is_lost

    def forget(self) -> None:
        """Forget what was prepared, and what was known: another beat leads."""
        self.look_ahead.forget()
        self.state, self.problem = State.STANDBY, None
        self.has_backlog, self.head_score, self.next_at = False, None, 0.0

    def close(self) -> None:
        """Wait for what is on its way, while the lock is held, and drop it."""
        ahead, self.ahead = self.ahead, None
        if ahead is not None:
            ahead.close()

    # -- one batch

    def begin_ahead(self) -> Batch | None:
        """Return the batch that was asked for ahead; None: it is of no use, fetch again."""
        ahead, self.ahead = self.ahead, None
        if ahead is None:
            return None
        is_old = time.monotonic() > ahead.asked_at + FRESH_SECONDS  # its clock would be wrong
        if is_old or ahead.request.fence != self.leadership.fence:
            ahead.close()
            return None
        fetched = ahead.read()
        return None if fetched is None else self.begin(fetched)

    def begin(
        self, fetched: Fetched, prepared: Iterable[Send] | None = None, *, are_messages: bool = False
    ) -> Batch:
        """Return the batch of what was fetched, or of prepared runs; ``note_sent`` follows its delivery.

        What a fetch of entries says is recorded, and the entries after it are asked for if that pays.
        """
        context, hooks, now = self._context, self._context.hooks, time.monotonic()
        batch = Batch(
            self,
            self.store,
            self.leadership.fence,
            fetched,
            partial(plan_message, hooks.Entry, hooks.app) if are_messages else context.planner.plan,
            are_messages=are_messages,
            is_leased=prepared is None and not self.leadership.lock_key,
            prepared=prepared,
            is_in_doubt=fetched.is_partial,
        )
        if prepared is not None or are_messages:
            return batch
        self.seen_at = self.fetched_at = now
        if self._may_ask_ahead and fetched.has_more and fetched.rows:
            fence, size = self.leadership.fence, self.store.config.batch_size
            self.ahead = fetch_ahead(self.store, fence, size, fetched.rows)
        if fetched.rows or fetched.has_more or fetched.next_score is not None:
            self._emptied_at = None
        elif self._emptied_at is None and not fetched.is_ahead:
            self._emptied_at = now
        if not fetched.is_ahead:
            self.look_ahead.clock.offset = context.clock.offset = fetched.now - now
            context.reports.ahead_seconds = fetched.now - time.time()
        if fetched.other_score is not None or self.messages_score is not None:
            self._note_messages(fetched.other_score)
        self._watch.note_answer(None if fetched.is_ahead else fetched.now)
        return batch

    def note_sent(self, batch: Batch, *, batches: int = 1) -> None:
        """Record the outcomes of a batch, and when to fetch next.

        Arguments:
            batches: how many shards send one in this tick.
        """
        if batch.are_messages:
            self._note_messages_sent(batch)
            return
        context, fetched, now = self._context, batch.fetched, time.monotonic()
        self.has_backlog = fetched.has_more or batch.is_cut
        if batch.is_cut:  # what is still due goes before what was asked for ahead
            self.close()
        has_settled = bool(fetched.deadlines) and settle_deadlines(
            self.store, context.reports, context.hooks.Entry, fetched, batch.fence, self._watch.seconds
        )
        if fetched.rows:
            is_safe = batch.is_pushed and batch.is_from_templates and not batch.is_leased
            self._may_ask_ahead = is_safe and batches <= MAX_AHEAD
        self.state, self.problem, self.next_at = State.READY, None, now
        if context.broker.is_away:
            return
        next_scores = next_scores_of(batch)
        if batch.recorded:
            if context.broker.is_reported_away:
                context.broker.note_well()
            if self.look_ahead.read_until:
                self.look_ahead.note_next(next_scores)
        if batch.is_in_doubt:
            self.next_at = now + self.leadership.timing.look_seconds
        # only an ordinary fetch says that nothing more is due
        elif not (self.has_backlog or has_settled or self.store.has_retaken_lock or fetched.is_ahead):
            scores = [*next_scores.values()]
            if fetched.next_score is not None:
                scores.append(fetched.next_score)
            self.head_score, self.next_at = min(scores, default=None), math.inf
            for score in (self.head_score, fetched.next_deadline):
                if score is not None:
                    self.next_at = min(self.next_at, score - self.look_ahead.clock.offset)

    def find_misplaced(self, rows: Sequence[Stored]) -> Sequence[Stored]:
        """Return the rows that belong to another shard; none while entries are being moved."""
        layout, found = self.store.config.layout, list[Stored]()
        if layout.shards is None or layout.is_moving:
            return found
        skipped = len((self.store.part or self.store.keys).prefix)
        for row in rows:
            if shard_of(row.key[skipped:], layout.shards) != self.number:
                found.append(row)
        return found

    # -- prepared runs and stored messages

    def begin_prepared(self) -> Batch:
        """Return a batch of prepared runs whose time has come."""
        fetched = Fetched(LockStatus.HELD, self.look_ahead.clock.now, None, has_more=False, rows=[])
        return self.begin(fetched, self.look_ahead.take_due())

    def note_prepared(self, batch: Batch) -> bool:
        """Record that prepared runs were sent; return whether to go on."""
        self.look_ahead.note_next(next_scores_of(batch))
        return not (self._context.broker.is_away or batch.is_in_doubt)

    def _note_messages_sent(self, batch: Batch) -> None:
        """Record the outcomes of a batch of stored messages, and when the next message is due."""
        broker, fetched = self._context.broker, batch.fetched
        if batch.recorded and not broker.is_away:
            broker.note_well()
        if self.store.has_retaken_lock:
            self.next_at = 0.0
        left = [float(one.new_score) for one in batch.recorded if isinstance(one.new_score, str)]
        if fetched.next_score is not None:
            left.append(fetched.next_score)
        if fetched.has_more or batch.is_cut:
            left.append(fetched.now)
        if batch.is_in_doubt:
            self._messages_not_before = time.monotonic() + SOON_SECONDS
        self._note_messages(min(left, default=None))

    def _note_messages(self, score: float | None) -> None:
        """Record when the first stored message is to be sent."""
        self.messages_score, self.messages_at = score, math.inf
        if score is not None:
            self.messages_at = max(score - self.look_ahead.clock.offset, self._messages_not_before)

    def note_head(self, head: Head) -> bool:
        """Record what a look at this shard has found; return True if that ends the wait."""
        self.seen_at = now = time.monotonic()
        has_changed = head.score != self.head_score or head.later != self.messages_score
        self.look_ahead.clock.offset = self._context.clock.offset = head.now - now
        self._watch.note_answer(head.now)
        if has_changed or head.is_due:  # is_due: the server's clock may have jumped
            self.next_at = 0.0
            return True
        if head.score is not None:  # the first fetch may have taken long, and its clock was late by that
            self.next_at = min(self.next_at, head.score - self.look_ahead.clock.offset)
        return False


def next_scores_of(batch: Batch) -> dict[str, float]:
    """Return when recorded entries that stay in the schedule are due next, by key, UNIX seconds."""
    found = {}
    for commit in batch.recorded:
        if isinstance(commit.new_score, str) and (score := float(commit.new_score)) >= 0:
            found[commit.due_entry.key] = score
    return found
