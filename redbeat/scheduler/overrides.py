"""Methods of celery-redbeat 2.x that a subclass of the scheduler, or of its entries, overrides.

A batch is planned, sent and recorded together, so a tick needs none of the methods that 2.x calls for each
entry. Where one is overridden, each planned run goes through it, in the order of 2.x::

    maybe_due -> Entry.is_due -> apply_entry -> apply_async -> reserve

It may send the run, send several messages for it, or put it off. What cannot be called like that is named in
an ERROR when beat starts. Invariant: the run is recorded by the batch, whatever the override does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from redbeat.errors import RedBeatError

#: methods of the scheduler that a planned run goes through if one is overridden, or ``is_due`` of its entries
ASKED = ("maybe_due", "apply_entry", "reserve")

_BATCH = "beat reads and sends what is due in batches: override maybe_due() or apply_async() instead"
_RECORD = "beat records runs in the step that sends them: override the scheduler's reserve() instead"
#: methods that beat does not call, and what to use instead
UNUSED = {
    "schedule": _BATCH,
    "get_schedule": _BATCH,
    "is_due": "override is_due() of the entry class instead",
    "populate_heap": _BATCH,
    "schedules_equal": _BATCH,
    "merge_inplace": "override update_from_dict() instead",
    "connection": "override the property producer instead",
    "_ensure_connected": "override the property producer instead",
}
UNUSED_OF_ENTRY = {
    "_next_instance": _RECORD,
    "__next__": _RECORD,
    "next": _RECORD,
    "score": "override due_at instead",
}


class RunDeclined(RedBeatError):
    """A subclass does not send a planned run now.

    Attributes:
        seconds: after how long it is asked again.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__("a method of the scheduler's subclass has not sent it")
        self.seconds = seconds


@dataclass
class PlannedSend:
    """A planned run on its way through a subclass.

    Attributes:
        messages: how many messages were sent for it.
        error: what sending one of them raised, which the subclass may have caught; None: nothing.
        is_sent: it counts as sent: a message was sent, or the run was reserved.
    """

    messages: int = 0
    error: BaseException | None = None
    is_sent: bool = False


def is_overridden(scheduler: Any, name: str, original: Any) -> bool:
    """Return True if a subclass, or a tool, has put something in the place of a method of the scheduler."""
    return getattr(type(scheduler), name) is not original or name in vars(scheduler)


def find_unused(cls: type, base: type, unused: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield which methods of ``base`` the subclass ``cls`` overrides in vain, and what to use instead."""
    for one in cls.__mro__:
        if one not in base.__mro__:
            for name in sorted(unused.keys() & vars(one).keys()):
                yield f"{one.__module__}.{one.__qualname__}.{name}", unused[name]
