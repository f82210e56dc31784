"""The HTTP endpoint without sockets: verdicts on a beat's health, shared pages, heads, and who makes room."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from redbeat.config.timing import Timing
from redbeat.errors import StoreUnavailable
from redbeat.leadership.pulse import Pulse, Role
from redbeat.leadership.status import Status
from redbeat.telemetry.endpoint import pages as module
from redbeat.telemetry.endpoint.condition import PAUSE_SECONDS, Condition
from redbeat.telemetry.endpoint.connections import Connection, Connections
from redbeat.telemetry.endpoint.exchange import MAX_HEAD_BYTES, Page, Request, Response, respond
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
        self.condition = Condition(leadership, broker, lambda: 58.0, clock=lambda: self.now)

    def pass_seconds(self, seconds: float, *, is_paused: bool = False) -> None:
        """Advance the clock; unless the process is paused, its thread looks every second."""
        end = self.now + seconds
        while not is_paused and self.now < end - 1:
            self.now += 1
            self.condition.look()
        self.now = end


def test_idle_beat_hangs_after_its_time_until_it_goes_on() -> None:
    beat = Beat()
    beat.pass_seconds(57)
    assert find_hang(beat.condition.read()) == ""
    beat.pass_seconds(1)
    assert find_hang(beat.condition.read())
    beat.pulse = replace(beat.pulse, progressed_at=beat.now)
    assert find_hang(beat.condition.read()) == ""


def test_pause_of_the_process_is_not_a_hang() -> None:
    beat = Beat()
    beat.pass_seconds(50)
    beat.pass_seconds(1000, is_paused=True)
    assert beat.condition.read().idle_seconds == 0
    beat.pass_seconds(57)
    assert find_hang(beat.condition.read()) == ""
    beat.pass_seconds(1)
    assert find_hang(beat.condition.read())


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


def test_page_is_made_once_for_all_requests_of_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def make(form: str) -> Response:
        made.append(form)
        begun.set()
        may_end.wait()
        return Response(HTTPStatus.OK, "text/plain", form.encode())

    shared = Shared(make)
    given: list[Response] = []
    threads = [threading.Thread(target=lambda: given.append(shared.give("a"))) for _ in range(10)]
    monkeypatch.setattr(module, "KEPT_SECONDS", 3600)
    for thread in threads:
        thread.start()
    begun.wait()
    may_end.set()
    for thread in threads:
        thread.join()
    assert [response.body for response in given] == [b"a"] * 10
    assert shared.give("b").body == b"b"
    assert made == ["a", "b"]
    monkeypatch.setattr(module, "KEPT_SECONDS", 0)
    shared.give("a")
    assert made == ["a", "b", "a"]


def test_error_of_a_page_is_not_kept() -> None:
    left = [ValueError("a bug")]

    def make(_form: str) -> Response:
        if left:
            raise left.pop()
        return Response(HTTPStatus.OK, "text/plain", b"well")

    shared = Shared(make)
    with pytest.raises(ValueError, match="a bug"):
        shared.give("")
    assert shared.give("").body == b"well"


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


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, list[str]]]:
    """Return an event that lets Redis answer, and the threads that have asked."""
    may_answer, asked = threading.Event(), []

    def ask_status(_app: Any) -> Status:
        asked.append(threading.current_thread().name)
        may_answer.wait()
        return Status(datetime.now(timezone.utc), None, None, None, 0, None)

    monkeypatch.setattr(module, "ask_status", ask_status)
    monkeypatch.setattr(module, "STATUS_SECONDS", 0.01)
    monkeypatch.setattr(module, "KEPT_SECONDS", 0)
    yield may_answer, asked
    may_answer.set()


def test_status_page_asks_a_silent_redis_in_one_thread_only(
    fake_app: Celery, reading: tuple[threading.Event, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer, asked = reading
    page = pages_of(fake_app, ANY)["/status"]
    for _ in range(5):
        found = ask(page)
        assert found.status == HTTPStatus.SERVICE_UNAVAILABLE
        assert b'"state": "unreachable", "exit_code": 3' in found.body
    assert asked == ["redbeat-status"]
    may_answer.set()
    monkeypatch.setattr(module, "STATUS_SECONDS", 3600)
    eventually(lambda: "redbeat-status" not in [one.name for one in threading.enumerate()])
    assert ask(page).status == HTTPStatus.OK
    assert len(asked) == 2, "an answer of long ago was given"


def test_status_page_without_redis_has_the_problem_without_advice(
    fake_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask_status(_app: Any) -> Status:
        raise StoreUnavailable("Redis is gone.", advice="A setting makes beat wait for it.")

    monkeypatch.setattr(module, "ask_status", ask_status)
    found = ask(pages_of(fake_app, ANY)["/status"])
    assert found.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(found.body)["problem"] == "Redis is gone."


# -- connections


@pytest.fixture
def connect() -> Iterator[Callable[[Connections], Connection]]:
    """Return a function that adds a connection; its far end is the attribute `far`."""
    with ExitStack() as at_end:

        def make(connections: Connections) -> Any:
            near, far = map(at_end.enter_context, socket.socketpair())
            far.setblocking(False)
            made: Any = connections.add(near)
            FAR.append(far)
            return made

        FAR.clear()
        yield make


#: the far ends of the connections, in the order in which they were made
FAR: list[socket.socket] = []


def ended() -> list[int]:
    """Return the numbers of the connections that were ended."""
    found = []
    for number, far in enumerate(FAR):
        with contextlib.suppress(BlockingIOError):
            far.recv(1)
            found.append(number)
    return found


Connect = Callable[[Connections], Connection]


def test_oldest_connection_without_a_request_makes_room_then_the_oldest(connect: Connect) -> None:
    connections = Connections(limit=3, seconds=10)
    made = [connect(connections) for _ in range(3)]
    made[0].has_asked = True
    assert ended() == []
    connect(connections).has_asked = True
    assert ended() == [1]
    made[2].has_asked = True
    connect(connections)
    assert ended() == [0, 1]
    connect(connections)
    assert ended() == [0, 1, 4]
    closed = Connections(limit=1, seconds=10)
    for _ in range(3):
        one = connect(closed)
        closed.close(one)
        closed.close(one)
        assert one.peer.fileno() == -1


def test_connection_is_ended_when_its_own_time_is_over(connect: Connect) -> None:
    now = 0.0
    connections = Connections(limit=9, seconds=10, clock=lambda: now)
    connect(connections)
    now = 5.0
    connect(connections)
    now = 10.0
    connections.end_overdue()
    assert ended() == [0]
    now = 15.0
    connections.end_overdue()
    assert ended() == [0, 1]


# -- heads of requests


START = b"GET /echo HTTP/1.1\r\n"


SPACE = MAX_HEAD_BYTES - len(START) - 20


def echo(request: Request) -> Response:
    return Response(HTTPStatus.OK, "text/plain", request.headers.get("x", "").encode("latin-1"))


def processor_seconds(head: bytes) -> float:
    """Return the least processor time of five answers."""
    seconds = []
    for _ in range(5):
        began = time.thread_time()
        respond(head, {"/echo": echo})
        seconds.append(time.thread_time() - began)
    return min(seconds)


@pytest.mark.parametrize(
    "header",
    [
        b"X: x" + b" " * SPACE + b"x",
        b"X:" + b" " * SPACE,
        b"X:" + b"\t" * SPACE + b"x\0",
        b"X" * SPACE + b": x",
    ],
    ids=["spaces within", "spaces only", "tabs before", "a long name"],
)
def test_long_header_costs_no_more_than_many_short_ones(header: bytes) -> None:
    usual = START + b"\r\n".join([b"X: y"] * (SPACE // 6))
    assert processor_seconds(START + header) < 5 * processor_seconds(usual)


# -- parts of the telemetry


class Counting:
    """A part that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def look(self) -> None:
        self.calls.append("look")

    def stop(self) -> None:
        self.calls.append("stop")


