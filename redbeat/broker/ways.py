"""Which way messages go, in words: compiled, or one by one through ``apply_async``, and why."""

from __future__ import annotations

from typing import Any

from redbeat.broker import holes
from redbeat.broker.connection import Broker
from redbeat.broker.holes import Call
from redbeat.broker.originals import Originals
from redbeat.config.config import RedBeatConfig
from redbeat.log.logger import logger
from redbeat.log.text import printable, shorten

COMPILED = "compiled"
ONE_BY_ONE = "one by one"

OTHER_BROKER = "the broker is neither Redis nor RabbitMQ"


def find_setting_obstacle(config: RedBeatConfig, *, has_lock: bool) -> str:
    """Return the setting by which no message is compiled; '': there is none."""
    if not config.message_cache_bytes:
        return "redbeat_message_cache_bytes is 0"
    if not has_lock:
        return "redbeat_lock_key is None"
    if config.delivery == "at_most_once":
        return "redbeat_delivery is 'at_most_once'"
    if config.app.conf.task_send_sent_event:
        return "task_send_sent_event is set"
    return ""


def find_broker_obstacle(app: Any) -> str:
    """Return what is wrong with the kind of broker, without asking it; '': nothing is."""
    transport = app.connection_for_write().get_transport_cls()
    if transport.driver_name == "py-amqp":
        is_confirmed = (app.conf.broker_transport_options or {}).get("confirm_publish", True)
        return "" if is_confirmed else "confirm_publish is False"
    return "" if transport.driver_type == "redis" else OTHER_BROKER


def describe_messages(scheduler: Any, config: RedBeatConfig, broker: Broker) -> str:
    """Return the way of all messages in words, for the banner.

    ``broker``: if it isn't connected, what its connection would tell is left out.
    """
    try:
        obstacle = find_setting_obstacle(config, has_lock=scheduler.lock_key is not None)
        producer = broker.producer if broker.outbox is not None else None
        obstacle = (
            obstacle
            or find_broker_obstacle(config.app)
            or Originals(config.app).find_obstacle(scheduler, producer)
        )
    except Exception as exc:  # noqa: BLE001 - the application's own classes; a banner is no place to fail
        logger.debug("beat: The way of messages isn't known yet: %r", exc)
        return "known when schedule and broker can be reached"
    return in_words(obstacle)


def find_call_obstacle(originals: Originals, task: Any, call: Call) -> str:
    """Return what keeps the messages of one entry from being compiled, as far as that can be told without
    making one; '': nothing does.

    ``task``: None if the app hasn't got it.
    """
    obstacle = originals.find_task_obstacle(task) or holes.key_of(call)
    return obstacle if isinstance(obstacle, str) else ""


def in_words(obstacle: str) -> str:
    """Return the way of messages, in words, from what keeps them from being compiled; '': nothing does."""
    return f"{ONE_BY_ONE}: {shorten(printable(obstacle))}" if obstacle else COMPILED
