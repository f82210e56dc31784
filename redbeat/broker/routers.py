"""The routers of ``task_routes``, in words: which one it is, and which one has raised an error."""

from __future__ import annotations

from typing import Any

from celery.app import routes
from celery.app.routes import MapRoute
from kombu.utils.functional import lazy

from redbeat.broker.replacements import describe

#: what Celery calls to make routers of the setting, and to ask them
_ROUTING = frozenset({"prepare", "expand_route", "lookup_route", "query_router"})


def describe_router(router: Any) -> str:
    """Return the name of a router: the one by which it is written, if it is."""
    written = getattr(router, "_args", None) if isinstance(router, lazy) else (router,)
    return written[0] if written and isinstance(written[0], str) else describe(router)


def find_failed(exc: BaseException) -> str:
    """Return by which router of ``task_routes`` an error was raised; '': by none.

    Celery asks them while it makes a message, so only the error's traceback knows.
    """
    found, traceback = "", exc.__traceback__
    while traceback is not None:
        frame, traceback = traceback.tb_frame, traceback.tb_next
        if frame.f_globals.get("__name__") != routes.__name__ or frame.f_code.co_name not in _ROUTING:
            continue
        router = frame.f_locals.get("router")
        is_plain = router is None or isinstance(router, MapRoute)
        found = found or "task_routes"
        if frame.f_code.co_name == "query_router" and not is_plain:
            found = f"task_routes, {describe_router(router)}"
    return found
