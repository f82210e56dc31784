"""The scripts that move entries from one part of the schedule to another: their KEYS, ARGV and replies.

What is kept for an entry is the server's own bytes of it (``DUMP``), so replies to these scripts aren't
decoded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.log.text import as_stored
from redbeat.store.scripts.script import Request, Script

HIDE_ENTRIES = Script("check_layout", "move_keys", "try_rights", "hide_entry", "hide_entries", is_raw=True)
RECEIVE_ENTRIES = Script(
    "check_layout",
    "move_keys",
    "try_rights",
    "merge_kept",
    "receive_entry",
    "receive_entries",
    is_raw=True,
)
PUT_BACK = Script("check_layout", "move_keys", "merge_kept", "receive_entry", "put_back", is_raw=True)
CANCEL_MOVE = Script("check_layout", "move_keys", "cancel_move", is_raw=True)
CHANGE_OWNED = Script("check_layout", "move_keys", "change_owned", is_raw=True)
DROP_HIDDEN = Script("check_layout", "move_keys", "drop_hidden", is_raw=True)
CLOSE_PART = Script("check_layout", "move_keys", "close_part", is_raw=True)
READ_HIDDEN = Script("move_keys", "read_hidden", is_raw=True)
OPEN_PART = Script("open_part", is_raw=True)
BORROW_PART = Script("borrow_part", is_raw=True)
_CHANGE_LAYOUT = Script("change_layout")

#: what a script says whose caller isn't the one any more who moves entries
FENCED = "MOVER Another process"


class Item(NamedTuple):
    """What is moved: an entry, or something of a part's own.

    Attributes:
        name: the entry's; or what is the part's own, with a colon in front.
        kept: which keys may be kept for it: of each its kind, as ``Keys.kinds`` has it, and the rest.
        owners: whose ``beat_schedule`` has it, as far as is known.
    """

    name: str
    kept: tuple[tuple[str, str], ...]
    owners: tuple[str, ...] = ()


class Kept(NamedTuple):
    """What was hidden of an item, as the server's own bytes.

    Attributes:
        name: the item's.
        record: what it was in its part, JSON.
        values: four for each key: its kind, the rest of it, when it ends, and what it holds.
    """

    name: bytes
    record: bytes
    values: Sequence[bytes]


class OnItsWay(NamedTuple):
    """What a part notes of something that it has hidden.

    Attributes:
        move: the id of the move.
        target: how the keys of entries begin in the part to which it goes.
        since: when it was hidden, UNIX seconds.
    """

    move: str
    target: str
    since: float


def on_its_way(record: bytes) -> OnItsWay | None:
    """Return what a part notes of something that it has hidden; None: somebody else has written that."""
    try:
        noted = json.loads(record.decode("utf-8", "surrogateescape"))
        return OnItsWay(str(noted["id"]), str(noted["to"]), float(noted["at"]))
    except (ValueError, TypeError, KeyError):
        return None


def hide_request(
    part: Keys,
    token: str,
    move: str,
    target: Keys,
    items: Sequence[Item],
    margin_seconds: float | None,
    max_bytes: int,
    *,
    is_foreign: bool,
) -> Request:
    """Return the request to hide ``items`` of ``part``.

    Arguments:
        margin_seconds: what is due so soon stays; None: nothing does.
        is_foreign: they were written there by somebody who doesn't know the layout.
    """
    margin = "" if margin_seconds is None else f"{margin_seconds:.6f}"
    args: list[Any] = [token, move, target.entry(""), margin, int(is_foreign), max_bytes]
    args += *_kinds_in(part), len(items)
    for item in items:
        args += item.name, len(item.owners), *item.owners, len(item.kept), *chain.from_iterable(item.kept)
    return Request([*_keys_in(part), part.mover, part.moving, part.left, part.arriving], args, part)


def hidden_of(items: Sequence[Item], reply: Any) -> tuple[float, list[Kept | str]]:
    """Return the server's clock, and what was hidden of each item, or a word that says why it wasn't."""
    now, rows = reply
    found: list[Kept | str] = []
    for item, row in zip(items, rows, strict=True):
        word = row[0].decode()
        found.append(Kept(as_stored(item.name), row[1], row[2:]) if word == "hidden" else word)
    return float(now), found


def receive_request(part: Keys, token: str, move: str, items: Iterable[Kept]) -> Request:
    """Return the request to write what was hidden to ``part``."""
    found = list(items)
    args: list[Any] = [token, move, part.wake, *_kinds_in(part), len(found)]
    for item in found:
        args += item.name, item.record, len(item.values) // 4, *item.values
    return Request([*_keys_in(part), part.mover, part.arrived, part.arriving], args, part)


def received_of(reply: Any) -> tuple[list[str], list[str]]:
    """Return of each item why it couldn't be written, '' if it is, and keys of what couldn't be merged.

    'before' is said of one that couldn't be at an earlier call.
    """
    written, refused = reply
    problems = ["" if isinstance(one, int) else _text(one) for one in written]
    return problems, [_text(key) for key in refused]


def cancel_request(part: Keys, token: str, move: str, names: Sequence[bytes]) -> Request:
    """Return the request to write nothing of a move to ``part``, unless that was done.

    The reply are the names of what wasn't written.
    """
    return Request([part.mover, part.arrived], [token, move, len(names), *names], part)


def put_back_request(part: Keys, token: str, move: str, names: Sequence[bytes]) -> Request:
    """Return the request to put back what ``part`` has hidden of items."""
    args = [token, move, part.wake, *_kinds_in(part), len(names), *names]
    return Request([*_keys_in(part), part.mover, part.moving, part.left], args, part)


def owned_request(part: Keys, token: str, change: str, owner: str, names: Sequence[str]) -> Request:
    """Return the request to 'add' names to an owner's in ``part``, or to 'remove' them."""
    return Request([part.mover, part.owner(owner)], [token, change, len(names), *names], part)


