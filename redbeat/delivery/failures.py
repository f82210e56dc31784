"""Errors that keep a run from being sent: why, and whether the broker or the application has raised them.

The class of an error does not say so: the application's code, too, raises a ``ConnectionError``, and a broker
a ``KeyError``. The functions that it has left do. From the outside in, they are::

    beat -> the task's apply_async -> Celery's send_task -> routers and receivers
                                                         -> kombu's publish -> the serializer, the transport
"""

from __future__ import annotations

import sys
from enum import Enum
from traceback import walk_tb

from celery.app import routes
from celery.app.routes import MapRoute
from celery.beat import SchedulingError
from kombu.exceptions import OperationalError

from redbeat.connection.retry import is_password_missing
from redbeat.delivery.guard import describe_router
from redbeat.delivery.producer import BoundedProducer
from redbeat.log.text import shorten


class Origin(Enum):
    """The code that has raised an error. It decides whether the run is retried or skipped."""

    #: the connection or the broker; or Celery and kombu, which cannot make the message: the run is retried
    BROKER = "broker"
    #: the application's own code: the run is skipped, as the schedule does not say when to call it again
    APPLICATION = "application"
    #: the task itself, as ``task_always_eager`` is set: it has run
    TASK = "task"


#: Celery's functions that send a message: below them there is no task's ``apply_async``
_SENDING = frozenset(
    {
        ("celery.app.task", "apply_async"),
        ("celery.app.base", "send_task"),
        ("celery.app.amqp", "send_task_message"),
        ("celery.beat", "apply_async"),
        ("celery.beat", "send_task"),
    }
)
#: Celery's functions that call a router or a receiver
_CALLING_HOOKS = frozenset({("celery.app.routes", "query_router"), ("celery.utils.dispatch.signal", "send")})
#: kombu's function that hands a message to the transport
_PUBLISHING = ("kombu.messaging", "_publish")
#: how many causes of an error are looked at
MAX_CAUSES = 20

#: Celery's function that executes a task
_EXECUTING = ("celery.app.task", "apply")

#: modules below which all is the transport's, or what encodes a message
_OF_TRANSPORT = (
    *("kombu.connection.", "kombu.transport.", "kombu.pools.", "kombu.resource.", "kombu.entity."),
    *("kombu.common.", "kombu.serialization.", "kombu.compression.", "amqp.", "celery.backends."),
    *("redbeat.delivery.amqp.", "redbeat.delivery.outbox."),
)
#: packages of which no function is the application's
_LIBRARIES = frozenset(
    {"celery", "kombu", "amqp", "vine", "billiard", "dateutil", "redbeat", *sys.stdlib_module_names}
)


def origin_of(exc: BaseException) -> Origin:
    """Return what has raised ``exc``, which ``apply_async`` of a scheduler has let through."""
    if isinstance(exc, SchedulingError):  # Celery's, around the error itself
        exc = exc.__cause__ or exc.__context__ or exc
    origin, is_certain = _origin_of_one(exc)
    if origin is not Origin.APPLICATION or is_certain:
        return origin
    # a task's apply_async may raise an error of its own for one of the broker's
    cause: BaseException | None = exc
    for _ in range(MAX_CAUSES):
        cause = cause and (cause.__cause__ or cause.__context__)
        if cause is not None and _origin_of_one(cause) == (Origin.BROKER, True):
            return Origin.BROKER
    return origin


def _origin_of_one(exc: BaseException) -> tuple[Origin, bool]:
    """Return the origin of ``exc`` without its causes, and whether that is certain."""
    is_applications = is_hook = False
    for frame, _ in walk_tb(exc.__traceback__):
        module, function = str(frame.f_globals.get("__name__")), frame.f_code.co_name
        if (module, function) == _EXECUTING:
            return Origin.TASK, True
        is_transports = f"{module}.".startswith(_OF_TRANSPORT) or (module, function) == _PUBLISHING
        if (module, function) in _CALLING_HOOKS:
            is_hook = True
        elif is_transports and not (is_applications and is_hook):
            return Origin.BROKER, True
        elif (module, function) in _SENDING or (
            # kombu publishes by the producer that beat has given to ``apply_async``
            module == "kombu.messaging" and isinstance(frame.f_locals.get("self"), BoundedProducer)
        ):
            is_applications = is_hook = False
        elif module.partition(".")[0] not in _LIBRARIES:
            is_applications = True
    return (Origin.APPLICATION, is_hook) if is_applications else (Origin.BROKER, False)


def reason_of(exc: BaseException) -> str:
    """Return why sending failed, in words, from the ``exc`` that it raised.

    An error of a router says so: "task_routes, shop.routes.route: KeyError: 'queue'".
    """
    cause = cause_of(exc)
    words = "it needs a password (broker_url)" if is_password_missing(cause) else str(cause)
    reason = f"{type(cause).__name__}: {words}".rstrip(": ")
    setting = _find_failed_router(cause)
    return shorten(f"{setting}: {reason}" if setting else reason)


def cause_of(exc: BaseException) -> BaseException:
    """Return the exception that Celery and kombu have wrapped in ``exc``."""
    if isinstance(exc, SchedulingError):
        exc = exc.__cause__ or exc.__context__ or exc
    if isinstance(exc, OperationalError):
        exc = exc.__cause__ or exc
    return exc


def _find_failed_router(exc: BaseException) -> str:
    """Return the router of ``task_routes`` that has raised an error; '': none.

    Celery asks routers while it makes a message, so only the error's traceback knows.
    """
    found = ""
    for frame, _ in walk_tb(exc.__traceback__):
        name = frame.f_code.co_name
        is_routing = name in ("prepare", "expand_route", "lookup_route", "query_router")
        if frame.f_globals.get("__name__") != routes.__name__ or not is_routing:
            continue
        router = frame.f_locals.get("router")
        found = found or "task_routes"
        if name == "query_router" and router is not None and not isinstance(router, MapRoute):
            found = f"task_routes, {describe_router(router)}"
    return found
