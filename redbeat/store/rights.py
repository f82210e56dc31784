"""The rights that a beat needs, which are in the documented rule, ``docs/recipes/beat.acl``.

Invariant: nothing is written; the server only says whether its user may.
"""

from __future__ import annotations

from contextlib import suppress

from redbeat.connection.retry import is_no_permission
from redbeat.errors import StoreRefused
from redbeat.keys import glob_of
from redbeat.store.nodes import Command
from redbeat.store.scripts.script import Script
from redbeat.store.store import Store

_CHECK_RIGHTS = Script("check_rights")

#: the commands on keys: the name of each, and what follows the key
_COMMANDS = (
    *("TYPE", "EXISTS", "GET", "SET x", "DEL", "PTTL", "PEXPIRE 1", "INCR"),
    *("SMEMBERS", "SADD x", "SREM x"),
    *("HGET x", "HMGET x", "HSTRLEN x", "HGETALL", "HSET x x", "HSETNX x x", "HDEL x", "HINCRBY x 1"),
    *("ZADD 1 x", "ZREM x", "ZSCORE x", "ZMSCORE x", "ZCOUNT 0 1", "ZSCAN 0"),
    *("ZRANGE 0 0", "ZREVRANGE 0 0", "ZRANGEBYSCORE 0 1"),
    *("LPUSH x", "LTRIM 0 0", "LRANGE 0 0", "LSET 0 x"),
    *("XADD * x x", "XREVRANGE + -"),
)


def find_missing_rights(store: Store) -> list[str] | None:
    """Return the rights that a beat needs and the schedule's user lacks, as an ACL rule has them.

    None: the server doesn't tell (Redis before 7.0). It takes one round trip.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    keys, parts = store.config.base_keys, store.config.layout.parts
    calls = {f"+{name.lower()}": [name, keys.schedule, *rest] for name, *rest in map(str.split, _COMMANDS)}
    calls |= {"+time": ["TIME"], "+eval": ["EVAL", "", "0"], "+evalsha": ["EVALSHA", "", "0"]}
    calls["+xread"] = ["XREAD", "STREAMS", keys.events, "0"]
    calls[f"+publish &{keys.wake}"] = ["PUBLISH", keys.wake, ""]
    patterns = {f"~{glob_of(one.prefix)}*": one.schedule for one in (keys, *parts)}
    calls |= {pattern: ["EVALSHA", "", "1", key] for pattern, key in patterns.items()}
    call = _CHECK_RIGHTS.call(calls=[*calls.values()])
    try:
        denied = store.ask(call)
    except StoreRefused as exc:
        if not is_no_permission(exc.__cause__):
            raise
        with suppress(StoreRefused):  # celery-redbeat 2.x needs SCRIPT LOAD and no EVAL
            store.ask(Command("script_load", call.script.source))
        denied = store.ask(call)
    if denied is None:
        return None
    missing = [right for place, right in enumerate(calls, 1) if place in denied]
    # where a key is out of reach, so is each command on it
    return [right for right in missing if right in patterns] or missing
