"""A burst of stored messages, measured as `Burst` measures runs of entries: each must be on the queue once.

They are stored by an app as any, with an eta in years, and made due by their scores alone; so the message
that is found is the very one that Celery made. Every third has a body that isn't plain JSON.
"""

from __future__ import annotations

import uuid
from collections import Counter
from datetime import datetime, timezone
from typing import Any

import redis

from redbeat.later import batch, install
from tests.faults.bursts import Burst, Tally, disordered
from tests.faults.layouts import Layout, Sent
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, STATICS

LATER = "redbeat::later"

_FIRST_DUE = 1e9
#: so much later is what a message says of its eta than when it is made due: a test must not wait for it
_ETA_LATER = 1e9


class StoredBurst:
    """So many messages, due since long ago, one every quarter of a second; or all of them at one time, `due`.

    Their task ids are the same for the same `seed`.
    """

    def __init__(self, layout: Layout, runs: int, due: float | None = None, seed: int = 0) -> None:
        self._layout = layout
        self._dues = {
            str(uuid.UUID(int=(seed << 64) + number)): due or _FIRST_DUE + number / 4
            for number in range(runs)
        }
        self._app = layout.make_app()
        install(self._app)

    def write(self) -> None:
        """Store the messages where there are none, and nothing else."""
        self._layout.clear()
        self.write_anew()

    def write_anew(self) -> None:
        """Store them in the place of those of a burst that is out, under beats that run."""
        self._layout.queue.clear()
        with batch():
            for number, (task_id, due) in enumerate(self._dues.items()):
                options: dict[str, Any] = {"compression": "gzip"} if number % 3 == 0 else {}
                eta = datetime.fromtimestamp(due + _ETA_LATER, timezone.utc)
                self._app.send_task("echo", [number], task_id=task_id, eta=eta, **options)
        self._layout.client.zadd(LATER, {_entry(task_id): due for task_id, due in self._dues.items()})

    def is_out(self) -> bool:
        """Whether every one has been recorded as sent; a server that is being restarted is waited for."""
        (left,) = eventually(lambda: (self._layout.client.zcard(LATER),), retry_on=(redis.ConnectionError,))
        return bool(left == 0)

    def has_hidden(self, since: float) -> bool:
        """Whether some are hidden from other beats, by one that has claimed them after `since`."""
        return bool(self._layout.client.zcount(LATER, since, "+inf"))

    def await_messages(self, more: int) -> None:
        """Wait until so many more messages are on the queue, or all of them are out."""
        count = self._layout.queue.count
        wanted = count() + more
        eventually(lambda: count() >= wanted or self.is_out(), 30, 0.001, retry_on=(redis.ConnectionError,))

    def tally(self, kills: int) -> Tally:
        """Count what is on the queue, after so many kills; `miscounted`: those that left something."""
        expected = {
            Sent(task_id, datetime.fromtimestamp(due + _ETA_LATER, timezone.utc).isoformat(), task_id)
            for task_id, due in self._dues.items()
        }
        messages = self._layout.queue.messages()
        sent = Counter(messages)
        keys = [key for task_id in self._dues for key in (_entry(task_id), _body(task_id))]
        with self._layout.client.pipeline() as pipeline:
            for key in keys:
                pipeline.exists(key)
            left = [key for key, exists in zip(keys, pipeline.execute(), strict=True) if exists]
        assert self._layout.client.smembers(STATICS) == {"static"}
        assert self._layout.client.zscore(SCHEDULE, "redbeat:static") is not None
        return Tally(
            runs=len(self._dues),
            kills=kills,
            lost=sorted(message.id for message in expected - sent.keys()),
            doubled=sorted(message.id for message in (sent - Counter(sent.keys())).elements()),
            strange=sorted(message for message in messages if message not in expected),
            miscounted=left,
            disordered=disordered(messages),
        )


#: what is sent: runs of entries, or stored messages
AnyBurst = Burst | StoredBurst


def _entry(task_id: str) -> str:
    return f"redbeat::later:{task_id}"


def _body(task_id: str) -> str:
    return f"redbeat::body:{task_id}"
