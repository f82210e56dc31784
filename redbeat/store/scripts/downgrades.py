"""The scripts about entries that are taken out for celery-redbeat 2.x: their KEYS, ARGV and replies."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.log.text import sha1_of_text
from redbeat.store.records import Fence, LockStatus, Stored, lock_status_of, text_of, texts_of
from redbeat.store.scripts import Script

_PUT_AWAY = Script("check_layout", "entry_texts", "put_away")
_BRING_BACK = Script("check_layout", "hold_lock", "bring_back")

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


def put_away(
    client: Any, keys: Keys, lock_key: str | None, mark: str, entries: Sequence[tuple[str, Stored]]
) -> PutAway:
    """Take out entries that haven't changed since they were read: each is its member and what was read."""
    names = [keys.schedule, lock_key or keys.schedule, keys.downgraded, keys.statics]
    args: list[Any] = [mark if lock_key else ""]
    for member, stored in entries:
        names.append(stored.key)
        args += member, keys.name(stored.key), _read_of(stored)
    token, results = _PUT_AWAY(client, names, args, keys)
    return PutAway(text_of(token), [bool(result) for result in results])


def bring_back(client: Any, keys: Keys, fence: Fence) -> BroughtBack:
    """Put all entries back into the schedule that were taken out."""
    names = [*fence.keys(keys.schedule), keys.downgraded, keys.statics]
    status, returned, gone, scoreless = _BRING_BACK(client, names, [*fence.args(), keys.prefix], keys)
    return BroughtBack(
        lock_status_of(status), int(returned), int(gone), [str(text_of(key)) for key in scoreless]
    )


def score_of(text: str) -> float | None:
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
