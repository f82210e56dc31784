"""The endpoint of real beats: what it says of them while servers, and they themselves, come and go."""

from __future__ import annotations

import importlib.util
import json
import signal
from pathlib import Path

import pytest
import redis

from tests.support.apps import GREENLETS, celery_beat, celery_command, patched_beat, write_app
from tests.support.daemons import pick_port
from tests.support.http import fetch
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.servers import Server

PASSWORD = "s3cret-w0rd"


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind is enough."""
    return valkey


def start(directory: Path, server: Server, module: str = "module", **settings: object) -> tuple[Process, int]:
    """A beat that listens, and its port."""
    port = pick_port()
    settings = {"redbeat_redis_url": server.url(1), "redbeat_http": f"127.0.0.1:{port}", **settings}
    write_app(directory, module, server.url(0), **settings)
    beat = celery_beat(directory, module)
    beat.wait_for(f"beat: Listening on http://127.0.0.1:{port} for ")
    return beat, port


def verdict(port: int, page: str) -> tuple[int, str, str]:
    found = fetch(port, page)
    return found.status, found.json["status"], found.json["role"]


def test_leader_and_standby_answer_and_the_standby_takes_over(server: Server, tmp_path: Path) -> None:
    leader, leader_port = start(tmp_path, server, "one")
    with leader:
        leader.wait_for("beat: Acquired lock")
        standby, standby_port = start(tmp_path, server, "two")
        with standby:
            assert verdict(leader_port, "/readyz") == (200, "ready", "leader")
            assert verdict(leader_port, "/healthz") == (200, "healthy", "leader")
            eventually(lambda: verdict(standby_port, "/readyz") == (200, "ready", "standby"))
            assert verdict(standby_port, "/healthz") == (200, "healthy", "standby")
            printed = celery_command(tmp_path, "one", "redbeat", "status", "--json")
            printed.wait()
            by_command = json.loads(printed.output())
            for port in (leader_port, standby_port):
                status = fetch(port, "/status")
                assert (status.status, status.headers["content-type"]) == (200, "application/json")
                assert status.json.keys() == by_command.keys()
                assert status.json["leader"]["token"] == by_command["leader"]["token"]
                assert status.json["leader"]["pid"] == leader.pid
            assert leader.seconds_to_end() < 5
            eventually(lambda: verdict(standby_port, "/readyz") == (200, "ready", "leader"))
            assert not has_traceback(leader.output() + standby.output())


@pytest.mark.parametrize("library", GREENLETS)
def test_a_beat_with_greenlets_answers_and_ends_as_any_other(
    server: Server, tmp_path: Path, library: str, client: redis.Redis
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} isn't installed")
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
