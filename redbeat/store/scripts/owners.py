"""The scripts about whole files of entries, one typed function each."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redbeat.keys import NO_PART, Keys
from redbeat.log.text import sha1_of_text
from redbeat.store.records import Stored, Write, score_text, text_of, texts_of
from redbeat.store.scripts.script import Call, Request, Script, positional

_APPLY_ENTRIES = Script("check_layout", "entry_texts", "measure_entry", "match_calendar", "apply_entries")

#: the names of the keys beside an entry in apply_entries, in their order
PAST = ("history", "backfilled")


@dataclass(frozen=True)
class CalendarChange:
    """What becomes of one calendar.

    Attributes:
        owner: who does it.
        read: the fields that the caller read, or what else the key was: a type, 'none' for no key; None: that
            doesn't matter.
        fields: what is stored in place of that; {}: the calendar is removed; None: it stays as it is.
        is_owned: whether it is the owner's from now on; None: that stays.
    """

    name: str
    owner: str
    read: Mapping[str, str] | str | None = None
    fields: Mapping[str, str] | None = None
    is_owned: bool | None = None


@dataclass
class Change:
    """What becomes of one entry.

    Attributes:
        stored: what the caller read of it, and
        read_owner: whose it was.
        write: what is written; None: nothing.
        owner: its owner from now on; '': none; None: the owner stays.
        past: the texts of its history, and the due times that were sent by hand, in place of what there is of
            both; None: that stays.
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
    past: tuple[Sequence[str], Sequence[str]] | None = None
    error: str | None = None
    is_unscheduled: bool = False
    is_deleted: bool = False
    is_replaced: bool = False

    @property
    def kind(self) -> str:
        """The word for it in apply_entries."""
        if self.is_deleted or self.is_replaced:
            return "delete" if self.is_deleted else "replace"
        return "keep" if self.write is None and self.owner in (None, self.read_owner) else "save"

    @property
    def noted_for(self) -> str:
        """The owner to whose names it is added, or from which it is removed if it is deleted; '': none."""
        return self.read_owner if self.is_deleted else self.owner or ""

    def args(self, place_of: Mapping[str, int]) -> list[Any]:
        """Return its group of ARGV; ``place_of``: the place in KEYS of the set of each owner's names."""
        kind, stored, write = self.kind, self.stored, self.write
        read = ""
        if stored.unread_bytes:
            read = f"={stored.unread_bytes}"
        elif stored.exists:
            read = sha1_of_text(f"{texts_of(stored)}\0{self.read_owner}")
        owned = place_of.get(self.noted_for, 0)
        if kind in ("keep", "delete"):
            return [kind, read, "", self.name, owned, "", "", "", "", "", ""]
        read_meta = (
            sha1_of_text(stored.meta or "") if write and (write.meta or write.score is not None) else ""
        )
        owner = "" if self.owner is None else f"={self.owner}"
        write = write or Write()
        policy = "" if write.policy is None else f"={write.policy}"
        meta = write.meta and f"{'~' if write.is_meta_foreign else '='}{write.meta}"
        error = "" if self.error is None else f"={self.error}"
        if self.error is None and (write.definition or policy):
            error = "="
        return [
            kind,
            read,
            read_meta if stored.exists and not stored.unread_bytes else "",
            self.name,
            owned,
            owner,
            write.definition,
            meta,
            policy,
            error,
            "remove" if self.is_unscheduled else _exact(write.score),
        ]


def _exact(score: float | None) -> str:
    """Return ``score`` as scripts take it, with all its digits if it has more than RedBeat writes."""
    text = score_text(score)
    return text if score is None or float(text) == score else repr(score)


def read_owners(keys: Sequence[str]) -> Call[list[str]]:
    """Read the owners of the entries under ``keys``, which are of one part; '': none."""
    return Script("read_owners").call(entries=keys).reading(lambda owners: [*map(text_of, owners)])


def apply_entries(
    names: Keys,
    changes: Sequence[Change],
    calendars: Sequence[CalendarChange],
    beside: Callable[[str], Sequence[str]],
    *,
    is_checked: bool = True,
) -> Call[str]:
    """Make all ``changes`` and those of ``calendars``, or none of them.

    The answer is '', or the key of an entry or a calendar that has changed since it was read.

    Arguments:
        beside: returns the keys beside an entry that are replaced where a change has a past; those of
            ``PAST`` come first.
        is_checked: False: these are calendars alone, of a schedule that is divided.
    """
    pasts = [change for change in changes if change.past is not None]
    written = [one for one in calendars if one.fields is not None]
    gone, texts_at = list[str](), dict[int, tuple[str, Sequence[str]]]()
    for one in pasts:
        first = 2 + len(changes) + len(gone)
        texts_at.update(enumerate(zip(PAST, one.past or (), strict=True), first))
        gone += beside(one.stored.key)
    gone += [names.calendar(one.name) for one in written]
    owners = sorted({one.noted_for for one in changes} - {""})
    owned = [names.owner(owner) for owner in owners]
    if any(one.is_owned is not None for one in calendars):
        owned.append(names.calendar_owners)
    keys = [names.schedule, *(change.stored.key for change in changes), *gone, *owned]
    place_of = {owner: place for place, owner in enumerate(owners, len(keys) - len(owned) + 1)}
    calendar_owners = len(keys)
    args: list[Any] = [names.wake, len(changes), len(gone)]
    for change in changes:
        args += change.args(place_of)

    def add(kind: str, place: int, content: Any) -> None:
        args.extend((kind, place, json.dumps(content, ensure_ascii=False)))

    for place, (kind, texts) in texts_at.items():
        if texts:
            add(kind, place, texts)
    for place, calendar in enumerate(written, 2 + len(changes) + len(gone) - len(written)):
        if calendar.read is not None:
            add("read", place, calendar.read)
        if calendar.fields:
            add("calendar", place, calendar.fields)
    for calendar in calendars:
        if calendar.is_owned is not None:
            pair = f"{calendar.owner}\t{calendar.name}"
            add("own" if calendar.is_owned else "disown", calendar_owners, [pair])

    def read(reply: Any) -> str:
        other = int(reply)
        return "" if not other else str(keys[other] if other > 0 else keys[-other - 1])

    return positional(_APPLY_ENTRIES, Request(keys, args, names if is_checked else NO_PART), read)
