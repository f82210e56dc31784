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
from redbeat.telemetry import pages as module
from redbeat.telemetry.endpoint import Page, Response
from redbeat.telemetry.figures import BeatFigures, OwnFigures
from redbeat.telemetry.health import PAUSE_SECONDS, Health
from redbeat.telemetry.pages import pages_of, shared
from redbeat.telemetry.telemetry import Telemetry
from tests.support.documents import ROOT
from tests.support.polling import eventually

# -- health


class Beat:
    """The health of a beat, with a fake clock."""

    def __init__(self, role: Role = Role.LEADER, **answered: float | None) -> None:
        self.now = 1000.0
        self.pulse = Pulse(role, progressed_at=1000.0, **{"answered_at": 1000.0, **answered})
        election: Any = SimpleNamespace(timing=Timing(60), pulse=lambda: self.pulse)
        self.broker: Any = SimpleNamespace(is_away=False)
        self.health = Health(election, self.broker, 58.0, clock=lambda: self.now)

    def pass_seconds(self, seconds: float, *, is_paused: bool = False) -> None:
        """Advance the clock; unless the process is paused, its thread looks every second."""
        end = self.now + seconds
        while not is_paused and self.now < end - 1:
            self.now += 1
            self.health.look()
        self.now = end


@pytest.mark.parametrize("role", Role)
def test_working_beat_is_alive_and_ready_and_a_hanging_one_is_neither(role: Role) -> None:
    beat = Beat(role)
    assert (beat.health.find_hang(), beat.health.find_obstacle()) == ("", "")
    beat.pass_seconds(58)
    assert beat.health.find_hang() == beat.health.find_obstacle() != ""


@pytest.mark.parametrize(
    ("role", "answered_at", "named"),
    [
        (Role.LEADER, 991.0, "9 s"),
        (Role.STANDBY, 991.0, "9 s"),
        (Role.SHARING, 992.0, "8 s"),
        (Role.STANDBY, None, "only just begun"),
    ],
)
def test_beat_without_an_answer_of_redis_is_alive_and_not_ready(
    role: Role, answered_at: float | None, named: str
) -> None:
    health = Beat(role, answered_at=answered_at).health
    assert health.find_hang() == ""
    assert named in health.find_obstacle()


def test_leader_that_cannot_send_and_stopping_beat_are_alive_and_not_ready() -> None:
    beat, standby = Beat(), Beat(Role.STANDBY)
    for one in (beat, standby):
        one.broker.is_away = True
    assert "broker" in beat.health.find_obstacle()
    assert standby.health.find_obstacle() == ""
    beat.health.note_trouble("Redis is full.")
    assert beat.health.find_obstacle() == "Redis is full."
    standby.health.note_stopping()
    assert "stopping" in standby.health.find_obstacle()
    assert beat.health.find_hang() == standby.health.find_hang() == ""


def test_idle_beat_hangs_after_its_time_until_it_goes_on_and_a_paused_process_does_not() -> None:
    beat = Beat()
    beat.pass_seconds(50)
    beat.pass_seconds(1000, is_paused=True)
    assert beat.health.find_hang() == ""
    beat.pass_seconds(57)
    assert beat.health.find_hang() == ""
    beat.pass_seconds(1)
    assert beat.health.find_hang()
    beat.pulse = replace(beat.pulse, progressed_at=beat.now)
    assert beat.health.find_hang() == ""


def test_look_that_is_a_little_late_is_not_a_pause() -> None:
    beat = Beat()
    for _ in range(60):
        beat.pass_seconds(PAUSE_SECONDS, is_paused=True)
        beat.health.look()
    assert beat.health.find_hang()


def test_old_leadership_and_old_trouble_do_not_count() -> None:
    beat = Beat()
    beat.pulse = replace(beat.pulse, progressed_at=0.0)
    assert beat.health.find_hang() == ""
    beat.health.note_trouble("Redis is full.")
    beat.pass_seconds(2)
    assert beat.health.find_blockage() == "Redis is full."
    beat.pass_seconds(1)
    assert beat.health.find_blockage() == ""


# -- pages


ANY: Any = SimpleNamespace()


def pages(app: Any = ANY, health: Any = ANY) -> dict[str, Page]:
    return pages_of(app, health, tuple, ANY)


def test_hanging_beat_gets_503_from_both_health_pages() -> None:
    beat = Beat()
    served = [pages(health=beat.health)[path] for path in ("/healthz", "/readyz")]
    assert [page("").status for page in served] == [200, 200]
    beat.pass_seconds(59)
    assert [page("").status for page in served] == [503, 503]


