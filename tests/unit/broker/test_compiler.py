"""Compiled messages are those of `apply_async`, byte by byte, and nothing happens when they are compiled."""

from __future__ import annotations

import gc
import itertools
import json
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, ClassVar

import pytest
from celery import Celery, Task
from celery.backends.base import DisabledBackend
from kombu import Queue
from kombu.transport import TRANSPORT_ALIASES

from redbeat.broker import compiler, holes, shapes
from redbeat.broker.compiler import Compiler, Message, Values
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


@contextmanager
def traced() -> Iterator[list[int]]:
    """Yield a list that has, after the block, how many bytes were allocated in it and are still in use."""
    kept: list[int] = []
    tracemalloc.start()
    try:
        yield kept
        gc.collect()
        kept.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


def test_a_message_is_that_of_apply_async(compiling: Compiling) -> None:
    by_apply_async, compiled = compiling.make_both(call_of("a", args=[1, "ä"], kwargs={"x": [None]}))
    assert compiled == by_apply_async
    assert compiled != ()


def test_queues_are_declared_as_by_apply_async(compiling: Compiling, broker: Any) -> None:
    compiled(compiling, queue="another")
    assert broker.keys("_kombu.binding.*") == ["_kombu.binding.another"]
    assert broker.smembers("_kombu.binding.another") == {"another\x06\x16\x06\x16another"}
    before = {key: broker.type(key) for key in broker.scan_iter()}
    compiling.pushes_of_apply_async(call_of(queue="another"), values_of(call_of()))
    assert {key: broker.type(key) for key in broker.scan_iter()} == before


def test_ten_thousand_entries_of_a_task_take_three_rehearsals(compiling: Compiling) -> None:
    for number in range(10_000):
        compiled(compiling, f"entry-{number}")
    assert len(compiling.rehearsals) == 3


def test_the_size_of_a_message_is_what_it_takes(compiling: Compiling) -> None:
    calls = [call_of(f"entry-{number}", args=[number], kwargs={"text": "x" * 50}) for number in range(1000)]
    for call in calls[:2]:
        compiling.compile(call)
    gc.collect()  # frees the memory that Python keeps for new objects, and doesn't tell of
    tracemalloc.start(4)  # the shape is that near; further frames cost more than the compiling
    try:
        messages: list[Any] = [compiling.compile(call) for call in calls]
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    made = snapshot.filter_traces([tracemalloc.Filter(True, shapes.__file__, all_frames=True)])
    taken = sum(trace.size for trace in made.traces)
    told = sum(message.size_bytes for message in messages)
    assert told * 0.9 < taken < told * 1.1


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


@pytest.mark.parametrize("lifetime", [None, 90, 0.5])
@pytest.mark.parametrize("queue", [60, 0.25, 3600.0])
@pytest.mark.parametrize("options", [{}, {"expires": 100}, {"headers": {"mine": 1}}], ids=str)
def test_a_message_that_expires_on_its_queue_is_that_of_apply_async(
    compiling: Compiling, queue: float, lifetime: float | None, options: dict[str, Any]
) -> None:
    """Entries with one limit or two, or none, each of another length, have different messages."""
    for name in ("one", "two"):
        for more in ({"queue_seconds": queue}, {}, {"queue_seconds": queue + 1}):
            call = call_of(name, lifetime_seconds=lifetime, **more, **options)
            by_apply_async, compiled = compiling.make_both(call)
            if more or lifetime is not None:  # else it expires by the clock of this machine
                assert compiled == by_apply_async
                headers = json.loads(compiled[0].value)["headers"]
                assert headers.get("redbeat_queue_timeout") == more.get("queue_seconds")
                assert headers.get("redbeat_expires_after") == (lifetime if more else None)


@pytest.mark.parametrize("expires", [-1, datetime(2030, 1, 1, tzinfo=timezone.utc), "2030-01-01"])
def test_a_task_that_expires_at_a_time_is_left_to_apply_async(compiling: Compiling, expires: Any) -> None:
    """When that is earlier than what the policy says depends on the time."""

    @compiling.app.task(name="ending", shared=False, expires=expires)
    def ending() -> None:
        """Never runs here."""

    compiling.begin_batch()
    assert "'expires' isn't a number" in str(compiling.compile(call_of(task="ending", queue_seconds=60)))
    assert isinstance(compiling.compile(call_of(task="ending", lifetime_seconds=60)), Message)


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
        {"headers": {"redbeat_queue_timeout": 5}},
        {"headers": {"redbeat_expires_after": 5}},
        {"serializer": "none-such"},
        {"task_id": 5},
    ],
)
def test_some_options_are_left_to_apply_async(compiling: Compiling, options: dict[str, Any]) -> None:
    assert isinstance(compiling.compile(call_of(**options)), str)


