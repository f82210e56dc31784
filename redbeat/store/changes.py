"""What the processes of a dashboard know of each other's changes: one string with a time to live for each.

Invariants: of all processes one claims a change, and only that one writes of it; a change at work is written
of again and again, so that its silence shows that its process has ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from redbeat.store.nodes import Command
from redbeat.store.records import text_of
from redbeat.store.store import Store

#: how long the outcome of a change is kept, seconds
KEPT_SECONDS = 600


@dataclass(frozen=True)
class ChangeRecord:
    """One change, as the process says that makes it.

    Attributes:
        maker: tells that process from others.
        user: the user that has begun it.
        title: what it is.
        told: its progress, or its outcome.
        seconds: for how long it is at work, or was.
        status: the status code of the page that shows its outcome; 0: it is at work.
        place: the parts of the path of the page that is shown then, and ``query`` what stands behind it.
        forgets: of which kind a process has looked at something that isn't so any more.
        has_page: its process can show more of its outcome than ``told``.
        silent_seconds: how long ago this was written.
    """

    maker: str
    user: str
    title: str
    told: str = ""
    seconds: float = 0.0
    status: int = 0
    place: tuple[str, ...] = ()
    query: Mapping[str, str] = field(default_factory=dict)
    forgets: tuple[str, ...] = ()
    has_page: bool = False
    silent_seconds: float = 0.0

    @property
    def is_done(self) -> bool:
        """Whether it has ended, well or badly."""
        return bool(self.status)


class ChangeRecords:
    """The changes of the dashboards beside the schedule of ``store``.

    Every method raises StoreUnavailable, StoreRefused or StoreCorrupt where its key can't be used.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def claim(self, id: str, record: ChangeRecord) -> bool:  # noqa: A002 - it is what the dashboard calls it
        """Return whether the change is the maker's of ``record``: no other process has begun it."""
        if self._set(id, record, is_new=True):
            return True
        found = self.read(id)  # an answer may have been lost, and the command sent again
        return found is not None and found.maker == record.maker

    def write(self, id: str, record: ChangeRecord) -> None:  # noqa: A002
        """Record how far a change is that this process has claimed, or its outcome."""
        self._set(id, record)

    def read(self, id: str) -> ChangeRecord | None:  # noqa: A002
        """Return what is known of a change; None: nothing, or not any more."""
        key = self._store.keys.change(id)
        text, left_ms = self._store.ask_all([Command("get", key), Command("pttl", key)])
        found = None if text is None else _record_of(str(text_of(text)))
        return found and replace(found, silent_seconds=max(KEPT_SECONDS - left_ms / 1000, 0.0))

    def _set(self, id: str, record: ChangeRecord, *, is_new: bool = False) -> bool:  # noqa: A002
        key, text = self._store.keys.change(id), json.dumps(asdict(record))
        return bool(self._store.ask(Command("set", key, text, ex=KEPT_SECONDS, nx=is_new)))


def _record_of(text: str) -> ChangeRecord | None:
    """Return the record in ``text``; None: it is invalid."""
    try:
        found = ChangeRecord(**json.loads(text))
        return replace(found, place=tuple(found.place), forgets=tuple(found.forgets))
    except (ValueError, TypeError, RecursionError):
        return None
