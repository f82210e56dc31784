"""Drafts: messages for RabbitMQ as JSON texts, in the form of messages on Redis, so that templates apply.

Invariant: a draft that was made of a message is published as that message, byte by byte.
"""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from amqp.basic_message import Message

from redbeat.broker.confirms import Confirms
from redbeat.store.records import Push

#: what a draft has among its properties that isn't one of AMQP's
_INFO = "delivery_info"
_ENCODING = "body_encoding"
_TAG = "delivery_tag"


class Drafts:
    """Takes the place of an outbox for templates: makes drafts of samples, and publishes filled ones.

    Arguments:
        confirms: publishes them.

    Attributes:
        bindings: always 0, as RabbitMQ itself knows to which queues a message goes.
    """

    has_given_up = False
    bindings = 0

    def __init__(self, confirms: Confirms) -> None:
        self._confirms = confirms

    @contextmanager
    def sampling(self) -> Iterator[list[Push]]:
        """Yield a list of the drafts of what the block publishes, which isn't sent."""
        drafts: list[Push] = []

        def note(message: Any, exchange: str, routing_key: str, mandatory: bool, immediate: bool) -> None:
            info = {"exchange": exchange, "routing_key": routing_key}
            text = text_of(message, {**info, "mandatory": bool(mandatory), "immediate": bool(immediate)})
            drafts.append(Push("lpush", routing_key, text))

        self._confirms.on_sample = note
        try:
            yield drafts
        finally:
            self._confirms.on_sample = None

    def find_queues(self, _exchange: str, _routing_key: str) -> list[str]:
        """Return no queues: it doesn't matter to a message which they are."""
        return []

    def expiry_ms(self, _queue: str) -> None:
        """Return None: RabbitMQ itself deletes queues."""

    def publish(self, draft: str, declared: Iterable[Any], timeout: float) -> None:
        """Publish the message of ``draft``.

        Arguments:
            declared: what was declared for it.
            timeout: how long that may take, seconds.

        Raises what :meth:`Confirms.publish` raises.
        """
        self._confirms.declared = declared
        message, info = message_of(draft)
        try:
            self._confirms.publish(message, **info, timeout=timeout)
        except Exception:
            self._confirms.forget_declared(declared)
            raise


def text_of(message: Any, info: dict[str, Any]) -> str:
    """Return a message of py-amqp as a draft; ``info``: the other arguments of its publish."""
    properties = dict(message.properties)
    headers, body = properties.pop("application_headers", None), message.body
    encoding = "base64" if isinstance(body, bytes) else None
    if encoding:
        body = base64.b64encode(body).decode("ascii")
    properties |= {_ENCODING: encoding, _TAG: str(uuid.uuid4()), _INFO: info}
    return json.dumps({"body": body, "headers": headers, "properties": properties})


def message_of(draft: str) -> tuple[Any, dict[str, Any]]:
    """Return the message of a draft, and the other arguments of its publish."""
    parts = json.loads(draft)
    body, properties = parts["body"], parts["properties"]
    del properties[_TAG]
    info = properties.pop(_INFO)
    if properties.pop(_ENCODING):
        body = base64.b64decode(body)
    return Message(body, application_headers=parts["headers"], **properties), info
