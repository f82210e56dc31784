"""Calendars as they are in Redis: each is a hash of days and their labels.

They are in one place, also where the schedule is divided into shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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
        """Return for each its digest, and its fields or the type of its key ('none': no key); one round trip.

        Arguments:
            known: the digest of each that the caller has, 'none' if it has none; the fields of those that are
                still the same are None. Without it no digests are returned.
        """
        keys = [self._store.keys.calendar(name) for name in names]
        with self._store.translating():
            return read_calendars(self._store.client, keys, known)

    def replace(
        self, name: str, fields: Mapping[str, str], read: Mapping[str, str] | str | None = None
    ) -> bool:
        """Replace a calendar's fields; without fields it is removed. Tell whether that was done.

        Arguments:
            read: do it only if it still has these fields, or its key still has this type ('none': no key).
        """
        # of a divided schedule nobody listens there: it wakes the beats that entries get new due times
        key, wake = self._store.keys.calendar(name), self._store.config.base_keys.wake
        with self._store.translating():
            found = replace_calendar(self._store.client, key, fields.items(), wake=wake, read=read)
        return found is not None

    def some_names(self, cursor: int) -> tuple[list[str], int]:
        """Return the names that one step of a look at every key finds, sorted, and where the next begins.

        The first one begins at 0, and 0 is where the last one leads. A name may come twice.
        """
        start = self._store.keys.calendar("")
        keys, following = Server(self._store).scan_step(start, cursor)
        return sorted(key.removeprefix(start) for key in keys), following

    def names(self) -> list[str]:
        """Return the names of all; this looks at every key under the prefix."""
        start = self._store.keys.calendar("")
        pages = Server(self._store).scan(start)
        return sorted({key.removeprefix(start) for page in pages for key in page})
