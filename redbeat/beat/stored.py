"""What to do about one claimed stored message: it is sent exactly as it is. Decided without I/O.

No policy applies to it: however late it is, it goes, and whether it has expired is the worker's to say.
"""

from __future__ import annotations

from typing import Any

from kombu import serialization

from redbeat.beat.planner import OrdinaryRun
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.failures import failure_of
from redbeat.entries.loading import decode_entry
from redbeat.later.message import Message
from redbeat.schedules.timezones import moment_of
from redbeat.store.later import MessageTexts
from redbeat.store.records import Claimed, Commit, Ending
from redbeat.store.store import read_claimed

_content_types: Any = serialization.prepare_accept_content


def plan_message(
    entry_class: type[RedBeatSchedulerEntry], app: Any, claimed: Claimed, now: float
) -> OrdinaryRun:
    """Return how the stored message of a claimed entry is sent; with it the entry is deleted.

    Arguments:
        now: the server's clock, UNIX seconds.

    Raises:
        EntryCorrupt, or another exception of an unusable entry: quarantine it.
    """
    entry = decode_entry(entry_class, read_claimed(claimed), app)
    accepted = _content_types(app.conf.accept_content)
    texts = MessageTexts(claimed.message or "", claimed.body or "")
    message = Message.from_texts(claimed.key, texts, accepted)
    entry.message, entry.task = message, message.task
    if message.arguments is not None:  # for whoever has hooked in where entries are sent
        entry.args, entry.kwargs = list(message.arguments[0]), dict(message.arguments[1])
    sent = Commit(claimed, Ending.DELETE, task_id=message.task_id)
    failure = failure_of(claimed)
    nominal = failure.due if failure is not None and failure.is_waiting_for(claimed) else claimed.nominal
    left = message.seconds_left(moment_of(now))
    due = nominal or claimed.nominal
    return OrdinaryRun(claimed, due, sent, failure, entry.name, entry.task, entry, left)
