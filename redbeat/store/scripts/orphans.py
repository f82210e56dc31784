"""The scripts about what is kept for entries and runs that are gone: their KEYS, ARGV and replies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.records import text_of
from redbeat.store.scripts.script import Script

_REMOVE_ORPHANS = Script("check_layout", "remove_orphans")
_FORGET_RUNS = Script("check_layout", "forget_runs")


class LostRun(NamedTuple):
    """What is kept of runs in progress that nobody looks after any more.

    Attributes:
        key: the entry's.
        member: of the deadlines, the run of which is gone; '': all of an entry's runs, which is gone.
    """

    key: str
    member: str = ""


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


def remove_orphans(client: Any, names: Keys, remains: Sequence[Remains]) -> int:
    """Remove all of it, except of entries that exist by now; return how many texts and keys were removed."""
    common = [names.schedule, names.statics, names.static_owners, names.downgraded]
    beside = [  # a key that is to stay is replaced by the entry's, which doesn't exist
        key if key in one.beside else one.key for one in remains for key in names.beside(one.key)
    ]
    keys = [*common, *(one.key for one in remains), *beside]
    texts = chain.from_iterable((one.member, one.name) for one in remains)
    pairs = ((place, pair) for place, one in enumerate(remains, len(common) + 1) for pair in one.pairs)
    args = [len(remains), *texts, *chain.from_iterable(pairs)]
    return int(_REMOVE_ORPHANS(client, keys, args, names))


def forget_runs(client: Any, names: Keys, lost: Sequence[LostRun], latest: float) -> list[bool]:
    """Remove what nobody looks after; return which of it was removed.

    Arguments:
        latest: a run whose deadline is later, UNIX seconds, is looked after.
    """
    keys = [names.deadlines, *(one.key for one in lost), *(names.running(one.key) for one in lost)]
    args = [len(lost), f"{latest:.6f}", *(one.member for one in lost)]
    answer = _FORGET_RUNS(client, keys, args, names)
    return [digit == "1" for digit in text_of(answer)]
