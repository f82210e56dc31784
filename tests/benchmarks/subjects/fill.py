"""Entries in the form in which both packages keep them, written straight into the server."""

from __future__ import annotations

from typing import Any

TASK = "bench.nothing"
#: how long an entry waits between two runs, seconds: what has run isn't due again in any benchmark
EVERY = 10**9
#: due since 2021, and last run (in 1990) just that long before
DUE_SCORE = 1_631_152_000
#: due in 2053, and last run in 2021
LATER_SCORE = DUE_SCORE + EVERY

_DEFINITION = (
    '{"name": "entry-%d", "task": "bench.nothing", "schedule": {"__type__": "interval", "every": 1000000000,'
    ' "relative": false}, "args": [], "kwargs": {}, "options": {}, "enabled": true}'
)
_META = (
    '{"last_run_at": {"__type__": "datetime", "year": %d, "month": %d, "day": %d, "hour": %d, "minute": %d,'
    ' "second": %d, "microsecond": 0, "timezone": "UTC"}, "total_run_count": 3}'
)
_META_DUE = _META % (1990, 1, 1, 0, 0, 0)
_META_LATER = _META % (2021, 9, 9, 1, 46, 40)

# Writing a million entries takes seconds this way, and minutes from Python.
_SCRIPT = """
for i = ARGV[1], ARGV[2] do
  local key = string.format('redbeat:entry-%d', i)
  redis.call('DEL', key)
  redis.call('HSET', key, 'definition', string.format(ARGV[3], i))
  if ARGV[4] ~= '' then redis.call('HSET', key, 'meta', ARGV[4]) end
  redis.call('ZADD', 'redbeat::schedule', ARGV[5], key)
end
"""
_CHUNK = 10_000


def fill(client: Any, count: int, is_due: bool = False, has_run: bool = True) -> None:
    """Write entry-0 .. entry-(count - 1), all due or none; what has these names is replaced.

    Those that never ran have no meta, and the score 0, which means now.
    """
    meta, score = (_META_DUE, DUE_SCORE) if is_due else (_META_LATER, LATER_SCORE)
    if not has_run:
        meta, score = "", 0
    for first in range(0, count, _CHUNK):
        last = min(first + _CHUNK, count) - 1
        client.eval(_SCRIPT, 0, first, last, _DEFINITION, meta, score)
