"""The kinds of schedule RedBeat adds to Celery's, and when a schedule is due next.

Owns the arithmetic of time. Everything here is pure: values in, values out, no I/O and no clock. Instants
are aware datetimes in UTC; wall-clock rules are applied in the schedule's own time zone, once.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from celery.schedules import BaseSchedule, crontab, schedstate, schedule
from dateutil.rrule import DAILY, HOURLY, MINUTELY, MONTHLY, SECONDLY, WEEKLY, YEARLY
from dateutil.rrule import rrule as dateutil_rrule

__all__ = ["first_run", "is_past_deadline", "next_run", "rrule", "runs_from"]

FREQUENCIES = {
    "YEARLY": YEARLY,
    "MONTHLY": MONTHLY,
    "WEEKLY": WEEKLY,
    "DAILY": DAILY,
    "HOURLY": HOURLY,
    "MINUTELY": MINUTELY,
    "SECONDLY": SECONDLY,
}

#: the frequencies whose steps all have the same length, in seconds
_STEP_SECONDS = {WEEKLY: 604_800, DAILY: 86_400, HOURLY: 3_600, MINUTELY: 60, SECONDLY: 1}

#: an rrule saved this long after its dtstart still runs its first occurrence: making the rule takes
#: time, so a dtstart of "now" is always a little in the past
FIRST_OCCURRENCE_GRACE = timedelta(seconds=60)


#: a rule with a count and filters must be walked from its start; no further than this
MAX_COUNTED_STEPS = 1_000_000

CRONTAB_FIELDS = ("minute", "hour", "day_of_week", "day_of_month", "month_of_year")

MAX_REMEMBERED_RUNS = 4096
#: (a crontab's fields as they were given, its time zone, an instant) to its first run after that instant
_crontab_runs: dict[tuple[Any, ...], datetime] = {}

_NO_TIME = timedelta(0)
_CALENDAR_CYCLE = timedelta(days=146_097)  # 400 years, whole weeks


class rrule(BaseSchedule):  # noqa: N801 - the name is part of the 2.x interface
    """A recurrence rule of RFC 5545, as ``dateutil.rrule`` understands it.

    Arguments:
        freq: 'YEARLY' .. 'SECONDLY' (or dateutil's number for it).
        dtstart: the first candidate; default: now. A naive datetime is UTC. Whole seconds.
        until: no occurrence after it. A naive datetime is UTC.

    All other arguments are those of ``dateutil.rrule.rrule``, which documents them.

    Raises:
        ValueError: the rule makes no sense to dateutil.
    """

    FIELDS = (
        "freq",
        "dtstart",
        "interval",
        "wkst",
        "count",
        "until",
        "bysetpos",
        "bymonth",
        "bymonthday",
        "byyearday",
        "byeaster",
        "byweekno",
        "byweekday",
        "byhour",
        "byminute",
        "bysecond",
    )

    def __init__(
        self,
        freq: int | str,
        dtstart: datetime | None = None,
        interval: int = 1,
        wkst: Any = None,
        count: int | None = None,
        until: datetime | None = None,
        bysetpos: Any = None,
        bymonth: Any = None,
        bymonthday: Any = None,
        byyearday: Any = None,
        byeaster: Any = None,
        byweekno: Any = None,
        byweekday: Any = None,
        byhour: Any = None,
        byminute: Any = None,
        bysecond: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if isinstance(freq, str):
            if freq.upper() not in FREQUENCIES:
                raise ValueError(f"rrule: freq {freq!r} is none of {', '.join(FREQUENCIES)}.")
            freq = FREQUENCIES[freq.upper()]
        if freq not in FREQUENCIES.values():
            raise ValueError(f"rrule: freq {freq!r} is none of dateutil's numbers, 0 (yearly) to 6.")
        if not isinstance(interval, int) or interval < 1:
            raise ValueError(f"rrule: interval must be 1 or more, not {interval!r}.")
        if not isinstance(count, (int, type(None))):
            raise ValueError(f"rrule: count must be a whole number, not {count!r}.")
        self.freq = freq
        self.dtstart = _whole_seconds(dtstart or self.now())
        self.interval = interval
        self.wkst = wkst
        self.count = count
        self.until = until and _whole_seconds(until)
        self.bysetpos = _listed(bysetpos)
        self.bymonth = _listed(bymonth)
        self.bymonthday = _listed(bymonthday)
        self.byyearday = _listed(byyearday)
        self.byeaster = _listed(byeaster)
        self.byweekno = _listed(byweekno)
        self.byweekday = _listed(byweekday)
        self.byhour = _listed(byhour)
        self.byminute = _listed(byminute)
        self.bysecond = _listed(bysecond)
        self._check_positions()
        self.rrule = dateutil_rrule(**self._fields())

    def _check_positions(self) -> None:
        """Raise ValueError for a bysetpos that no hour, minute or second has: dateutil looks for ever."""
        size = {
            HOURLY: _size(self.byminute) * _size(self.bysecond),
            MINUTELY: _size(self.bysecond),
            SECONDLY: 1,
        }
        positions = self.bysetpos if isinstance(self.bysetpos, list) else [self.bysetpos or 0]
        if self.freq in size and any(abs(position) > size[self.freq] for position in positions):
            raise ValueError(
                f"rrule: bysetpos {self.bysetpos!r}: there are only {size[self.freq]} positions."
            )

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.FIELDS}

    def occurrence(self, after: datetime, inclusive: bool = False) -> datetime | None:
        """Return the first occurrence later than (with ``inclusive``: not before) ``after``, or None.

        Raises:
            ValueError: it would take too long to find, because of ``count``.
        """
        tz, zone_start = self.dtstart.tzinfo, self.dtstart.replace(tzinfo=None)
        wall = after.astimezone(tz).replace(tzinfo=None)  # dateutil walks on the wall clock, and so do we
        changes: dict[str, Any] = {"until": self.until and self.until.astimezone(tz).replace(tzinfo=None)}
        start, step_seconds = zone_start, _STEP_SECONDS.get(self.freq)
        if step_seconds and wall > zone_start:
            # dateutil walks every step from dtstart; a year of minutes is half a million of them
            step = timedelta(seconds=step_seconds * self.interval)
            skipped = max((wall - zone_start) // step - 1, 0)
            if self.count is None:
                start += skipped * step
            elif not any(getattr(self, name) for name in self.FIELDS if name.startswith("by")):
                skipped = min(skipped, self.count)
                start, changes["count"] = start + skipped * step, self.count - skipped
            elif skipped > MAX_COUNTED_STEPS:
                raise ValueError(f"count: after {skipped} steps it can't be counted any more; use until.")
        # dateutil gives up at the year 9999 only. The calendar repeats every 400 years (Easter doesn't), so
        # the walk is done in the last of them that has a whole one after it, and a rule that never comes true
        # soon ends.
        cycles = 0 if self.byeaster is not None else max((9999 - max(wall, start).year) // 400 - 1, 0)
        shift = cycles * _CALENDAR_CYCLE
        changes["until"] = changes["until"] and _shifted(changes["until"], shift)
        rule = self.rrule.replace(dtstart=start + shift, **changes)
        found: datetime | None = rule.after(wall + shift, inc=inclusive)
        return None if found is None else (found - shift).replace(tzinfo=tz).astimezone(timezone.utc)

    def remaining_estimate(self, last_run_at: datetime) -> timedelta | None:
        """Return how long from now to the first occurrence after ``last_run_at``; None: there is none."""
        due = self.occurrence(self.maybe_make_aware(last_run_at))
        return None if due is None else due - self.maybe_make_aware(self.now())

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Return (is it due, seconds to the next look), as Celery's schedules do."""
        remaining = self.remaining_estimate(last_run_at)
        if remaining is None:
            return schedstate(is_due=False, next=None)
        if remaining.total_seconds() > 0:
            return schedstate(is_due=False, next=remaining.total_seconds())
        now = self.maybe_make_aware(self.now())
        following = self.occurrence(now)
        return schedstate(is_due=True, next=following and (following - now).total_seconds())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, rrule):
            return self._fields() == other._fields()
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like Celery's schedules: equal by value, mutable

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_rrule, (self._fields(),)

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value}" for name, value in self._fields().items() if value is not None)
        return f"<rrule: {given}>"


