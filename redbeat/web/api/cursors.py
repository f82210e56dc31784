"""Answers that have a part of what there is, and the addresses with which one goes on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from redbeat.entries.entry import RedBeatSchedulerEntry
from redbeat.operations.selection import Wanted, look_at_each
from redbeat.web.api.kinds import TEXT, Field
from redbeat.web.api.operations import Call

CURSOR = Field("cursor", TEXT, "Where to go on: from `next` of the answer before.")


def look_through(
    app: Any, match: str | None, is_wanted: Wanted, cursor: str | None, limit: int
) -> tuple[list[RedBeatSchedulerEntry], str | None]:
    """Return entries in the order of their next runs, and where to go on; None: these were the last ones."""
    found, following = look_at_each(app, match, is_wanted, cursor, limit)
    return [one.entry for one in found], following


def path_on(call: Call, cursor: str | None) -> str | None:
    """Return the path and query with which a look goes on at ``cursor``; None: it has ended."""
    return None if cursor is None else path_with(call.path, {**call.query, "cursor": cursor})


def path_with(path: str, query: Mapping[str, Any]) -> str:
    """Return a path with a query, without what is None in it."""
    texts = {name: _written(value) for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(texts)}"


def _written(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return json.dumps(value) if isinstance(value, bool) else str(value)
