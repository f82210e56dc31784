"""The HTTP endpoint without sockets: verdicts on a beat's health, shared pages, and parts that fail."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timezone
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, call

import pytest
from celery import Celery

from redbeat.config.timing import Timing
from redbeat.errors import StoreUnavailable
from redbeat.leadership.heartbeat import Pulse, Role
from redbeat.leadership.status import Status
from redbeat.telemetry.endpoint import pages as module
from redbeat.telemetry.endpoint.condition import PAUSE_SECONDS, Condition
from redbeat.telemetry.endpoint.connections import Connections
from redbeat.telemetry.endpoint.exchange import Page, Request, Response
from redbeat.telemetry.endpoint.health import Signs, find_hang, find_obstacle
from redbeat.telemetry.endpoint.pages import Shared, pages_of
from redbeat.telemetry.telemetry import Telemetry
from tests.support.documents import ROOT
from tests.support.polling import eventually

# -- health


WELL = Signs(
    role=Role.LEADER,
    idle_seconds=1.0,
    stuck_after_seconds=58.0,
    unanswered_seconds=2.0,
    unready_after_seconds=8.0,
    occupation="a publish or a signal handler",
    is_broker_away=False,
    trouble="",
)


@pytest.mark.parametrize("role", Role)
def test_working_beat_is_alive_and_ready_and_a_hanging_one_is_neither(role: Role) -> None:
    signs = replace(WELL, role=role)
    assert (find_hang(signs), find_obstacle(signs)) == ("", "")
    signs = replace(signs, idle_seconds=58.0)
    assert find_hang(signs) == find_obstacle(signs) != ""


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"unanswered_seconds": 9.0}, "9 s"),
        ({"role": Role.STANDBY, "unanswered_seconds": 9.0}, "9 s"),
        ({"role": Role.SHARING, "unanswered_seconds": 8.0}, "8 s"),
        ({"role": Role.STANDBY, "unanswered_seconds": None}, "only just begun"),
        ({"is_broker_away": True}, "broker"),
        ({"role": Role.STANDBY, "is_broker_away": True}, ""),
        ({"trouble": "Redis is full."}, "Redis is full."),
        ({"trouble": "Redis is full.", "troubled": "shards 3, 5 of 16"}, "shards 3, 5 of 16"),
        ({"is_stopping": True, "role": Role.STANDBY, "unanswered_seconds": None}, "stopping"),
    ],
)
def test_trouble_that_a_restart_does_not_help_makes_a_beat_unready_only(
    changes: dict[str, Any], named: str
) -> None:
    signs = replace(WELL, **changes)
    assert find_hang(signs) == ""
    assert named in find_obstacle(signs)
    assert bool(find_obstacle(signs)) is bool(named)


class Beat:
    """The condition of a beat, with a fake clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pulse = Pulse(Role.LEADER, progressed_at=1000.0, answered_at=1000.0)
        leadership: Any = SimpleNamespace(timing=Timing(60), pulse=lambda: self.pulse)
        broker: Any = SimpleNamespace(is_away=False)
        self.condition = Condition(leadership, broker, 58.0, clock=lambda: self.now)

    def pass_seconds(self, seconds: float, *, is_paused: bool = False) -> None:
        """Advance the clock; unless the process is paused, its thread looks every second."""
        end = self.now + seconds
        while not is_paused and self.now < end - 1:
            self.now += 1
            self.condition.look()
        self.now = end


def test_idle_beat_hangs_after_its_time_until_it_goes_on_and_a_paused_process_does_not() -> None:
    beat = Beat()
    beat.pass_seconds(50)
    beat.pass_seconds(1000, is_paused=True)
    assert beat.condition.read().idle_seconds == 0
    beat.pass_seconds(57)
    assert find_hang(beat.condition.read()) == ""
    beat.pass_seconds(1)
    assert find_hang(beat.condition.read())
    beat.pulse = replace(beat.pulse, progressed_at=beat.now)
    assert find_hang(beat.condition.read()) == ""


def test_look_that_is_a_little_late_is_not_a_pause() -> None:
    beat = Beat()
    for _ in range(60):
        beat.pass_seconds(PAUSE_SECONDS, is_paused=True)
        beat.condition.look()
    assert find_hang(beat.condition.read())


def test_old_leadership_and_old_trouble_do_not_count() -> None:
    beat = Beat()
    beat.pulse = replace(beat.pulse, progressed_at=0.0)
    assert find_hang(beat.condition.read()) == ""
    beat.condition.note_trouble("Redis is full.")
    beat.pass_seconds(2)
    assert beat.condition.read().trouble == "Redis is full."
    beat.pass_seconds(1)
    assert beat.condition.read().trouble == ""


# -- pages


ANY: Any = SimpleNamespace()


def ask(page: Page, **headers: str) -> Response:
    return page(Request("/", headers))


def test_hanging_beat_gets_503_from_both_health_pages() -> None:
    beat = Beat()
    pages = [pages_of(ANY, beat.condition)[path] for path in ("/healthz", "/readyz")]
    assert [ask(page).status for page in pages] == [200, 200]
    beat.pass_seconds(59)
    assert [ask(page).status for page in pages] == [503, 503]


def test_page_is_made_once_for_all_requests_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    may_end = threading.Event()

    def make(form: str) -> Response:
        made.append(form)
        may_end.wait()
        return Response(HTTPStatus.OK, "text/plain", form.encode())

    shared = Shared(make)
    monkeypatch.setattr(module, "KEPT_SECONDS", 3600)
    with ThreadPoolExecutor(10) as pool:
        given = [pool.submit(shared.give, "a") for _ in range(10)]
        eventually(lambda: made)
        may_end.set()
    assert [one.result().body for one in given] == [b"a"] * 10
    assert shared.give("b").body == b"b"
    assert made == ["a", "b"]
    monkeypatch.setattr(module, "KEPT_SECONDS", 0)
    shared.give("a")
    assert made == ["a", "b", "a"]


