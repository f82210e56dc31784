"""The scripts about calendars, one typed function each."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from redbeat.store.records import text_of
from redbeat.store.scripts import Script

_READ_CALENDARS = Script("entry_texts", "read_calendars")
_REPLACE_CALENDAR = Script("match_calendar", "replace_calendar")


def read_calendars(
    client: Any, keys: Sequence[str], known: Sequence[str] | None = None
) -> list[tuple[str, dict[str, str] | str | None]]:
    """Read the calendars under ``keys``: a digest of each, and its fields or the key's type ('none': no key).

    Arguments:
        known: for each the digest of what the caller has, 'none' for nothing: there are no fields but None
            where it is still that. Without it there are no digests.
    """
    found: list[tuple[str, dict[str, str] | str | None]] = []
    args = [""] * len(keys) if known is None else known
    for row, digest in zip(_READ_CALENDARS(client, keys, args), args, strict=True):
        if isinstance(row, (bytes, str)):
            found.append(("", text_of(row)))
            continue
        texts = [text_of(text) for text in row]
        is_known = bool(digest) and texts[0] == digest
        found.append((texts[0], None if is_known else dict(zip(texts[1::2], texts[2::2], strict=True))))
    return found


def replace_calendar(
    client: Any,
    key: str,
    fields: Iterable[tuple[str, str]],
    *,
    wake: str,
    read: Mapping[str, str] | str | None = None,
) -> bool | None:
    """Replace a calendar's fields; without fields it is removed. Return whether there was one.

    Arguments:
        read: only while it still has these fields, or its key this type ('none' for no key); else None is
            returned, and nothing is written.
    """
    before = "" if read is None else json.dumps(read, ensure_ascii=False)
    found = int(_REPLACE_CALENDAR(client, [key], [wake, before, *chain.from_iterable(fields)]))
    return None if found < 0 else bool(found)
