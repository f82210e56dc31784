"""The shards of one beat: which there are, which of them it leads, and whose turn it is.

There is always at least one. A tick sends one batch of each shard that has something due, the one that has
waited longest first. What several shards are asked goes out together. What goes wrong with one of several
shards is its outcome, a :class:`~redbeat.scheduler.shard.State`, and ends the tick only if none is left.
Invariant: a shard that is in the new layout, too, keeps its lock, its fetches and its prepared runs when the
layout changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import TypeVar

from redbeat.config.config import RedBeatConfig
from redbeat.config.timing import Timing
from redbeat.errors import LayoutChanged, LockLost, RedBeatError, StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.keys import Keys
from redbeat.layout import Layout, ShardedKeys
from redbeat.leadership.election import Election
from redbeat.leadership.leadership import Leadership
from redbeat.log.logger import logger
from redbeat.scheduler.batch import Batch
from redbeat.scheduler.context import Context
from redbeat.scheduler.shard import Shard, State
from redbeat.store.executor import run_all
from redbeat.store.locks import renew_locks
from redbeat.store.records import Fetched
from redbeat.store.schedule import Fetch, fetch_all, read_head
from redbeat.store.store import Store

Item = TypeVar("Item")

#: how many entries are fetched together at most, as all of them are held in memory
ROUND_ENTRIES = 5_000

#: so many entries of the code show whether Redis has lost its data
SAMPLED_STATICS = 100

#: how many entries are fetched at least of a shard of which nothing is known to be due
FEW_ENTRIES = 5

#: seconds after which a shard is fetched from that was not looked at: no wait for anything was that long
UNSEEN_SECONDS = 2.0
#: the same while entries move from one layout to another: they may be due soon after they have come
MOVING_SECONDS = 0.25


class Shards:
    """The shards of one beat.

    Arguments:
        context: what they share.
        lock_key: that of an unsharded schedule; None: no lock is configured.
        timing: how long each lock lives, and what follows from that.

    Attributes:
        election: which of them this beat leads.
        layout: where entries are, as the shards were formed by it; None: they were not yet.
        is_divided: there are several shards.
        is_moving: entries are on their way from where they were before.
        led: the shards that this beat leads, as of the last check or error.
        reached: those of them whose nodes answer, as far as is known.
        troubles: the errors of shards in this tick, while others went on.
        has_news: the last check found a lock that was taken back, or a shard without the entries of the code.
    """

    def __init__(
        self,
        context: Context,
        lock_key: str | None,
        timing: Timing,
    ) -> None:
        self._context = context
        self._config: RedBeatConfig = context.store.config
        self.election = Election(context.store, lock_key, timing)
        self._timing = timing
        self._hasty: Store | None = None  # the whole schedule, with a client that gives up soon
        self.layout: Layout | None = None
        self._shards: dict[str, Shard] = {}  # by prefix
        self.led: list[Shard] = []
        self.reached: list[Shard] = []
        self.troubles: list[RedBeatError] = []
        self.has_news = self.is_divided = self.is_moving = False
        self._is_hasty = False
        self.form()

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards.values())

    @property
    def first(self) -> Shard:
        """The first one: of an unsharded schedule the only one."""
        return next(iter(self))

    # -- which there are

    def form(self) -> bool:
        """Have a shard for each part of the schedule as it is divided now; return True if that changed."""
        layout = self._config.layout
        if layout is self.layout:
            return False
        before = self._shards
        gone = before.keys() - {keys.prefix for keys in layout.parts}
        for prefix in gone:
            before[prefix].close()
        kept = {prefix: shard for prefix, shard in before.items() if prefix not in gone}
        self.election.set_parts(
            kept[keys.prefix].store if keys.prefix in kept else _store_of(self._context.store, keys)
            for keys in layout.parts
        )
        self._shards = {
            one.keys.prefix: kept.get(one.keys.prefix) or Shard(one.store, one, self._context, self.fail)
            for one in self.election.leaderships
        }
        self.is_divided = self.election.is_divided
        self._update()
        self.layout, self.is_moving = layout, layout.is_moving
        return True

    def set_timeouts(self) -> None:
        """Let what ticks ask wait for a node only as long as shards on other nodes can do without this beat.

        Where there is one server, or one shard, Redis is waited for as the settings say.
        """
        is_hasty = self.is_divided and self._config.is_cluster
        if is_hasty == self._is_hasty:
            return
        if is_hasty and self._hasty is None:
            try:
                self._hasty = Store.hasty(self._config.app, self._timing.renewal_seconds / 2)
            except StoreUnavailable:  # a cluster's client connects at once: no node can be reached
                return
        chosen = self._hasty if is_hasty and self._hasty is not None else Store(self._config.app)
        for one in (self._context.store, self.election.store, *(shard.store for shard in self)):
            one.client = chosen.client
        self._is_hasty = is_hasty

    def home_of(self, name: str) -> Shard:
        """Return the shard that the entry called ``name`` belongs to.

        If the schedule has just been divided otherwise, that may be one which this beat doesn't have yet.
        Then it is the first one, whose store writes each entry to where that belongs.
        """
        keys = self._config.keys
        if not isinstance(keys, ShardedKeys):
            return self.first
        return self._shards.get(keys.home(str(name)).prefix, self.first)

    def by_home(self, entries: Mapping[str, Item]) -> Iterable[tuple[Shard, Mapping[str, Item]]]:
        """Return ``entries`` by where they belong; their keys are their names."""
        if not self.is_divided:
            return [(self.first, entries)]
        found: dict[Shard, dict[str, Item]] = {}
        for name, entry in entries.items():
            found.setdefault(self.home_of(name), {})[name] = entry
        return found.items()

    # -- which of them this beat leads, and what it can do with them

    def _update(self) -> None:
        """Update the shards' states, and which of them are led and reached."""
        self.led, self.reached = [], []
        for shard in self._shards.values():
            if not shard.leadership.is_leader:
                if shard.state is not State.STANDBY:
                    shard.forget()
                continue
            if shard.state is State.STANDBY:
                shard.state = State.READY
            self.led.append(shard)
            if shard.state is not State.AWAY:
                self.reached.append(shard)

    def check(self) -> None:
        """Find out what has become of the locks and of the nodes since the last check.

        Raises:
            LockLost: another beat leads an unsharded schedule.
        """
        for leadership in self.election.check():
            self._of(leadership).note_retaken()
        has_changed = False
        for shard in self._shards.values():
            is_standby = shard.state is State.STANDBY
            is_silent = shard.state is State.AWAY or shard.leadership.unreachable is not None
            if is_silent and not is_standby:
                shard.follow_node()
            has_changed = has_changed or is_silent or shard.leadership.is_leader is is_standby
        if has_changed:
            self._update()
        self.has_news = False
        for shard in self.reached:
            self.has_news = self.has_news or shard.is_lock_retaken or not shard.has_statics

    def stand(self) -> list[Shard]:
        """Take the locks that this beat is to lead; return the shards that it leads from now on."""
        taken = [self._of(leadership) for leadership in self.election.look()]
        self._update()
        return taken

    def _of(self, leadership: Leadership) -> Shard:
        return self._shards[leadership.keys.prefix]

    def fail(self, shard: Shard, error: BaseException) -> None:
        """Record an error as the outcome of one of several shards; the others go on.

        Raises:
            BaseException: the error, if it is that of the only shard, or concerns all of them.
        """
        is_known = isinstance(error, (LockLost, StoreRefused, StoreCorrupt)) or (
            isinstance(error, StoreUnavailable) and self._config.is_cluster
        )
        if not self.is_divided or not is_known:
            raise error
        if isinstance(error, LockLost):
            self.election.lose(error)
        elif isinstance(error, StoreUnavailable):
            self.troubles.append(error)
            node = shard.node_name
            for one in self:  # those on the same node aren't to wait for it one after the other
                if one is shard or (node is not None and one.node_name == node):
                    one.leave_alone(error)
        elif isinstance(error, RedBeatError):
            self.troubles.append(error)
            shard.block(error)
        self._update()

    def raise_trouble(self, *, is_waiting: bool) -> None:
        """Raise what has gone wrong with shards while others went on, if the beat can't go on by itself.

        Arguments:
            is_waiting: the ticks wait; else their caller wants to know in any case.
        """
        troubles, self.troubles = self.troubles, []
        if not troubles and not self.reached:
            troubles = [shard.problem for shard in self.led if shard.problem is not None]
        changes = [exc for exc in troubles if isinstance(exc, LayoutChanged)]
        is_any_ready = any(shard.state is State.READY for shard in self.led)
        if changes or (troubles and not (is_waiting and is_any_ready)):
            raise [*changes, *troubles][0]

    def reaches_base(self) -> bool:
        """Return True if the node of what all shards share answers, as far as is known."""
        away = [shard for shard in self.led if shard.state is State.AWAY]
        if not away:
            return True
        base = away[0].store.node_of(self._config.base_keys)
        return base not in {shard.node_name for shard in away}

    @property
    def leads_first(self) -> bool:
        """Whether this beat leads the first shard, and so does what one beat is to do for all of them."""
        first = self._config.layout.parts[0]
        return any(shard.store.keys.is_part(first) for shard in self.led)

    def take_lost(self, read_statics: Callable[[], Iterable[str]]) -> list[Shard]:
        """Return the shards whose data Redis has lost since the last call.

        Arguments:
            read_statics: returns the names of the entries that come from the code.
        """
        suspects = [shard for shard in self.led if shard.is_lock_retaken]
        statics, lost = read_statics() if suspects else (), list[Shard]()
        for shard in suspects:
            names = (name for name in statics if self.home_of(name) is shard)
            keys = [shard.store.keys.entry(name) for name in islice(names, SAMPLED_STATICS)]
            try:
                lost += [shard] if shard.take_lost(keys) else []
            except RedBeatError as exc:
                self.fail(shard, exc)
        return lost

    def hand_over(self) -> None:
        """Release the shards that another beat is to lead; call it when no batch is on its way."""
        if self.election.hand_over(lambda leadership: self._of(leadership).close()):
            self._update()

    # -- whose turn it is

    def take_due(self, *, is_waiting: bool) -> Iterator[Sequence[Batch]]:
        """Yield the batches that a tick delivers, of several shards at a time.

        First come prepared runs, as long as some are due; with a backlog they wait for what was due before.
        Then comes one batch of due entries of each shard, and one of its stored messages, each fetched in one
        round trip per node. Their outcomes are recorded when the caller asks for more.

        Arguments:
            is_waiting: the ticks wait, and look at all shards meanwhile; else all are fetched from where
                nothing is known to be due.
        """
        is_well = True
        while is_well and (batches := self._take_prepared()):
            yield batches
            is_well = self._note_prepared(batches)
        if is_well:
            batches = self._fetch(self._turns(is_waiting=is_waiting))
            if self.election.lock_key is not None:
                logger.debug("beat: Extending lock...")
            yield batches
            self._note_sent(batches)
        now, turns = time.monotonic(), list[tuple[Shard, int]]()
        for shard in self.reached:
            if shard.messages_at <= now:
                turns.append((shard, self._config.batch_size))
        if turns and not self._context.broker.is_away:
            batches = self._fetch(turns, are_messages=True)
            yield batches
            self._note_sent(batches)

    def _take_prepared(self) -> list[Batch]:
        """Return batches of prepared runs whose time has come."""
        now, batches = time.monotonic(), list[Batch]()
        for shard in self.reached:
            look_ahead, is_ready = shard.look_ahead, shard.state is State.READY and not shard.has_backlog
            if is_ready and look_ahead.first_score <= now + look_ahead.clock.offset:
                batches.append(shard.begin_prepared())
        return batches

    def _note_prepared(self, batches: Sequence[Batch]) -> bool:
        """Record that prepared runs were sent; return True if more may be sent now."""
        is_well = True
        for batch in batches:
            if not batch.is_out:
                is_well = batch.shard.note_prepared(batch) and is_well
        if not is_well:
            for shard in self.reached:
                shard.next_at = max(shard.next_at, time.monotonic() + self.election.timing.look_seconds)
        return is_well

    def _fetch(self, turns: Sequence[tuple[Shard, int]], *, are_messages: bool = False) -> list[Batch]:
        """Fetch from shards, so many entries of each at most; return their batches."""
        batches, asked, wanted = list[Batch](), list[Shard](), list[Fetch]()
        for shard, size in turns:
            try:
                batch = shard.begin_ahead() if shard.ahead is not None and not are_messages else None
            except RedBeatError as exc:
                self.fail(shard, exc)
                continue
            if batch is not None:
                batches.append(batch)
                continue
            lease_ms = 0 if shard.leadership.lock_key else shard.LEASE_MS
            fence = shard.leadership.fence
            wanted.append(Fetch(shard.store, fence, size, lease_ms, are_messages=are_messages))
            asked.append(shard)
        requests = fetch_all(wanted)
        run_all(requests)
        for shard, request in zip(asked, requests, strict=True):
            if isinstance(request.outcome, BaseException):
                self.fail(shard, request.outcome)
        for shard, request in zip(asked, requests, strict=True):
            # of a node that is away since then everything stays due
            if isinstance(request.outcome, Fetched) and shard.state is not State.AWAY:
                batches.append(shard.begin(request.outcome, are_messages=are_messages))
        return batches

    def _note_sent(self, batches: Sequence[Batch]) -> None:
        """Record the outcomes of batches."""
        for batch in batches:
            if not batch.is_out:
                try:
                    batch.shard.note_sent(batch, batches=len(batches))
                except RedBeatError as exc:
                    self.fail(batch.shard, exc)

    def _turns(self, *, is_waiting: bool) -> list[tuple[Shard, int]]:
        """Return which shards to fetch from now, and how many entries of each at most."""
        size = self._config.batch_size
        if not self.is_divided:
            return [*zip(self.led, repeat(size), strict=False)]
        now, due, others = time.monotonic(), list[Shard](), list[Shard]()
        unseen_seconds = MOVING_SECONDS if self.is_moving else UNSEEN_SECONDS
        for shard in self.reached:
            if shard.next_at <= now and (shard.has_backlog or shard.head_score is not None):
                due.append(shard)
            else:
                others.append(shard)
        due.sort(key=lambda shard: shard.fetched_at)
        if due or is_waiting:
            others = [one for one in others if one.next_at <= now or one.seen_at <= now - unseen_seconds]
        room = ROUND_ENTRIES // 2 if others else ROUND_ENTRIES
        few = min(max(room // max(len(others), 1), FEW_ENTRIES), size)
        return [(shard, size) for shard in due[: max(room // size, 1)]] + [(shard, few) for shard in others]

    def seconds_to_next(self) -> float:
        """Return the seconds until a shard has something to do; 0: one has already, or none is led."""
        now = time.monotonic()
        next_at = math.inf if self.reached else now
        if len(self.reached) < len(self.led):
            next_at = now + self.election.timing.look_seconds
        for shard in self.reached:
            next_at = min(next_at, shard.next_at, shard.messages_at)
        return max(next_at - now, 0.0)

    def renew_locks(self) -> None:
        """Renew the locks."""
        led = self.reached
        locks = [(shard.store, shard.leadership.fence) for shard in led]
        obstacle = self.election.heartbeat.find_obstacle()
        errors = renew_locks(self.election.store, locks, obstacle=obstacle)
        for shard, error in zip(led, errors, strict=True):
            if error is not None:
                self.fail(shard, error)

    # -- while they wait

    def count_prepared(self) -> int:
        """Return how many runs are prepared and wait for their time; for any thread."""
        return sum(len(shard.look_ahead) for shard in list(self))

    @property
    def has_locks(self) -> bool:
        """Whether this beat holds a lock."""
        return any(shard.leadership.lock for shard in self.led)

    def note_woken(self, channels: Collection[str]) -> None:
        """Record that a change was announced on these channels: something may be due."""
        self.election.note_wake()
        for shard in self.led:
            if shard.store.keys.wake in channels:
                shard.next_at = 0.0

    def prepare(self) -> bool:
        """Prepare some runs of one shard that are due soon; return True if there was anything to do."""
        wanting = [shard.look_ahead for shard in self.reached if shard.look_ahead.is_wanted(shard.head_score)]
        if wanting:
            min(wanting, key=lambda look_ahead: look_ahead.next_at).prepare()
        return bool(wanting)

    def look(self) -> bool:
        """Look at the led shards, in one round trip per node; return True if an entry is due."""
        is_due, led = False, self.reached
        requests = [read_head(shard.store) for shard in led]
        run_all(requests)
        for shard, request in zip(led, requests, strict=True):
            try:
                is_due = shard.note_head(request.answer()) or is_due
            except RedBeatError as exc:
                self.fail(shard, exc)
        return is_due

    def close(self) -> None:
        """Wait for what is on its way, and release all locks; Redis isn't waited for long."""
        for shard in self:
            shard.has_statics = False
            shard.close()
        self.election.resign()
        self._update()
        if self._hasty is not None:
            self._hasty.close()


def _store_of(store: Store, keys: Keys) -> Store:
    """Return a store of one part."""
    found = store.of_part(keys)
    found.progress = store.progress
    return found
