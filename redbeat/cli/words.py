"""Times, lengths of time and names as people read them on a terminal. Pure.

Invariant: what comes from Redis is printed on one line, and can't give orders to the terminal.
"""

from __future__ import annotations

from datetime import datetime, tzinfo
from typing import Any

from redbeat.text import printable, shorten

__all__ = [
    "counted",
    "due_in_words",
    "next_run_in_words",
    "one_line",
    "relative",
    "seconds_in_words",
    "when",
]

_UNITS = (
    (365 * 86_400, "y"),
    (86_400, "d"),
    (3600, "h"),
    (60, "min"),
)


def one_line(text: object, limit: int = 500) -> str:
    """Return ``text`` on one line, without what a terminal takes for orders, cut to ``limit``."""
    return shorten(printable(str(text)), limit)


def counted(number: int, one: str, many: str) -> str:
    """Return how many there are, as '1 entry' or '2 entries'."""
    return f"{number} {one if number == 1 else many}"


def when(moment: datetime | None, zone: tzinfo) -> str:
    """Return ``moment`` on the clocks of ``zone``, with the offset from UTC; '' for None."""
    if moment is None:
        return ""
    try:
        local = moment.astimezone(zone)
    except OverflowError:  # at the end of all years
        local = moment
    return f"{local:%Y-%m-%d %H:%M:%S} {offset_of(local)}"


def offset_of(moment: datetime) -> str:
    """Return the offset from UTC of ``moment``, as +02:00."""
    offset = f"{moment:%z}"
    return f"{offset[:3]}:{offset[3:5]}"


def relative(moment: datetime | None, now: datetime) -> str:
    """Return how long it is until ``moment``, or since then; '' for None."""
    if moment is None:
        return ""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 0.5:
        return "now"
    words = seconds_in_words(abs(seconds))
    return f"in {words}" if seconds > 0 else f"{words} ago"


def due_in_words(due: datetime | None, zone: tzinfo, now: datetime) -> tuple[str, str]:
    """Return when something is due next by its score, and how long it is until then; None: never."""
    if due is None:
        return "never", "never"
    if due.timestamp() == 0:
        return "at once", "now"  # 1970 is no date of anybody's
    return when(due, zone), relative(due, now)


def next_run_in_words(entry: Any, zone: tzinfo, now: datetime) -> tuple[str, str]:
    """Return when beat sends ``entry`` next, and how long it is until then; why not where it doesn't."""
    if entry.next_due_at is None and entry.state in ("paused", "disabled"):
        return entry.state, ""
    return due_in_words(entry.next_due_at, zone, now)


def seconds_in_words(seconds: float) -> str:
    """Return a length of time in the unit that fits, as '5 min'."""
    for unit, name in _UNITS:
        if seconds >= 2 * unit or (unit == 60 and seconds >= 90):
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
