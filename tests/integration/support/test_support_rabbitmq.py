"""The RabbitMQ of the tests, and what they may ask of it."""

from __future__ import annotations

import re
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest

from tests.support import daemons
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.processes import Process, is_alive
from tests.support.rabbitmq import RabbitMQ

ROOT = Path(__file__).parents[3]
QUEUE = kombu.Queue("queue", kombu.Exchange("exchange", durable=True), routing_key="key", durable=True)


@pytest.fixture
def connection(rabbitmq: RabbitMQ) -> Iterator[kombu.Connection]:
    with connect(rabbitmq) as connected:
        yield connected
        rabbitmq.resume()  # a paused one never answers that it has closed


def connect(node: RabbitMQ, **options: Any) -> kombu.Connection:
    return kombu.Connection(node.url(), transport_options={"confirm_publish": True, **options})


def publish(connection: kombu.Connection, body: str, **options: Any) -> None:
    producer = connection.Producer()
    producer.publish(body, exchange=QUEUE.exchange, routing_key="key", declare=[QUEUE], **options)


def consume(node: RabbitMQ) -> list[str]:
    """The messages in the queue, oldest first; those of a queue that is not there are none."""
    with connect(node) as connection:
        queue = QUEUE(connection.default_channel)
        queue.declare()
        messages = iter(lambda: queue.get(no_ack=True), None)
        return [message.payload for message in messages]


def descendants(pid: int) -> list[int]:
    """The children of a process, theirs, and so on."""
    children = [
        int(stat.parent.name) for stat in Path("/proc").glob("[0-9]*/stat") if _parent_of(stat) == pid
    ]
    return [*children, *(one for child in children for one in descendants(child))]


def _parent_of(stat: Path) -> int | None:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def test_a_paused_broker_leaves_a_publish_waiting_for_its_confirm(
    rabbitmq: RabbitMQ, connection: kombu.Connection
) -> None:
    publish(connection, "before")
    with connect(rabbitmq, read_timeout=patience(1)) as impatient:
        publish(impatient, "still before")
        rabbitmq.pause()
        assert rabbitmq.is_running
        with pytest.raises(socket.timeout):
            publish(impatient, "during")
        with pytest.raises(TimeoutError):
            rabbitmq.evaluate("ok.", timeout=0.1)
        rabbitmq.resume()
    publish(connection, "after")
    assert consume(rabbitmq) == ["before", "still before", "during", "after"]


def test_a_paused_broker_still_accepts_connections(rabbitmq: RabbitMQ) -> None:
    rabbitmq.pause()
    with socket.create_connection((rabbitmq.host, rabbitmq.port)) as raw:
        raw.sendall(b"AMQP\0\0\x09\x01")
        raw.settimeout(0.2)
        with pytest.raises(TimeoutError):
            raw.recv(1)


def test_flushing_empties_the_broker_and_closes_its_connections(
    rabbitmq: RabbitMQ, connection: kombu.Connection
) -> None:
    publish(connection, "message")
    assert rabbitmq.evaluate("rabbit_amqqueue:count().") == "1"
    default_exchanges = 7
    assert rabbitmq.evaluate("length(rabbit_exchange:list()).") == str(default_exchanges + 1)
    rabbitmq.flush()
    assert rabbitmq.evaluate("rabbit_amqqueue:count().") == "0"
    assert rabbitmq.evaluate("length(rabbit_exchange:list()).") == str(default_exchanges)
    with pytest.raises(connection.connection_errors):
        connection.drain_events(timeout=10)
    for _ in range(20):  # each connection is one to the new virtual host, and is left alone
        with connect(rabbitmq) as other:
            publish(other, "message")
        rabbitmq.flush()
    assert consume(rabbitmq) == []


def test_what_cannot_be_evaluated_is_told(rabbitmq: RabbitMQ) -> None:
    with pytest.raises(AssertionError, match="failed: undef"):
        rabbitmq.evaluate("no_such_module:run().")


@pytest.mark.long_form
def test_a_second_node_takes_another_port_and_leaves_nothing(
    rabbitmq: RabbitMQ, connection: kombu.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    squatter = socket.create_server(("127.0.0.1", 0))
    ports = [taken := squatter.getsockname()[1]]
    real = daemons.pick_port
    monkeypatch.setattr(daemons, "pick_port", lambda: ports.pop() if ports else real())
    with squatter, RabbitMQ() as other:
        assert other.port not in (taken, rabbitmq.port)
        publish(connection, "message")
        assert consume(other) == []
        assert consume(rabbitmq) == ["message"]
        pids = [other.process.pid, *descendants(other.process.pid)]
        assert sys.platform != "linux" or Path(f"/proc/{pids[0]}/comm").read_text() == "beam.smp\n"
    eventually(lambda: not any(map(is_alive, pids)), message="a process outlived the node")
    assert not other.directory.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child that its parent died")
def test_a_node_dies_with_its_parent(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    script = (
        "import time; from tests.support.rabbitmq import RabbitMQ\n"
        "print('node', RabbitMQ().process.pid); time.sleep(600)"
    )
    with Process([sys.executable, "-c", script], cwd=ROOT, env={"TMPDIR": str(tmp_path)}) as parent:
        pid = int(parent.wait_for(re.compile(r"node (\d+)"), timeout=60)[1])
        pids = [pid, *descendants(pid)]
        parent.signal(signal.SIGKILL)
        assert parent.wait() == -signal.SIGKILL
    eventually(lambda: not any(map(is_alive, pids)), message="the node outlived its parent")
