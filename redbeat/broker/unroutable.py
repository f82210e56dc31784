"""The error about a message that no queue takes: kombu and brokers would drop it silently."""

from __future__ import annotations


def no_queue(exchange: str, routing_key: str) -> LookupError:
    """Return the error about a message for which ``exchange`` knows no queue."""
    if not exchange:
        return LookupError(f"there is no queue {routing_key!r}")
    return LookupError(f"no queue is bound to the exchange {exchange!r} for the routing key {routing_key!r}")
