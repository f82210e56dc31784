"""The layout of a schedule in Redis: into how many shards it is divided, and how all who use it find out.

Owns ``redbeat::layout``, and the generation key of each part, which every script that writes compares.
Invariant: the layout is written before a generation key says so, and no generation is ever lowered. So
whoever is refused finds in ``redbeat::layout`` what is right by then.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from operator import methodcaller
from typing import TYPE_CHECKING, Any, NamedTuple

from redbeat.connection.retry import is_no_permission
from redbeat.connection.waiting import pause
from redbeat.errors import (
    ConfigurationError,
    LayoutChanged,
    StoreCorrupt,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.keys import Keys
from redbeat.layout import Layout, LayoutRule
from redbeat.log.events import LAYOUT_FOLLOWED
from redbeat.log.logger import store_logger
from redbeat.log.text import as_stored
from redbeat.store.generations import Generations, LayoutRecord
from redbeat.store.nodes import call_on_nodes
from redbeat.store.records import text_of
from redbeat.store.recovery import read_knowledge
from redbeat.store.scripts.script import RIGHT_SECONDS, Script

if TYPE_CHECKING:
    from redbeat.store.store import Store

#: how long an entry is waited for that is on its way to another shard, and how often it is looked for
MOVE_SECONDS, LOOK_SECONDS = 5.0, 0.01

_CREATE_LAYOUT, _RAISE_GENERATION = Script("create_layout"), Script("raise_generation")

#: how a script that checks the layout is refused: the key, and what it holds
_REFUSAL = re.compile(r'RESHARDED (.*) holds "([^"]*)", not ', re.DOTALL)


class Refusal(NamedTuple):
    """That a script was refused which checks the layout.

    Attributes:
        generation_key: of the part where it was.
        held: what that key holds; '': there is no such key.
    """

    generation_key: str
    held: str


def refusal_of(error: BaseException | None) -> Refusal | None:
    """Return what ``check_layout`` says of a refusal; None: the error is another one."""
    found = _REFUSAL.match(str(error))
    return Refusal(found[1], found[2]) if found else None


class Contents(NamedTuple):
    """What is in one part.

    Attributes:
        guard: what its generation key holds; '': there is none.
        entries: how many entries it has, and stored messages.
    """

    guard: str
    entries: int


class Layouts:
    """The layout of the schedule of ``store``; all of them are about the app's, whatever part the store has.

    Every method raises StoreUnavailable when Redis can't be reached.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._config = store.config

    def read(self, *, is_slot_checked: bool = False) -> Layout | None:
        """Return the layout in Redis; None: there is none, so the schedule was never divided.

        Arguments:
            is_slot_checked: find out, too, if the server is part of a cluster and the prefix has no hash tag.

        Raises:
            ConfigurationError: that is so.
            StoreRefused: this user may not read it.
            StoreCorrupt: what is there is no layout.
        """
        record = Generations(self._store).read(is_slot_checked=is_slot_checked)
        return record.layout(self._store) if record.generation else None

    def contents(self, parts: Sequence[Keys]) -> list[Contents]:
        """Return what is in each of these parts; one round trip for each node."""

        def ask(pipeline: Any, keys: Keys) -> None:
            pipeline.get(keys.generation)
            pipeline.zcount(keys.schedule, "-inf", "+inf")
            pipeline.zcount(keys.later, "-inf", "+inf")

        found = self._store.in_one_trip(parts, ask) if parts else []
        return [
            Contents(text_of(guard) or "", int(entries) + int(messages))
            for guard, entries, messages in zip(found[::3], found[1::3], found[2::3], strict=True)
        ]

    def look(self, *, is_slot_checked: bool = False) -> Layout:
        """Read the layout, and use it from now on; return where entries are.

        Who may not read it, or doesn't reach the server, goes on with what is known.

        Arguments:
            is_slot_checked: as in :meth:`read`; a beat that starts always asks for it. A worker may have no
                right to the keys of the schedule.

        Raises:
            ConfigurationError: it isn't what the settings say, though it was never changed; or the server is
                part of a cluster, and the prefix has no hash tag.
            StoreUnavailable: this is a program that has just started.
            StoreCorrupt: what is there is no layout, and none was known before.
        """
        config = self._config
        is_start = config.looked_at is None and config.layout_rule is LayoutRule.REFUSE
        try:
            layout = self.read(is_slot_checked=is_start or is_slot_checked)
            if layout is None and config.layout.generation and config.found_layout is not None:
                layout = config.layout  # it was lost: who is refused, or leads, finds out what there is now
            if is_start:
                self._compare(layout)
        except StoreCorrupt:
            if config.found_layout is None:
                raise
            return config.layout  # the parts know what is right, and whoever writes is refused by them
        except StoreUnavailable:
            if config.looked_at is None and config.layout_rule is not LayoutRule.FOLLOW:
                if not config.is_cluster or config.shards is None:
                    raise  # a command isn't to wait twice
                config.looked_at = time.monotonic()  # other nodes may be there; whoever writes is refused
            return config.layout
        except StoreRefused:
            config.looked_at = time.monotonic() + RIGHT_SECONDS  # nor is it allowed in a moment
            return config.layout
        self._use(layout)
        return config.layout

    def create(self, shards: int) -> Layout:
        """Divide a schedule without entries into so many shards, unless it is divided already.

        Returns the layout that there is then. One that was lost gets a later generation than its parts know.

        Raises:
            ConfigurationError: it has entries.
            StoreRefused: the layout was lost, and the parts know of another number of shards.
        """
        store, base = self._store, self._config.base_keys
        keys = [part.generation for part in (base, *Layout(base, shards, 1).parts)]
        texts = store.in_one_trip(
            keys, lambda pipeline, key: pipeline.get(key), dict.fromkeys(keys, "string")
        )
        held = {key: text_of(text) for key, text in zip(keys, texts, strict=True) if text is not None}
        held = {key: text for key, text in held.items() if _number_in(text)}
        others = [key for key, text in held.items() if text.partition(" ")[2] not in (str(shards), "closed")]
        if held and (layout := self.recover(shards)):
            return layout
        if others:
            layout = self.read()
            if layout is None:
                raise _missing(others[0], held[others[0]], base)
            return layout
        after = max(map(_number_in, held.values()), default=0)
        call = _CREATE_LAYOUT.call(base, shards=shards, after=after)
        if text_of(store.ask(call.run, base.layout, "hash")) == "undivided":
            raise _undivided(shards, base)
        layout = self.read()
        if layout is None:
            raise StoreRefused(f"{base.layout} was removed at the moment when it was written; try again.")
        return layout

    def recover(self, shards: int | None = None) -> Layout | None:
        """Write a layout again that was lost, or has become an earlier one, as the parts know it; return it.

        None: it is there; or the parts know none, or contradict each other; or they know another number of
        shards than the settings, and this process, do. The doctor says what to do then.

        Arguments:
            shards: as this many are wanted, one that is settled needn't be written as it was.
        """
        config, generations = self._config, Generations(self._store)
        record = generations.read()
        right = read_knowledge(self._store).found(record)
        if right is None or right.generation <= record.generation:
            return None
        known = {config.shards} | ({config.found_layout.shards} if config.found_layout else set())
        numbers = {right.shards} | ({right.former} if right.state == "moving" else set())
        is_minor = not right.is_under_way and (record.generation > 0 or right.shards == shards)
        if is_minor or not known & numbers or not generations.rewrite(right):
            return None
        store_logger.warning(
            "%s was lost, and is written again as the parts of the schedule know it: %s.",
            config.base_keys.layout,
            right.words,
        )
        return right.layout(self._store)

    def adopt(self, record: LayoutRecord) -> None:
        """Let this process go by a layout that isn't in Redis yet, as it was lost."""
        self._config.found_layout, self._config.looked_at = record.layout(self._store), time.monotonic()

    def follow(self, refusal: Refusal, *others: Refusal) -> None:
        """Use the layout that is in Redis now, as a script was refused; the first writer writes it.

        Parts without a generation, or with that of a former layout, are told of this one.

        Raises:
            ConfigurationError: ``redbeat_shards`` is set, and the schedule has entries without shards.
            StoreRefused: this user may not read the layout, or there is none, and the part knows of one.
        """
        layout = self.read()
        if layout is None and self._config.shards is not None:
            layout = self.create(self._config.shards)
        elif _number_in(refusal.held) > (layout.generation if layout is not None else 0):
            layout = self.recover() or layout
        if layout is None and refusal.held:
            raise _missing(refusal.generation_key, refusal.held, self._config.base_keys)
        if layout is not None and _number_in(refusal.held) > layout.generation:
            raise StoreRefused(
                f'{refusal.generation_key} holds "{refusal.held}", which is later than what '
                f"{layout.base.layout} says, {layout.guard!r}: one of them was changed by hand, or restored "
                "from a backup. celery redbeat doctor says which, and with --fix puts it right."
            )
        self._use(layout)
        refused = {one.generation_key for one in (refusal, *others)}
        self.raise_generations(
            [part for part in self._config.layout.parts if part.generation in refused and part.guard]
        )

    def raise_generations(self, parts: Sequence[Keys]) -> None:
        """Let parts be written by those who know their layout; a later generation stays. One trip a node."""
        # a writer has no right to the key that says who moves entries
        calls = [_RAISE_GENERATION.call(part, mover=None, token=None) for part in parts]

        def raise_all(client: Any) -> None:
            for reply in call_on_nodes(client, calls):
                if isinstance(reply, Exception):
                    raise reply

        self._store.ask(raise_all)

    def settle(self, *, is_writer: bool) -> None:
        """Compare the layout with the settings, as a program starts, and use it.

        Who may not read it, by the rules of 3.0 say, goes on; so does who doesn't reach the server, unless
        the settings have shards.

        Arguments:
            is_writer: it writes to the schedule, so it divides one that has no entries yet, and mends the
                generations of all parts.

        Raises:
            ConfigurationError: they differ, though the layout was never changed.
            StoreCorrupt: what is there is no layout.
        """
        config = self._config
        try:
            layout = self.read(is_slot_checked=True)
            if layout is None and config.shards is not None and is_writer:
                layout = self.create(config.shards)
            self._compare(layout)
        except StoreUnavailable:
            if config.shards is not None:
                raise
            return
        except StoreRefused as exc:
            if not is_no_permission(exc.__cause__):
                raise
            config.looked_at = time.monotonic() + RIGHT_SECONDS
            return
        self._use(layout)
        if is_writer and layout is not None:
            base = config.base_keys
            undivided = Keys(base.prefix, base.schedule_key, base.statics_key, layout.guard)
            self.raise_generations([*{one.prefix: one for one in (undivided, *layout.parts)}.values()])

    def _compare(self, layout: Layout | None) -> None:
        """Raise ConfigurationError if the settings don't suit the layout.

        They may be older than a layout that was changed: the layout counts, and everything is written where
        it belongs.
        """
        config = self._config
        if layout is None:
            if config.shards is not None and self._has_undivided():
                raise _undivided(config.shards, config.base_keys)
        elif config.shards not in _allowed(layout) and layout.generation == 1:
            raise ConfigurationError(_difference(config.shards, layout), "redbeat_shards")

    def _has_undivided(self) -> bool:
        base = self._config.base_keys
        keys = base.schedule, base.later, base.downgraded
        return any(self._store.ask(methodcaller("exists", key)) for key in keys)

    def _use(self, layout: Layout | None) -> None:
        """Let this process use a layout from now on; say once that it isn't what the settings say."""
        config = self._config
        if layout is not None and layout.is_moving and layout != config.found_layout:
            self._announce(layout)
        config.found_layout, config.looked_at = layout, time.monotonic()
        if layout is None or config.shards in _allowed(layout) or config.layout_rule is LayoutRule.ADOPT:
            return
        difference = _difference(config.shards, layout)
        if config.said.is_news("layout", difference):
            store_logger.warning(
                "%s This process uses what is in Redis.",
                difference,
                extra=LAYOUT_FOLLOWED.of(shards=layout.shards or 0),
            )

    def _announce(self, layout: Layout) -> None:
        """Let all parts know of a layout before anything is looked for or written by it.

        Else who still goes by the former one wouldn't find what this process writes, and might write it
        once more.
        """
        with suppress(StoreRefused, StoreUnavailable, StoreCorrupt):  # who may only read writes nothing
            self.raise_generations(layout.parts)

    def locate(self, names: Sequence[str], *, of_runs: bool = False) -> list[str]:
        """Return the keys under which entries are now, by their names, or would be.

        No round trip, as long as no entries are moved from one layout to another; then it is one a node. Who
        is on its way is waited for.

        Arguments:
            of_runs: it is the entries' runs in progress that are looked for: a worker may see nothing else.

        Raises:
            LayoutChanged: it has been on its way for too long.
            StoreRefused: this user may not look.
        """
        ends_at = time.monotonic() + MOVE_SECONDS
        while True:
            layout = self._config.layout
            found = {name: layout.keys.entry(name) for name in names}
            hidden = self._look_in_former_parts(layout, found, of_runs=of_runs) if layout.is_moving else []
            if not hidden:
                return [found[name] for name in names]
            if time.monotonic() > ends_at:
                raise LayoutChanged(
                    f"{hidden[0]}: this entry has been on its way to another shard for {MOVE_SECONDS:g} s, "
                    "and whoever moves it seems to have stopped: a beat that runs brings it back within "
                    "seconds, and celery redbeat reshard goes on with it."
                )
            pause(LOOK_SECONDS)
            self.look()

    def _look_in_former_parts(self, layout: Layout, found: dict[str, str], *, of_runs: bool) -> list[str]:
        """Put the keys of entries that haven't been moved yet into ``found``; return the names of the hidden.

        Entries move one way only, but for those that are put back. So one that isn't where it was, nor
        hidden, and still isn't where it was, is at home if it is anywhere.
        """
        former = layout.former_keys
        asked = [name for name in found if former.entry(name) != found[name]]
        if not asked:
            return []

        def ask(pipeline: Any, name: str) -> None:
            key = as_stored(former.about(name).running if of_runs else former.entry(name))
            pipeline.exists(key)
            pipeline.hmget(former.home(name).moving, [as_stored(name)])
            pipeline.exists(key)

        try:
            answers = iter(self._store.in_one_trip(asked, ask))
        except StoreRefused as exc:
            if not is_no_permission(exc.__cause__):
                raise
            raise StoreRefused(
                f"{exc}. Entries are on their way to other shards, and this user may not look for them: "
                f"its rule needs ~{former.home(asked[0]).moving} with +exists and +hmget, as the documented "
                "ones have it."
            ) from exc.__cause__
        hidden = []
        for name, was_there, [record], is_there in zip(asked, answers, answers, answers, strict=True):
            if was_there or is_there:
                found[name] = former.entry(name)
            elif record is not None:
                hidden.append(name)
        return hidden


