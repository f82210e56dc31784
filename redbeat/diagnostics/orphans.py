"""What is left over in Redis of entries that are gone: found, shown and removed.

celery-redbeat 2.x, redis-cli and evictions remove an entry's hash and nothing else. Invariant: what belongs
to an entry that is there, or is there again by the time of the removal, is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from redbeat.store.chunks import in_chunks
from redbeat.store.orphans import Orphans, Remains
from redbeat.store.owners import Owners
from redbeat.store.server import Server
from redbeat.store.store import Store

#: what may be left of an entry
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
        name: of the entry.
        text: as it stands in Redis: the member, the name or the key.
    """

    kind: str
    name: str
    text: str


def find_orphans(app: Any, progress: Callable[[int], object] | None = None) -> Iterator[Orphan]:
    """Yield what is left over of entries that are gone.

    All keys under the prefix are looked at, a thousand at a time; Redis goes on serving others meanwhile.
    """
    store = Store(app)
    looked_at, seen = 0, set[Orphan]()
    candidates = (Orphan(*one) for one in Orphans(store).candidates())
    for chunk in in_chunks(candidates):
        found = Server(store).which_exist([store.keys.about(one.name).entry for one in chunk])
        for one, exists in zip(chunk, found, strict=True):
            if not exists and one not in seen:  # what is changed meanwhile may come twice
                seen.add(one)
                yield one
        looked_at += len(chunk)
        if progress is not None:
            progress(looked_at)


def purge_orphans(
    app: Any, orphans: Sequence[Orphan], progress: Callable[[int], object] | None = None
) -> int:
    """Remove ``orphans``, unless their entries are there by now; return how many it were."""
    store, removed = Store(app), 0
    keys, statics = store.keys, Owners(store).statics()
    members = {one.name: one.text for one in orphans if one.kind == "member"}
    names = sorted({one.name for one in orphans})
    looked_at = 0
    for chunk in in_chunks(names):
        removed += Orphans(store).remove(
            [
                Remains(
                    about.entry, members.get(name, about.entry), name, statics.pairs_of(name), about.beside
                )
                for name, about in zip(chunk, map(keys.about, chunk), strict=True)
            ]
        )
        looked_at += len(chunk)
        if progress is not None:
            progress(looked_at)
    return removed
