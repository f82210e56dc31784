"""The scripts about calendars, one typed function each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from redbeat.lua import Script, text_of

__all__ = ["read_calendars", "replace_calendar"]

_READ_CALENDARS = Script("read_calendars")
_REPLACE_CALENDAR = Script("match_calendar", "replace_calendar")


def read_calendars(client: Any, keys: Sequence[str]) -> list[dict[str, str] | str]:
    """Read the calendars under ``keys``: the fields of each, or its key's type, 'none' for no key."""
    found: list[dict[str, str] | str] = []
    for row in _READ_CALENDARS(client, keys, []):
        texts = text_of(row) if isinstance(row, (bytes, str)) else [text_of(text) for text in row]
        found.append(texts if isinstance(texts, str) else dict(zip(texts[::2], texts[1::2], strict=True)))
    return found


def replace_calendar(
    client: Any,
    key: str,
    fields: Iterable[tuple[str, str]],
    *,
    wake: str,
    read: Mapping[str, str] | str | None = None,
) -> bool | None:
    """Let a calendar have just these fields, and with none be removed; return whether there was one.

    Arguments:
        read: only while it still has these fields, or its key this type ('none' for no key); else None is
            returned, and nothing is written.
    """
    before = "" if read is None else json.dumps(read, ensure_ascii=False)
    found = int(_REPLACE_CALENDAR(client, [key], [wake, before, *chain.from_iterable(fields)]))
    return None if found < 0 else bool(found)
