"""Entries whose messages RabbitMQ answers by ending the connection: they go last, and hold nobody up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from celery import Celery
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from tests.integration.conftest import ONE_SERVER, MakeScheduler
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, SELDOM, field, server_now, write_burst, write_raw
from tests.support.ticks import names_of, take_messages

pytestmark = ONE_SERVER

#: RabbitMQ knows no such messages, and closes the connection (540)
DISRUPTIVE: dict[str, Any] = {"options": {"immediate": True}}
BAD = [f"bad-{number}" for number in range(100)]


@pytest.fixture
def tried() -> Iterator[list[str]]:
    """The entries in the order in which they are published, or tried to be."""
    names: list[str] = []

    @before_task_publish.connect
    def note(headers: Any = None, **_: Any) -> None:
        names.append(headers["redbeat_entry"])

    yield names
    before_task_publish.disconnect(note)


def test_a_good_one_behind_a_hundred_that_end_the_connection_is_the_second_to_be_tried(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, tried: list[str]
) -> None:
    write_burst(client, BAD, **DISRUPTIVE)
    write_raw(client, "good", score=1000, schedule=SELDOM)
    scheduler.tick()
    assert list(dict.fromkeys(tried))[:2] == ["bad-0", "good"]
    assert names_of(take_messages(app)) == ["good"]


def test_those_that_did_it_go_last_at_each_later_try_and_each_has_its_turn(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, tried: list[str]
) -> None:
    write_burst(client, BAD, **DISRUPTIVE)

    def errors() -> list[Any]:
        return [field(client, name, "error") for name in BAD]

    def all_have_had_a_turn() -> bool:
        scheduler.tick()
        return all(errors())

    eventually(all_have_had_a_turn, 60)
    assert {error["attempts"] for error in errors()} <= {1, 2, 3, 4, 5}
    for _ in range(3):
        client.zadd(SCHEDULE, dict.fromkeys((f"redbeat:{name}" for name in BAD), 1))
        write_raw(client, "good", score=server_now(client), schedule=SELDOM)
        tried.clear()
        scheduler.tick()
        assert tried[0] == "good"
    assert names_of(take_messages(app)) == ["good"] * 3
    assert len([one for one in errors() if "540" in one["reason"]]) == len(BAD)


@pytest.mark.parametrize("lock", [{}, {"redbeat_lock_key": None}], ids=["lock", "no-lock"])
def test_another_beat_knows_from_the_entry_that_it_goes_last(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, lock: dict[str, Any]
) -> None:
    app.conf.update(lock)
    failure = {"reason": "it was refused", "since": "2026-01-01T00:00:00+00:00", "definition_sha1": "x"}
    failure.update({"attempts": 3, "due": "1", "retry_at": "1"})  # type: ignore[dict-item]
    write_raw(client, "failed", score=1, schedule=SELDOM)
    client.hset("redbeat:failed", "error", json.dumps(failure))
    write_burst(client, ["one", "two"])
    make_scheduler(app).tick()
    assert names_of(take_messages(app)) == ["one", "two", "failed"]
    assert not client.hexists("redbeat:failed", "error")


def test_with_at_most_once_the_second_batch_begins_with_the_good_ones(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, tried: list[str]
) -> None:
    app.conf.redbeat_delivery = "at_most_once"
    scheduler = make_scheduler(app)
    write_burst(client, BAD[:1], **DISRUPTIVE)
    scheduler.tick()
    tried.clear()
    write_burst(client, BAD[1:30], **DISRUPTIVE)
    write_raw(client, "good", score=1000, schedule=SELDOM)
    scheduler.tick()
    assert tried[0] == "good"
    assert names_of(take_messages(app)) == ["good"]
