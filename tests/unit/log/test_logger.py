"""The logger celery.beat: foreign text gives a terminal no orders, and every record is one line of JSON."""

from __future__ import annotations

import ast
import io
import json
import logging
import pickle
import sys
import traceback
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import celery.apps.beat
import celery.beat
import pytest
from celery import Celery

import redbeat
from redbeat.log import events
from redbeat.log.events import ATTRIBUTE, RUN_SENT, LogEvent
from redbeat.log.formatter import MAX_MESSAGE, MAX_TRACEBACK, JsonFormatter
from redbeat.log.logger import MAX_VALUE, logger, printable_traceback
from tests.support.command_line import run
from tests.support.documents import ROOT
from tests.support.hostile import HOSTILE, HOSTILE_SHOWN, find_orders


class Foreign:
    """Has the text of another program."""

    def __str__(self) -> str:
        return HOSTILE

    __repr__ = __str__


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """Collect what a handler of the root logger writes in Celery's format."""
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
def test_control_characters_of_values_are_escaped(output: io.StringIO, value: Any, place: str) -> None:
    words = {"%s": "beat: %s and %d", "%r": "beat: %r and %d"}[place]
    logger.warning(words, value, 5)
    words = {"%s": "beat: %(it)s and 5", "%r": "beat: %(it)r and 5"}[place]
    logger.warning(words, {"it": value})
    written = output.getvalue()
    assert find_orders(written) == []
    assert written.count("title") == written.count("and 5\n") == 2


def test_printable_values_are_not_changed(caplog: pytest.LogCaptureFixture) -> None:
    values = ("report", 5, 1.5, None, ValueError("no"), ["a"], b"\x00", "a\x1bb")
    logger.warning("beat: %s %d %.1f %s %s %s %s %s", *values)
    [record] = caplog.records
    assert isinstance(record.args, tuple)
    assert all(arg is value for arg, value in zip(record.args[:-1], values, strict=False))
    assert record.args[-1] == "a\\x1bb"


def test_long_value_is_shortened(output: io.StringIO) -> None:
    logger.warning("beat: %s", "x" * 10_000_000)
    logger.warning("beat: %s", ValueError("\x1b" * 10_000_000))
    assert all(len(line) < 5 * MAX_VALUE for line in output.getvalue().splitlines())


def test_traceback_is_that_of_python_with_escaped_messages(output: io.StringIO) -> None:
    cause = OSError(HOSTILE)
    cause.__context__ = LookupError(HOSTILE)
    with pytest.raises(ValueError, match="title") as caught:
        raise ValueError(HOSTILE) from cause
    usual = "".join(traceback.format_exception(caught.value))
    assert printable_traceback(caught.value) == usual.replace(HOSTILE, HOSTILE_SHOWN).removesuffix("\n")
    logger.error("beat: failed", exc_info=caught.value)
    written = output.getvalue()
    assert find_orders(written) == []
    assert f"ValueError: {HOSTILE_SHOWN}" in written


def test_endless_chain_of_exceptions_is_logged(output: io.StringIO) -> None:
    first = last = ValueError("0")
    for number in range(5000):
        last.__context__ = ValueError(str(number))
        last = last.__context__
    last.__context__ = first
    logger.error("beat: failed", exc_info=first)
    assert output.getvalue().count("ValueError:") == 5001


def test_lines_of_celery_are_escaped(output: io.StringIO) -> None:
    celery.beat.logger.info("Scheduler: Sending due task %s (%s)", HOSTILE, HOSTILE)
    celery.beat.error("Message Error: %s\n%s", ValueError(HOSTILE), [HOSTILE], exc_info=True)
    celery.apps.beat.logger.critical("beat raised exception %s: %r", ValueError, ValueError(HOSTILE))
    assert find_orders(output.getvalue()) == []
    assert celery.beat.logger is celery.apps.beat.logger is logger


#: logs before logging is set up, and then sets up all of it
SET_UP_LATE = """\
import logging.config

from celery import Celery

from redbeat.log.logger import logger, web_logger

web_logger.error("Nobody can be let in: %s", "a\\nb")
of_beat = {"celery.beat": {"level": "INFO"}}
logging.config.dictConfig({"version": 1, "disable_existing_loggers": False, "loggers": of_beat})
Celery().log.setup_logging_subsystem(loglevel="INFO")
print([type(one).__name__ for one in logger.filters])
"""


def test_log_is_escaped_on_stderr_before_logging_is_set_up_and_afterwards() -> None:
    done = run([sys.executable, "-c", SET_UP_LATE], ROOT)
    assert (done.stdout, done.stderr) == ("['PrintableRecords']\n", "Nobody can be let in: a\\nb\n")


# -- JSON