def drop_request(part: Keys, token: str, move: str, names: Sequence[bytes]) -> Request:
    """Return the request to remove what ``part`` has hidden of items that were written elsewhere."""
    args = [token, move, *_kinds_in(part), len(names), *names]
    return Request([part.mover, part.moving], args, part)


def read_hidden_request(part: Keys, token: str, limit: int) -> Request:
    """Return the request to read what ``part`` has hidden."""
    return Request([part.mover, part.moving], [token, limit, *_kinds_in(part)])


def found_hidden_of(reply: Any) -> list[Kept]:
    """Return what a part has hidden."""
    return [Kept(row[0], row[2], row[3:]) for row in reply]


def open_request(part: Keys, text: str, token: str) -> Request:
    """Return the request to let ``part`` be written within the layout ``text``, its entries be moved by
    ``token``; '': by nobody.
    """
    return Request([part.generation, part.mover], [text, token])


def close_request(part: Keys, token: str, keys: Sequence[str]) -> Request:
    """Return the request to remove ``keys`` of ``part``."""
    return Request([part.mover, *keys], [token], part)


def borrow_request(part: Keys, token: str, lease_ms: int, instead: str = "") -> Request:
    """Return the request to be the one who moves entries of ``part``, unless somebody else is.

    Arguments:
        instead: the token of who has been that, and isn't any more; '': nobody's.
    """
    return Request([part.mover], [token, lease_ms, instead])


def change_layout(
    client: Any,
    layout_key: str,
    *,
    read: str,
    before: str,
    generation: int,
    shards: int | None,
    former: int | None,
    state: str,
    swept_seconds: int,
) -> bool:
    """Change the layout if it is the one that was read; False: it isn't.

    Arguments:
        read, before: the generation and the state that were read; '': there was none.
        state: 'moving', 'settling' or ''.
        swept_seconds: for how long former places are swept, when entries don't move any more.
    """
    args = [read, before, generation, shards or 0, former or 0, state, swept_seconds]
    return bool(_CHANGE_LAYOUT(client, [layout_key], args))


def _keys_in(part: Keys) -> list[str]:
    return [
        *(part.schedule, part.later, part.statics, part.static_owners, part.downgraded),
        *(part.deadlines, part.expected, part.streaks),
    ]


def _kinds_in(part: Keys) -> list[Any]:
    args: list[Any] = [len(part.kinds)]
    for word, beginning in part.kinds.items():
        args += word, beginning, part.hidden(word), part.unmoved(word)
    return args


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)
