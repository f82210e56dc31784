"""A running beat's telemetry: its parts, started and stopped together, and what they know of entries.

Invariant: a part that fails costs neither the tick nor the other parts.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from functools import cached_property
from typing import Any, Protocol

from redbeat.config.config import ensure_conf
from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.entries.loading import decode_entry
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.process.background import surviving
from redbeat.process.memory import Memory
from redbeat.store.entries import read_entries
from redbeat.store.records import Stored
from redbeat.store.store import Store

#: how long an entry isn't read again, seconds
KEPT_SECONDS = 10.0


class Part(Protocol):
    """A part of the telemetry. Both methods are called in the thread of the tick, and return at once."""

    def look(self) -> None:
        """Start what isn't running, and note what is new; called at each tick, so it must be quick."""

    def stop(self) -> None:
        """Stop; what is in progress has a second or two."""


class Telemetry:
    """The parts of one running beat."""

    def __init__(self, parts: Iterable[Part]) -> None:
        self._parts = list(parts)
        self._said = Memory[str, str]()

    def look(self) -> None:
        """Start what isn't running: called at each tick of a running beat."""
        for part in self._parts:
            with surviving(type(part).__name__, self._said):
                part.look()

    def stop(self) -> None:
        """Stop all of them, the last one first; beat ends."""
        for part in reversed(self._parts):
            with surviving(type(part).__name__, self._said):
                part.stop()


class KnownEntries:
    """Entries as they were some seconds ago, for one thread; a deleted one as it was before.

    Arguments:
        app: the Celery app.
        word: only entries are of interest whose stored JSON contains it.
    """

    def __init__(self, app: Any, word: str = "") -> None:
        self._app, self._word = app, word
        self._known = Memory[str, tuple[RedBeatSchedulerEntry | None, float]]()

    @cached_property
    def _store(self) -> Store:  # the thread makes it: a client of a cluster connects at once
        return Store.hasty(self._app)

    def find(self, names: Collection[str]) -> dict[str, RedBeatSchedulerEntry | None]:
        """Return the entries with these names; None: it is missing, invalid, or of no interest.

        Raises:
            StoreUnavailable, StoreRefused, StoreCorrupt.
        """
        now, nothing = time.monotonic(), (None, 0.0)
        known = {name: self._known.get(name, nothing) for name in names}
        old = [name for name, (_, until) in known.items() if until <= now]
        if old:
            keys = ensure_conf(self._app).keys
            _, found = read_entries(self._store, [keys.entry(name) for name in old])
            for name, stored in zip(old, found, strict=True):
                entry = known[name][0]
                if stored.exists:
                    entry = self._decode(name, stored)
                known[name] = self._known[name] = entry, now + KEPT_SECONDS
        return {name: entry for name, (entry, _) in known.items()}

    def _decode(self, name: str, stored: Stored) -> RedBeatSchedulerEntry | None:
        if self._word not in f"{stored.policy}{stored.definition}":
            return None
        try:
            return decode_entry(RedBeatSchedulerEntry, stored, self._app)
        except Exception as exc:  # noqa: BLE001 - the per-entry boundary; beat itself reports invalid entries
            logger.debug("beat: Telemetry leaves out the invalid entry %s: %s", printable(name), exc)
            return None

    def close(self) -> None:
        """Close the connection."""
        if "_store" in vars(self):
            self._store.close()
