"""Planning a stored message: a delayed task, which is fetched, sent and recorded as a due entry is.

A message is sent exactly as it is. Its entry is made from the message: what else stands in Redis about the
entry is for others. No policy applies to it: however late it is, it goes, and whether it has expired is the
worker's to say.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from kombu import serialization

from redbeat.config.config import ensure_conf
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import failure_of
from redbeat.later.message import Message
from redbeat.policy.policy import Policy
from redbeat.scheduler.decisions import Send
from redbeat.schedules import clocked
from redbeat.schedules.timezones import moment_of, nearest_moment_of
from redbeat.store.messages import MessageTexts
from redbeat.store.records import Commit, Ending, Stored

#: of each stored message's entry
_POLICY = Policy(one_off=True, after_finish="delete")

_content_types: Any = lru_cache(maxsize=8)(serialization.prepare_accept_content)


def plan_message(
    entry_class: type[RedBeatSchedulerEntry], app: Any, due_entry: Stored, now: float, _calendars: object
) -> Send:
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
