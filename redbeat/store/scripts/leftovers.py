"""The script about leftovers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from redbeat.keys import Keys
from redbeat.store.scripts import Script

__all__ = ["remove_leftovers"]

_REMOVE_LEFTOVERS = Script("remove_leftovers")


def remove_leftovers(
    client: Any,
    names: Keys,
    entries: Sequence[tuple[str, str, str]],
    owned: Sequence[Sequence[str]],
    beside: Sequence[str],
) -> int:
    """Remove what is kept for entries that are gone; return how many members, names and keys it was.

    Arguments:
        names: those of the schedule.
        entries: of each its key, its member in the schedule, and its name in the statics.
        owned: for each entry the members of the statics' owners that have its name.
        beside: for each entry its history's key, and that of its runs sent by hand.
    """
    common = [names.schedule, names.statics, names.static_owners, names.downgraded]
    keys = [*common, *(key for key, *_ in entries), *beside]
    pairs = chain.from_iterable((member, name) for _, member, name in entries)
    owners = ((len(common) + 1 + place, member) for place, members in enumerate(owned) for member in members)
    return int(_REMOVE_LEFTOVERS(client, keys, [len(entries), *pairs, *chain.from_iterable(owners)]))
