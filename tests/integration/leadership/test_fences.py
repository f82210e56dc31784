"""At most one beat can commit a run, whatever happens in which order: scripts explored on a real server.

Then each fence, and each other line that the scripts have for this, is taken away, which is noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from redis.exceptions import NoScriptError

from redbeat.keys import Keys
from redbeat.store.downgrades import bring_back_call
from redbeat.store.entries import write_call
from redbeat.store.records import (
    Change,
    Fence,
    LockStatus,
    Stored,
    TrackedRun,
    Write,
)
from redbeat.store.reservations import Reserving, reserve_call
from redbeat.store.runs import Settlement, settle_call
from tests.faults.rounds import IS_LONG
from tests.integration.leadership.leadership_model import RUNS, Scripts, explore
from tests.support.schedule import LOCK, SCHEDULE, STATICS
from tests.support.scripts import SCRIPTS

KEYS = Keys("redbeat:", SCHEDULE, STATICS)

#: steps in a row; 8 take some seconds, each one more doubles that
DEPTH = 9 if IS_LONG else 8

EVENTS = {
    "looks",
    "takes the lock",
    "takes over",
    "takes the lock, in vain",
    "takes over, in vain",
    "renews",
    "claims",
    "commits",
    "releases",
    "notices, and stands by",
    "crashes",
    "is started",
    "is paused",
    "goes on",
    "'s clock jumps",
    "the lock expires",
    "the lock is deleted by hand",
}
LATE = {"take", "renew", "claim", "commit", "release"}


def test_no_order_of_steps_sends_a_run_twice_or_from_two_leaders(client: redis.Redis) -> None:
    explored = explore(DEPTH, Scripts(client))

    print(f"{explored.states} states in {DEPTH} steps")
    assert explored.violation == "", explored.trace
    # it isn't good because nothing happens in it
    assert explored.steps >= EVENTS
    assert explored.steps >= {f"sends, unanswered: {script}" for script in LATE}
    assert explored.steps >= {f"a late command arrives: {script}" for script in LATE}
    assert explored.sent == RUNS


class Altered:
    """A client for which one script, or what is put in front of it, has another line."""

    def __init__(self, client: redis.Redis, name: str, old: str, new: str) -> None:
        self._client, self._name, self._old, self._new = client, name, old, new
        self.is_altered = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def evalsha(self, *_: Any) -> Any:
        raise NoScriptError

    def eval(self, source: str, *args: Any) -> Any:
        before, name, body = source.partition(f"-- {self._name}")
        self.is_altered |= bool(name) and self._old in body
        return self._client.eval(before + name + body.replace(self._old, self._new), *args)


FENCE = "if status == 'lost'"
NO_FENCE = f"{FENCE} and redis.call('EXISTS', lock) == 1 then status = 'ok' end {FENCE}"
TWO_HOLDERS = "another beat held the lock, and yet: "
AT_MOST = "math.min(tonumber(lock_ms), 10000)"
FOR_LONG = "not retaken for 10000 ms after: "
IS_RELEASED = "redis.pcall('GET', mark) == token"
TAKEN_BACK = "its beat has released the lock, and yet: "


#: what each line is for; the script, the line, what stands in its place, and what goes wrong then
ALTERED = {
    "a-claim-is-fenced": ("fetch_due:", FENCE, NO_FENCE, TWO_HOLDERS + "claim"),
    "a-commit-is-fenced": ("commit_runs:", FENCE, NO_FENCE, TWO_HOLDERS + "commit"),
    "a-renewal-is-fenced": ("renew_lock:", FENCE, NO_FENCE, TWO_HOLDERS + "renew"),
    "the-fence-compares": ("hold_lock:", "holder == token", "holder", TWO_HOLDERS + "renew"),
    "a-lock-is-taken-back-for-a-moment": ("hold_lock:", AT_MOST, "lock_ms", FOR_LONG + "renew"),
    "a-released-lock-is-not-taken-back": ("hold_lock:", IS_RELEASED, "false", TAKEN_BACK + "renew"),
    "a-released-lock-is-not-taken": ("take_lock:", IS_RELEASED, "false", TAKEN_BACK + "take"),
    "renewed-is-not-silent": ("take_lock:", "is_renewed then", "false then", TWO_HOLDERS + "take"),
    "a-held-lock-is-not-taken": ("take_lock:", "holder ~= token", "false", TWO_HOLDERS + "take"),
    "a-release-is-the-holders": ("release_lock:", "~= token", "== 0", TWO_HOLDERS + "release"),
    "a-commit-compares": ("commit_runs:", "has_meta and has_score and", "", "run 0 was sent twice"),
}


@pytest.mark.parametrize(("name", "old", "new", "violation"), ALTERED.values(), ids=ALTERED)
def test_script_without_this_line_breaks_a_promise(
    client: redis.Redis, name: str, old: str, new: str, violation: str
) -> None:
    altered = Altered(client, name, old, new)

    explored = explore(DEPTH, Scripts(altered))

    print(f"{explored.states} states, then: " + "; ".join(explored.trace))
    assert altered.is_altered, f"{name} has no line with {old!r} any more"
    assert explored.violation == violation


RUN = TrackedRun("1", "", 3600, "skip")
DEADLINE = f"id\0{KEYS.about('entry').running}"
ENTRY = Stored("redbeat:entry", "{}", score=1.0, type="hash")
#: the fenced scripts that no step of the model's is, each with something to write
OTHERS: dict[str, Callable[[Any, Fence], LockStatus]] = {
    "write_entries": lambda client, fence: write_call(
        KEYS, fence, [Change(ENTRY, Write('{"task": "other"}', score=2.0))]
    ).run(client)[0],
    "move_downgraded": lambda client, fence: bring_back_call(KEYS, fence, {ENTRY.key: "5 static"}).run(
        client
    )[0],
    "reserve_runs": lambda client, fence: reserve_call(KEYS, fence, [Reserving(ENTRY.key, "id", RUN)]).run(
        client
    )[0],
    "settle_run": lambda client, fence: settle_call(
        KEYS, fence, Settlement("forget", "entry", "id", DEADLINE, "1", "")
    ).run(client)[0],
}


def test_every_fenced_script_is_tried() -> None:
    fenced = {name for name, script in SCRIPTS.items() if script.is_fenced}
    assert fenced == {"fetch_due", "commit_runs", "renew_lock", *OTHERS}


@pytest.mark.parametrize("script", OTHERS)
def test_fenced_script_writes_for_the_holder_alone(client: redis.Redis, script: str) -> None:
    client.hset(ENTRY.key, "definition", "{}")
    client.zadd(SCHEDULE, {ENTRY.key: 1})
    client.zadd(KEYS.deadlines, {DEADLINE: 1})
    client.hset(KEYS.downgraded, ENTRY.key, "5 static")
    client.set(LOCK, "another", px=100_000)
    before = contents(client)
    assert OTHERS[script](client, Fence(LOCK, "mine", 500_000)) is LockStatus.LOST
    assert contents(client) == before
    assert client.pttl(LOCK) <= 100_000
    assert OTHERS[script](client, Fence(LOCK, "another", 500_000)) is LockStatus.HELD
    assert contents(client) != before
    assert client.pttl(LOCK) > 100_000


def contents(client: redis.Redis) -> dict[str, Any]:
    reads = {
        "string": client.get,
        "hash": client.hgetall,
        "set": client.smembers,
        "zset": lambda key: client.zrange(key, 0, -1, withscores=True),
    }
    return {key: reads[client.type(key)](key) for key in client.scan_iter()}
