"""``later``: the messages that are stored until their ``eta`` is near, looked at and taken away.

Invariant: nothing leaves of one that ``redbeat_web_hide`` hides, as of an entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redbeat.access import Right
from redbeat.later.documents import document_of
from redbeat.later.revoking import cancel_messages
from redbeat.operations.actor import Actor
from redbeat.operations.hiding import Hiding, hide, hiding_of, may_hide, without_hidden
from redbeat.store.later import LaterStore, Listed
from redbeat.store.members import count_members

#: what stands in place of a sentence that may quote what is hidden
UNTOLD = "Why isn't shown, as it may quote arguments that are hidden."


def count(actor: Actor) -> int:
    """Return how many messages are stored."""
    return count_members(_stored(actor))


def list_(
    actor: Actor, limit: int, offset: int = 0, *, behind: tuple[str, float] | None = None
) -> list[Listed]:
    """Return stored messages, the next one first.

    Arguments:
        limit: how many at most.
        offset: how many to leave out at the beginning.
        behind: the task id and the score of the one before the first, instead.
    """
    store = _stored(actor)
    place = offset if behind is None else store.place_after(*behind)
    return list(store.first(limit, place))


def find(actor: Actor, task_id: str) -> Listed | None:
    """Return the message with ``task_id``; None: it isn't stored."""
    return _stored(actor).find(task_id)


def documents(actor: Actor, found: Sequence[Listed]) -> list[dict[str, Any]]:
    """Return the fields of messages, without what is hidden."""
    keys, hiding = LaterStore(actor.app).keys, hiding_of(actor.app)
    return [_without_hidden(document_of(keys, one), hiding) for one in found]


def cancel(actor: Actor, task_id: str, revision: str = "") -> bool:
    """Take a message away before it is sent; return whether it was there.

    Arguments:
        revision: only this one; '': whichever is stored.
    """
    actor.require(Right.DELETE)
    with actor.doing("later cancel", [task_id]):
        return bool(cancel_messages(actor.app, [task_id], seen=revision))


def _stored(actor: Actor) -> LaterStore:
    actor.require(Right.READ)
    return LaterStore(actor.app)


def _without_hidden(document: Mapping[str, Any], hiding: Hiding) -> dict[str, Any]:
    shown = hide(document, hiding)
    if shown["error"]:
        shown["error"] = hide_in_reason(shown["error"], document, hiding)
    if shown["problem"] and may_hide(shown["problem"], hiding):
        shown["problem"] = UNTOLD
    return shown


def hide_in_reason(sentence: str, document: Mapping[str, Any], hiding: Hiding) -> str:
    """Return a sentence about a message, which may quote its arguments, without what is hidden."""
    are_texts = any(isinstance(document.get(name), str) for name in ("args", "kwargs"))
    if are_texts and hide(document, hiding) != document:  # what is in them can't be looked for
        return UNTOLD
    return without_hidden(sentence, document, hiding)
