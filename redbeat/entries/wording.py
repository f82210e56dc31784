"""Times, lengths of time and names as people read them. Pure.

Invariant: what comes from Redis is shown on one line, and can't give orders to a terminal.
"""

from __future__ import annotations

import re
from datetime import datetime, tzinfo

from redbeat.log.text import printable, replace_utc_times, shorten
from redbeat.schedules.durations import seconds_in_words
from redbeat.schedules.timezones import zone_name

_ISO_IN_UTC = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(\.\d+)?(?:Z|\+00:00)(?![\w:])", re.ASCII)


def one_line(text: object, limit: int = 500) -> str:
    """Return ``text`` on one line, cut to ``limit`` characters, with control characters escaped."""
    return shorten(printable(str(text)), limit)


def when_in(moment: datetime, zone: tzinfo) -> str:
    """Return ``moment`` as text in ``zone``, with the zone's name."""
    return f"{clock(moment, zone)} {label_of(zone)}"


def clock(moment: datetime, zone: tzinfo, fraction: str = "") -> str:
    """Return ``moment`` as wall time in ``zone``, with its offset from UTC if that time comes twice.

    Arguments:
        fraction: of the second, as '.25'.
    """
    local = local_time(moment, zone)
    text = f"{local:%Y-%m-%d %H:%M:%S}{fraction}"
    is_repeated = local.replace(fold=0).utcoffset() != local.replace(fold=1).utcoffset()
    return f"{text} {offset_of(local)}" if is_repeated else text


def typed(moment: datetime, zone: tzinfo) -> str:
    """Return ``moment`` as wall time in ``zone``, as it can be typed as a time: 2026-01-31T07:30:00."""
    return "T".join(clock(moment, zone).split(" ", 1)).replace(" ", "")


def local_time(moment: datetime, zone: tzinfo) -> datetime:
    """Return ``moment`` in ``zone``; unchanged if that is outside the years 1 to 9999."""
    try:
        return moment.astimezone(zone)
    except OverflowError:
        return moment


def in_words_of(sentence: str, zone: tzinfo) -> str:
    """Return ``sentence`` with its times, which are marked as UTC, in ``zone``."""
    return replace_utc_times(
        sentence, lambda moment, fraction: f"{clock(moment, zone, fraction)} {label_of(zone)}"
    )


def in_utc(text: str) -> str:
    """Return ``text`` with its times of ISO 8601 in UTC as sentences have them: 2026-01-31 09:30:00 UTC."""
    return _ISO_IN_UTC.sub(lambda found: f"{found[1]} {found[2]}{found[3] or ''} UTC", text)


def label_of(zone: tzinfo) -> str:
    """Return the name of ``zone`` as shown beside times, or its offset from UTC."""
    name = zone_name(zone) or str(zone).strip("<>")
    return "UTC" if name.upper() in ("UTC", "ETC/UTC") else name


def offset_of(moment: datetime) -> str:
    """Return the offset from UTC of ``moment``, as +02:00."""
    offset = f"{moment:%z}"
    return f"{offset[:3]}:{offset[3:5]}"


def relative(moment: datetime | None, now: datetime) -> str:
    """Return the time until ``moment``, or since then, in words; '' for None."""
    if moment is None:
        return ""
    seconds = (moment - now).total_seconds()
    if abs(seconds) < 0.5:
        return "now"
    words = seconds_in_words(max(abs(seconds), 1))
    return f"in {words}" if seconds > 0 else f"{words} ago"
