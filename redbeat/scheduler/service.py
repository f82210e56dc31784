"""The process of a beat: Celery's service, the log as ``redbeat_log_format`` says, and how beat ends.

Owns what RedBeat knows of Celery's ``Service`` and of its log besides the documented parts; what a version of
Celery does not have is left out. Only the formatters of handlers that Celery has set up are replaced, not
those of the application's own handlers.

Celery makes a record of each piece that is written to standard output and error: of each value of a
``print``, and of each character ``^`` of Python's last traceback. With JSON, pieces are joined to lines.
Invariant: the error that ends beat is logged once, and nothing that was written is lost.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
import threading
import time
from types import TracebackType
from typing import Any, TypeVar

import celery.beat
import click
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

#: so many characters without a line end are written as they are
MAX_KEPT = 10_000


# -- the service


def is_process_of_worker() -> bool:
    """Return True if this process is the one that a worker has started for its beat."""
    embedded_class = getattr(celery.beat, "_Process", None)
    return embedded_class is not None and isinstance(current_process(), embedded_class)


class Ended:
    """Whether beat has ended: Celery's ``threading.Event`` without its lock.

    The handler of SIGTERM sets it. With a lock, a second SIGTERM at that very moment would wait for ever for
    the handler that it has interrupted.
    """

    def __init__(self) -> None:
        self._is_set = False
        self._awaited = threading.Lock()
        self._awaited.acquire()

    def is_set(self) -> bool:
        """Return True if it has."""
        return self._is_set

    def set(self) -> None:
        """Record that it has; calling it amid another call does no harm."""
        self._is_set = True
        self._let_go()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has, ``timeout`` seconds at most; return True if it has."""
        if not self._is_set and self._awaited.acquire(timeout=-1 if timeout is None else timeout):
            self._let_go()  # the next one that waits
        return self._is_set

    def _let_go(self) -> None:
        with contextlib.suppress(RuntimeError):  # it was free
            self._awaited.release()


class BeatService:
    """A running beat.

    Arguments:
        service: Celery's ``celery.beat.Service``, which calls the scheduler's ticks.
    """

    def __init__(self, service: Any) -> None:
        self._service = service
        # signals are handled in the main thread, where no thread waits for the end of this beat yet
        has_handlers = threading.current_thread() is threading.main_thread()
        if has_handlers and isinstance(getattr(service, "_is_stopped", None), threading.Event):
            service._is_stopped = Ended()  # noqa: SLF001 - Celery's handler sets it

    @property
    def is_stopping(self) -> bool:
        """Whether beat is about to end."""
        shutdown = getattr(self._service, "_is_shutdown", None)
        return (shutdown is not None and shutdown.is_set()) or self.has_been_terminated

    @property
    def has_been_terminated(self) -> bool:
        """Whether this beat was told to end, and still runs: an exception of a signal handler may get lost.

        Python goes on after an exception in a ``__del__`` or in a weak reference's callback. A worker tells
        the beat inside it once, and waits.
        """
        stopped = getattr(self._service, "_is_stopped", None)
        return HAS_BEEN_TERMINATED[0] or (stopped is not None and stopped.is_set())

    @property
    def is_embedded(self) -> bool:
        """Whether this is the beat inside a worker, which no supervisor starts again."""
        return threading.current_thread() is not threading.main_thread() or is_process_of_worker()

    def note_tick(self) -> None:
        """Show Celery that a tick that waits is not stuck."""
        self._service._last_tick = time.monotonic()  # noqa: SLF001 - Celery sets it only when a tick returns

    def stop(self) -> None:
        """End beat."""
        self._service.stop()


# -- its end


def brief(exc: Error) -> Error:
    """Return ``exc`` without its traceback, as Celery would print it and those of all causes, twice.

    They are in the log at DEBUG.
    """
    logger.debug("beat: Ending because of this:", exc_info=exc)
    return exc.with_traceback(None)


def tag_lock_lost(exc: LockLost) -> LockLost:
    """Give ``exc`` its event: Celery logs the error as it ends beat."""
    setattr(exc, ATTRIBUTE, LEADER_LOST.of(lock=exc.lock_key, holder=exc.holder)[ATTRIBUTE])
    return exc


