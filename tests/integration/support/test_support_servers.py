"""The test support itself, on real servers and real commands."""

from __future__ import annotations

import re
import signal
import socket
import sys
from pathlib import Path

import pytest
import redis

from tests.support import daemons, topologies
from tests.support.apps import celery_beat, celery_command, celery_worker, runs, write_app
from tests.support.polling import eventually
from tests.support.processes import Process, is_alive
from tests.support.servers import Kind, Server

ROOT = Path(__file__).parents[3]


@pytest.fixture
def kind(server: Server) -> Kind:
    return server.kind


def test_a_server_answers_with_the_version_its_program_claims(server: Server) -> None:
    with server.client() as client:
        info = client.info("server")
    assert info["process_id"] == server.process.pid
    assert info[f"{server.kind}_version"] == server.version


def test_databases_of_one_server_are_apart(server: Server, client: redis.Redis) -> None:
    client.set("key", "value")
    assert redis.Redis.from_url(server.url(1)).get("key") == b"value"
    assert redis.Redis.from_url(server.url(0)).get("key") is None


def test_options_passwords_and_sockets_reach_the_server(kind: Kind) -> None:
    password = 'p@ss w/"rd\\%:é#'
    with Server(kind, unix_socket=True, requirepass=password, maxmemory_policy="allkeys-lru") as server:
        for url in (server.url(2), server.unix_url(2)):
            client = redis.Redis.from_url(url, decode_responses=True)
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "allkeys-lru"}
            assert client.client_info()["db"] == 2


def test_a_stopped_server_leaves_nothing(kind: Kind) -> None:
    with Server(kind) as server:
        pid, directory = server.process.pid, server.directory
    assert not is_alive(pid)
    assert not directory.exists()


def test_a_killed_server_restarts_on_its_port_with_what_it_persisted(kind: Kind) -> None:
    with Server(kind, appendonly=True, appendfsync="always") as server:
        url = server.url()
        redis.Redis.from_url(url).set("key", "value")
        server.kill()
        with pytest.raises(redis.ConnectionError):
            redis.Redis.from_url(url).ping()
        server.restart()
        assert redis.Redis.from_url(url).get("key") == b"value"


def test_a_paused_server_ends_in_order_when_its_process_is_stopped(kind: Kind) -> None:
    with Server(kind) as server:
        server.process.signal(signal.SIGSTOP)
        assert server.process.stop() == 0


