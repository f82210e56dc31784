"""Queues that go by themselves (x-expires, auto-delete) cost a batch of one what they cost one of fifty."""

from __future__ import annotations

from typing import Any

import kombu
import pytest
import redis
from kombu.transport.redis import Channel

from tests.conftest import MakeApp
from tests.integration.conftest import ONE_SERVER, MakeScheduler
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import monitoring, sent_names, write_burst
from tests.support.servers import Server
from tests.support.ticks import take_messages

pytestmark = ONE_SERVER

QUEUES: dict[str, dict[str, Any]] = {
    "expiring": {"queue_arguments": {"x-expires": 60_000}},
    "fleeting": {"auto_delete": True},
    "going": {"exchange": kombu.Exchange("going", auto_delete=True), "routing_key": "going"},
}


@pytest.mark.parametrize("queue", QUEUES)
def test_a_batch_declares_a_fleeting_queue_once(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    queue: str,
) -> None:
    app = make_app(task_queues=[kombu.Queue("celery"), kombu.Queue(queue, **QUEUES[queue])])
    scheduler = make_scheduler(app)
    commands = []
    for count in (1, 1, 50):  # the first also connects
        names = [f"{count}-{number}" for number in range(count)]
        write_burst(client, names, options={"queue": queue})
        with monitoring(server) as seen:
            scheduler.tick()
        commands.append(seen)
        assert sent_names(broker, queue) == names
        if queue == "expiring" and hasattr(Channel, "_get_queue_expire"):  # not in all versions of kombu
            assert 0 < broker.pttl(queue) <= 60_000
        broker.delete(queue)
    print(f"{queue}: {[len(seen) for seen in commands]} commands for 1, 1 and 50 messages")
    assert len(commands[2]) == len(commands[1])
    declared = [command for command in commands[1] if command.startswith("LLEN")]
    assert declared or queue == "going", "each batch declares it again"


def test_a_queue_that_went_between_two_batches_is_there_again(
    make_app: MakeApp, make_scheduler: MakeScheduler, client: redis.Redis, rabbitmq: RabbitMQ
) -> None:
    queue = kombu.Queue("short", queue_arguments={"x-expires": 200})
    app = make_app(broker_url=rabbitmq.url(), task_queues=[kombu.Queue("celery"), queue])
    scheduler = make_scheduler(app)
    for _ in range(2):
        write_burst(client, ["entry"], options={"queue": "short"})
        scheduler.tick()
        assert [message.entry for message in take_messages(app, "short")] == ["entry"]
        with app.connection_for_write() as connection:
            queue(connection.default_channel).delete()
