"""The stored messages of one shard: fetched, sent and recorded as entries are, from a zset of their own.

A message is sent exactly as it is. Its entry is made from the message: what else stands in Redis about the
entry is for others. No policy applies to it: however late it is, it goes, and whether it has expired is the
worker's to say.
Invariant: no round trip more while none is due, as each fetch of the schedule says when the first one is.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from kombu import serialization

from redbeat.config.config import ensure_conf
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import failure_of
from redbeat.later.message import Message
from redbeat.policy.policy import Policy
from redbeat.scheduler.batch import Batch
from redbeat.scheduler.decisions import Send
from redbeat.schedules import clocked
from redbeat.schedules.timezones import moment_of, nearest_moment_of
from redbeat.store.later import LaterStore
from redbeat.store.messages import MessageTexts
from redbeat.store.records import Commit, Ending, Fence, Fetched, Stored
from redbeat.store.schedule import fetch_due

#: how soon to go on where the broker can't take all; seconds
SOON_SECONDS = 1.0

#: of each stored message's entry
_POLICY = Policy(one_off=True, after_finish="delete")

_content_types: Any = lru_cache(maxsize=8)(serialization.prepare_accept_content)


class StoredMessages:
    """The stored messages of one shard, as far as they are due.

    Arguments:
        store: has them.
        begin: returns the batch of what was fetched.
        deliver: delivers a batch.

    Attributes:
        head_score: when the first one is to be sent, UNIX seconds; None: there is none.
        next_at: the same, monotonic; inf: there is none.
    """

    def __init__(
        self,
        store: LaterStore,
        begin: Callable[[Fetched], Batch],
        deliver: Callable[[Sequence[Batch]], None],
    ) -> None:
        self._store, self._begin, self._deliver = store, begin, deliver
        self._not_before = 0.0  # monotonic
        self.head_score: float | None = None
        self.next_at = math.inf

    def note_head(self, head_score: float | None, now: float, at: float) -> None:
        """Record when the first message is to be sent.

        Arguments:
            now: the server's clock, UNIX seconds, ``at`` this monotonic time.
        """
        self.head_score = head_score
        self.next_at = math.inf if head_score is None else max(at + (head_score - now), self._not_before)

    def send(self, fence: Fence, lease_ms: int) -> Batch:
        """Send one batch of due messages.

        Arguments:
            lease_ms: how long they are hidden from other beats; 0: they aren't.

        Raises what ``deliver`` raises.
        """
        limit = self._store.config.batch_size
        fetched = fetch_due(self._store, fence, limit=limit, lease_ms=lease_ms).run()
        fetched_at = time.monotonic()
        batch = self._begin(fetched)
        self._deliver([batch] if fetched.rows else [])
        left = [float(one.new_score) for one in batch.recorded if isinstance(one.new_score, str)]
        if fetched.next_score is not None:
            left.append(fetched.next_score)
        if fetched.has_more or batch.is_cut:
            left.append(fetched.now)
        self._not_before = time.monotonic()
        if batch.is_in_doubt:
            self._not_before += SOON_SECONDS
        self.note_head(min(left, default=None), fetched.now, fetched_at)
        return batch


def plan_message(entry_class: type[RedBeatSchedulerEntry], app: Any, due_entry: Stored, now: float) -> Send:
    """Return how the stored message of a fetched entry is sent; with it the entry is deleted.

    Arguments:
        now: the server's clock, UNIX seconds.

    Raises:
        EntryCorrupt, or another exception of an unusable entry: quarantine it.
    """
    accepted = _content_types(tuple(app.conf.accept_content))
    texts = MessageTexts(due_entry.message or "", due_entry.body or "")
    message = Message.from_texts(due_entry.key, texts, accepted)
    args, kwargs = message.arguments or ((), {})  # for whoever has hooked in where entries are sent
    entry = entry_class(
        name=ensure_conf(app).keys.name(due_entry.key),
        task=message.task,
        schedule=clocked(nearest_moment_of(float(due_entry.nominal))),
        args=list(args),
        kwargs=dict(kwargs),
        app=app,
    )
    entry.message, entry.policy, entry.stored = message, _POLICY, due_entry
    entry.last_run_at = None  # as of any entry that hasn't run
    sent = Commit(due_entry, Ending.DELETE, task_id=message.task_id)
    failure = failure_of(due_entry)
    nominal = failure.due if failure is not None and failure.is_waiting_for(due_entry) else due_entry.nominal
    left = message.seconds_left(moment_of(now))
    due = nominal or due_entry.nominal
    return Send(
        due_entry,
        sent,
        entry.name,
        entry.task,
        due,
        "",
        message.task_id,
        expiration_seconds=left,
        failure=failure,
        entry=entry,
    )
