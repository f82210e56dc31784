"""The layout of a schedule in Redis: into how many shards it is divided, and how each process learns of it.

Owns ``redbeat::layout``, and the generation key of each part, which every script that writes compares.

::

    (none) or settled  -->  moving  -->  settled
       generation g         g + 1        g + 2

Invariant: the layout is written before a generation key says so, and no generation is ever lowered. So a
writer that is refused finds the right layout in ``redbeat::layout``. Each step is made only by a process that
has read the one before (compare and set), so one process changes the layout at a time, and another one can
go on where it has ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from redbeat.errors import (
    ConfigurationError,
    LayoutChanged,
    ReshardRefused,
    StoreCorrupt,
    StoreRefused,
    StoreUnavailable,
)
from redbeat.keys import Keys
from redbeat.layout import MAX_SHARDS, Layout, LayoutRule
from redbeat.log.events import LAYOUT_FOLLOWED
from redbeat.log.logger import store_logger
from redbeat.log.text import as_stored
from redbeat.store.nodes import Command
from redbeat.store.records import text_of
from redbeat.store.scripts.script import Script

if TYPE_CHECKING:
    from redbeat.store.store import Store

#: how long an entry is waited for that is moving to another shard, and how often it is looked for
MOVE_SECONDS, LOOK_SECONDS = 5.0, 0.01

_CREATE_LAYOUT, _CHANGE_LAYOUT = Script("create_layout"), Script("change_layout")
_RAISE_GENERATION = Script("raise_generation")

_FIELDS = "shards", "generation", "former", "state"
#: what a generation key holds: ``Layout.guard``
_GUARD = re.compile(r"([1-9][0-9]{0,14}) (0|[1-9][0-9]{0,3})(?: from (0|[1-9][0-9]{0,3}))?")
_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")
#: how a script that checks the layout is refused: the key, and what it holds
_REFUSAL = re.compile(r'RESHARDED (.*) holds "([^"]*)", not ', re.DOTALL)


class Refusal(NamedTuple):
    """The refusal of a script that checks the layout.

    Attributes:
        generation_key: of the part where it was.
        held: what that key holds; '': it is missing.
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
        guard: what its generation key holds; '': it is missing.
        entries: how many entries it has, and stored messages.
    """

    guard: str
    entries: int


def read_contents(store: Store, parts: Sequence[Keys]) -> list[Contents]:
    """Return what is in each of these parts; one round trip for each node."""

    asks = [
        ask
        for keys in parts
        for ask in (
            Command("get", keys.generation),
            Command("zcount", keys.schedule, "-inf", "+inf"),
            Command("zcount", keys.later, "-inf", "+inf"),
        )
    ]
    found = store.ask_all(asks)
    return [
        Contents(text_of(guard) or "", int(entries) + int(messages))
        for guard, entries, messages in zip(found[::3], found[1::3], found[2::3], strict=True)
    ]


def read_layout(store: Store, *, is_slot_checked: bool = False) -> Layout:
    """Return the layout in Redis; its generation is 0 if there is none, so the schedule was never divided.

    Arguments:
        is_slot_checked: also check, in the same round trip, that the server is not part of a cluster if the
            prefix has no hash tag.

    Raises:
        ConfigurationError: the server is part of a cluster, and the prefix has no hash tag.
        StoreRefused: this user may not read it.
        StoreCorrupt: the key is not a valid layout.
    """
    base = store.config.base_keys
    is_slot_checked = is_slot_checked and store.config.is_single_without_hash_tag

    asks = [Command("hmget", base.layout, _FIELDS)]
    if is_slot_checked:
        asks.append(Command("exists", base.layout, base.generation))
    found, *_ = store.ask_all(asks)
    texts = [text_of(text) or "" for text in found]
    if not any(texts[:2]):
        return Layout(base)
    layout = _parsed(base, *texts)
    if layout is None:
        raise StoreCorrupt(
            f"{base.layout} is not a layout of a schedule: delete it; celery redbeat reshard --to N, the "
            "number of shards, writes it again.",
            base.layout,
        )
    return layout


def _parsed(base: Keys, *texts: str) -> Layout | None:
    """Return the layout that has these texts in Redis, of ``_FIELDS``; None: they aren't a layout's."""
    shards_text, generation_text, former_text, state = texts
    numbers = shards_text, generation_text, former_text or "0"
    if not all(map(_NUMBER.fullmatch, numbers)) or state not in ("", "moving"):
        return None
    shards, generation, former = map(int, numbers)
    if not generation or max(shards, former) > MAX_SHARDS:
        return None
    return Layout(base, shards or None, generation, former or None, state == "moving")


def change_layout(store: Store, read: Layout, wanted: Layout) -> Layout:
    """Write a layout, and return it.

    Raises:
        ReshardRefused: another process has changed it since it was ``read``.
    """
    call = _CHANGE_LAYOUT.call(wanted, layout=wanted.base.layout, read=str(read.generation or ""))
    if not store.ask(call):
        raise ReshardRefused("Another process changes the shards at this moment: this one stops.")
    return wanted


def find_latest(store: Store, in_redis: Layout, shards: int | None = None) -> Layout:
    """Return the layout in Redis, or a later one that generation keys tell of, if it was lost.

    It is written before a generation key says so. But one key of a server may be lost alone, and in a cluster
    its node may fail over.

    Arguments:
        shards: how many there may be, for when ``in_redis`` doesn't say it.
    """
    base = in_redis.base
    parts = (base, *Layout(base, 1, 1).parts, *in_redis.with_ending, *Layout(base, shards, 1).parts)
    keys = [*dict.fromkeys(part.generation for part in parts)]
    texts = store.ask_all([Command("get", key) for key in keys])
    told = [found for text in texts if (found := _told_by(base, text_of(text) or "")) is not None]
    latest = max(told, key=lambda one: (one.generation, one.shards == shards), default=in_redis)
    if latest.generation <= in_redis.generation:
        return in_redis
    if in_redis.is_moving and in_redis.shards == latest.shards and not latest.is_moving:
        return replace(in_redis, generation=latest.generation, is_moving=False)
    return latest


def _told_by(base: Keys, guard: str) -> Layout | None:
    """Return the layout that a generation key tells of; None: it isn't one, or the part has ended."""
    found = _GUARD.fullmatch(guard)
    if found is None:
        return None
    return _parsed(base, found[2], found[1], found[3] or "", "moving" if found[3] else "")


