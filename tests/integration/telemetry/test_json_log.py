"""The log of a beat: JSON lines with redbeat_log_format, and one record for the error that ends it."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat.log.events import EVENTS
from tests.support.apps import celery_beat, celery_command, celery_worker, stop_worker, write_app
from tests.support.documents import write_files
from tests.support.http import fetch
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import LOCK
from tests.support.servers import Server

#: others that log, or print, in beat's process
TALK = """
import logging, sys, warnings
from celery.signals import beat_init

@beat_init.connect
def talk(**kwargs):
    print("one", 2, end=" ")
    print("three")
    print("two\\nlines")
    warnings.warn("a warning")
    try:
        raise ValueError("a bad\\x1b[31m value")
    except ValueError:
        logging.getLogger("shop").exception("it %s", "failed\\nbadly")


def hook(*args, before=sys.excepthook):
    print("the other hook", file=sys.stderr)
    before(*args)

sys.excepthook = hook
"""
JSON = {"redbeat_log_format": "json"}
ENTRY = {"task": "echo", "schedule": 0.2, "args": ["a\x1b[31m\u2028b"]}


def records_in(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_log_has_all_records_of_the_process(server: Server, tmp_path: Path, broker: redis.Redis) -> None:
    settings = {**JSON, "redbeat_typo": 1}
    write_app(tmp_path, "talks", server.url(), extra=TALK, beat_schedule={"every\nnow": ENTRY}, **settings)
    log = tmp_path / "beat.log"
    with celery_beat(tmp_path, "talks", "-l", "DEBUG", "-f", str(log)) as beat:
        eventually(lambda: log.exists() and "redbeat.run.sent" in log.read_text())
        broker.set(LOCK, "another beat", px=60_000)
        assert beat.wait() != 0
    records = records_in(log.read_text())
    by_event = {line["event"]: line for line in records if "event" in line}
    assert by_event.keys() <= EVENTS.keys()
    assert by_event["redbeat.leader.acquired"]["lock"] == LOCK
    assert by_event["redbeat.leader.acquired"]["message"] == "beat: Acquired lock"
    assert by_event["redbeat.setting.unknown"]["setting"] == "redbeat_typo"
    sent = by_event["redbeat.run.sent"]
    assert sent["message"].startswith("Scheduler: Sending due task every")
    assert (sent["level"], sent["logger"], sent["process"]) == ("INFO", "celery.beat", beat.pid)
    assert (sent["entry"], sent["task"]) == ("every\nnow", "echo")
    assert re.fullmatch(r"[0-9a-f-]{36}", sent["task_id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", sent["due"])
    assert 0 <= sent["lateness_seconds"] < 60
    assert {"celery.beat", "py.warnings", "shop"} <= {line["logger"] for line in records}
    [failed] = [line for line in records if line["logger"] == "shop"]
    assert failed["message"] == "it failed\nbadly"
    assert failed["exception"]["type"] == "ValueError"
    printed = [line["message"] for line in records if line["logger"] == "celery.redirected"]
    assert [one for one in printed if one.strip()][:4] == ["one", "2", "three", "two\nlines"]
    assert "the other hook" in printed, "another hook is called"
    [fatal] = [line for line in records if line["level"] == "CRITICAL"]
    assert (fatal["event"], fatal["holder"]) == ("redbeat.leader.lost", "another beat")
    assert fatal["exception"]["type"] == "LockLost"


def test_beat_inside_a_worker_logs_json_and_has_the_endpoint(server: Server, tmp_path: Path) -> None:
    socket = tmp_path / "beat.sock"
    settings = {**JSON, "beat_schedule": {"now": ENTRY}, "redbeat_http": f"unix:{socket}"}
    write_app(tmp_path, "both", server.url(), **settings)
    worker = celery_worker(tmp_path, "both", "-B", "--scheduler", "redbeat.RedBeatScheduler", "-l", "INFO")
    try:
        worker.wait_for("redbeat.run.sent")
        worker.wait_for(re.compile(r"^\[.*Task echo\[.*succeeded", re.MULTILINE))
        assert fetch(socket, "/healthz").status == 200
    finally:
        stop_worker(worker)
    lines = worker.output().splitlines()
    first, *others = (line for line in lines if "celery.beat" in line or "INFO/Beat" in line)
    assert "beat: Starting..." in first
    assert {json.loads(line)["logger"] for line in others} == {"celery.beat"}
    assert not socket.exists()


#: adds a handler to the root logger
HANDLER = """
import logging
handler = logging.StreamHandler()
handler.setFormatter(logging.Formatter("own: %(message)s"))
logging.getLogger().addHandler(handler)
"""


@pytest.mark.parametrize("own", ["handler", "the page's formatter"])
def test_handlers_of_an_application_are_not_changed(server: Server, tmp_path: Path, own: str) -> None:
    written = {path.name: path for path in write_files("docs/monitoring.rst", tmp_path / "page")}
    extra = HANDLER if own == "handler" else written["logs.py"].read_text("utf-8")
    settings = {**JSON, "worker_hijack_root_logger": False}
    write_app(tmp_path, "own", server.url(), extra=extra, beat_schedule={"now": ENTRY}, **settings)
    with celery_beat(tmp_path, "own") as beat:
        beat.wait_for("Sending due task")
        output = beat.output().rpartition("\n")[0]
    assert ("redbeat.log.JsonFormatter" in output) is (own == "handler")
    if own == "handler":
        assert "own: beat: Acquired lock" in output
    else:
        records = records_in("\n".join(line for line in output.splitlines() if "celery.beat" in line))
        assert "redbeat.leader.acquired" in {line.get("event") for line in records}


# -- errors at the start


#: beat as a service of another program
EMBEDDED = """
import sys
import celery.beat
from wrong import app
app.log.setup("INFO", redirect_stdouts=True)
beat = celery.beat.EmbeddedService(app, scheduler_cls="redbeat.RedBeatScheduler")
beat.start()
beat.join()
sys.exit(beat.exitcode)
"""


def lines_of_failed_beat(directory: Path, way: str, code: int, **settings: Any) -> list[str]:
    """Start a beat: with its banner, without it, or in another program. Return its log."""
    write_app(directory, "wrong", "redis://127.0.0.1:1", **settings)
    if way == "embedded":
        beat = Process([sys.executable, "-c", EMBEDDED], cwd=directory)
    elif way == "quiet":
        beat = celery_command(directory, "wrong", "-q", "beat", "-S", "redbeat.RedBeatScheduler")
    else:
        beat = celery_beat(directory, "wrong")
    with beat:
        assert beat.wait() == code, beat.output()
    return [line for line in beat.output().splitlines() if "beat: Starting..." not in line]


@pytest.mark.parametrize("way", ["quiet", pytest.param("embedded", marks=pytest.mark.slow)])
def test_invalid_setting_ends_beat_with_one_record(tmp_path: Path, way: str) -> None:
    lines = lines_of_failed_beat(tmp_path, way, 78, **JSON, redbeat_http="nowhere")
    [record] = map(json.loads, lines)
    assert (record["level"], record["event"]) == ("CRITICAL", "redbeat.beat.misconfigured")
    assert (record["setting"], record["message"]) == ("redbeat_http", f"beat: {record['reason']}")
    assert not any("Traceback" in line for line in lines)


@pytest.mark.parametrize(("way", "start"), [("banner", "Error: "), ("quiet", "[")])
def test_invalid_log_format_ends_beat_with_a_plain_line_whatever_else_is_wrong(
    tmp_path: Path, way: str, start: str
) -> None:
    lines = lines_of_failed_beat(tmp_path, way, 78, redbeat_http="nowhere", redbeat_log_format="yaml")
    [line] = [line for line in lines if "redbeat_" in line]
    assert line.startswith(start)
    assert "redbeat_log_format: 'yaml'" in line


def test_fatal_error_has_one_traceback_or_is_one_json_record(tmp_path: Path) -> None:
    lines = lines_of_failed_beat(tmp_path, "banner", 1)
    assert lines.count("Traceback (most recent call last):") == 1
    assert sum("StoreUnavailable(" in line for line in lines) == 1
    assert not [line for line in lines if "WARNING" in line]
    [record] = map(json.loads, lines_of_failed_beat(tmp_path, "quiet", 1, **JSON))
    assert (record["level"], record["event"]) == ("CRITICAL", "redbeat.beat.failed")
    assert record["exception"]["type"] == "StoreUnavailable"
