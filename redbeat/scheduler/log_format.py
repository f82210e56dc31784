"""The format of beat's log, as ``redbeat_log_format`` says: Celery's own, or JSON.

Owns nothing but the formatters of the handlers that Celery has set up; those of the application's own
handlers stay, as Celery leaves them alone, too.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import click
from celery.signals import after_setup_logger, after_setup_task_logger
from celery.utils.log import ColorFormatter, get_multiprocessing_logger

from redbeat.config.config import log_format_of
from redbeat.log.formatter import JsonFormatter
from redbeat.log.logger import logger
from redbeat.scheduler.standard_streams import tell_once_where_redirected, write_whole_records

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
