"""What is logged as celery.beat is printable, whoever logs it, and every call of ours is logged so."""

from __future__ import annotations

import ast
import builtins
import io
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery.apps.beat
import celery.beat
import pytest
from celery import Celery

import redbeat
from redbeat.log.logger import MAX_VALUE, PrintableRecords, logger, printable_traceback
from tests.support.command_line import run
from tests.support.documents import ROOT
from tests.support.hostile import HOSTILE, HOSTILE_SHOWN, find_orders

PACKAGE = Path(redbeat.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
METHODS = ("debug", "info", "warning", "error", "exception", "critical", "log", "warn", "fatal")


class Foreign:
    """Something whose text comes from elsewhere."""

    def __str__(self) -> str:
        return HOSTILE

    __repr__ = __str__


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """What a handler of the root logger writes, as Celery formats it."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter(Celery(set_as_current=False).conf.worker_log_format))
    logging.getLogger().addHandler(handler)
    level = logger.level
    logger.setLevel("DEBUG")
    yield stream
    logger.setLevel(level)
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("value", [HOSTILE, Foreign(), ValueError(HOSTILE), [Foreign()], HOSTILE.encode()])
@pytest.mark.parametrize("place", ["%s", "%r"])
def test_a_value_that_gives_orders_is_escaped(output: io.StringIO, value: Any, place: str) -> None:
    words = {"%s": "beat: %s and %d", "%r": "beat: %r and %d"}[place]
    logger.warning(words, value, 5)
    words = {"%s": "beat: %(it)s and 5", "%r": "beat: %(it)r and 5"}[place]
    logger.warning(words, {"it": value})
    written = output.getvalue()
    assert find_orders(written) == []
    assert written.count("title") == written.count("and 5\n") == 2


def test_values_that_print_stay_what_they_are(caplog: pytest.LogCaptureFixture) -> None:
    values = ("report", 5, 1.5, None, ValueError("no"), ["a"], b"\x00")
    logger.warning("beat: %s %d %.1f %s %s %s %s", *values)
    [record] = caplog.records
    assert record.args is not None
    assert all(arg is value for arg, value in zip(record.args, values, strict=True))


def test_a_name_in_a_record_is_text_that_can_be_used(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "celery.beat"):
        logger.info("Scheduler: Sending due task %s (%s)", "a\x1bb", "tasks.report")
    assert caplog.records[0].args == ("a\\x1bb", "tasks.report")
    assert caplog.messages == ["Scheduler: Sending due task a\\x1bb (tasks.report)"]


def test_a_long_value_is_shortened(output: io.StringIO) -> None:
    logger.warning("beat: %s", "x" * 10_000_000)
    logger.warning("beat: %s", ValueError("\x1b" * 10_000_000))
    assert all(len(line) < 5 * MAX_VALUE for line in output.getvalue().splitlines())


def _raise_in_a_chain() -> None:
    try:
        try:
            raise LookupError(HOSTILE)
        except LookupError:
            raise OSError(HOSTILE)  # noqa: B904 - the context is what it is about
    except OSError as exc:
        raise ValueError(HOSTILE) from exc


def test_tracebacks_are_python_s_with_messages_on_one_line(output: io.StringIO) -> None:
    with pytest.raises(ValueError, match="title") as caught:
        _raise_in_a_chain()
    usual = "".join(traceback.format_exception(caught.value))
    assert printable_traceback(caught.value) == usual.replace(HOSTILE, HOSTILE_SHOWN).removesuffix("\n")
    logger.error("beat: failed", exc_info=caught.value)
    written = output.getvalue()
    assert find_orders(written) == []
    assert f"ValueError: {HOSTILE_SHOWN}" in written


def test_an_endless_chain_of_exceptions_is_logged(output: io.StringIO) -> None:
    first = last = ValueError("0")
    for number in range(5000):
        last.__context__ = ValueError(str(number))
        last = last.__context__
    last.__context__ = first
    logger.error("beat: failed", exc_info=first)
    assert output.getvalue().count("ValueError:") == 5001


def test_a_group_of_exceptions_is_logged_with_its_members(output: io.StringIO) -> None:
    group = getattr(builtins, "ExceptionGroup", None)
    if group is None:
        pytest.skip("this Python has no groups of exceptions")
    logger.error("beat: failed", exc_info=group("several", [OSError(HOSTILE), KeyError("two")]))
    assert find_orders(output.getvalue()) == []
    assert "KeyError: 'two'" in output.getvalue()


def test_a_value_without_a_text_is_the_formatter_s_trouble() -> None:
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    broken = Broken()
    record = logging.LogRecord("celery.beat", 30, __file__, 1, "%s", (broken,), None)
    assert PrintableRecords().filter(record)
    assert record.args == (broken,)


def test_celery_s_own_lines_pass_through_it(output: io.StringIO) -> None:
    celery.beat.logger.info("Scheduler: Sending due task %s (%s)", HOSTILE, HOSTILE)
    celery.beat.error("Message Error: %s\n%s", ValueError(HOSTILE), [HOSTILE], exc_info=True)
    celery.apps.beat.logger.critical("beat raised exception %s: %r", ValueError, ValueError(HOSTILE))
    assert find_orders(output.getvalue()) == []
    assert celery.beat.logger is celery.apps.beat.logger is logger


#: in a process of its own, all of whose logging it changes
SET_UP_ANEW = """\
import logging.config

from celery import Celery

from redbeat.log.logger import logger

of_beat = {"celery.beat": {"level": "INFO"}}
logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "loggers": of_beat})
Celery().log.setup_logging_subsystem(loglevel="INFO")
print([type(one).__name__ for one in logger.filters])
"""


def test_it_stays_when_logging_is_set_up_anew() -> None:
    done = run([sys.executable, "-c", SET_UP_ANEW], ROOT)
    assert done.stdout == "['PrintableRecords']\n", done.stderr


MOUNTED = """
from redbeat.log.logger import web_logger

