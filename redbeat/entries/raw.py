"""What stands in Redis of an entry, as plain JSON, whether the entry can be used or not. Pure.

Invariant: nothing is added and nothing is checked, and no text makes it fail.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from redbeat.decoder import DEFINITION_FIELDS
from redbeat.policy.policy import FIELDS
from redbeat.store.records import Stored

_KNOWN = (*DEFINITION_FIELDS, *FIELDS)


def raw_fields(stored: Stored | None) -> dict[str, Any]:
    """Return the fields of an entry in its definition and its policy, as far as these are JSON objects."""
    texts = () if stored is None else (stored.definition, stored.policy)
    found: dict[str, Any] = {}
    for text in texts:
        found |= read_object(text) or {}
    return {name: found[name] for name in _KNOWN if found.get(name) is not None}


def read_object(text: str | None) -> Mapping[str, Any] | None:
    """Return the JSON object that ``text`` is; None: it is none."""
    try:
        value = json.loads(text or "")
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
