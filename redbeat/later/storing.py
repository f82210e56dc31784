"""Messages on their way to Redis: one by one, or those of a block together.

Invariant: what was given to ``apply_async`` is stored when it returns, or when its block ends; else an
exception says that it isn't.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.entries.validation import find_size_problem
from redbeat.errors import MessageNotStored, MessageRefused, StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.later.message import Message
from redbeat.log.text import is_utf8, printable
from redbeat.store.later import LaterStore, NewMessage

#: the messages of a block, by app and task id
_Waiting = dict[Any, dict[str, NewMessage]]

_BATCH: ContextVar[_Waiting | None] = ContextVar("redbeat_later_batch", default=None)


@contextmanager
def batch() -> Iterator[None]:
    """A block whose stored messages go to Redis together, in one round trip, when it ends.

    If the block raises, none of them is stored. A block inside of another one is part of that.

    Raises:
        MessageNotStored: Redis is away, or refuses; at the end of the block.
    """
    if _BATCH.get() is not None:
        yield
        return
    waiting: _Waiting = {}
    token = _BATCH.set(waiting)
    try:
        yield
    finally:
        _BATCH.reset(token)
    for app, messages in waiting.items():
        _store(app, list(messages.values()))


def store_message(app: Any, message: Message, due: datetime) -> None:
    """Store ``message``, to be sent at ``due``, at once or when the block ends.

    Raises:
        MessageNotStored: Redis is away, or refuses.
        MessageRefused: it can't be stored as it is.
    """
    task_id, keys = message.task_id, ensure_conf(app).keys
    if not task_id or not is_utf8(task_id):
        shown = printable(repr(task_id))
        raise MessageRefused(f"The task id {shown} can't be stored: it must be UTF-8.", task_id)
    try:
        new = message.to_new(due, keys.name(keys.stored_message(task_id)))
    except (TypeError, ValueError, RecursionError) as exc:
        raise MessageRefused(
            f"The message of {message.task} ({task_id}) can't be stored: one of its headers or properties "
            f"has no form in JSON: {exc}",
            task_id,
        ) from exc
    texts = new.definition, new.policy, *new.texts
    size_bytes = sum(len(text.encode(errors="surrogateescape")) for text in texts)
    problem = find_size_problem(size_bytes, ensure_conf(app).max_entry_bytes)
    if problem:
        raise MessageRefused(f"The message of {message.task} ({task_id}) can't be stored: {problem}", task_id)
    waiting = _BATCH.get()
    if waiting is None:
        _store(app, [new])
        return
    of_app = waiting.setdefault(app, {})
    of_app.pop(task_id, None)  # the last one counts
    of_app[task_id] = new


def withdraw(app: Any, task_id: str) -> bool:
    """Take a message out of the block that it waits for the end of; return whether it was there."""
    return ((_BATCH.get() or {}).get(app) or {}).pop(task_id, None) is not None


def _store(app: Any, messages: list[NewMessage]) -> None:
    try:
        LaterStore(app).store(messages)
    except (StoreUnavailable, StoreRefused, StoreCorrupt) as exc:
        which = messages[0].task_id if len(messages) == 1 else f"{len(messages)} messages"
        raise MessageNotStored(f"Not stored, so not sent later: {which}: {exc}") from exc
