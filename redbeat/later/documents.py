"""Stored messages as programs and pages see them: the fields of each, or why it can't be used. Pure.

Invariant: whatever others have written in its place, a document has values of JSON alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from kombu.utils import json as kombu_json

from redbeat.entries.failures import failure_of
from redbeat.errors import EntryCorrupt
from redbeat.keys import Keys
from redbeat.later.message import Message
from redbeat.schedules.timezones import moment_of
from redbeat.store.later import Listed
from redbeat.store.records import Stored

_dumps: Any = kombu_json.dumps


def document_of(keys: Keys, one: Listed) -> dict[str, Any]:
    """Return the fields of a stored message.

    ``args`` and ``kwargs`` are texts where the body isn't JSON. ``problem`` says why it can't be used, and
    ``error`` why it couldn't be sent; None: nothing is wrong. One that can't be used has few other fields.
    """
    eta = eta_of(one)
    when, error = eta and eta.isoformat(), _reason(one)
    message = _message_of(keys, one)
    if isinstance(message, str):
        return {"task_id": one.task_id, "eta": when, "problem": message, "error": error}
    args, kwargs = _arguments_of(message)
    headers = message.headers
    return {
        "task_id": one.task_id,
        "task": message.task,
        "eta": when,
        "args": args,
        "kwargs": kwargs,
        "content_type": message.content_type,
        "exchange": message.exchange,
        "routing_key": message.routing_key,
        "priority": _number(message.properties.get("priority")),
        "expires": _text(headers.get("expires")) or _iso(message.expires_at),
        "retries": _number(headers.get("retries")),
        "root_id": _text(headers.get("root_id")),
        "parent_id": _text(headers.get("parent_id")),
        "group": _text(headers.get("group")),
        "problem": None,
        "error": error,
    }


def eta_of(one: Listed) -> datetime | None:
    """Return when a stored message is to be sent; None: never, as somebody has given it such a score."""
    return _moment(one.due) if one.due >= 0 else None


def arguments_in_words(document: Mapping[str, Any]) -> str:
    """Return the arguments in a document as one text; '' where they aren't known."""
    args, kwargs = document.get("args"), document.get("kwargs")
    shown = [] if args is None else [str(args)]
    return " ".join([*shown, str(kwargs)] if kwargs and kwargs != "{}" else shown)


def _message_of(keys: Keys, one: Listed) -> Message | str:
    """Return the message, or why it can't be used."""
    key = keys.stored_message(one.task_id)
    if one.texts is None:
        return "its entry is gone, or is none of a stored message."
    try:
        return Message.from_texts(key, one.texts)
    except EntryCorrupt as exc:
        return str(exc).removeprefix(f"{key}: ")


def _arguments_of(message: Message) -> tuple[Any, Any]:
    """Return its arguments as they are stored, a date as an object, say; or the texts about them."""
    known = message.arguments
    if known is not None:
        try:
            args, kwargs = json.loads(_dumps(known))
        except (ValueError, TypeError, RecursionError):
            pass
        else:
            return _of_kind(list, args), _of_kind(dict, kwargs)
    return _text(message.headers.get("argsrepr")), _text(message.headers.get("kwargsrepr"))


def _of_kind(kind: type, value: Any) -> Any:
    return value if isinstance(value, kind) else json.dumps(value)


def _reason(one: Listed) -> str | None:
    """Return why it couldn't be sent; None: nothing is known against it."""
    failure = failure_of(Stored(one.task_id, error=one.error))
    return None if failure is None else str(failure.reason)


def _moment(seconds: Any) -> datetime | None:
    try:
        return moment_of(seconds)
    except (ValueError, TypeError, OverflowError, OSError):
        return None


def _iso(seconds: Any) -> str | None:
    moment = _moment(seconds)
    return None if moment is None else moment.isoformat()


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
