"""The stream of what has happened to runs and entries, and up to where it was told of; each part has one.

Owns ``redbeat::events`` and ``redbeat::events-read``; the scripts that record runs add to the first, too.
Invariant: nothing here is needed to run the schedule. What was told is remembered only after it was told of,
so that each event is told of at least once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from redbeat.errors import StoreCorrupt, StoreRefused, StoreUnavailable
from redbeat.keys import Keys
from redbeat.log.text import as_stored
from redbeat.store.nodes import Command
from redbeat.store.parts import in_chunks
from redbeat.store.records import Fence, dict_of, text_of
from redbeat.store.scripts.script import Script
from redbeat.store.store import Store

_READ_EVENTS, _NOTE_TOLD = Script("read_events"), Script("note_told")

#: about how many events are kept
MAX_EVENTS = 10_000

#: how many of them are read at a time
READ_EVENTS = 50

#: for how long nobody else goes on with what a beat without a lock has read; a receiver that takes longer may
#: be told twice, milliseconds
CLAIM_MS = 60_000

#: how long it is remembered up to where it was told, while nobody tells, milliseconds
LIFE_MS = 7 * 24 * 3600 * 1000


class Event(NamedTuple):
    """Something that has happened: its id in the stream, and its fields."""

    id: str
    fields: dict[str, str]


class News(NamedTuple):
    """What is to be told of, and the id of the last event before it."""

    told: str
    events: list[Event]


def read_events(store: Store, fences: Mapping[Keys, Fence], teller: str) -> dict[Keys, News]:
    """Return what is to be told of, in those of some parts of which no other beat tells; one round trip
    for each node.

    Arguments:
        fences: the parts, and what says that this beat leads them.

    Raises:
        StoreUnavailable, StoreRefused, StoreCorrupt.
    """

    calls = []
    for keys, fence in fences.items():
        times: Any = {"claim_ms": CLAIM_MS, "life_ms": LIFE_MS, "count": READ_EVENTS}
        who: Any = {"lock": fence.lock_key, "token": fence.token, "teller": teller}
        calls.append(_READ_EVENTS.call(keys, **who, **times).reading(_news_of))
    found = zip(fences, store.ask_all(calls), strict=True)
    return {keys: news for keys, news in found if news is not None}


def read_last_ids(store: Store) -> list[str]:
    """Return the id of the last event of each part; '': there is none."""
    found = store.ask_all([Command("xrevrange", part.events, count=1) for part in store.all_parts])
    return [text_of(rows[0][0]) if rows else "" for rows in found]


def note_told(store: Store, keys: Keys, teller: str, before: str, last: str) -> bool:
    """Record that ``teller`` has told up to the event ``last``; False: another beat tells by now.

    Arguments:
        keys: the names in the part.
        before: the id up to which it was told before.
    """
    told: Any = {"teller": teller, "before": before, "last": last, "life_ms": LIFE_MS}
    return store.ask(_NOTE_TOLD.call(keys, **told).reading(bool))


def add_paused_events(
    store: Store, paused: Iterable[tuple[str, datetime | None]], note: str | None, by: str | None
) -> None:
    """Record that entries were paused: their names, and until when; None: for ever."""

    def details_until(until: datetime | None) -> dict[str, str | None]:
        return {"note": note, "by": by, "until": None if until is None else until.isoformat()}

    add_events(store, "entry_paused", ((name, details_until(until)) for name, until in paused))


def add_events(store: Store, event: str, happened: Iterable[tuple[str, Mapping[str, str | None]]]) -> None:
    """Add events of entries, by their names, with details.

    If that fails, they are missing: what they are about was written, or will be.
    """
    with suppress(StoreUnavailable, StoreRefused, StoreCorrupt):
        for chunk in in_chunks(happened):
            asks, streams = [], [store.parts.home(name).events for name, _ in chunk]
            for stream, (name, details) in zip(streams, chunk, strict=True):
                fields = {"event": event, "entry": as_stored(name), "details": json.dumps(details)}
                asks.append(Command("xadd", stream, fields, maxlen=MAX_EVENTS, approximate=True))
            store.ask_all(asks)


def _news_of(reply: Sequence[Any]) -> News | None:
    """Return what its reply says; None: the caller may not tell now."""
    told, rows = reply
    if not told:
        return None
    return News(text_of(told), [Event(text_of(event_id), dict_of(fields)) for event_id, fields in rows])
