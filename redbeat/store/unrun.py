"""How often entries were deleted before their first run, so that the doctor finds those that never run.

An entry is due one interval after it was saved. A program that deletes it and saves it again more often than
that keeps it from running, and nothing else tells of it. Invariant: nothing here is needed to run the
schedule, and at most ``MAX_NAMES`` names are kept.
"""

from __future__ import annotations

import json
from contextlib import suppress

from redbeat.errors import StoreCorrupt, StoreRefused
from redbeat.store.records import text_of
from redbeat.store.store import Store

#: how many names are kept: those that were deleted most often
MAX_NAMES = 1_000


def note_deletion(store: Store, key: str) -> None:
    """Record that the entry under ``key`` is about to be deleted; one that has run is forgotten here.

    Raises:
        StoreUnavailable: Redis can't be reached.
    """
    member = store.keys.name(key)
    with suppress(StoreCorrupt):
        meta = store.ask(lambda client: client.hget(key, "meta"), key)
        if meta is None:
            return
        if _has_run(str(text_of(meta))):
            store.ask(lambda client: client.zrem(store.keys.unrun, member), store.keys.unrun)
            return
        store.ask(lambda client: client.zincrby(store.keys.unrun, 1, member), store.keys.unrun)
        least = -MAX_NAMES - 1
        store.ask(lambda client: client.zremrangebyrank(store.keys.unrun, 0, least), store.keys.unrun)


def read_unrun(store: Store) -> dict[str, int]:
    """Return how often each entry was deleted before its first run; {}: it can't be read.

    Raises:
        StoreUnavailable: Redis can't be reached.
    """
    try:
        found = store.ask(
            lambda client: client.zrange(store.keys.unrun, 0, -1, withscores=True), store.keys.unrun
        )
    except (StoreCorrupt, StoreRefused):
        return {}
    return {str(text_of(name)): int(count) for name, count in found}


def _has_run(meta: str) -> bool:
    """Return True if a meta counts runs; True also where it can't be read."""
    try:
        return bool(json.loads(meta).get("total_run_count"))
    except (ValueError, RecursionError, AttributeError):
        return True
