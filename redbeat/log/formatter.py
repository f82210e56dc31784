"""A record as one line of JSON.

Invariant: whatever a record holds, the line is valid JSON in ASCII without a line break, and making it raises
nothing.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from redbeat.log.events import ATTRIBUTE, TIMES
from redbeat.log.logger import PrintableRecords, printable_traceback
from redbeat.log.text import whole_characters

#: how many characters of a message, of a value and of a traceback are shown at most
MAX_MESSAGE, MAX_VALUE, MAX_TRACEBACK = 10_000, 2_000, 20_000

#: how many members of a list are shown at most
MAX_MEMBERS = 100

#: the greatest whole number that every reader of JSON keeps as it is
_MAX_EXACT = 2**53


class JsonFormatter(logging.Formatter):
    """Formats each record as one line of JSON: for a handler of any logger.

    Members: ``timestamp`` (ISO 8601, UTC, milliseconds), ``level``, ``logger``, ``message``, ``process`` (the
    process id); where there is one, ``event`` with its fields, and ``exception`` with ``type``, ``message``
    and ``traceback``; ``stack`` where the caller has asked for it.
    """

    #: one was made in this process, so that what costs time to tell is told
    is_used = False

    def __init__(self) -> None:
        super().__init__()
        JsonFormatter.is_used = PrintableRecords.has_utc_timestamps = True

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line: dict[str, Any] = {
            "timestamp": _moment(record.created),
            "level": _text(record.levelname, MAX_VALUE),
            "logger": _text(record.name, MAX_VALUE),
            "message": _message_of(record),
            "process": _value(record.process),
        }
        told = getattr(record, ATTRIBUTE, None)
        if isinstance(told, Mapping):
            for name, value in told.items():
                if value is not None:
                    line.setdefault(
                        _text(name, MAX_VALUE), _moment(value) if name in TIMES else _value(value)
                    )
        exception = _exception_of(record)
        if exception:
            line["exception"] = exception
        if record.stack_info:
            line["stack"] = _text(record.stack_info, MAX_TRACEBACK)
        return json.dumps(line)


def _message_of(record: logging.LogRecord) -> str:
    try:
        return _text(record.getMessage(), MAX_MESSAGE)
    except Exception as exc:  # noqa: BLE001 - a wrong call of the logger, or a value without a text
        return _text(f"{_text(record.msg, MAX_MESSAGE)} (its values can't be shown: {type(exc).__name__})")


def _exception_of(record: logging.LogRecord) -> dict[str, str]:
    found: dict[str, str] = {}
    if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
        exc = record.exc_info[1]
        found = {"type": _text(type(exc).__qualname__, MAX_VALUE), "message": _text(exc, MAX_VALUE)}
        try:
            found["traceback"] = _text(_end_of(record.exc_text or printable_traceback(exc)), MAX_TRACEBACK)
        except Exception as failure:  # noqa: BLE001 - a traceback that can't be made, as of a huge chain
            found["traceback"] = f"not shown: {type(failure).__name__}"
    elif record.exc_text:  # of a record that came from another process
        found = {"traceback": _text(_end_of(record.exc_text), MAX_TRACEBACK)}
    return found


def _end_of(text: Any) -> Any:
    """Return the end of a long traceback, which says most."""
    is_long = isinstance(text, str) and len(text) > MAX_TRACEBACK
    return f"...{text[3 - MAX_TRACEBACK :]}" if is_long else text


def _moment(value: Any) -> Any:
    """Return a time, UNIX seconds or a datetime, as ISO 8601; another value as it is shown elsewhere."""
    try:
        moment = value
        if not isinstance(value, datetime):
            moment = datetime.fromtimestamp(float(value), timezone.utc)
        utc = moment.astimezone(timezone.utc).replace(tzinfo=None)
        return f"{utc.isoformat(timespec='milliseconds')}Z"
    except Exception:  # noqa: BLE001 - whatever it is, the line is written
        return _value(value)


def _value(value: Any, depth: int = 0) -> Any:
    """Return ``value`` as JSON can have it."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, MAX_VALUE)
    if isinstance(value, int) and abs(value) <= _MAX_EXACT:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, (list, tuple)) and not depth:
        return [_value(member, depth + 1) for member in value[:MAX_MEMBERS]]
    return _text(value, MAX_VALUE)


def _text(value: Any, limit: int = MAX_MESSAGE) -> str:
    """Return the text of ``value``: cut, and without halves of characters, which some readers refuse."""
    if type(value) is str and len(value) <= limit and value.isascii():
        return value
    try:
        if isinstance(value, (bytes, bytearray)):
            text = bytes(value[: limit + 1]).decode("utf-8", "backslashreplace")
        else:
            text = str(value)
        text = text if len(text) <= limit else f"{text[:limit]}..."
        return whole_characters(text)
    except Exception as exc:  # noqa: BLE001 - a value without a text
        return f"not shown: {type(exc).__name__}"
