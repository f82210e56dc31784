"""How an app's messages come here: one function is put around its ``send_task``, and around ``broadcast``.

All that sends a task goes through ``app.send_task``: ``apply_async`` of tasks and signatures, ``retry``, the
parts of a canvas. Invariant: a message that isn't far ahead, and everything before this is installed, goes
as it went before.
"""

from __future__ import annotations

import copyreg
import inspect
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from functools import partial, update_wrapper
from typing import Any

from celery import current_app
from celery.app.task import Task
from celery.local import Proxy
from celery.utils.imports import symbol_by_name

from redbeat.config.config import ensure_conf
from redbeat.later.message import Message
from redbeat.later.producer import StoringProducer
from redbeat.later.revoking import cancel_told, listen_in_workers
from redbeat.later.storing import store_message
from redbeat.later.visibility import watch_visibility
from redbeat.policy.messages import instant_of_option, wait_seconds

try:
    from celery.utils.quorum_queues import detect_quorum_queues
except ImportError:  # before Celery 5.5, which delays no messages at RabbitMQ
    detect_quorum_queues = None


class DurableTask(Task):
    """A task whose messages are stored in Redis while their ``eta`` or ``countdown`` is far ahead.

    Use it for all tasks of an app, ``Celery(task_cls="redbeat.later:DurableTask")``, or for some,
    ``@app.task(base=DurableTask)``.
    """

    abstract = True

    @classmethod
    def bind(cls, app: Any) -> Any:
        """Bind the task to ``app``, whose ``send_task`` knows durable tasks from now on."""
        bound = super().bind(app)
        _hook(app)
        return bound


def install(app: Any = None) -> None:
    """Let all messages of ``app`` be durable, also those of ``app.send_task``, and of tasks it hasn't got.

    Arguments:
        app: the Celery app; default: the current one.
    """
    _hook(app if app is not None else current_app).covers_all = True


class DurableSend:
    """Stands for the ``send_task`` of an app.

    Arguments:
        app: the Celery app.
        original: its ``send_task``.

    Attributes:
        covers_all: all tasks are durable, not only those of the class.
    """

    def __init__(self, app: Any, original: Any) -> None:
        update_wrapper(self, original)
        self._app = app
        self._own = None if getattr(original, "__self__", None) is app else original
        self.covers_all = False
        self._names = tuple(inspect.signature(original).parameters)

    @property
    def original(self) -> Any:
        """The ``send_task`` that makes messages: of the app's class as it is now, as tools replace it."""
        return type(self._app).send_task.__get__(self._app) if self._own is None else self._own

    def __call__(self, name: str, *args: Any, **options: Any) -> Any:
        """Send the task called ``name``, as ``app.send_task`` does, or store its message."""
        given = {**dict(zip(self._names[1:], args, strict=False)), **options}
        if not (given.get("countdown") or given.get("eta")) or not self._is_durable(name, given):
            return self.original(name, *args, **options)
        return self._send_later(name, given)

    def _is_durable(self, name: str, given: Mapping[str, Any]) -> bool:
        task = given.get("task_type") or self._app._tasks.get(name)  # noqa: SLF001 - app.tasks finalizes it
        if not (self.covers_all or isinstance(task, DurableTask)):
            return False
        wait = wait_seconds(given, datetime.now(timezone.utc), self._app.timezone)
        return wait > ensure_conf(self._app).durable_after and self._is_for_own_broker(given)

    def _is_for_own_broker(self, given: Mapping[str, Any]) -> bool:
        """Return True if the message goes to the broker that beat knows, and not to another one."""
        connection = given.get("connection")
        if connection is None:
            connection = getattr(given.get("producer") or given.get("publisher"), "connection", None)
        if connection is None:
            return True
        own = self._app.connection_for_write()
        return _place_of(connection) == _place_of(own)

    def _send_later(self, name: str, given: dict[str, Any]) -> Any:
        given.pop("connection", None)  # it leads to the app's broker
        publisher = given.pop("publisher", None)
        producer = given.pop("producer", None) or publisher
        store = partial(self._store, zone=self._app.timezone)
        given["producer"] = StoringProducer(self._app, name, store, producer)
        if detect_quorum_queues is not None:
            _keep_route(self._app, given)
        return self.original(name, **given)

    def _store(self, message: Message, zone: Any) -> None:
        store_message(self._app, message, due_of(message, zone))


def due_of(message: Message, zone: Any) -> datetime:
    """Return when ``message`` is to be sent: its ``eta``.

    Arguments:
        zone: of an ``eta`` without one.
    """
    eta = message.headers.get("eta") or message.request.get("eta")
    return instant_of_option(eta, zone) or datetime.now(timezone.utc)


def _hook(app: Any) -> DurableSend:
    """Put what knows durable tasks around functions of ``app``, if that isn't done yet."""
    if isinstance(app, Proxy):
        app = app._get_current_object()  # noqa: SLF001
    present = app.send_task
    if isinstance(present, DurableSend):
        return present
    app.send_task = send = DurableSend(app, present)
    if "control" in vars(app):
        app.control.__class__ = _durable(type(app.control))
    else:
        app.control_cls = _durable(symbol_by_name(app.control_cls))
    listen_in_workers()
    watch_visibility(app)
    return send


def is_durable(app: Any) -> bool:
    """Return True if ``app`` stores messages of durable tasks."""
    return isinstance(app.send_task, DurableSend)


class _DurableClass(type):
    """The type of classes that :func:`_durable` makes: they are pickled by what they are made from."""

    __wrapped__: type


def _durable(control: type) -> _DurableClass:
    """Return a class of remote controls that takes away stored messages that are revoked."""

    class DurableControl(control, metaclass=_DurableClass):
        def broadcast(self, command: str, arguments: Any = None, *args: Any, **options: Any) -> Any:
            if command == "revoke":
                cancel_told(self.app, (arguments or {}).get("task_id"))
            return super().broadcast(command, arguments, *args, **options)

    update_wrapper(DurableControl, control, updated=())
    return DurableControl


copyreg.pickle(_DurableClass, lambda made: (_durable, (made.__wrapped__,)))


def _keep_route(app: Any, given: dict[str, Any]) -> None:
    """Let Celery not route the message to the exchange by which RabbitMQ delays it, as it is delayed here."""
    driver = given["producer"].connection.transport.driver_type
    if not detect_quorum_queues(app, driver)[0]:
        return
    countdown, eta = given.pop("countdown", None), given.pop("eta", None)
    if countdown:
        wait = wait_seconds({"countdown": countdown}, datetime.now(timezone.utc), app.timezone)
        eta = datetime.fromtimestamp(datetime.now(timezone.utc).timestamp() + wait, timezone.utc)
    headers = given.get("headers") or {}
    given["headers"] = {**headers, "eta": eta if isinstance(eta, str) else eta.isoformat()}


def _place_of(connection: Any) -> tuple[Any, ...]:
    """Return which broker a connection of kombu's leads to; of several that take turns, all."""
    if getattr(connection, "alt", None):
        return tuple(connection.alt)
    known: Sequence[str] = ("transport_cls", "hostname", "port", "virtual_host", "userid")
    return tuple(getattr(connection, name, None) for name in known)
