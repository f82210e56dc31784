"""The outbox on Redis channels, also of other versions of kombu, and confirms and frames of AMQP."""

from __future__ import annotations

import json
import random
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import amqp.basic_message
import amqp.method_framing
import fakeredis
import pytest
from amqp.exceptions import MessageNacked
from celery import Celery
from celery.schedules import schedule
from kombu import Connection, Exchange, Producer
from kombu.transport import TRANSPORT_ALIASES

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.delivery import outbox as outbox_module
from redbeat.delivery.amqp import MARKS, Confirms, Publication, text_of
from redbeat.delivery.outbox import Outbox
from redbeat.process.memory import Memory
from redbeat.store.records import Push
from tests.support.deadlines import patience
from tests.support.fake_broker import FAKE_TRANSPORT, FakeChannel, FakeTransport, empty_broker
from tests.support.ticks import leader, make_due

ONE_BY_ONE = "messages are sent one by one, and at least once."


class UnknownCommandChannel(FakeChannel):
    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        with self.conn_or_acquire() as client:
            client.lpush(queue, "half a message")
            client.xadd(f"stream:{queue}", {"message": json.dumps(message)})
            client.lpop(queue)


class OwnWayChannel(FakeChannel):
    def _put(self, queue: str, message: Any, **kwargs: Any) -> None:
        self._create_client().lpush(queue, json.dumps(message))


class NoSuchPutChannel(FakeChannel):
    """A channel of a kombu that lacks a method which the outbox needs."""

    def __getattribute__(self, name: str) -> Any:
        if name == "get_table":
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> fakeredis.FakeRedis:
    """A client of the fake broker, which is empty; nothing has been said so far."""
    monkeypatch.setitem(TRANSPORT_ALIASES, "fake", FAKE_TRANSPORT)
    monkeypatch.setattr(outbox_module, "_said", Memory())  # of the process
    return empty_broker()


@pytest.fixture
def channel() -> Iterator[Any]:
    with Connection("redis://", transport=FakeTransport) as connection:
        yield connection.channel()


def publish(channel: Any, body: str, **options: Any) -> None:
    Producer(channel, auto_declare=False).publish(body, **{"routing_key": "q", **options})


def queued(broker: Any, queue: str = "q") -> list[str]:
    return [_body(text) for text in reversed(broker.lrange(queue, 0, -1))]


def _body(text: Any) -> str:
    return str(json.loads(text)["headers"].get("name"))


# -- kombu as it is


def test_published_message_is_collected_and_not_sent(channel: Any, broker: Any) -> None:
    outbox = Outbox.of(channel)
    with outbox.collecting() as pushes:
        publish(channel, "", headers={"name": "a"})
        publish(channel, "", headers={"name": "b"}, priority=9)
    assert [(push.queue, _body(push.value)) for push in pushes] == [("q", "a"), ("q\x06\x169", "b")]
    assert broker.keys() == []


def test_collected_messages_are_sent_together_with_an_outcome_each(channel: Any, broker: Any) -> None:
    outbox = Outbox.of(channel)
    with outbox.collecting() as pushes:
        publish(channel, "", headers={"name": "a"})
    broker.set("spoilt", "no list")
    bad = Push("lpush", "spoilt", "x")
    outcomes = outbox.send([(bad,), tuple(pushes), (pushes[0], bad)])
    assert [outcome is None for outcome in outcomes] == [False, True, False]
    assert queued(broker) == ["a", "a"]


def test_fan_out_is_sent_at_once(channel: Any, broker: Any) -> None:
    outbox = Outbox.of(channel)
    Exchange("fan", type="fanout")(channel).declare()
    with broker.pubsub() as pubsub:
        pubsub.psubscribe("*")
        pubsub.get_message(timeout=patience())
        with outbox.collecting() as pushes:
            publish(channel, "", exchange="fan")
            heard = pubsub.get_message(timeout=patience())
    assert "fan" in heard["channel"]
    assert pushes == []


# -- by ticks, also of a kombu as it may be one day


