"""An entry's attribute ``schedule``, which turns what people write into a schedule. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from celery.schedules import BaseSchedule, crontab, maybe_schedule, schedule, solar

from redbeat.entries.notation import SCHEDULE_FORMS, parse_schedule
from redbeat.errors import EntryError
from redbeat.schedules.codec import MAX_DAYS
from redbeat.schedules.times import is_span, read_seconds
from redbeat.schedules.timezones import zone_name

if TYPE_CHECKING:
    from redbeat.entries.entry import RedBeatSchedulerEntry


#: classes whose ``tz`` is that of their app; a subclass may have one of its own
_WITHOUT_ZONE = (crontab, schedule, solar)


class ScheduleField:
    """The attribute. Its value is in the entry's ``__dict__``, where Celery's own code puts it, too.

    There is no ``__get__``, so Python reads it from there.
    """

    if TYPE_CHECKING:

        def __get__(self, entry: RedBeatSchedulerEntry, owner: type) -> Any: ...

    def __set__(self, entry: RedBeatSchedulerEntry, value: Any) -> None:
        app = getattr(entry, "app", None)  # a subclass's constructor may set it afterwards
        entry.__dict__["schedule"] = as_schedule(value, entry.name, app, zone=entry.policy.timezone)


def as_schedule(
    value: Any, name: Any, app: Any, relative: bool = False, *, zone: Any = None
) -> BaseSchedule | None:
    """Return the schedule that ``value`` describes; None stays None.

    Arguments:
        value: a schedule, a timedelta, a number of seconds, a cron expression, a length of time ('1h30m'), or
            an object as in files, ``{"cron": "0 9 * * *"}``, or as in Redis.
        name: the entry's, for the error.
        relative: as in :class:`celery.schedules.schedule`, for a number or a timedelta.
        zone: the entry's time zone or its name, for a recurrence rule whose start has none.

    Raises:
        EntryError: it describes none.
    """
    if isinstance(value, BaseSchedule):  # nearly always, and this is called for every run
        is_kept = type(value) in _WITHOUT_ZONE and "tz" in value.__dict__ and value.app is not app
        if is_kept and value.tz == value.app.timezone:
            del value.tz  # Celery keeps the zone of the app that the schedule had before
        value.app = app
        return value
    is_usable = isinstance(value, (timedelta, int, float, str, dict, type(None)))
    if not is_usable or isinstance(value, bool):
        forms = ", ".join(f"{{{form}: ...}}" for form in SCHEDULE_FORMS)
        raise EntryError(
            f"{name}: schedule must be a schedule, a timedelta, a number of seconds, a cron expression, a "
            f"length of time, or one of {forms}, not {value!r}.",
            str(name),
        )
    if isinstance(value, str) and is_span(value):
        value = read_seconds(value)
    if isinstance(value, (str, dict)):
        try:
            value = parse_schedule(value, zone if isinstance(zone, str) else zone_name(zone))
        except ValueError as exc:
            raise EntryError(f"{name}: schedule: {exc}", str(name)) from exc
    try:
        made: BaseSchedule | None = maybe_schedule(value, relative, app=app)
    except (ValueError, OverflowError) as exc:  # a number that is too large for a timedelta
        raise EntryError(
            f"{name}: schedule: {value!r} seconds is no interval: {MAX_DAYS} at the most.", str(name)
        ) from exc
    return made
