"""Messages that are stored until their ``eta`` is near."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

from redbeat.access import Right
from redbeat.log.text import as_stored
from redbeat.operations import later
from redbeat.operations.selection import decode_cursor, encode_cursor, invalid_cursor
from redbeat.store.later import Listed
from redbeat.web.api.cursors import CURSOR, path_on
from redbeat.web.api.etags import changed, check, etag_of, is_conditional
from redbeat.web.api.kinds import Field, whole
from redbeat.web.api.operations import IF_MATCH, Answer, Call, Operation
from redbeat.web.api.problems import Refusal
from redbeat.web.api.schemas import of


def list_messages(call: Call) -> Answer:
    """List stored messages, the next one first, and count them all."""
    limit = call.query["limit"]
    found = later.list_(call.actor, limit, behind=_place_in(call.query["cursor"])) if limit else []
    last = encode_cursor([found[-1].task_id, found[-1].due]) if limit and len(found) == limit else None
    return Answer(
        {
            "messages": _shown(call, found),
            "count": later.count(call.actor),
            "next": path_on(call, "/later", last),
        }
    )


def show_message(call: Call) -> Answer:
    """Show one."""
    found = _found(call)
    [shown] = _shown(call, [found])
    return Answer(shown, headers={"ETag": shown["etag"]})


def cancel_message(call: Call) -> Answer:
    """Take one away before it is sent."""
    revision = _found(call).revision
    check(call, revision)
    seen = revision if is_conditional(call) else ""
    if not later.cancel(call.actor, call.place["task_id"], seen):
        # another one may be stored under its id by now
        raise changed("It has been changed meanwhile, so nothing was done.", _found(call).revision)
    return Answer({"task_id": call.place["task_id"]})


def _found(call: Call) -> Listed:
    found = later.find(call.actor, call.place["task_id"])
    if found is None:
        raise Refusal(404, "There is no such stored message: it was sent, cancelled, or never stored.")
    return found


def _shown(call: Call, found: Sequence[Listed]) -> list[dict[str, Any]]:
    return [
        {
            **document,
            "href": call.href("later", one.task_id),
            "etag": etag_of(one.revision),
        }
        for one, document in zip(found, later.documents(call.actor, found), strict=True)
    ]


def _place_in(cursor: str | None) -> tuple[str, float] | None:
    if cursor is None:
        return None
    try:
        task_id, due = decode_cursor(cursor)
        if not isinstance(task_id, str) or isinstance(due, (bool, str)) or not isfinite(float(due)):
            raise ValueError
        as_stored(task_id)
        return task_id, float(due)
    except (ValueError, TypeError, OverflowError):
        raise invalid_cursor() from None


OPERATIONS: Sequence[Operation] = (
    Operation(
        *("GET", "/later", "later", Right.READ, "The stored messages, the next one first.", list_messages),
        {200: of("StoredMessages")},
        (Field("limit", whole(0, 1000), "At most so many; 0: only their number.", default=100), CURSOR),
    ),
    Operation(
        *("GET", "/later/{task_id}", "later", Right.READ, "A stored message.", show_message),
        {200: of("StoredMessage")},
        has_etag=True,
    ),
    Operation(
        *(
            "DELETE",
            "/later/{task_id}",
            "later",
            Right.DELETE,
            "Take a stored message away.",
            cancel_message,
        ),
        {200: of("Cancelled")},
        headers=(IF_MATCH,),
    ),
)
