"""Giving stored messages to the broker before their time, as Celery does without RedBeat: a worker then holds
them until their ``eta``.

For those who go back to another scheduler. Invariant: a message is published before it is removed, so a crash
in between publishes it again with the same task id, and loses none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from redbeat.errors import EntryCorrupt
from redbeat.later.message import Message
from redbeat.later.sending import publish
from redbeat.store.later import LaterStore, Listed
from redbeat.store.members import scores_of


def release(app: Any, task_ids: Sequence[str] | None = None) -> Iterator[tuple[str, str]]:
    """Publish stored messages now; yield the task id of each, and why it couldn't be, '' if it is.

    No beat may send stored messages meanwhile.

    Arguments:
        task_ids: None: all.

    Raises what the broker's transport raises, and StoreUnavailable or StoreRefused.
    """
    store = LaterStore(app)
    with app.producer_pool.acquire(block=True) as producer:
        for one in _chosen(store, task_ids):
            yield one.task_id, _release(app, store, producer, one)


def _chosen(store: LaterStore, task_ids: Sequence[str] | None) -> Iterator[Listed]:
    if task_ids is not None:
        yield from (one for one in map(store.find, task_ids) if one is not None)
        return
    kept = 0  # those that couldn't be published stay where they are
    while page := list(store.first(500, kept)):
        yield from page
        found = scores_of(store, [store.keys.stored_message(one.task_id) for one in page])
        kept += sum(1 for score in found if score is not None)


def _release(app: Any, store: LaterStore, producer: Any, one: Listed) -> str:
    key = store.keys.stored_message(one.task_id)
    if one.texts is None:
        return "its entry is gone, or is none of a stored message."
    try:
        message = Message.from_texts(key, one.texts)
        publish(message, producer, app)
    except (EntryCorrupt, LookupError) as exc:
        return str(exc).removeprefix(f"{key}: ")
    store.cancel([one.task_id])
    return ""
