"""What a channel says in any order, told to the publications that it is about; and the bytes of a message."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import amqp.basic_message
import amqp.method_framing
import pytest
from amqp.exceptions import MessageNacked
from amqp.serialization import dumps

from redbeat.broker import confirms
from redbeat.broker.confirms import Confirms, Publication
from redbeat.broker.frames import publish_frames


class FakeConnection:
    """Keeps what is written, and says at each look what it was given to say."""

    confirm_publish = True
    connected = True
    frame_max = 4096
    bytes_sent = 0

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.transport = SimpleNamespace(having_timeout=lambda _: nullcontext(), write=self._write)
        self.say: list[Any] = []

    def _write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def drain_events(self, timeout: float | None = None) -> None:
        if not self.say:
            raise TimeoutError
        self.say.pop(0)()


class FakeChannel:
    """As much of a channel of py-amqp as confirms need."""

    channel_id = 7

    def __init__(self) -> None:
        self.connection = FakeConnection()
        self.events: dict[str, set[Any]] = defaultdict(set)

    def confirm_select(self) -> None:
        pass

    def open(self) -> None:
        pass

    def tell(self, event: str, *args: Any) -> None:
        for callback in self.events[event]:
            callback(*args)


def message_of(number: int) -> Any:
    return amqp.basic_message.Message("x", application_headers={"redbeat_entry": f"entry-{number}"})


@pytest.mark.parametrize("again", range(20))
def test_each_answer_is_told_to_the_publication_that_it_is_about(
    chance: random.Random, monkeypatch: pytest.MonkeyPatch, again: int
) -> None:
    monkeypatch.setattr(confirms, "FIRST_ALONE", 0)
    forgotten: list[Any] = []
    channel = FakeChannel()
    inflight = Confirms(channel, forgotten.extend)
    count = chance.randint(1, 100)
    published: dict[int, Publication] = {}
    for number in range(1, count + 1):
        with inflight.deferring() as published[number]:
            inflight.declared = [number]
            inflight.publish(message_of(number), "", "queue", mandatory=True)
    fates = {number: chance.choice(["ack", "ack", "ack", "nack", "return"]) for number in published}
    returned = [number for number, fate in fates.items() if fate == "return"]
    chance.shuffle(returned)
    for number in returned:  # a message comes back before its confirm
        returns = ("basic_return", None, "", "queue", message_of(number))
        channel.connection.say.append(lambda returns=returns: channel.tell(*returns))
    channel.connection.say += answers(channel, fates, chance)
    inflight.settle(1)
    for number, publication in published.items():
        kind = {"ack": type(None), "nack": MessageNacked, "return": LookupError}[fates[number]]
        assert type(publication.failure) is kind, number
        assert publication.unconfirmed == 0
        assert publication.is_confirmed is (fates[number] == "ack")
    assert sorted(forgotten) == [number for number, fate in fates.items() if fate != "ack"]


def answers(channel: FakeChannel, fates: dict[int, str], chance: random.Random) -> Iterable[Any]:
    """Acks and nacks of all, in any order, and many at once where all before are of one kind."""
    said = []
    left = {number: "nack" if fate == "nack" else "ack" for number, fate in fates.items()}
    while left:
        kind = next(iter(left.values()))
        run = []
        for number, fate in left.items():
            if fate != kind:
                break
            run.append(number)
        if chance.random() < 0.3:
            last = chance.choice(run)
            told, is_multiple = [number for number in run if number <= last], True
        else:
            last = chance.choice(list(left))
            told, is_multiple = [last], False
        event = (f"basic_{left[last]}", last, is_multiple)
        said.append(lambda event=event: channel.tell(*event))
        for number in told:
            del left[number]
    return said


def test_what_is_unconfirmed_when_the_channel_is_opened_again_is_lost_and_its_number_is_anothers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confirms, "FIRST_ALONE", 0)
    channel = FakeChannel()
    inflight = Confirms(channel, lambda _: None)
    with inflight.deferring() as before:
        inflight.publish(message_of(1), "", "queue")
    channel.open()  # as py-amqp does when the broker has closed it
    with inflight.deferring() as after:
        inflight.publish(message_of(2), "", "queue")
    channel.connection.say.append(lambda: channel.tell("basic_ack", 1, False))
    inflight.settle(1)
    assert before.is_lost
    assert not before.is_confirmed
    assert after.is_confirmed


@pytest.mark.parametrize("name", ["basic_publish", "basic_publish_confirm", "_basic_publish"])
def test_whoever_publishes_is_counted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confirms, "FIRST_ALONE", 0)
    channel = FakeChannel()
    inflight = Confirms(channel, lambda _: None)
    channel.connection.say.append(lambda: channel.tell("basic_ack", 1, False))
    getattr(channel, name)(message_of(1), exchange="", routing_key="queue")
    with inflight.deferring() as publication:
        inflight.publish(message_of(2), "", "queue")
    channel.connection.say.append(lambda: channel.tell("basic_ack", 2, False))
    inflight.settle(1)
    assert publication.is_confirmed


@pytest.mark.parametrize("again", range(20))
def test_the_bytes_are_those_that_py_amqp_writes(chance: random.Random, again: int) -> None:
    def text(most: int) -> str:
        return "".join(chance.choices("abcä€😀", k=chance.randint(0, most)))

    values: list[Any] = [None, True, 1, -(2**40), 1.5, "ä", b"\x00", {"a": [1, {"b": None}]}, ["x", 2], ""]
    channel = FakeChannel()
    for _ in range(50):
        headers = {text(20) + str(number): chance.choice(values) for number in range(chance.randint(0, 9))}
        properties = {"priority": 0, "delivery_mode": 2, "correlation_id": text(9), "expiration": "1000"}
        body: Any = text(chance.choice([0, 10, 3000]))
        arguments = (text(20), text(20), chance.random() < 0.5, chance.random() < 0.5)

        def message(body: Any = body, headers: Any = headers, properties: Any = properties) -> Any:
            return amqp.basic_message.Message(body, application_headers=headers, **properties)

        frames = publish_frames(channel, message(), *arguments)
        channel.connection.written.clear()
        write = amqp.method_framing.frame_writer(channel.connection, channel.connection.transport)
        write(1, channel.channel_id, (60, 40), dumps("Bssbb", (0, *arguments)), message())
        assert frames == b"".join(channel.connection.written)
