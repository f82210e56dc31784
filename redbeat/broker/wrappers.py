"""Wrappers on the way of a message that are known, and needn't take part in making it: Sentry's.

They add headers that continue a trace, and beat has none to continue. What they do for Sentry's monitors,
RedBeat does itself, or else they aren't left out. Invariant: within ``unwrapped`` each of them calls what it
wraps, with the same arguments, and does nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FunctionType
from typing import Any

#: module to what its functions are called where they are written; once wrapped they have others' names
_KNOWN = {
    "sentry_sdk.integrations.celery": ("apply_async", "sentry_publish"),
    "sentry_sdk.integrations.celery.beat": ("sentry_patched_scheduler",),
}
#: in older versions: calls one of them, or what it wraps
_SWITCH = ("sentry_sdk.utils", "runner")

#: a pattern for the names of all entries: in ``exclude_beat_tasks``, Sentry's own code monitors none of them
EVERY_NAME = r"(?s).*"


def find_integration() -> Any:
    """Return Sentry's integration for Celery if it is started and asked to monitor entries; else None."""
    get_client = getattr(sys.modules.get("sentry_sdk"), "get_client", None)
    if get_client is None:
        return None
    client = get_client()
    integration = client.get_integration("celery") if client.is_active() else None
    return integration if getattr(integration, "monitor_beat_tasks", False) else None


def find_monitoring() -> str:
    """Return by whom each message must be seen, as it makes monitors of entries; '': by nobody."""
    integration = find_integration()
    if integration is None or EVERY_NAME in (integration.exclude_beat_tasks or ()):
        return ""
    return "sentry_sdk monitors entries"


def is_known_wrapper(present: Any, original: Any) -> bool:
    """Tell whether ``present`` is one of them around ``original``, which may be wrapped several times."""
    if not _can_be_left_out():
        return False
    for _ in range(3):
        if type(present) is not FunctionType:
            return False
        module, name = str(present.__globals__.get("__name__")), present.__code__.co_name
        inner = list(_contents_of(present))
        functions = [one for one in inner if type(one) is FunctionType]
        if (module, name) == _SWITCH:
            if not any(one.__globals__.get("__name__") in _KNOWN for one in functions):
                return False
        elif name not in _KNOWN.get(module, ()):
            return False
        if any(one is original for one in inner):
            return True
        present = functions[0] if functions else None
    return False


def _contents_of(function: FunctionType) -> Iterator[Any]:
    """Yield what ``function`` uses of the functions around it."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # it is empty: that variable has no value yet, or was deleted
            yield cell.cell_contents


@contextmanager
def unwrapped() -> Iterator[None]:
    """A context in which the known wrappers only call what they wrap."""
    if not _can_be_left_out():
        yield
        return
    from sentry_sdk import new_scope
    from sentry_sdk.client import BaseClient

    class Absent(BaseClient):
        """A client that has no integrations, so that their functions do nothing."""

        def is_active(self) -> bool:
            return True

        def get_integration(self, *_: Any, **__: Any) -> Any:
            return None

    with new_scope() as scope:
        scope.set_client(Absent())
        yield


def _can_be_left_out() -> bool:
    return hasattr(sys.modules.get("sentry_sdk"), "new_scope")
