"""The scripts about the stream of events: the only place that knows their KEYS, ARGV and replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from redbeat.keys import Keys
from redbeat.store.records import Fence, text_of
from redbeat.store.scripts.script import Request, Script

_READ_EVENTS = Script("check_layout", "read_events")
_NOTE_TOLD = Script("check_layout", "note_told")


class Event(NamedTuple):
    """Something that has happened: its id in the stream, and its fields."""

    id: str
    fields: dict[str, str]


class News(NamedTuple):
    """What is to be told of, and the id of the last event before it."""

    told: str
    events: list[Event]


def events_call(
    part: Keys,
    fence: Fence,
    teller: str,
    *,
    claim_ms: int,
    life_ms: int,
    count: int,
) -> tuple[Script, Request]:
    """Return what reads what is to be told of."""
    keys = [part.events, part.events_read, fence.lock_key or part.events]
    return _READ_EVENTS, Request(keys, [fence.token, teller, claim_ms, life_ms, count], part)


def news_of(reply: Sequence[Any]) -> News | None:
    """Return what its reply says; None: the caller may not tell now."""
    told, rows = reply
    if not told:
        return None
    return News(text_of(told), [_event_of(*row) for row in rows])


def _event_of(event_id: str | bytes, flat: list[str | bytes]) -> Event:
    texts = [text_of(one) for one in flat]
    return Event(text_of(event_id), dict(zip(texts[::2], texts[1::2], strict=True)))


def note_told(
    client: Any, part: Keys, teller: str, before: str, last: str, *, claim_ms: int, life_ms: int
) -> bool:
    """Remember that it was told up to ``last``; False: another beat tells by now."""
    return bool(_NOTE_TOLD(client, [part.events_read], [teller, before, last, claim_ms, life_ms], part))
