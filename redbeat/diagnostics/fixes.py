"""Fixes that lose nothing: of members of the schedule, and of orphans, which deleted entries leave behind.

celery-redbeat 2.x, redis-cli and evictions remove an entry's hash and nothing else. Invariant: no definition
is changed, and nothing is removed that belongs to an entry which exists at the time of the removal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from redbeat.diagnostics.findings import Finding
from redbeat.reshard.sweeping import free_hidden, misplaced, move_home
from redbeat.scheduler.decisions import MISSING_GRACE_SECONDS
from redbeat.store.layouts import read_contents, read_layout
from redbeat.store.mover import WAIT_SECONDS, Stray
from redbeat.store.orphans import Remains, find_kept, remove_orphans
from redbeat.store.owners import read_static_names
from redbeat.store.parts import in_chunks
from redbeat.store.server import Server
from redbeat.store.store import Store
from redbeat.store.strays import Strays

#: what may be left of an entry: each kind, and a sentence about it
KINDS = {
    "member": "it is in the schedule, but its hash is gone",
    "static": "it is named as an entry of beat_schedule, but its hash is gone",
    "downgraded": "it was taken out for celery-redbeat 2.x, and its hash is gone",
    "history": "the record of its runs is there, but its hash is gone",
    "backfilled": "the record of its runs sent by hand is there, but its hash is gone",
    "failing": "the number of its failures in a row is there, but its hash is gone",
}


class Orphan(NamedTuple):
    """Something that is kept for an entry whose hash is gone.

    Attributes:
        kind: one of ``KINDS``.
        name: the entry's name.
        text: what is in Redis: the member, the name or the key.
    """

    kind: str
    name: str
    text: str


def find_orphans(app: Any, progress: Callable[[int], object] = lambda _done: None) -> Iterator[Orphan]:
    """Yield what is left of entries that are gone.

    This looks at all keys under the prefix, a thousand at a time; Redis serves other clients meanwhile.
    """
    store = Store(app)
    looked_at, seen = 0, set[Orphan]()
    for chunk in in_chunks(Orphan(*one) for one in find_kept(store)):
        exists = Server(store).which_exist([_entry_key(store, one.kind, one.text) for one in chunk])
        for one, is_there in zip(chunk, exists, strict=True):
            if not is_there and one not in seen:  # a scan may return one twice
                seen.add(one)
                yield one
        looked_at += len(chunk)
        progress(looked_at)


def _entry_key(store: Store, kind: str, text: str) -> str:
    """Return the key that the entry would have, in the part where its orphan is."""
    if kind == "member":
        return store.keys.entry_of(text)
    if kind == "static":
        return store.keys.entry(text)
    part = store.parts.of(text)
    return text if kind == "downgraded" else part.entry(part.kind_of(text)[1])


def purge_orphans(
    app: Any, orphans: Sequence[Orphan], progress: Callable[[int], object] = lambda _done: None
) -> int:
    """Remove ``orphans`` whose entries still don't exist; return how many were removed."""
    store, removed, looked_at = Store(app), 0, 0
    members = {_entry_key(store, *one[::2]): one.text for one in orphans if one.kind == "member"}
    for chunk in in_chunks(sorted({_entry_key(store, *one[::2]) for one in orphans})):
        removed += _remove(store, chunk, members)
        looked_at += len(chunk)
        progress(looked_at)
    return removed


def _remove(store: Store, keys: Sequence[str], members: dict[str, str]) -> int:
    """Remove all that is kept for entries that don't exist; return how much it was."""
    statics, remains = read_static_names(store), []
    for key in keys:
        part = store.parts.of(key)
        name, member = part.name(key), members.get(key, key)
        remains.append(Remains(key, member, name, statics.pairs_of(name), part.about(name).beside))
    return remove_orphans(store, remains)


