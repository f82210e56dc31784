"""A rehearsal: Celery and kombu make the message of a run, and nothing comes of it.

Invariant: nothing is sent, declared or subscribed to, and no event is published. What would have been is
noted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from redbeat.broker.drafts import Drafts
from redbeat.broker.outbox import Outbox
from redbeat.broker.producer import BoundedProducer, Declaration, Published
from redbeat.broker.wrappers import unwrapped
from redbeat.process.containment import let_through
from redbeat.store.records import Push


@dataclass(frozen=True)
class Rehearsed:
    """What would have been sent.

    Attributes:
        runs: what was given to the producer; usually one.
        pushes: the list writes.
        declarations: of queues and exchanges.
        is_told_backend: the result backend would have been told of the run.
    """

    runs: tuple[Published, ...]
    pushes: tuple[Push, ...]
    declarations: tuple[Declaration, ...]
    is_told_backend: bool


def rehearse(
    app: Any,
    producer: BoundedProducer,
    outbox: Outbox | Drafts,
    expiration_seconds: float | None,
    send: Callable[[], Any],
) -> Rehearsed:
    """Call ``send``, which sends one run by ``producer``, without any effect.

    Raises:
        Exception: whatever ``send`` raises; UnknownWriteError among them, where a message would have been
            sent in another way than by a write to a list.
    """
    with (
        producer.rehearsing(expiration_seconds) as asked,
        outbox.rehearsing() as pushes,
        _backend_untold(app) as told,
        unwrapped(),
    ):
        send()
    return Rehearsed(tuple(asked.runs), tuple(pushes), tuple(asked.declarations), bool(told))


@contextmanager
def _backend_untold(app: Any) -> Iterator[list[Any]]:
    """Yield a list of the calls of the backend's ``on_task_call`` in the block, which does nothing there.

    Nor does the function by which a result that nobody keeps ends what that one has begun.
    """
    told: list[Any] = []
    try:
        backend = app.backend
    except BaseException as exc:  # noqa: BLE001 - one that can't be made isn't told either, or sending raises it, too
        let_through(exc)
        yield told
        return
    names = ("on_task_call", "remove_pending_result")
    before = {name: vars(backend)[name] for name in names if name in vars(backend)}
    backend.on_task_call = lambda *args, **kwargs: told.append((args, kwargs))
    backend.remove_pending_result = lambda result: result
    try:
        yield told
    finally:
        for name in names:
            vars(backend).pop(name, None)
        vars(backend).update(before)