def _allowed(layout: Layout) -> Sequence[int | None]:
    """Return which numbers of shards the settings may have without a warning."""
    return (layout.shards, layout.former) if layout.is_moving else (layout.shards,)


def _difference(shards: int | None, layout: Layout) -> str:
    """Return a sentence about settings that say something else than the layout."""
    setting = "isn't set" if shards is None else f"is {shards}"
    found = "isn't divided" if layout.shards is None else f"is divided into {layout.shards} shards"
    remedy = "leave it unset" if layout.shards is None else f"set redbeat_shards = {layout.shards}"
    return (
        f"redbeat_shards {setting}, and the schedule in Redis {found} ({layout.base.layout}): {remedy}. If "
        f"it is the schedule that is to change: celery redbeat reshard --to {shards or 'none'}."
    )


def _number_in(guard: str) -> int:
    """Return the number of the layout that a generation key holds; 0: none."""
    found = re.match("[0-9]+", guard)
    return int(found[0][:20]) if found else 0


def _missing(generation_key: str, held: str, base: Keys) -> StoreRefused:
    return StoreRefused(
        f'{generation_key} holds "{held}", so the schedule is divided, or was, but {base.layout} is missing, '
        "which says how: celery redbeat doctor says what to do, and with --fix writes it again."
    )


def _undivided(shards: int, base: Keys) -> ConfigurationError:
    return ConfigurationError(
        f"redbeat_shards is {shards}, and the schedule has entries that aren't divided ({base.schedule}): "
        f"celery redbeat reshard --to {shards} divides them, also under running beats.",
        "redbeat_shards",
    )
