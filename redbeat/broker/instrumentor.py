"""OpenTelemetry in the process of beat: whether anything records spans, and Celery's own instrumentor.

The instrumentor (``opentelemetry-instrumentation-celery``) listens to Celery's signals about publishing, and
makes a span for each message. RedBeat makes better ones for its runs, also of messages that are compiled, for
which no signal is sent. Invariant: a run has one publish span, not two; what else is published in the process
has the instrumentor's, as ever.

Nothing of OpenTelemetry is imported here: where nobody has done so, nobody can record spans.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from celery.signals import after_task_publish, before_task_publish

_API = "opentelemetry.trace"
_MODULE = "opentelemetry.instrumentation.celery"
_NAMES = ("_trace_before_publish", "_trace_after_publish")
_SIGNALS = (before_task_publish, after_task_publish)

#: RedBeat is sending a run, here in this thread or greenlet
_is_run = ContextVar("redbeat_is_run", default=False)


def find_provider() -> Any:
    """Return what makes the tracers of this process; None: they are the API's own, which record nothing."""
    ask = getattr(sys.modules.get(_API), "get_tracer_provider", None)
    if ask is None:
        return None
    try:
        provider = ask()
    except Exception:  # noqa: BLE001 - the one that the environment names can't be loaded; the API says so
        return None
    return None if is_apis(provider) else provider


def is_apis(value: Any) -> bool:
    """Tell whether a provider or a tracer is the API's own, which records nothing."""
    return type(value).__module__ == _API


class StandIn:
    """Takes the place of one of the instrumentor's receivers, and calls it for all messages but runs."""

    def __init__(self, receiver: Any) -> None:
        self.receiver = receiver

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return None if _is_run.get() else self.receiver(*args, **kwargs)


@contextmanager
def sending_run() -> Iterator[None]:
    """Let the instrumentor make no span of what the block publishes, where RedBeat stands in for it."""
    token = _is_run.set(True)
    try:
        yield
    finally:
        _is_run.reset(token)


def stand_in() -> None:
    """Stand in for the instrumentor's receivers, if there are any.

    They keep their keys in Celery's signals, so the instrumentor can still disconnect them.
    """
    for signal in _SIGNALS:
        if any(_is_known(receiver) for _, receiver in signal.receivers):
            with signal.lock:
                signal.receivers[:] = [
                    (key, StandIn(receiver) if _is_known(receiver) else receiver)
                    for key, receiver in signal.receivers
                ]


def step_aside() -> None:
    """Give the instrumentor's receivers their places back."""
    for signal in _SIGNALS:
        if any(type(receiver) is StandIn for _, receiver in signal.receivers):
            with signal.lock:
                signal.receivers[:] = [
                    (key, receiver.receiver if type(receiver) is StandIn else receiver)
                    for key, receiver in signal.receivers
                ]


def is_idle(receiver: Any) -> bool:
    """Tell whether ``receiver`` is one of the instrumentor's that nobody misses when no signal is sent.

    That is so where RedBeat makes the spans, or nobody does.
    """
    if not _is_known(receiver):
        return False
    tracer = getattr(getattr(receiver, "__self__", None), "_tracer", None)
    return tracer is None or is_apis(tracer) or find_provider() is not None


def _is_known(receiver: Any) -> bool:
    function = getattr(receiver, "__func__", receiver)
    return getattr(function, "__module__", None) == _MODULE and getattr(function, "__name__", None) in _NAMES
