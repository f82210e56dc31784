"""Hints for those who have mistyped a name."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

#: no suggestions for longer names, nor for more of them than this: comparing takes its time
_MAX_LENGTH, _MAX_UNKNOWN = 64, 20


def nearest_to(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is nearest to ``name``, None when none is near."""
    return next(iter(difflib.get_close_matches(name[:_MAX_LENGTH], known, n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ' Did you mean ...?' with the known name nearest to ``name``, '' when none is near."""
    nearest = nearest_to(name, known)
    return f" Did you mean {nearest}?" if nearest else ""


def find_typos(names: Iterable[str], known: Collection[str], likeness: float = 0.75) -> str:
    """Return the unknown ones of ``names`` that are nearly known ones, in words; '' when there are none.

    Arguments:
        likeness: from which on, 1.0 for equal.
    """
    unknown = [name for name in names if name not in known]
    if not unknown:  # nearly always, and this is asked for every run
        return ""
    nearest = {
        name: difflib.get_close_matches(name, known, n=1, cutoff=likeness)
        for name in unknown[:_MAX_UNKNOWN]
        if len(name) <= _MAX_LENGTH
    }
    return ", ".join(f"{name} (did you mean {match[0]}?)" for name, match in nearest.items() if match)
