"""When an entry runs, in English words. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery.schedules import crontab, schedule, solar
from dateutil.rrule import DAILY, MONTHLY, WEEKLY, YEARLY

from redbeat.entries.wording import label_of
from redbeat.policy.policy import LENGTHS, ROWS, given_of
from redbeat.schedules.crontab import CRON_FIELDS, has_special_days
from redbeat.schedules.durations import length_in_words
from redbeat.schedules.occurrences import clocked, cron, is_interval, rrule, zone_of
from redbeat.schedules.recurrence import FREQUENCIES

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry

_UNITS = (
    (timedelta(days=1), "day"),
    (timedelta(hours=1), "hour"),
    (timedelta(minutes=1), "minute"),
    (timedelta(seconds=1), "second"),
)

_PERIODS = {
    number: "day" if number == DAILY else name.removesuffix("LY").lower()
    for name, number in FREQUENCIES.items()
}
#: a rule with one of these isn't put into words, but shown as RFC 5545 writes it
_WORDLESS = {"bysetpos", "byyearday", "byeaster", "byweekno"}
_CLOCK = ("second", "minute", "hour")
_DAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")


def describe(entry: RedBeatSchedulerEntry, tz: tzinfo | None = None) -> str:
    """Return when ``entry`` runs, in English words; see :meth:`redbeat.RedBeatSchedulerEntry.describe`."""
    policy = entry.policy
    zone = zone_of(entry.schedule, policy)
    instants = tz or zone
    if isinstance(entry.schedule, clocked):
        words = [f"At {_shown(entry.schedule.instant_in(zone), instants, 'auto')}"]
    else:
        words = [_describe_schedule(entry.schedule, zone)]
    if not isinstance(entry.schedule, (clocked, solar)) and not is_interval(entry.schedule):
        words[0] += f" ({getattr(zone, 'key', zone)})"
    is_once = policy.one_off or policy.max_runs == 1
    policy = replace(policy, one_off=True, max_runs=None) if is_once else policy
    for name, value in given_of(policy).items():
        shown = _shown(value, instants) if isinstance(value, datetime) else str(value)
        words.append(ROWS[name].phrase_of(value, length_in_words(value) if name in LENGTHS else shown))
    return ", ".join(filter(None, words))


def description_of(entry: RedBeatSchedulerEntry, tz: tzinfo | None = None) -> str:
    """Return ``entry.describe()``; '' where its schedule can't be used."""
    if entry.schedule is None:
        return ""
    try:
        return str(entry.describe() if tz is None else entry.describe(tz))
    except (ValueError, ArithmeticError):  # a date at the limit of years, say; the list must go on
        return repr(entry.schedule)


def zones_in_words(entry: RedBeatSchedulerEntry, shown: tzinfo) -> str:
    """Return in which zone an entry's times are shown, and by which its schedule goes, if that is another."""
    words = f"times in {label_of(shown)}"
    if entry.schedule is None or isinstance(entry.schedule, (clocked, solar)) or is_interval(entry.schedule):
        return words
    own = label_of(zone_of(entry.schedule, entry.policy))
    return words if own == label_of(shown) else f"{words}; its schedule goes by {own}"


def _describe_schedule(schedule_: Any, zone: tzinfo) -> str:
    if isinstance(schedule_, cron):
        return _describe_cron(" ".join(schedule_.fields))
    if isinstance(schedule_, crontab):
        given = [getattr(schedule_, f"_orig_{name}") for name in CRON_FIELDS]
        return _describe_cron(" ".join(_field(value) for value in given))
    if isinstance(schedule_, rrule):
        return _describe_rule(schedule_, zone)
    if isinstance(schedule_, schedule):
        return f"Every {_shown_interval(schedule_.run_every)}"
    if isinstance(schedule_, solar):
        return f"At {schedule_.event.replace('_', ' ')} at {schedule_.lat}, {schedule_.lon}"
    return repr(schedule_)


def _field(value: Any) -> str:
    return str(value) if isinstance(value, (str, int)) else ",".join(str(number) for number in sorted(value))


def _shown_interval(every: timedelta) -> str:
    for unit, name in _UNITS:
        count, rest = divmod(every, unit)
        if count and not rest:
            return name if count == 1 else f"{count} {name}s"
    return f"{every.total_seconds():f}".rstrip("0").rstrip(".") + " seconds"


