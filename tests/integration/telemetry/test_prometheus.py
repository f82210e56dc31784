"""A real Prometheus scrapes two real beats: the table, the sums, dashboard and alerts.

Invariant: each test finds two beats at work, and leaves them so.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics

from redbeat import RedBeatSchedulerEntry
from redbeat.telemetry.metrics import METRICS
from tests.integration.runs.tracked import Tracked
from tests.support.apps import celery_beat
from tests.support.daemons import Daemon, pick_port
from tests.support.deadlines import patience
from tests.support.documents import write_files
from tests.support.http import fetch
from tests.support.machine import require_program
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.servers import Server

MONITORING = Path(__file__).parents[3] / "redbeat" / "telemetry" / "monitoring"
pytestmark = pytest.mark.services
JOB = "redbeat"
TAKEOVER_SECONDS = 5

#: what workers do, and what beat has to do with it
EXTRA = """
@app.task(bind=True)
def fail_at_times(self):
    work(self, "begin")
    if runs_client().exists("fail"):
        raise ValueError("as it was told to")


@app.task
def take_long():
    time.sleep(1.5)
"""
ENTRIES: dict[str, dict[str, Any]] = {
    "counted": {"task": "echo", "schedule": 0.5, "options": {"queue": "counted"}},
    "prepared": {"task": "echo", "schedule": 3.0, "options": {"queue": "counted"}},
    "report": {"task": "tracked.fail_at_times", "schedule": 1.0},
    "long": {"task": "tracked.take_long", "schedule": 1.0, "overlap": "skip"},
}


def promtool(arguments: Sequence[str | Path], given: bytes = b"") -> str:
    """Return what `promtool` says; AssertionError if it finds a fault."""
    command = [require_program("promtool"), *map(str, arguments)]
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


class Prometheus(Daemon):
    """Scrapes what `configuration` says each second."""

    _name = "prometheus"
    _port_taken = re.compile(r"address already in use")

    def __init__(self, configuration: dict[str, Any]) -> None:
        self._program, self._given = require_program("prometheus"), configuration
        super().__init__()

    def ask(self, expr: str, **parameters: str) -> list[dict[str, Any]]:
        """Return the series of an expression: now, or with `start`, `end` and `step` those of a range."""
        url = f"http://{self.host}:{self.port}/api/v1/{'query_range' if parameters else 'query'}"
        answer = httpx.get(url, params={"query": expr, **parameters}, timeout=patience())
        assert answer.status_code == HTTPStatus.OK, answer.text
        result: list[dict[str, Any]] = answer.json()["data"]["result"]
        return result

    def value(self, expr: str) -> float:
        [found] = self.ask(expr)
        return float(found["value"][1])

    def _configure(self) -> None:
        configuration = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, **self._given}
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(configuration), "utf-8")

    def _launch(self) -> Process:
        command = [
            self._program,
            f"--config.file={self.directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address={self.host}:{self.port}",
        ]
        process = Process(command, cwd=self.directory)
        try:
            process.wait_for("Server is ready to receive web requests")
        except BaseException:
            process.kill()
            raise
        return process


class World:
    """Two beats, a worker, the server of both, and the Prometheus that scrapes them."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.server = server
        self.client = server.client(db=1)
        self.tracked = Tracked.write(
            directory,
            server.url(0),
            server.url(1),
            self.client,
            extra=EXTRA,
            beat_schedule=ENTRIES,
            redbeat_takeover_after=TAKEOVER_SECONDS,
            redbeat_lock_lost="standby",
        )
        source = (directory / "tracked.py").read_text("utf-8")
        listening = 'import os\napp.conf.redbeat_http = os.environ.get("BEAT_HTTP")\n'
        (directory / "tracked.py").write_text(source + listening, "utf-8")
        self.ports = (pick_port(), pick_port())
        self.beats = [self.start_beat(0), self.start_beat(1)]
        self.worker = self.tracked.worker("threads", "-Q", "celery,counted")
        self.prometheus = Prometheus(self.configuration())

    def configuration(self) -> dict[str, Any]:
        """The page's for Prometheus, but for the ports."""
        found = {
            path.name: path for path in write_files("docs/monitoring.rst", self.tracked.directory / "page")
        }
        configuration: dict[str, Any] = yaml.safe_load(found["prometheus.yml"].read_text("utf-8"))
        [job] = configuration["scrape_configs"]
        assert job["job_name"] == JOB
        [targets] = job["static_configs"]
        [address] = targets["targets"]
        assert f'redbeat_http = "{address}"\n' in found["celeryconfig.py"].read_text("utf-8")
        targets["targets"] = [address.replace("9808", str(port)) for port in self.ports]
        return configuration

    def start_beat(self, number: int) -> Process:
        address = f"127.0.0.1:{self.ports[number]}"
        beat = celery_beat(self.tracked.directory, "tracked", env={"BEAT_HTTP": address})
        beat.wait_for(f"beat: Listening on http://{address} for ")
        return beat

    def shows_the_schedule(self, number: int) -> bool:
        is_running = self.beats[number].is_running
        return is_running and b"redbeat_due_entries " in fetch(self.ports[number], "/metrics").body

    def leader(self) -> int:
        """The number of the beat that leads, and shows the schedule."""
        [found] = eventually(lambda: [number for number in (0, 1) if self.shows_the_schedule(number)])
        return found

    def at_rest(self) -> None:
        """Wait until both beats are scraped, and one shows the schedule."""
        is_well = f'sum(up{{job="{JOB}"}}) == 2 and count(redbeat_due_entries) == 1'
        eventually(lambda: self.prometheus.ask(is_well), interval=0.2)

    def stop(self) -> None:
        for process in (*self.beats, self.worker):
            process.kill()
        self.client.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    require_program("prometheus")  # before beats and a worker are started
    with Server() as server:
        world = World(server, tmp_path_factory.mktemp("world"))
        try:
            with world.prometheus:
                yield world
        finally:
            world.stop()