@pytest.fixture
def app(fake_app: Celery) -> Celery:
    fake_app.conf.update(broker_url="fake://", task_default_queue="q")
    for name in ("a", "b", "c"):
        Entry(name, "t", schedule(10**9), options={"headers": {"name": name}}, app=fake_app).save()
    make_due(fake_app, "a", "b", "c")
    return fake_app


def tick(app: Celery, scheduler_class: type[RedBeatScheduler] = RedBeatScheduler) -> RedBeatScheduler:
    """Tick until nothing is due, and find every run recorded."""
    with leader(app, scheduler_class) as scheduler:
        while not scheduler.tick():
            pass
    runs = [Entry.from_key(f"redbeat:{name}", app=app).total_run_count for name in ("a", "b", "c")]
    assert runs == [1, 1, 1]
    return scheduler


@pytest.mark.parametrize("channel_class", [FakeChannel, OwnWayChannel, NoSuchPutChannel])
def test_run_arrives_once_on_a_channel_of_another_kombu(
    app: Celery, broker: Any, monkeypatch: pytest.MonkeyPatch, channel_class: type[FakeChannel]
) -> None:
    monkeypatch.setattr(FakeTransport, "Channel", channel_class)
    tick(app)
    assert queued(broker) == ["a", "b", "c"]


def test_run_arrives_once_on_a_channel_with_an_unknown_command(
    app: Celery, broker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FakeTransport, "Channel", UnknownCommandChannel)
    tick(app)
    sent = [_body(fields["message"]) for _, fields in broker.xrange("stream:q")]
    assert sent == ["a", "b", "c"]
    assert [message.endswith(ONE_BY_ONE) for message in caplog.messages].count(True) == 1


def test_scheduler_with_a_producer_property_sends_at_once(app: Celery, broker: Any) -> None:
    class WithItsOwn(RedBeatScheduler):
        early: tuple[int, ...] = ()

        @property
        def producer(self) -> Any:
            if not hasattr(self, "own"):
                self.own = Producer(app.connection_for_write().channel(), auto_declare=False)
            return self.own

        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            result = super().apply_async(*args, **kwargs)
            self.early += (len(queued(broker)),)
            return result

    scheduler = tick(app, WithItsOwn)
    assert queued(broker) == ["a", "b", "c"]
    assert scheduler.early == (1, 2, 3)


def test_producer_class_that_changes_messages_is_used(app: Celery, broker: Any) -> None:
    class Upper(Producer):
        def publish(self, body: Any, headers: Any, **options: Any) -> Any:
            return super().publish(body, headers={**headers, "name": headers["name"].upper()}, **options)

    class WithItsClass(RedBeatScheduler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, Producer=Upper, **kwargs)

    tick(app, WithItsClass)
    assert queued(broker) == ["A", "B", "C"]


class AmqpConnection:
    """Keep what is written. Each drain of events calls the next function of `say`."""

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


class AmqpChannel:
    """As much of a channel of py-amqp as confirms need."""

    channel_id = 7

    def __init__(self) -> None:
        self.connection = AmqpConnection()
        self.events: dict[str, set[Any]] = defaultdict(set)

    def confirm_select(self) -> None:
        pass

    def open(self) -> None:
        pass

    def tell(self, event: str, *args: Any) -> None:
        for callback in self.events[event]:
            callback(*args)


def after_the_first(channel: AmqpChannel, forget: Callable[[Any], None]) -> Confirms:
    """Confirms that have waited for their first message, so that others may be confirmed later."""
    confirms = Confirms(channel, forget)
    channel.connection.say.append(lambda: channel.tell("basic_ack", 1, False))
    confirms.publish(message_of(1), "", "queue")
    return confirms


def message_of(number: int) -> Any:
    return amqp.basic_message.Message("x", correlation_id=f"run-{number}")


def answers(channel: AmqpChannel, fates: dict[int, str], chance: random.Random) -> Iterator[Any]:
    """Yield acks and nacks in any order, some of them for all before that are of one kind."""
    left = {number: "nack" if fate == "nack" else "ack" for number, fate in fates.items()}
    while left:
        last = chance.choice(list(left))
        before = [number for number in left if number <= last]
        is_multiple = chance.random() < 0.5 and len({left[number] for number in before}) == 1
        yield partial(channel.tell, f"basic_{left[last]}", last, is_multiple)
        for number in before if is_multiple else [last]:
            del left[number]


