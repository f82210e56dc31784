"""Sentry's monitors of entries: how they look, or why an entry can't have one.

Sentry knows crons of five fields, and whole minutes, hours and days. Invariant: a monitor expects a run
exactly when its entry is due; where Sentry can't say that, there is none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import timezone
from typing import Any

from celery.schedules import crontab, schedule

from redbeat.entries.due import defaults_for
from redbeat.log.logger import logger
from redbeat.log.text import printable
from redbeat.policy.messages import CHECK_IN
from redbeat.policy.misfires import patience_of
from redbeat.policy.policy import Policy
from redbeat.process.signals import let_through
from redbeat.schedules.crontab import NO_DAYS
from redbeat.schedules.occurrences import is_crontab, is_interval, zone_of
from redbeat.schedules.timezones import zone_name

#: what is given to Sentry as ``monitor_config``
Monitor = dict[str, Any]

#: the fields of a cron in Sentry's order: attribute of Celery's, lowest and highest number
_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day_of_month", 1, 31),
    ("month_of_year", 1, 12),
    ("day_of_week", 0, 6),
)
_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60))

#: the most that Sentry allows of either, minutes: 28 days
MAX_MARGIN = MAX_RUNTIME = 40_320

#: what a run may be late without any allowance, minutes; it is Sentry's default
_USUAL_MARGIN = 1

#: the attribute of an app with the patterns of the names of entries that have no monitor; None: none has
EXCLUDED = "redbeat_unmonitored"


def find_monitor(app: Any, name: str, schedule_: Any, policy: Policy) -> Monitor | str:
    """Return the monitor of an entry; a str: why it has none, '' if the settings say so."""
    excluded = vars(app).get(EXCLUDED)
    # Sentry looks for one at the name's end
    if excluded is None or any(re.search(f"{pattern.removesuffix('$')}$", name) for pattern in excluded):
        return ""
    return monitor_of(schedule_, policy, defaults_for(app, schedule_))


def headers_of_check_in(app: Any, name: str, schedule_: Any, policy: Policy) -> dict[str, Any]:
    """Return the headers by which the worker of a run knows that Sentry waits for its end."""
    try:
        monitor = find_monitor(app, name, schedule_, policy)
    except BaseException as exc:  # noqa: BLE001 - the per-entry boundary: no run is lost for a monitor
        let_through(exc)
        logger.debug("beat: %s is sent without a check-in: %r", printable(name), exc)
        return {}
    return {CHECK_IN: monitor} if isinstance(monitor, dict) else {}


def monitor_of(schedule_: Any, policy: Policy, defaults: Policy) -> Monitor | str:
    """Return the monitor of an entry; a str: why it has none.

    Arguments:
        schedule_: the entry's.
        policy: the entry's.
        defaults: the app's settings for those fields that the policy leaves open.
    """
    if policy.exclude is not None:
        return "Sentry knows no calendars (exclude)"
    for field in ("one_off", "max_runs", "end_time"):
        if getattr(policy, field):
            return f"it ends, and Sentry would go on expecting runs ({field})"
    expected = _schedule_of(schedule_)
    if isinstance(expected, str):
        return expected
    zone = zone_of(schedule_, policy)
    name = "UTC" if zone is timezone.utc else zone_name(zone)
    if name is None:
        return f"its time zone has no name ({zone})"
    monitor: Monitor = {"schedule": expected, "timezone": name}
    late_seconds, _ = patience_of(policy, defaults, policy.misfire or defaults.misfire or "latest")
    if late_seconds is not None:
        monitor["checkin_margin"] = _minutes(late_seconds, MAX_MARGIN)
    elif policy.jitter:
        monitor["checkin_margin"] = min(_minutes(policy.jitter, MAX_MARGIN) + _USUAL_MARGIN, MAX_MARGIN)
    if policy.max_runtime is not None:
        monitor["max_runtime"] = _minutes(policy.max_runtime, MAX_RUNTIME)
    return monitor


def _schedule_of(schedule_: Any) -> Monitor | str:
    if is_crontab(schedule_):
        return _cron_of(schedule_)
    if is_interval(schedule_):
        return _interval_of(schedule_)
    return f"Sentry knows no schedules such as {type(schedule_).__name__}"


def _cron_of(rule: crontab) -> Monitor | str:
    if getattr(rule, "days", NO_DAYS) != NO_DAYS:
        return "Sentry knows no L, W and # in crons"
    fields = [_field(getattr(rule, name), low, high) for name, low, high in _FIELDS]
    if "*" not in (fields[2], fields[4]):
        return "it means days that match day of month and day of week, and in Sentry one of them is enough"
    if not all(fields):
        return "it is never due"
    return {"type": "crontab", "value": " ".join(fields)}


def _field(given: Iterable[int], low: int, high: int) -> str:
    """Return a field of a cron that names these numbers."""
    numbers = sorted(given)
    return "*" if numbers == [*range(low, high + 1)] else ",".join(map(str, numbers))


def _interval_of(interval: schedule) -> Monitor | str:
    seconds = interval.run_every.total_seconds()
    for unit, of_unit in _UNITS:
        count, rest = divmod(seconds, of_unit)
        if count and not rest:
            return {"type": "interval", "value": int(count), "unit": unit}
    return f"Sentry knows intervals of whole minutes only, and this one has {seconds:g} s"


def _minutes(seconds: float, most: int) -> int:
    return min(max(math.ceil(seconds / 60), 1), most)
