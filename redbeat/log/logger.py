"""RedBeat's logger, which is that of Celery's beat: none of its records can forge a line or control a
terminal.

Owns the filter that makes this so, for every record of the logger ``celery.beat``: RedBeat's, Celery's own
(``Scheduler: Sending due task ...``, tracebacks) and records of subclasses. It makes a record's arguments
printable. So text from elsewhere must be an argument of a log call, and never part of the message.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from typing import Any

from celery.utils.log import get_logger

from redbeat.log.events import ATTRIBUTE, BEAT_FAILED
from redbeat.log.text import printable, printable_lines, shorten, text_of

#: how many characters of one value are logged at most, as it may be megabytes
MAX_VALUE = 2_000


def _shortened(text: str) -> str:
    return shorten(printable(text[: MAX_VALUE + 1]), MAX_VALUE)


class PrintableRecords(logging.Filter):
    """Lets every record pass, with values that are printable."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Make the values of ``record`` printable, and the messages of the exceptions in its traceback."""
        if isinstance(record.msg, str):
            record.msg = printable_lines(record.msg)  # written by a programmer, so it may have lines
        elif not record.args:
            record.msg = _shown(record.msg)
        if isinstance(record.args, dict):
            record.args = {name: _shown(value) for name, value in record.args.items()}
        elif record.args:
            record.args = tuple(map(_shown, record.args))
        exc = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if exc is not None and not record.exc_text:
            record.exc_text = printable_traceback(exc)  # formatters use it
            told = getattr(exc, ATTRIBUTE, None)
            if told is None and record.levelno >= logging.CRITICAL:  # Celery's, as the error ends beat
                told = BEAT_FAILED.of(reason=f"{type(exc).__name__}: {_shortened(text_of(exc))}")[ATTRIBUTE]
            if told is not None and not hasattr(record, ATTRIBUTE):  # Celery logs an error of ours
                setattr(record, ATTRIBUTE, told)
        return True


def _shown(value: Any) -> Any:
    """Return ``value`` itself where it can be logged as it is, else its text."""
    if value is None or isinstance(value, (int, float)):
        return value
    try:
        text = str(value)
        is_short = text.isprintable() and len(text) <= MAX_VALUE
        is_safe = is_short and (isinstance(value, str) or repr(value).isprintable())
    except Exception:  # noqa: BLE001 - a value whose text can't be made is left to the formatter
        return value
    return value if is_safe else _shortened(text)


def printable_traceback(exc: BaseException) -> str:
    """Return the traceback of ``exc`` as Python prints it, with the exceptions' messages printable."""
    text = "".join(traceback.format_exception(exc))
    for message in _messages(exc):
        if message and (len(message) > MAX_VALUE or not message.isprintable()):
            text = text.replace(message, _shortened(message))
    return printable_lines(text).removesuffix("\n")


def _messages(exc: BaseException) -> Iterator[str]:
    """Yield the messages and notes of an exception, of its causes, and of the members of a group."""
    seen, left = set[int](), list[BaseException | None]([exc])
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield from (text_of(one), *getattr(one, "__notes__", ()))
            left += [one.__cause__, one.__context__, *getattr(one, "exceptions", ())]


def _printing(named: logging.Logger) -> logging.Logger:
    if not any(isinstance(one, PrintableRecords) for one in named.filters):
        named.addFilter(PrintableRecords())
    return named


logger: logging.Logger = _printing(get_logger("celery.beat"))

#: what the dashboard says: an application in which it is mounted may have set up no logging, and of Celery's
#: loggers nothing is seen then; of any other one Python prints warnings and errors on stderr
web_logger: logging.Logger = _printing(logging.getLogger("redbeat.web"))

#: what any program is told that uses the schedule, such as a script that saves entries: it may have set up no
#: logging, either
store_logger: logging.Logger = _printing(logging.getLogger("redbeat.store"))

#: what workers say about the runs that they track
runs_logger: logging.Logger = _printing(get_logger("celery.redbeat"))

#: this one logs errors of users' signal handlers, and names the task
_printing(get_logger("celery.utils.dispatch.signal"))
