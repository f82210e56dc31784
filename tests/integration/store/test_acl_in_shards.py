"""The documented rules after the documented command for shards: what they allow, and no more."""

from __future__ import annotations

import pytest

from redbeat.schedulers import get_redis
from tests.integration.conftest import ONE_SERVER
from tests.support.rights import CLAIMS, Claim, Ground, in_shards, refused_to

#: who may read the layout and not write it, as Redis 6.2 can't say
READERS_OF_THE_LAYOUT = ("worker", "later", "viewer", "status", "dashboard_read_only", "dashboard")


@pytest.fixture
def ground(ground: Ground) -> Ground:
    """The documented users, with the rights for shards."""
    if ground.server.version.startswith("6."):
        pytest.skip("Redis 6.2 knows no selectors")
    for user in CLAIMS:
        ground.let(in_shards(user), user)
    return ground


@pytest.mark.few_cases(12)
@ONE_SERVER
@pytest.mark.parametrize(
    ("user", "claim"),
    [pytest.param(user, claim, id=f"{user}-{claim.__name__}") for user in CLAIMS for claim in CLAIMS[user]],
)
def test_an_undivided_schedule_needs_no_other_rule(ground: Ground, user: str, claim: Claim) -> None:
    claim(ground.of(user))
    assert ground.refusals() == []


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("beat", "SET {redbeat:0}::lock x"),
        ("beat", "SET {redbeat:4095}::generation x"),
        ("beat", "PUBLISH {redbeat:12}::wake x"),
        ("writer", "HSET {redbeat:12}:report definition x"),
        ("writer", "HSET {redbeat:0}:a{b}c definition x"),
        ("writer", "ZADD {redbeat:12}::schedule 0 {redbeat:12}:report"),
        ("writer", "PUBLISH {redbeat:12}::wake x"),
        ("writer", "HMGET redbeat::layout shards state former"),
        ("worker", "HSET {redbeat:3}::running:report id x"),
        ("worker", "HMGET redbeat::layout shards generation former state"),
        ("later", "ZADD {redbeat:3}::later 0 {redbeat:3}:later:id"),
        ("viewer", "HGETALL {redbeat:3}:report"),
        ("status", "ZCOUNT {redbeat:3}::schedule 0 1"),
        ("status", "ZRANGE redbeat::beats 0 -1 WITHSCORES"),
        ("dashboard", "HSET {redbeat:3}:report definition x"),
        ("dashboard_read_only", "HGETALL {redbeat:3}:report"),
    ],
)
def test_what_is_allowed_is_allowed_in_each_shard(ground: Ground, user: str, command: str) -> None:
    get_redis(ground.app(user)).execute_command(*command.split())
    assert ground.refusals() == []


@pytest.mark.few_cases(16)
@pytest.mark.parametrize(
    ("user", "command"),
    [
        *((user, "HSET redbeat::layout shards 5") for user in READERS_OF_THE_LAYOUT),
        *((user, "SET {redbeat:0}::generation x") for user in READERS_OF_THE_LAYOUT),
        *((user, "DEL redbeat::generation") for user in READERS_OF_THE_LAYOUT),
        ("writer", "SET {redbeat:0}::lock x"),
        ("writer", "SET {redbeat:0}::tick 1"),
        ("writer", "PUBLISH {redbeat:0}::lock x"),
        ("writer", "SET {redbeat:0}::later:one x"),
        ("worker", "HSET {redbeat:0}:report definition x"),
        ("worker", "ZREM {redbeat:0}::schedule {redbeat:0}:report"),
        ("later", "HGET {redbeat:0}:report definition"),
        ("viewer", "ZREM {redbeat:0}::schedule {redbeat:0}:report"),
        ("status", "HGET {redbeat:0}:report definition"),
        ("dashboard", "SET {redbeat:0}::lock x"),
        ("dashboard_read_only", "HSET {redbeat:0}:report definition x"),
    ],
)
def test_what_is_refused_is_refused_in_each_shard(ground: Ground, user: str, command: str) -> None:
    refused_to(ground, user, command)


@pytest.mark.few_cases(6)
@pytest.mark.parametrize("user", ["beat", "writer", "viewer", "dashboard"])
@pytest.mark.parametrize(
    "key", ["{redbeat:sub:0}:report", "{redbeat}:report", "{redbeat2:0}:report", "{redbeat:0:"]
)
def test_the_shards_of_other_schedules_are_out_of_reach(ground: Ground, user: str, key: str) -> None:
    refused_to(ground, user, f"HGETALL {key}")
