"""The HTTP endpoint of real beats: health and readiness through outages, hangs, pauses and takeovers."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import pytest
from prometheus_client.parser import text_string_to_metric_families

from redbeat.telemetry.metrics import METRICS, OF_BEAT
from tests.support.apps import (
    GREENLETS,
    celery_beat,
    celery_command,
    patched_beat,
    write_app,
)
from tests.support.daemons import pick_port
from tests.support.deadlines import patience
from tests.support.http import connect, fetch
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.servers import Server

PASSWORD = "s3cret-w0rd"
#: metrics whose labels are shown as soon as an entry has run
WITH_SAMPLES = {"redbeat_runs", "redbeat_run_lateness_seconds", "redbeat_entries", "redbeat_due_entries"}
#: a beat that does nothing for 4.5 s is stuck, and one without an answer for 2 s is not ready
SHORT = {"redbeat_lock_timeout": 2, "redbeat_publish_timeout": 1, "redbeat_lock_lost": "standby"}
STUCK_SECONDS = 4.5
#: a receiver that returns when a file exists, whatever signal comes
HANGING = """
import os, pathlib
from celery.signals import before_task_publish

@before_task_publish.connect
def hang(**kwargs):
    pathlib.Path("amid-a-run").touch()
    while not os.path.exists("go-on"):
        try:
            time.sleep(0.02)
        except SystemExit:
            pass
"""


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind of server is enough."""
    return valkey


def start(
    directory: Path, server: Server, module: str, extra: str = "", **settings: object
) -> tuple[Process, int]:
    """Start a beat; return it and its port, on which it listens already."""
    port = pick_port()
    settings = {"redbeat_redis_url": server.url(1), "redbeat_http": f"127.0.0.1:{port}", **settings}
    write_app(directory, module, server.url(0), extra=extra, **settings)
    beat = celery_beat(directory, module)
    beat.wait_for(f"beat: Listening on http://127.0.0.1:{port} for ")
    return beat, port


def verdict(port: int, page: str) -> tuple[int, str, str]:
    found = fetch(port, page)
    return found.status, found.json["status"], found.json["role"]


def is_ready(port: int) -> bool:
    return fetch(port, "/readyz").status == 200


def is_alive(port: int) -> bool:
    return fetch(port, "/healthz").status == 200


def metrics_served(port: int) -> dict[str, tuple[str, set[tuple[str, ...]]]]:
    """Return the names of the metrics with their types and the sets of labels of their samples."""
    return {
        family.name: (family.type, {tuple(sorted({*one.labels} - {"le"})) for one in family.samples})
        for family in text_string_to_metric_families(fetch(port, "/metrics").body.decode())
    }


def are_metrics_documented(port: int, *, is_leader: bool) -> bool:
    served = metrics_served(port)
    assert served.keys() == {one.name for one in (METRICS.values() if is_leader else OF_BEAT)}
    for name, (kind, labels) in served.items():
        assert kind == METRICS[name].type, name
        assert labels <= {tuple(sorted(METRICS[name].labels))}, name
        assert labels or name not in WITH_SAMPLES, name
    return True


@pytest.mark.slow
@pytest.mark.parametrize("library", GREENLETS)
def test_endpoint_answers_under_greenlets(server: Server, tmp_path: Path, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    port = pick_port()
    address = f"127.0.0.1:{port}"
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), redbeat_http=address)
    with patched_beat(tmp_path, "module", library) as beat:
        beat.wait_for("beat: Acquired lock")
        beat.wait_for("beat: Listening on ")
        assert verdict(port, "/readyz") == (200, "ready", "leader")
        assert fetch(port, "/status").json["leader"]["pid"] == beat.pid
        beat.signal(signal.SIGTERM)
        assert beat.wait() == 0, beat.output()
        assert not has_traceback(beat.output()), beat.output()


def test_leader_and_standby_answer_and_the_standby_takes_over(server: Server, tmp_path: Path) -> None:
    often = {"beat_schedule": {"often": {"task": "echo", "schedule": 0.2}}}
    leader, leader_port = start(tmp_path, server, "one", **often)
    with leader:
        leader.wait_for("beat: Acquired lock")
        standby, standby_port = start(tmp_path, server, "two", **often)
        with standby:
            assert verdict(leader_port, "/readyz") == (200, "ready", "leader")
            assert verdict(leader_port, "/healthz") == (200, "healthy", "leader")
            eventually(lambda: verdict(standby_port, "/readyz") == (200, "ready", "standby"))
            assert verdict(standby_port, "/healthz") == (200, "healthy", "standby")
            eventually(lambda: are_metrics_documented(leader_port, is_leader=True))
            eventually(lambda: are_metrics_documented(standby_port, is_leader=False))
            printed = celery_command(tmp_path, "one", "redbeat", "status", "--json")
            printed.wait()
            by_command = json.loads(printed.output())
            for port in (leader_port, standby_port):
                status = fetch(port, "/status")
                assert (status.status, status.headers["content-type"]) == (200, "application/json")
                assert status.json.keys() == {*by_command, "overdue"}
                assert status.json["leader"]["token"] == by_command["leader"]["token"]
                assert status.json["leader"]["pid"] == leader.pid
            assert leader.seconds_to_end() < 5
            eventually(lambda: verdict(standby_port, "/readyz") == (200, "ready", "leader"))
            assert not has_traceback(leader.output() + standby.output())


