"""A stored message on its way to the broker, exactly as it was stored."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from redbeat.delivery.reserved_names import find_reserved
from redbeat.later.message import Message
from redbeat.later.producer import queue_of


def publish(message: Message, producer: Any, app: Any) -> None:
    """Publish ``message`` by ``producer``; no signal tells of it, as those came when it was stored.

    Raises what the producer raises, and LookupError if the app has no such queue, or its name is reserved.
    """
    options = dict(message.properties)
    left = message.seconds_left(datetime.now(timezone.utc))
    if left is not None and left > 0:  # else a worker says that it has expired
        options["expiration"] = left
    queues = [queue_of(app, one) for one in message.queues]
    if queues:
        options.setdefault("mandatory", True)  # else a broker may drop what no queue takes
    options |= {"exchange": message.exchange, "routing_key": message.routing_key, "declare": queues}
    reserved = find_reserved(app, options)
    if reserved:
        raise LookupError(reserved)
    producer.publish(
        message.body,
        content_type=message.content_type,
        content_encoding=message.content_encoding,
        headers=dict(message.headers),
        **options,
    )
