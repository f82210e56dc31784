"""On a real channel to a real broker: nothing takes part in a plain message, and what does is named."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import kombu
import pytest
from kombu.transport.virtual.exchange import DirectExchange

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.broker.originals import Originals
from tests.integration.conftest import MakeScheduler
from tests.support.rabbitmq import RabbitMQ
from tests.support.servers import Server

HERE = __name__


def find(scheduler: RedBeatScheduler) -> str:
    return Originals(scheduler.app).find_obstacle(scheduler, scheduler.producer)


def send(scheduler: RedBeatScheduler) -> None:
    entry = Entry("report", "echo", 60, app=scheduler.app)
    scheduler.apply_async(entry, producer=scheduler.producer, advance=False)


def test_nothing_takes_part_before_and_after_a_message(make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler()
    assert find(scheduler) == ""
    send(scheduler)
    assert find(scheduler) == ""


def test_a_producer_of_the_apps_own_is_named(make_scheduler: MakeScheduler) -> None:
    class ShopProducer(kombu.Producer):  # type: ignore[misc]
        def publish(self, *args: Any, **kwargs: Any) -> Any:
            return super().publish(*args, **kwargs)

    class Shop(RedBeatScheduler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, Producer=ShopProducer, **kwargs)

    assert find(make_scheduler(scheduler=Shop)) == f"{HERE}.{ShopProducer.__qualname__} overrides publish"


def test_a_producer_that_redbeat_has_not_made_is_named(make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler()
    with scheduler.app.connection_for_write() as connection:
        found = Originals(scheduler.app).find_obstacle(scheduler, kombu.Producer(connection))
    assert found == "the producer isn't RedBeat's own: kombu.messaging.Producer"


def traced(original: Any) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    return wrapper


@pytest.mark.parametrize("name", ["basic_publish", "prepare_message", "_lookup", "get_table"])
def test_a_function_that_is_laid_over_the_channel_is_named(name: str, make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler()
    channel = scheduler.producer.channel
    setattr(channel, name, traced(getattr(channel, name)))
    assert find(scheduler).startswith(f"{HERE} replaces ")


def test_a_function_that_is_laid_over_the_write_is_found(make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler()
    channel = scheduler.producer.channel
    channel._put = traced(channel._put)  # noqa: SLF001
    assert find(scheduler) == f"{HERE} replaces Channel._put"


def test_a_function_that_is_laid_over_the_producer_is_named(make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler()
    scheduler.producer.publish = traced(scheduler.producer.publish)
    assert find(scheduler) == f"{HERE} replaces publish of one BoundedProducer"


def test_an_exchange_type_of_ones_own_is_named(make_scheduler: MakeScheduler) -> None:
    class Shop(DirectExchange):  # type: ignore[misc]
        pass

    scheduler = make_scheduler()
    channel = scheduler.producer.channel
    channel.exchange_types["direct"] = Shop(channel)
    assert find(scheduler) == f"an exchange's type isn't kombu's own: {HERE}.{Shop.__qualname__}"


def test_to_rabbitmq_nothing_takes_part(make_scheduler: MakeScheduler, rabbitmq: RabbitMQ) -> None:
    assert find(make_scheduler(broker_url=rabbitmq.url())) == ""


def test_to_rabbitmq_who_replaces_the_publish_of_its_channel_is_named(
    make_scheduler: MakeScheduler, rabbitmq: RabbitMQ
) -> None:
    scheduler = make_scheduler(broker_url=rabbitmq.url())
    scheduler.producer.channel.basic_publish = lambda *_, **__: None
    assert find(scheduler) == f"{HERE} publishes"


def test_rabbitmq_without_confirms_is_named(make_scheduler: MakeScheduler, rabbitmq: RabbitMQ) -> None:
    options = {"confirm_publish": False}
    scheduler = make_scheduler(broker_url=rabbitmq.url(), broker_transport_options=options)
    assert find(scheduler) == "confirm_publish is False"


def test_another_broker_is_named(make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler(broker_url="memory://")
    assert find(scheduler) == "the broker is neither Redis nor RabbitMQ"


def test_to_ask_costs_less_than_half_of_a_message(make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler()
    originals = Originals(scheduler.app)

    def processor_seconds(call: Callable[[], Any], times: int = 100) -> float:
        began = time.process_time()
        for _ in range(times):
            call()
        return time.process_time() - began

    asking = min(
        processor_seconds(lambda: originals.find_obstacle(scheduler, scheduler.producer)) for _ in range(20)
    )
    sending = min(processor_seconds(lambda: send(scheduler)) for _ in range(5))
    assert asking < sending / 2


SENTRY = """
from celery import Celery
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration

def start(**options):
    integrations = [CeleryIntegration(**options)]
    dsn = "https://key@sentry.example/1"
    sentry_sdk.init(dsn=dsn, transport=lambda *args: None, integrations=integrations)

if {is_early}:
    start()
from redbeat import RedBeatScheduler
from redbeat.broker.originals import Originals
from redbeat.broker.wrappers import find_monitoring
app = Celery("shop", broker="{broker}", set_as_current=False)
app.conf.redbeat_redis_url, app.conf.redbeat_lock_key = "{redis}", None
scheduler = RedBeatScheduler(app)

def tell():
    found = Originals(app).find_obstacle(scheduler, scheduler.producer)
    print(found or "nothing", find_monitoring() or "nobody")

if not {is_early}:
    tell()
    start()
tell()
start(monitor_beat_tasks=True)
tell()
def traced(self, *args, original=RedBeatScheduler.apply_async, **kwargs):
    return original(self, *args, **kwargs)
RedBeatScheduler.apply_async = traced
tell()
"""


@pytest.mark.few_cases(1)
@pytest.mark.parametrize(
    "is_early", [True, False], ids=["started before RedBeat is imported", "started after it"]
)
def test_sentry_takes_no_part_but_its_monitors_do(is_early: bool, server: Server) -> None:
    program = SENTRY.format(is_early=is_early, broker=server.url(0), redis=server.url(1))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *told, monitored, wrapped = done.stdout.splitlines()
    assert set(told) == {"nothing nobody"}
    assert monitored == "nothing sentry_sdk monitors entries"
    assert wrapped == "__main__ replaces RedBeatScheduler.apply_async sentry_sdk monitors entries"
