"""One change of the layout, from its beginning to its end; another call goes on where it was.

::

    begin      the layout in Redis says where entries are to be; each part learns it (its generation)
    lead       running beats become leaders of the new parts, too
    move       entry by entry, those that are due last
    finish     what was written to former places meanwhile is moved on; parts that aren't needed any more are
               closed, and what they keep for no entry goes elsewhere

Invariant: an entry runs wherever it is meanwhile; no run is lost, doubled, or late for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from redbeat.config.config import ensure_conf
from redbeat.errors import ReshardRefused, StoreRefused, StoreUnavailable
from redbeat.keys import Keys
from redbeat.layout import Layout, words_of
from redbeat.store.layouts import change_layout, find_latest, read_layout
from redbeat.store.mover import MARGIN_SECONDS, WAIT_SECONDS, Mover, Tally
from redbeat.store.nodes import Command
from redbeat.store.store import Store
from redbeat.store.strays import Strays

#: how long beats may take to lead the new parts
LEAD_SECONDS = 30.0
#: how often it is asked whether they do, and beats are woken
WAKE_SECONDS = 0.2
#: how often entries are tried again that were due
AGAIN_SECONDS = 0.1
#: if none of those runs for so long, they are moved all the same
PATIENCE_SECONDS = 5.0
#: how often a part is looked through for what has come to it meanwhile
MAX_LOOKS = 20


@dataclass
class Report(Tally):
    """What was done.

    Attributes:
        generation: of the layout now.
        seconds: how long it took.
        unled: the shards that no beat has come to lead though beats run; None: what isn't divided.
        unknown: keys in parts that have ended which aren't recognised; they were left there.

    If anything is ``unmoved`` the change isn't ended; another call tries it again.
    """

    generation: int = 0
    seconds: float = 0.0
    unled: list[int | None] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """What is to be done.

    Attributes:
        former, shards: how many shards there are, and are to be; None: none.
        is_resumed: it has begun already.
        is_done: nothing is to be done.
        entries, messages: how many entries and stored messages there are, in all parts.
        are_led: whether a beat leads any part.
    """

    former: int | None
    shards: int | None
    is_resumed: bool
    is_done: bool
    entries: int
    messages: int
    are_led: bool


class Resharding:
    """The schedule of ``app`` is divided into ``shards``; None: it isn't divided any more.

    Its methods raise what the store's do, and ReshardRefused: another change is under way, or another process
    makes this one by now.
    """

    def __init__(self, app: object, shards: int | None, store: Store | None = None) -> None:
        self._store = store or Store(app)
        self._config = ensure_conf(app)
        self._shards = shards
        self._mover = Mover(self._store)
        self._say: Callable[[str], None] = lambda _words: None

    def plan(self) -> Plan:
        """Return what is to be done.

        Raises:
            ConfigurationError: the server is part of a cluster, and the prefix has no hash tag.
            ReshardRefused: another change is under way.
        """
        in_redis, found = self._read()
        former = found.former if found.is_moving else found.shards
        layout = replace(found, shards=self._shards, former=former, is_moving=True)
        entries, messages = self._count(layout)
        return Plan(
            former,
            self._shards,
            found.is_moving,
            self._is_done(in_redis, found),
            entries,
            messages,
            self._config.lock_key is not None and bool(self._led_among(layout.parts)),
        )

    def run(
        self, progress: Callable[[int], None] | None = None, say: Callable[[str], None] | None = None
    ) -> Report:
        """Do all that is left to do.

        Arguments:
            progress: called with how many entries were moved by now.
            say: called with a sentence on what is waited for.
        """
        self._mover.on_progress = progress or self._mover.on_progress
        self._say = say or self._say
        began = time.monotonic()
        in_redis, layout = self._read()
        report = self._mover.tally = Report()
        if not layout.generation and self._is_done(in_redis, layout):
            return report  # it was never divided, and stays as it is
        with self._mover:
            if layout.generation > in_redis.generation:
                layout = change_layout(self._store, in_redis, layout)
            if not layout.is_moving and layout.shards != self._shards:
                self._finish(layout)  # else what is left of the change before is forgotten
                generation = max(layout.generation, 0 if layout.shards is None else 1) + 1
                moving = replace(
                    layout, shards=self._shards, former=layout.shards, generation=generation, is_moving=True
                )
                layout = change_layout(self._store, layout, moving)
            if layout.is_moving:
                report.unled = self._move(layout)
            if layout.is_moving and not report.unmoved:
                arrived = replace(layout, generation=layout.generation + 1, is_moving=False)
                layout = change_layout(self._store, layout, arrived)
            if not layout.is_moving:
                report.unknown = self._finish(layout)
        report.generation, report.seconds = layout.generation, time.monotonic() - began
        return report

    def _take(self, layout: Layout, parts: Sequence[Keys]) -> None:
        """Become the mover of parts, let them be written by ``layout``, and move on what is hidden there."""
        if not self._mover.take(parts, WAIT_SECONDS):
            raise ReshardRefused("Another process moves these entries at this moment: this one stops.")
        self._config.found_layout = layout if layout.generation else None
        self._mover.finish_hidden(parts)

    def is_undone(self, report: Report) -> bool:
        """Return True if a failover has undone the end of what ``report`` is about.

        A master that a Sentinel has replaced takes writes until it learns of that, from clients that are
        connected to it. A new connection leads to the new master.
        """
        try:
            with Store.hasty(self._config.app) as store:
                found = read_layout(store)
        except (StoreUnavailable, StoreRefused):
            return False
        return found.generation < report.generation

    # -- the steps

    def _read(self) -> tuple[Layout, Layout]:
        """Return the layout in Redis, and as it is: a later one, if that was lost.

        Raises:
            ConfigurationError: the server is part of a cluster, and the prefix has no hash tag.
            ReshardRefused: a change to another number is under way.
        """
        in_redis = read_layout(self._store, is_slot_checked=True)
        layout = find_latest(self._store, in_redis, self._shards)
        if layout.is_moving and layout.shards != self._shards:
            raise ReshardRefused(
                f"A change to {words_of(layout.shards)} is under way (from {words_of(layout.former)}), and "
                "no other one begins before it has ended, nor the way back. If nobody is at work on it any "
                f"more, go on with it: celery redbeat reshard --to {layout.shards or 'none'}."
            )
        is_new = not layout.generation and self._config.shards is not None
        if is_new and not any(self._count(layout)):
            layout = replace(layout, shards=self._config.shards)  # as the first writer would write it
        return in_redis, layout

    def _is_done(self, in_redis: Layout, layout: Layout) -> bool:
        """Whether the schedule is divided as it is to be, and that is written down where it has to be."""
        is_known = layout.generation > 0 or self._shards is None
        is_lost = layout.generation > in_redis.generation
        return not layout.is_moving and layout.shards == self._shards and is_known and not is_lost

    def _wait_for_leaders(self, layout: Layout) -> list[int | None]:
        """Wait until running beats lead the new parts; return the shards without a leader."""
        new = layout.settled_parts
        self._say("Waiting until beats lead the new shards ...")
        ends_at = time.monotonic() + LEAD_SECONDS
        while len(led := self._led_among(new)) < len(new) and time.monotonic() < ends_at:
            self._mover.renew()
            self._store.try_all([Command("publish", part.wake, "reshard") for part in layout.parts])
            time.sleep(WAKE_SECONDS)
        return [layout.shard_of(part) for part in new if part not in led]

    def _move(self, layout: Layout) -> list[int | None]:
        """Move all entries to where they belong; return the shards without a leader."""
        self._take(layout, layout.parts)  # first of all, as no beat runs what is hidden
        strays, mover = Strays(self._store, layout), self._mover
        is_led = bool(self._led_among(layout.parts))
        unled = self._wait_for_leaders(layout) if is_led and self._config.lock_key is not None else []
        for _ in range(MAX_LOOKS):
            moved = mover.tally.moved
            due = mover.move_all(strays.found_in(layout.parts), MARGIN_SECONDS)
            if not due and mover.tally.moved == moved:
                break
            # what is due is moved when it has run, or if none of it does
            progressed_at = time.monotonic()
            while due:
                is_waited_for = is_led and time.monotonic() < progressed_at + PATIENCE_SECONDS
                left = mover.move_all(due, MARGIN_SECONDS if is_waited_for else None)
                if len(left) < len(due):
                    progressed_at = time.monotonic()
                due = left
                time.sleep(AGAIN_SECONDS if due else 0)
        return unled

    def _led_among(self, parts: Sequence[Keys]) -> set[Keys]:
        """Return those parts that a beat leads; without a lock all may be."""
        locks = {part: key for part in parts if (key := self._config.lock_key_in(part)) is not None}
        found = self._store.ask_all([Command("exists", key) for key in locks.values()])
        return {*parts} - {part for part, exists in zip(locks, found, strict=True) if not exists}

    def _count(self, layout: Layout) -> tuple[int, int]:
        """Return how many entries and how many stored messages there are."""
        keys = [key for part in layout.parts for key in (part.schedule, part.later)]
        found = self._store.ask_all([Command("zcard", key) for key in keys])
        return sum(found[::2]), sum(found[1::2])

    def _finish(self, layout: Layout) -> list[str]:
        """Move what else stands where it doesn't belong, and close parts that end; return the keys that stay.

        All entries have arrived: those that are found in other parts were written there meanwhile.
        """
        parts, strays, mover = layout.with_ending, Strays(self._store, layout), self._mover
        self._take(layout, parts)
        unneeded, unknown = dict[Keys, list[str]](), list[str]()
        for _ in range(MAX_LOOKS):
            moved = mover.tally.moved
            mover.move_all(strays.found_in(parts), None, is_foreign=True)
            left, unneeded, unknown = strays.by_keys()
            mover.move_all(left, None, is_foreign=True)
            if mover.tally.moved == moved:
                break
        if not mover.tally.unmoved:
            for part in parts:
                mover.close(part, [part.left, part.arrived, part.arriving, *unneeded.get(part, [])])
        return sorted(unknown)
