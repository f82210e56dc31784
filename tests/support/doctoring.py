"""What the tests of `celery redbeat doctor` share besides their fixtures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import redis
from click.testing import Result

HISTORY, BACKFILLED = "redbeat::history:", "redbeat::backfilled:"
#: in the year 2255
LATER = 9e9
TOKEN_OF_2X = "0123456789abcdef0123456789abcdef"
#: what may be done to the schedule's keys by whoever only looks
READING = {
    *(
        "EVALSHA", "EVAL", "TIME", "TYPE", "EXISTS", "HMGET", "HSTRLEN", "HGETALL", "ZSCORE", "ZCOUNT",
        "ZCARD", "ZRANGE", "ZRANGEBYSCORE",
    ),
    *("GET", "PTTL", "SCAN", "SMEMBERS", "ACL", "LRANGE", "ZSCAN"),
}  # fmt: skip
Ask = Callable[..., Result]
Findings = dict[str, list[dict[str, Any]]]


def only(found: Findings, kind: str, severity: str) -> dict[str, Any]:
    """The one finding, when it is of that kind."""
    assert list(found) == [kind], found
    [finding] = found[kind]
    assert finding["severity"] == severity
    return finding


def everything(client: redis.Redis) -> dict[str, Any]:
    return {key: client.dump(key) for key in client.scan_iter()}
