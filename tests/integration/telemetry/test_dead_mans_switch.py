"""The leader calls redbeat_ping_url while all is well, and nobody does when it isn't."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat.telemetry.pings.calls import CALL_SECONDS
from redbeat.telemetry.pings.pings import (
    LOOK_AGAIN_SECONDS,
    PERIOD_SECONDS,
    RETRY_SECONDS,
    STEP_SECONDS,
    Pings,
)
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.receivers import OK, Receiver
from tests.support.schedule import LOCK, SCHEDULE
from tests.support.servers import Server

OLD = "hidden-in-the-url"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


def pings_of(scheduler: RedBeatScheduler) -> Pings:
    return Pings(scheduler.app, scheduler._condition, scheduler._find_fence)  # noqa: SLF001


def events_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [record.__dict__.get("redbeat") for record in caplog.records]
    return [one["event"] for one in told if one is not None and one["event"].startswith("redbeat.ping.")]


def test_the_leader_calls_a_standby_does_not_and_after_a_kill_it_does(
    server: Server, tmp_path: Path, receiver: Receiver
) -> None:
    for name in ("first", "second"):
        url = receiver.url(f"{OLD}/{name}")
        write_app(tmp_path, name, server.url(), redbeat_ping_url=url, redbeat_takeover_after=5)
    with celery_beat(tmp_path, "first") as first:
        eventually(lambda: receiver.paths)
        with celery_beat(tmp_path, "second") as second:
            second.wait_for("beat: Standing by")
            first.kill()
            receiver.behave = lambda _path: receiver.hang
            second.wait_for("beat: Acquired lock")
            eventually(lambda: len(receiver.paths) > 1)
            seconds = second.seconds_to_end()
    assert receiver.paths == [f"/{OLD}/first", f"/{OLD}/second"]
    assert seconds < CALL_SECONDS, "nobody waits for a call that hangs"
    assert OLD not in first.output() + second.output()


def test_it_calls_once_a_minute_while_all_is_well(
    make_scheduler: MakeScheduler, receiver: Receiver, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make_scheduler(redbeat_ping_url=receiver.url("x"))
    pings = pings_of(scheduler)
    assert pings.step() == PERIOD_SECONDS
    assert receiver.paths == ["/x"]
    # an entry that was due long ago
    now = int(client.time()[0])  # type: ignore[index]
    client.zadd(SCHEDULE, {"redbeat:late": now - 50})
    assert pings.step() == PERIOD_SECONDS
    client.zadd(SCHEDULE, {"redbeat:late": now - 120})
    for _ in range(3):
        assert pings.step() == LOOK_AGAIN_SECONDS
    client.zrem(SCHEDULE, "redbeat:late")
    assert pings.step() == PERIOD_SECONDS
    assert len(receiver.paths) == 3
    # the broker
    scheduler._broker.is_away = True  # noqa: SLF001
    assert pings.step() == LOOK_AGAIN_SECONDS
    scheduler._broker.is_away = False  # noqa: SLF001
    # another beat
    token = client.get(LOCK)
    client.set(LOCK, "another beat", px=60_000)
    assert pings.step() == LOOK_AGAIN_SECONDS
    client.delete(LOCK)
    assert pings.step() == LOOK_AGAIN_SECONDS
    client.set(LOCK, token, px=60_000)  # type: ignore[arg-type]
    # Redis
    config = scheduler.config
    config.redis_url, url = "redis://127.0.0.1:1/0", config.redis_url
    assert pings.step() == LOOK_AGAIN_SECONDS
    config.redis_url = url
    assert len(receiver.paths) == 3
    assert pings.step() == PERIOD_SECONDS
    assert len(receiver.paths) == 4
    outages = [["redbeat.ping.withheld", "redbeat.ping.resumed"], ["redbeat.ping.withheld"] * 4]
    assert events_in(caplog) == [*outages[0], *outages[1], "redbeat.ping.resumed"]
    # it leads no more
    scheduler.close()
    assert pings.step() == STEP_SECONDS
    assert len(receiver.paths) == 4


def test_a_service_that_is_away_is_tried_again_and_told_of_once(
    make_scheduler: MakeScheduler, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pings = pings_of(make_scheduler(redbeat_ping_url=receiver.url(OLD)))
    receiver.behave = lambda _path: b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"
    assert [pings.step() for _ in range(3)] == [RETRY_SECONDS] * 3
    receiver.behave = lambda _path: OK
    assert [pings.step() for _ in range(2)] == [PERIOD_SECONDS] * 2
    assert events_in(caplog) == ["redbeat.ping.failed", "redbeat.ping.back"]
    assert OLD not in caplog.text


def test_of_beats_without_a_lock_one_calls(
    make_app: MakeApp, receiver: Receiver, client: redis.Redis
) -> None:
    settings = {"redbeat_ping_url": receiver.url("x"), "redbeat_lock_key": None}
    beats = [RedBeatScheduler(app) for app in (make_app(**settings), make_app(**settings))]
    try:
        for beat in beats:
            beat.tick()
        first, second = map(pings_of, beats)
        assert (first.step(), second.step()) == (PERIOD_SECONDS, LOOK_AGAIN_SECONDS)
        assert 0 < client.pttl("redbeat::pinged") <= 55_000  # type: ignore[operator]
        assert len(receiver.paths) == 1
        client.delete("redbeat::pinged")
        receiver.behave = lambda _path: b"HTTP/1.1 500 Oh\r\n\r\n"
        assert first.step() == RETRY_SECONDS
        receiver.behave = lambda _path: OK
        assert second.step() == PERIOD_SECONDS, "who couldn't call gives the turn back"
    finally:
        for beat in beats:
            beat.close()


def test_its_thread_calls_at_once_and_nobody_waits_for_it(
    make_scheduler: MakeScheduler, receiver: Receiver, app: Celery
) -> None:
    receiver.behave = lambda _path: receiver.hang
    pings = pings_of(make_scheduler(redbeat_ping_url=receiver.url("x")))
    pings.look()
    pings.look()
    eventually(lambda: receiver.paths)
    began = time.monotonic()
    pings.stop()
    assert time.monotonic() - began < CALL_SECONDS / 2
    assert receiver.paths == ["/x"]
