"""Samples: messages that Celery and kombu make of a run without any effect.

Invariant: nothing is sent, declared or subscribed to, no event is published and no result backend is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redbeat.delivery.amqp import Drafts
from redbeat.delivery.outbox import Outbox, UnknownWriteError
from redbeat.delivery.placeholders import RunValues, UnfitError
from redbeat.delivery.producer import BoundedProducer, Declaration, Published
from redbeat.delivery.tracers import bypassing_sentry
from redbeat.process.containment import let_through
from redbeat.store.records import Push

#: sends a run of an entry with these values by the scheduler's ``apply_async``
Send = Callable[[RunValues], Any]


@dataclass(frozen=True)
class Sample:
    """The message of one run, and what else sending it would have done.

    Attributes:
        values: of the run.
        text: the message, as JSON.
        published: the body, and how to encode it.
        pushes: list writes, the message first.
        declarations: of queues and exchanges.
        calls_backend: the result backend would have been told about the run.
    """

    values: RunValues
    text: str
    published: Published
    pushes: tuple[Push, ...]
    declarations: tuple[Declaration, ...]
    calls_backend: bool


def take_sample(
    app: Any, producer: BoundedProducer, outbox: Outbox | Drafts, values: RunValues, send: Send
) -> Sample:
    """Return the message that ``send`` would have sent by ``producer``.

    Raises:
        UnfitError: a run is not one message to one queue.
        Exception: whatever ``send`` raises.
    """
    try:
        with (
            producer.sampling(values.expiration_seconds) as asked,
            outbox.sampling() as pushes,
            _muted_backend(app) as calls,
            bypassing_sentry(),
        ):
            send(values)
    except Exception as exc:
        if _is_caused_by(UnknownWriteError, exc):
            raise UnfitError("its messages aren't written to a list") from exc
        raise
    commands = [push.command for push in pushes]
    if len(asked.runs) != 1 or commands[:1] != ["lpush"] or "lpush" in commands[1:]:
        raise UnfitError("a run isn't one message to one queue")
    return Sample(
        values, str(pushes[0].value), asked.runs[0], tuple(pushes), tuple(asked.declarations), bool(calls)
    )


def _is_caused_by(kind: type[BaseException], exc: BaseException | None) -> bool:
    while exc is not None and not isinstance(exc, kind):
        exc = exc.__cause__ or exc.__context__
    return exc is not None


_MISSING = object()


class _Replacement:
    """A function in the place of an attribute. Another thread's sample may put its own there meanwhile."""

    def __init__(self, function: Callable[..., Any], present: Any) -> None:
        self.function = function
        self.original: Any = present.original if isinstance(present, _Replacement) else present

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@contextmanager
def replacing(subject: Any, **functions: Callable[..., Any]) -> Iterator[None]:
    """Give an object other functions in this context."""
    attributes = vars(subject)
    mine = {
        name: _Replacement(function, attributes.get(name, _MISSING)) for name, function in functions.items()
    }
    attributes.update(mine)
    try:
        yield
    finally:
        for name, replacement in mine.items():
            if attributes.get(name) is replacement:
                del attributes[name]
                if replacement.original is not _MISSING:
                    attributes[name] = replacement.original


@contextmanager
def _muted_backend(app: Any) -> Iterator[list[Any]]:
    """Yield a list of the calls of the result backend's ``on_task_call`` in this context."""
    calls: list[Any] = []
    try:
        backend = app.backend
    except BaseException as exc:  # noqa: BLE001 - sending raises it, too, if it uses the backend
        let_through(exc)
        yield calls
        return
    with replacing(
        backend,
        on_task_call=lambda *args, **kwargs: calls.append((args, kwargs)),
        remove_pending_result=lambda result: result,  # called when a result is garbage
    ):
        yield calls
