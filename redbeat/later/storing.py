"""Messages on their way to Redis: one by one, or those of a block together.

Invariant: what was given to ``apply_async`` is stored when it returns, or when its block ends; else an
exception says that it isn't.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from threading import Lock
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.entries.validation import find_size_problem
from redbeat.errors import MessageNotStored, MessageRefused, StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.later.message import Message
from redbeat.log.text import is_utf8, printable
from redbeat.store.later import LaterStore
from redbeat.store.messages import NewMessage


class _Block:
    """The messages of a block, by app and task id.

    Tasks of asyncio and threads that have begun in it may outlive it: what they store then isn't part of it.
    """

    def __init__(self) -> None:
        self._waiting: dict[Any, dict[str, NewMessage]] = {}
        self._lock = Lock()
        self.is_open = True

    def add(self, app: Any, message: NewMessage) -> bool:
        """Let ``message`` wait for the end; return False if that has come."""
        with self._lock:
            if self.is_open:
                of_app = self._waiting.setdefault(app, {})
                of_app.pop(message.task_id, None)  # the last one counts
                of_app[message.task_id] = message
            return self.is_open

    def withdraw(self, app: Any, task_id: str) -> bool:
        """Take a message out; return whether it was there."""
        with self._lock:
            return self.is_open and self._waiting.get(app, {}).pop(task_id, None) is not None

    def end(self) -> dict[Any, dict[str, NewMessage]]:
        """Take no more; return what waits."""
        with self._lock:
            self.is_open = False
            return self._waiting


_BATCH: ContextVar[_Block | None] = ContextVar("redbeat_later_batch", default=None)


@contextmanager
def batch() -> Iterator[None]:
    """A block whose stored messages go to Redis together, in one round trip, when it ends.

    If the block raises, none of them is stored. A block inside of another one is part of that.

    Raises:
        MessageNotStored: Redis is away, or refuses; at the end of the block.
    """
    outer = _BATCH.get()
    if outer is not None and outer.is_open:
        yield
        return
    block = _Block()
    token = _BATCH.set(block)
    try:
        yield
    finally:
        _BATCH.reset(token)
        waiting = block.end()
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
    block = _BATCH.get()
    if block is None or not block.add(app, new):
        _store(app, [new])


def withdraw(app: Any, task_id: str) -> bool:
    """Take a message out of the block that it waits for the end of; return whether it was there."""
    block = _BATCH.get()
    return block is not None and block.withdraw(app, task_id)


def _store(app: Any, messages: list[NewMessage]) -> None:
    try:
        LaterStore(app).store(messages)
    except (StoreUnavailable, StoreRefused, StoreCorrupt) as exc:
        which = messages[0].task_id if len(messages) == 1 else f"{len(messages)} messages"
        raise MessageNotStored(f"Not stored, so not sent later: {which}: {exc}") from exc
