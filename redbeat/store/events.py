"""The stream of what has happened to runs and entries, and up to where it was told of.

Owns ``redbeat::events`` and ``redbeat::events-read``; the scripts that record runs add to the first, too.
Invariant: nothing here is needed to run the schedule. What was told is remembered only after it was told of,
so that each event is told of at least once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime

from redbeat.connection.retry import is_no_permission
from redbeat.errors import StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.log.text import as_stored
from redbeat.store.chunks import in_chunks
from redbeat.store.records import Fence, text_of
from redbeat.store.rights import EVENTS, SIGNALS
from redbeat.store.scripts.events import Event as Event
from redbeat.store.scripts.events import News, note_told, read_events
from redbeat.store.store import Store

#: about how many events are kept
MAX_EVENTS = 10_000

#: how many of them are read at a time
READ_EVENTS = 100

#: for how long nobody else goes on with what a beat without a lock has read; a receiver that takes longer may
#: be told twice, milliseconds
CLAIM_MS = 60_000

#: how long it is remembered up to where it was told, while nobody tells, milliseconds
LIFE_MS = 7 * 24 * 3600 * 1000


class Events:
    """The events of the schedule of ``store``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(self, fence: Fence, teller: str) -> News | None:
        """Return what is to be told of; None: another beat tells, or this user may not read.

        Raises:
            StoreUnavailable, StoreRefused, StoreCorrupt.
        """

        def read() -> News | None:
            keys = self._store.keys
            besides = {keys.events_read: "string"}
            with self._store.translating(keys.events, "stream", besides=besides):
                return read_events(
                    self._store.client,
                    keys,
                    fence,
                    teller,
                    claim_ms=CLAIM_MS,
                    life_ms=LIFE_MS,
                    count=READ_EVENTS,
                )

        try:
            return self._store.following(read)
        except StoreRefused as exc:
            if not is_no_permission(exc):
                raise
            self._store.rights.note(SIGNALS, exc.__cause__)
            return None

    def last_id(self) -> str:
        """Return the id of the last event; '': there is none, or this user may not read them."""
        key = self._store.keys.events

        def read() -> str:
            found = self._store.ask(lambda client: client.xrevrange(key, count=1), key, "stream")
            return text_of(found[0][0]) if found else ""

        return self._store.rights.ask(SIGNALS, read, lambda: "")

    def note_told(self, teller: str, before: str, last: str, *, is_done: bool) -> bool:
        """Remember that ``teller`` has told up to the event ``last``; False: another beat tells by now.

        Arguments:
            before: the id up to which it was told before.
            is_done: it has told of all that it has read.
        """
        client, claim_ms = self._store.client, 0 if is_done else CLAIM_MS

        def note() -> bool:
            keys = self._store.keys
            with self._store.translating(keys.events_read, "string"):
                return note_told(client, keys, teller, before, last, claim_ms=claim_ms, life_ms=LIFE_MS)

        return self._store.following(note)

    def add_paused(
        self, paused: Iterable[tuple[str, datetime | None]], note: str | None, by: str | None
    ) -> None:
        """Note that entries were paused: their names, and until when; None: for ever."""

        def details_until(until: datetime | None) -> dict[str, str | None]:
            return {"note": note, "by": by, "until": None if until is None else until.isoformat()}

        self._add("entry_paused", ((name, details_until(until)) for name, until in paused))

    def add_quarantined(self, reasons: Iterable[tuple[str, str]]) -> None:
        """Note that entries were quarantined: their names, and why."""
        self._add("entry_quarantined", ((name, {"reason": reason}) for name, reason in reasons))

    def _add(self, event: str, happened: Iterable[tuple[str, dict[str, str | None]]]) -> None:
        """Add events; if that fails, they are missing: what they tell of was written, or will be."""

        def add() -> None:
            for chunk in in_chunks(happened):
                self._add_some(event, chunk)

        with suppress(StoreUnavailable, StoreRefused, StoreCorrupt):
            self._store.rights.ask(EVENTS, add, lambda: None)

    def _add_some(self, event: str, happened: Iterable[tuple[str, dict[str, str | None]]]) -> None:
        key = self._store.keys.events
        with (
            self._store.translating(key, "stream"),
            self._store.client.pipeline(transaction=False) as pipeline,
        ):
            for name, details in happened:
                fields = {"event": event, "entry": as_stored(name), "details": json.dumps(details)}
                pipeline.xadd(key, fields, maxlen=MAX_EVENTS, approximate=True)
            pipeline.execute()
