"""The scripts about stored messages: their KEYS, ARGV and replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.records import score_text, text_of
from redbeat.store.scripts import Call
from redbeat.store.scripts.script import Request, Script

_STORE_MESSAGES = Script("store_messages")
_CANCEL_MESSAGES = Script("cancel_messages")


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
        names, args = [keys.later], [keys.wake]
        for one in lot:
            names += keys.stored_message(one.task_id), keys.message_body(one.task_id)
            args += score_text(one.due), one.definition, one.policy, one.revision, *one.texts
        requests.append(Request(names, args))
    return sum(map(int, call(_STORE_MESSAGES, client, requests)))


def cancel_messages(client: Any, keys: Keys, task_ids: Sequence[str]) -> list[MessageTexts | None]:
    """Remove the messages with ``task_ids``; return each; None: it isn't stored."""
    names = [keys.later]
    for task_id in task_ids:
        names += keys.stored_message(task_id), keys.message_body(task_id)
    found = _CANCEL_MESSAGES(client, names, [])
    # a reply ends before its first nil in Lua only, not where false stands for it
    return [None if one is None else MessageTexts(*map(text_of, one)) for one in found]