def look_up_layout(store: Store, *, is_slot_checked: bool = False, is_beat: bool = False) -> Layout:
    """Read the layout, and use it from now on; return where entries are.

    A process that doesn't reach the server goes on with what is known.

    Arguments:
        is_slot_checked: as in :func:`read_layout`; a beat or a command that starts always asks for it.
        is_beat: a beat starts: it divides a schedule that has no entries yet, and mends the generations of
            all parts.

    Raises:
        ConfigurationError: it isn't what the settings say, though it was never changed; or the server is part
            of a cluster, and the prefix has no hash tag.
        StoreUnavailable: this is a command that has just started.
        StoreCorrupt: what is there isn't a layout, and none was known before.
    """
    config = store.config
    is_first = config.looked_at is None
    is_start = is_beat or (is_first and config.layout_rule is LayoutRule.REFUSE)
    try:
        layout = read_layout(store, is_slot_checked=is_start or is_slot_checked)
        if is_beat and not layout.generation and config.shards is not None:
            layout = create_layout(store, config.shards)
        elif not layout.generation and config.layout.generation and config.found_layout is not None:
            layout = config.layout  # it was lost: a refused writer, or a leader, finds out what there is now
        if is_start:
            _compare(store, layout)
    except StoreCorrupt:
        if config.found_layout is None:
            raise
        return config.layout  # the parts know what is right, and refuse writers
    except StoreUnavailable:
        if is_first and config.layout_rule is not LayoutRule.FOLLOW:
            if not config.is_cluster or config.shards is None:
                raise  # a command isn't to wait twice
            config.looked_at = time.monotonic()  # other nodes may be there; a writer is refused
        return config.layout
    _use(store, layout)
    if is_beat and layout.generation:
        raise_generations(store, [*dict.fromkeys((layout.former_keys.undivided, *layout.parts))])
    return config.layout


def create_layout(store: Store, shards: int) -> Layout:
    """Divide a schedule without entries into so many shards, unless it is divided already.

    Returns the layout that there is then. One that was lost is written again.

    Raises:
        ConfigurationError: it has entries.
        StoreRefused: the layout was lost, and generation keys tell of another number of shards.
    """
    base = store.config.base_keys
    latest = find_latest(store, Layout(base), shards)
    if not latest.generation:
        if text_of(store.ask(_CREATE_LAYOUT.call(base, shards=shards))) == "undivided":
            raise _undivided(shards, base)
    elif latest.shards == shards and not latest.is_moving:
        with suppress(ReshardRefused):  # another program was first
            change_layout(store, Layout(base), latest)
    layout = read_layout(store)
    if not layout.generation:
        raise _lost(latest.guard, layout)
    return layout


def follow_layout(store: Store, refusal: Refusal, *others: Refusal) -> None:
    """Use the layout that is in Redis now, as a script was refused; the first writer writes it.

    Parts without a generation, or with that of a former layout, are told of this one.

    Raises:
        ConfigurationError: ``redbeat_shards`` is set, and the schedule has entries without shards.
        StoreRefused: this user may not read the layout, or there is none, and the part knows of one.
    """
    layout = read_layout(store)
    if not layout.generation and store.config.shards is not None:
        layout = create_layout(store, store.config.shards)
    held = re.match("[0-9]{1,20}", refusal.held)
    if held is not None and int(held[0]) > layout.generation:
        raise _lost(refusal.held, layout, refusal.generation_key)
    _use(store, layout)
    refused = {one.generation_key for one in (refusal, *others)}
    parts = store.config.layout.parts
    raise_generations(store, [part for part in parts if part.generation in refused and part.guard])


