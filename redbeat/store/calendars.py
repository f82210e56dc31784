"""Calendars as they stand in Redis: a hash of days and their labels each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from redbeat.store.parts import Part
from redbeat.store.scripts.calendars import read_calendars, replace_calendar
from redbeat.store.server import Server
from redbeat.store.store import Store


class Calendars:
    """The calendars beside the schedule of ``store``, by their names."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def read(
        self, names: Sequence[str], known: Sequence[str] | None = None
    ) -> list[tuple[str, dict[str, str] | str | None]]:
        """Return of each its digest and its fields, or what else its key is ('none': no key); one round trip.

        Arguments:
            known: for each the digest of what the caller has, 'none' for nothing: there are no fields but
                None where it is still that. Without it there are no digests.
        """
        keys = [self._store.keys.calendar(name) for name in names]
        with self._store.translating():
            return read_calendars(self._store.client, keys, known)

    def replace(
        self, name: str, fields: Mapping[str, str], read: Mapping[str, str] | str | None = None
    ) -> bool:
        """Let a calendar have just these fields, and with none be removed; tell whether that was done.

        Arguments:
            read: only while it still has these fields, or its key is still this ('none': no key).
        """
        key, wake = self._store.keys.calendar(name), self._store.keys.wake
        with self._store.translating():
            found = replace_calendar(self._store.client, key, fields.items(), wake=wake, read=read)
        return found is not None

    def names(self) -> list[str]:
        """Return the names of all; every key under the prefix is looked at for them."""

        def read(part: Part) -> Iterator[str]:
            start = part.keys.calendar("")
            for page in Server(self._store).scan(start):
                yield from (key.removeprefix(start) for key in page)

        return sorted(set(self._store.parts.read(read)))
