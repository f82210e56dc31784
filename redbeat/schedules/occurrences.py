"""When a schedule runs next, and when it has run: ``next_run`` and ``last_runs``, for all types of schedule.
Pure.

Values in, values out, no I/O and no clock. Instants are aware datetimes in UTC; wall-clock rules are applied
in a time zone only here and in :mod:`redbeat.schedules.timezones`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from itertools import islice, takewhile
from operator import attrgetter
from typing import Any, Protocol

from celery.schedules import BaseSchedule, crontab, schedstate, schedule, solar
from celery.utils.time import delta_resolution

from redbeat.errors import ConfigurationError
from redbeat.process.memory import Memory
from redbeat.schedules.crontab import CRON_FIELDS as CRON_FIELDS
from redbeat.schedules.crontab import cron as cron
from redbeat.schedules.crontab import next_of_crontab, runs_back_of_crontab, runs_of_crontab
from redbeat.schedules.exclusions import NEVER_FREE
from redbeat.schedules.recurrence import rrule as rrule
from redbeat.schedules.timezones import instant_of, wall_of

#: an entry that is saved this long after its first time still runs at that time: a time of "now" is always a
#: little in the past when the entry is saved
FIRST_OCCURRENCE_GRACE = timedelta(seconds=60)

#: (a crontab's fields as they were given, a time zone, an instant) to its first run after that instant
_crontab_runs = Memory[tuple[Any, ...], datetime | None](limit=4096)

_fields_of = attrgetter(*[f"_orig_{name}" for name in CRON_FIELDS])

#: a solar event that doesn't occur for this many days, such as a sunrise at a pole, never does
_SOLAR_DAYS = 400

#: how many exclusions of a calendar one search skips at most
_MAX_EXCLUSIONS = 400

#: how many excluded runs in a row are looked at one by one; then the whole exclusion is skipped
_MANY_EXCLUDED = 20

_NO_TIME, _INSTANT, _DAY = timedelta(0), timedelta(microseconds=1), timedelta(days=1)

#: those to which a relative interval is rounded; one of less than a minute isn't
_UNITS = (_DAY, timedelta(hours=1), timedelta(minutes=1))


class Excluded(Protocol):
    """Times at which nothing runs: a calendar."""

    def end_of_exclusion(self, instant: datetime, tz: tzinfo) -> datetime | None:
        """Return the first instant after an excluded ``instant`` that isn't excluded; None: ``instant``
        isn't.

        ``NEVER_FREE``: everything later is excluded.
        """


class Bounds(Protocol):
    """What an entry's policy says about when it may run. Times are in UTC; None: no bound."""

    @property
    def zone(self) -> tzinfo | None:
        """The time zone of the schedule's times."""

    @property
    def start_time(self) -> datetime | None:
        """Nothing runs before it."""

    @property
    def end_time(self) -> datetime | None:
        """Nothing runs after it."""

    @property
    def calendar(self) -> Excluded | None:
        """Nothing runs on its days."""


class clocked(BaseSchedule):  # noqa: N801 - schedules are called so in Celery
    """One instant.

    Arguments:
        clocked_time: when; a naive datetime is in the time zone of the entry, else of the app.
    """

    def __init__(self, clocked_time: datetime, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(clocked_time, datetime):
            raise ValueError(f"clocked: clocked_time must be a datetime, not {clocked_time!r}.")
        self.clocked_time = clocked_time

    def instant_in(self, zone: tzinfo) -> datetime:
        """Return when that is, in UTC; ``zone`` is that of a naive datetime."""
        if self.clocked_time.tzinfo is None:
            return instant_of(self.clocked_time, zone)
        return self.clocked_time.astimezone(timezone.utc)

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:  # noqa: ARG002 - Celery's signature
        """Return the time from now until ``clocked_time``."""
        now: datetime = self.maybe_make_aware(self.now())
        return self.instant_in(self.tz) - now

    def is_due(self, last_run_at: datetime) -> schedstate:
        """Return (is it due, seconds to the next look), as Celery's schedules do."""
        seconds = self.remaining_estimate(last_run_at).total_seconds()
        is_over = self.maybe_make_aware(last_run_at) >= self.instant_in(self.tz)
        return schedstate(is_due=seconds <= 0 and not is_over, next=seconds if seconds > 0 else None)

    def __eq__(self, other: object) -> bool:
        return self.clocked_time == other.clocked_time if isinstance(other, clocked) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # like Celery's schedules: equal by value, mutable

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.clocked_time,)

    def __repr__(self) -> str:
        return f"<clocked: {self.clocked_time.isoformat()}>"


