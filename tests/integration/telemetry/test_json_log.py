"""With redbeat_log_format = 'json' whatever beat's process logs is one line of JSON."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from redbeat.log.events import EVENTS
from tests.support.apps import celery_beat, celery_worker, stop_worker, write_app
from tests.support.documents import write_files
from tests.support.polling import eventually
from tests.support.schedule import LOCK
from tests.support.servers import Server

#: others that log, or print, in beat's process
TALK = """
import logging, warnings
from celery.signals import beat_init

@beat_init.connect
def talk(**kwargs):
    print("printed\\nin two lines")
    warnings.warn("a warning")
    try:
        raise ValueError("a bad\\x1b[31m value")
    except ValueError:
        logging.getLogger("shop").exception("it %s", "failed\\nbadly")
"""

#: what is written in pieces
PIECES = """
import sys
from celery.signals import beat_init

@beat_init.connect
def talk(**kwargs):
    print("one", 2, end=" ")
    print("three")
    print("two\\nlines")
"""

#: a library that hears of the error that ends the process
HOOK = """
def hook(*args, before=sys.excepthook):
    print("the other hook", file=sys.stderr)
    before(*args)

sys.excepthook = hook
"""

ENTRY = {"task": "echo", "schedule": 0.2, "args": ["a\x1b[31m\u2028b"]}


def lines_of(text: str) -> list[dict[str, Any]]:
    """The records in a log, each of which is JSON; what isn't fails."""
    return [json.loads(line) for line in text.splitlines()]


def whole_lines(text: str) -> str:
    return text[: text.rfind("\n") + 1]


def test_all_that_beat_logs_is_json_with_events(server: Server, tmp_path: Path) -> None:
    settings = {"redbeat_log_format": "json", "beat_schedule": {"every\nnow": ENTRY}, "redbeat_typo": 1}
    write_app(tmp_path, "talks", server.url(), extra=TALK, **settings)
    log = tmp_path / "beat.log"
    with celery_beat(tmp_path, "talks", "-l", "DEBUG", "-f", str(log)) as beat:
        eventually(lambda: log.exists() and "redbeat.run.sent" in log.read_text())
        server.client().set(LOCK, "another beat", px=60_000)
        assert beat.wait() != 0
    lines = lines_of(log.read_text())
    by_event = {line["event"]: line for line in lines if "event" in line}
    assert by_event.keys() <= EVENTS.keys()
    assert by_event["redbeat.leader.acquired"]["lock"] == LOCK
    assert by_event["redbeat.leader.acquired"]["message"] == "beat: Acquired lock"
    assert by_event["redbeat.setting.unknown"]["setting"] == "redbeat_typo"
    lost = by_event["redbeat.leader.lost"]
    assert (lost["level"], lost["holder"]) == ("CRITICAL", "another beat")
    assert lost["exception"]["type"] == "LockLost"
    sent = by_event["redbeat.run.sent"]
    assert sent["message"].startswith("Scheduler: Sending due task every")
    assert (sent["level"], sent["logger"], sent["process"]) == ("INFO", "celery.beat", beat.pid)
    assert (sent["entry"], sent["task"]) == ("every\nnow", "echo")
    assert re.fullmatch(r"[0-9a-f-]{36}", sent["task_id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", sent["due"])
    assert 0 <= sent["lateness_seconds"] < 60
    loggers = {line["logger"] for line in lines}
    assert {"celery.beat", "celery.redirected", "py.warnings", "shop"} <= loggers
    [failed] = [line for line in lines if line["logger"] == "shop"]
    assert failed["message"] == "it failed\nbadly"
    assert failed["exception"]["type"] == "ValueError"
    assert "Traceback" in failed["exception"]["traceback"]


def test_beat_inside_a_worker_logs_json_and_the_worker_as_before(server: Server, tmp_path: Path) -> None:
    settings = {"redbeat_log_format": "json", "beat_schedule": {"now": ENTRY}}
    write_app(tmp_path, "both", server.url(), **settings)
    worker = celery_worker(tmp_path, "both", "-B", "--scheduler", "redbeat.RedBeatScheduler", "-l", "INFO")
    try:
        worker.wait_for("redbeat.run.sent")
        worker.wait_for(re.compile(r"^\[.*Task echo\[.*succeeded", re.MULTILINE))
    finally:
        stop_worker(worker)
    lines = worker.output().splitlines()
    first, *others = (line for line in lines if "celery.beat" in line or "INFO/Beat" in line)
    assert "beat: Starting..." in first
    assert {json.loads(line)["logger"] for line in others} == {"celery.beat"}


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("hook", ["none", "another library's"])
def test_the_error_that_ends_beat_is_one_record_and_so_is_a_line_in_pieces(
    server: Server, tmp_path: Path, hook: str
) -> None:
    extra = PIECES if hook == "none" else PIECES + HOOK
    settings = {"redbeat_log_format": "json", "redbeat_redis_options": {"socket_timeout": 0.5}}
    write_app(tmp_path, "ends", server.url(), extra=extra, beat_schedule={"now": ENTRY}, **settings)
    log = tmp_path / "beat.log"
    with celery_beat(tmp_path, "ends", "-f", str(log)) as beat:
        eventually(lambda: log.exists() and "redbeat.run.sent" in log.read_text())
        server.process.signal(signal.SIGSTOP)
        try:
            assert beat.wait() == 1
        finally:
            server.process.signal(signal.SIGCONT)
    records = lines_of(log.read_text())
    printed = [line["message"] for line in records if line["logger"] == "celery.redirected"]
    assert printed[:2] == ["one 2 three", "two\nlines"]
    if hook == "none":
        assert len(printed) == 2
    else:
        assert printed[2].startswith("the other hook\nTraceback"), "it is called, too, and prints one record"
        assert len(printed) == 3
    [failed] = [line for line in records if line["level"] == "CRITICAL"]
    assert failed["event"] == "redbeat.beat.failed"
    assert failed["reason"].startswith("redbeat.errors.StoreUnavailable: Redis at ")
    assert failed["exception"]["type"] == "StoreUnavailable"


#: an application that has a handler of the root logger
HANDLER = """
import logging
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("own: %(message)s"))
logging.getLogger().addHandler(handler)
"""


@pytest.mark.parametrize("own", ["handler", "the page's formatter"])
def test_the_handlers_of_an_application_stay_as_they_are(server: Server, tmp_path: Path, own: str) -> None:
    written = {path.name: path for path in write_files("docs/monitoring.rst", tmp_path / "page")}
    extra = HANDLER if own == "handler" else written["logs.py"].read_text("utf-8")
    settings = {"redbeat_log_format": "json", "worker_hijack_root_logger": False}
    write_app(tmp_path, "own", server.url(), extra=extra, beat_schedule={"now": ENTRY}, **settings)
    with celery_beat(tmp_path, "own") as beat:
        beat.wait_for("Sending due task")
        output = whole_lines(beat.output())
    is_told = "give its handlers redbeat.log.JsonFormatter" in output
    if own == "handler":
        assert is_told
        assert "own: beat: Acquired lock" in output
    else:
        assert not is_told
        lines = lines_of("\n".join(line for line in output.splitlines() if "celery.beat" in line))
        assert "redbeat.leader.acquired" in {line.get("event") for line in lines}
