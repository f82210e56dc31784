"""Checks of delayed tasks: late and failed ones, orphans, and the broker's visibility timeout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from redbeat.diagnostics.checks.context import Context
from redbeat.diagnostics.checks.finding import Finding, Repair, Severity
from redbeat.entries.failures import failure_of
from redbeat.entries.wording import one_line
from redbeat.later.installing import is_durable
from redbeat.later.visibility import find_short_visibility
from redbeat.log.text import counted, printable
from redbeat.schedules.timezones import moment_of
from redbeat.store.later import LaterStore
from redbeat.store.members import scores_of
from redbeat.store.records import Stored

#: a message that should have been sent so long ago is late
LATE = timedelta(seconds=60)
#: how many messages, the next ones, are looked at for what has gone wrong
LOOKED_AT = 500
#: the kind of finding about a message that couldn't be sent
UNSENT_MESSAGE = "unsent-message"


def check_stored_messages(context: Context) -> Iterator[Finding]:
    """Find stored messages that are late, or couldn't be sent."""
    store = LaterStore.beside(context.store)
    found = list(store.first(LOOKED_AT))
    late = [one for one in found if 0 <= one.due < (context.now - LATE).timestamp()]
    if late:
        number = counted(len(late), "stored message", "stored messages")
        number = f"at least {number}" if len(late) == LOOKED_AT else number
        yield Finding(
            Severity.ERROR,
            "late-messages",
            store.parts.of(store.keys.stored_message(late[0].task_id)).later,
            f"{number} should have been sent, the first at {moment_of(late[0].due)}.",
            "A beat of version 3.0 or later sends them: is one running, and is it the leader? "
            "celery redbeat status says so.",
        )
    for one in found:
        failure = failure_of(Stored(store.keys.stored_message(one.task_id), error=one.error))
        if failure is not None:
            yield Finding(
                Severity.ERROR,
                UNSENT_MESSAGE,
                store.keys.name(store.keys.stored_message(one.task_id)),
                f"It couldn't be sent: {one_line(failure.reason)}",
                "It is tried again by itself; celery redbeat later show says what it is, and later cancel "
                "takes it away.",
            )


def check_visibility(context: Context) -> Iterator[Finding]:
    """Find a visibility timeout of the broker that is shorter than ``redbeat_durable_after``."""
    if not context.has_tasks:
        return
    found = find_short_visibility(context.app)
    if found is not None:
        is_used = is_durable(context.app)
        yield Finding(
            Severity.WARNING if is_used else Severity.NOTE,
            "visibility-timeout",
            "broker_transport_options",
            f"{found}.",
            found.remedy if is_used else f"{found.remedy} Durable tasks need redbeat.later.install(app).",
        )


def find_lost_messages(context: Context, page: Sequence[str]) -> Iterator[Finding]:
    """Find messages that nobody will send, and bodies of messages that are gone, among the keys of a page."""
    store, keys = LaterStore.beside(context.store), context.store.keys
    named = [key for key in page if keys.message_id(key) is not None]
    unsent = [key for key, score in zip(named, scores_of(store, named), strict=True) if score is None]
    for key, is_message in zip(unsent, store.are_messages(unsent), strict=True):
        if is_message:
            yield Finding(
                Severity.ERROR,
                "unscheduled-message",
                context.name_of(key),
                f"It is a stored message, but it isn't in {context.store.parts.of(key).later}, so beat "
                "doesn't know it.",
                "--fix puts it there, at its time.",
                repair=Repair("schedule-message", key, key),
            )
    parts = store.parts
    bodies = {key: id_ for key in page for kind, id_ in [parts.of(key).kind_of(key)] if kind == "body"}
    owners = [keys.stored_message(task_id) for task_id in bodies.values()]
    for body, owner, exists in zip(bodies, owners, context.server.which_exist(owners), strict=True):
        if not exists:
            yield Finding(
                Severity.NOTE,
                "orphan-body",
                printable(body),
                "It is the body of a stored message that doesn't exist any more.",
                "It does no harm; --fix deletes it.",
                repair=Repair("delete-body", owner, body),
            )
