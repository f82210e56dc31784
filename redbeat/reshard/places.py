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
    before = replace(layout, shards=former, former=None, is_moving=False).parts
    return [replace(part, guard=layout.closed_guard) for part in before if part.generation not in here]


def parts_of(layout: Layout, former: int | None) -> list[Keys]:
    """Return all parts of ``layout``, and those of ``former`` shards that have ended, or are about to."""
    return [*layout.parts, *([] if layout.is_moving else ending_parts(layout, former))]
