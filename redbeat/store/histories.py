"""What is kept beside entries: the histories of their runs, and which past runs were sent by ``backfill``.

Invariant: nothing here is needed to run the schedule; if a key is missing or has a wrong type, only records
are lost.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from redbeat.errors import LockNotAcquired, RedBeatError, StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.log.text import as_stored
from redbeat.store.locks import LockKey
from redbeat.store.nodes import Command
from redbeat.store.records import text_of
from redbeat.store.store import Store

#: how long the lock of a backfill that was killed lives on, milliseconds
BACKFILLING_MS = 30_000
#: for how long it is remembered what a request has sent, seconds
REQUEST_SECONDS = 24 * 3600


def _beside(store: Store, key: str) -> tuple[str, str, str]:
    """Return the keys of what is kept beside an entry, wherever that is now.

    If it is moved to another shard before something is written there, that follows it.
    """
    return store.keys.beside(*store.located([key]))


def read_pasts(store: Store, keys: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """Return for each entry the records of its history, and the due times that ``backfill`` has sent.

    A key of another type counts as empty.
    """
    asks = []
    for history, backfilled, _ in map(store.keys.beside, store.located(keys)):
        asks += [Command("lrange", history, 0, -1), Command("smembers", backfilled)]
    texts = [[*map(text_of, one or ())] for one in store.ask_all(asks, is_tolerant=True)]
    return [(records, sorted(dues)) for records, dues in zip(texts[::2], texts[1::2], strict=True)]


def read_newest(store: Store, keys: Sequence[str], limit: int) -> list[list[str]]:
    """Return for each entry the newest records of its history; a key of another type counts as empty."""
    histories = [store.keys.beside(key)[0] for key in store.located(keys)]
    asks = [Command("lrange", as_stored(one), 0, limit - 1) for one in histories]
    return [[*map(text_of, one or ())] for one in store.ask_all(asks, is_tolerant=True)]


def take_from_history(store: Store, key: str, record: str) -> None:
    """Remove a record that ``add_records`` has added, as the run wasn't sent.

    Redis away: it stays.
    """
    history, *_ = _beside(store, key)
    with suppress(StoreUnavailable, StoreRefused, StoreCorrupt):
        for text in read_newest(store, [key], store.config.history)[0]:
            if text.endswith(f",{record}}}"):
                store.ask(Command("lrem", history, 1, text))


def are_backfilled(store: Store, key: str, dues: Sequence[str]) -> list[bool]:
    """Return of each due time of an entry True if ``backfill`` has sent that run before."""
    _, backfilled, _ = _beside(store, key)
    found = store.ask(Command("smismember", backfilled, list(dues)))
    return [*map(bool, found)]


def note_backfilled(store: Store, key: str, due: str) -> None:
    """Record that ``backfill`` has sent the run of this due time."""
    _, backfilled, _ = _beside(store, key)
    store.ask(Command("sadd", backfilled, due))


def read_request(store: Store, task_id: str) -> str | None:
    """Return what is remembered of the request whose run has this id; None: nothing is."""
    name = store.keys.request(task_id)
    found: str | None = text_of(store.ask(Command("get", name)))
    return found


def note_request(store: Store, task_id: str, text: str) -> None:
    """Record for ``REQUEST_SECONDS`` what a request for a run of an entry has sent."""
    name = store.keys.request(task_id)
    store.ask(Command("set", name, text, ex=REQUEST_SECONDS))


@contextmanager
def backfilling(store: Store, key: str) -> Iterator[Callable[[], None]]:
    """Keep other backfills of the entry out; yields a function to call before each run.

    Raises:
        LockNotAcquired: another backfill of the entry is running.
    """
    keys, token = store.keys, secrets.token_hex(16)
    backfilling = keys.about(keys.name(key)).backfilling
    lock = LockKey(store.of_part(store.parts.of(key)), backfilling)

    def hold() -> None:
        if not lock.take(token, BACKFILLING_MS):
            raise LockNotAcquired(
                f"{key}: another backfill, rerun or trigger of it is at work, or was killed within the "
                f"last {BACKFILLING_MS // 1000} s; try again later."
            )

    hold()
    try:
        yield hold
    finally:
        with suppress(RedBeatError):  # it ends by itself
            lock.release(token)
