"""iCalendar files (RFC 5545): from events to the days and spans of a calendar. Pure.

Needs the packages of the extra ``celery-redbeat[calendar]``, which are imported only when they are needed.
"""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone, tzinfo
from typing import Any

from redbeat.errors import ConfigurationError
from redbeat.schedules.exclusions import spelled
from redbeat.schedules.timezones import instant_of

_DAY = timedelta(days=1)

#: how often the recurring events of one file may occur: expanding them takes some microseconds each
MAX_OCCURRENCES = 200_000

#: occurrences of a rule in one day, by its FREQ; at most one for others
_PER_DAY = {"SECONDLY": 86_400, "MINUTELY": 1_440, "HOURLY": 24}


def days_of_ical(text: str | bytes, since: date, until: date, zone: tzinfo) -> dict[str, str]:
    """Return the days and spans of the events from ``since`` to ``until``, each with its summary.

    An event of whole days excludes these days, any other one its span. Events that are cancelled, or take no
    time, are left out. A recurring event counts each time that it occurs.

    Arguments:
        zone: the time zone of times that have none.

    Raises:
        ConfigurationError: a package is missing.
        ValueError: the text isn't a usable iCalendar file.
    """
    try:
        import icalendar
        import recurring_ical_events
    except ImportError as exc:
        raise ConfigurationError(
            f"An iCalendar file can't be read without {exc.name}: install celery-redbeat[calendar]."
        ) from exc
    try:
        # as bytes, because icalendar takes a short text for the name of a file
        content = text.encode() if isinstance(text, str) else text
        parsed: Any = icalendar.Calendar.from_ical(content)
        _check_occurrences(parsed, until)
        events = recurring_ical_events.of(parsed).between(since, until)
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as exc:
        raise ValueError(f"no iCalendar file that can be used: {exc}.") from exc
    days: dict[str, str] = {}
    for event in sorted(events, key=lambda event: str(event["DTSTART"].dt)):
        day = _day_of(event, zone)
        if day is None:
            continue
        field, label = spelled(day), str(event.get("SUMMARY", ""))
        known = days.get(field)
        days[field] = label if known in (None, "", label) else f"{known}, {label}" if label else str(known)
    return days


def _check_occurrences(parsed: Any, until: date) -> None:
    """Raise ValueError if the recurring events of a file occur too often to be expanded."""
    count = 0
    for event in parsed.walk("VEVENT"):
        rules = event.get("RRULE", [])
        for rule in rules if isinstance(rules, list) else [rules]:
            start = event["DTSTART"].dt
            days = max((until - (start.date() if isinstance(start, datetime) else start)).days, 1)
            per_day = _PER_DAY.get(str(rule.get("FREQ", [""])[0]), 1)
            for field in ("BYHOUR", "BYMINUTE", "BYSECOND"):
                per_day *= max(len(rule.get(field, ())), 1)
            count += days * per_day
    if count > MAX_OCCURRENCES:
        raise ValueError(f"its recurring events occur more than {MAX_OCCURRENCES:,} times")


def _day_of(event: Any, zone: tzinfo) -> Any:
    """Return the day, the days or the span of ``event``; None: it is cancelled, or takes no time."""
    start: date = event["DTSTART"].dt
    end: date = event["DTEND"].dt if "DTEND" in event else start
    if str(event.get("STATUS", "")).upper() == "CANCELLED":
        return None
    if isinstance(start, datetime) and isinstance(end, datetime):
        span = _aware(start, zone), _aware(end, zone)
        return span if span[0].astimezone(timezone.utc) < span[1].astimezone(timezone.utc) else None
    last = end - _DAY
    return (start, last) if last > start else start


def _aware(moment: datetime, zone: tzinfo) -> datetime:
    return instant_of(moment, zone).astimezone(zone) if moment.tzinfo is None else moment