class exit_without_traceback:  # noqa: N801 - a context manager; contextlib's would put the traceback back
    """Raises RedBeat's errors without their traceback, as :func:`brief` does.

    A wrong configuration ends the program ``celery beat`` with a sentence and exit code 78, and so the beat
    inside a worker.

    Arguments:
        unlogged: the app whose log is not set up yet; None: it is. Then the sentence goes to stderr, unless
            the log is to be JSON.
    """

    def __init__(self, unlogged: Any = None) -> None:
        self._unlogged = unlogged

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, exc: BaseException | None, _traceback: object) -> None:
        if not isinstance(exc, RedBeatError):
            return
        if isinstance(exc, ConfigurationError) and (is_beat_command() or is_process_of_worker()):
            app = self._unlogged
            if app is not None:
                if not _is_json(app):
                    raise CommandLineError(str(exc), CONFIG) from None
                # as the command is about to do, which ends before that
                options = click.get_current_context().params
                app.log.setup(options.get("loglevel"), options.get("logfile"))
            logger.critical(
                "beat: %s", exc, extra=BEAT_MISCONFIGURED.of(setting=exc.setting, reason=str(exc))
            )
            raise SystemExit(CONFIG) from None  # Celery logs the traceback of everything else
        raise brief(exc) from None


def _is_json(app: Any) -> bool:
    try:
        return log_format_of(app) == "json"
    except ConfigurationError:
        return False


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
    for name in ("stdout", "stderr") if is_whole else ():
        stream = getattr(sys, name)
        if isinstance(stream, LoggingProxy) and not isinstance(stream, _WholeLines):
            setattr(sys, name, _WholeLines(stream.logger, stream.loglevel))
    makes_records = is_whole or isinstance(sys.stderr, LoggingProxy)
    if makes_records and not isinstance(sys.excepthook, _LastWords):
        sys.excepthook = _LastWords(sys.excepthook)


def _reformat(**_signal: Any) -> None:
    """Let Celery's handlers write JSON."""
    for each in (get_multiprocessing_logger(), *map(logging.getLogger, _LOGGERS)):
        for handler in each.handlers if each is not None else ():
            if isinstance(handler.formatter, ColorFormatter):  # Celery's; that of tasks is one, too
                handler.setFormatter(JsonFormatter())


class _WholeLines(LoggingProxy):
    """Celery's stream, which makes records of what it is given: here of whole lines."""

    def __init__(self, named: logging.Logger, level: int) -> None:
        super().__init__(named, level)
        self._kept = threading.local()

    def write(self, data: Any) -> int:
        """Write ``data``, or keep it until its line ends."""
        if not isinstance(data, str):
            return int(super().write(data))
        self._kept.text = getattr(self._kept, "text", "") + data
        if data.endswith("\n") or len(self._kept.text) > MAX_KEPT:
            self.flush()
        return len(data)

    def flush(self) -> None:
        """Write the records that are held."""
        text, self._kept.text = getattr(self._kept, "text", ""), ""
        if text:
            super().write(text)


class _LastWords(logging.Filter):
    """Python's hook for the error that ends the process: it is logged in one record.

    Arguments:
        before: the hook that there was; that of another library is called, too.
    """

    def __init__(self, before: Any) -> None:
        super().__init__()
        self._before = before
        self._logged: BaseException | None = None
        logger.addFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """Let every record pass, and remember the error of a critical one."""
        if record.levelno >= logging.CRITICAL and isinstance(record.exc_info, tuple):
            self._logged = record.exc_info[1]
        return True

    def __call__(self, kind: type[BaseException], exc: BaseException, trace: TracebackType | None) -> None:
        """Log the error, unless Celery has done so."""
        if exc is not self._logged:
            # the logger itself gives it the event, as it does to Celery's
            logger.critical("beat: It ends by an error: %r", exc, exc_info=(kind, exc, trace))
        if self._before is not sys.__excepthook__:
            printed = io.StringIO()  # usually the traceback once more, in pieces
            with contextlib.redirect_stderr(printed):
                self._before(kind, exc, trace)
            sys.stderr.write(printed.getvalue())
