"""The same entries due again and again: what is measured of one process needn't begin anew for each burst."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import Any

from celery.schedules import schedule as interval
from fill import TASK

from redbeat import RedBeatSchedulerEntry
from redbeat.store.records import mark_of

EVERY = timedelta(hours=1)
#: between the due times of two entries
APART_MICROS = 100

# Lets entries be due again as if they had run an hour before that.
_LET_BE_DUE = """
local second, every, name, meta = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[4], ARGV[5]
for i = 0, ARGV[3] - 1 do
  local key, micros = 'redbeat:' .. name .. '-' .. i, i * ARGV[6]
  local meta = string.format(meta, micros % 1000000)
  redis.call('HSET', key, 'meta', meta, 'meta_crc32', ARGV[i + 7])
  redis.call('ZADD', 'redbeat::schedule', string.format('%d.%06d', second, micros % 1000000), key)
end
"""
_META = (
    '{{"last_run_at": {{"__type__": "datetime", "year": {0.year}, "month": {0.month}, "day": {0.day}, "hour":'
    ' {0.hour}, "minute": {0.minute}, "second": {0.second}, "microsecond": %d, "timezone": "UTC"}},'
    ' "total_run_count": 3}}'
)


def save(app: Any, count: int) -> None:
    """Write entries that have run, and are due later."""
    now = datetime.now(timezone.utc)
    RedBeatSchedulerEntry.save_many(
        RedBeatSchedulerEntry(f"{TASK}-{number}", TASK, interval(EVERY), last_run_at=now, app=app)
        for number in range(count)
    )


def let_be_due(client: Any, count: int) -> None:
    """Let all of them be due now."""
    at = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(seconds=1)
    while datetime.now(timezone.utc) < at + timedelta(seconds=1):
        time.sleep(0.01)
    meta = _META.format(at - EVERY)
    marks = [mark_of(meta % (number * APART_MICROS % 1_000_000)) for number in range(count)]
    options = int(at.timestamp()), int(EVERY.total_seconds()), count, TASK, meta, APART_MICROS
    client.eval(_LET_BE_DUE, 0, *options, *marks)
