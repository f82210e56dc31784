"""Orphans: what is left in Redis of entries that are gone, found, shown and removed.

celery-redbeat 2.x, redis-cli and evictions remove an entry's hash and nothing else. Invariant: nothing is
removed that belongs to an entry which exists at the time of the removal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from redbeat.store.orphans import Remains, find_kept, remove_orphans
from redbeat.store.owners import StaticNames, read_static_names
from redbeat.store.parts import in_chunks
from redbeat.store.server import Server
from redbeat.store.store import Store

#: what may be left of an entry: each kind, and a sentence about it
KINDS = {
    "member": "it is in the schedule, but its hash is gone",
    "static": "it is named as an entry of beat_schedule, but its hash is gone",
    "downgraded": "it was taken out for celery-redbeat 2.x, and its hash is gone",
    "history": "the record of its runs is there, but its hash is gone",
    "backfilled": "the record of its runs sent by hand is there, but its hash is gone",
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


def find_orphans(app: Any, progress: Callable[[int], object] | None = None) -> Iterator[Orphan]:
    """Yield what is left of entries that are gone.

    This looks at all keys under the prefix, a thousand at a time; Redis serves others meanwhile.
    """
    store = Store(app)
    looked_at, seen = 0, set[Orphan]()
    candidates = (Orphan(*one) for one in find_kept(store))
    for chunk in in_chunks(candidates):
        found = Server(store).which_exist([_entry_key(store, one) for one in chunk])
        for one, exists in zip(chunk, found, strict=True):
            if not exists and one not in seen:  # a scan may return one twice
                seen.add(one)
                yield one
        looked_at += len(chunk)
        if progress is not None:
            progress(looked_at)


def purge_orphans(
    app: Any, orphans: Sequence[Orphan], progress: Callable[[int], object] | None = None
) -> int:
    """Remove ``orphans`` whose entries still don't exist; return how many were removed."""
    store, removed = Store(app), 0
    statics = read_static_names(store)
    members = {_entry_key(store, one): one.text for one in orphans if one.kind == "member"}
    keys = sorted({_entry_key(store, one) for one in orphans})
    looked_at = 0
    for chunk in in_chunks(keys):
        removed += remove_orphans(
            store, [_remains_of(store, key, members.get(key), statics) for key in chunk]
        )
        looked_at += len(chunk)
        if progress is not None:
            progress(looked_at)
    return removed


def _entry_key(store: Store, orphan: Orphan) -> str:
    """Return the key that the entry would have, in the part where the orphan is."""
    if orphan.kind == "member":
        return store.keys.entry_of(orphan.text)
    if orphan.kind in ("static", "downgraded"):
        return orphan.text if orphan.kind == "downgraded" else store.keys.entry(orphan.name)
    return store.parts.of(orphan.text).entry(orphan.name)


def _remains_of(store: Store, key: str, member: str | None, statics: StaticNames) -> Remains:
    keys = store.parts.of(key)
    name = keys.name(key)
    return Remains(key, member or key, name, statics.pairs_of(name), keys.about(name).beside)
