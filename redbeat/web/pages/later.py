"""The stored messages, which beat sends when their ``eta`` has come: page by page, and each by itself."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime

from starlette.responses import Response
from starlette.routing import BaseRoute

from redbeat.access import Right
from redbeat.errors import EntryChanged, EntryNotFound, StoreRefused
from redbeat.later.documents import arguments_in_words
from redbeat.log.text import shorten
from redbeat.operations import later
from redbeat.operations.later import StoredMessage, StoredMessages, list_messages
from redbeat.operations.later import show_message as read_message
from redbeat.operations.operation import Seen
from redbeat.web.routes import action, page
from redbeat.web.visit import Visit

#: how many messages a page has, and how many characters of the arguments of each
SHOWN, ARGUMENTS = 50, 200
#: the fields of a message that stand in a place of their own on its page
_APART = ("task_id", "revision", "eta", "args", "kwargs", "problem", "error")
#: what is said of a message that isn't there
GONE = "isn't stored: it was sent, cancelled, or never stored."
#: what cancelling one does
ABOUT_CANCEL = "It is never sent, and its result says REVOKED. There is no way back."


def show_later(visit: Visit) -> Response:
    """Return the list."""
    offset = visit.number("offset")
    found, problem = StoredMessages([], 0, None), ""
    try:
        found = list_messages(visit.actor, limit=SHOWN, offset=offset)
    except StoreRefused as exc:  # a right is lacking, and the page says which one
        problem = exc.plain
    return visit.render(
        "later_part.html" if visit.is_fragment else "later.html",
        title="Later",
        rows=[
            (one, _eta_of(one), arguments_in_words(asdict(one)) if one.task else "") for one in found.messages
        ],
        problem=problem,
        total=found.count,
        offset=offset,
        most=ARGUMENTS,
        about_cancel=ABOUT_CANCEL,
        here=visit.link("later", offset=offset or None),
        previous=visit.link("later", offset=max(offset - SHOWN, 0) or None) if offset else None,
        following=visit.link("later", offset=offset + SHOWN)
        if found.next and offset + SHOWN < found.count
        else None,
    )


def show_message(visit: Visit) -> Response:
    """Return the page of one message."""
    task_id = visit.query.get("task_id", "").strip()
    try:
        found = read_message(visit.actor, task_id)
    except EntryNotFound:
        return visit.render("later_gone.html", 404, title="Stored message", sentence=_gone(task_id))
    return visit.render(
        "later_message.html",
        title=f"Stored message {shorten(task_id, 200)}",
        task_id=task_id,
        document=asdict(found),
        apart=_APART,
        eta=_eta_of(found),
        about_cancel=ABOUT_CANCEL,
    )


def cancel_message(visit: Visit) -> Response:
    """Take one away, when that is confirmed."""
    task_id, revision = visit.typed("task_id"), visit.typed("revision")
    if not visit.is_confirmed:
        question, fields = f"Revoke {shorten(task_id, 200)}?", {"task_id": task_id, "revision": revision}
        action, back = visit.link("later", "cancel"), visit.link("later")
        return visit.ask(question, "Revoke", action, fields.items(), back=back, more=ABOUT_CANCEL)
    notice = f"Revoked {shorten(task_id, 200)}: it is never sent."
    try:
        later.cancel_message(visit.actor, task_id, seen=Seen([revision]) if revision else None)
    except (EntryChanged, EntryNotFound):
        notice = _gone(task_id)
    return visit.see("later", notice=notice)


def _eta_of(one: StoredMessage) -> datetime | None:
    return None if one.eta is None else datetime.fromisoformat(one.eta)


def _gone(task_id: str) -> str:
    return f"{shorten(task_id, 200)} {GONE}" if task_id else "Give a task id."


ROUTES: list[BaseRoute] = [
    page("/later", show_later),
    page("/later/message", show_message),
    action("/later/cancel", cancel_message, right=Right.DELETE),
]
