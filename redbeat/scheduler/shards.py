"""The parts of the schedule of one beat: which there are, which of them it leads, and whose turn it is.

A tick sends one batch of each part that has something due, the one that has waited longest first. What
several parts are asked goes out together. Invariant: a part that is in the new layout, too, keeps what this
beat has of it when the layout changes: its lock, its fetches, and what is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import TypeVar

from redbeat.config.config import RedBeatConfig
from redbeat.config.timing import Timing
from redbeat.errors import LayoutChanged, LockLost, RedBeatError, StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.keys import Keys
from redbeat.layout import Layout, ShardedKeys
from redbeat.leadership.elector import Leadership
from redbeat.leadership.shares import Shares
from redbeat.scheduler.batch import Batch
from redbeat.scheduler.context import Context
from redbeat.scheduler.prepared import LookAhead
from redbeat.scheduler.shard import Shard
from redbeat.store.locks import Held, Locks
from redbeat.store.parts import Part
from redbeat.store.records import Fetched
from redbeat.store.rounds import fetch_together, look_together
from redbeat.store.store import Store

Item = TypeVar("Item")

#: how many entries are fetched together at most, as all of them are held in memory
ROUND_ENTRIES = 5_000

#: in how many parts it is looked at a time what is due soon: a slice is shared among them
PREPARED_TOGETHER = 4

#: so many entries of the code show whether Redis has lost its data
SAMPLED_STATICS = 100

#: how many entries are fetched at least of a part of which nothing is known to be due
FEW_ENTRIES = 5


class Shards:
    """The parts of the schedule of one beat.

    Arguments:
        store: the whole schedule.
        lock_key: that of a schedule that isn't divided; None: no lock is configured.
        timing: how long each lock lives, and what follows from that.

    Attributes:
        shares: what this beat leads.
    """

    def __init__(self, store: Store, lock_key: str | None, timing: Timing) -> None:
        self._config: RedBeatConfig = store.config
        self.shares = Shares(store, lock_key, timing)
        self._timing = timing
        self._locks = Locks(store)
        self._hasty: Store | None = None  # the whole schedule, with a client that gives up soon
        self._layout: Layout | None = None
        self._shards: dict[str, Shard] = {}  # by prefix
        self._led: list[Shard] = []
        self._troubles: list[RedBeatError] = []
        self._is_hasty = False

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards.values())

    def __len__(self) -> int:
        return len(self._shards)

    @property
    def first(self) -> Shard:
        """The first one: of a schedule that isn't divided the only one."""
        return next(iter(self))

    @property
    def is_divided(self) -> bool:
        """Whether the schedule has several parts."""
        return len(self._shards) > 1

    # -- which there are

    def form(
        self,
        store: Store,
        context: Context,
        deliver: Callable[[Sequence[Batch]], None],
        lease_ms: int,
    ) -> bool:
        """Have a shard for each part of the schedule as it is divided now; tell whether that has changed.

        Arguments:
            store: of any part of the schedule, or of all of it; the part that it is about works with it.
            context: what all shards of this beat share.
            deliver: delivers batches.
            lease_ms: how long beats without a lock hide what they fetched from each other.
        """
        if not self.is_outdated:
            return False
        layout = self._config.layout
        before = self._shards
        gone = before.keys() - {keys.prefix for keys in layout.parts}
        for prefix in gone:
            before[prefix].close()
        kept = {prefix: shard for prefix, shard in before.items() if prefix not in gone}
        self.shares.set_parts(
            kept[keys.prefix].store if keys.prefix in kept else _store_of(store, keys)
            for keys in layout.parts
        )
        self._shards = {
            one.keys.prefix: kept.get(one.keys.prefix)
            or Shard(one.store, one, context, deliver, self.apart, lease_ms)
            for one in self.shares.leaderships
        }
        self._led = [shard for shard in self if shard.leadership.is_leader]
        self._layout = layout
        return True

    def choose_patience(self, store: Store) -> None:
        """Let what ticks ask wait for a node only as long as parts on other nodes can do without this beat.

        Where there is one server, or one part, Redis is waited for as the settings say.

        Arguments:
            store: what a tick asks with, besides the parts' own.
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
        for one in (store, *(shard.store for shard in self)):
            one.share_client(chosen)
        self._is_hasty = is_hasty

    @property
    def is_outdated(self) -> bool:
        """Whether the schedule is known to be divided otherwise by now."""
        return self._config.layout != self._layout

    def home_of(self, name: str) -> Shard:
        """Return the one that the entry called ``name`` belongs into.

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

    @property
    def is_moving(self) -> bool:
        """Whether entries are on their way from where they were before."""
        return self._config.layout.is_moving

    # -- which of them this beat leads

    @property
    def led(self) -> list[Shard]:
        """Those that this beat leads, by what the last look has found."""
        return self._led

    @property
    def reached(self) -> list[Shard]:
        """Those of them whose nodes answer, as far as is known."""
        return [shard for shard in self._led if not shard.away]

    def reaches_base(self) -> bool:
        """Tell whether the node of what all parts share answers, as far as is known."""
        away = [shard for shard in self._led if shard.away]
        if not away:
            return True
        base = away[0].store.node_of(self._config.base_keys)
        return base not in {shard.node_name for shard in away}

    @property
    def leads_first(self) -> bool:
        """Whether this beat leads the first part, and so does what one beat is to do for all of them."""
        first = self._config.layout.parts[0]
        return any(shard.store.keys.is_part(first) for shard in self._led)

    def check_locks(self) -> None:
        """Find out whether a lock is lost, or was gone and is taken back.

        Raises:
            LockLost: another beat leads a schedule that isn't divided.
        """
        for leadership in self.shares.check():
            self._of(leadership).note_retaken()

    def take_lost(self, read_statics: Callable[[], Iterable[str]]) -> list[Shard]:
        """Return the shards whose data Redis has lost since the last call.

        Arguments:
            read_statics: returns the names of the entries that come from the code.
        """
        suspects = [shard for shard in self._led if shard.is_lock_retaken]
        statics, lost = read_statics() if suspects else (), list[Shard]()
        for shard in suspects:
            names = (name for name in statics if self.home_of(name) is shard)
            keys = [shard.store.keys.entry(name) for name in islice(names, SAMPLED_STATICS)]
            with self.apart(shard):
                lost += [shard] if shard.take_lost(keys) else []
        return lost

    def look_at_locks(self) -> list[Shard]:
        """Find out which ones this beat leads; return those that it leads from now on."""
        taken = [self._of(leadership) for leadership in self.shares.look()]
        self._note_led()
        return taken

    def _note_led(self) -> None:
        before, self._led = self._led, [shard for shard in self if shard.leadership.is_leader]
        if before == self._led:
            return
        for shard in before:
            if not shard.leadership.is_leader:
                shard.forget()

    def _of(self, leadership: Leadership) -> Shard:
        return self._shards[leadership.keys.prefix]

    def hand_over(self) -> None:
        """Let go of those that another beat is to lead; called when no batch is on its way."""
        leaving = [self._of(leadership) for leadership in self.shares.leaving]
        if not leaving:
            return
        for shard in leaving:
            shard.close()
        self.shares.hand_over()
        self._note_led()

    @contextmanager
    def apart(self, shard: Shard) -> Iterator[None]:
        """Within this block what goes wrong with one part of several keeps none of the others from going on.

        Raises:
            LockLost, StoreRefused, StoreCorrupt: of the only part, as they come.
            StoreUnavailable: where all parts are on one server.
        """
        try:
            yield
        except LockLost as exc:
            self.shares.lose(exc)  # raises it if the schedule isn't divided
            self._note_led()
        except (StoreRefused, StoreCorrupt) as exc:
            if not self.is_divided:
                raise
            self._note_trouble(shard, exc)
        except StoreUnavailable as exc:
            if not (self.is_divided and self._config.is_cluster):
                raise
            self._note_trouble(shard, exc)

    def _note_trouble(self, shard: Shard, exc: RedBeatError) -> None:
        self._troubles.append(exc)
        if not (isinstance(exc, StoreUnavailable) and self._config.is_cluster):
            shard.note_trouble(exc)
            return
        node = shard.node_name
        if node is not None:
            self.shares.note_silent(node)
        for one in self._led:  # those on the same node aren't to wait for it one after the other
            if one is shard or (node is not None and one.node_name == node):
                one.note_away(exc)

    def raise_trouble(self, *, is_waiting: bool) -> None:
        """Raise what has gone wrong with parts while others went on, if the beat can't go on by itself.

        Arguments:
            is_waiting: the ticks wait; else their caller wants to know in any case.
        """
        troubles, self._troubles = self._troubles, []
        if not troubles and self._led and not self.reached:
            troubles = [away for shard in self._led if (away := shard.away) is not None]
        changes = [exc for exc in troubles if isinstance(exc, LayoutChanged)]
        if changes or (troubles and not (is_waiting and any(not shard.trouble for shard in self._led))):
            raise [*changes, *troubles][0]

    @property
    def troubled(self) -> list[Shard]:
        """The parts of which nothing could be sent lately, though others are."""
        return [shard for shard in self._led if shard.trouble]

    # -- whose turn it is

    def fetch(self, *, is_waiting: bool) -> list[tuple[Shard, Fetched]]:
        """Fetch for those whose turn it is, in one round trip a node.

        Arguments:
            is_waiting: the ticks wait, and look at all parts meanwhile; else all are fetched from where
                nothing is known to be due.
        """
        if not self.is_divided:
            return [(shard, shard.fetch()) for shard in self._led]
        size = self._config.batch_size
        led = self.reached
        due = sorted((shard for shard in led if shard.is_due), key=lambda shard: shard.fetched_at)
        is_any = due or is_waiting
        others = [one for one in led if not one.is_due and (one.wants_fetch or not is_any)]
        room = ROUND_ENTRIES // 2 if others else ROUND_ENTRIES
        few = min(max(room // max(len(others), 1), FEW_ENTRIES), size)
        turns = [(shard, size) for shard in due[: max(room // size, 1)]] + [(shard, few) for shard in others]
        found: dict[Shard, Fetched] = {}
        together = [turn for turn in turns if not turn[0].fetches_alone]
        asked = [shard.begin_fetch(entries) for shard, entries in together]
        for (shard, _), what, answer in zip(together, asked, fetch_together(asked), strict=True):
            with self.apart(shard):
                if isinstance(answer, StoreUnavailable):  # and other nodes have answered
                    self._note_trouble(shard, answer)
                elif isinstance(answer, RedBeatError):
                    raise answer
                else:
                    shard.note_fetch(what, answer)
                    found[shard] = answer
        for shard, _ in turns:
            if shard not in found and shard.fetches_alone and shard.leadership.is_leader:
                with self.apart(shard):
                    found[shard] = shard.fetch()
        return [(shard, found[shard]) for shard, _ in turns if shard in found]

    def renew_locks(self) -> None:
        """Let the locks live for their full time from now on."""
        if not self.is_divided:
            for shard in self._led:
                shard.store.renew_lock(shard.fence, obstacle=self.shares.find_obstacle())
            return
        led = self.reached
        locks = [Held(shard.store, shard.fence) for shard in led]
        errors, _ = self._locks.renew(locks, obstacle=self.shares.find_obstacle())
        for shard, error in zip(led, errors, strict=True):
            with self.apart(shard):
                if error is not None:
                    raise error

    # -- while they wait

    def count_prepared(self) -> int:
        """Return how many runs are prepared and wait for their time; for any thread."""
        return sum(len(shard.look_ahead) for shard in list(self))

    @property
    def has_locks(self) -> bool:
        """Whether this beat holds a lock."""
        return any(shard.leadership.lock for shard in self._led)

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Note that Redis is waited for until the block ends."""
        with ExitStack() as stack:
            for shard in self:
                stack.enter_context(shard.store.asking())
            yield

    def note_woken(self, channels: Collection[str]) -> None:
        """Note that something was announced on these channels."""
        self.shares.note_wake()
        for shard in self._led:
            if shard.store.keys.wake in channels:
                shard.note_woken()

    def prepare(self) -> bool:
        """Prepare some runs that are due soon; tell whether there was anything to do."""
        wanting = [shard.look_ahead for shard in self.reached if shard.wants_to_prepare]
        try:
            if len(wanting) == 1:
                wanting[0].prepare()
            elif wanting:
                wanting.sort(key=lambda look_ahead: look_ahead.next_at)
                LookAhead.prepare_together(wanting[:PREPARED_TOGETHER])
        except LockLost as exc:  # that of one of them: the others are prepared the next time
            self.shares.lose(exc)  # raises it if the schedule isn't divided
            self._note_led()
        return bool(wanting)

    def look(self) -> bool:
        """Look at those that this beat leads, one round trip a node; tell whether something is due."""
        if not self.is_divided:
            return any(shard.note_head(shard.store.look()) for shard in self._led)
        is_due, led = False, self.reached
        for shard, head in zip(led, look_together([one.store for one in led]), strict=True):
            with self.apart(shard):
                if isinstance(head, StoreUnavailable):
                    self._note_trouble(shard, head)
                elif isinstance(head, RedBeatError):
                    raise head
                else:
                    is_due = shard.note_head(head) or is_due
        return is_due

    def close(self) -> None:
        """Wait for what is on its way, and release all locks; Redis isn't waited for long."""
        for shard in self:
            shard.has_statics = False
            shard.close()
        self.shares.resign()
        self._led = []
        if self._hasty is not None:
            self._hasty.close()


def _store_of(store: Store, keys: Keys) -> Store:
    """Return a store of the part with these names: ``store`` itself if it is about that."""
    is_its = store.part is not None and store.part.keys.prefix == keys.prefix
    return store if is_its else store.of_part(Part(keys))
