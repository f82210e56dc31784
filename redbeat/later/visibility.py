"""The broker's visibility timeout, which must not be shorter than ``redbeat_durable_after``.

A countdown up to ``redbeat_durable_after`` is published at once, and a worker holds the message until then. A
broker with a visibility timeout delivers the message again when that is over, and the task runs once more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redbeat.config.config import ensure_conf
from redbeat.config.urls import scheme_of
from redbeat.errors import ConfigurationError
from redbeat.log.logger import store_logger

#: seconds that kombu's transports wait by default before they deliver a message again
_DEFAULT_SECONDS = {
    "redis": 3600.0,
    "rediss": 3600.0,
    "sentinel": 3600.0,
    "sqs": 1800.0,
    "pgmq": 1800.0,
    "slmq": 1800.0,
}


@dataclass(frozen=True)
class ShortVisibility:
    """A visibility timeout that is shorter than ``redbeat_durable_after``; both in seconds."""

    timeout: float
    durable_after: float

    def __str__(self) -> str:
        return (
            f"visibility_timeout is {self.timeout:g} s, and redbeat_durable_after {self.durable_after:g} s: "
            "a message whose countdown or eta is between them is delivered and run more than once"
        )

    @property
    def remedy(self) -> str:
        """What to change."""
        return (
            f"Set redbeat_durable_after to {self.timeout / 2:g} or less, or raise visibility_timeout in "
            "broker_transport_options."
        )


def find_short_visibility(app: Any) -> ShortVisibility | None:
    """Return the visibility timeout of the broker of ``app`` if it is too short; None: it is not, or unknown.

    Nothing is connected.

    Raises:
        ConfigurationError: a ``redbeat_*`` setting is invalid.
    """
    conf = app.conf
    given = conf.broker_read_url or ""
    url = given if isinstance(given, str) else next(iter(given), "")
    transport = str(conf.broker_transport or scheme_of(url)).lower().partition("+")[0]
    default = _DEFAULT_SECONDS.get(transport)
    if default is None:  # RabbitMQ and others have no such timeout
        return None
    try:
        timeout = float((conf.broker_transport_options or {}).get("visibility_timeout", default))
    except (TypeError, ValueError):
        return None
    durable_after = ensure_conf(app).durable_after
    return ShortVisibility(timeout, durable_after) if timeout < durable_after else None


def watch_visibility(app: Any) -> None:
    """Warn if the visibility timeout is too short, as soon as ``app`` is configured."""
    if app.configured:
        _warn(app)
    else:
        app.on_after_configure.connect(_warn, weak=False)


def _warn(sender: Any, **_: Any) -> None:
    try:
        found = find_short_visibility(sender)
    except ConfigurationError:  # each program reports it when it needs the setting
        return
    if found is not None:
        store_logger.warning("redbeat: %s. %s", found, found.remedy)
