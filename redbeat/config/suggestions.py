"""Hints for those who have mistyped a name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

#: nothing is suggested for longer names, nor for more names than this: comparing takes time
_MAX_LENGTH, _MAX_UNKNOWN = 64, 20


def nearest_to(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like ``name``; None: none is like it."""
    return next(iter(difflib.get_close_matches(name[:_MAX_LENGTH], known, n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean ...?' with the known name that is most like ``name``; '': none is like it."""
    nearest = nearest_to(name, known)
    return f" Did you mean {nearest}?" if nearest else ""


def find_typos(names: Iterable[str], known: Collection[str], likeness: float = 0.75) -> str:
    """Return, in words, those of ``names`` that are unknown and like a known one; '': there are none.

    Arguments:
        likeness: how like they must be at least, from 0.0 to 1.0 for equal.
    """
    unknown = [name for name in names if name not in known]
    if not unknown:  # nearly always, and this is called for every run
        return ""
    nearest = {
        name: difflib.get_close_matches(name, known, n=1, cutoff=likeness)
        for name in unknown[:_MAX_UNKNOWN]
        if len(name) <= _MAX_LENGTH
    }
    return ", ".join(f"{name} (did you mean {match[0]}?)" for name, match in nearest.items() if match)
