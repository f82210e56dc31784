"""Reading the calendars that entries refer to, all in one round trip.

Invariant: a calendar that is missing or broken stops only the entries that refer to it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING

from redbeat.connection.retry import is_refusal
from redbeat.errors import StoreRefused
from redbeat.log.text import is_utf8, printable
from redbeat.schedules.exclusions import Exclusions
from redbeat.schedules.occurrences import Excluded
from redbeat.store.calendars import read_stored_calendars
from redbeat.store.records import Stored
from redbeat.store.store import Store

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

#: how many calendars a beat keeps in memory at most
MAX_KEPT = 100

#: a field that isn't a day, and always exists, as an empty calendar isn't a missing one
ABOUT = "about"


@dataclass(frozen=True)
class Unusable:
    """Takes the place of a calendar that is missing or broken.

    Attributes:
        reason: a sentence.
    """

    reason: str

    def end_of_exclusion(self, instant: datetime, tz: tzinfo) -> datetime | None:  # noqa: ARG002 - Excluded's
        """Raise ValueError: whether the instant is excluded isn't known."""
        raise ValueError(self.reason)


@dataclass(frozen=True)
class StoredCalendar:
    """A calendar as it is in Redis.

    Attributes:
        fields: of the hash: the days and spans with their labels, and ``about``.
        kind: the type of its key; 'none': the calendar is missing; None: unknown, Redis refused to say.
        unreadable: why it can't be read, a sentence; '': it is a hash.
    """

    name: str
    fields: Mapping[str, str] = field(default_factory=dict)
    kind: str | None = "hash"
    unreadable: str = ""

    @property
    def about(self) -> str:
        """Its free text."""
        return self.fields.get(ABOUT, "")

    @property
    def days(self) -> dict[str, str]:
        """Its days and spans with their labels, in order."""
        return {day: label for day, label in sorted(self.fields.items()) if day != ABOUT}

    @property
    def is_missing(self) -> bool:
        """Whether no calendar has this name."""
        return self.kind == "none"

    @property
    def read(self) -> Mapping[str, str] | str | None:
        """What a change of the calendar compares with: its fields, or the type of its key."""
        return self.fields if self.kind == "hash" else self.kind

    @property
    def excluded(self) -> Exclusions | Unusable:
        """The times that it excludes, or why it is unusable."""
        if self.unreadable:
            return Unusable(self.unreadable)
        try:
            return Exclusions(field for field in self.fields if field != ABOUT)
        except ValueError as exc:
            return Unusable(f"the calendar {self.name!r}: {printable(str(exc))}")

    @property
    def revision(self) -> str:
        """A digest that tells one version of the calendar from another; '': it is missing."""
        if self.is_missing:
            return ""
        text = json.dumps([self.days, self.about, self.unreadable])
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:20]


def read_stored(store: Store, names: Iterable[str]) -> dict[str, StoredCalendar]:
    """Return the calendars with these names; one round trip, none for no names."""
    wanted = sorted(set(names))
    if not wanted:
        return {}
    try:
        found = read_stored_calendars(store, wanted)
    except StoreRefused as exc:
        return _unreadable(wanted, exc)
    return {name: _calendar_of(store, name, fields) for name, (_, fields) in zip(wanted, found, strict=True)}


def read_one(store: Store, name: str) -> StoredCalendar:
    """Return the calendar ``name``."""
    return read_stored(store, [name])[name]


def _unreadable(names: Iterable[str], exc: StoreRefused) -> dict[str, StoredCalendar]:
    if is_refusal(exc.__cause__):  # the server is busy, say: nothing can be read now
        raise exc
    return {
        name: StoredCalendar(name, kind=None, unreadable=f"the calendar {name!r} can't be read: {exc}")
        for name in names
    }


def _calendar_of(store: Store, name: str, fields: dict[str, str] | str | None) -> StoredCalendar:
    place = store.keys.calendar(name)
    if not isinstance(fields, str):
        return StoredCalendar(name, fields or {})
    reason = f"the calendar {name!r}: {place} holds a {fields}, not a hash."
    if fields == "none":
        reason = f"there is no calendar {name!r} ({place})."
    return StoredCalendar(name, kind=fields, unreadable=reason)


class KeptCalendars:
    """The calendars of one beat, which are read and parsed again only if they have changed.

    Each time one is needed, the server is asked whether it has changed: 2 us for each day.
    """

    def __init__(self) -> None:
        #: name to digest and calendar, the one that was needed last at the end
        self._kept: dict[str, tuple[str, Excluded]] = {}

    def read_of(self, store: Store, rows: Collection[Stored]) -> dict[str, Excluded]:
        """Return the calendars that ``rows`` name, in one round trip, or none if there are none."""
        wanted = sorted(set[str]().union(*map(names_in, rows)))
        if not wanted:
            return {}
        known = [self._kept[name][0] if name in self._kept else "none" for name in wanted]
        try:
            answers = read_stored_calendars(store, wanted, known)
        except StoreRefused as exc:
            return {name: one.excluded for name, one in _unreadable(wanted, exc).items()}
        found = dict[str, Excluded]()
        for name, (digest, fields) in zip(wanted, answers, strict=True):
            kept = self._kept.pop(name, None)
            if kept is None or fields is not None:
                kept = digest or "none", _calendar_of(store, name, fields).excluded
            self._kept[name], found[name] = kept, kept[1]
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return found


def names_in(row: Stored) -> set[str]:
    """Return the names of calendars in the policy and in the definition of an entry; the policy's counts."""
    names = set()
    for text in (row.policy, row.definition):
        if text and '"exclude"' in text and (name := _name_in(text)):
            names.add(name)
    return names


def _name_in(text: str) -> str | None:
    """Return the calendar's name in a policy or a definition; None: there is none, or it can't be decoded."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    name = values.get("exclude") if isinstance(values, dict) else None
    # a name that can't be encoded would fail the request for all of them
    return name if isinstance(name, str) and name and is_utf8(name) else None


def load_calendars(
    store: Store, entries: Iterable[RedBeatSchedulerEntry], known: dict[str, Excluded]
) -> None:
    """Give entries their calendars; the ones that aren't ``known`` are read, all at once, and put there."""
    named = [entry for entry in entries if entry.policy.exclude is not None]
    missing = {str(entry.policy.exclude) for entry in named} - known.keys()
    known.update({name: stored.excluded for name, stored in read_stored(store, missing).items()})
    give_calendars(named, known)


def give_calendars(entries: Iterable[RedBeatSchedulerEntry], calendars: Mapping[str, Excluded]) -> None:
    """Put those of ``calendars`` that the policies of ``entries`` name into these policies."""
    for entry in entries:
        if entry.policy.exclude is not None:
            entry.policy = entry.policy.with_calendar(calendars.get(entry.policy.exclude))
