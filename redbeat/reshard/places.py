"""Where entries may be while the layout is changed, and for some time after it: the parts that end, too."""

from __future__ import annotations

from dataclasses import replace

from redbeat.keys import Keys
from redbeat.layout import Layout


def ending_parts(layout: Layout, former: int | None) -> list[Keys]:
    """Return the parts of ``former`` shards that aren't parts of ``layout``, as they are when it is settled.

    Arguments:
        former: how many shards there were; None: there were none.
    """
    here = {part.generation for part in replace(layout, is_moving=False).parts}
    return [
        replace(part, guard=layout.closed_guard)
        for part in _parts_before(layout, former)
        if part.generation not in here
    ]


def staying_parts(layout: Layout, former: int | None) -> list[Keys]:
    """Return the parts of ``former`` shards that are parts of ``layout``, too, as ``ending_parts`` does."""
    before = {part.generation for part in _parts_before(layout, former)}
    return [part for part in replace(layout, is_moving=False).parts if part.generation in before]


def parts_of(layout: Layout, former: int | None) -> list[Keys]:
    """Return all parts of ``layout``, and those of ``former`` shards that have ended, or are about to."""
    return [*layout.parts, *([] if layout.is_moving else ending_parts(layout, former))]


def _parts_before(layout: Layout, former: int | None) -> tuple[Keys, ...]:
    return replace(layout, shards=former, former=None, is_moving=False).parts
