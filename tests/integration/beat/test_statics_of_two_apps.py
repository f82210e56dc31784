"""Several applications with a ``beat_schedule`` each, on one prefix: none removes what is another's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from redbeat import RedBeatScheduler
from redbeat.config import ensure_conf
from tests.conftest import MakeApp
from tests.support.schedule import SCHEDULE, STATICS, write_raw

HOURLY = {"task": "echo", "schedule": 3600}
OWNERS = "redbeat::static-owners"

Start = Callable[..., None]


@pytest.fixture
def start(make_app: MakeApp) -> Start:
    """Start a beat of the app called `main`, whose beat_schedule has these names, and end it."""

    def starting(main: str | None, *names: str, **settings: Any) -> None:
        app = make_app(beat_schedule=dict.fromkeys(names, HOURLY), redbeat_lock_key=None, **settings)
        app.main = main
        app.redbeat_conf = None
        ensure_conf(app)
        RedBeatScheduler(app).close()

    return starting


def names_in(client: redis.Redis) -> list[str]:
    return sorted(key.removeprefix("redbeat:") for key in client.zrange(SCHEDULE, 0, -1))


def test_two_apps_on_one_prefix_keep_each_others_statics(start: Start, client: redis.Redis) -> None:
    for _ in range(2):
        start("a", "a1", "a2")
        start("b", "b1", "b2")
        assert names_in(client) == ["a1", "a2", "b1", "b2"]
    start("a", "a2")
    assert names_in(client) == ["a2", "b1", "b2"]
    assert client.smembers(STATICS) == {"a2", "b1", "b2"}  # what celery-redbeat 2.x reads
    start("b")
    assert names_in(client) == ["a2"]
    assert client.smembers(OWNERS) == {"a\ta2"}


def test_what_two_apps_have_goes_with_the_last_of_them(start: Start, client: redis.Redis) -> None:
    start("a", "shared", "a1")
    start("b", "shared")
    start("a", "a1")
    assert names_in(client) == ["a1", "shared"]
    start("b")
    assert names_in(client) == ["a1"]
    assert client.smembers(STATICS) == {"a1"}


def test_what_nobody_owns_is_adopted_or_removed(start: Start, client: redis.Redis) -> None:
    for name in ("kept", "left"):
        write_raw(client, name, score=4e9)
    client.sadd(STATICS, "kept", "left")  # as celery-redbeat 2.x leaves it
    start("a", "kept")
    assert names_in(client) == ["kept"]
    assert client.smembers(OWNERS) == {"a\tkept"}


def test_an_app_takes_over_what_it_had_under_a_former_name(start: Start, client: redis.Redis) -> None:
    start("old", "stays", "leaves")
    start("new", "stays")
    assert names_in(client) == ["leaves", "stays"]  # it may be another app's
    start("new", "stays", redbeat_statics_owner=["new", "old"])
    assert names_in(client) == ["stays"]
    assert client.smembers(OWNERS) == {"new\tstays"}
    start("new")
    assert names_in(client) == []


def test_the_owner_is_the_one_that_is_set(start: Start, client: redis.Redis) -> None:
    start("a", "one", redbeat_statics_owner="team")
    start("b", "two", redbeat_statics_owner="team")
    assert names_in(client) == ["two"]


def test_apps_without_a_name_are_one(start: Start, client: redis.Redis) -> None:
    start(None, "one")
    start(None, "two")
    assert names_in(client) == ["two"]


def test_what_was_removed_and_made_anew_by_others_is_left_alone(start: Start, client: redis.Redis) -> None:
    start("a", "one", "two")
    client.srem(STATICS, "one")  # celery-redbeat 2.x has removed it; then somebody saved one of that name
    start("a", "two")
    assert names_in(client) == ["one", "two"]
    assert client.smembers(OWNERS) == {"a\ttwo"}


def test_a_static_that_somebody_has_taken_into_a_file_stays(start: Start, client: redis.Redis) -> None:
    start("a", "one", "two")
    client.hset("redbeat:one", "owner", "billing")
    start("a")
    assert names_in(client) == ["one"]
    assert not client.exists(STATICS, OWNERS)