def test_page_is_made_once_for_all_requests_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    may_end = threading.Event()

    def make(form: str) -> Response:
        made.append(form)
        may_end.wait()
        return Response(HTTPStatus.OK, "text/plain", form.encode())

    give = shared(make)
    monkeypatch.setattr(module, "KEPT_SECONDS", 3600)
    with ThreadPoolExecutor(10) as pool:
        given = [pool.submit(give, "a") for _ in range(10)]
        eventually(lambda: made)
        may_end.set()
    assert [one.result().body for one in given] == [b"a"] * 10
    assert give("b").body == b"b"
    assert made == ["a", "b"]
    monkeypatch.setattr(module, "KEPT_SECONDS", 0)
    give("a")
    assert made == ["a", "b", "a"]


def test_error_of_a_page_is_not_kept() -> None:
    well = Response(HTTPStatus.OK, "text/plain", b"well")
    give = shared(Mock(side_effect=[ValueError("a bug"), well]))
    with pytest.raises(ValueError, match="a bug"):
        give("")
    assert give("") is well


def test_metrics_page_is_in_the_form_asked_for_or_501_without_the_package(
    fake_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = OwnFigures(Mock(lock_key=None, is_divided=False), BeatFigures(), int)
    page = pages_of(fake_app, ANY, tuple, own)["/metrics"]
    form = "application/openmetrics-text"
    assert page(f"{form}; version=1.0.0, text/plain; q=0.5").content_type.startswith(form)
    assert page("").content_type.startswith("text/plain")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    missing = pages(fake_app)["/metrics"]("")
    assert missing.status == HTTPStatus.NOT_IMPLEMENTED
    assert b"celery-redbeat[metrics]" in missing.body


def test_documented_pages_are_those_served(fake_app: Celery) -> None:
    page = (ROOT / "docs" / "monitoring.rst").read_text("utf-8")
    assert re.findall(r"^   \* - ``(/\w+)``$", page, re.MULTILINE) == [*pages(fake_app)]


def test_status_page_does_not_wait_for_a_silent_redis(
    fake_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer = threading.Event()

    def ask_status(_app: Any) -> Status:
        may_answer.wait()
        return Status(datetime.now(timezone.utc), None, ())

    monkeypatch.setattr(module, "ask_status", ask_status)
    monkeypatch.setattr(module, "STATUS_SECONDS", 0.01)
    monkeypatch.setattr(module, "KEPT_SECONDS", 0)
    page = pages(fake_app)["/status"]
    try:
        found = page("")
        assert found.status == HTTPStatus.SERVICE_UNAVAILABLE
        assert b'"state": "unreachable", "exit_code": 3' in found.body
    finally:
        may_answer.set()
    monkeypatch.setattr(module, "STATUS_SECONDS", 3600)
    assert page("").status == HTTPStatus.OK


def test_status_page_without_redis_has_the_problem_without_advice_and_valid_text(
    fake_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = StoreUnavailable("Redis is gone.", advice="A setting makes beat wait for it.")
    monkeypatch.setattr(module, "ask_status", Mock(side_effect=error))
    view = Mock(**{"overdue.names": ["ü\udcff"]})
    found = pages_of(fake_app, ANY, lambda: [view], ANY)["/status"]("")
    assert found.status == HTTPStatus.SERVICE_UNAVAILABLE
    document = json.loads(found.body)
    assert (document["problem"], document["overdue"]) == ("Redis is gone.", ["ü?"])


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
from redbeat.telemetry.tracing import Tracing
tracing = Tracing(lambda: 1.0, lambda: None)
for step in (tracing.refresh, tracing.look, tracing.end_batch, tracing.stop):
    step()
with tracing.sending():
    assert tracing.begin("entry", "echo", "id", "", 1.0) is None
optional = ("prometheus_client", "sentry_sdk", "redbeat.telemetry.spans")
print(*(name for name in optional if sys.modules.get(name)))
"""


@pytest.mark.parametrize(("are_missing", "http"), [(True, "127.0.0.1:0"), (False, None)])
def test_optional_packages_may_be_missing_and_are_imported_only_when_needed(
    are_missing: bool, http: str | None
) -> None:
    command = [sys.executable, "-c", PROCESS.format(are_missing=are_missing, http=http)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "\n", done.stderr
