"""Entries that can't be sent, hundreds at once: each fails alone, and the others go out."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from celery import Task
from celery.signals import before_task_publish

from tests.conftest import MakeApp
from tests.integration.conftest import ONE_SERVER, MakeScheduler
from tests.support.logs import warnings_in
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import SELDOM, counts_of, write_raw
from tests.support.servers import Server
from tests.support.ticks import take_messages

pytestmark = ONE_SERVER


class Failing(Task):
    """A task whose apply_async raises."""

    abstract = True

    def apply_async(self, args: Any = None, *_args: Any, **_kwargs: Any) -> Any:
        raise FAILURES[args[0]]


FAILURES: dict[str, Exception] = {
    "KeyError": KeyError("user"),
    "FileNotFoundError": FileNotFoundError(2, "No such file", "settings.ini"),
}
KINDS = ["serializer", "unpicklable", *FAILURES]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("broker_is", ["same", "second", "rabbitmq"])
def test_five_hundred_that_fail_hold_up_nobody(
    request: pytest.FixtureRequest,
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    server: Server,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    broker_is: str,
    kind: str,
) -> None:
    urls = {"same": lambda: server.url(0), "second": lambda: request.getfixturevalue("redis").url(0)}
    urls["rabbitmq"] = lambda: rabbitmq_url(request)
    app = make_app(broker_url=urls[broker_is](), redbeat_batch_size=1001, redbeat_publish_timeout=60)

    @app.task(name="failing", base=Failing, shared=False)
    def failing() -> None:
        pass

    @before_task_publish.connect
    def spoil(headers: Any = None, body: Any = None, **_: Any) -> None:
        if kind == "unpicklable" and headers["redbeat_entry"].startswith("bad"):
            body[1]["thing"] = object()

    fields: dict[str, Any] = {"task": "failing", "args": [kind]}
    if kind == "serializer":
        fields = {"options": {"serializer": "nonexistent"}}
    if kind == "unpicklable":
        fields = {}
    names = [f"{('bad', 'good')[number % 2]}-{number}" for number in range(1000)]
    with client.pipeline(transaction=False) as pipeline:
        for number, name in enumerate(names):
            more = fields if name.startswith("bad") else {}
            write_raw(pipeline, name, score=1 + number, schedule=SELDOM, **more)
        pipeline.execute()
    scheduler = make_scheduler(app)
    began = time.monotonic()
    scheduler.tick()
    print(f"{broker_is}, {kind}: one tick of {time.monotonic() - began:.2f} s")
    before_task_publish.disconnect(spoil)
    good, bad = names[1::2], names[0::2]
    assert [message.entry for message in take_messages(app)] == good
    assert counts_of(client, good) == {1: 500}
    with client.pipeline(transaction=False) as pipeline:
        for name in bad:
            pipeline.hexists(f"redbeat:{name}", "error")
        assert all(pipeline.execute())
    assert len(warnings_in(caplog)) == 500
    assert len(set(warnings_in(caplog))) == 500


def rabbitmq_url(request: pytest.FixtureRequest) -> str:
    node: RabbitMQ = request.getfixturevalue("rabbitmq")
    return node.url()
