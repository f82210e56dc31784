"""Repairs that lose nothing: of members of the schedule, and of what deleted entries have left behind.

Invariant: no definition is changed. Before anything is removed it is checked a second time, some time after
the doctor's check, and once more in the step that removes it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from redbeat.diagnostics.checks.finding import Finding, Repair
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.errors import EntryCorrupt, EntryNotFound
from redbeat.reshard.sweeping import free_hidden, misplaced, move_home
from redbeat.scheduler.decisions import MISSING_GRACE_SECONDS
from redbeat.store.entries import read_entries
from redbeat.store.later import LaterStore
from redbeat.store.layouts import raise_generations, read_contents, read_layout
from redbeat.store.mover import WAIT_SECONDS, Stray
from redbeat.store.orphans import Remains, remove_orphans
from redbeat.store.owners import read_static_names
from redbeat.store.parts import in_chunks
from redbeat.store.records import Stored
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.store.strays import Strays


def repair(app: Any, findings: Iterable[Finding], is_dry: bool = False) -> Iterator[str]:
    """Carry out the repairs of ``findings``; yield a sentence for each that was made or left.

    Arguments:
        is_dry: repair nothing; the sentences say what would be done.
    """
    wanted = [finding.repair for finding in findings if finding.repair is not None]
    if not wanted:
        return
    with Store.hasty(app) as store:
        if not is_dry:
            time.sleep(MISSING_GRACE_SECONDS)  # some programs write the hash after the member
        for action, mend in _ACTIONS.items():
            chosen = [one for one in wanted if one.action == action]
            for chunk in in_chunks(chosen):
                yield from mend(store, chunk, is_dry)


def _drop(store: Store, repairs: Sequence[Repair], is_dry: bool) -> Iterator[str]:
    words = "taken out of the schedule, as it has no hash"
    return _remove(store, repairs, is_dry, lambda one: Remains(one.entry_key, one.target), lambda _: words)


def _entry_of(store: Store, stored: Stored) -> Any:
    return decode_entry(RedBeatSchedulerEntry, stored, store.config.app)


def _forget(store: Store, repairs: Sequence[Repair], is_dry: bool) -> Iterator[str]:
    statics = read_static_names(store)

    def remains(one: Repair) -> Remains:
        return Remains(one.entry_key, name=one.target, pairs=statics.pairs_of(one.target))

    def words(one: Repair) -> str:
        return f"removed from {store.parts.of(one.entry_key).statics}"

    return _remove(store, repairs, is_dry, remains, words)


def _delete(store: Store, repairs: Sequence[Repair], is_dry: bool) -> Iterator[str]:
    return _remove(
        store, repairs, is_dry, lambda one: Remains(one.entry_key, beside=[one.target]), lambda _: "deleted"
    )


def _remove(
    store: Store,
    repairs: Sequence[Repair],
    is_dry: bool,
    remains: Callable[[Repair], Remains],
    words: Callable[[Repair], str],
) -> Iterator[str]:
    gone = _without_entry(store, repairs)
    if not is_dry:
        gone = [one for one in gone if remove_orphans(store, [remains(one)])]
    would = "would be " if is_dry else ""
    yield from (f"{one.target}: {would}{words(one)}." for one in gone)
    yield from _left(repairs, gone, "there is such an entry by now")


def _schedule_messages(store: Store, repairs: Sequence[Repair], is_dry: bool) -> Iterator[str]:
    later, words = LaterStore.beside(store), "put among the stored messages, at its time"
    for one, stored in zip(repairs, read_entries(store, [one.entry_key for one in repairs])[1], strict=True):
        try:
            due = _entry_of(store, stored).schedule.clocked_time.timestamp()
        except (EntryCorrupt, EntryNotFound, AttributeError) as exc:
            yield f"{one.target}: left alone, its time can't be read: {exc}"
            continue
        if is_dry:
            yield f"{one.target}: would be {words}."
        elif later.schedule(one.entry_key, due):
            yield f"{one.target}: {words}."
        else:
            yield f"{one.target}: left alone, because it has changed meanwhile."


def _delete_bodies(store: Store, repairs: Sequence[Repair], is_dry: bool) -> Iterator[str]:
    later, gone = LaterStore.beside(store), _without_entry(store, repairs)
    ids = [store.keys.message_id(one.entry_key) or "" for one in gone]
    found_at = {one: repair.entry_key for one, repair in zip(ids, gone, strict=True)}
    done = [""] * len(ids) if is_dry else later.take_bodies(ids, found_at)
    would = "would be " if is_dry else ""
    yield from (
        f"{one.target}: {would}deleted." for one, body in zip(gone, done, strict=True) if body is not None
    )
    yield from _left(repairs, gone, "there is such a message by now")


def _move(store: Store, repairs: Sequence[Repair], is_dry: bool) -> Iterator[str]:
    strays = [one for repair in repairs for one in _strays_of(store, repair)]
    moved = set[tuple[str, str]]()
    if strays and not is_dry:
        names = set(move_home(store, strays))
        moved = {(one.source.prefix, one.name) for one in strays if one.name in names}
    for one in dict.fromkeys(strays):
        here, there = one.source.entry(one.name), one.target.entry(one.name)
        if is_dry:
            yield f"{here}: would be moved to {there}."
        elif (one.source.prefix, one.name) in moved:
            yield f"{here}: moved to {there}."
        else:
            yield f"{here}: left alone, because somebody else moves entries there now."


def _strays_of(store: Store, repair: Repair) -> Iterator[Stray]:
    """Yield what is to be moved: an entry, or all that is in a part that is none any more."""
    layout = store.config.layout
    if repair.entry_key == repair.target:
        part = store.parts.of(repair.entry_key)
        yield from misplaced(store, part, [part.name(repair.entry_key)])
        return
    former = layout.former_keys
    number = former.shard_at(repair.target)
    part = former.undivided if number is None else former.of_shard(number)
    [found] = read_contents(store, [part])
    if not layout.is_moving and part.prefix not in {one.prefix for one in store.parts}:
        yield from Strays(store, layout).found_in([replace(part, guard=found.guard)])


def _without_entry(store: Store, repairs: Sequence[Repair]) -> list[Repair]:
    """Return those whose entry doesn't exist, which is checked again."""
    found = {stored.key: stored for stored in read_entries(store, [one.entry_key for one in repairs])[1]}
    gone = [one for one in repairs if not found[one.entry_key].exists]
    if store.config.is_cluster:  # a node that is receiving a slot may not have all of its keys yet
        found_late = Server(store).which_exist([one.entry_key for one in gone])
        gone = [one for one, exists in zip(gone, found_late, strict=True) if not exists]
    return gone