web_logger.error("Nobody can be let in: %s", "a\\nb")
"""


def test_what_the_dashboard_logs_is_seen_where_nobody_has_set_up_logging() -> None:
    done = run([sys.executable, "-c", MOUNTED], ROOT)
    assert done.stderr == "Nobody can be let in: a\\nb\n"


# -- no call can forget it


def test_there_is_one_logger() -> None:
    makers = {
        path.name
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and _called(node) in ("getLogger", "get_logger", "get_task_logger")
    }
    assert makers == {"logger.py", "log_format.py", "server.py"}, (
        "the second looks at Celery's handlers, the third filters uvicorn's log; neither logs there"
    )


def test_every_call_logs_words_of_its_own_and_foreign_text_as_values() -> None:
    calls = [call for path in SOURCES for call in _log_calls(path)]
    assert len(calls) > 60
    for path, call in calls:
        has_level = isinstance(call.func, ast.Attribute) and call.func.attr == "log"
        words = call.args[has_level]
        assert _is_constant(words), f"{path}:{call.lineno}: not a constant, but {ast.unparse(words)}"


def test_every_module_that_logs_uses_that_logger() -> None:
    for path in SOURCES:
        if path.name == "logger.py" or not list(_log_calls(path)):
            continue
        name = "web_logger as logger" if "web" in path.relative_to(PACKAGE).parts else "logger"
        assert f"from redbeat.log.logger import {name}\n" in path.read_text("utf-8"), path


def test_nothing_is_printed_but_by_the_session_of_a_command() -> None:
    places = {
        str(path.relative_to(PACKAGE))
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
        and (
            ast.unparse(node.func) in ("print", "Console", "sys.stdout.write", "sys.stderr.write")
            or (_owner(node) == "click" and _called(node) in ("echo", "secho", "confirm", "prompt"))
        )
    }
    places.discard("beat/standard_streams.py")  # what another library has printed, as one record of the log
    assert places <= {"cli/session.py", "cli/confirmation.py", "cli/progress.py", "process/exit_codes.py"}


def _log_calls(path: Path) -> Iterator[tuple[Path, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if (
            isinstance(node, ast.Call)
            and _owner(node) in ("logger", "logging", "log")
            and (_called(node) in METHODS or not isinstance(node.func, ast.Attribute))
        ):
            yield path, node


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _owner(call: ast.Call) -> str:
    """The name before the dot; where a method was chosen first, as (logger.info if … else …)(…), 'logger'."""
    if isinstance(call.func, ast.Attribute):
        return getattr(call.func.value, "id", "")
    if isinstance(call.func, ast.IfExp):
        return getattr(getattr(call.func.body, "value", None), "id", "")
    return getattr(call.func, "id", "")


def _is_constant(words: ast.expr) -> bool:
    if isinstance(words, ast.IfExp):
        return _is_constant(words.body) and _is_constant(words.orelse)
    return isinstance(words, ast.Constant) and isinstance(words.value, str)


def test_times_in_messages_have_the_zone_of_the_timestamps(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(PrintableRecords, "has_utc_timestamps", False)
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        logger.error(
            "beat: %s", ValueError("due at 2026-01-31 07:30:00.250 UTC, or at 9999-12-31 23:59:59 UTC")
        )
        logger.error("beat: %s", "not a time: 2026-13-31 07:30:00 UTC")
        monkeypatch.setattr(PrintableRecords, "has_utc_timestamps", True)  # as a handler writes JSON
        logger.error("beat: %s", "due at 2026-01-31 07:30:00 UTC")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [record.getMessage() for record in caplog.records] == [
        "beat: due at 2026-01-31 13:00:00.250 IST, or at 9999-12-31 23:59:59 UTC",
        "beat: not a time: 2026-13-31 07:30:00 UTC",
        "beat: due at 2026-01-31 07:30:00 UTC",
    ]
