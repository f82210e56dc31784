"""One change of the layout, from its beginning to its end; whoever calls it again goes on where it was.

::

    begin      the layout in Redis says where entries are to be; each part learns it (its generation)
    lead       running beats become leaders of the new parts, too
    move       entry by entry, those that are due last
    settle     parts that aren't needed any more are closed; what is kept for no entry goes elsewhere
    sweep      what was written to former places meanwhile is moved on

Invariant: an entry runs wherever it is meanwhile; no run is lost, doubled, or late for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from redbeat.config.config import ensure_conf
from redbeat.errors import ReshardRefused, StoreRefused, StoreUnavailable
from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.reshard.sweeping import HiddenWatch, sweep
from redbeat.store.generations import Generations, LayoutRecord
from redbeat.store.mover import MARGIN_SECONDS, Mover, Stray
from redbeat.store.recovery import read_knowledge
from redbeat.store.store import Store
from redbeat.store.strays import Strays, heirs_of

#: how long beats may take to lead the new parts
LEAD_SECONDS = 30.0
#: how often it is asked whether they do, and how often beats are woken meanwhile
LOOK_SECONDS = 0.05
WAKE_SECONDS = 0.5
#: how often entries are tried again that were due
AGAIN_SECONDS = 0.1
#: if none of those runs for so long, they are moved as soon as they aren't due in this moment, and after as
#: long again in any case
PATIENCE_SECONDS = 5.0
#: how often a part is looked through for what has come to it meanwhile
MAX_LOOKS = 20


@dataclass
class Report:
    """What was done.

    Attributes:
        former, shards: how many shards there were, and are; None: none.
        generation: of the layout now.
        entries, messages: how many entries and stored messages there are in all parts.
        moved: how many entries, and other things, were moved.
        seconds: how long it took.
        longest_hidden_seconds: for how long any entry was hidden at most.
        unled: the shards that no beat has come to lead though beats run; None: what isn't divided.
        swept: the names of entries that were found in former places at the end.
        unmerged: keys of what couldn't be merged with what stood where it belongs.
        unmoved: names of what couldn't be moved, and stays where it is, each to the reason; then the change
            isn't ended, and whoever calls again tries it again.
        unknown: keys in parts that have ended which nobody knows; they were left there.
    """

    former: int | None
    shards: int | None
    generation: int = 0
    entries: int = 0
    messages: int = 0
    moved: int = 0
    seconds: float = 0.0
    longest_hidden_seconds: float = 0.0
    unled: list[int | None] = field(default_factory=list)
    swept: list[str] = field(default_factory=list)
    unmerged: list[str] = field(default_factory=list)
    unmoved: dict[str, str] = field(default_factory=dict)
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
        self._generations = Generations(self._store)
        self._shards = shards
        self._mover = Mover(self._store)
        self._progress: Callable[[int], None] = lambda _moved: None
        self._say: Callable[[str], None] = lambda _words: None

    def plan(self) -> Plan:
        """Return what is to be done.

        Raises:
            ConfigurationError: the server is part of a cluster, and the prefix has no hash tag.
            ReshardRefused: another change is under way.
        """
        record = self._read()
        former = record.former if record.is_under_way else record.shards
        layout = self._layout_of(record, former)
        strays = Strays(self._store, layout)
        entries, messages = strays.count(layout.parts)
        return Plan(
            former,
            self._shards,
            record.is_under_way,
            self._is_done(record),
            entries,
            messages,
            self._config.lock_key is not None and bool(self._led_among(layout.parts, strays)),
        )

    def run(
        self, progress: Callable[[int], None] | None = None, say: Callable[[str], None] | None = None
    ) -> Report:
        """Do all that is left to do.

        Arguments:
            progress: called with how many entries were moved by now.
            say: called with a sentence on what is waited for.
        """
        self._progress, self._say = progress or self._progress, say or self._say
        self._mover.on_progress = self._progress
        began = time.monotonic()
        record = self._read()
        if record.generation == 0 and self._is_done(record):
            return Report(None, None)  # it was never divided, and stays as it is
        if record.generation > self._generations.read().generation:
            self._generations.rewrite(record)
        if not record.is_under_way and not self._is_done(record):
            sweep(self._store)  # from then on, nobody looks into the places of the layout before this one
            self._free_hidden(record)
            begun = self._generations.begin(record, record.shards, self._shards)
            record = self._changed(begun)
        report = Report(record.former, self._shards)
        if record.state == "moving":
            layout = record.layout(self._store)
            self._mover.open(layout.parts)
            self._adopt(layout)
            self._mover.finish_hidden(layout.parts)  # first, as nobody runs what is hidden
            report.unled = self._wait_for_leaders(layout)
            self._move(layout)
            if self._mover.tally.unmoved:
                return self._reported(report, layout, record, began)
            record = self._changed(self._generations.settle(record))
        layout = record.layout(self._store)
        self._mover.open(layout.parts)
        self._adopt(layout)
        self._mover.finish_hidden(layout.parts, layout.ending(record.former))
        self._move_late(layout)
        report.unknown = self._settle(layout, record)
        if self._mover.tally.unmoved:
            return self._reported(report, layout, record, began)
        self._close(layout, record)  # before the end: else parts could have a mover for ever
        if record.state:
            record = self._changed(self._generations.end(record))
        report.swept = sweep(self._store)
        return self._reported(report, layout, record, began)

    def _reported(self, report: Report, layout: Layout, record: LayoutRecord, began: float) -> Report:
        """Return the report on what was done since ``began``, monotonic."""
        tally = self._mover.tally
        report.entries, report.messages = Strays(self._store, layout).count(layout.parts)
        report.generation, report.moved = record.generation, tally.moved
        report.unmerged, report.unmoved = tally.unmerged, tally.unmoved
        report.longest_hidden_seconds = tally.longest_hidden_seconds
        report.seconds = time.monotonic() - began
        return report

    def is_undone(self, report: Report) -> bool:
        """Tell whether a failover has undone the end of what ``report`` is about.

        A master that a Sentinel has replaced takes writes until it learns of that, from those who are
        connected to it. Who connects anew is led to the one that counts.
        """
        try:
            with Store.hasty(self._config.app) as store:
                record = Generations(store).read()
        except (StoreUnavailable, StoreRefused):
            return False
        is_same = record.generation == report.generation
        return record.generation < report.generation or (is_same and record.is_under_way)

    # -- the steps

    def _free_hidden(self, record: LayoutRecord) -> None:
        """Move on what was left hidden in places of the layout that there is.

        Raises:
            ReshardRefused: somebody is moving that.
        """
        if not record.generation:
            return
        watch = HiddenWatch(self._store)
        watch.finish(record)
        if watch.hiding:
            raise ReshardRefused(
                f"Another process moves what stands in {watch.hiding[0].moving} at this moment: try again."
            )

    def _read(self) -> LayoutRecord:
        """Return the layout as it is.

        Raises:
            ConfigurationError: the server is part of a cluster, and the prefix has no hash tag.
            ReshardRefused: a change to another number is under way.
        """
        record = self._recovered(self._generations.read(is_slot_checked=True))
        if record.is_under_way and record.shards != self._shards:
            raise ReshardRefused(
                f"A change to {words_of(record.shards)} is under way (from {words_of(record.former)}), and "
                "no other one begins before it has ended, nor the way back. If nobody is at work on it any "
                f"more, go on with it: celery redbeat reshard --to {record.shards or 'none'}."
            )
        if not record.generation and self._config.shards is not None:
            undivided = Layout(self._config.base_keys)
            if not any(Strays(self._store, undivided).count(undivided.parts)):
                return replace(record, shards=self._config.shards)  # as the first writer would write it
        return record

    def _recovered(self, record: LayoutRecord) -> LayoutRecord:
        """Return the layout as the parts know it, if it was lost, or has become an earlier one.

        Raises:
            ReshardRefused: they contradict each other, or the layout.
        """
        knowledge = read_knowledge(self._store)
        if record.generation >= knowledge.latest:
            return record
        found = knowledge.found(record)
        if found is None:
            raise ReshardRefused(
                f"{self._config.base_keys.layout} isn't what the parts of the schedule know: celery redbeat "
                "doctor says what to do, and with --fix writes it again."
            )
        return found

    def _is_done(self, record: LayoutRecord) -> bool:
        """Whether the schedule is divided as it is to be, and that is written down where it has to be."""
        is_known = record.generation > 0 or self._shards is None
        return not record.is_under_way and record.shards == self._shards and is_known

    def _changed(self, record: LayoutRecord | None) -> LayoutRecord:
        if record is None:
            raise ReshardRefused("Another process changes the shards at this moment: this one stops.")
        return record

    def _layout_of(self, record: LayoutRecord, former: int | None) -> Layout:
        return Layout(self._config.base_keys, self._shards, record.generation, former, is_moving=True)

    def _adopt(self, layout: Layout) -> None:
        """From now on, this process writes by ``layout``, too."""
        self._config.found_layout = layout

    def _wait_for_leaders(self, layout: Layout) -> list[int | None]:
        """Wait until running beats lead the new parts; return the shards that nobody leads."""
        new = replace(layout, is_moving=False).parts
        strays = Strays(self._store, layout)
        if self._config.lock_key is None or not self._led_among(layout.parts, strays):
            return []
        self._say("Waiting until beats lead the new shards ...")
        began = time.monotonic()
        woken_at = -WAKE_SECONDS
        while True:
            led = self._led_among(new, strays)
            waited = time.monotonic() - began
            if len(led) == len(new) or waited > LEAD_SECONDS:
                return [layout.shard_of(part) for part in new if part not in led]
            if waited - woken_at >= WAKE_SECONDS:
                woken_at = waited
                strays.wake(layout.parts)
            time.sleep(LOOK_SECONDS)

    def _move(self, layout: Layout) -> None:
        """Move all entries to where they belong."""
        strays = Strays(self._store, layout)
        sources = layout.parts
        strays.look_for_requests(sources)
        due = self._move_from(strays, sources, MARGIN_SECONDS)
        for _ in range(MAX_LOOKS):
            self._move_due(strays, due)
            moved = self._mover.tally.moved
            due = self._move_from(strays, sources, MARGIN_SECONDS)
            if not due and self._mover.tally.moved == moved:
                return
        self._move_due(strays, due)

    def _move_from(
        self, strays: Strays, sources: Iterable[Keys], margin_seconds: float | None
    ) -> list[Stray]:
        """Move what stands in ``sources`` to where it belongs; return what stays, as it is due."""
        due: list[Stray] = []
        for source in sources:
            for find in (strays.of_members, strays.of_names):
                due += self._mover.move_all(find(source), margin_seconds)
        return due

    def _move_due(self, strays: Strays, due: Sequence[Stray]) -> None:
        """Move what was due when it was tried first: when it has run, or if it doesn't."""
        since, fewest = time.monotonic(), len(due) + 1
        while due:
            if len(due) < fewest:
                since, fewest = time.monotonic(), len(due)
            waited = time.monotonic() - since
            margin = MARGIN_SECONDS if waited < PATIENCE_SECONDS else 0.000001
            if waited > 2 * PATIENCE_SECONDS:
                due = self._mover.move_all(due, None)
                continue
            led = self._led_among(list(dict.fromkeys(one.source for one in due)), strays)
            waiting = self._mover.move_all([one for one in due if one.source in led], margin)
            due = [*waiting, *self._mover.move_all([one for one in due if one.source not in led], None)]
            if due:
                time.sleep(AGAIN_SECONDS)

    def _led_among(self, parts: Sequence[Keys], strays: Strays) -> set[Keys]:
        """Return those parts that a beat leads; without a lock nobody knows, and all may be."""
        locks = [self._config.lock_key_in(part) for part in parts]
        return {part for part, is_led in zip(parts, strays.are_led(locks), strict=True) if is_led}

    def _move_late(self, layout: Layout) -> None:
        """Move what was written to former places, and may have run there, between the last look and now.

        From now on nobody runs what stands in a part where it doesn't belong.
        """
        self._move_from(Strays(self._store, layout), layout.parts, None)

    def _settle(self, layout: Layout, record: LayoutRecord) -> list[str]:
        """Close the parts that have ended, and move what was left there; return the keys of what stays."""
        ending = layout.ending(record.former)
        strays = Strays(self._store, layout)
        # records of runs that were sent by hand, as their entries moved
        self._mover.move_all(strays.of_late(layout.staying(record.former)), None)
        if not ending:
            return []
        self._mover.open(ending)
        self._mover.finish_hidden(ending, layout.parts)
        unknown: list[str] = []
        for _ in range(MAX_LOOKS):
            self._move_from(strays, ending, None)
            left = strays.of_keys(ending, heirs_of(ending, layout.parts))
            unknown = left.unknown
            if not left.strays and not left.owned:
                break
            moved = self._mover.tally.moved
            self._mover.move_owned(left.owned)
            self._mover.move_all(left.strays, None)
            if self._mover.tally.moved == moved and not left.owned:
                break
        return sorted(unknown)

    def _close(self, layout: Layout, record: LayoutRecord) -> None:
        """Forget what was noted of the moves."""
        ending = layout.ending(record.former)
        self._mover.close(layout.parts, ending)
        self._mover.open([*layout.parts, *ending], is_mover=False)


def words_of(shards: int | None) -> str:
    """Return a number of shards as a phrase."""
    return "no shards" if shards is None else f"{shards} shards" if shards > 1 else "1 shard"
