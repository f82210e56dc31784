"""Apps and schedulers whose broker is RabbitMQ, and a proxy to it."""

from __future__ import annotations

from collections.abc import Iterator

import kombu
import pytest
from celery import Celery

from redbeat import RedBeatScheduler
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.proxy import Proxy
from tests.support.rabbitmq import RabbitMQ

#: holds one message and refuses the next
FULL = {"x-max-length": 1, "x-overflow": "reject-publish"}


@pytest.fixture
def app(make_app: MakeApp, rabbitmq: RabbitMQ) -> Celery:
    queues = [kombu.Queue("celery"), kombu.Queue("full", queue_arguments=FULL)]
    return make_app(broker_url=rabbitmq.url(), task_queues=queues)


@pytest.fixture
def scheduler(app: Celery, make_scheduler: MakeScheduler) -> RedBeatScheduler:
    return make_scheduler(app)


@pytest.fixture
def proxy(rabbitmq: RabbitMQ) -> Iterator[Proxy]:
    """A proxy to the node."""
    with Proxy((rabbitmq.host, rabbitmq.port)) as proxy:
        yield proxy


@pytest.fixture
def proxied_app(make_app: MakeApp, rabbitmq: RabbitMQ, proxy: Proxy) -> Celery:
    """An app that uses the proxy."""
    return make_app(broker_url=proxy.url(rabbitmq.url()))
