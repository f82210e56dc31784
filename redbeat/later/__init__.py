"""Messages with a far-away ``eta``: stored in Redis until then, instead of being held by a worker.

Owns what goes from ``apply_async`` to Redis, and what takes it away again; beat fetches and sends it.

Never: makes a message; it stores what Celery has made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from celery.app import app_or_default

from redbeat.later.installing import DurableTask as DurableTask
from redbeat.later.installing import install as install
from redbeat.later.revoking import cancel_messages
from redbeat.later.storing import batch as batch
from redbeat.store.later import LaterStore
from redbeat.store.members import count_members

__all__ = ["DurableTask", "batch", "cancel", "count", "install"]


def cancel(task_id: str | Iterable[str], app: Any = None) -> list[str]:
    """Take stored messages away before they are sent; return the task ids of those that were stored.

    Their results become REVOKED. Nothing is told to workers, as ``app.control.revoke`` does besides.

    Arguments:
        task_id: one or several.
        app: the Celery app; default: the current one.

    Raises:
        StoreUnavailable, StoreRefused, StoreCorrupt: some may have been taken away.
    """
    return cancel_messages(app_or_default(app), [task_id] if isinstance(task_id, str) else list(task_id))


def count(app: Any = None) -> int:
    """Return how many messages are stored.

    Arguments:
        app: the Celery app; default: the current one.
    """
    return count_members(LaterStore(app_or_default(app)))
