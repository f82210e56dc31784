"""What is kept beside entries: the histories of their runs, and which runs of the past were sent by hand.

Invariant: nothing here is needed to run the schedule; a key that is missing or broken costs a record.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone

from redbeat.errors import LockNotAcquired, RedBeatError, StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.keys import Keys
from redbeat.log.logger import logger
from redbeat.store import scripts as lua
from redbeat.store.records import text_of
from redbeat.store.scripts import release_lock, take_lock
from redbeat.store.scripts.owners import Beside
from redbeat.store.store import Store

__all__ = [
    "add_record",
    "being_the_only_one",
    "note_backfilled",
    "past_of",
    "read_backfilled",
    "read_history",
    "read_pasts",
    "server_now",
]


#: no record of ours is longer, in bytes: its reason is cut
RECORD_BYTES = 16 * 1024

#: so long a backfill that was killed keeps others from going on
BACKFILLING_MS = 30_000


def server_now(store: Store) -> datetime:
    """Return the server's clock, UTC."""
    with store.translating():
        seconds, micros = store.client.time()
    return datetime.fromtimestamp(int(seconds), timezone.utc).replace(microsecond=int(micros))


def read_history(store: Store, key: str, limit: int) -> list[str]:
    """Return the records of the entry under ``key``, the newest first."""
    with store.translating(store.keys.history_of(key), "list"):
        history = store.keys.history_of(key)
        return lua.read_history(store.client, history, limit=limit, record_bytes=RECORD_BYTES)


def read_pasts(store: Store, keys: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """Return of each entry the records of its history, and the nominal times that were sent by hand.

    A key that holds something else has none.
    """
    with store.translating(), store.client.pipeline(transaction=False) as pipeline:
        for key in keys:
            pipeline.lrange(store.keys.history_of(key), 0, -1)
            pipeline.smembers(store.keys.backfilled_of(key))
        found = pipeline.execute(raise_on_error=False)
    texts = [[] if isinstance(one, Exception) else [text_of(text) for text in one] for one in found]
    return [(history, sorted(nominals)) for history, nominals in zip(texts[::2], texts[1::2], strict=True)]


def past_of(
    keys: Keys, key: str, history: Sequence[str] = (), backfilled: Sequence[str] = ()
) -> tuple[Beside, Beside]:
    """Return what :func:`read_pasts` has read, as it is stored; without that, as it is removed."""
    return (
        Beside("history", keys.history_of(key), history),
        Beside("backfilled", keys.backfilled_of(key), backfilled),
    )


def add_record(store: Store, key: str, record: str, at: datetime) -> None:
    """Add a record to the history of the entry under ``key``, where histories are kept.

    One that can't be added is logged only: its run was sent, and who is told of an error sends it again.
    """
    kept, history = store.config.history, store.keys.history_of(key)
    if not kept:
        return
    try:
        with store.translating(history, "list"):
            # room first: who may not make any must not let it grow
            store.client.ltrim(history, *((0, kept - 2) if kept > 1 else (1, 0)))
            store.client.lpush(history, f'{{"at":{at.timestamp():.6f},{record}}}')
    except (StoreUnavailable, StoreRefused, StoreCorrupt) as exc:
        logger.warning("%s: a run was sent by hand, and isn't in its history: %s", key, exc)


def read_backfilled(store: Store, key: str, nominals: Sequence[str]) -> list[bool]:
    """Tell of each nominal time whether that run was sent by ``backfill`` before."""
    backfilled = store.keys.backfilled_of(key)
    with store.translating(backfilled, "set"):
        return [bool(is_member) for is_member in store.client.smismember(backfilled, list(nominals))]


@contextmanager
def being_the_only_one(store: Store, key: str) -> Iterator[Callable[[], None]]:
    """Let nobody else backfill the entry under ``key``; yields what is to be called before each run.

    Raises:
        LockNotAcquired: somebody does it already, or by now.
    """
    lock_key, token = store.keys.backfilling_of(key), secrets.token_hex(16)

    def hold() -> None:
        with store.translating(lock_key, "string"):
            is_ours = take_lock(
                store.client, lock_key, token, taken_ms=BACKFILLING_MS, silent="", rest_ms=0, slack_ms=0
            )
        if not is_ours:
            raise LockNotAcquired(
                f"{key}: another backfill of it is at work, or was killed within the last "
                f"{BACKFILLING_MS // 1000} s; try again later."
            )

    hold()
    try:
        yield hold
    finally:
        with suppress(RedBeatError):  # it ends by itself
            release_lock(store.client, lock_key, token, wake=store.keys.wake)


def note_backfilled(store: Store, key: str, nominal: str) -> None:
    """Remember that ``backfill`` has sent the run of this nominal time."""
    backfilled = store.keys.backfilled_of(key)
    with store.translating(backfilled, "set"):
        store.client.sadd(backfilled, nominal)
