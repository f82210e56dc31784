"""An entry's attribute ``schedule``: whatever people write for one is made one. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from celery.schedules import BaseSchedule, maybe_schedule

from redbeat.errors import EntryError
from redbeat.kinds import read_cron

__all__ = ["ScheduleField", "as_schedule"]


class ScheduleField:
    """The attribute; it stands in the entry's ``__dict__``, where Celery's own code puts it, too.

    Python finds it there by itself, as there is no ``__get__``.
    """

    def __set__(self, entry: Any, value: Any) -> None:
        entry.__dict__["schedule"] = as_schedule(value, entry.name, entry.app)


def as_schedule(value: Any, name: Any, app: Any, relative: bool = False) -> BaseSchedule | None:
    """Return the schedule that ``value`` stands for; None stays None.

    Arguments:
        value: a schedule, a timedelta, a number of seconds, or a cron expression.
        name: of the entry, for the error.
        relative: as of :class:`celery.schedules.schedule`, for a number or a timedelta.

    Raises:
        EntryError: it stands for none.
    """
    if isinstance(value, BaseSchedule):  # nearly always, and this is done for every run
        value.app = app
        return value
    is_usable = isinstance(value, (timedelta, int, float, str, type(None)))
    if not is_usable or isinstance(value, bool):
        raise EntryError(
            f"{name}: schedule must be a schedule, a timedelta, a number of seconds, or a cron expression, "
            f"not {value!r}.",
            str(name),
        )
    if isinstance(value, str):
        try:
            value = read_cron(value)
        except ValueError as exc:
            raise EntryError(f"{name}: {exc}", str(name)) from exc
    try:
        made: BaseSchedule | None = maybe_schedule(value, relative, app=app)
    except (ValueError, OverflowError) as exc:  # of a number that no timedelta holds
        raise EntryError(f"{name}: schedule: {value!r} seconds is no interval: {exc}.", str(name)) from exc
    return made
