"""Time zones: from an instant to the wall time and back, and what happens where the clocks change (DST).

Owns the rule for wall times that the clocks skip or repeat. A skipped time counts as the first instant after
the gap, a repeated one only in its first pass (``next_fixed``). Schedules that run hourly or more often
follow real time instead (``next_in_real_time``). Instants are aware datetimes in UTC, wall times are naive
datetimes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from datetime import MAXYEAR, datetime, timedelta, timezone, tzinfo
from functools import lru_cache, partial
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from dateutil.parser import isoparse
from dateutil.tz import tzfile, tzlocal, tzutc

from redbeat.config.suggestions import did_you_mean
from redbeat.log.text import quoted

#: (wall time, the clock's offset from UTC, whether that wall time itself counts) to the next wall time that a
#: rule names; None: there is none
NextWall = Callable[[datetime, timedelta, bool], datetime | None]

#: (wall time, the clock's offset from UTC, an earlier wall time) to the wall times that a rule names up to
#: the first one, the last first; those before the earlier one may be left out
WallsBack = Callable[[datetime, timedelta, datetime], Iterator[datetime]]

#: (begin, end) to the number of wall times that a rule names from ``begin``, included, to ``end``, not
#: included
CountWalls = Callable[[datetime, datetime], int]

#: (wall time, the clock's offset from UTC) to the wall times that a rule names after it, the first first
WallsAfter = Callable[[datetime, timedelta], Iterator[datetime]]

#: where a system has its own zone
_LOCAL_FILE = "/etc/localtime"
#: what stands before the name of a zone in the path of its file
_BEFORE_NAME = re.compile(r"^.*/zoneinfo/(posix/)?")

_DATE_FIRST = re.compile(r"\d{4}-?\d\d-?\d\d(?!\d)", re.ASCII)

_INSTANT = timedelta(microseconds=1)
_SECOND, _HOUR, _DAY, _WEEK = timedelta(seconds=1), timedelta(hours=1), timedelta(days=1), timedelta(weeks=1)
#: within this many weeks a zone has each of its offsets at some time
_WEEKS = 53
#: a day from the ends of the calendar, which some zones have later or earlier
FIRST_DAY = datetime(1, 1, 2, tzinfo=timezone.utc)
_LAST_DAY = datetime(9999, 12, 30, tzinfo=timezone.utc)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: for how many days on end is looked whether the clocks change, where many runs are wanted
_STEADY_DAYS = 35


@lru_cache(maxsize=1024)
def zone_called(name: str) -> tzinfo:
    """Return the time zone with an IANA ``name``; 'UTC' and 'Z' in upper or lower case.

    Raises:
        ValueError: there is none; the message suggests one that is spelled like it.
    """
    if name.upper() in ("UTC", "Z"):
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError) as exc:  # OSError: the name is used as a path
        raise ValueError(f"unknown time zone {_shown(name)}") from exc


@lru_cache(maxsize=1024)  # a suggestion takes milliseconds, and many entries may have the same typo
def _shown(name: str) -> str:
    return f"{name!r}.{did_you_mean(name, available_timezones())}"


def time_of(text: str) -> datetime:
    """Return the datetime of ``text`` in ISO 8601: a date, and perhaps a time of day and an offset.

    Raises:
        ValueError: it isn't one.
    """
    if not _DATE_FIRST.match(text):  # isoparse would also take a year alone
        raise ValueError(f"{text!r} is no time in ISO 8601")
    return isoparse(text)  # datetime.fromisoformat understands less in Python 3.10 than in 3.11


def zone_name(tz: tzinfo | None) -> str | None:
    """Return the IANA name of ``tz``; None: it has none, as it is an offset, say."""
    name = getattr(tz, "key", None) or getattr(tz, "zone", None)  # zoneinfo's, pytz's
    if isinstance(name, str):
        return name
    if isinstance(tz, tzutc):
        return "UTC"
    if isinstance(tz, tzfile):
        return _name_of_file(str(getattr(tz, "_filename", "")))
    if isinstance(tz, tzlocal):
        name = os.environ.get("TZ", "").lstrip(":") or _LOCAL_FILE
        return found if (found := _name_of_file(name)) and _is_like(tz, zone_called(found)) else None
    return None


@lru_cache(maxsize=1024)
def _name_of_file(path: str) -> str | None:
    """Return the IANA name of the zone in a file of the system's, or of dateutil's; None: it has none."""
    resolved = os.path.realpath(path) if path.startswith(_LOCAL_FILE) else path
    name = _BEFORE_NAME.sub("", resolved)
    return name if name in available_timezones() else None


def _is_like(tz: tzinfo, other: tzinfo) -> bool:
    """Return True if two zones have the same offsets from UTC in each month of this year."""
    year = datetime.now(timezone.utc).year
    months = [datetime(year, month, 1, 12, tzinfo=timezone.utc) for month in range(1, 13)]
    return all(at.astimezone(tz).utcoffset() == at.astimezone(other).utcoffset() for at in months)


def name_for(tz: tzinfo) -> str | None:
    """Return the IANA name of ``tz``, or of one that always has its offset, whole hours; None: neither."""
    offset = datetime.now(tz).utcoffset()
    hours = 0 if offset is None else -offset // _HOUR
    name = zone_name(tz) or (f"Etc/GMT{hours:+}" if hours else "UTC")
    return name if name in available_timezones() and _is_like(tz, zone_called(name)) else None


#: return the time that is so many seconds in UNIX time, in UTC
moment_of: Callable[[float], datetime] = partial(datetime.fromtimestamp, tz=timezone.utc)


def nearest_moment_of(seconds: float) -> datetime:
    """Return the time that is ``seconds`` in UNIX time, in UTC; the nearest one where there is none."""
    return moment_of(min(max(seconds, FIRST_DAY.timestamp()), _LAST_DAY.timestamp()))


def in_utc(moment: datetime) -> datetime:
    """Return ``moment`` in UTC; a naive datetime is taken as UTC.

    A time outside the years 1 to 9999 in UTC, such as datetime.min east of it, becomes the nearest of
    FIRST_DAY and _LAST_DAY.
    """
    if moment.tzinfo is None:
        return moment.replace(tzinfo=timezone.utc)
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError:
        return FIRST_DAY if moment.year == 1 else _LAST_DAY


def in_calendar(moment: Any) -> Any:
    """Return ``moment``; a datetime that may be before year 1 in UTC as one that can be stored."""
    return in_utc(moment) if isinstance(moment, datetime) and moment.year == 1 else moment


def find_time_problem(moment: Any, first_year: int) -> str | None:
    """Return why a user may not give ``moment`` as a time, as the end of a sentence; None: it is valid.

    The last year is left out: runs after a time in it may lie outside the calendar.
    """
    if not isinstance(moment, datetime):
        return f"must be a datetime, not {quoted(moment)}."
    if not first_year <= moment.year < MAXYEAR:
        return f"must be in the years {first_year} to {MAXYEAR - 1}, not {moment}."
    return None


def wall_of(instant: datetime, tz: tzinfo) -> datetime:
    """Return the wall time in ``tz`` at ``instant``."""
    return instant.astimezone(tz).replace(tzinfo=None, fold=0)


def instant_of(wall: datetime, tz: tzinfo) -> datetime:
    """Return the instant at which a clock in ``tz`` first shows ``wall``, or jumps over it."""
    instant = wall.replace(tzinfo=tz, fold=0).astimezone(timezone.utc)
    if wall_of(instant, tz) == wall:
        return instant
    before = wall.replace(tzinfo=tz, fold=1).astimezone(timezone.utc)
    return find_change(tz, before, instant) or instant


def find_change(tz: tzinfo, after: datetime, until: datetime) -> datetime | None:
    """Return the instant in (after, until] at which the clocks in ``tz`` change; None: they don't.

    It is assumed that they change at most once in between.
    """
    offset = after.astimezone(tz).utcoffset()
    if until.astimezone(tz).utcoffset() == offset:
        return None
    early, late = after.replace(microsecond=0), until.replace(microsecond=0)
    while late - early > _SECOND:
        middle = early + (late - early) // 2
        middle = middle.replace(microsecond=0)
        if middle.astimezone(tz).utcoffset() == offset:
            early = middle
        else:
            late = middle
    return late


def _next_change(tz: tzinfo, after: datetime, offsets: set[timedelta]) -> datetime | None:
    """Return the first instant in the year after ``after`` at which the offset is none of ``offsets``."""
    for weeks in range(_WEEKS):
        begin = after + weeks * _WEEK
        if (begin + _WEEK).astimezone(tz).utcoffset() not in offsets:
            return find_change(tz, begin, begin + _WEEK)
    return None


def instants_after(
    walls_after: WallsAfter, step: Callable[[datetime], datetime | None], after: datetime, tz: tzinfo
) -> Iterator[datetime]:
    """Yield the instants later than ``after`` that ``step`` finds, each from the one before.

    While the clocks in ``tz`` don't change they are taken from ``walls_after``, at a tenth of the cost.
    """
    next_due: datetime | None = after
    while next_due is not None:
        after, offset = next_due, _offset_at(next_due, tz)
        steady_until = after
        if 1 < after.year < MAXYEAR and _is_steady(tz, after - _DAY, offset):
            for wall in walls_after(_wall_at(after, offset), offset):
                due = wall.replace(tzinfo=timezone.utc) - offset
                if due > steady_until:
                    steady_until = _steady_until(tz, offset, steady_until, due)
                    if due > steady_until:
                        break
                yield due
                after = due
        next_due = step(after)
        if next_due is not None:
            yield next_due


def _steady_until(tz: tzinfo, offset: timedelta, known: datetime, wanted: datetime) -> datetime:
    """Return until when the clocks surely have this ``offset``, at ``known`` and for a day longer than that.

    It is looked no further ahead than to ``wanted``, and for a number of days only.
    """
    for _ in range(_STEADY_DAYS):
        if known >= wanted or known.year >= MAXYEAR or not _is_steady(tz, known + 2 * _DAY, offset):
            break
        known += _DAY
    return known


def _is_steady(tz: tzinfo, instant: datetime, offset: timedelta) -> bool:
    return instant.astimezone(tz).utcoffset() == offset


def back_fixed(walls_back: WallsBack, until: datetime, tz: tzinfo, since: datetime) -> Iterator[datetime]:
    """Yield the instants from ``until`` back to ``since`` that :func:`next_fixed` finds, the last first."""
    oldest = _oldest_wall(since, -_DAY)
    # in the second pass of repeated times, later wall times of the first pass are over as well
    offset = max(_offset_at(until, tz), _offset_at(until - _DAY, tz))
    last: datetime | None = until.replace(tzinfo=None) + offset
    latest = None
    while last is not None:
        walls, last = walls_back(last, offset, oldest), None
        for wall in walls:
            instant = instant_of(wall, tz)
            if instant < since:
                return
            if instant > until or instant == latest:
                continue
            yield instant
            latest = instant
            if wall_of(instant, tz) != wall:  # all skipped times count as this one instant
                last = wall_of(instant - _SECOND, tz)
                break


def back_in_real_time(
    walls_back: WallsBack, until: datetime, tz: tzinfo, since: datetime
) -> Iterator[datetime]:
    """Yield the instants from ``until`` back to ``since`` that :func:`next_in_real_time` finds."""
    while until >= since:
        offset = _offset_at(until, tz)
        begin = _last_change(tz, until, since)
        for wall in walls_back(_wall_at(until, offset), offset, _oldest_wall(begin, offset)):
            instant = (wall - offset).replace(tzinfo=timezone.utc)
            if instant < begin:
                break
            yield instant
        until = begin - _INSTANT


def count_fixed(count_walls: CountWalls, after: datetime, until: datetime, tz: tzinfo) -> int:
    """Return how many of the instants that :func:`next_fixed` finds are in (after, until]."""
    count, wall = 0, _wall_at(after + _INSTANT, _offset_at(after, tz))
    for change in _changes(tz, after - _DAY, after):
        wall = max(wall, _end_before(change, tz))  # a second pass is over
    for change in _changes(tz, after, until):
        end, following = _end_before(change, tz), _wall_at(change, _offset_at(change, tz))
        if end > wall:
            count += count_walls(wall, end)
            wall = end
        if following > end:  # all skipped times, and the first one after them, are one run
            count += count_walls(wall, following + _INSTANT) > 0
            wall = following + _INSTANT
    end = _wall_at(until + _INSTANT, _offset_at(until, tz))
    return count + (count_walls(wall, end) if end > wall else 0)


def count_in_real_time(count_walls: CountWalls, after: datetime, until: datetime, tz: tzinfo) -> int:
    """Return how many of the instants that :func:`next_in_real_time` finds are in (after, until]."""
    count, begin = 0, after + _INSTANT
    for change in [*_changes(tz, after, until), until + _INSTANT]:
        offset = _offset_at(begin, tz)
        count += count_walls(_wall_at(begin, offset), _wall_at(change, offset))
        begin = change
    return count


def _changes(tz: tzinfo, after: datetime, until: datetime) -> Iterator[datetime]:
    """Yield the instants in (after, until] at which the clocks in ``tz`` change."""
    begin = after
    while begin < until and not isinstance(tz, timezone):
        end = min(begin + _WEEK, until)
        change = find_change(tz, begin, end)
        if change is not None:
            yield change
        begin = end


def _end_before(change: datetime, tz: tzinfo) -> datetime:
    """Return the wall time at ``change`` on a clock that doesn't change."""
    return _wall_at(change, _offset_at(change - _INSTANT, tz))


