"""Bursts to RabbitMQ with confirms in flight, amid which beats die and connections end at random moments.

One queue takes all, one refuses what it has no room for, and some messages come back as nobody wants them.
Each run arrives, with its own id, and what is recorded has arrived.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import kombu
import pytest
import redis
from celery import Celery

from tests.faults.rounds import ROUNDS
from tests.support.apps import celery_beat, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    SELDOM,
    expected_id,
    field,
    retry_now,
    write_burst,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import take_messages

COUNT = 2_000
#: later than now, and earlier than the next run of an entry that has been sent
FAR = 9e9
ROOM = 50
FULL = {"x-max-length": ROOM, "x-overflow": "reject-publish"}
NEWS = kombu.Exchange("news", type="topic")
OPTIONS: dict[int, dict[str, Any]] = {
    1: {"queue": "full"},
    2: {"exchange": "news", "exchange_type": "topic", "routing_key": "usa.weather"},
}
QUEUES = """
import kombu
full = kombu.Queue("full", queue_arguments={arguments!r})
app.conf.task_queues = [kombu.Queue("celery"), full]
"""


class Stage:
    """Two thousand entries: of ten, one goes to the full queue and one to nobody."""

    def __init__(self, client: redis.Redis, rabbitmq: RabbitMQ) -> None:
        self.client = client
        self.names = [f"entry-{number}" for number in range(COUNT)]
        self.groups = {
            kind: [self.names[n] for n in range(COUNT) if self.kind(n) == kind] for kind in (0, 1, 2)
        }
        queues = [kombu.Queue("celery"), kombu.Queue("full", queue_arguments=FULL)]
        self.reader = Celery("reader", broker=rabbitmq.url(), set_as_current=False)
        self.reader.conf.task_queues = [*queues, kombu.Queue("usa", NEWS, routing_key="usa.#")]
        self.arrived: Counter[tuple[str, str]] = Counter()
        with self.reader.connection_for_write() as connection:
            NEWS(connection.default_channel).declare()
            for queue in queues:
                queue(connection.default_channel).declare()

    @staticmethod
    def kind(number: int) -> int:
        return number % 10 if number % 10 in OPTIONS else 0

    def write(self) -> None:
        write_burst(self.client, self.names)
        with self.client.pipeline(transaction=False) as pipeline:
            for kind, options in OPTIONS.items():
                for name in self.groups[kind]:
                    write_raw(pipeline, name, score=None, schedule=SELDOM, options=options)
            pipeline.execute()

    def recorded(self, kind: int) -> set[str]:
        """Entries whose run is recorded; nothing is recorded twice."""
        with self.client.pipeline(transaction=False) as pipeline:
            for name in self.groups[kind]:
                pipeline.hget(f"redbeat:{name}", "meta")
            metas = pipeline.execute()
        assert not [meta for meta in metas if meta and '"total_run_count": 1}' not in meta]
        return {name for name, meta in zip(self.groups[kind], metas, strict=True) if meta}

    def recorded_count(self) -> int:
        return int(self.client.zcount(SCHEDULE, FAR, "+inf"))

    def take(self, queue: str) -> set[str]:
        """Take what is on the queue; return whose it is."""
        taken = [(message.entry, message.id) for message in take_messages(self.reader, queue)]
        self.arrived.update(taken)
        return {entry for entry, _ in taken}

    def failed(self, kind: int) -> list[str]:
        return [name for name in self.groups[kind] if self.client.hexists(f"redbeat:{name}", "error")]

    def reasons(self, kind: int) -> set[str]:
        return {(field(self.client, name, "error") or {}).get("reason", "") for name in self.groups[kind]}

    def make_room(self) -> None:
        """Bind the queue that was missing, give the full one no limit, and end all pauses of entries."""
        self.reader.amqp.queues["full"].queue_arguments = {}
        with self.reader.connection_for_write() as connection:
            channel = connection.default_channel
            channel.queue_delete("full")
            for queue in ("full", "usa"):
                self.reader.amqp.queues[queue](channel).declare()
        for kind in OPTIONS:
            for name in self.failed(kind):
                retry_now(self.client, name)


@pytest.fixture
def stage(client: redis.Redis, rabbitmq: RabbitMQ) -> Iterator[Stage]:
    stage = Stage(client, rabbitmq)
    yield stage
    stage.reader.close()


@pytest.mark.long_form
@pytest.mark.parametrize("round_number", ROUNDS)
def test_each_run_arrives_with_its_id_and_what_is_recorded_has_arrived(
    server: Server,
    rabbitmq: RabbitMQ,
    stage: Stage,
    tmp_path: Path,
    chance: random.Random,
    round_number: int,
) -> None:
    with Proxy((rabbitmq.host, rabbitmq.port)) as way, ExitStack() as stack:
        settings: dict[str, Any] = {"runs_url": server.url(0), "redbeat_redis_url": server.url(1)}
        settings["redbeat_batch_size"] = chance.choice([50, 200, 500])
        write_app(
            tmp_path, "module", way.url(rabbitmq.url()), extra=QUEUES.format(arguments=FULL), **settings
        )
        stage.write()
        faults = ["kill", "close", "cut", "kill"]
        chance.shuffle(faults)
        beat: Process | None = None
        for fault in faults:
            beat = beat or stack.enter_context(celery_beat(tmp_path, "module"))
            wanted = stage.recorded_count() + chance.randint(1, COUNT // 6)
            eventually(
                lambda wanted=wanted: stage.recorded_count() >= min(wanted, COUNT * 6 // 10), interval=0.001
            )
            time.sleep(chance.uniform(0, 0.02))  # the instant of the fault
            if fault == "kill":
                assert beat.kill() == -signal.SIGKILL
                assert not has_traceback(beat.output()), beat.output()
                stage.client.delete(LOCK)
                beat = None
            elif fault == "close":
                rabbitmq.close_connections()
            else:
                way.drop()
        beat = beat or stack.enter_context(celery_beat(tmp_path, "module"))
        eventually(lambda: len(stage.recorded(0)) == len(stage.groups[0]))
        eventually(lambda: stage.reasons(2) == {LOST})
        eventually(lambda: len(stage.recorded(1)) + len(stage.failed(1)) == len(stage.groups[1]))
        assert stage.recorded(2) == set()
        assert stage.recorded(1) <= stage.take("full")
        end_well(beat)
        stage.take("full")  # it had room again, and is deleted now
        stage.make_room()
        write_app(tmp_path, "module", way.url(rabbitmq.url()), extra=QUEUES.format(arguments={}), **settings)
        beat = stack.enter_context(celery_beat(tmp_path, "module"))
        eventually(lambda: stage.recorded_count() == COUNT)
        end_well(beat)
    for queue in ("full", "usa"):
        stage.take(queue)
    stage.take("celery")
    expected = {(name, expected_id(name, 1 + number)) for number, name in enumerate(stage.names)}
    print(f"{faults}: {stage.arrived.total() - COUNT} arrived again, with the same ids")
    assert stage.arrived.keys() == expected
    assert stage.recorded_count() == COUNT


LOST = "LookupError: no queue is bound to the exchange 'news' for the routing key 'usa.weather'"


def end_well(beat: Process) -> None:
    beat.signal(signal.SIGTERM)
    assert beat.wait() == 0, beat.output()
    assert not has_traceback(beat.output()), beat.output()
    assert "beat: Messages: compiled." in beat.output()
