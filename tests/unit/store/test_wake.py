"""A wait on the wake-up channel ends by a message or by time, also when the channel breaks."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from redis import exceptions

from redbeat.store.notifier import MAX_MESSAGES, RECONNECT_SECONDS, WakeChannel


class World:
    """A clock and channels: what arrives at which time. Serves as the client and as its subscription."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.messages: list[float] = []
        self.error: Exception | None = None
        self.subscriptions: list[str] = []
        self.heard: set[str] = set()
        self.closed = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def pubsub(self, **options: Any) -> World:
        assert options == {"ignore_subscribe_messages": True}
        return self

    def subscribe(self, *channels: str) -> None:
        self._raise()
        self.subscriptions += channels
        self.heard.update(channels)

    def get_message(self, timeout: float) -> Any:
        self._raise()
        if self.messages and self.messages[0] <= self.now + timeout:
            self.now = max(self.now, self.messages.pop(0))
            return {"type": "message", "channel": b"redbeat::wake"}
        self.now += timeout
        return None

    def close(self) -> None:
        self.closed += 1
        self.heard.clear()
        self._raise()

    def _raise(self) -> None:
        if self.error:
            raise self.error


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def wake(world: World) -> WakeChannel:
    return WakeChannel(world, "redbeat::wake")


@pytest.mark.parametrize(
    ("messages", "is_woken", "ends_at", "left"),
    [([], False, 107, 0), ([103], True, 103, 0), ([100.0] * (MAX_MESSAGES + 5), True, 100, 5)],
    ids=["none", "one", "many"],
)
def test_wait_ends_at_the_first_message_and_drops_others_up_to_a_limit(
    world: World, wake: WakeChannel, messages: list[float], is_woken: bool, ends_at: float, left: int
) -> None:
    world.messages = messages
    assert wake.wait(7) is is_woken
    assert (world.now, len(world.messages)) == (pytest.approx(ends_at), left)


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError(),
        OSError("gone"),
        IndexError("string index out of range"),  # as redis-py reads another command's reply
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("has_worked", [True, False])
def test_wait_on_a_broken_channel_lasts_the_whole_time_and_recovers(
    world: World, wake: WakeChannel, error: Exception, has_worked: bool
) -> None:
    if has_worked:
        wake.wait(1)
    began = world.now
    world.error = error
    assert wake.wait(7) is False
    assert world.now == pytest.approx(began + 7)
    world.error = None
    wake.wait(RECONNECT_SECONDS)
    world.messages = [world.now + 1]
    assert wake.wait(7)


def test_channel_that_has_worked_is_reopened_at_once(
    world: World, wake: WakeChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    wake.wait(1)
    world.messages, world.error = [102.0], IndexError("once")

    def mended(seconds: float) -> None:
        world.sleep(seconds)
        world.error = None

    monkeypatch.setattr(time, "sleep", mended)
    assert wake.wait(7)
    assert (world.now, len(world.subscriptions)) == (102, 2)


def test_outage_is_logged_once_at_each_end(
    world: World, wake: WakeChannel, caplog: pytest.LogCaptureFixture
) -> None:
    def outage() -> list[str]:
        caplog.clear()
        for _ in range(5):
            wake.wait(RECONNECT_SECONDS)
        return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]

    world.error = exceptions.ConnectionError("away")
    warning = (
        "beat: The wake-up channel redbeat::wake can't be used (away); changes are noticed within a second."
    )
    assert outage() == [warning]
    world.error = None
    assert outage() == ["beat: The wake-up channel redbeat::wake works again."]
    assert outage() == []
    world.error = exceptions.ConnectionError("away")
    assert outage() == [warning]


def test_close_frees_the_connection_and_the_next_wait_subscribes(world: World, wake: WakeChannel) -> None:
    wake.close()
    assert world.closed == 0
    wake.wait(1)
    wake.close()
    wake.wait(1)
    assert (world.closed, len(world.subscriptions)) == (1, 2)


def test_other_channels_are_listened_to_on_a_new_connection(world: World) -> None:
    wake = WakeChannel(world, ["b", "a"])
    wake.wait(1)
    assert world.heard == {"a", "b"}
    wake.listen_to(["c", "b"])
    assert world.heard == {"a", "b"}, "until it waits"
    wake.wait(1)
    assert world.heard == {"b", "c"}
    wake.listen_to(["b", "c", "d"])
    wake.wait(1)
    assert world.subscriptions == ["a", "b", "b", "c", "b", "c", "d"]
    assert world.closed == 2


def test_channels_after_an_outage_are_all_subscribed_again(world: World) -> None:
    wake = WakeChannel(world, ["a", "b"])
    wake.wait(1)
    world.error = exceptions.ConnectionError("away")
    wake.wait(1)
    wake.listen_to(["b", "c"])
    world.error = None
    wake.wait(RECONNECT_SECONDS)
    wake.wait(1)
    assert world.heard == {"b", "c"}