def _wall_at(instant: datetime, offset: timedelta) -> datetime:
    return instant.replace(tzinfo=None) + offset


def _oldest_wall(since: datetime, offset: timedelta) -> datetime:
    """Return the wall time at ``since``, or the first one of the calendar if it is close to that."""
    return _wall_at(since if since.year > 1 else FIRST_DAY, offset)


def _last_change(tz: tzinfo, until: datetime, since: datetime) -> datetime:
    """Return when the clocks changed last before ``until``; if they didn't: ``since``, or a year earlier."""
    if isinstance(tz, timezone):
        return since
    end = until
    for _ in range(_WEEKS):
        if end <= since:
            return since
        begin = max(end - _WEEK, since)
        change = find_change(tz, begin, end)
        if change is not None:
            return change
        end = begin
    return end


def _offset_at(instant: datetime, tz: tzinfo) -> timedelta:
    return instant.astimezone(tz).utcoffset() or timedelta(0)


def next_fixed(next_wall: NextWall, after: datetime, tz: tzinfo) -> datetime | None:
    """Return the first instant after ``after`` of the wall times in ``tz`` that ``next_wall`` gives.

    Each wall time counts once, also where the clocks skip or repeat it.
    """
    local = after.astimezone(tz)
    wall, offset = local.replace(tzinfo=None, fold=0), local.utcoffset() or timedelta(0)
    is_inclusive = False
    while (found := next_wall(wall, offset, is_inclusive)) is not None:
        due = instant_of(found, tz)
        if due > after:
            return due
        wall, is_inclusive = found, False
        change = find_change(tz, due, after)
        if change is not None:  # in the second pass, whose times are over
            unseen = wall_of(change - _SECOND, tz) + _SECOND
            wall, is_inclusive = (unseen, True) if unseen > found else (found, False)
    return None


