"""Going back to celery-redbeat 2.x: entries that it can't run are taken out of the schedule, and come back
later.

Owns the list of such entries, and the step that takes them out. Their hashes stay as they are; they are only
removed from the schedule, and ``redbeat::downgraded`` stores when each was due. The next leader of version 3
puts them back before its first fetch; each entry's misfire decides about missed runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redbeat.diagnostics.compatibility import Trouble, find_ignored, find_trouble
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.entries.query import read_all
from redbeat.errors import ConfigurationError, EntryCorrupt, EntryNotFound, LockError
from redbeat.store.downgrades import put_away, read_downgraded
from redbeat.store.later import LaterStore
from redbeat.store.lock_tokens import TOKEN_MARK
from redbeat.store.members import count_members
from redbeat.store.parts import CHUNK_SIZE, in_chunks
from redbeat.store.records import Stored
from redbeat.store.store import Store


@dataclass(frozen=True)
class Obstacle:
    """An entry that celery-redbeat 2.x can't run.

    Attributes:
        member: the member of the schedule, a key or a bare name.
        stored: the entry as it was read.
        trouble: why it can't be run.
    """

    name: str
    member: str
    stored: Stored
    trouble: Trouble


@dataclass(frozen=True)
class Findings:
    """What celery-redbeat 2.x would make of a schedule.

    Attributes:
        obstacles: the entries that it can't run.
        ignored: names of entries that it can run, to what it would do differently from their policies.
        away: the names of entries that are taken out already, sorted.
        seen: how many entries the schedule has.
        messages: how many messages are stored.
    """

    obstacles: Sequence[Obstacle]
    ignored: dict[str, list[str]]
    away: Sequence[str]
    seen: int
    messages: int = 0


def examine(app: Any, progress: Callable[[int], object] | None = None) -> Findings:
    """Look at every entry, and write nothing.

    Raises:
        ConfigurationError: the schedule is divided into shards.
    """
    store, seen = _undivided(app), 0
    obstacles: list[Obstacle] = []
    ignored: dict[str, list[str]] = {}
    for member, stored, now in read_all(store):
        seen += 1
        obstacle, otherwise = judge(store, member, stored, now)
        if obstacle is not None:
            obstacles.append(obstacle)
        elif otherwise:
            ignored[store.keys.name(stored.key)] = otherwise
        if progress is not None and not seen % CHUNK_SIZE:
            progress(seen)
    names = (store.keys.name(one.stored.key) for one in obstacles)
    away = sorted(set(map(store.keys.name, read_downgraded(store))).difference(names))
    return Findings(obstacles, ignored, away, seen, count_members(LaterStore.beside(store)))


def _undivided(app: Any) -> Store:
    store = Store(app)
    if store.parts.is_divided:
        raise ConfigurationError(
            f"The schedule is divided into shards ({store.keys.layout}), and celery-redbeat 2.x reads none: "
            "celery redbeat reshard --to none puts it together again; then call this.",
            "redbeat_shards",
        )
    return store


def judge(store: Store, member: str, stored: Stored, now: datetime) -> tuple[Obstacle | None, list[str]]:
    """Return why celery-redbeat 2.x can't run an entry, or what it would do differently from its policy.

    An entry with a negative score is no obstacle, because 2.x doesn't look at it.
    """
    if stored.score is None or stored.score < 0:
        return None, []
    entry, problem = _decoded(store, stored)
    name = store.keys.name(stored.key)
    trouble = find_trouble(member, name, stored, problem, now)
    if trouble is not None:
        return Obstacle(name, member, stored, trouble), []
    return None, [] if entry is None else find_ignored(entry, now)


def _decoded(store: Store, stored: Stored) -> tuple[Any, str]:
    try:
        return decode_entry(RedBeatSchedulerEntry, stored, store.config.app), ""
    except EntryNotFound:
        return None, ""
    except EntryCorrupt as exc:
        return None, str(exc)


def put_all_away(
    app: Any, obstacles: Sequence[Obstacle], progress: Callable[[int], object] | None = None
) -> Iterator[tuple[Obstacle, bool]]:
    """Take ``obstacles`` out of the schedule, 500 in a step; yield each, and False if it has changed
    meanwhile.

    Raises:
        LockError: a beat of version 3 leads, and would bring them back or run them.
        ConfigurationError: the schedule is divided into shards.
    """
    store, done = _undivided(app), 0
    for chunk in in_chunks(obstacles):
        found = put_away(store, [(one.member, one.stored) for one in chunk], TOKEN_MARK)
        if found.token:
            raise LockError(
                f"A beat of version 3 leads ({found.token}), and would bring the entries back: stop all "
                "beats of version 3 first. Where that one has died, delete its lock: redis-cli DEL "
                f"{store.config.lock_key}",
                store.config.lock_key,
            )
        yield from zip(chunk, found.results, strict=True)
        done += len(chunk)
        if progress is not None:
            progress(done)