def repair(app: Any, findings: Iterable[Finding], is_dry: bool = False) -> Iterator[str]:
    """Carry out the fixes of ``findings``; yield a sentence for each that was made or left.

    Before anything is removed it is checked a second time, some time after the doctor's check, and once more
    in the step that removes it.

    Arguments:
        is_dry: repair nothing; the sentences say what would be done.
    """
    wanted = [finding for finding in findings if finding.is_fixable]
    if not wanted:
        return
    with Store.hasty(app) as store:
        if not is_dry:
            time.sleep(MISSING_GRACE_SECONDS)  # some programs write the hash after the member
        for kind, fix in FIXES.items():
            targets = (finding.target for finding in wanted if finding.kind == kind)
            for chunk in in_chunks(targets):
                yield from fix(store, chunk, is_dry)


_Fix = Callable[[Store, Sequence[str], bool], Iterator[str]]


def _purge(kind: str, done: str) -> _Fix:
    """Return the fix that removes orphans of a kind, and what else is left of their entries."""

    def fix(store: Store, targets: Sequence[str], is_dry: bool) -> Iterator[str]:
        keys = {target: _entry_key(store, kind, target) for target in targets}
        exists = dict(zip(targets, Server(store).which_exist([*keys.values()]), strict=True))
        gone = {keys[target]: target for target in targets if not exists[target]}
        if not is_dry:
            _remove(store, [*gone], gone if kind == "member" else {})
        for target in targets:
            yield _sentence(target, done, is_dry, "there is such an entry by now" if exists[target] else "")

    return fix


def _sentence(target: str, done: str, is_dry: bool, why_not: str = "") -> str:
    if why_not:
        return f"{target}: left alone, {why_not}."
    return f"{target}: {'would be ' if is_dry else ''}{done}."


def _move(find: Callable[[Store, str], Iterable[Stray]]) -> _Fix:
    """Return the fix that moves strays to where they belong."""

    def fix(store: Store, targets: Sequence[str], is_dry: bool) -> Iterator[str]:
        strays = [one for target in targets for one in find(store, target)]
        moved = set(move_home(store, strays)) if strays and not is_dry else set()
        for one in dict.fromkeys(strays):
            here, there = one.source.entry(one.name), one.target.entry(one.name)
            is_left = not is_dry and one.name not in moved
            why_not = "because another process moves entries there now" if is_left else ""
            yield _sentence(here, f"moved to {there}", is_dry, why_not)

    return fix


def _strays_at(store: Store, key: str) -> Iterable[Stray]:
    part = store.parts.of(key)
    return misplaced(store, part, [part.name(key)])


def _strays_in(store: Store, prefix: str) -> Iterator[Stray]:
    """Yield all that is in a place that is not part of the schedule."""
    layout = store.config.layout
    former = layout.former_keys
    number = former.shard_at(prefix)
    part = former.undivided if number is None else former.of_shard(number)
    [content] = read_contents(store, [part])
    if not layout.is_moving and part.prefix not in {one.prefix for one in store.parts}:
        yield from Strays(store, layout).found_in([replace(part, guard=content.guard)])


def _free(store: Store, targets: Sequence[str], is_dry: bool) -> Iterator[str]:
    """Move on what was left hidden; wait for some seconds, to see whether its mover is at work."""
    parts = [] if is_dry else read_layout(store).with_ending
    busy = {part.moving for part in free_hidden(store, parts, wait_seconds=WAIT_SECONDS)}
    for key in targets:
        why_not = "because another process moves entries there now" if key in busy else ""
        yield _sentence(key, "freed of what was hidden there", is_dry, why_not)


#: the fix of each kind of finding that has one: ``redbeat.diagnostics.findings.FIXABLE``
FIXES: dict[str, _Fix] = {
    "hidden": _free,
    "missing-hash": _purge("member", "taken out of the schedule, as it has no hash"),
    "orphan-static": _purge("static", "removed from the names of beat_schedule"),
    "orphan-key": _purge("history", "deleted"),
    "misplaced": _move(_strays_at),
    "former-part": _move(_strays_in),
}
