"""What a test finds of Celery and kombu doesn't depend on the tests before it.

Each case below leaves what the next one would fail over.
"""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery, current_app
from kombu import Queue

from tests.conftest import MakeApp
from tests.integration.conftest import ONE_SERVER

#: as in the modules of tests: used by several apps, each of which gives it its own defaults
QUEUE = Queue("celery")


@ONE_SERVER
@pytest.mark.parametrize("exchange_type", ["direct", "topic"])
@pytest.mark.parametrize("settings", [{}, {"broker_url": "memory://"}], ids=["redis", "memory"])
def test_nothing_is_left_of_what_another_test_has_declared_and_sent(
    make_app: MakeApp, settings: dict[str, Any], exchange_type: str
) -> None:
    app = make_app(task_queues=[QUEUE], task_default_exchange_type=exchange_type, **settings)
    assert app.amqp.queues["celery"].exchange.type == exchange_type
    with app.producer_pool.acquire() as producer:
        queue = app.amqp.queues["celery"](producer.channel)
        queue.declare()
        assert queue.get() is None
        app.send_task("echo", producer=producer)
        assert queue.get() is not None
        app.send_task("echo", producer=producer)


@ONE_SERVER
@pytest.mark.parametrize("name", ["one", "other"])
def test_an_app_knows_no_task_of_another_tests_app(make_app: MakeApp, name: str) -> None:
    def run() -> None:
        """Never runs here."""

    make_app().task(name=name)(run)
    assert [task for task in make_app().tasks if not task.startswith("celery.")] == [name]


@pytest.mark.parametrize("name", ["one", "other"])
def test_no_test_finds_the_current_app_of_another(name: str) -> None:
    assert current_app.main == "default"
    Celery(name)
    assert current_app.main == name
