"""Sentry's and OpenTelemetry's code on the way of a message: what RedBeat can do without.

Sentry's wrappers add headers that continue a trace, and beat has no trace to continue. OpenTelemetry's
instrumentor of Celery makes a span for each message, in receivers of Celery's signals. RedBeat makes the
spans of its runs itself, also of messages from templates, for which no signal is sent. So a run has one
publish span, and other messages of the process have the instrumentor's, as ever.

Nothing is imported here: a library that the process has not imported does nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from celery.signals import after_task_publish, before_task_publish

# -- Sentry

#: as ``exclude_beat_tasks`` it matches the names of all entries: Sentry's own code monitors none of them
EVERY_NAME = r"(?s).*"


def find_integration() -> Any:
    """Return Sentry's integration for Celery if it is started and monitors entries; else None."""
    get_client = getattr(sys.modules.get("sentry_sdk"), "get_client", None)
    if get_client is None:
        return None
    client = get_client()
    integration = client.get_integration("celery") if client.is_active() else None
    return integration if getattr(integration, "monitor_beat_tasks", False) else None


def find_monitoring() -> str:
    """Return a reason if Sentry's own code monitors entries, so that it must see each message."""
    integration = find_integration()
    if integration is None or EVERY_NAME in (integration.exclude_beat_tasks or ()):
        return ""
    return "sentry_sdk monitors entries"


def can_bypass_sentry() -> bool:
    """Return True if :func:`bypassing_sentry` knows this version of Sentry's SDK."""
    return hasattr(sys.modules.get("sentry_sdk"), "new_scope")


@contextmanager
def bypassing_sentry() -> Iterator[None]:
    """Let Sentry's wrappers only call what they wrap, in this context."""
    if not can_bypass_sentry():
        yield
        return
    from sentry_sdk import new_scope
    from sentry_sdk.client import BaseClient

    class WithoutIntegrations(BaseClient):
        def is_active(self) -> bool:
            return True

        def get_integration(self, *_: Any, **__: Any) -> Any:
            return None

    with new_scope() as scope:
        scope.set_client(WithoutIntegrations())
        yield


# -- OpenTelemetry

TRACE_API = "opentelemetry.trace"
_INSTRUMENTOR = "opentelemetry.instrumentation.celery"
_RECEIVERS = ("_trace_before_publish", "_trace_after_publish")

#: RedBeat is sending a run, here in this thread or greenlet
_is_run = ContextVar("redbeat_is_run", default=False)


def find_provider() -> Any:
    """Return the tracer provider of this process; None if it is the API's own, which records nothing."""
    get_provider = getattr(sys.modules.get(TRACE_API), "get_tracer_provider", None)
    if get_provider is None:
        return None
    try:
        provider = get_provider()
    except Exception:  # noqa: BLE001 - the provider that the environment names is missing; the API says so
        return None
    return None if is_apis(provider) else provider


def is_apis(value: Any) -> bool:
    """Return True if a provider or a tracer is the API's own, which records nothing."""
    return type(value).__module__ == TRACE_API


class StandIn:
    """Takes the place of one of the instrumentor's receivers, and calls it for all messages but runs."""

    def __init__(self, receiver: Any) -> None:
        self.receiver = receiver

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return None if _is_run.get() else self.receiver(*args, **kwargs)


@contextmanager
def sending_run() -> Iterator[None]:
    """Let the instrumentor make no span of messages in this context, where RedBeat stands in for it."""
    token = _is_run.set(True)
    try:
        yield
    finally:
        _is_run.reset(token)


def stand_in() -> None:
    """Put stand-ins in the place of the instrumentor's receivers.

    The keys in Celery's signals stay, so the instrumentor can still disconnect its receivers.
    """
    _replace_receivers(lambda receiver: StandIn(receiver) if _is_instrumentors(receiver) else receiver)


def step_aside() -> None:
    """Put the instrumentor's receivers back."""
    _replace_receivers(lambda receiver: receiver.receiver if type(receiver) is StandIn else receiver)


def _replace_receivers(replacement: Callable[[Any], Any]) -> None:
    for signal in (before_task_publish, after_task_publish):
        if signal.receivers:
            with signal.lock:
                signal.receivers[:] = [(key, replacement(receiver)) for key, receiver in signal.receivers]


def is_idle(receiver: Any, provider: Any) -> bool:
    """Return True for the instrumentor's receivers where RedBeat makes the spans, or none are made.

    Arguments:
        provider: the tracer provider; None: it is missing.
    """
    if not _is_instrumentors(receiver):
        return False
    tracer = getattr(getattr(receiver, "__self__", None), "_tracer", None)
    return tracer is None or is_apis(tracer) or provider is not None


def _is_instrumentors(receiver: Any) -> bool:
    function = getattr(receiver, "__func__", receiver)
    name = getattr(function, "__name__", None)
    return getattr(function, "__module__", None) == _INSTRUMENTOR and name in _RECEIVERS
