"""Calendars as they are in Redis: each is a hash of days and their labels.

They are in one place, also where the schedule is divided into shards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from redbeat.store.entries import write_call
from redbeat.store.owners import CalendarChange
from redbeat.store.records import Fence, dict_of, text_of
from redbeat.store.scripts.script import Script
from redbeat.store.server import Server
from redbeat.store.store import Store

_READ_CALENDARS = Script("read_calendars")


def read_stored_calendars(
    store: Store, names: Sequence[str], known: Sequence[str] | None = None
) -> list[tuple[str, dict[str, str] | str | None]]:
    """Return for each its digest, and its fields or the type of its key ('none': no key); one round trip.

    Arguments:
        known: the digest of each that the caller has, 'none' if it has none; the fields of those that are
            still the same are None. Without it no digests are returned.
    """
    keys = [store.keys.calendar(name) for name in names]
    digests = [""] * len(keys) if known is None else known
    rows = store.ask(_READ_CALENDARS.call(keys=keys, known=digests))
    found: list[tuple[str, dict[str, str] | str | None]] = []
    for row, digest in zip(rows, digests, strict=True):
        if isinstance(row, (bytes, str)):
            found.append(("", text_of(row)))
            continue
        current = text_of(row[0])
        is_known = bool(digest) and current == digest
        found.append((current, None if is_known else dict_of(row[1:])))
    return found


def replace_calendar(
    store: Store, name: str, fields: Mapping[str, str], read: Mapping[str, str] | str | None = None
) -> bool:
    """Replace a calendar's fields; without fields it is removed. Return True if that was done.

    Arguments:
        read: do it only if it still has these fields, or its key still has this type ('none': no key).
    """
    # of a divided schedule nobody listens there: it wakes the beats that entries get new due times
    keys = store.apart().keys
    call = write_call(keys, Fence(), (), [*CalendarChange(name, "", read, fields).rows(keys)])
    return not store.ask(call).changed


def calendar_names(store: Store) -> list[str]:
    """Return the names of all; this looks at every key under the prefix."""
    start = store.keys.calendar("")
    pages = Server(store).scan(start)
    return sorted({key.removeprefix(start) for page in pages for key in page})
