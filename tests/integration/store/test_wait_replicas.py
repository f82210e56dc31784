"""The setting redbeat_wait_replicas: a batch is on so many replicas before more is done, or else said."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.connection

from tests.integration.conftest import MakeScheduler
from tests.support.fidelity import counting_round_trips
from tests.support.logs import warnings_in
from tests.support.polling import eventually
from tests.support.schedule import counts_of, messages, monitoring, write_burst
from tests.support.servers import Server

NAMES = [f"entry-{number}" for number in range(100)]
BATCH = {"redbeat_batch_size": 10}


@pytest.fixture
def replica(server: Server) -> Iterator[Server]:
    """A replica of the server, in step with it."""
    with Server(server.kind, replicaof=(server.host, server.port)) as one, server.client() as client:
        wait_for_replica(client)
        yield one


def wait_for_replica(master: redis.Redis) -> None:
    def is_online() -> bool:
        replication: Any = master.info("replication")
        return bool(replication.get("slave0", {}).get("state") == "online")

    eventually(is_online)


def test_batch_is_on_the_replica_before_the_next_one_begins(
    client: redis.Redis, replica: Server, make_scheduler: MakeScheduler
) -> None:
    scheduler = make_scheduler(redbeat_wait_replicas=1, **BATCH)
    write_burst(client, NAMES)
    with replica.client(db=1) as copy, replica.client() as broker_copy:
        for batch in range(1, 1 + len(NAMES) // 10):
            scheduler.tick()
            assert counts_of(copy, NAMES)[1] == batch * 10
            assert len(messages(broker_copy)) == batch * 10


def test_batch_after_a_script_flush_is_waited_for(
    server: Server, client: redis.Redis, replica: Server, make_scheduler: MakeScheduler
) -> None:
    scheduler = make_scheduler(redbeat_wait_replicas=1, **BATCH)
    write_burst(client, NAMES[:20])
    scheduler.tick()
    client.script_flush()
    with monitoring(server) as commands:
        scheduler.tick()
    words = [command.split()[0] for command in reversed(commands)]
    assert words.index("WAIT") < words.index("EVAL"), "the last wait comes after the last script"


def test_wait_takes_no_round_trip_of_its_own_and_is_sent_only_with_the_setting(
    server: Server,
    client: redis.Redis,
    replica: Server,
    make_scheduler: MakeScheduler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counts = []
    for settings, waits in ({}, []), ({"redbeat_wait_replicas": 1}, ["WAIT 1 1000"]):
        scheduler = make_scheduler(**settings, **BATCH)
        write_burst(client, NAMES[:20])
        scheduler.tick()  # connects, and loads the script
        with counting_round_trips(monkeypatch) as count, monitoring(server) as commands:
            before = count()
            scheduler.tick()
            counts.append(count() - before)
        assert [command for command in commands if command.startswith("WAIT")] == waits
        scheduler.close()
    assert counts[0] == counts[1]


def test_silent_replica_is_warned_of_once_and_beat_continues(
    server: Server,
    client: redis.Redis,
    replica: Server,
    make_scheduler: MakeScheduler,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = make_scheduler(redbeat_wait_replicas=1, **BATCH)
    write_burst(client, NAMES[:60])
    scheduler.tick()
    with caplog.at_level(logging.INFO, "celery.beat"):
        replica.process.signal(signal.SIGSTOP)  # its connections stay open
        with monitoring(server) as commands:

            def is_sent() -> bool:
                scheduler.tick()  # one that comes late, beside a load, may only fetch
                return counts_of(client, NAMES)[1] >= 40

            eventually(is_sent)
        replica.process.signal(signal.SIGCONT)
        # the first batch waits for a second, and the others for a moment
        first, *others = [command for command in commands if command.startswith("WAIT")]
        assert first == "WAIT 1 1000"
        assert set(others) <= {"WAIT 1 100"}
        [warning] = _of_replicas(caplog)
        assert warning.startswith(
            "beat: 0 of 1 replicas (redbeat_wait_replicas) have the last batch. Beat goes"
        )
        wait_for_replica(client)

        def is_recovered() -> list[str]:
            write_burst(client, NAMES[:1])
            scheduler.tick()
            return [text for text in _of_replicas(caplog) if text.endswith("again.")]

        eventually(is_recovered)
    assert _of_replicas(caplog) == [warning, "beat: 1 replicas have the last batch again."]


def _of_replicas(caplog: pytest.LogCaptureFixture) -> list[str]:
    # beat may also warn of a slow server, beside a load
    return [text for text in warnings_in(caplog) if "replicas" in text]


def test_socket_timeout_shorter_than_the_wait_breaks_no_connection(
    client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    options = {"socket_timeout": 0.4}
    scheduler = make_scheduler(redbeat_wait_replicas=1, redbeat_redis_options=options)
    write_burst(client, NAMES)
    scheduler.tick()
    assert counts_of(client, NAMES)[1] == len(NAMES)


def test_user_without_the_right_to_wait_is_warned_once(
    server: Server, client: redis.Redis, make_scheduler: MakeScheduler, caplog: pytest.LogCaptureFixture
) -> None:
    client.execute_command("ACL SETUSER rick on nopass ~* &* +@all -wait")
    url = server.url(1).replace("redis://", "redis://rick:x@")
    scheduler = make_scheduler(redbeat_redis_url=url, redbeat_wait_replicas=1, **BATCH)
    write_burst(client, NAMES[:30])
    with caplog.at_level(logging.WARNING, "celery.beat"):
        for _ in range(3):
            scheduler.tick()
    assert counts_of(client, NAMES)[1] == 30
    [warning] = [text for text in warnings_in(caplog) if "replicas" in text]
    assert "WAIT failed" in warning
    assert "'wait'" in warning


def test_at_most_once_record_is_on_the_replica_before_the_message_is_sent(
    server: Server, client: redis.Redis, replica: Server, make_scheduler: MakeScheduler
) -> None:
    scheduler = make_scheduler(redbeat_wait_replicas=1, redbeat_delivery="at_most_once")
    write_burst(client, ["one"])
    with monitoring(server) as commands:
        scheduler.tick()
    words = [command.split()[0] for command in commands]
    assert words.index("WAIT") < words.index("LPUSH")
