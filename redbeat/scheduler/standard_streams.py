"""What reaches standard output and error of beat: the error that ends it once, and in JSON whole records.

Celery makes a record of each piece that is written there: of each value of a ``print``, and of each character
``^`` of Python's last traceback. Owns how pieces are joined to lines, and what is said of the error that ends
beat. Invariant: each error is told once, and nothing that was written is lost.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
from types import TracebackType
from typing import Any

from celery.utils.log import LoggingProxy

from redbeat.log.logger import logger

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
