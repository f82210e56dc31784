"""The last outcomes of an entry as small bars. Pure.

Invariant: the height of a bar tells what its colour tells: low is good, and the worse, the higher; what
wasn't sent is a dash.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import NamedTuple

from redbeat.web.pages.looks import look_of

#: as many outcomes are shown
SLOTS = 20

_STEP, _WIDTH, _FOOT = 6, 4, 17
_HEIGHTS = {"neutral": 3, "info": 6, "good": 8, "warn": 12, "danger": 17}


class Sparkline(NamedTuple):
    """What the macro ``sparkline`` draws.

    Attributes:
        paths: a path for each tone, and its class.
        words: what it shows, in words.
    """

    paths: tuple[tuple[str, str], ...]
    words: str


@functools.lru_cache(maxsize=4096)  # most entries of a page have the same: all went well
def draw_sparkline(outcomes: tuple[str, ...]) -> Sparkline:
    """Return the bars of ``outcomes``, the oldest first; the last ``SLOTS`` of them."""
    last = outcomes[-SLOTS:]
    empty = SLOTS - len(last)
    paths: dict[str, str] = {}
    if empty:
        paths["is-empty"] = "".join(_bar(place, 2) for place in range(empty))
    for place, outcome in enumerate(last, start=empty):
        tone = look_of(outcome).tone
        paths[f"tone-{tone}"] = paths.get(f"tone-{tone}", "") + _bar(place, _HEIGHTS[tone])
    counts = ", ".join(f"{count} {word.replace('_', ' ')}" for word, count in Counter(last).items())
    words = f"Last {len(last)}: {counts}" if last else "No runs yet"
    return Sparkline(tuple(paths.items()), words)


def _bar(place: int, height: int) -> str:
    return f"M{place * _STEP} {_FOOT}h{_WIDTH}v-{height}h-{_WIDTH}z"
