"""When an entry is due: crontabs, recurrence rules, solar events, fixed times, time zones, excluded days.

Never: I/O, or Celery's app.
"""

from redbeat.legacy import lookup_of
from redbeat.schedules.crontab import cron as cron
from redbeat.schedules.occurrences import clocked as clocked
from redbeat.schedules.occurrences import next_run as next_run
from redbeat.schedules.occurrences import register_schedule as register_schedule
from redbeat.schedules.recurrence import rrule as rrule

__getattr__, __dir__, __all__ = lookup_of(__name__, globals())
