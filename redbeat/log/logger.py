"""RedBeat's logger, which is that of Celery's beat: none of its records can forge a line or control a
terminal.

Owns the filter that makes this so, for every record of the logger ``celery.beat``: RedBeat's, Celery's own
(``Scheduler: Sending due task ...``, tracebacks) and those of subclasses. It makes a record's arguments
printable. So text from elsewhere must be an argument of a log call, and never part of the message.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from typing import Any, ClassVar

from celery.utils.log import get_logger

from redbeat.log.events import ATTRIBUTE, BEAT_FAILED
from redbeat.log.text import in_local_time, printable, printable_lines, shorten

#: how many characters of one value are logged at most, as it may be megabytes
MAX_VALUE = 2_000


_CAUSED = "The above exception was the direct cause of the following exception:"
_MEANWHILE = "During handling of the above exception, another exception occurred:"


class Shown(str):
    """A value as the log shows it: its text and its repr are printable, and not too long."""

    __slots__ = ("_repr",)

    _repr: str

    def __new__(cls, value: object) -> Shown:
        """Make it from ``value``, whose own text isn't printable, or is too long."""
        made = super().__new__(cls, _shortened(str(value)))
        made._repr = _shortened(repr(value))
        return made

    def __repr__(self) -> str:
        return self._repr


def _shortened(text: str) -> str:
    return shorten(printable(text[: MAX_VALUE + 1]), MAX_VALUE)


class PrintableRecords(logging.Filter):
    """Lets every record pass, with values that are printable, and times in the zone of the log's timestamps.

    Attributes:
        has_utc_timestamps: True once a handler writes JSON, whose timestamps are in UTC.
    """

    has_utc_timestamps: ClassVar[bool] = False

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
        if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None and not record.exc_text:
            record.exc_text = _in_log_time(printable_traceback(record.exc_info[1]))  # formatters use it
            told = getattr(record.exc_info[1], ATTRIBUTE, None)
            if told is None and record.levelno >= logging.CRITICAL:  # Celery's, as the error ends beat
                told = BEAT_FAILED.of(reason=described(record.exc_info[1]))[ATTRIBUTE]
            if told is not None and not hasattr(record, ATTRIBUTE):  # somebody else logs an error of ours
                setattr(record, ATTRIBUTE, told)
        return True


def _shown(value: Any) -> Any:
    """Return ``value`` itself where it can be logged as it is, else its text."""
    if value is None or isinstance(value, (int, float)):
        return value
    try:
        text = str(value)
        local = _in_log_time(text)
        if local != text:
            return Shown(local)
        is_whole = len(text) <= MAX_VALUE or not isinstance(value, (str, BaseException))
        if is_whole and text.isprintable() and (isinstance(value, str) or repr(value).isprintable()):
            return value
        return Shown(value)
    except Exception:  # noqa: BLE001 - a value whose text can't be made is left to the formatter
        return value


def _in_log_time(text: str) -> str:
    return text if PrintableRecords.has_utc_timestamps else in_local_time(text)


def printable_traceback(exc: BaseException) -> str:
    """Return the traceback of ``exc`` as Python prints it, with the exceptions' messages printable."""
    return "".join(_traceback_lines(exc, set())).removesuffix("\n")


def _traceback_lines(exc: BaseException, seen: set[int]) -> Iterator[str]:
    chain, link = [("", exc)], exc
    seen.add(id(exc))
    while True:
        before = link.__cause__
        if before is None and not link.__suppress_context__:
            before = link.__context__
        if before is None or id(before) in seen:
            break
        seen.add(id(before))
        chain.append((_CAUSED if before is link.__cause__ else _MEANWHILE, before))
        link = before
    for between, link in reversed(chain):
        if link.__traceback__ is not None:
            yield "Traceback (most recent call last):\n"
            yield from map(printable_lines, traceback.format_tb(link.__traceback__))
        yield f"{described(link)}\n"
        yield from (f"{_shortened(str(note))}\n" for note in getattr(link, "__notes__", ()))
        for member in getattr(link, "exceptions", ()):  # of a group
            if isinstance(member, BaseException) and id(member) not in seen:
                text = "".join(_traceback_lines(member, seen))
                yield from (f"  | {line}\n" for line in text.removesuffix("\n").split("\n"))
        if between:
            yield f"\n{between}\n\n"


def described(exc: BaseException) -> str:
    """Return the last line of a traceback; the function of ``traceback`` walks through all causes for it."""
    kind = type(exc)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        text = str(exc)
    except Exception:  # noqa: BLE001 - as Python does
        text = "<exception str() failed>"
    return f"{name}: {_shortened(text)}" if text else name


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