def next_in_real_time(next_wall: NextWall, after: datetime, tz: tzinfo) -> datetime | None:
    """Return the first instant after ``after`` at which a clock in ``tz`` shows a time that ``next_wall``
    gives.

    A time that the clocks skip doesn't count; one that they repeat counts twice.
    """
    moment = after
    in_vain: set[timedelta] = set()  # offsets at which there is no further time
    while True:
        local = moment.astimezone(tz)
        offset = local.utcoffset() or timedelta(0)
        found = next_wall(local.replace(tzinfo=None, fold=0), offset, False)
        if found is None:
            in_vain.add(offset)
            change = _next_change(tz, moment, in_vain)
            if change is None:
                return None
            due = horizon = change
        else:
            due = found.replace(tzinfo=timezone.utc) - offset
            horizon = due if due - moment <= _DAY else moment + _DAY
            change = find_change(tz, moment, horizon)
        if change is not None:
            wall = wall_of(change, tz)
            if next_wall(wall, wall.replace(tzinfo=timezone.utc) - change, True) == wall:
                return change
            moment = change
        elif horizon == due:
            return due
        else:  # it is far away, and the clocks may change before
            moment = max(horizon, due - 2 * _DAY)


def shown(moment: datetime | None) -> str:
    """Return ``moment`` in UTC, as text for a sentence. The command line has a zone of its own."""
    if moment is None:
        return "an unknown time"
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S}{fraction_of(moment)} UTC"


def fraction_of(moment: datetime) -> str:
    """Return its milliseconds as '.250'; '': there are none."""
    millis = moment.microsecond // 1000
    return f".{millis:03d}" if millis else ""
