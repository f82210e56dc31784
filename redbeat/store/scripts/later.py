"""The scripts about stored messages: their KEYS, ARGV and replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.records import score_text, text_of
from redbeat.store.scripts.script import Call, Request, Script, positional

_STORE_MESSAGES = Script("check_layout", "store_messages")
_CANCEL_MESSAGES = Script("check_layout", "cancel_messages")
_TAKE_BODIES = Script("check_layout", "take_bodies")


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


def store_messages(keys: Keys, lot: Sequence[NewMessage], *, must_exist: bool = False) -> Call[int]:
    """Store messages of one part, all or none; the answer is how many there were.

    Arguments:
        must_exist: they only replace others, as they belong to another part; 0: one isn't there any more.
    """
    entries = [keys.stored_message(one.task_id) for one in lot]
    bodies = [keys.message_body(one.task_id) for one in lot if one.texts.body]
    args: list[Any] = [keys.wake, len(lot), int(must_exist)]
    for one in lot:
        args += score_text(one.due), one.definition, one.policy, one.revision, *one.texts
    return positional(_STORE_MESSAGES, Request([keys.later, *entries, *bodies], args, keys), int)


def cancel_messages(keys: Keys, task_ids: Sequence[str], seen: str = "") -> Call[list[str | None]]:
    """Remove the messages with ``task_ids``; the answer is each, JSON; None: it isn't stored.

    Arguments:
        seen: only a message with this revision; '': any.
    """
    names = [keys.later, *map(keys.stored_message, task_ids)]
    return positional(_CANCEL_MESSAGES, Request(names, [seen], keys), _texts)


def take_bodies(keys: Keys, task_ids: Sequence[str]) -> Call[list[str | None]]:
    """Remove the bodies of messages that are gone; the answer is each, JSON; None: there is none."""
    names = [keys.later, *map(keys.stored_message, task_ids), *map(keys.message_body, task_ids)]
    return positional(_TAKE_BODIES, Request(names, [len(task_ids)], keys), _texts)


def _texts(reply: Sequence[Any]) -> list[str | None]:
    return [text_of(one) for one in reply]


def has_body(message: str) -> bool:
    """Tell whether the JSON of a message has its body, too."""
    try:
        return "body" in json.loads(message)
    except (ValueError, TypeError, RecursionError):
        return False
