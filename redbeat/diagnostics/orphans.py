"""What is left over in Redis of entries that are gone: found, shown and removed.

celery-redbeat 2.x, redis-cli and evictions remove an entry's hash and nothing else. Invariant: what belongs
to an entry that is there, or is there again by the time of the removal, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from redbeat.entries.ownership import read_statics
from redbeat.keys import BESIDE_TYPES, glob_of
from redbeat.store.chunks import CHUNK_SIZE, in_chunks
from redbeat.store.records import text_of
from redbeat.store.scripts.leftovers import remove_leftovers
from redbeat.store.store import Store

__all__ = ["KINDS_LEFT", "Leftover", "find_leftovers", "purge_leftovers"]

#: what may be left of an entry
KINDS_LEFT = {
    "member": "it is in the schedule, but its hash is gone",
    "static": "it is named as an entry of beat_schedule, but its hash is gone",
    "downgraded": "it was taken out for celery-redbeat 2.x, and its hash is gone",
    "history": "the record of its runs is there, but its hash is gone",
    "backfilled": "the record of its runs sent by hand is there, but its hash is gone",
}


@dataclass(frozen=True)
class Leftover:
    """Something that is kept for an entry whose hash is gone.

    Attributes:
        kind: one of ``KINDS_LEFT``.
        name: of the entry.
        text: as it stands in Redis: the member, the name or the key.
    """

    kind: str
    name: str
    text: str


def find_leftovers(app: Any, progress: Callable[[int], object] | None = None) -> Iterator[Leftover]:
    """Yield what is left over of entries that are gone.

    All keys under the prefix are looked at, a thousand at a time; Redis goes on serving others meanwhile.
    """
    store = Store(app)
    looked_at, seen = 0, set[Leftover]()
    candidates = _candidates(store)
    for chunk in in_chunks(candidates):
        with store.translating(), store.client.pipeline(transaction=False) as pipeline:
            for one in chunk:
                pipeline.exists(store.keys.entry(one.name))
            found = pipeline.execute()
        for one, exists in zip(chunk, found, strict=True):
            if not exists and one not in seen:  # what is changed meanwhile may come twice
                seen.add(one)
                yield one
        looked_at += len(chunk)
        if progress is not None:
            progress(looked_at)


def _candidates(store: Store) -> Iterator[Leftover]:
    """Yield all that is kept for any entry."""
    keys, cursor = store.keys, 0
    while True:
        with store.translating():
            cursor, members = store.client.zscan(keys.schedule, cursor, count=CHUNK_SIZE)
        for member, _ in members:
            yield Leftover("member", keys.name(_raw(member)), _raw(member))
        if not int(cursor):
            break
    statics = read_statics(store)
    for name in sorted(statics.names | statics.owners.keys()):
        yield Leftover("static", name, name)
    for key in store.read_downgraded():
        yield Leftover("downgraded", keys.name(key), key)
    for names, type_ in BESIDE_TYPES.items():
        kind, start = names.strip(":"), f"{keys.prefix}{names}"
        pattern = f"{glob_of(start)}*"
        with store.translating():
            for key in store.client.scan_iter(match=pattern, count=2 * CHUNK_SIZE, _type=type_):
                yield Leftover(kind, _raw(key).removeprefix(start), _raw(key))


def purge_leftovers(
    app: Any, leftovers: Sequence[Leftover], progress: Callable[[int], object] | None = None
) -> int:
    """Remove ``leftovers``, unless their entries are there by now; return how many it were."""
    store, removed = Store(app), 0
    keys = store.keys
    members = {one.name: one.text for one in leftovers if one.kind == "member"}
    names = sorted({one.name for one in leftovers})
    statics = read_statics(store)
    looked_at = 0
    for chunk in in_chunks(names):
        entries = [(keys.entry(name), members.get(name, keys.entry(name)), name) for name in chunk]
        owned = [statics.pairs_of(name) for name in chunk]
        beside = [key for entry, _, _ in entries for key in keys.beside(entry)]
        with store.translating():
            removed += remove_leftovers(store.client, keys, entries, owned, beside)
        looked_at += len(chunk)
        if progress is not None:
            progress(looked_at)
    return removed


def _raw(value: Any) -> str:
    return str(text_of(value))
