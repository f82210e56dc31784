"""The scripts about whole files of entries, one typed function each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from redbeat.log.text import sha1_of_text
from redbeat.store.records import Stored, Write, score_text, text_of
from redbeat.store.scripts import Script

__all__ = ["Beside", "CalendarChange", "Change", "apply_entries", "read_owners"]

_READ_OWNERS = Script("read_owners")
_APPLY_ENTRIES = Script("measure_entry", "match_calendar", "apply_entries")


@dataclass(frozen=True)
class Beside:
    """A key that is kept beside an entry, and what becomes of it.

    Attributes:
        kind: 'history' or 'backfilled'.
        content: its texts; nothing: the key is removed.
    """

    kind: str
    key: str
    content: Sequence[str] = ()


@dataclass(frozen=True)
class CalendarChange:
    """What becomes of one calendar.

    Attributes:
        pair: the owner, a tab, and the calendar's name.
        read: the fields that the caller read, or what else the key was: a type, 'none' for no key; None: that
            doesn't matter.
        fields: what is stored in place of that; {}: the calendar is removed; None: it stays as it is.
        owned_key: key of the set that the pair comes into; '': none.
        is_owned: False: it leaves that set instead.
    """

    pair: str
    key: str
    read: Mapping[str, str] | str | None = None
    fields: Mapping[str, str] | None = None
    owned_key: str = ""
    is_owned: bool = True


@dataclass
class Change:
    """What becomes of one entry.

    Attributes:
        stored: what the caller read of it, and
        read_owner: whose it was.
        write: what is written; None: nothing.
        owner: whose it is from now on, '' for nobody's; None: that stays.
        owned_key: key of the set of that owner's names, and of the present one's where it is deleted.
        beside: what becomes of the keys beside it.
        error: the field of that name; '' removes it; None: so does a new definition or policy.
        is_unscheduled: it leaves the schedule.
        is_deleted: it is removed.
        is_replaced: what is written is all there is of it, nothing of before stays.
    """

    name: str
    stored: Stored
    write: Write | None = None
    read_owner: str = ""
    owner: str | None = ""
    owned_key: str = ""
    beside: Sequence[Beside] = ()
    error: str | None = None
    is_unscheduled: bool = False
    is_deleted: bool = False
    is_replaced: bool = False

    @property
    def kind(self) -> str:
        """What apply_entries calls it."""
        if self.is_deleted or self.is_replaced:
            return "delete" if self.is_deleted else "replace"
        return "keep" if self.write is None and self.owner in (None, self.read_owner) else "save"

    def args(self, place_of: Mapping[str, int]) -> list[Any]:
        """Return its group of ARGV; ``place_of`` says which of KEYS an owner's set is."""
        kind, stored, write = self.kind, self.stored, self.write
        read = ""
        if stored.unread_bytes:
            read = f"={stored.unread_bytes}"
        elif stored.exists:
            read = sha1_of_text(f"{stored.definition or ''}\0{stored.policy or ''}\0{self.read_owner}")
        if kind in ("keep", "delete"):
            return [kind, read, "", self.name, place_of.get(self.owned_key, 0), "", "", "", "", "", ""]
        read_meta = (
            sha1_of_text(stored.meta or "") if write and (write.meta or write.score is not None) else ""
        )
        owner = "" if self.owner is None else f"={self.owner}"
        write = write or Write()
        policy = "" if write.policy is None else f"={write.policy}"
        error = "" if self.error is None else f"={self.error}"
        if self.error is None and (write.definition or policy):
            error = "="
        return [
            kind,
            read,
            read_meta if stored.exists and not stored.unread_bytes else "",
            self.name,
            place_of.get(self.owned_key, 0),
            owner,
            write.definition,
            write.meta,
            policy,
            error,
            "remove" if self.is_unscheduled else _exact(write.score),
        ]


def _exact(score: float | None) -> str:
    """Return ``score`` as scripts take it, with all its digits where somebody else has written more."""
    text = score_text(score)
    return text if score is None or float(text) == score else repr(score)


def read_owners(client: Any, keys: Sequence[str]) -> list[str]:
    """Read whose the entries under ``keys`` are, '' for nobody's."""
    return [text_of(owner) for owner in _READ_OWNERS(client, keys, [])] if keys else []


def apply_entries(
    client: Any,
    schedule_key: str,
    changes: Sequence[Change],
    *,
    calendars: Sequence[CalendarChange] = (),
    wake: str,
) -> str | None:
    """Make all ``changes`` and those of ``calendars``, or none of it.

    Returns None, or the key of an entry or a calendar that is another one than was read.
    """
    beside = list(chain.from_iterable(change.beside for change in changes))
    written = [one for one in calendars if one.fields is not None]
    owned = sorted({one.owned_key for one in chain[Change | CalendarChange](changes, calendars)} - {""})
    gone = [*(one.key for one in beside), *(one.key for one in written)]
    keys = [schedule_key, *(change.stored.key for change in changes), *gone, *owned]
    place_of = {key: len(keys) - len(owned) + 1 + number for number, key in enumerate(owned)}
    args: list[Any] = [wake, len(changes), len(gone)]
    for change in changes:
        args += change.args(place_of)

    def add(kind: str, place: int, content: Any) -> None:
        args.extend((kind, place, json.dumps(content, ensure_ascii=False)))

    for place, past in enumerate(beside, 2 + len(changes)):
        if past.content:
            add(past.kind, place, past.content)
    for place, calendar in enumerate(written, 2 + len(changes) + len(beside)):
        if calendar.read is not None:
            add("read", place, calendar.read)
        if calendar.fields:
            add("calendar", place, calendar.fields)
    for calendar in calendars:
        if calendar.owned_key:
            add("own" if calendar.is_owned else "disown", place_of[calendar.owned_key], [calendar.pair])
    other = int(_APPLY_ENTRIES(client, keys, args))
    if not other:
        return None
    return str(keys[other] if other > 0 else keys[-other - 1])
