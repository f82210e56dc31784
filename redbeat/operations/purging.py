"""``purge``: what deleted entries have left behind, removed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

from redbeat.access import Right
from redbeat.diagnostics.fixes import Orphan, find_orphans, purge_orphans
from redbeat.operations.actor import Actor

#: how many of them one request removes, and for how long it looks, seconds
MAX_PURGED, BUDGET_SECONDS = 10_000, 10.0


def purge(actor: Actor, *, dry_run: bool) -> tuple[Sequence[Orphan], int]:
    """Return what deleted entries have left behind, as much as is found in time, and how much was removed."""
    actor.require(Right.ADMIN)
    ends_at = time.monotonic() + BUDGET_SECONDS
    found: list[Orphan] = []
    for one in find_orphans(actor.app):
        found.append(one)
        if len(found) >= MAX_PURGED or time.monotonic() >= ends_at:
            break
    if dry_run or not found:
        return found, 0
    with actor.doing("purge", [one.name for one in found], Counter(one.kind for one in found)):
        return found, purge_orphans(actor.app, found)
