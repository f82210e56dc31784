"""Stored messages: listed, shown and cancelled.

Invariant: nothing leaves of one that ``redbeat_web_hide`` hides, as of an entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, Any

from redbeat.access import Right
from redbeat.errors import EntryChanged, EntryNotFound
from redbeat.later import revoking
from redbeat.later.documents import document_of
from redbeat.later.releasing import release
from redbeat.log.text import as_stored
from redbeat.operations.actor import Actor
from redbeat.operations.hiding import Hiding, hide, may_hide, without_hidden
from redbeat.operations.operation import Option, SeenOption, operation
from redbeat.operations.selection import Cursor, decode_cursor, encode_cursor, invalid_cursor
from redbeat.store.later import LaterStore, Listed
from redbeat.store.members import count_members

#: what stands in place of a sentence that may quote what is hidden
UNTOLD = "Why isn't shown, as it may quote arguments that are hidden."

TaskId = Annotated[str, Option("The task id of the message.")]


@dataclass(frozen=True)
class StoredMessage:
    """A message that is stored until its ``eta`` is near.

    Attributes:
        eta: when it is sent, ISO 8601; null: never, by its score.
        args: a text about them where the body isn't JSON; null: they aren't known.
        kwargs: likewise.
        problem: why it is invalid; most other fields are null then.
        error: why it couldn't be sent; that is tried again.
        revision: changes with the message.
    """

    task_id: str
    eta: str | None
    problem: str | None
    error: str | None
    revision: str
    task: str | None = None
    args: list[Any] | str | None = None
    kwargs: dict[str, Any] | str | None = None
    content_type: str | None = None
    exchange: str | None = None
    routing_key: str | None = None
    priority: int | None = None
    expires: str | None = None
    retries: int | None = None
    root_id: str | None = None
    parent_id: str | None = None
    group: str | None = None


@dataclass(frozen=True)
class StoredMessages:
    """Stored messages, the next one first.

    Attributes:
        count: of all of them.
        next: the cursor to go on with; null: these were the last ones.
    """

    messages: Sequence[StoredMessage]
    count: int
    next: str | None


@dataclass(frozen=True)
class Cancelled:
    """A message that was cancelled."""

    task_id: str


@operation("messages.list", Right.READ, "later", "GET /later")
def list_messages(
    actor: Actor,
    *,
    limit: Annotated[int, Option("At most this many; 0: only their number.", least=0, most=1000)] = 100,
    cursor: Cursor = None,
    offset: int = 0,
) -> StoredMessages:
    """The stored messages, the next one first.

    Arguments:
        offset: how many to leave out at the beginning.

    Raises:
        ArgumentInvalid: the cursor is invalid.
    """
    store = LaterStore(actor.app)
    behind = _place_in(cursor)
    place = offset if behind is None else store.place_after(*behind)
    found = list(store.first(limit, place)) if limit else []
    following = encode_cursor([found[-1].task_id, found[-1].due]) if limit and len(found) == limit else None
    return StoredMessages([_message_of(actor, one) for one in found], count_members(store), following)


@operation("message.show", Right.READ, "later", "GET /later/{task_id}")
def show_message(actor: Actor, task_id: TaskId) -> StoredMessage:
    """A stored message.

    Raises:
        EntryNotFound: it isn't stored.
    """
    return _message_of(actor, _find(actor, task_id))


@operation("message.cancel", Right.DELETE, "later", "DELETE /later/{task_id}", is_destructive=True)
def cancel_message(actor: Actor, task_id: TaskId, *, seen: SeenOption = None) -> Cancelled:
    """Delete a stored message.

    It is never sent, and its result becomes REVOKED.

    Raises:
        EntryNotFound: it isn't stored.
        EntryChanged: another one is stored under its id by now.
    """
    revision = _find(actor, task_id).revision
    try:
        if seen is not None:
            seen.check(task_id, revision)
        with actor.doing("later cancel", [task_id]):
            wanted = "" if seen is None or seen.is_any else revision
            if not revoking.cancel_messages(actor.app, [task_id], seen=wanted):
                _find(actor, task_id)
                raise EntryChanged(f"{task_id}: has been changed meanwhile, so nothing was done.", task_id)
    except EntryChanged as exc:
        exc.revision = _find(actor, task_id).revision
        raise
    return Cancelled(task_id)


@operation("messages.cancel", Right.DELETE, "later cancel", is_destructive=True)
def cancel_messages(actor: Actor, task_ids: Sequence[str]) -> Sequence[str]:
    """Take stored messages away; return the task ids of those that were stored."""
    with actor.doing("later cancel", task_ids):
        return revoking.cancel_messages(actor.app, task_ids)


@operation("messages.release", Right.ADMIN, "later release", is_destructive=True)
def release_messages(actor: Actor, task_ids: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """Publish stored messages now; yield the task id of each, and why it could not be published ('': it was).

    Arguments:
        task_ids: None: all of them.
    """
    with actor.doing("later release", task_ids or ["*"]):
        yield from release(actor.app, task_ids)


def _find(actor: Actor, task_id: str) -> Listed:
    found = LaterStore(actor.app).find(task_id)
    if found is None:
        reason = "is not stored: it was sent, cancelled, or never stored."
        raise EntryNotFound(f"{task_id} {reason}", task_id)
    return found


def _place_in(cursor: str | None) -> tuple[str, float] | None:
    if cursor is None:
        return None
    try:
        task_id, due = decode_cursor(cursor)
        if not isinstance(task_id, str) or isinstance(due, (bool, str)) or not isfinite(float(due)):
            raise ValueError
        as_stored(task_id)
        return task_id, float(due)
    except (ValueError, TypeError, OverflowError):
        raise invalid_cursor() from None


def _message_of(actor: Actor, one: Listed) -> StoredMessage:
    """Return a message without what is hidden."""
    document = document_of(LaterStore(actor.app).keys, one)
    shown = hide(document, actor.hiding)
    if shown["error"]:
        shown["error"] = hide_in_reason(shown["error"], document, actor.hiding)
    if shown["problem"] and may_hide(shown["problem"], actor.hiding):
        shown["problem"] = UNTOLD
    return StoredMessage(**shown, revision=one.revision)


def hide_in_reason(sentence: str, document: Mapping[str, Any], hiding: Hiding) -> str:
    """Return a sentence about a message, which may quote its arguments, without what is hidden."""
    are_texts = any(isinstance(document.get(name), str) for name in ("args", "kwargs"))
    if are_texts and hide(document, hiding) != document:  # what is in them can't be looked for
        return UNTOLD
    return without_hidden(sentence, document, hiding)
