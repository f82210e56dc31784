"""A wait on the wake-up channel ends by a message or by time, also when the channel breaks."""

from __future__ import annotations

import logging
import time
from typing import Any

import pytest
from redis import exceptions

from redbeat.store.notifier import MAX_MESSAGES, RECONNECT_SECONDS, WakeChannel


class World:
    """A clock and a channel: what arrives at which time. Serves as the client and as its subscription."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.messages: list[float] = []
        self.error: Exception | None = None
        self.subscriptions: list[str] = []
        self.closed = 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def pubsub(self, **options: Any) -> World:
        assert options == {"ignore_subscribe_messages": True}
        return self

    def subscribe(self, channel: str) -> None:
        if self.error:
            raise self.error
        self.subscriptions.append(channel)

    def get_message(self, timeout: float) -> Any:
        if self.error:
            raise self.error
        if self.messages and self.messages[0] <= self.now + timeout:
            self.now = max(self.now, self.messages.pop(0))
            return {"type": "message", "channel": b"redbeat::wake"}
        self.now += timeout
        return None

    def close(self) -> None:
        self.closed += 1
        if self.error:
            raise self.error


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.fixture
def wake(world: World) -> WakeChannel:
    return WakeChannel(world, "redbeat::wake")


def test_wait_without_a_message_lasts_the_whole_time(world: World, wake: WakeChannel) -> None:
    assert wake.wait(7) is False
    assert world.now == pytest.approx(107)


def test_wait_ends_at_the_first_message(world: World, wake: WakeChannel) -> None:
    world.messages = [103]
    assert wake.wait(7) is True
    assert world.now == 103


def test_wait_drops_further_messages_up_to_a_limit(world: World, wake: WakeChannel) -> None:
    world.messages = [100.0] * (MAX_MESSAGES + 5)
    assert wake.wait(7) is True
    assert len(world.messages) == 5
    assert world.now == 100


@pytest.mark.parametrize(
    "error",
    [
        exceptions.ConnectionError(),
        exceptions.NoPermissionError(),
        OSError("gone"),
        NotImplementedError(),
        IndexError("string index out of range"),  # as redis-py reads another command's reply
        ValueError(),
        AttributeError(),
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


class Channels(World):
    """A subscription to several channels, which may change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(monkeypatch)
        self.heard: set[str] = set()

    def subscribe(self, *channels: str) -> None:
        if self.error:
            raise self.error
        self.subscriptions += channels
        self.heard.update(channels)

    def unsubscribe(self, *channels: str) -> None:
        self.heard.difference_update(channels)

    def close(self) -> None:
        self.heard.clear()
        super().close()


def test_one_connection_follows_a_changed_list_of_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Channels(monkeypatch)
    wake = WakeChannel(world, ["b", "a"])
    wake.wait(1)
    assert world.heard == {"a", "b"}
    wake.listen_to(["c", "b"])
    assert world.heard == {"a", "b"}, "until it waits"
    wake.wait(1)
    assert world.heard == {"b", "c"}
    wake.listen_to(["b", "c"])
    wake.wait(1)
    assert world.subscriptions == ["a", "b", "c"]
    assert world.closed == 0


def test_channels_after_an_outage_are_all_subscribed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Channels(monkeypatch)
    wake = WakeChannel(world, ["a", "b"])
    wake.wait(1)
    world.error = exceptions.ConnectionError("away")
    wake.wait(1)
    wake.listen_to(["b", "c"])
    world.error = None
    wake.wait(RECONNECT_SECONDS)
    wake.wait(1)
    assert world.heard == {"b", "c"}


def test_channels_without_the_right_to_unsubscribe_use_a_new_connection(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    refused: list[str] = []

    class Refusing(Channels):
        def unsubscribe(self, *channels: str) -> None:
            refused.extend(channels)
            raise exceptions.NoPermissionError(
                "User beat has no permissions to run the 'unsubscribe' command"
            )

    world = Refusing(monkeypatch)
    wake = WakeChannel(world, ["a", "b"])
    wake.wait(1)
    for channels in ({"b", "c"}, {"c"}):
        wake.listen_to(channels)
        world.messages.append(world.now + 0.5)
        assert wake.wait(1)
        assert world.heard == channels
    assert (refused, world.closed) == (["a"], 2), "that was asked for once"
    assert caplog.text == ""