def test_stopping_beat_is_healthy_and_not_ready(server: Server, tmp_path: Path) -> None:
    due = {"now": {"task": "echo", "schedule": 1}}
    beat, port = start(tmp_path, server, "one", extra=HANGING, beat_schedule=due)
    with beat:
        eventually((tmp_path / "amid-a-run").exists)
        beat.signal(signal.SIGTERM)
        eventually(lambda: verdict(port, "/readyz") == (503, "not ready", "stopping"))
        assert verdict(port, "/healthz") == (200, "healthy", "stopping")
        (tmp_path / "go-on").touch()
        assert beat.wait() == 0


@pytest.mark.slow
def test_runs_are_in_time_under_load_on_the_endpoint(server: Server, tmp_path: Path) -> None:
    often = {f"often-{number}": {"task": "echo", "schedule": 0.1} for number in range(5)}
    beat, port = start(tmp_path, server, "module", beat_schedule=often, redbeat_log_format="json")
    over = threading.Event()

    def ask() -> set[int]:
        answered = set()
        while not over.is_set():
            answered |= {fetch(port, page).status for page in ("/healthz", "/readyz", "/status")}
        return answered

    def median_lateness() -> float:
        seen = len(beat.output())
        eventually(lambda: beat.output()[seen:].count("redbeat.run.sent") >= 50)
        late = re.findall(r'"redbeat\.run\.sent".*"lateness_seconds": ([\d.]+)', beat.output()[seen:])
        return median(map(float, late))

    with beat, ExitStack() as clients, ThreadPoolExecutor(8) as pool:
        quiet = median_lateness()
        for _ in range(64):
            clients.enter_context(connect(port)).sendall(b"GET /heal")
        asking = [pool.submit(ask) for _ in range(8)]
        try:
            pressed = median_lateness()
        finally:
            over.set()
        print(f"median lateness: {quiet:.4f} s, under load {pressed:.4f} s")
        assert [one.result() for one in asking] == [{200}] * 8
        assert pressed < 10 * quiet + 0.1
        assert beat.seconds_to_end() < 5
        assert not has_traceback(beat.output()), beat.output()


@pytest.mark.slow
def test_beats_without_redis_are_alive_and_not_ready(tmp_path: Path) -> None:
    settings = {**SHORT, "redbeat_redis_options": {"retry_period": -1}}
    alone = {"redbeat_lock_key": None, "redbeat_key_prefix": "other:"}
    with ExitStack() as at_end:
        server = at_end.enter_context(Server(requirepass=PASSWORD))
        beats, ports = [], []
        for module, more in {"one": {}, "two": {}, "three": alone}.items():
            beat, port = start(tmp_path, server, module, **{**settings, **more})
            beats.append(at_end.enter_context(beat))
            ports.append(port)
        eventually(lambda: all(map(is_ready, ports)))
        assert [fetch(port, "/healthz").json["role"] for port in ports] == ["leader", "standby", "sharing"]

        server.process.signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        try:
            while time.monotonic() < stopped_at + STUCK_SECONDS + 1 or any(map(is_ready, ports)):
                assert all(map(is_alive, ports)), [fetch(port, "/healthz").body for port in ports]
                assert time.monotonic() < stopped_at + patience()
                if time.monotonic() > stopped_at + STUCK_SECONDS / 2:
                    status = fetch(ports[1], "/status")
                    assert (status.status, status.json["state"]) == (503, "unreachable"), status.body
                    assert PASSWORD.encode() not in status.body
            assert [verdict(port, "/readyz")[:2] for port in ports] == [(503, "not ready")] * 3
        finally:
            server.process.signal(signal.SIGCONT)

        def are_all_well() -> bool:
            alive = list(map(is_alive, ports))
            return all(map(is_ready, ports)) if all(alive) else pytest.fail(f"called stuck: {alive}")

        eventually(are_all_well)
        for page in ("/status", "/metrics"):
            found = fetch(ports[0], page)
            assert found.status == 200
            assert PASSWORD.encode() not in found.body
        assert PASSWORD not in "".join(beat.output() for beat in beats)


@pytest.mark.slow
def test_hanging_beat_is_not_alive_and_a_standby_takes_over(server: Server, tmp_path: Path) -> None:
    due = {"often": {"task": "echo", "schedule": 1}}
    hanging, port = start(tmp_path, server, "one", extra=HANGING, beat_schedule=due, **SHORT)
    with hanging:
        hanging.wait_for("beat: Acquired lock")
        standby, other_port = start(tmp_path, server, "two", **SHORT)
        with standby:
            eventually(lambda: not is_alive(port))
            assert not is_ready(port)
            eventually(lambda: verdict(other_port, "/readyz") == (200, "ready", "leader"))
            for page, word in {"/healthz": "stuck", "/readyz": "not ready"}.items():
                assert verdict(port, page) == (503, word, "standby"), "it has given up its lock"
            (tmp_path / "go-on").touch()
            eventually(lambda: is_alive(port) and verdict(port, "/readyz") == (200, "ready", "standby"))