def test_a_server_takes_another_port_when_its_own_is_taken(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        ports = [squatter.getsockname()[1], daemons.pick_port()]
        expected = ports[1]
        monkeypatch.setattr(daemons, "pick_port", lambda: ports.pop(0))
        with Server(kind) as server:
            assert server.port == expected


def test_the_port_of_a_killed_server_is_nobody_elses_in_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    with Server() as server:
        server.kill()
        source = (
            "from tests.support import daemons\n"
            f"choices = [{server.port}, {daemons.pick_port()}]\n"
            "daemons.random.choice = lambda _: choices.pop(0)\n"
            "daemons.pick_port(); print(len(choices), 'left')"
        )
        with Process([sys.executable, "-c", source], cwd=ROOT) as other:
            other.wait_for("0 left")
        choices = [server.port, daemons.pick_port()]
        monkeypatch.setattr(daemons.random, "choice", lambda _: choices.pop(0))
        assert daemons.pick_port() != server.port


def test_a_bad_option_fails_with_the_log_of_the_server(kind: Kind) -> None:
    with pytest.raises(AssertionError, match="no-such-option"):
        Server(kind, no_such_option=1)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_server_dies_with_its_parent(tmp_path: Path) -> None:
    script = (
        "import os, signal; from tests.support.servers import Server\n"
        "print('server', Server().process.pid); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with Process([sys.executable, "-c", script], cwd=ROOT, env={"TMPDIR": str(tmp_path)}) as parent:
        pid = int(parent.wait_for(re.compile(r"server (\d+)"))[1])
        assert parent.wait() == -signal.SIGKILL
    eventually(lambda: not is_alive(pid), message="the server outlived its parent")


BEAT_OF_A_KILLED_PARENT = """
import os, signal, sys
from pathlib import Path
from tests.support.apps import celery_beat

beat = celery_beat(Path(sys.argv[1]), "module")
beat.wait_for("beat: Starting")
print("beat", beat.pid)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_beat_dies_with_its_parent(valkey: Server, tmp_path: Path) -> None:
    write_app(tmp_path, "module", valkey.url(0))
    with Process([sys.executable, "-c", BEAT_OF_A_KILLED_PARENT, str(tmp_path)], cwd=ROOT) as parent:
        pid = int(parent.wait_for(re.compile(r"beat (\d+)"))[1])
        assert parent.wait() == -signal.SIGKILL
    eventually(lambda: not is_alive(pid), message="the beat outlived its parent")


#: another locale is known to a program from its start
@pytest.mark.parametrize("env", [{}, {"LC_ALL": "C.UTF-8"}], ids=["forked", "started anew"])
def test_a_command_of_celery_has_its_own_session_environment_directory_and_end(
    tmp_path: Path, env: dict[str, str]
) -> None:
    told = """
import os, signal, sys
print("told", os.environ["GIVEN"], os.getcwd(), sys.argv[1:], os.getsid(0) == os.getpid(), sys.stdin.isatty())
if os.environ["GIVEN"] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
raise SystemExit(7)
"""
    write_app(tmp_path, "module", "memory://", extra=told)
    for given, code in (("ended", 7), ("killed", -signal.SIGKILL)):
        with celery_command(tmp_path, "module", "report", env={"GIVEN": given, **env}) as command:
            assert command.wait() == code
            assert command.is_forked == (not env)
            words = f"told {given} {tmp_path} ['-A', 'module', 'report'] True False"
            assert words in command.output().splitlines()


def test_tls_needs_the_authority_that_signed(tls: Server) -> None:
    certificates = tls.certificates
    assert certificates
    with tls.client() as client:
        assert client.ping()
    assert redis.Redis.from_url(tls.url(), ssl_ca_certs=str(certificates.ca), ssl_check_hostname=True).ping()
    with pytest.raises(redis.ConnectionError, match="certificate verify failed"):
        redis.Redis.from_url(tls.url(), ssl_ca_certs=str(certificates.stranger_ca)).ping()


def test_a_sentinel_topology_fails_over_and_heals(sentinel: topologies.SentinelTopology) -> None:
    with sentinel.client() as client:
        client.set("key", "value")
        assert client.wait(1, 5000) == 1
    old = sentinel.master()
    new = sentinel.fail_over()
    assert new is not old
    sentinel.heal()
    assert sentinel.master() is new
    with sentinel.client() as client:
        assert client.get("key") == "value"


def test_a_cluster_has_all_slots_and_comes_back_after_a_crash(cluster: topologies.ClusterTopology) -> None:
    with cluster.client() as client:
        for number in range(30):
            client.set(f"key-{number}", number)
    sizes = []
    for node in cluster.nodes:
        with node.client() as client:
            sizes.append(client.dbsize())
    assert sum(sizes) == 30
    assert all(sizes)
    cluster.nodes[1].kill()
    cluster.heal()


def test_a_process_that_ends_early_fails_the_wait_at_once_with_its_log() -> None:
    process = Process([sys.executable, "-c", "print('last words'); raise SystemExit(3)"])
    with pytest.raises(AssertionError, match="ended with 3 before 'never' came; its output:\nlast words"):
        process.wait_for("never")


def test_a_process_that_ignores_sigterm_is_ended_by_force_with_its_children() -> None:
    with Process(
        ["sh", "-c", "trap '' TERM; sleep 99 & echo child $!; while :; do sleep 99; done"]
    ) as process:
        child = int(process.wait_for(re.compile(r"child (\d+)"))[1])
        assert process.stop(timeout=0.2) == -signal.SIGABRT
    eventually(lambda: not is_alive(child), message="the child outlived its parent")


def test_a_worker_notes_what_a_beat_sends(valkey: Server, tmp_path: Path) -> None:
    schedule = {"every-moment": {"task": "add", "schedule": 0.2, "args": (1, 2)}}
    write_app(tmp_path, "module", valkey.url(0), runs_url=valkey.url(1), beat_schedule=schedule)
    with (
        celery_worker(tmp_path, "module", concurrency=2),
        celery_beat(tmp_path, "module", "--max-interval", "1", scheduler="celery.beat.Scheduler") as beat,
        valkey.client(db=1) as client,
    ):
        beat.wait_for("Sending due task every-moment (add)")
        run = eventually(lambda: runs(client))[0]
    assert (run.task, run.args, run.kwargs, run.headers) == ("add", [1, 2], {}, {})
    assert beat.returncode == 0