@lru_cache(maxsize=1024)  # describing one takes longer than decoding its entry
def _describe_cron(expression: str) -> str:
    from cron_descriptor import Options, get_description  # imported here, as beat doesn't need it

    if any("," in field and has_special_days(field) for field in expression.split()[2::2]):
        return f"cron {expression}"  # cron_descriptor misreads such a list
    options = Options()
    options.use_24hour_time_format = True
    try:
        # it says "or", as for other crons either of the two days is enough
        words = str(get_description(expression.upper(), options)).replace(", or on ", ", and only on ")
        return re.sub(r"\b1 days\b", "1 day", words)
    except Exception:  # noqa: BLE001 - whatever it raises: it doesn't know all of RedBeat's expressions
        return f"cron {expression}"


def _shown(moment: datetime, zone: tzinfo, precision: str = "minutes") -> str:
    shown = moment.astimezone(zone)
    return shown.isoformat(" ", timespec="auto" if shown.second or shown.microsecond else precision)


def _describe_rule(rule: rrule, zone: tzinfo) -> str:
    """Return a rule in the words of the cron expression with its days and times; else as RFC 5545 has it."""
    start, is_by_days = rule.dtstart.astimezone(zone), rule.freq <= DAILY
    parts = {name for name in rrule.FIELDS if name.startswith("by") and getattr(rule, name) is not None}
    expression = _cron_of(rule, start) if is_by_days and not parts & _WORDLESS else ""
    cron_words = _describe_cron(expression) if expression else ""
    if cron_words.startswith("cron ") or (parts and not expression):
        return _as_rfc5545(rule, zone)
    period = _PERIODS[rule.freq]
    every = f"every {period}" if rule.interval == 1 else f"every {rule.interval} {period}s"
    words = [cron_words] if is_by_days else [every.capitalize()]
    if is_by_days and rule.interval > 1:
        words.append(every)
    if rule.interval > 1 or rule.count is not None:
        words.append(f"from {start:%Y-%m-%d}" if is_by_days else f"from {_shown(start, zone)}")
    if rule.until is not None:
        words.append(f"until {_shown(rule.until, zone)}")
    if rule.count is not None:
        words.append("once" if rule.count == 1 else f"{rule.count} times")
    return ", ".join(words)


def _cron_of(rule: rrule, start: datetime) -> str:
    """Return the cron expression with the days and times of a rule, by default its start's; '' if
    no expression has them.
    """
    months, days, weekdays = _many(rule.bymonth), _many(rule.bymonthday), _many(rule.byweekday)
    if not (days or weekdays):
        if rule.freq == WEEKLY:
            weekdays = (start.weekday(),)
        elif rule.freq < WEEKLY:
            days = (start.day,)
            months = months or ((start.month,) if rule.freq == YEARLY else ())
    nths = {nth for day in weekdays if (nth := getattr(day, "n", None))}
    if min(days, default=0) < -1 or not nths <= {-1, 1, 2, 3, 4, 5} or (nths and not _is_monthly(rule)):
        return ""
    clock = [_many(getattr(rule, f"by{unit}")) or (getattr(start, unit),) for unit in _CLOCK]
    fields = [*clock, ["L" if day == -1 else day for day in days], months, map(_cron_day, weekdays)]
    if clock[0] == (0,):  # no seconds
        del fields[0]
    return " ".join(",".join(map(str, field)) or "*" for field in fields)


def _is_monthly(rule: rrule) -> bool:
    """Return True if the n-th weekday of a rule is that of a month."""
    return bool(rule.freq == MONTHLY or (rule.freq == YEARLY and rule.bymonth))


def _cron_day(day: Any) -> str:
    name, nth = _DAYS[getattr(day, "weekday", day)], getattr(day, "n", None)
    return f"{name}L" if nth == -1 else f"{name}#{nth}" if nth else name


def _many(given: Any) -> Sequence[Any]:
    return () if given is None else tuple(given) if isinstance(given, (list, tuple)) else (given,)


def _as_rfc5545(rule: rrule, zone: tzinfo) -> str:
    try:
        until = rule.until and rule.until.astimezone(zone)
        return str(rule.rrule.replace(dtstart=rule.dtstart.astimezone(zone), until=until)).replace("\n", " ")
    except ValueError:  # dateutil refuses a rule that never occurs
        return repr(rule)
