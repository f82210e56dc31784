"""Taking stored messages away before they are sent, and letting their results say that they are revoked.

A worker, which does the latter in Celery, will never see them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

from celery.app.task import Context
from celery.signals import worker_ready

from redbeat.config.masking import mask_secrets
from redbeat.errors import EntryCorrupt, RedBeatError
from redbeat.later.message import Message
from redbeat.later.storing import withdraw
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.store.later import LaterStore
from redbeat.store.messages import MessageTexts

#: by which name workers listen for it
_LISTENER = "redbeat-later"


def cancel_messages(
    app: Any, task_ids: Sequence[str], store: LaterStore | None = None, seen: str = ""
) -> list[str]:
    """Take the stored messages with ``task_ids`` away; return the ids of those that were there.

    Their results become REVOKED, as if a worker had received them.

    Arguments:
        store: another one than the app's.
        seen: only a message with this revision; '': any.

    Raises:
        StoreUnavailable, StoreRefused, StoreCorrupt: some may have been taken away.
    """
    withdrawn = [task_id for task_id in task_ids if withdraw(app, task_id)]
    store = store or LaterStore(app)
    cancelled = []
    for task_id, texts in zip(task_ids, store.cancel(task_ids, seen), strict=True):
        if texts is not None:
            cancelled.append(task_id)
            _note_revoked(app, store.config.keys.stored_message(task_id), task_id, texts)
    return list(dict.fromkeys([*withdrawn, *cancelled]))


def _note_revoked(app: Any, key: str, task_id: str, texts: MessageTexts) -> None:
    """Let the result of a task say that it is revoked; its chord, if it has one, is told, too."""
    try:
        message = Message.from_texts(key, texts)
        request = Context(message.request)
        task = app.tasks.get(message.task)
        is_wanted = not message.headers.get("ignore_result")
    except EntryCorrupt:
        request, task, is_wanted = Context(id=task_id), None, True
    backend = app.backend if task is None else task.backend
    try:
        backend.mark_as_revoked(task_id, "revoked", request=request, store_result=is_wanted)
    except Exception as exc:  # noqa: BLE001 - whatever a backend raises: the message is gone
        logger.warning(
            "redbeat: %s is taken away, but its result can't say that it is revoked: %s",
            printable(task_id),
            printable(mask_secrets(str(exc))),
        )


def cancel_told(app: Any, told: Any) -> None:
    """Take away what a broadcast says that is to be revoked: a task id, or several."""
    task_ids = [told] if isinstance(told, str) else list(told or ())
    task_ids = [one for one in task_ids if isinstance(one, str)]
    if task_ids:
        cancel_messages(app, task_ids)


def listen_in_workers() -> None:
    """Let a worker of this process take away what others tell all workers to revoke."""
    worker_ready.connect(_listen, dispatch_uid=_LISTENER)


def _listen(**_: Any) -> None:
    from celery.worker.control import Panel  # costs much, and only a worker needs it

    revoke = Panel.data.get("revoke")
    if revoke is not None and not hasattr(revoke, "takes_away"):
        Panel.data["revoke"] = _taking_away(revoke)


def _taking_away(revoke: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(revoke)
    def take_away(state: Any, task_id: Any, *args: Any, **options: Any) -> Any:
        found = revoke(state, task_id, *args, **options)
        ids: Iterable[Any] = [task_id] if isinstance(task_id, str) else task_id or ()
        try:
            with LaterStore.hasty(state.app) as store:
                cancel_messages(state.app, [one for one in ids if isinstance(one, str)], store)
        except RedBeatError as exc:
            logger.warning("redbeat: Stored messages can't be revoked now: %s", exc)
        return found

    take_away.takes_away = True  # type: ignore[attr-defined]
    return take_away
