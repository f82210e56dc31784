"""A record as one line of JSON, in ASCII."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from redbeat.log.events import ATTRIBUTE, TIMES
from redbeat.log.logger import printable_traceback
from redbeat.log.text import shorten, text_of, whole_characters

#: how many characters of a message, of a value and of a traceback are shown at most
MAX_MESSAGE, MAX_VALUE, MAX_TRACEBACK = 10_000, 2_000, 20_000

#: how many members of a list are shown at most
MAX_MEMBERS = 100


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON: for a handler of any logger.

    Members: ``timestamp`` (ISO 8601, UTC, milliseconds), ``level``, ``logger``, ``message``, ``process`` (the
    process id); where there is one, ``event`` with its fields, and ``exception`` with ``type``, ``message``
    and ``traceback``; ``stack`` where the caller has asked for it.
    """

    #: one was made in this process, so that events that cost time are recorded
    is_used = False

    def __init__(self) -> None:
        super().__init__()
        JsonFormatter.is_used = True

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "timestamp": _iso(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
            "process": record.process,
        }
        event = getattr(record, ATTRIBUTE, None)
        for name, value in event.items() if isinstance(event, Mapping) else ():
            if value is not None:
                line.setdefault(str(name), _iso(value) if name in TIMES else _value(value))
        exc = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        trace = record.exc_text or ("" if exc is None else printable_traceback(exc))
        if trace:
            end = trace if len(trace) <= MAX_TRACEBACK else f"...{trace[3 - MAX_TRACEBACK :]}"
            line["exception"] = {"traceback": whole_characters(end)}  # alone, if another process has sent it
        if exc is not None:
            line["exception"] |= {"type": type(exc).__qualname__, "message": _text(exc, MAX_VALUE)}
        if record.stack_info:
            line["stack"] = record.stack_info
        return json.dumps(line)


def _message(record: logging.LogRecord) -> str:
    try:
        return _text(record.getMessage(), MAX_MESSAGE)
    except Exception as exc:  # noqa: BLE001 - a wrong call of the logger, or a value without a text
        return _text(f"{text_of(record.msg)} (its values can't be shown: {type(exc).__name__})", MAX_MESSAGE)


def _iso(value: datetime | float) -> str:
    """Return a time, UNIX seconds or a datetime, as ISO 8601."""
    moment = value if isinstance(value, datetime) else datetime.fromtimestamp(value, timezone.utc)
    return f"{moment.astimezone(timezone.utc).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _value(value: Any) -> Any:
    """Return ``value`` as JSON can have it."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_value(member) for member in value[:MAX_MEMBERS]]
    return _text(value, MAX_VALUE)


def _text(value: object, limit: int) -> str:
    return whole_characters(shorten(text_of(value), limit))
