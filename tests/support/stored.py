"""Messages that an application stores until their eta is near."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
from celery import Celery

from redbeat import later
from redbeat.keys import Keys


def store(
    app: Celery,
    *task_ids: str,
    task: str = "tasks.report",
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    seconds: float = 86_400,
    **options: Any,
) -> None:
    """Let `app` store a message for each task id, to be sent in so many seconds."""
    later.install(app)
    eta = datetime.now(timezone.utc) + timedelta(seconds=seconds)
    with later.batch():
        for task_id in task_ids:
            app.send_task(task, args, dict(kwargs or {}), task_id=task_id, eta=eta, **options)


def make_late(client: redis.Redis, task_id: str, since: float) -> None:
    """Let a stored message be one that should have been sent at `since`, UNIX seconds."""
    assert client.zadd(Keys().later, {Keys().stored_message(task_id): since}, xx=True, ch=True)
