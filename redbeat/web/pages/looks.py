"""How a word looks: the tone and the shape of each state, outcome, verdict and severity.

Invariants: each word that a badge may show has both, and tone never tells what the shape and the word don't.
The height of a sparkline's bar tells what its colour tells: low is good, and the worse, the higher.
What wasn't sent is a dash.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple


class Look(NamedTuple):
    """A tone, which is a class of redbeat.css, and the name of an icon in ``templates/icons.html``."""

    tone: str
    icon: str


_LOOKS = {
    # entries
    "scheduled": Look("neutral", "clock"),
    "due": Look("info", "dot"),
    "failing": Look("danger", "warning"),
    "paused": Look("warn", "pause"),
    "disabled": Look("neutral", "slash"),
    "finished": Look("neutral", "check"),
    "quarantined": Look("danger", "stop"),
    "missing": Look("danger", "question"),
    "unscheduled": Look("warn", "dashed"),
    "downgraded": Look("warn", "down"),
    # runs in progress
    "sent": Look("info", "arrow"),
    "started": Look("info", "play"),
    "running": Look("info", "play"),
    "retrying": Look("warn", "loop"),
    "spawned": Look("info", "branch"),
    "overdue": Look("warn", "clock"),
    # runs of the past
    "succeeded": Look("good", "check"),
    "failed": Look("danger", "cross"),
    "revoked": Look("neutral", "slash"),
    "expired": Look("warn", "clock"),
    "rejected": Look("warn", "slash"),
    "ignored": Look("neutral", "dashed"),
    "lost": Look("danger", "question"),
    "never_started": Look("danger", "stop"),
    "superseded": Look("neutral", "skip"),
    "skipped": Look("neutral", "skip"),
    "merged": Look("neutral", "branch"),
    "waiting": Look("info", "clock"),
    "unsent": Look("danger", "warning"),
    # what else `why` says
    "no-time": Look("neutral", "slash"),
    "outside": Look("neutral", "slash"),
    "excluded": Look("neutral", "skip"),
    "to-come": Look("neutral", "clock"),
    "not-there-yet": Look("neutral", "dashed"),
    "no-leader": Look("danger", "warning"),
    "too-long-ago": Look("neutral", "question"),
    "history-off": Look("neutral", "question"),
    "unknown": Look("neutral", "question"),
    # beats, and what the doctor finds
    "leader": Look("good", "dot"),
    "standby": Look("neutral", "dashed"),
    "note": Look("info", "info"),
    "warning": Look("warn", "warning"),
    "error": Look("danger", "stop"),
    "ok": Look("good", "check"),
}
_UNKNOWN = Look("neutral", "dot")

#: the icon of a notice
NOTICE_ICONS = {"good": "check", "warn": "warning", "danger": "warning", "info": "info", "neutral": "info"}


def look_of(word: str) -> Look:
    """Return how ``word`` looks; a word that nobody has listed looks plain."""
    return _LOOKS.get(word, _UNKNOWN)


# -- the last outcomes of an entry as small bars

#: as many outcomes are shown
SLOTS = 20

_STEP, _WIDTH, _FOOT = 6, 4, 17
_HEIGHTS = {"neutral": 3, "info": 6, "good": 8, "warn": 12, "danger": 17}


@functools.lru_cache(maxsize=4096)  # most entries of a page have the same: all went well
def draw_sparkline(outcomes: tuple[str, ...]) -> tuple[Mapping[str, str], str]:
    """Return the last ``SLOTS`` outcomes, the oldest first: the path of the bars of each class, and words."""
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
    return paths, words


def _bar(place: int, height: int) -> str:
    return f"M{place * _STEP} {_FOOT}h{_WIDTH}v-{height}h-{_WIDTH}z"