#: values of any kind
VALUES: list[Any] = [
    HOSTILE, "\x1b[31mred\x1b[0m", "two\nlines\r\n\u2028\x85", "\ud83d", "\udc80x", b"\xff\x00bytes", 5, None,
    True, 1e300, "x" * 1_000_000, object(), [1, "\ud800", [2, [3]]], {"a": {1, 2}}, {b"k": 1}, datetime.max,
    "\N{GRINNING FACE}\u202e\u0000", ValueError(HOSTILE), lambda: 0,
]  # fmt: skip


def record_of(message: Any, *args: Any, **attributes: Any) -> logging.LogRecord:
    record = logging.LogRecord("any", logging.INFO, __file__, 1, message, args, None)
    record.__dict__.update(attributes)
    return record


def line_of(record: logging.LogRecord) -> dict[str, Any]:
    """Read a record as strict JSON on one line of ASCII."""

    def refuse(word: str) -> None:
        raise ValueError(word)

    text = JsonFormatter().format(record)
    assert text.isascii()
    assert text.isprintable()
    line: dict[str, Any] = json.loads(text, parse_constant=refuse)
    text.encode("utf-8")
    json.dumps(line, ensure_ascii=False).encode("utf-8")  # no half of a character
    return line


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_record_with_any_value_is_one_line_of_json(value: Any) -> None:
    for record in (
        record_of(value),
        record_of("%s and %r", value, value),
        record_of("sent", redbeat={"event": value, "entry": [value, value], "x": value}),
        record_of("sent", redbeat=value, exc_info=(RuntimeError, RuntimeError(value), None)),
        record_of("sent", stack_info="a\nb", exc_text="from\nelsewhere"),
    ):
        line = line_of(record)
        assert {"timestamp", "level", "logger", "message", "process"} <= line.keys()


def test_json_record_has_event_fields_and_times_in_utc() -> None:
    east = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    told = RUN_SENT.of(entry="e", due=0.5)
    told["redbeat"] |= {"until": east, "count": 3, "by": None, "message": "forged"}
    record = record_of("a %s", "b", created=1_760_000_000.0129, **told)
    expected = {
        "timestamp": "2025-10-09T08:53:20.012Z",
        "level": "INFO",
        "logger": "any",
        "message": "a b",
        "process": record.process,
        "event": "redbeat.run.sent",
        "entry": "e",
        "due": "1970-01-01T00:00:00.500Z",
        "until": "2025-12-31T23:00:00.000Z",
        "count": 3,
    }
    assert line_of(record) == line_of(pickle.loads(pickle.dumps(record))) == expected


def test_long_texts_are_cut_and_a_traceback_at_its_beginning() -> None:
    try:
        exec("\n" * 10 + "raise ValueError('v' * 5000)")
    except ValueError:
        exc_info = sys.exc_info()
    record = record_of("m" * 10**6, redbeat={"entry": "e" * 10**6}, exc_info=exc_info)
    record.exc_text = "t" * 10**6 + "the end"
    line = line_of(record)
    assert len(line["message"]) == MAX_MESSAGE + 3
    assert len(line["entry"]) == len(line["exception"]["message"]) == MAX_VALUE + 3
    assert len(line["exception"]["traceback"]) == MAX_TRACEBACK
    assert line["exception"]["traceback"].endswith("the end")
    assert line["exception"]["type"] == "ValueError"


def test_event_of_an_error_is_in_the_record_that_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    error = RuntimeError("lost")
    setattr(error, ATTRIBUTE, {"event": "redbeat.leader.lost"})
    logger.critical("beat raised exception %r", error, exc_info=error)
    line = line_of(caplog.records[0])
    assert line["event"] == "redbeat.leader.lost"
    assert line["exception"]["message"] == "lost"


def test_events_are_logged_with_their_documented_level_and_fields() -> None:
    known = {name: value for name, value in vars(events).items() if isinstance(value, LogEvent)}
    said: dict[str, set[str | None]] = {name: set() for name in known}
    used = set()
    for source in Path(redbeat.__file__).parent.rglob("*.py"):
        text = source.read_text("utf-8")
        for node in ast.walk(ast.parse(text)) if "redbeat.log" in text else ():
            if isinstance(node, (ast.Name, ast.Attribute)):
                used.add(node.id if isinstance(node, ast.Name) else node.attr)
            if not isinstance(node, ast.Call):
                continue
            name, _, method = ast.unparse(node.func).removeprefix("events.").partition(".")
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if name in known and method == "of":
                said[name] |= given.keys()
            event = known.get(given.get("extra", "").removeprefix("events.").partition(".of(")[0])
            assert not event or method in ("log", "") or method.upper() in event.levels, (source.name, event)
    assert known.keys() <= used, "each event is logged somewhere"
    for name, fields in said.items():
        assert fields <= set(known[name].fields), name
        if fields and name not in ("RUN_LOST", "RUN_SKIPPED"):
            assert fields == set(known[name].fields), name
