"""What is left in Redis of entries that are gone: everything that is kept for any entry, and its removal.

Invariant: what belongs to an entry that is there by the time of the removal is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from redbeat.store.downgrades import read_downgraded
from redbeat.store.members import scan_members
from redbeat.store.owners import read_static_names
from redbeat.store.scripts.script import Script
from redbeat.store.server import Server
from redbeat.store.store import Store

_REMOVE_ORPHANS = Script("remove_orphans")


class Remains(NamedTuple):
    """What is to be removed of one entry that is gone.

    Attributes:
        key: the entry's.
        member: as it stands in the schedule, '' for nothing.
        name: as it stands in the statics, '' for nothing.
        pairs: the members of the statics' owners that have this name.
        beside: keys that are kept beside it.
    """

    key: str
    member: str = ""
    name: str = ""
    pairs: Sequence[str] = ()
    beside: Sequence[str] = ()


def find_kept(store: Store) -> Iterator[tuple[str, str, str]]:
    """Yield all that is kept for any entry: what it is, the entry's name, and the text in Redis.

    It is a 'member' of the schedule, a name among the statics ('static'), a key that is 'downgraded', or
    the key of a 'history' or of what was 'backfilled'. Every key under the prefix is looked at.
    """
    keys = store.keys
    for page in scan_members(store):
        for member, _ in page:
            yield "member", keys.name(member), member
    statics = read_static_names(store)
    for name in sorted(statics.names | statics.owners.keys()):
        yield "static", name, name
    for key in read_downgraded(store):
        yield "downgraded", keys.name(key), key
    parts = store.parts
    for kind in "history", "backfilled", "failing":
        starts = {part.prefix: part.kinds[kind] for part in parts}
        type_ = parts[0].kind_held(parts[0].kinds[kind])
        for found in Server(store).scan(*starts.values(), kind=type_):
            for key in found:
                part = parts.of(key)
                if key.startswith(starts.get(part.prefix, ())):  # one of a former shard has no part
                    yield kind, part.kind_of(key)[1], key


def remove_orphans(store: Store, remains: Sequence[Remains]) -> int:
    """Remove all of it, unless the entries are there by now; return how many texts and keys it was."""
    removed = 0
    for part, chunk in store.parts.chunks(remains, lambda one: one.key):
        beside = [  # a key that is to stay is replaced by the entry's, which doesn't exist
            key if key in one.beside else one.key for one in chunk for key in part.beside(one.key)
        ]
        rows = [{"member": one.member, "name": one.name, "pairs": one.pairs} for one in chunk]
        entries = [one.key for one in chunk]
        call = _REMOVE_ORPHANS.call(part, entries=entries, beside=beside, rows=rows)
        removed += store.ask(call.reading(int))
    return removed
