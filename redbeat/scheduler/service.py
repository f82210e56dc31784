"""The process of a beat: Celery's service, the log as ``redbeat_log_format`` says, and how beat ends.

Owns what RedBeat knows of Celery's ``Service`` and of its log besides the documented parts; what a version of
Celery does not have is left out. Only the formatters of handlers that Celery has set up are replaced; the
application's own handlers keep theirs. Invariant: the error that ends beat is logged once.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import celery.beat
from billiard.process import current_process
from celery.signals import after_setup_logger, after_setup_task_logger
from celery.utils.log import ColorFormatter, LoggingProxy, get_multiprocessing_logger

from redbeat.config.config import log_format_of
from redbeat.errors import ConfigurationError, LockLost, RedBeatError
from redbeat.log.events import ATTRIBUTE, BEAT_MISCONFIGURED, LEADER_LOST
from redbeat.log.formatter import JsonFormatter
from redbeat.log.logger import logger
from redbeat.process.exit_codes import CONFIG, CommandLineError, is_beat_command
from redbeat.process.signals import HAS_BEEN_TERMINATED

Error = TypeVar("Error", bound=RedBeatError)

#: the loggers to which Celery gives handlers, besides that of processes
_LOGGERS = ("", "celery", "celery.task", "celery.redirected")


# -- the service


def is_process_of_worker() -> bool:
    """Return True if this process is the one that a worker has started for its beat."""
    embedded_class = getattr(celery.beat, "_Process", None)
    return embedded_class is not None and isinstance(current_process(), embedded_class)


def is_stopping(service: Any) -> bool:
    """Return True if a beat is about to end, or was told to and still runs.

    An exception of a signal handler may get lost: Python goes on after one in a ``__del__`` or in a weak
    reference's callback. A worker tells the beat inside it once, and waits.

    Arguments:
        service: Celery's ``celery.beat.Service``, which calls the scheduler's ticks.
    """
    events = [getattr(service, name, None) for name in ("_is_shutdown", "_is_stopped")]
    return HAS_BEEN_TERMINATED[0] or any(event is not None and event.is_set() for event in events)


def is_embedded() -> bool:
    """Return True in the beat inside a worker, which no supervisor starts again."""
    return threading.current_thread() is not threading.main_thread() or is_process_of_worker()


# -- its end


def brief(exc: Error) -> Error:
    """Return ``exc`` without its traceback, as Celery would print it and those of all causes, twice.

    They are in the log at DEBUG.
    """
    logger.debug("beat: Ending because of this:", exc_info=exc)
    if isinstance(exc, LockLost):  # its event: Celery logs the error as it ends beat
        setattr(exc, ATTRIBUTE, LEADER_LOST.of(lock=exc.lock_key, holder=exc.holder)[ATTRIBUTE])
    return exc.with_traceback(None)


class exit_without_traceback:  # noqa: N801 - a context manager; contextlib's would put the traceback back
    """Raises RedBeat's errors without their traceback, as :func:`brief` does.

    A wrong configuration ends the program ``celery beat`` with a sentence and exit code 78, and so the beat
    inside a worker.

    Arguments:
        is_logging: the log is set up; otherwise the sentence goes to stderr.
    """

    def __init__(self, *, is_logging: bool = True) -> None:
        self._is_logging = is_logging

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        if not isinstance(exc, RedBeatError):
            return
        if isinstance(exc, ConfigurationError) and (is_beat_command() or is_process_of_worker()):
            if not self._is_logging:
                raise CommandLineError(str(exc), CONFIG) from None
            logger.critical(
                "beat: %s", exc, extra=BEAT_MISCONFIGURED.of(setting=exc.setting, reason=str(exc))
            )
            raise SystemExit(CONFIG) from None  # Celery logs the traceback of everything else
        raise brief(exc) from None


# -- its log


def choose_format(app: Any, *, is_logging: bool) -> None:
    """Do as ``redbeat_log_format`` of ``app`` says.

    Arguments:
        is_logging: the log is set up. Otherwise it will be later.

    Raises:
        ConfigurationError: the setting is invalid.
    """
    is_json = log_format_of(app) == "json"
    if is_json:
        for signal in (after_setup_logger, after_setup_task_logger):
            signal.connect(_reformat, dispatch_uid="redbeat-log-format")
        _reformat()
    if not is_logging:
        return
    handlers = logging.getLogger().handlers  # not that of processes: Celery sets it up in any case
    is_whole = is_json and any(isinstance(one.formatter, JsonFormatter) for one in handlers)
    if is_json and handlers and not is_whole:
        logger.warning(
            "beat: redbeat_log_format is 'json', and the log stays as it is, as the application has set it "
            "up itself: give its handlers redbeat.log.JsonFormatter."
        )
    if is_beat_command() and (is_whole or isinstance(sys.stderr, LoggingProxy)):
        sys.excepthook = _without_logged(sys.excepthook)


def _reformat(**_signal: Any) -> None:
    """Let Celery's handlers write JSON."""
    for each in (get_multiprocessing_logger(), *map(logging.getLogger, _LOGGERS)):
        for handler in each.handlers if each is not None else ():
            if isinstance(handler.formatter, ColorFormatter):  # Celery's; that of tasks is one, too
                handler.setFormatter(JsonFormatter())


def _without_logged(before: Callable[..., Any]) -> Callable[..., None]:
    """Return a hook for the error that ends ``celery beat``, which Celery has logged with its traceback.

    Python would print the traceback once more, of which Celery makes a record for each piece.
    """

    def call_other_hook(kind: type[BaseException], exc: BaseException, trace: Any) -> None:
        if before is not sys.__excepthook__ or not isinstance(exc, Exception):
            before(kind, exc, trace)

    return call_other_hook