# -- what isn't as expected


def messages_about(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "aren't compiled" in message]


def test_a_value_that_changes_from_run_to_run_is_named_and_never_compiled(
    compiling: Compiling, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    names = map(str, itertools.count())
    monkeypatch.setattr("celery.app.amqp.anon_nodename", lambda: next(names))
    for number in range(3):
        reason = compiling.compile_only(call_of(f"entry {number}"))
        assert "headers.origin" in str(reason)
        compiling.begin_batch()
    assert messages_about(caplog) == [f"beat: Messages of the task echo aren't compiled: {reason}."]
    assert len(compiling.rehearsals) == 2


def test_a_value_that_depends_on_the_entry_in_an_unknown_way_drops_the_first_message(
    compiling: Compiling, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(
        "celery.app.amqp.saferepr", lambda value, *args, **kwargs: "others" if value == [2] else str(value)
    )
    monkeypatch.setattr("redbeat.broker.holes.saferepr", lambda value, *args, **kwargs: str(value))
    compiling.compiler = Compiler(compiling.app, compiling.allowance)
    compiling.begin_batch()
    first = compiling.compile_only(call_of("first", args=[1]))
    assert isinstance(first, Message)
    assert compiling.compiler.is_current(first)
    assert "headers.argsrepr" in str(compiling.compile_only(call_of("second", args=[2])))
    assert not compiling.compiler.is_current(first)
    assert "headers.argsrepr" in str(compiling.compile_only(call_of("first", args=[1])))
    assert len(messages_about(caplog)) == 1


def test_a_reason_that_is_a_sentence_has_one_full_stop(
    compiling: Compiling, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")

    def fail(*_args: Any, **_options: Any) -> None:
        raise LookupError("There is no tenant.")

    monkeypatch.setattr(compiling, "send", fail)
    compiling.compile(call_of())
    [message] = messages_about(caplog)
    assert message.endswith("There is no tenant.")
    assert not message.endswith("..")


def test_a_version_that_describes_arguments_in_another_way_compiles_nothing(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("celery.app.amqp.saferepr", lambda value, *args, **kwargs: repr(value))
    compiling = Compiling(app)
    compiling.begin_batch()
    assert "describes arguments" in str(compiling.compile_only(call_of()))
    assert compiling.rehearsals == []


def test_wrong_settings_are_left_to_apply_async(app: Celery) -> None:
    app.conf.task_routes = [("echo", {"queue": "x"}, "one too many")]
    compiling = Compiling(app)
    compiling.begin_batch()
    assert "ValueError" in str(compiling.compile_only(call_of()))


def test_what_fails_in_one_batch_is_tried_again_in_the_next(compiling: Compiling) -> None:
    compiling.app.amqp.queues.create_missing = False
    for _ in range(2):
        assert "QueueNotFound" in str(compiling.compile(call_of(queue="missing")))
    assert len(compiling.rehearsals) == 1
    compiling.app.amqp.queues.add(Queue("missing"))
    compiling.begin_batch()
    assert isinstance(compiling.compile(call_of(queue="missing")), Message)


def test_task_sent_events_are_left_to_apply_async(app: Celery, broker: Any) -> None:
    app.conf.task_send_sent_event = True
    compiling = Compiling(app)
    compiling.begin_batch()
    assert compiling.compile(call_of()) == "task_send_sent_event is set"
    assert compiling.rehearsals == []


def test_kinds_of_messages_are_bounded(compiling: Compiling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler, "MAX_SHAPES", 3)
    monkeypatch.setattr(compiler, "KEPT_BATCHES", 5)
    first = [compiled(compiling, queue=f"queue-{number}") for number in range(3)]
    assert "more than 3 kinds" in str(compiling.compile(call_of(queue="queue-3")))
    assert all(map(compiling.compiler.is_current, first))
    for _ in range(5):
        compiling.begin_batch()
    fourth = compiled(compiling, queue="queue-3")
    assert compiling.compiler.is_current(fourth)
    assert not any(map(compiling.compiler.is_current, first))
    assert compiling.compiler.is_current(compiled(compiling, queue="queue-0"))


def test_a_shape_does_not_keep_the_arguments_of_its_first_entry(compiling: Compiling) -> None:
    def arguments() -> list[Any]:
        return [f"{number} {'x' * 1000}" for number in range(1000)]

    with traced() as kept:
        for number in range(10):
            call = call_of(args=arguments(), queue=f"queue-{number}")
            # as of an entry that is read anew
            assert isinstance(
                compiling.compiler.compile(
                    call,
                    lambda values, call=call: compiling.send(call._replace(args=arguments()), values),
                ),
                Message,
            )
        del call
    assert kept[0] < 2_000_000  # of 10,000,000


@pytest.mark.parametrize("length", [1, 5_000])
def test_shapes_are_counted_as_what_they_take(compiling: Compiling, length: int) -> None:
    compiled(compiling)
    before = compiling.allowance.left_bytes
    with traced() as kept:
        for number in range(50):
            compiled(compiling, task=f"task-{number}", args=["x" * length], cluster_id=f"{number}" * length)
    counted = before - compiling.allowance.left_bytes
    print(f"{counted:,} bytes are counted, {kept[0]:,} are taken")
    assert counted > 0.7 * kept[0]
    compiling.app.conf.timezone = "Asia/Tokyo"  # drops them
    compiling.begin_batch()
    assert compiling.allowance.left_bytes == compiling.allowance.max_bytes


def test_a_message_that_is_kept_keeps_little_of_a_shape_that_was_dropped(compiling: Compiling) -> None:
    def compile_and_drop(count: int) -> list[Message]:
        found = []
        for number in range(count):
            found.append(compiled(compiling, task=f"task-{number}", app_id="x" * 30_000))
            if number % 10 == 9:
                compiling.app.conf.timezone = ["Asia/Tokyo", "UTC"][number // 10 % 2]  # drops all
                compiling.begin_batch()
        return found

    compile_and_drop(20)  # what is cached for good
    with traced() as kept:
        messages = compile_and_drop(100)
    assert not any(map(compiling.compiler.is_current, messages))
    told = sum(message.size_bytes for message in messages)
    print(f"{kept[0]:,} bytes are kept by messages of {told:,} bytes")
    assert kept[0] < 100 * 30_000 / 10, "a shape holds its app_id"


def test_kinds_of_messages_take_half_of_the_memory_that_is_allowed_at_most(compiling: Compiling) -> None:
    compiling.allowance.max_bytes = 60_000
    found = [compiling.compile(call_of(queue=f"queue-{number}")) for number in range(10)]
    made = [message for message in found if isinstance(message, Message)]
    assert 3 <= len(made) <= 7
    assert f"more than {len(made)} kinds" in str(found[-1])
    assert 2**26 - compiling.allowance.left_bytes < 45_000


# -- rehearsals


class OwnBackend(DisabledBackend):
    """A result backend that notes what it is told."""

    told: ClassVar[list[str]] = []

    def on_task_call(self, producer: Any, task_id: str) -> None:
        self.told.append(task_id)


def test_a_result_backend_that_isnt_celerys_is_left_to_apply_async(compiling: Compiling) -> None:
    compiling.app.conf.result_backend = f"{__name__}:OwnBackend"
    OwnBackend.told.clear()
    compiling.begin_batch()
    reason = str(compiling.compile(call_of()))
    assert reason == "the result backend OwnBackend isn't one of Celery's"
    assert OwnBackend.told == []
    assert isinstance(compiling.compile(call_of(ignore_result=True)), Message)


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_after_a_rehearsal_that_fails_all_is_as_before(
    compiling: Compiling, broker: Any, error: type[BaseException]
) -> None:
    def fail(values: Values) -> None:
        compiling.send(call_of(), values)
        raise error("afterwards")

    assert compiling.compiler.compile(call_of(), fail) == f"{error.__name__}: afterwards"
    assert "on_task_call" not in vars(compiling.app.backend)
    assert broker.keys() == []
    compiling.send(call_of(), values_of(call_of()))  # for good
    assert broker.llen("q") == 1


def test_a_rehearsal_that_sends_twice_is_no_message(compiling: Compiling, broker: Any) -> None:
    def send_twice(values: Values) -> None:
        compiling.send(call_of(), values)
        compiling.send(call_of(), values)

    assert compiling.compiler.compile(call_of(), send_twice) == "a run isn't one message to one queue"
    assert broker.keys() == []


def test_an_exit_amid_a_rehearsal_leaves_nothing_behind(compiling: Compiling, broker: Any) -> None:
    def end(number: int, frame: object) -> None:
        raise SystemExit

    before = signal.signal(signal.SIGUSR1, end)
    try:
        with pytest.raises(SystemExit):
            compiling.compiler.compile(call_of(), lambda _values: signal.raise_signal(signal.SIGUSR1))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert broker.keys() == []
    by_apply_async, by_compiler = compiling.make_both(call_of())
    assert by_compiler == by_apply_async


def test_options_that_are_equal_and_are_written_otherwise_are_two_shapes() -> None:
    keys = [holes.key_of(call_of(priority=value)) for value in (0.0, -0.0, 0, False)]
    assert len(set(keys)) == 4