@dataclass(frozen=True)
class Kind:
    """A registered type of schedule: its class, and its conversion to and from an object of plain JSON."""

    cls: type[BaseSchedule]
    encode: Callable[[Any], dict[str, Any]]
    decode: Callable[[dict[str, Any]], BaseSchedule]


#: the registered types of schedule, by the ``__type__`` in their JSON
KINDS: dict[str, Kind] = {}


def register_schedule(
    type_name: str,
    cls: type[BaseSchedule],
    encode: Callable[[Any], dict[str, Any]],
    decode: Callable[[dict[str, Any]], BaseSchedule],
) -> None:
    """Let entries have schedules of class ``cls``; call it in every program that saves or runs them.

    The class is a subclass of Celery's schedules: ``remaining_estimate(last_run_at)`` returns the time from
    ``now()`` to the first run after ``last_run_at``, None if there is no further run. ``now()`` must call
    ``self.nowfun`` where that is set. ``is_due()`` is not asked: a class that overrides it gets a
    RuntimeWarning.

    Arguments:
        type_name: the ``__type__`` in its JSON.
        encode: returns a schedule's arguments as an object of JSON, which may have datetimes in it.
        decode: returns the schedule with such arguments; raises ValueError, TypeError or KeyError if they are
            wrong.

    Raises:
        ConfigurationError: ``cls`` is not a subclass of Celery's schedules.
    """
    if not (isinstance(cls, type) and issubclass(cls, BaseSchedule)):
        raise ConfigurationError(
            f"register_schedule: the class for {type_name!r} must be a subclass of "
            f"celery.schedules.BaseSchedule, got {cls!r}."
        )
    KINDS[type_name] = Kind(cls, encode, decode)
    if _has_own_is_due(cls) and _has_estimate(cls):
        # no log: schedules are registered on import, before Celery has set up any handler
        warnings.warn(
            f"{cls.__qualname__}.is_due is not asked: RedBeat finds the runs of the schedule {type_name!r} "
            "by remaining_estimate.",
            RuntimeWarning,
            stacklevel=2,
        )


def _has_estimate(cls: type[BaseSchedule]) -> bool:
    return cls.remaining_estimate is not BaseSchedule.remaining_estimate


def _has_own_is_due(cls: type[BaseSchedule]) -> bool:
    owner = next(one for one in cls.__mro__ if "is_due" in vars(one))
    return owner.__module__.partition(".")[0] not in ("celery", "redbeat")


def is_own_kind(schedule_: BaseSchedule, base: type[BaseSchedule]) -> bool:
    """Return True if the class of ``schedule_`` computes its runs differently from Celery's ``base``."""
    return type(schedule_) is not base and _differs(type(schedule_), base)  # type: ignore[arg-type]


def is_interval(schedule_: Any) -> bool:
    """Return True if the runs are a length of time apart, as in Celery's ``schedule``."""
    return isinstance(schedule_, schedule) and not is_own_kind(schedule_, schedule)


def is_crontab(schedule_: Any) -> bool:
    """Return True if the runs are at times of the clock on the wall, as in Celery's ``crontab``."""
    return isinstance(schedule_, cron) or (
        isinstance(schedule_, crontab) and not is_own_kind(schedule_, crontab)
    )


@lru_cache(maxsize=256)
def _differs(cls: Any, base: Any) -> bool:
    ways = ["remaining_delta", "remaining_estimate"]
    if base is not crontab:  # the is_due of a crontab isn't asked, and subclasses have one for their zone
        ways.append("is_due")
    return any(getattr(cls, way, None) is not getattr(base, way, None) for way in ways)


