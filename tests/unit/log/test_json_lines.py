"""Each record is one line of valid JSON, whatever is in it; and the table of events is that of the code."""

from __future__ import annotations

import ast
import json
import logging
import pickle
import random
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

import redbeat
from redbeat.log.events import ATTRIBUTE, EVENTS, FIELDS, RUN_SENT, TIMES, LogEvent
from redbeat.log.formatter import MAX_MESSAGE, MAX_TRACEBACK, MAX_VALUE, JsonFormatter
from redbeat.log.logger import logger
from tests.support.hostile import HOSTILE

SOURCES = sorted(Path(redbeat.__file__).parent.rglob("*.py"))


class Silent:
    """Something that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Endless(dict[str, Any]):
    """A mapping that isn't what JSON knows."""


#: what values may be, and where it is certain how they are shown
VALUES: list[Any] = [
    HOSTILE, "\x1b[31mred\x1b[0m", "two\nlines\r\n\u2028\x85", "\ud83d", "\udc80x", b"\xff\x00bytes",
    bytearray(b"a"), float("nan"), float("inf"), 10**5000, -(2**63), True, None, 1e300, "x" * 1_000_000,
    Silent(), object(), [1, "\ud800", [2, [3]]], ("a", float("nan")), {"a": {1, 2}}, {b"k": 1}, Endless(),
    datetime.max, set(), "\N{GRINNING FACE}\u202e\u0000", ValueError(HOSTILE), lambda: 0,
]  # fmt: skip


def record_of(message: Any, *args: Any, **attributes: Any) -> logging.LogRecord:
    record = logging.LogRecord("any", logging.INFO, __file__, 1, message, args, None)
    record.__dict__.update(attributes)
    return record


def line_of(record: logging.LogRecord) -> dict[str, Any]:
    """What a reader gets: strict JSON on one line of ASCII."""

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
def test_whatever_is_logged_is_one_line_of_json(value: Any) -> None:
    for record in (
        record_of(value),
        record_of("%s and %r", value, value),
        record_of("%d", value),
        record_of("%s", value, value),
        record_of("sent", redbeat={"event": value, "due": value, "entry": [value, value], "x": value}),
        record_of("sent", redbeat={value if isinstance(value, str) else "k": 1}),
        record_of("sent", redbeat=value, exc_info=(RuntimeError, RuntimeError(value), None)),
        record_of("sent", exc_info=value, stack_info="a\nb", exc_text="from\nelsewhere"),
        record_of("sent", levelname=value, name=value, process=value),
    ):
        line = line_of(record)
        assert {"timestamp", "level", "logger", "message", "process"} <= line.keys()


def test_random_records_are_lines_of_json(chance: random.Random) -> None:
    for _ in range(300):
        told = {
            chance.choice(["due", "entry", "n", "message", "level"]): chance.choice(VALUES) for _ in range(4)
        }
        message = chance.choice(["%s %s", "%d %s", "%", "%(x)s", "a", "\ud800%s"])
        line_of(record_of(message, *chance.choices(VALUES, k=chance.randint(0, 3)), redbeat=told))


def test_a_record_says_what_it_is() -> None:
    record = record_of("a %s", "b", created=1_760_000_000.0129, **RUN_SENT.of(entry="e", due=0.5))
    assert line_of(record) == {
        "timestamp": "2025-10-09T08:53:20.012Z",
        "level": "INFO",
        "logger": "any",
        "message": "a b",
        "process": record.process,
        "event": "redbeat.run.sent",
        "entry": "e",
        "due": "1970-01-01T00:00:00.500Z",
    }


def test_times_are_in_utc_and_numbers_stay_numbers() -> None:
    east = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    line = line_of(
        record_of("x", redbeat={"due": "1.25", "until": east, "count": 3, "seconds": 0.25, "by": None})
    )
    assert (line["due"], line["until"]) == ("1970-01-01T00:00:01.250Z", "2025-12-31T23:00:00.000Z")
    assert (line["count"], line["seconds"]) == (3, 0.25)
    assert "by" not in line


def test_an_event_forges_no_member() -> None:
    line = line_of(record_of("said", redbeat={"event": "e", "message": "forged", "level": "forged"}))
    assert (line["message"], line["level"], line["event"]) == ("said", "INFO", "e")


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


def test_an_error_that_carries_an_event_gives_it_to_the_record_of_whoever_logs_it() -> None:
    error = RuntimeError("lost")
    setattr(error, ATTRIBUTE, {"event": "redbeat.leader.lost"})
    lines: list[dict[str, Any]] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(line_of(record))  # type: ignore[method-assign]
    logger.addHandler(handler)
    try:
        logger.critical("beat raised exception %r", error, exc_info=error)
    finally:
        logger.removeHandler(handler)
    [line] = lines
    assert line["event"] == "redbeat.leader.lost"
    assert line["exception"]["message"] == "lost"


# -- the table


def test_names_fields_and_levels_are_what_the_page_says() -> None:
    reserved = {"timestamp", "level", "logger", "message", "process", "exception", "stack", "event"}
    for event in EVENTS.values():
        assert event.name.startswith("redbeat.")
        assert set(event.fields) <= FIELDS.keys(), event.name
        assert event.meaning.endswith(".")
    assert {field for event in EVENTS.values() for field in event.fields} == FIELDS.keys()
    assert not reserved & FIELDS.keys()
    assert FIELDS.keys() >= TIMES


def _constants() -> dict[str, LogEvent]:
    found = vars(sys.modules["redbeat.log.events"])
    return {name: value for name, value in found.items() if isinstance(value, LogEvent)}


def test_each_event_is_logged_with_its_level_and_says_its_fields() -> None:
    constants, used = _constants(), set[str]()
    said: dict[str, set[str]] = {name: set() for name in constants}
    for source in SOURCES:
        if source.name == "events.py" and source.parent.name == "log":
            continue
        tree = ast.parse(source.read_text("utf-8"))
        used |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in constants}
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if not (isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)):
                continue
            name = call.func.value.id
            if call.func.attr == "of" and name in constants:
                given = {str(keyword.arg) for keyword in call.keywords}
                assert given <= set(constants[name].fields), (source.name, name)
                said[name] |= given
            extra = next((one.value for one in call.keywords if one.arg == "extra"), None)
            level = call.func.attr.upper()
            if isinstance(extra, ast.Call) and isinstance(extra.func, ast.Attribute) and level != "LOG":
                logs = getattr(extra.func.value, "id", "")
                if logs in constants:
                    assert level in constants[logs].levels, (source.name, logs)
    assert used == constants.keys(), "each event is logged somewhere"
    for name, fields in said.items():
        if fields:
            assert fields == set(constants[name].fields) or name in ("RUN_LOST", "RUN_SKIPPED"), name


def test_what_is_put_on_a_record_can_be_sent_to_another_process() -> None:
    record = record_of("x", **RUN_SENT.of(entry="e", due=1.5, lateness_seconds=0.1))
    assert line_of(pickle.loads(pickle.dumps(record))) == line_of(record)
