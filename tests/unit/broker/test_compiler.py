"""Compiled messages are those of `apply_async`, byte by byte, and nothing happens when they are compiled."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from celery import Celery, Task
from kombu import Queue
from kombu.transport import TRANSPORT_ALIASES

from redbeat.broker.compiler import Message
from tests.support.compiling import Compiling, call_of, values_of
from tests.support.fake_broker import FAKE_TRANSPORT, empty_broker


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setitem(TRANSPORT_ALIASES, "fake", FAKE_TRANSPORT)
    return empty_broker()


@pytest.fixture
def app(broker: Any, fake_app: Celery) -> Celery:
    fake_app.conf.update(broker_url="fake://", task_default_queue="q")

    @fake_app.task(name="echo", shared=False)
    def echo(*args: Any, **kwargs: Any) -> None:
        """Never runs here."""

    @fake_app.task(name="typed", shared=False)
    def typed(x: int, y: int = 0) -> None:
        """Nor does this."""

    return fake_app


@pytest.fixture
def compiling(app: Celery) -> Compiling:
    made = Compiling(app)
    made.begin_batch()
    return made


def compiled(compiling: Compiling, *args: Any, **kwargs: Any) -> Message:
    message = compiling.compile(call_of(*args, **kwargs))
    assert isinstance(message, Message), message
    return message


def test_a_message_is_that_of_apply_async(compiling: Compiling) -> None:
    by_apply_async, compiled = compiling.make_both(call_of("a", args=[1, "ä"], kwargs={"x": [None]}))
    assert compiled == by_apply_async
    assert compiled != ()


def test_nothing_is_written_when_a_message_is_compiled(compiling: Compiling, broker: Any) -> None:
    message = compiled(compiling, queue="another")
    assert len(compiling.rehearsals) == 2
    assert broker.keys() == []
    assert compiling.compiler.is_current(message)  # which declares the queue, as apply_async does
    assert broker.smembers("_kombu.binding.another") == {"another\x06\x16\x06\x16another"}


def test_ten_thousand_entries_of_a_task_take_three_rehearsals(compiling: Compiling) -> None:
    for number in range(10_000):
        compiled(compiling, f"entry-{number}")
    assert len(compiling.rehearsals) == 3


def test_the_size_of_a_message_is_what_it_takes(compiling: Compiling) -> None:
    calls = [call_of(f"entry-{number}", args=[number], kwargs={"text": "x" * 50}) for number in range(2000)]
    for call in calls[:2]:
        compiling.compile(call)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        messages: list[Any] = [compiling.compile(call) for call in calls]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    told = sum(message.size_bytes for message in messages)
    assert told * 0.9 < after - before < told * 1.1


def test_arguments_that_do_not_fit_are_left_to_apply_async(compiling: Compiling) -> None:
    assert isinstance(compiling.compile(call_of("fits", "typed", [1])), Message)
    reason = compiling.compile(call_of("does not", "typed", [1, 2, 3]))
    assert "TypeError" in str(reason)
    assert isinstance(compiling.compile(call_of("fits, too", "typed", [1, 2])), Message)


def test_a_changed_setting_drops_messages_with_the_next_batch(compiling: Compiling) -> None:
    message = compiled(compiling)
    assert compiling.compiler.is_current(message)
    compiling.app.conf.task_default_queue = "other"
    compiling.app.amqp.queues.add(Queue("other"))
    compiling.begin_batch()
    assert not compiling.compiler.is_current(message)
    by_apply_async, by_compiler = compiling.make_both(call_of())
    assert by_compiler == by_apply_async
    assert by_compiler[0].queue == "other"


def test_a_task_with_an_apply_async_of_its_own_is_left_alone(compiling: Compiling) -> None:
    class Counting(Task):
        sent = 0

        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            Counting.sent += 1
            return super().apply_async(*args, **kwargs)

    @compiling.app.task(name="counting", base=Counting, shared=False)
    def counting() -> None:
        """Never runs here."""

    compiling.begin_batch()
    reason = compiling.compile(call_of("a", "counting"))
    assert str(reason).endswith("Counting overrides apply_async")
    assert Counting.sent == 0


def test_a_task_that_gets_an_apply_async_of_its_own_drops_its_messages(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = compiled(compiling)
    task = compiling.app.tasks["echo"]
    monkeypatch.setattr(type(task), "apply_async", lambda *args, **kwargs: None, raising=False)
    compiling.begin_batch()
    assert not compiling.compiler.is_current(message)
    assert str(compiling.compile(call_of())).endswith("overrides apply_async")


def test_a_run_is_the_same_wherever_its_values_come_from(compiling: Compiling) -> None:
    call = call_of(task_id="it's \" mine")
    by_apply_async, compiled = compiling.make_both(call, values_of(call)._replace(due='"'))
    assert compiled == by_apply_async


@pytest.mark.parametrize(
    "options",
    [
        {"countdown": 1},
        {"eta": "2030-01-01T00:00:00"},
        {"link": []},
        {"compression": "zlib"},
        {"argsrepr": "()"},
        {"expires": "2030-01-01T00:00:00"},
        {"headers": {"id": "x"}},
        {"serializer": "none-such"},
        {"task_id": 5},
    ],
)
def test_some_options_are_left_to_apply_async(compiling: Compiling, options: dict[str, Any]) -> None:
    assert isinstance(compiling.compile(call_of(**options)), str)