def counts_from_last_run(schedule_: BaseSchedule) -> bool:
    """Return True if the next run of ``schedule_`` depends on its last one, as that of an interval does."""
    return not is_crontab(schedule_) and not isinstance(schedule_, (rrule, clocked, solar))


def zone_of(schedule_: Any, policy: Bounds) -> tzinfo:
    """Return the time zone that ``schedule_`` goes by: the policy's, else its own, else the app's."""
    if policy.zone is not None:
        return policy.zone
    own = schedule_.dtstart.tzinfo if isinstance(schedule_, rrule) else schedule_.tz
    ask_now = getattr(schedule_, "nowfun", None)
    if ask_now is not None and own == schedule_.app.timezone:  # it has no ``tz`` of its own
        own = ask_now().tzinfo or own
    return own or timezone.utc


def next_run(
    schedule_: Any, policy: Bounds, after: datetime, anchor: datetime | None = None
) -> datetime | None:
    """Return the first run later than ``after``; None: there is none.

    Arguments:
        schedule_: a schedule of Celery's or of RedBeat's.
        after: an instant in UTC, as is the result.
        anchor: a run from which an interval counts, in UTC, so that it keeps its phase. Without one, or if it
            is before the policy's ``start_time``, that is the first run; without a ``start_time`` the
            interval counts from ``after``.

    Raises:
        ValueError: the interval isn't longer than zero, or the calendar can't be used.
        OverflowError: the next run would be after the year 9999.
    """
    start, calendar = policy.start_time, policy.calendar
    if start is not None and (anchor is None or anchor < start):
        anchor = start - getattr(schedule_, "run_every", _NO_TIME)
    if start is not None and after < start:
        after = start - _INSTANT
    anchor = anchor or after  # the phase is kept across excluded days
    for _ in range(_MAX_EXCLUSIONS):
        due = _occurrence(schedule_, policy, after, anchor)
        if due is None or (policy.end_time is not None and due > policy.end_time):
            return None
        if calendar is None:
            return due
        free_at = calendar.end_of_exclusion(due, zone_of(schedule_, policy))
        if free_at is None:
            return due
        if free_at >= NEVER_FREE:
            return None
        after = free_at - _INSTANT
    raise ValueError(f"the calendar excludes its next {_MAX_EXCLUSIONS} times.")


def step_of(schedule_: Any, policy: Bounds) -> timedelta | None:
    """Return the time from each run to the next one, if it is always the same; else None."""
    is_bounded = (policy.start_time, policy.end_time, policy.calendar) != (None, None, None)
    if is_bounded or type(schedule_) is not schedule or schedule_.relative or schedule_.run_every <= _NO_TIME:
        return None
    step: timedelta = schedule_.run_every
    return step


def _occurrence(schedule_: Any, policy: Bounds, after: datetime, anchor: datetime) -> datetime | None:
    if is_interval(schedule_):
        return _next_of_interval(schedule_, policy, after, anchor)
    zone = zone_of(schedule_, policy)
    if is_crontab(schedule_):
        return _next_of_crontab(schedule_, zone, after)
    if isinstance(schedule_, rrule):
        return schedule_.occurrence(after, tz=zone)
    if isinstance(schedule_, clocked):
        instant = schedule_.instant_in(zone)
        return instant if instant > after else None
    if isinstance(schedule_, solar):
        return _next_of_solar(schedule_, after)
    if not _has_estimate(type(schedule_)):
        raise ValueError(
            f"{type(schedule_).__qualname__} has no remaining_estimate, by which RedBeat finds its runs: add "
            "remaining_estimate(self, last_run_at), which returns the timedelta from self.now() to the first "
            "run after last_run_at, or None. Its is_due() is not asked."
        )
    local = after.astimezone(zone)
    remaining = _at(schedule_, local).remaining_estimate(local)
    if remaining is None:
        return None
    due: datetime = (local + remaining).astimezone(timezone.utc)
    return due if due > after else due.replace(fold=1)


