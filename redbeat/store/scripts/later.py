"""The scripts about stored messages: their KEYS, ARGV and replies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.records import score_text, text_of
from redbeat.store.scripts import Call
from redbeat.store.scripts.script import Request, Script

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


def store_messages(
    client: Any, keys: Keys, lots: Sequence[Sequence[NewMessage]], call: Call = Script.call_each
) -> int:
    """Store messages, each of the ``lots`` all or none; return how many there were."""
    requests = []
    for lot in lots:
        entries = [keys.stored_message(one.task_id) for one in lot]
        bodies = [keys.message_body(one.task_id) for one in lot if one.texts.body]
        args: list[Any] = [keys.wake, len(lot)]
        for one in lot:
            args += score_text(one.due), one.definition, one.policy, one.revision, *one.texts
        requests.append(Request([keys.later, *entries, *bodies], args, keys))
    return sum(map(int, call(_STORE_MESSAGES, client, requests)))


def cancel_messages(client: Any, keys: Keys, task_ids: Sequence[str], seen: str = "") -> list[str | None]:
    """Remove the messages with ``task_ids``; return each, JSON; None: it isn't stored.

    Arguments:
        seen: only a message with this revision; '': any.
    """
    found = _CANCEL_MESSAGES(client, [keys.later, *map(keys.stored_message, task_ids)], [seen], keys)
    return [text_of(one) for one in found]


def take_bodies(client: Any, keys: Keys, task_ids: Sequence[str]) -> list[str | None]:
    """Remove the bodies of messages that are gone; return each, JSON; None: there is none."""
    names = [keys.later, *map(keys.stored_message, task_ids), *map(keys.message_body, task_ids)]
    return [text_of(one) for one in _TAKE_BODIES(client, names, [len(task_ids)], keys)]


def has_body(message: str) -> bool:
    """Tell whether the JSON of a message has its body, too."""
    try:
        return "body" in json.loads(message)
    except (ValueError, TypeError, RecursionError):
        return False
