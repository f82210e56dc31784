"""Entries that stand in another shard than the one which their names say: whoever wrote them took the
schedule to be divided into another number of shards.

Invariant: such an entry isn't run, as its twin may be in its own shard. For some time after the layout has
changed it is moved there; else it is put aside with an error that says where it belongs. While entries move
from one layout to another, each is run where it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from redbeat.errors import EntryCorrupt, ReshardRefused, StoreCorrupt, StoreRefused
from redbeat.layout import shard_of
from redbeat.log.events import ENTRIES_MOVED
from redbeat.log.logger import logger
from redbeat.log.text import counted
from redbeat.reshard.sweeping import Sweeper, misplaced, move_home, seconds_left
from redbeat.store.layouts import read_layout
from redbeat.store.records import DueEntry
from redbeat.store.store import Store


def sweep(sweeper: Sweeper) -> None:
    """Move home what was written to parts that aren't any more, if it is time to look for that.

    What goes wrong with it keeps beat from nothing: ``celery redbeat doctor`` finds what is left.
    """
    try:
        report_moved(sweeper.look())
    except (ReshardRefused, StoreRefused, StoreCorrupt) as exc:
        logger.debug("beat: Looking for entries in former shards: %s", exc)


def report_moved(names: Sequence[str]) -> None:
    """Tell of entries that were found where they don't belong."""
    if names:
        logger.warning(
            "beat: Moved %s to where they belong, as something writes by another number of shards: %s",
            counted(len(names)),
            ", ".join(names[:5]),
            extra=ENTRIES_MOVED.of(entries=list(names[:100])),
        )


def find_misplaced(store: Store, rows: Sequence[DueEntry]) -> list[DueEntry]:
    """Return the rows of one shard that belong to another shard; [] while entries are being moved."""
    layout = store.config.layout
    shards = layout.shards
    if shards is None or layout.is_moving:
        return []
    shard, skipped = layout.shard_of(store.keys), len(store.keys.prefix)
    return [row for row in rows if shard_of(row.key[skipped:], shards) != shard]


def bring_home(store: Store, rows: Sequence[DueEntry]) -> tuple[list[DueEntry], list[DueEntry]]:
    """Move misplaced entries of a shard to where they belong, for as long as that is done.

    Returns those that are left due, as another program moves entries at this moment, and those that are to be
    quarantined.
    """
    layout = read_layout(store)
    if layout.is_under_way:
        return [*rows], []
    if not seconds_left(store, layout):
        return [], [*rows]
    names = {store.keys.name(row.key): row for row in rows}
    try:
        moved = move_home(store, misplaced(store, store.keys, names))
    except ReshardRefused:
        return [*rows], []
    report_moved(moved)
    return [row for name, row in names.items() if name not in moved], []


def describe_misplaced(store: Store, due_entry: DueEntry) -> EntryCorrupt:
    """Return what is wrong with an entry that is misplaced."""
    layout = store.config.layout
    shards, name = layout.shards or 0, store.keys.name(due_entry.key)
    home, key = shard_of(name, shards), layout.keys.entry(name)
    return EntryCorrupt(
        f"{due_entry.key}: this entry isn't run, as it belongs into shard {home} of {shards}. Something "
        f"has written it here by another number of shards: write it under {key}, and delete it here.",
        due_entry.key,
    )