def _left(repairs: Sequence[Repair], done: Sequence[Repair], why: str) -> Iterator[str]:
    yield from (f"{one.target}: left alone, {why}." for one in repairs if one not in done)


def _raise_generations(store: Store, repairs: Sequence[Repair], is_dry: bool) -> Iterator[str]:
    by_key = {part.generation: part for part in store.parts}
    chosen = [by_key[one.target] for one in repairs if one.target in by_key]
    if not is_dry:
        raise_generations(store, chosen)
    would = "would be " if is_dry else ""
    yield from (f"{keys.generation}: {would}set to {keys.guard!r}, if it isn't later." for keys in chosen)


def _free(store: Store, repairs: Sequence[Repair], is_dry: bool) -> Iterator[str]:
    """Wait for some seconds, to see whether whoever moves entries is at work."""
    parts = [] if is_dry else read_layout(store).with_ending
    busy = {part.moving for part in free_hidden(store, parts, wait_seconds=WAIT_SECONDS)}
    for one in repairs:
        if one.target in busy:
            yield f"{one.target}: left alone, because somebody moves entries there now."
        else:
            yield f"{one.target}: what was hidden {'would be' if is_dry else 'is'} moved on."


_ACTIONS: dict[str, Callable[[Store, Sequence[Repair], bool], Iterator[str]]] = {
    "raise-generation": _raise_generations,
    "free": _free,
    "drop": _drop,
    "forget": _forget,
    "delete": _delete,
    "schedule-message": _schedule_messages,
    "delete-body": _delete_bodies,
    "move": _move,
}