def raise_generations(store: Store, parts: Sequence[Keys]) -> None:
    """Let parts be written by those who know their layout; a later generation stays. One trip a node."""
    store.ask_all([_RAISE_GENERATION.call(part) for part in parts])


def _compare(store: Store, layout: Layout) -> None:
    """Raise ConfigurationError if the settings don't suit the layout.

    They may be older than a layout that was changed: the layout counts, and everything is written where it
    belongs.
    """
    shards = store.config.shards
    if not layout.generation and shards is not None:
        base = layout.base
        if store.ask(Command("exists", base.schedule, base.later, base.downgraded)):
            raise _undivided(shards, base)
    elif layout.generation == 1 and shards not in _allowed(layout):
        raise ConfigurationError(_difference(shards, layout), "redbeat_shards")


def _use(store: Store, layout: Layout) -> None:
    """Let this process use a layout from now on; say once that it isn't what the settings say."""
    config = store.config
    if layout.is_moving and layout != config.found_layout:
        # all parts learn of it before this process writes by it: a writer that still goes by the former
        # layout wouldn't find what this one writes, and might write it once more
        with suppress(StoreRefused, StoreUnavailable, StoreCorrupt):  # it may have the right to read only
            raise_generations(store, layout.parts)
    config.found_layout = layout if layout.generation else None
    config.looked_at = time.monotonic()
    if not layout.generation or config.shards in _allowed(layout) or config.layout_rule is LayoutRule.ADOPT:
        return
    difference = _difference(config.shards, layout)
    if config.said.is_news("layout", difference):
        store_logger.warning(
            "%s This process uses what is in Redis.",
            difference,
            extra=LAYOUT_FOLLOWED.of(shards=layout.shards or 0),
        )


def locate_entries(store: Store, names: Sequence[str], *, of_runs: bool = False) -> list[str]:
    """Return the keys under which entries are now, by their names, or would be.

    No round trip, as long as no entries move from one layout to another; then it is one a node. An entry that
    is moving is waited for.

    Arguments:
        of_runs: it is the entries' runs in progress that are looked for: a worker may see nothing else.

    Raises:
        LayoutChanged: it has been moving for too long.
        StoreRefused: this user may not look.
    """
    ends_at = time.monotonic() + MOVE_SECONDS
    while True:
        layout = store.config.layout
        found = {name: layout.keys.entry(name) for name in names}
        hidden = _look_in_former_parts(store, layout, found, of_runs=of_runs) if layout.is_moving else []
        if not hidden:
            return [found[name] for name in names]
        if time.monotonic() > ends_at:
            raise LayoutChanged(
                f"{hidden[0]}: this entry has been on its way to another shard for {MOVE_SECONDS:g} s, "
                "and whoever moves it seems to have stopped: a beat that runs brings it back within "
                "seconds, and celery redbeat reshard goes on with it."
            )
        time.sleep(LOOK_SECONDS)
        look_up_layout(store)


def _look_in_former_parts(store: Store, layout: Layout, found: dict[str, str], *, of_runs: bool) -> list[str]:
    """Put the keys of entries that haven't been moved yet into ``found``; return the names of the hidden.

    Entries move one way only, but for those that are put back. So one that isn't where it was, nor hidden,
    and still isn't where it was, is at home if it is anywhere.
    """
    former = layout.former_keys
    asked = [name for name in found if former.entry(name) != found[name]]
    if not asked:
        return []

    asks = []
    for name in asked:
        key = former.about(name).running if of_runs else former.entry(name)
        exists = Command("exists", as_stored(key))
        asks += [exists, Command("hmget", former.home(name).moving, [as_stored(name)]), exists]
    answers = iter(store.ask_all(asks))
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


def _lost(held: str, layout: Layout, generation_key: str = "") -> StoreRefused:
    """Return the error that a generation key holds a later layout than the one in Redis."""
    key, told = layout.base.layout, _told_by(layout.base, held)
    says = f'says "{layout.guard}"' if layout.generation else "is missing"
    number = "N, the number of shards," if told is None else told.shards or "none"
    return StoreRefused(
        f'{generation_key or "The generation key of a shard"} holds "{held}", and {key} {says}, so that was '
        f"lost, or is of a backup: celery redbeat reshard --to {number} writes it again. If the generation "
        "key was changed by hand, delete that instead."
    )


def _undivided(shards: int, base: Keys) -> ConfigurationError:
    return ConfigurationError(
        f"redbeat_shards is {shards}, and the schedule has entries that aren't divided ({base.schedule}): "
        f"celery redbeat reshard --to {shards} divides them, also under running beats.",
        "redbeat_shards",
    )