def test_promtool_accepts_the_rules_and_their_tests() -> None:
    promtool(("check", "rules", MONITORING / "alerts.yml"))
    promtool(("test", "rules", MONITORING / "alerts.test.yml"))


def test_both_formats_are_read_and_promtool_finds_no_fault(world: World) -> None:
    port = world.ports[world.leader()]
    text = fetch(port, "/metrics").body
    assert promtool(("check", "metrics"), given=text) == ""
    asked = fetch(port, "/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert asked.headers["content-type"].startswith("application/openmetrics-text")
    assert {family.name for family in read_openmetrics(asked.body.decode())} == set(METRICS)


def expressions() -> list[str]:
    """Return the expressions of the dashboard as Grafana would send them, and the selectors of the alerts."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text("utf-8"))
    found = [
        target["expr"].replace("$__rate_interval", "20s").replace("$__range", "60s").replace("$job", JOB)
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    assert len(found) > 20
    assert not [expr for expr in found if "$" in expr]
    found += re.findall(r"redbeat_\w+\{.*?\}", (MONITORING / "alerts.yml").read_text("utf-8"))
    # this schedule has no shards
    return [expr for expr in found if not re.search(r'shard!=""|redbeat_shards', expr)]


def test_each_expression_of_dashboard_and_alerts_returns_data(world: World) -> None:
    world.client.set("fail", 1)
    try:
        for expr in expressions():
            eventually(lambda expr=expr: world.prometheus.ask(expr), interval=0.5, message=expr)  # type: ignore[misc]
    finally:
        world.client.delete("fail")


def test_sums_are_right_when_leaders_are_killed_and_paused(world: World) -> None:
    world.at_rest()
    began, client, prometheus = time.time(), world.client, world.prometheus
    first = world.leader()
    second = 1 - first
    world.beats[first].kill()
    assert world.leader() == second
    world.beats[first] = world.start_beat(first)
    eventually(lambda: prometheus.value(f'sum(up{{job="{JOB}"}})') == 2, interval=0.2)
    world.beats[second].signal(signal.SIGSTOP)
    try:
        eventually(lambda: world.shows_the_schedule(first), interval=0.2)
    finally:
        world.beats[second].signal(signal.SIGCONT)
    world.at_rest()
    entries = [RedBeatSchedulerEntry.from_key(f"redbeat:{name}", app=world.tracked.app) for name in ENTRIES]
    for entry in entries:
        entry.pause("to count what was sent")

    def are_equal() -> bool:
        counted = ("sent", 'task="echo"'), ("sent", 'entry="report"'), ("succeeded|failed", 'entry="report"')
        sums = [prometheus.value(f'sum(redbeat_runs_total{{outcome=~"{one}", {of}}})') for one, of in counted]
        assert sums == [client.llen("runs"), client.llen("work"), client.llen("work")]
        return True

    eventually(are_equal, interval=0.2)
    for entry in entries:
        entry.resume()
    times = {"start": str(began), "end": str(time.time()), "step": "0.5"}
    [shown] = prometheus.ask("count(redbeat_leader_changes_total)", **times)
    assert {count for _, count in shown["values"]} == {"1"}, "two beats have shown the schedule at once"
    [totals] = prometheus.ask('sum(redbeat_runs_total{outcome="sent"})', **times)
    assert totals["values"] == sorted(totals["values"], key=lambda pair: float(pair[1])), "a sum fell"
    [led] = prometheus.ask("sum(redbeat_leader_changes_total)", **times)
    assert float(led["values"][-1][1]) - float(led["values"][0][1]) == 2