def test_error_of_a_page_is_not_kept() -> None:
    well = Response(HTTPStatus.OK, "text/plain", b"well")
    shared = Shared(Mock(side_effect=[ValueError("a bug"), well]))
    with pytest.raises(ValueError, match="a bug"):
        shared.give("")
    assert shared.give("") is well


def test_metrics_page_is_in_the_form_asked_for_or_501_without_the_package(fake_app: Celery) -> None:
    page = pages_of(fake_app, ANY, lambda accept: (f"for {accept}", accept.encode()))["/metrics"]
    form = "application/openmetrics-text"
    accept = f"{form}; version=1.0.0, text/plain; q=0.5"
    assert ask(page, accept=accept) == Response(HTTPStatus.OK, f"for {form}", form.encode())
    assert ask(page) == Response(HTTPStatus.OK, "for ", b"")
    missing = ask(pages_of(fake_app, ANY)["/metrics"])
    assert missing.status == HTTPStatus.NOT_IMPLEMENTED
    assert b"celery-redbeat[metrics]" in missing.body


def test_documented_pages_are_those_served(fake_app: Celery) -> None:
    page = (ROOT / "docs" / "monitoring.rst").read_text("utf-8")
    assert re.findall(r"^   \* - ``(/\w+)``$", page, re.MULTILINE) == [*pages_of(fake_app, ANY)]


def test_status_page_asks_a_silent_redis_in_one_thread_only(
    fake_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, asked = threading.Event(), []

    def ask_status(_app: Any) -> Status:
        asked.append(threading.current_thread().name)
        may_answer.wait()
        return Status(datetime.now(timezone.utc), None, ())

    monkeypatch.setattr(module, "ask_status", ask_status)
    monkeypatch.setattr(module, "STATUS_SECONDS", 0.01)
    monkeypatch.setattr(module, "KEPT_SECONDS", 0)
    page = pages_of(fake_app, ANY)["/status"]
    try:
        for _ in range(5):
            found = ask(page)
            assert found.status == HTTPStatus.SERVICE_UNAVAILABLE
            assert b'"state": "unreachable", "exit_code": 3' in found.body
        assert asked == ["redbeat-status"]
    finally:
        may_answer.set()
    monkeypatch.setattr(module, "STATUS_SECONDS", 3600)
    eventually(lambda: "redbeat-status" not in [one.name for one in threading.enumerate()])
    assert ask(page).status == HTTPStatus.OK
    assert len(asked) == 2, "an answer of long ago was given"


def test_status_page_without_redis_has_the_problem_without_advice(
    fake_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = StoreUnavailable("Redis is gone.", advice="A setting makes beat wait for it.")
    monkeypatch.setattr(module, "ask_status", Mock(side_effect=error))
    found = ask(pages_of(fake_app, ANY)["/status"])
    assert found.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(found.body)["problem"] == "Redis is gone."


# -- connections


def test_oldest_connection_without_a_request_makes_room_and_then_the_oldest() -> None:
    connections, peers = Connections(limit=3, seconds=10), [Mock() for _ in range(5)]
    first, _, third = map(connections.add, peers[:3])
    first.has_asked = True
    connections.add(peers[3]).has_asked = True
    assert [peer.shutdown.called for peer in peers] == [False, True, False, False, False]
    third.has_asked = True
    connections.add(peers[4])
    assert [peer.shutdown.called for peer in peers] == [True, True, False, False, False]


# -- parts of the telemetry


def test_failing_part_is_logged_once_and_the_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    error = OSError("no such place")
    failing, part = Mock(**{"look.side_effect": error, "stop.side_effect": error}), Mock()
    telemetry = Telemetry([failing, part])
    for _ in range(10):
        telemetry.look()
    telemetry.stop()
    assert part.mock_calls == [*[call.look()] * 10, call.stop()]
    [told] = [record for record in caplog.records if "failed, beat goes on" in record.getMessage()]
    assert told.exc_info is not None


#: makes a scheduler in a process of its own, and traces nothing; redis-py imports OpenTelemetry itself
PROCESS = """
import sys
if {are_missing}:
    sys.modules.update(dict.fromkeys(("prometheus_client", "opentelemetry", "sentry_sdk")))
from celery import Celery
from redbeat import RedBeatScheduler
app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.update(redbeat_redis_url="redis://nowhere", redbeat_http={http!r})
RedBeatScheduler(app, lazy=True)
from redbeat.telemetry.tracing.tracing import Tracing
tracing = Tracing(lambda: 1.0, lambda: None)
for step in (tracing.refresh, tracing.look, tracing.end_batch, tracing.stop):
    step()
with tracing.sending():
    assert tracing.begin("entry", "echo", "id", "", 1.0) is None
optional = ("prometheus_client", "sentry_sdk", "redbeat.telemetry.tracing.spans")
print(*(name for name in optional if sys.modules.get(name)))
"""


@pytest.mark.parametrize(("are_missing", "http"), [(True, "127.0.0.1:0"), (False, None)])
def test_optional_packages_may_be_missing_and_are_imported_only_when_needed(
    are_missing: bool, http: str | None
) -> None:
    command = [sys.executable, "-c", PROCESS.format(are_missing=are_missing, http=http)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "\n", done.stderr
