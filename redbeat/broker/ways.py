"""Which way messages go, in words: compiled, or one by one through ``apply_async``, and why."""

from __future__ import annotations

from typing import Any

from redbeat.broker import holes
from redbeat.broker.connection import Broker, reason_of
from redbeat.broker.holes import Call
from redbeat.broker.originals import Originals
from redbeat.broker.wrappers import find_monitoring
from redbeat.config.config import RedBeatConfig
from redbeat.log.text import joined, printable, shorten

COMPILED = "compiled"
#: the same of all messages: some tasks and entries may be left out
COMPILED_IF_ALLOWED = f"{COMPILED}, where task and entry allow it"
ONE_BY_ONE = "one by one"

OTHER_BROKER = "the broker is neither Redis nor RabbitMQ"


def find_setting_obstacle(config: RedBeatConfig, *, has_lock: bool) -> str:
    """Return the settings by which no message is compiled; '': there are none."""
    return joined(
        "" if config.message_cache_bytes else "redbeat_message_cache_bytes is 0",
        "" if has_lock else "redbeat_lock_key is None",
        "redbeat_delivery is 'at_most_once'" if config.delivery == "at_most_once" else "",
        "task_send_sent_event is set" if config.app.conf.task_send_sent_event else "",
        "" if config.sentry else find_monitoring(),
    )


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
        producer = broker.producer if broker.outbox is not None else None
        obstacle = joined(
            find_setting_obstacle(config, has_lock=scheduler.lock_key is not None),
            find_broker_obstacle(config.app),
            Originals(config.app).find_obstacle(scheduler, producer),
        )
    except Exception as exc:  # noqa: BLE001 - the application's own classes; a banner is no place to fail
        return f"not known yet: {printable(reason_of(exc))}"
    return in_words(obstacle) if obstacle else COMPILED_IF_ALLOWED


def find_call_obstacle(originals: Originals, task: Any, call: Call) -> str:
    """Return what keeps the messages of one entry from being compiled, as far as that can be told without
    making one; '': nothing does.

    ``task``: None if the app hasn't got it.
    """
    key = holes.key_of(call)
    return joined(originals.find_task_obstacle(task), key if isinstance(key, str) else "")


def in_words(obstacle: str) -> str:
    """Return the way of messages, in words. ``obstacle``: all by which they aren't compiled."""
    return f"{ONE_BY_ONE}: {shorten(printable(obstacle))}" if obstacle else COMPILED
