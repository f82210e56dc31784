"""Lengths of time as people write them, such as '30s' or '1h30m', read and written. Pure."""

from __future__ import annotations

import re

_SECONDS = {"ms": 0.001, "s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_ROUNDED = ((365 * 86_400, "y"), (86_400, "d"), (3600, "h"), (60, "min"))
_PART = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)\s*", re.ASCII)
_NUMBER = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(e[+-]?\d+)?", re.ASCII)


def is_span(text: str) -> bool:
    """Tell whether ``text`` consists of numbers with units, such as '30s' and '1h 30m'."""
    parts = _PART.findall(text.lower())
    return bool(parts) and not _PART.sub("", text.lower()) and all(unit in _SECONDS for _, unit in parts)


def read_seconds(text: str) -> float:
    """Return the seconds of '30s', '1h30m' or '0.2'.

    Raises:
        ValueError: it isn't a length of time; the message says why.
    """
    if _NUMBER.fullmatch(text.strip()):
        return _plain(float(text))
    total, place = 0.0, 0
    lowered = text.lower()
    while place < len(lowered):
        match = _PART.match(lowered, place)
        if match is None or match[2] not in _SECONDS:
            found = lowered[place:] if match is None else match[2]
            if found.lstrip().startswith("-"):
                raise ValueError(
                    f"{text!r}: a length of time can't be negative; write it as 30s, 1h30m or 0.2."
                )
            hint = f"{found!r} is no unit or number" if found else "a unit is missing"
            units = "ms, s, m, h, d, w"
            raise ValueError(f"{text!r} is no length of time, such as 30s, 1h30m or 0.2: {hint} ({units}).")
        total += float(match[1]) * _SECONDS[match[2]]
        place = match.end()
    if not text.strip():
        raise ValueError("it is empty; write a length of time, such as 30s, 1h30m or 0.2.")
    return _plain(round(total, 6))


def _plain(seconds: float) -> float:
    return int(seconds) if seconds.is_integer() else seconds


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