def _size(value: Any) -> int:
    return len(value) if isinstance(value, list) else 1


def _listed(value: Any) -> Any:
    """Return a by* argument as JSON has it: saved and read again, the rule must be equal to itself."""
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)  # weekdays have no order of their own
    return list(value) if isinstance(value, (tuple, range)) else value


def _shifted(moment: datetime, shift: timedelta) -> datetime:
    return moment + shift if moment < datetime.max - shift else datetime.max  # noqa: DTZ901 - a wall clock


def _rebuild_rrule(fields: dict[str, Any]) -> rrule:
    return rrule(**fields)


def _whole_seconds(moment: datetime) -> datetime:
    moment = moment.replace(microsecond=0)
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def next_run(schedule_: Any, anchor: datetime, after: datetime) -> datetime | None:
    """Return the first run later than ``after``, in UTC, or None when there is none.

    Arguments:
        schedule_: a Celery schedule, or an :class:`rrule`.
        anchor: the run (in UTC) that an interval counts from; it keeps its phase.
        after: the instant in UTC; the result is later than it.

    Raises:
        ValueError: an interval that isn't longer than zero.
        OverflowError: the next run would be after the year 9999.
    """
    if isinstance(schedule_, rrule):
        return schedule_.occurrence(after)
    if isinstance(schedule_, schedule):
        every: timedelta = schedule_.run_every
        if every <= _NO_TIME:
            raise ValueError(f"an interval must be longer than 0 s, not {every.total_seconds():g} s.")
        if not schedule_.relative:
            passed = (after - anchor) // every if after > anchor else 0
            return anchor + (passed + 1) * every
    if type(schedule_) is crontab:
        return _next_of_crontab(schedule_, after)
    return _next_by_wall_clock(schedule_, after)


