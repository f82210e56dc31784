"""What is left in Redis of entries that are gone: everything that is kept for any entry, and its removal.

Invariant: what belongs to an entry that is there by the time of the removal is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import count
from operator import attrgetter, methodcaller
from typing import NamedTuple

from redbeat.keys import EntryKeys, Keys
from redbeat.log.text import as_stored
from redbeat.store.downgrades import read_downgraded
from redbeat.store.members import scan_members
from redbeat.store.owners import read_static_names
from redbeat.store.parts import CHUNK_SIZE
from redbeat.store.records import text_of
from redbeat.store.scripts.script import Call, Script
from redbeat.store.server import Server
from redbeat.store.store import Store

_REMOVE_ORPHANS, _FORGET_RUNS = Script("remove_orphans"), Script("forget_runs")

#: a beat handles a run within moments of its deadline; after this many seconds it is lost
LEFT_SECONDS = 60.0


class LostRun(NamedTuple):
    """What is kept of a run in progress that no beat and no worker handles any more.

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
    for kind in "history", "backfilled", "failing":
        for found in _pages(store, attrgetter(kind)):
            yield from ((kind, store.parts.of(key).kind_of(key)[1], key) for key in found)


def _pages(store: Store, start_in: Callable[[EntryKeys], str]) -> Iterator[list[str]]:
    """Yield the keys that begin as ``start_in`` says and have the right type, page by page."""
    parts = store.parts
    starts = {part.prefix: start_in(part.about("")) for part in parts}
    type_ = parts[0].kind_held(starts[parts[0].prefix])
    for page in Server(store).scan(*starts.values(), kind=type_):
        # one of a former shard has no part
        yield [key for key in page if key.startswith(starts.get(parts.of(key).prefix, ()))]


def find_lost_runs(store: Store) -> Iterator[LostRun]:
    """Yield what is kept of runs in progress that no beat and no worker handles any more.

    All keys under the prefix are looked at. A running beat removes such things by itself, when their
    time has come.
    """
    latest, parts = _latest(store), store.parts
    for page in _pages(store, attrgetter("running")):
        entries = [parts.of(running).entry_of_running(running) for running in page]
        exist = Server(store).which_exist(entries)
        for running, entry, exists in zip(page, entries, exist, strict=True):
            if not exists and _are_old(store, parts.of(running).deadlines, running, latest):
                yield LostRun(entry)
    for part in parts:
        yield from _lost_deadlines(store, part, latest)


def _lost_deadlines(store: Store, keys: Keys, latest: float) -> Iterator[LostRun]:
    for start in count(0, CHUNK_SIZE):
        ask = methodcaller("zrangebyscore", keys.deadlines, "-inf", latest, start=start, num=CHUNK_SIZE)
        members = [*map(text_of, store.ask(ask, keys.deadlines))]
        for member in members:
            task_id, _, running = member.partition("\0")
            if task_id and not _is_run(store, keys, running, task_id):
                yield LostRun(keys.entry_of_running(running), member)
        if len(members) < CHUNK_SIZE:
            return


def forget_runs(store: Store, lost: Sequence[LostRun]) -> list[bool]:
    """Remove what is kept of lost runs, if they still are; return for each whether it was removed."""

    def forget(groups: list[tuple[Keys, list[LostRun]]]) -> Iterator[list[bool]]:
        for part, chunk in groups:
            yield store.run(partial(_forget_call, store, part, chunk))

    return store.parts.in_order(lost, forget, lambda one: one.key)


def _forget_call(store: Store, part: Keys, chunk: list[LostRun]) -> Call[list[bool]]:
    keys = store.present(part)
    call = _FORGET_RUNS.call(
        keys,
        entries=[one.key for one in chunk],
        running=[keys.running(one.key) for one in chunk],
        latest=_latest(store),
        members=[one.member for one in chunk],
    )
    return call.reading(lambda digits: [digit == "1" for digit in text_of(digits)])


def _latest(store: Store) -> float:
    """Return the time up to which deadlines have been left for too long, UNIX seconds."""
    return Server(store).now().timestamp() - LEFT_SECONDS


def _are_old(store: Store, deadlines: str, running: str, latest: float) -> bool:
    """Return True if no deadline of an entry's runs is later than ``latest``."""
    task_ids = store.ask(methodcaller("hgetall", running), running)
    members = [as_stored(f"{text_of(task_id)}\0{running}") for task_id in task_ids]
    scores = store.ask_each(
        [methodcaller("zscore", deadlines, one) for one in members], [deadlines] * len(members)
    )
    return all(score is None or score <= latest for score in scores)


def _is_run(store: Store, keys: Keys, running: str, task_id: str) -> bool:
    if keys.running(keys.entry_of_running(running)) != running:
        return False  # the key isn't this schedule's
    return store.ask(methodcaller("hget", running, as_stored(task_id)), running) is not None


def remove_orphans(store: Store, remains: Sequence[Remains]) -> int:
    """Remove all of it, unless the entries are there by now; return how many texts and keys it was."""
    removed = 0
    for part, chunk in store.parts.chunks(remains, lambda one: one.key):
        removed += store.run(partial(_remove_call, store, part, chunk))
    return removed


def _remove_call(store: Store, part: Keys, chunk: list[Remains]) -> Call[int]:
    keys = store.present(part)
    beside = [  # a key that is to stay is replaced by the entry's, which doesn't exist
        key if key in one.beside else one.key for one in chunk for key in keys.beside(one.key)
    ]
    rows = [{"member": one.member, "name": one.name, "pairs": one.pairs} for one in chunk]
    call = _REMOVE_ORPHANS.call(keys, entries=[one.key for one in chunk], beside=beside, rows=rows)
    return call.reading(int)