class Failing:
    """A part that never works."""

    def look(self) -> None:
        raise OSError("no such place")

    def stop(self) -> None:
        raise OSError("no such place")


def test_failing_part_is_logged_once_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counting = Counting()
    telemetry = Telemetry([Failing(), counting])
    for _ in range(10):
        telemetry.look()
    telemetry.stop()
    assert counting.calls == ["look"] * 10 + ["stop"]
    [told] = [record for record in caplog.records if "Failing failed, beat goes on" in record.getMessage()]
    assert told.exc_info is not None


#: makes a scheduler in a process of its own; redis-py imports OpenTelemetry itself
PROCESS = """
import sys
if {are_missing}:
    sys.modules.update(dict.fromkeys(("prometheus_client", "opentelemetry", "sentry_sdk")))
from celery import Celery
from redbeat import RedBeatScheduler
app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.update(redbeat_redis_url="redis://nowhere", redbeat_http={http!r})
RedBeatScheduler(app, lazy=True)
print(*(name for name in ("prometheus_client", "sentry_sdk") if sys.modules.get(name)))
"""


@pytest.mark.parametrize(("are_missing", "http"), [(True, "127.0.0.1:0"), (False, None)])
def test_optional_packages_may_be_missing_and_are_imported_only_when_needed(
    are_missing: bool, http: str | None
) -> None:
    command = [sys.executable, "-c", PROCESS.format(are_missing=are_missing, http=http)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "\n", done.stderr