def _next_of_crontab(rule: crontab, after: datetime) -> datetime:
    """Return the first run later than ``after``; thousands of entries share a few rules and due times."""
    key = (*(getattr(rule, f"_orig_{name}") for name in CRONTAB_FIELDS), rule.tz, after)
    try:
        found = _crontab_runs.get(key)
    except TypeError:  # given as a list or set
        return _next_by_wall_clock(rule, after)
    if found is None:
        if len(_crontab_runs) >= MAX_REMEMBERED_RUNS:
            _crontab_runs.clear()
        found = _crontab_runs[key] = _next_by_wall_clock(rule, after)
    return found


def _next_by_wall_clock(schedule_: Any, after: datetime) -> datetime:
    local = after.astimezone(schedule_.tz)
    if isinstance(schedule_, crontab):
        start, delta, _ = _at(schedule_, local).remaining_delta(local)  # Celery 5.3 looks at its clock, too
        due = start + delta
    else:
        due = local + _at(schedule_, local).remaining_estimate(local)
    if due <= local and isinstance(schedule_, schedule):
        due = local + schedule_.run_every  # a relative interval below a second rounds down to nothing
    due_utc: datetime = due.astimezone(timezone.utc)
    if due_utc <= after:  # the second pass through an hour that the clocks repeat
        due_utc = due.replace(fold=1).astimezone(timezone.utc)
    return due_utc


def _at(schedule_: Any, moment: datetime) -> Any:
    """Return a view of ``schedule_`` whose clock stands at ``moment``; the schedule itself is untouched."""
    view = object.__new__(type(schedule_))
    view.__dict__.update(schedule_.__dict__, nowfun=lambda: moment)
    return view


def first_run(schedule_: Any, since: datetime) -> datetime | None:
    """Return the first run, in UTC, of an entry saved at ``since`` that has never run."""
    if isinstance(schedule_, rrule) and since - FIRST_OCCURRENCE_GRACE <= schedule_.dtstart <= since:
        return schedule_.occurrence(schedule_.dtstart, inclusive=True)
    return next_run(schedule_, since, since)


def is_past_deadline(
    schedule_: Any, nominal: datetime, now: datetime, deadline_seconds: float | None
) -> bool:
    """Tell whether a crontab's last missed run is too old for Celery's ``beat_cron_starting_deadline``."""
    if deadline_seconds is None or not isinstance(schedule_, crontab):
        return False
    earliest = now - timedelta(seconds=deadline_seconds, microseconds=1)
    if nominal > earliest:
        return False
    latest_missed = next_run(schedule_, nominal, earliest)
    return latest_missed is None or latest_missed > now


def runs_from(schedule_: Any, nominal: datetime, now: datetime) -> tuple[datetime, datetime | None]:
    """Return (last_run_at to record, next run) for a run due at ``nominal`` that is sent at ``now``.

    Missed runs are made up for by this one. An interval's last_run_at is its latest nominal time, so that
    whoever counts from it, this scheduler or celery-redbeat 2.x, keeps the phase.
    """
    upcoming = next_run(schedule_, nominal, now)
    if isinstance(schedule_, schedule) and not schedule_.relative and upcoming is not None:
        return upcoming - schedule_.run_every, upcoming
    return now, upcoming