@pytest.mark.parametrize("again", range(5))
def test_confirm_reaches_its_own_publication_in_any_order(chance: random.Random, again: int) -> None:
    forgotten: list[Any] = []
    channel = AmqpChannel()
    inflight = after_the_first(channel, forgotten.extend)
    count = chance.randint(1, 100)
    published: dict[int, Publication] = {}
    for number in range(2, count + 2):
        published[number] = inflight.publication = Publication()
        inflight.declared = [number]
        inflight.publish(message_of(number), "", "queue", mandatory=True)
    fates = {number: chance.choice(["ack", "ack", "ack", "nack", "return"]) for number in published}
    returned = [number for number, fate in fates.items() if fate == "return"]
    chance.shuffle(returned)
    for number in returned:  # a message comes back before its confirm
        returned_one = partial(channel.tell, "basic_return", None, "", "queue", message_of(number))
        channel.connection.say.append(returned_one)
    channel.connection.say += answers(channel, fates, chance)
    inflight.settle(1)
    for number, publication in published.items():
        kind = {"ack": type(None), "nack": MessageNacked, "return": LookupError}[fates[number]]
        assert type(publication.failure) is kind, number
        assert publication.unconfirmed == 0
        assert publication.is_confirmed is (fates[number] == "ack")
    assert sorted(forgotten) == [number for number, fate in fates.items() if fate != "ack"]


def test_reopened_channel_loses_unconfirmed_publications() -> None:
    channel = AmqpChannel()
    inflight = after_the_first(channel, lambda _: None)
    before = inflight.publication = Publication()
    inflight.publish(message_of(1), "", "queue")
    channel.open()  # as py-amqp does when the broker has closed it
    channel.connection.say.append(lambda: channel.tell("basic_ack", 1, False))
    after = inflight.publication = Publication()
    inflight.publish(message_of(2), "", "queue")
    assert before.is_lost
    assert not before.is_confirmed
    assert after.is_confirmed


OWN_TEXTS = [
    ["entry", "[[1], {}, null]", "(1,)"],
    ["\u00e4" * 200, '"quoted"', ""],
    ["entry", "x" * 5_000, "(1,)"],
    ["entry", "x" * 140_000, "(1,)"],
    ["entry", "x", 5],
]
DUES = ["2030-01-02T03:04:05.678901+00:00", "2030-01-02"]


@pytest.mark.parametrize("due", DUES)
@pytest.mark.parametrize("own", OWN_TEXTS, ids=range(len(OWN_TEXTS)))
def test_run_of_a_template_is_written_as_its_message(own: list[Any], due: str) -> None:
    confirms = Confirms(AmqpChannel(), lambda _: None)
    info = {"exchange": "", "routing_key": "queue", "mandatory": True, "immediate": False}

    def draft_of(task_id: str, due: str, own: list[Any]) -> str:
        headers = {"redbeat_entry": own[0], "id": task_id, "root_id": task_id, "redbeat_due": due}
        headers |= {"argsrepr": own[2], "other": [1]}
        options = {"content_type": "application/json", "content_encoding": "utf-8", "delivery_mode": 2}
        message = amqp.basic_message.Message(
            own[1], application_headers=headers, correlation_id=task_id, **options
        )
        return text_of(message, info)

    marks = [uuid.uuid4().hex for _ in own]
    template = confirms.template_of(draft_of(MARKS.task_id, MARKS.due, marks), marks, ())
    assert template is not None
    task_id = str(uuid.uuid4())
    filled = template.fill([json.dumps(one) for one in own], task_id, due)
    is_plain = len(own[1]) < 4_000 and own[2] != 5 and own[2] and due == DUES[0]
    assert filled == (confirms.frames_of_draft(draft_of(task_id, due, own), ()) if is_plain else None)
