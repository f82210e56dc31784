"""The outbox on channels of every kind: kombu's own on a fake server, and such as kombu may have one day."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import fakeredis
import pytest
from celery import Celery
from celery.schedules import schedule
from kombu import Connection, Exchange, Producer, Queue
from kombu.transport import TRANSPORT_ALIASES

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.broker import outbox as outbox_module
from redbeat.broker.outbox import Outbox
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
    """What the outbox needs of it is gone."""

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


@contextmanager
def channel_of(channel_class: type[FakeChannel], **transport_options: Any) -> Iterator[Any]:
    transport = type("Transport", (FakeTransport,), {"Channel": channel_class})
    with Connection("redis://", transport=transport, transport_options=transport_options) as connection:
        yield connection.channel()


@pytest.fixture
def channel() -> Iterator[Any]:
    with channel_of(FakeChannel) as made:
        yield made


def outbox_of(channel: Any) -> Outbox:
    outbox = Outbox.of(channel)
    assert outbox is not None
    return outbox


def publish(channel: Any, body: str, **options: Any) -> None:
    Producer(channel, auto_declare=False).publish(body, **{"routing_key": "q", **options})


def bodies(pushes: list[Push]) -> list[tuple[str, str]]:
    return [(push.queue, _body(push.value)) for push in pushes if push.command == "lpush"]


def queued(broker: Any, queue: str = "q") -> list[str]:
    return [_body(text) for text in reversed(broker.lrange(queue, 0, -1))]


def _body(text: Any) -> str:
    return str(json.loads(text)["headers"].get("name"))


# -- kombu as it is


def test_a_message_is_collected_and_not_sent(channel: Any, broker: Any) -> None:
    outbox = outbox_of(channel)
    with outbox.collecting() as pushes:
        publish(channel, "", headers={"name": "a"})
        publish(channel, "", headers={"name": "b"}, priority=9)
    assert bodies(pushes) == [("q", "a"), ("q\x06\x169", "b")]
    assert broker.keys() == []


def test_what_was_collected_can_be_sent_later(channel: Any, broker: Any) -> None:
    outbox = outbox_of(channel)
    with outbox.collecting() as pushes:
        publish(channel, "", headers={"name": "a"})
    broker.set("spoilt", "no list")
    bad = Push("lpush", "spoilt", "x")
    outcomes = outbox.send([(bad,), tuple(pushes), (pushes[0], bad)])
    assert [outcome is None for outcome in outcomes] == [False, True, False]
    assert queued(broker) == ["a", "a"]


@pytest.mark.parametrize("is_before", [True, False], ids=["before", "after"])
def test_outside_of_collecting_the_channel_is_kombus_own(channel: Any, broker: Any, is_before: bool) -> None:
    outbox = outbox_of(channel)
    if not is_before:
        with outbox.collecting():
            publish(channel, "", headers={"name": "collected"})
    publish(channel, "", headers={"name": "sent"})
    assert queued(broker) == ["sent"]
    Queue("other", Exchange("direct"), routing_key="key")(channel).declare()
    publish(channel, "", exchange="direct", routing_key="key", headers={"name": "routed"})
    assert queued(broker, "other") == ["routed"]
    received = channel.basic_get("q", no_ack=True)
    assert received.headers["name"] == "sent"
    assert channel.queue_purge("other") == 1


def test_after_a_failure_the_channel_is_kombus_own_again(channel: Any, broker: Any) -> None:
    outbox = outbox_of(channel)
    with suppress(KeyError), outbox.collecting() as pushes:
        publish(channel, "", headers={"name": "a"})
        publish(channel, "", headers={"name": "never"}, compression="no-such")
    assert bodies(pushes) == [("q", "a")]
    publish(channel, "", headers={"name": "b"})
    assert queued(broker) == ["b"]


def test_a_fan_out_is_sent_at_once(channel: Any, broker: Any) -> None:
    outbox = outbox_of(channel)
    Exchange("fan", type="fanout")(channel).declare()
    with broker.pubsub() as pubsub:
        pubsub.psubscribe("*")
        pubsub.get_message(timeout=patience())
        with outbox.collecting() as pushes:
            publish(channel, "", exchange="fan")
            heard = pubsub.get_message(timeout=patience())
    assert "fan" in heard["channel"]
    assert pushes == []


def test_bindings_are_looked_up_once_a_batch(channel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    get_table = channel.get_table
    monkeypatch.setattr(channel, "get_table", lambda exchange: looks.append(exchange) or get_table(exchange))
    Queue("one", Exchange("topics", type="topic"), routing_key="#")(channel).declare()
    outbox = outbox_of(channel)
    for _ in range(2):
        outbox.forget_tables()
        for _ in range(3):
            with outbox.collecting() as pushes:
                publish(channel, "", exchange="topics", routing_key="a", headers={"name": "m"})
            assert bodies(pushes) == [("one", "m")]
    assert looks == ["topics", "topics"]
    Queue("two", Exchange("topics", type="topic"), routing_key="a")(channel).declare()
    with outbox.collecting() as pushes:
        publish(channel, "", exchange="topics", routing_key="a", headers={"name": "m"})
    assert sorted(bodies(pushes)) == [("one", "m"), ("two", "m")]


@pytest.mark.skipif(not hasattr(Producer, "batch"), reason="this kombu has no batches of its own")
def test_kombus_own_batches_still_work_in_the_block(channel: Any, broker: Any) -> None:
    producer = Producer(channel, auto_declare=False)
    outbox = outbox_of(channel)
    with outbox.collecting() as pushes:
        with producer.batch():
            producer.publish("", routing_key="q", headers={"name": "a"})
        publish(channel, "", headers={"name": "b"})
    assert sorted([*queued(broker), *(name for _, name in bodies(pushes))]) == ["a", "b"]


# -- kombu as it may be one day


def test_an_event_that_is_written_in_an_unknown_way_is_sent_at_once_and_once(broker: Any) -> None:
    class UnknownEventChannel(FakeChannel):
        def _put_fanout(self, exchange: str, message: Any, routing_key: str, **kwargs: Any) -> None:
            with self.conn_or_acquire() as client:
                client.xadd(f"stream:{exchange}", {"event": json.dumps(message)})

    with channel_of(UnknownEventChannel) as channel:
        outbox = outbox_of(channel)
        Exchange("celeryev", type="fanout")(channel).declare()
        for _ in range(2):
            with outbox.collecting() as pushes:
                publish(channel, "", headers={"name": "a"})
                publish(channel, "", exchange="celeryev", routing_key="task.sent")
            assert (bodies(pushes), outbox.events) == ([("q", "a")], [])
        assert not outbox.has_given_up
    assert broker.xlen("stream:celeryev") == 2


def test_another_transport_has_no_outbox(caplog: pytest.LogCaptureFixture) -> None:
    with Connection("memory://") as connection:
        assert Outbox.of(connection.channel()) is None
    assert caplog.messages == []


def test_a_channel_that_lacks_something_has_no_outbox_said_once(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        with channel_of(NoSuchPutChannel) as channel:
            assert Outbox.of(channel) is None
    (said,) = caplog.messages
    assert "(get_table)" in said
    assert said.endswith(ONE_BY_ONE)


def test_a_prefix_that_the_client_puts_in_another_way_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    with channel_of(FakeChannel, global_keyprefix="pre:") as channel:
        assert Outbox.of(channel) is None
    assert "_prefix_args" in caplog.text


def test_an_unknown_command_is_sent_at_once_and_once(broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):  # the second is a new connection
        with channel_of(UnknownCommandChannel) as channel:
            outbox = outbox_of(channel)
            for _ in range(2):
                with outbox.collecting() as pushes:
                    publish(channel, "")
                assert pushes == []
            assert outbox.has_given_up
    assert (broker.xlen("stream:q"), broker.exists("q")) == (4, 0)
    (said,) = caplog.messages
    assert "by xadd" in said
    assert said.endswith(ONE_BY_ONE)


def test_a_channel_that_writes_its_own_way_has_sent(broker: Any, caplog: pytest.LogCaptureFixture) -> None:
    with channel_of(OwnWayChannel) as channel:
        outbox = outbox_of(channel)
        for name in ("a", "b"):
            with outbox.collecting() as pushes:
                publish(channel, "", headers={"name": name})
            assert pushes == []
    assert queued(broker) == ["a", "b"]
    assert len(caplog.messages) == 1


# -- the same, by ticks


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
def test_each_run_arrives_once_whatever_the_channel_does(
    app: Celery, broker: Any, monkeypatch: pytest.MonkeyPatch, channel_class: type[FakeChannel]
) -> None:
    monkeypatch.setattr(FakeTransport, "Channel", channel_class)
    tick(app)
    assert queued(broker) == ["a", "b", "c"]


def test_each_run_arrives_once_by_an_unknown_command(
    app: Celery, broker: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FakeTransport, "Channel", UnknownCommandChannel)
    tick(app)
    sent = [_body(fields["message"]) for _, fields in broker.xrange("stream:q")]
    assert sent == ["a", "b", "c"]
    assert [message.endswith(ONE_BY_ONE) for message in caplog.messages].count(True) == 1


def test_a_producer_property_of_a_subclass_sends_at_once(app: Celery, broker: Any) -> None:
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
    assert isinstance(scheduler, WithItsOwn)
    assert scheduler.early == (1, 2, 3)


def test_a_producer_class_that_sends_elsewhere_is_left_to_it(app: Celery, broker: Any) -> None:
    class Elsewhere(Producer):
        def publish(self, body: Any, **options: Any) -> None:
            broker.rpush("elsewhere", options["headers"]["name"])

    class WithItsClass(RedBeatScheduler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, Producer=Elsewhere, **kwargs)

    tick(app, WithItsClass)
    assert (broker.lrange("elsewhere", 0, -1), queued(broker)) == (["a", "b", "c"], [])


def test_a_producer_class_that_changes_messages_is_collected_with_changes(app: Celery, broker: Any) -> None:
    class Upper(Producer):
        def publish(self, body: Any, headers: Any, **options: Any) -> Any:
            return super().publish(body, headers={**headers, "name": headers["name"].upper()}, **options)

    class WithItsClass(RedBeatScheduler):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, Producer=Upper, **kwargs)

    tick(app, WithItsClass)
    assert queued(broker) == ["A", "B", "C"]
