"""Entries that were taken out of the schedule for celery-redbeat 2.x.

Owns ``redbeat::downgraded``: their keys, and the scores that they had. Invariant: an entry stands in the
schedule or there, and beat brings it back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from redbeat.errors import StoreCorrupt
from redbeat.keys import Keys
from redbeat.store.nodes import Command
from redbeat.store.parts import in_chunks
from redbeat.store.records import Fence, LockStatus, Stored, digest_of, read_of, text_of
from redbeat.store.scripts.script import Call, Script

if TYPE_CHECKING:
    from redbeat.store.store import Store

_MOVE_DOWNGRADED = Script("move_downgraded")


def read_downgraded(store: Store) -> dict[str, float | None]:
    """Return the keys of the entries that were taken out for celery-redbeat 2.x, and their old scores.

    A score of None: the value isn't a score, so the entry will be due at once. {}: the key has another type,
    as it isn't needed to run the schedule.
    """
    # celery-redbeat 2.x could run no shards
    texts = {} if store.parts.is_divided else _read(store, store.parts[0])
    return {key: _score_of(text) for key, text in texts.items()}


def put_away(store: Store, entries: Sequence[tuple[str, Stored]], mark: str) -> tuple[str, list[bool]]:
    """Take entries out of the schedule, for celery-redbeat 2.x, unless they have changed since then.

    Returns the token of a leader of version 3, which has prevented all of it, or ''; and for each entry
    whether it was taken out.

    Arguments:
        entries: at most a chunk: the member of each in the schedule, and the entry as it was read.
        mark: the beginning of the token of a leader that would bring them back.
    """
    rows = {
        stored.key: {"member": member, "read": read_of(stored), "read_meta": digest_of(stored.meta or "")}
        for member, stored in entries
    }
    lock_key = store.config.lock_key
    call = _move_call(
        store.parts[0], Fence(lock_key), rows, is_back=False, beginning=mark if lock_key else ""
    )
    _, token, taken = store.ask(call)
    return text_of(token), [*map(bool, taken)]


def bring_back(store: Store, fence: Fence) -> tuple[int, int]:
    """Put the entries back into the schedule that were taken out for celery-redbeat 2.x.

    Returns how many are back, and how many were deleted meanwhile.

    Raises:
        LockLost: another beat holds the lock; nothing was written.
    """
    texts, returned = _read(store, store.keys), 0
    for chunk in in_chunks(texts):
        call = bring_back_call(store.keys, fence, {key: texts[key] for key in chunk})
        status, number = store.ask(call)
        store.check_lock(status, fence)
        returned += number
    return returned, len(texts) - returned


def bring_back_call(part: Keys, fence: Fence, texts: Mapping[str, str]) -> Call[tuple[LockStatus, int]]:
    """Return the call that puts entries of a part back into the schedule, by what is stored of each.

    The reply is the lock's status, and how many are back.
    """
    rows = {
        key: {"score": repr(_score_of(text) or 0.0), "is_static": text.endswith(" static")}
        for key, text in texts.items()
    }
    call = _move_call(part, fence, rows, is_back=True)
    return call.reading(lambda reply: (LockStatus(reply[0]), sum(reply[2])))


def _move_call(
    part: Keys, fence: Fence, rows: Mapping[str, Mapping[str, Any]], *, is_back: bool, beginning: str = ""
) -> Call[Any]:
    named = [{"name": part.name(key), **row} for key, row in rows.items()]
    return _MOVE_DOWNGRADED.call(
        part, fence=fence, beginning=beginning, is_back=is_back, entries=[*rows], rows=named
    )


def _read(store: Store, keys: Keys) -> dict[str, str]:
    """Return what is stored of the entries of one part that were taken out, by their keys.

    Other keys, which another program has written there, may be out of reach: another slot, an ACL.
    """
    with suppress(StoreCorrupt):
        found = store.ask(Command("hgetall", keys.downgraded))
        texts = {text_of(key): text_of(text) for key, text in found.items()}
        return {key: text for key, text in texts.items() if key.startswith(keys.prefix)}
    return {}


def _score_of(text: str) -> float | None:
    """Return the score in ``text``, which ' static' may follow; None: it has none."""
    try:
        score = float(text.partition(" ")[0])
    except ValueError:
        return None
    return None if math.isnan(score) or score == -math.inf else score
