"""Entries as a beat fetches them."""

from __future__ import annotations

from typing import Any

from redbeat.store.records import HASH, Stored


def fetched(
    key: str, nominal: str, definition: str | None = None, meta: str | None = None, **others: Any
) -> Stored:
    """An entry that is due at its score `nominal`; without a mark beside its meta, if none is given."""
    fields = {"type": HASH, "meta_mark": "", "nominal": nominal, "current_score": nominal, **others}
    return Stored(key, definition, meta, float(nominal), **fields)
