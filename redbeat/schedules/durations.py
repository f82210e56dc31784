"""Lengths of time in words; times.py reads them. Pure."""

from __future__ import annotations

_SECONDS = {"m": 60, "h": 3600, "d": 86_400}
_ROUNDED = ((365 * 86_400, "y"), (86_400, "d"), (3600, "h"), (60, "min"))


def write_seconds(seconds: float) -> float | str:
    """Return ``seconds`` as '30s' or '2h'; a number with a fraction stays a number."""
    if seconds % 1:
        return seconds
    for unit in ("d", "h", "m"):
        if seconds and not seconds % _SECONDS[unit]:
            return f"{int(seconds / _SECONDS[unit])}{unit}"
    return f"{int(seconds)}s"


def length_in_words(seconds: float) -> str:
    """Return ``seconds`` in words without rounding, such as '1 h 30 min'."""
    words, rest = [], seconds
    for unit, name in _ROUNDED[1:]:
        if rest >= unit:
            words.append(f"{int(rest // unit)} {name}")
            rest %= unit
    if rest or not words:
        words.append(f"{round(rest, 6):g} s")
    return " ".join(words)


def seconds_in_words(seconds: float) -> str:
    """Return ``seconds`` in words, rounded to the unit that fits, such as '5 min'."""
    for unit, name in _ROUNDED:
        if seconds >= 2 * unit or (unit == 60 and seconds >= 90):
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 1 or not seconds else f"{seconds * 1000:.0f} ms"


def lasting_in_words(seconds: float) -> str:
    """Return how long something took; that is recorded in thousandths of a second, so 0 is less than one."""
    return seconds_in_words(seconds) if seconds >= 0.001 else "< 1 ms"
