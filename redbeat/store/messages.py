"""Calls about stored messages: a message, its entry and its body come and go together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.layout import ShardedKeys
from redbeat.store.nodes import Command
from redbeat.store.records import HASH, Stored, score_text, text_of
from redbeat.store.scripts.script import Call, Script
from redbeat.store.store import Store

_STORE_MESSAGES, _CANCEL_MESSAGES = Script("store_messages"), Script("cancel_messages")
_TAKE_BODIES = Script("take_bodies")


class MessageTexts(NamedTuple):
    """What is stored of one message.

    Attributes:
        message: JSON.
        body: JSON about a body that isn't JSON itself; '': ``message`` has it.
    """

    message: str
    body: str = ""


class NewMessage(NamedTuple):
    """A message that is to be stored.

    Attributes:
        task_id: of its task.
        due: when it is to be sent, UNIX seconds.
        definition, policy, revision: texts of its entry.
        texts: of the message itself.
    """

    task_id: str
    due: float
    definition: str
    policy: str
    revision: str
    texts: MessageTexts


def store_call(keys: Keys, lot: Sequence[NewMessage], *, must_exist: bool = False) -> Call[int]:
    """Return the call that stores messages of one part, all or none; the reply is how many there were.

    Arguments:
        must_exist: they only replace others, as they belong to another part; 0: one isn't there any more.
    """
    call = _STORE_MESSAGES.call(
        keys,
        entries=[keys.stored_message(one.task_id) for one in lot],
        bodies=[keys.message_body(one.task_id) for one in lot if one.texts.body],
        must_exist=must_exist,
        rows=[
            {
                "score": score_text(one.due),
                "definition": one.definition,
                "policy": one.policy,
                "revision": one.revision,
            }
            for one in lot
        ],
        texts=[*chain.from_iterable(one.texts for one in lot)],
    )
    return call.reading(int)


def cancel_call(part: Keys, keys: Sequence[str], seen: str = "") -> Call[list[str | None]]:
    """Return the call that removes messages by their entries; the reply is each, JSON; None: it isn't stored.

    Arguments:
        seen: only a message with this revision; '': any.
    """
    return _CANCEL_MESSAGES.call(part, entries=keys, seen=seen).reading(_texts_of)


def bodies_call(keys: Keys, task_ids: Sequence[str]) -> Call[list[str | None]]:
    """Return the call that removes bodies of messages that are gone; the reply is each, JSON, or None."""
    entries, bodies = [*map(keys.stored_message, task_ids)], [*map(keys.message_body, task_ids)]
    return _TAKE_BODIES.call(keys, entries=entries, bodies=bodies).reading(_texts_of)


def _texts_of(reply: Sequence[Any]) -> list[str | None]:
    return [*map(text_of, reply)]


def body_of(keys: Keys, key: str) -> str:
    """Return the key of the body of the message whose entry is under ``key``."""
    beside = keys.at(key) if isinstance(keys, ShardedKeys) else keys  # wherever the entry is
    return beside.message_body(beside.message_id(key) or "")


def body_texts(store: Store, keys: Sequence[str]) -> list[str | None]:
    """Return the body of each entry's message that stands beside it; None: none does, or is in reach."""
    found = store.try_all([Command("get", body_of(store.keys, key)) for key in keys])
    # a user may have no right to bodies
    return [text_of(one) if isinstance(one, (str, bytes)) else None for one in found]


def read_bodies(store: Store, rows: Sequence[Stored]) -> None:
    """Read the bodies of fetched messages that aren't JSON; another round trip where there are any."""
    rows = [row for row in rows if row.type == HASH and not row.unread_bytes]
    for row in rows:
        row.message = row.message or ""
    apart = [row for row in rows if row.message and not has_body(row.message)]
    if apart:
        for row, body in zip(apart, body_texts(store, [row.key for row in apart]), strict=True):
            row.body = body


def has_body(message: str) -> bool:
    """Return True if the JSON of a message has its body, too."""
    try:
        return "body" in json.loads(message)
    except (ValueError, TypeError, RecursionError):
        return False