def _next_of_interval(interval: schedule, policy: Bounds, after: datetime, anchor: datetime) -> datetime:
    every: timedelta = interval.run_every
    if every <= _NO_TIME:
        raise ValueError(f"an interval must be longer than 0 s, not {every.total_seconds():g} s.")
    if interval.relative:
        return _next_in_whole_units(every, zone_of(interval, policy), after, anchor)
    passed = (after - anchor) // every if after > anchor else 0
    return anchor + (passed + 1) * every


def _next_in_whole_units(every: timedelta, zone: tzinfo, after: datetime, anchor: datetime) -> datetime:
    """Return the first time later than ``after`` of a relative interval that counts from ``anchor``."""
    due = _one_later(every, zone, anchor)
    if due <= after:  # to two steps before ``after``, as the clocks may change in the last one
        due = _moved(due, max((after - due) // _whole_units(every) - 2, 0), every, zone)
    while due <= after:
        due = _one_later(every, zone, due)
    return due


def _one_later(every: timedelta, zone: tzinfo, run: datetime) -> datetime:
    """Return the time of a relative interval that follows ``run``, as Celery rounds it."""
    wall = wall_of(run, zone)
    rounded = delta_resolution(wall + every, every)
    # an interval of less than a day follows real time where the clocks change
    due = instant_of(rounded, zone) if every >= _DAY else run + (rounded - wall)
    return due if due > run else run + every


def _whole_units(every: timedelta) -> timedelta:
    """Return how far apart the times of a relative interval are: ``every`` without what is less than its
    unit.
    """
    return next((every // unit * unit for unit in _UNITS if every >= unit), every)


def _moved(run: datetime, steps: int, every: timedelta, zone: tzinfo) -> datetime:
    """Return the time of a relative interval that is ``steps`` after ``run``."""
    if every >= _DAY:
        return instant_of(wall_of(run, zone) + steps * _whole_units(every), zone)
    return run + steps * _whole_units(every)


def _next_of_crontab(rule: crontab, zone: tzinfo, after: datetime) -> datetime | None:
    """Return the first run later than ``after``, remembered: many entries share a crontab and a due time."""
    key = (getattr(rule, "expression", None), _fields_of(rule), zone, after)
    try:
        if key in _crontab_runs:
            return _crontab_runs[key]
    except TypeError:  # a field is a list or a set
        return next_of_crontab(rule, after, zone)
    found = _crontab_runs[key] = next_of_crontab(rule, after, zone)
    return found


def _next_of_solar(event: solar, after: datetime) -> datetime | None:
    ephem: Any = event.ephem
    options = {"use_center": True} if event.use_center else {}  # the method for noon has no such option
    start = after
    for _ in range(_SOLAR_DAYS):
        try:
            found = getattr(event.cal, event.method)(
                ephem.Sun(), start=ephem.Date(start.replace(tzinfo=None)), **options
            )
        except ephem.CircumpolarError:
            start += _DAY
            continue
        due: datetime = found.datetime().replace(tzinfo=timezone.utc)
        if due > after:
            return due
        start = max(start, due) + timedelta(minutes=1)  # ephem is exact to a second only
    return None


def _at(schedule_: Any, moment: datetime) -> Any:
    """Return a copy of ``schedule_`` whose clock stands at ``moment``."""
    view = object.__new__(type(schedule_))
    view.__dict__.update(schedule_.__dict__, nowfun=lambda: moment)
    return view


def first_run(schedule_: Any, policy: Bounds, since: datetime) -> datetime | None:
    """Return the first run of an entry saved at ``since`` that has never run."""
    firsts = [policy.start_time]
    if isinstance(schedule_, (rrule, clocked)):
        zone = zone_of(schedule_, policy)
        firsts.append(schedule_.dtstart if isinstance(schedule_, rrule) else schedule_.instant_in(zone))
    for first in firsts:
        if first is not None and since - FIRST_OCCURRENCE_GRACE <= first <= since:
            since = first.astimezone(timezone.utc) - _INSTANT
    return next_run(schedule_, policy, since)


def start_just_passed(schedule_: Any, policy: Bounds, moment: datetime) -> datetime | None:
    """Return the first run of a schedule that ends, if it was due in the minute before ``moment``; else None.

    A rule that goes on has its next run then, one that ends, such as a rule with ``count=1``, may have none.
    """
    if isinstance(schedule_, rrule):
        start = schedule_.dtstart.astimezone(timezone.utc)
    elif isinstance(schedule_, clocked):
        start = schedule_.instant_in(zone_of(schedule_, policy))
    else:
        return None
    if not _NO_TIME <= moment - start <= FIRST_OCCURRENCE_GRACE:
        return None
    is_counted = isinstance(schedule_, rrule) and schedule_.count is not None
    if not is_counted and next_run(schedule_, policy, moment) is not None:
        return None
    due = next_run(schedule_, policy, start - _INSTANT)
    return due if due is not None and due <= moment else None


def phase_before(schedule_: Any, policy: Bounds, anchor: datetime, until: datetime) -> datetime | None:
    """Return the last time, at ``until`` or earlier, of an interval that counts from ``anchor``; all in UTC.

    None: ``schedule_`` isn't such an interval, or the time can't be computed.
    """
    if not is_interval(schedule_):
        return None
    every: timedelta = schedule_.run_every
    try:
        if schedule_.relative:
            zone = zone_of(schedule_, policy)
            first, units = _one_later(every, zone, anchor), _whole_units(every)
            steps = (until - first) // units
            return next(
                due for back in range(3) if (due := _moved(first, steps - back, every, zone)) <= until
            )
        return anchor + (until - anchor) // every * every
    except (OverflowError, ZeroDivisionError):
        return None


def runs_after(
    schedule_: Any, policy: Bounds, after: datetime, anchor: datetime | None = None
) -> Iterator[datetime]:
    """Yield the runs later than ``after``, each of which :func:`next_run` finds from the one before."""
    way = _way_on(schedule_, zone_of(schedule_, policy))
    if way is not None:
        yield from _allowed_ones(way, schedule_, policy, after)
        return
    while (due := next_run(schedule_, policy, after, anchor)) is not None:
        yield due
        anchor = after = due


def _way_on(schedule_: Any, zone: tzinfo) -> Callable[[datetime], Iterator[datetime]] | None:
    """Return what yields the occurrences after an instant in less time than finding each anew; None: nothing
    does.
    """
    if is_crontab(schedule_):
        return lambda after: runs_of_crontab(schedule_, after, zone)
    if isinstance(schedule_, rrule):
        return lambda after: schedule_.occurrences_after(after, zone)
    return None


def _allowed_ones(
    way: Callable[[datetime], Iterator[datetime]], schedule_: Any, policy: Bounds, after: datetime
) -> Iterator[datetime]:
    """Yield the occurrences later than ``after`` that ``policy`` allows; an exclusion is skipped as a
    whole.
    """
    start, end, calendar = policy.start_time, policy.end_time, policy.calendar
    begin: datetime | None = after if start is None or after >= start else start - _INSTANT
    while begin is not None:
        runs, begin = way(begin), None
        for due in runs:
            if end is not None and due > end:
                return
            free_at = None if calendar is None else calendar.end_of_exclusion(due, zone_of(schedule_, policy))
            if free_at is None:
                yield due
            elif free_at < NEVER_FREE:
                begin = free_at - _INSTANT
                break
            else:
                return


def last_runs(
    schedule_: Any, policy: Bounds, nominal: datetime, now: datetime, limit: int
) -> tuple[list[datetime], datetime | None]:
    """Return the last runs until ``now``, at most ``limit``, and the first one after ``now``.

    ``nominal`` counts as a run, whether or not the schedule has it, and nothing before it does. An outage of
    a month takes no longer than one of an hour, as the search begins near ``now``.
    """
    following = next_run(schedule_, policy, nominal, nominal)
    if following is None or following > now or nominal > now:  # a class of others may go back in time
        return [nominal], following
    back = runs_back(schedule_, policy, nominal, now)
    if back is None:
        found = _search_last_runs(schedule_, policy, nominal, now, limit, following - nominal)
        return found, next_run(schedule_, policy, found[-1], found[-1])
    upcoming = next_run(schedule_, policy, now, nominal)
    found = list(islice(takewhile(lambda due: due > nominal, back), limit))
    if len(found) < limit:
        found.append(nominal)
    found.reverse()
    return found, upcoming


def runs_back(schedule_: Any, policy: Bounds, nominal: datetime, now: datetime) -> Iterator[datetime] | None:
    """Return the runs from ``now`` back to ``nominal``, the last first; None: the schedule has no way back.

    What it yields before ``nominal`` are no runs.
    """
    zone = zone_of(schedule_, policy)
    until = now if policy.end_time is None else min(now, policy.end_time)
    since = nominal if policy.start_time is None else max(nominal, policy.start_time)
    way = _way_back(schedule_, zone, since, nominal)
    if way is None or policy.calendar is None:
        return way and way(until)
    return _free_ones(way, policy.calendar, zone, since, until)


def _way_back(
    schedule_: Any, zone: tzinfo, since: datetime, nominal: datetime
) -> Callable[[datetime], Iterator[datetime]] | None:
    if is_interval(schedule_):
        every: timedelta = schedule_.run_every
        anchor = nominal if since == nominal else since - every
        if schedule_.relative and every >= _UNITS[-1]:
            return None
        return lambda until: (anchor + n * every for n in range((until - anchor) // every, 0, -1))
    if isinstance(schedule_, rrule):
        return lambda until: schedule_.occurrences_back(until, since, zone)
    if is_crontab(schedule_):
        return lambda until: runs_back_of_crontab(schedule_, until, zone, since)
    return None


def _free_ones(
    way: Callable[[datetime], Iterator[datetime]],
    calendar: Excluded,
    zone: tzinfo,
    since: datetime,
    until: datetime,
) -> Iterator[datetime]:
    """Yield the runs that ``calendar`` doesn't exclude; a long exclusion is skipped as a whole."""
    begin: datetime | None = until
    while begin is not None:
        runs, begin, in_vain = way(begin), None, 0
        for due in runs:
            free_at = calendar.end_of_exclusion(due, zone)
            if free_at is None:
                in_vain = 0
                yield due
            elif (in_vain := in_vain + 1) > _MANY_EXCLUDED:
                begin = _before_exclusion(calendar, zone, due, free_at, since)
                break


def _before_exclusion(
    calendar: Excluded, zone: tzinfo, excluded: datetime, free_at: datetime, since: datetime
) -> datetime | None:
    """Return the last instant before an exclusion that ends at ``free_at``; None: it is before ``since``."""

    def is_same(instant: datetime) -> bool:
        return calendar.end_of_exclusion(instant, zone) == free_at

    late, step = excluded, _DAY
    while is_same(early := max(late - step, since)):
        if early == since:
            return None
        late, step = early, 2 * step
    while late - early > _INSTANT:
        middle = early + (late - early) // 2
        if is_same(middle):
            late = middle
        else:
            early = middle
    return early


def _search_last_runs(
    schedule_: Any, policy: Bounds, nominal: datetime, now: datetime, limit: int, first_gap: timedelta
) -> list[datetime]:
    """Return the last runs of a schedule without a way back, by forward searches that begin near ``now``."""
    passed = now - nominal
    span = max(min(limit * min(first_gap, passed // limit), passed), _INSTANT)
    begin, late = now - span, now
    early: datetime | None = None
    # until ``begin`` is early enough for ``limit`` runs after it, and late enough for twice as many at most
    while True:
        runs = takewhile(lambda due: due <= now, runs_after(schedule_, policy, begin, nominal))
        found = [*([nominal] if begin == nominal else ()), *islice(runs, 2 * limit + 1)]
        if len(found) > 2 * limit:
            early = begin
        elif len(found) < limit and begin > nominal:
            late = begin
        else:
            return found[-limit:]
        begin = max(begin - 2 * (now - begin), nominal) if early is None else early + (late - early) // 2
