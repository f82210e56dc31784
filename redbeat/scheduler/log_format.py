"""The format of beat's log, as ``redbeat_log_format`` says: Celery's own, or JSON.

Only the formatters of handlers that Celery has set up are replaced; those of the application's own handlers
stay, as Celery leaves them alone, too.

Celery makes a record of each piece that is written to standard output and error: of each value of a
``print``, and of each character ``^`` of Python's last traceback. With JSON pieces are joined to lines.
Invariant: the error that ends beat is logged once, and nothing that was written is lost.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import click
from celery.signals import after_setup_logger, after_setup_task_logger
from celery.utils.log import ColorFormatter, LoggingProxy, get_multiprocessing_logger

from redbeat.config.config import log_format_of
from redbeat.log.formatter import JsonFormatter
from redbeat.log.logger import logger

#: the loggers to which Celery gives handlers, besides the root and that of processes
_NAMES = ("celery", "celery.task", "celery.redirected")


def choose_format(app: Any, *, is_logging: bool) -> bool:
    """Do as ``redbeat_log_format`` of ``app`` says; return whether it says JSON.

    Arguments:
        is_logging: the log is set up. Otherwise it will be later.

    Raises:
        ConfigurationError: the setting can't be used.
    """
    is_json = log_format_of(app) == "json"
    if is_json:
        _use_json()
    if is_logging:
        tell_once_where_redirected()
    if is_logging and is_json:
        _complete_json()
    return is_json


def set_up_early(app: Any) -> None:
    """Set the log up as the command ``celery beat`` is about to do, which ends before that."""
    options = click.get_current_context().params
    app.log.setup(options.get("loglevel"), options.get("logfile"))


def _use_json() -> None:
    """Let Celery's handlers write JSON: those that there are, and those that it sets up later."""
    after_setup_logger.connect(_reformat, dispatch_uid="redbeat-log-format")
    after_setup_task_logger.connect(_reformat, dispatch_uid="redbeat-log-format")
    _reformat()


def _complete_json() -> None:
    """Write whole records where the log is JSON; log that it isn't where it is the application's own."""
    handlers = logging.getLogger().handlers  # not that of processes: Celery sets it up in any case
    if any(isinstance(one.formatter, JsonFormatter) for one in handlers):
        write_whole_records()
    elif handlers:
        logger.warning(
            "beat: redbeat_log_format is 'json', and the log stays as it is, as the application has set it "
            "up itself: give its handlers redbeat.log.JsonFormatter."
        )


def _handlers() -> Iterator[logging.Handler]:
    for each in (logging.getLogger(), get_multiprocessing_logger(), *map(logging.getLogger, _NAMES)):
        yield from each.handlers if each is not None else ()


def _reformat(**_signal: Any) -> None:
    for handler in _handlers():
        if isinstance(handler.formatter, ColorFormatter):  # Celery's; that of tasks is one, too
            handler.setFormatter(JsonFormatter())


# -- standard output and error

#: so many characters without a line end are written as they are
MAX_KEPT = 10_000


def write_whole_records() -> None:
    """Join what is written from now on, and tell of the error that ends the process in one record."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, LoggingProxy) and not isinstance(stream, _WholeLines):
            setattr(sys, name, _WholeLines(stream.logger, stream.loglevel))
    _tell_last_error_once()


def tell_once_where_redirected() -> None:
    """Tell of the error that ends the process in one record if Celery makes records of stderr."""
    if isinstance(sys.stderr, LoggingProxy):
        _tell_last_error_once()


def _tell_last_error_once() -> None:
    if not isinstance(sys.excepthook, _LastWords):
        sys.excepthook = _LastWords(sys.excepthook)


class _WholeLines(LoggingProxy):
    """Celery's stream, which makes records of what it is given: here of whole lines."""

    def __init__(self, named: logging.Logger, level: int) -> None:
        super().__init__(named, level)
        self._kept = threading.local()

    def write(self, data: Any) -> int:
        """Write ``data``, or keep it until its line ends."""
        if not isinstance(data, str):
            return int(super().write(data))
        text = getattr(self._kept, "text", "") + data
        is_whole = text.endswith("\n") or len(text) > MAX_KEPT
        self._kept.text = "" if is_whole else text
        if is_whole:
            super().write(text)
        return len(data)

    def flush(self) -> None:
        """Write what is kept."""
        text, self._kept.text = getattr(self._kept, "text", ""), ""
        if text:
            super().write(text)


class _LastWords(logging.Filter):
    """Python's hook for the error that ends the process.

    Arguments:
        before: the hook that there was; that of another library is called, too.
    """

    def __init__(self, before: Any) -> None:
        super().__init__()
        self._before = before
        self._told: BaseException | None = None
        logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, and remember the error of a critical one."""
        if record.levelno >= logging.CRITICAL and isinstance(record.exc_info, tuple):
            self._told = record.exc_info[1]
        return True

    def __call__(self, kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
        """Log the error, unless Celery has done so."""
        if exc is not self._told:
            # the logger itself gives it the event, as it does to Celery's
            logger.critical("beat: It ends by an error: %r", exc, exc_info=(kind, exc, trace))
        if self._before is not sys.__excepthook__:
            printed = io.StringIO()  # usually the traceback once more, in pieces
            with contextlib.redirect_stderr(printed):
                self._before(kind, exc, trace)
            sys.stderr.write(printed.getvalue())
