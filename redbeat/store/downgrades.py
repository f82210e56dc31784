"""Entries that were taken out of the schedule for celery-redbeat 2.x.

Owns ``redbeat::downgraded``: their keys, and the scores that they had. Invariant: an entry stands in the
schedule or there, and beat brings it back.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from redbeat.connection.retry import is_no_permission
from redbeat.errors import StoreCorrupt, StoreRefused
from redbeat.keys import Keys
from redbeat.log.text import sha1_of_text
from redbeat.store.records import Fence, LockStatus, Stored, lock_status_of, text_of, texts_of
from redbeat.store.rights import DOWNGRADED
from redbeat.store.scripts.script import Call, Script

if TYPE_CHECKING:
    from redbeat.store.store import Store

_PUT_AWAY, _BRING_BACK = Script("put_away"), Script("bring_back")

#: a score as bring_back reads it, perhaps followed by ' static'
_REMEMBERED = re.compile(r"([-+0-9.eE]+|inf)(?: .*)?", re.DOTALL)


class PutAway(NamedTuple):
    """What became of entries that were to be taken out.

    Attributes:
        token: that of a leader of version 3, who has kept all of it from happening; '': there was none.
        results: of each entry, whether it was.
    """

    token: str
    results: list[bool]


class BroughtBack(NamedTuple):
    """What became of entries that had been taken out.

    Attributes:
        returned: how many are back.
        gone: how many were deleted meanwhile.
        scoreless: the keys of those that are back, and whose score was none: they are due at once.
    """

    status: LockStatus
    returned: int
    gone: int
    scoreless: list[str]


def read_downgraded(store: Store) -> dict[str, float | None]:
    """Return the keys of the entries that were taken out for celery-redbeat 2.x, and their old scores.

    A score of None: the value isn't a score, so the entry will be due at once. {}: the key can't be read, or
    has another type, as it isn't needed to run the schedule.
    """

    def read() -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        for key in _keys_of_2x(store):
            with suppress(StoreCorrupt):
                texts = store.ask(partial(_all_fields_of, key), key, "hash")
                found |= {str(text_of(one)): _score_of(str(text_of(text))) for one, text in texts.items()}
        return found

    return store.rights.ask(DOWNGRADED, read, dict)


def count_downgraded(store: Store) -> int:
    """Return how many keys ``read_downgraded`` would return."""
    count = 0
    try:
        for key in _keys_of_2x(store):
            with suppress(StoreCorrupt):
                count += int(store.ask(partial(_number_of_fields, key), key, "hash"))
    except StoreRefused as exc:
        if not is_no_permission(exc.__cause__):
            raise
        return len(read_downgraded(store))
    return count


def put_away(store: Store, entries: Sequence[tuple[str, Stored]], mark: str) -> PutAway:
    """Take entries out of the schedule, for celery-redbeat 2.x, unless they have changed since then.

    Arguments:
        entries: the member of each in the schedule, and the entry as it was read.
        mark: the beginning of the token of a leader that would bring them back. If there is such a leader, no
            entry is taken out.
    """
    results: list[bool] = []
    lock_key = store.config.lock_key
    for part, chunk in store.parts.chunks(entries, lambda one: one[1].key):
        keys = part.keys
        rows = [
            {"member": member, "name": keys.name(stored.key), "read": _read_of(stored)}
            for member, stored in chunk
        ]
        names = [stored.key for _, stored in chunk]
        call = _PUT_AWAY.call(
            keys, lock=lock_key, beginning=mark if lock_key else "", entries=names, rows=rows
        )
        with store.translating(keys.downgraded, "hash", besides={keys.statics: "set"}):
            token, found = call.run(store.client)
        if token:
            return PutAway(text_of(token), [])
        results += map(bool, found)
    return PutAway("", results)


def bring_back(store: Store, fence: Fence) -> BroughtBack:
    """Put the entries back into the schedule that were taken out for celery-redbeat 2.x.

    Raises:
        LockLost: another beat holds the lock; nothing was written.
    """
    found = store.run(lambda: bring_back_call(store.keys, fence))
    store.check_lock(found.status, fence)
    return found


def bring_back_call(part: Keys, fence: Fence) -> Call[BroughtBack]:
    """Return the call that puts all entries of a part back into the schedule."""

    def read(reply: Sequence[Any]) -> BroughtBack:
        status, returned, gone, scoreless = reply
        return BroughtBack(lock_status_of(status), int(returned), int(gone), [*map(text_of, scoreless)])

    return _BRING_BACK.call(part, fence=fence).reading(read)


def _keys_of_2x(store: Store) -> list[str]:
    """Return where such entries stand in the parts that celery-redbeat 2.x could run, which are no shards."""
    base = store.config.base_keys.prefix
    return [part.keys.downgraded for part in store.parts if part.keys.prefix == base]


def _score_of(text: str) -> float | None:
    """Return the score in ``text``, the stored value of an entry that was taken out; None: it has none."""
    found = _REMEMBERED.fullmatch(text)
    try:
        score = float(found[1]) if found else math.nan
    except ValueError:
        return None
    return score if math.isfinite(score) or text.startswith("inf") else None


def _read_of(stored: Stored) -> str:
    if not stored.is_hash:
        return str(stored.type.value)
    if stored.unread_bytes:
        return ""
    return sha1_of_text(f"{texts_of(stored)}\0{stored.meta or ''}")


def _all_fields_of(key: str, client: Any) -> Any:
    return client.hgetall(key)


def _number_of_fields(key: str, client: Any) -> Any:
    return client.hlen(key)
