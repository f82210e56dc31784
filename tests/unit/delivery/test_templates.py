"""Compiled messages are those of `apply_async`, byte by byte, and nothing happens when they are compiled."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

import pytest
from celery import Celery
from celery.app.task import Task
from celery.backends.base import DisabledBackend
from celery.signals import before_task_publish
from kombu import Exchange, Producer, Queue
from kombu.serialization import registry
from kombu.transport import TRANSPORT_ALIASES
from kombu.transport.redis import Channel
from kombu.utils import json as kombu_json

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.delivery import templates
from redbeat.delivery.placeholders import RunValues, UnfitError
from redbeat.delivery.templates import MessageTemplate, Templates, TextTemplate
from tests.support.compiling import Compiling, call_of, values_of
from tests.support.fake_broker import FAKE_TRANSPORT, empty_broker
from tests.support.ticks import leader, make_due


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


def compiled(compiling: Compiling, *args: Any, **kwargs: Any) -> MessageTemplate:
    message = compiling.compile(call_of(*args, **kwargs))
    assert isinstance(message, MessageTemplate), message
    return message


def test_message_from_a_template_is_that_of_apply_async(compiling: Compiling) -> None:
    by_apply_async, compiled = compiling.make_both(call_of("a", args=[1, "ä"], kwargs={"x": [None]}))
    assert compiled == by_apply_async
    assert compiled != ()


def test_entries_that_differ_in_what_is_empty_share_no_template(compiling: Compiling) -> None:
    calls = [
        *({"args": [1]}, {"args": [2]}, {}, {"kwargs": {"x": 1}}, {"args": [3], "kwargs": {"x": 1}}),
        *({"shadow": "a"}, {"shadow": "b"}, {"shadow": ""}, {"headers": {"x": 1}}, {"headers": {"y": 1}}),
    ]
    for more in calls:
        by_apply_async, by_template = compiling.make_both(call_of(**more))
        assert by_template == by_apply_async, more


def test_message_that_is_made_early_expires_as_if_it_were_sent_when_it_is_due(compiling: Compiling) -> None:
    message = compiled(compiling, expires=100)
    due = datetime(2050, 1, 1, tzinfo=timezone.utc)
    [push] = message.fill(values_of(call_of(), due), "tag")
    expires = datetime.fromisoformat(json.loads(str(push.value))["headers"]["expires"])
    assert expires == due + timedelta(seconds=100)


def test_template_declares_its_queue_as_apply_async_does(compiling: Compiling, broker: Any) -> None:
    compiled(compiling, queue="another")
    assert broker.keys("_kombu.binding.*") == ["_kombu.binding.another"]
    assert broker.smembers("_kombu.binding.another") == {"another\x06\x16\x06\x16another"}
    before = {key: broker.type(key) for key in broker.scan_iter()}
    compiling.pushes_of_apply_async(call_of(queue="another"), values_of(call_of()))
    assert {key: broker.type(key) for key in broker.scan_iter()} == before


def test_call_with_wrong_arguments_gets_no_template(compiling: Compiling) -> None:
    for args in ([1], [1, 2]):  # the second one proves the template
        assert isinstance(compiling.compile(call_of("fits", "typed", args)), MessageTemplate)
    assert "TypeError" in str(compiling.compile(call_of("does not", "typed", [1, 2, 3])))
    assert isinstance(compiling.compile(call_of("fits", "typed", [1, 2])), MessageTemplate)


def test_changed_setting_drops_templates_with_the_next_batch(compiling: Compiling) -> None:
    message = compiled(compiling)
    assert compiling.templates.is_current(message)
    compiling.app.conf.task_default_queue = "other"
    compiling.app.amqp.queues.add(Queue("other"))
    compiling.begin_batch()
    assert not compiling.templates.is_current(message)
    by_apply_async, by_compiler = compiling.make_both(call_of())
    assert by_compiler == by_apply_async
    assert by_compiler[0].queue == "other"


#: what a program may change in place
CHANGES: dict[str, Callable[[Celery], None]] = {
    "attribute of a task": lambda app: setattr(app.tasks["echo"], "ignore_result", True),
    "option of a task": lambda app: app.tasks["echo"]._get_exec_options().update(priority=3),  # noqa: SLF001
    "task": lambda app: app.tasks.unregister("echo"),
    "task_repr_maxlevels": lambda app: app.conf.update(task_repr_maxlevels=1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_change_in_place_drops_templates_with_the_next_batch(compiling: Compiling, what: str) -> None:
    call = call_of(args=[[[1]]])
    message = compiled(compiling, args=call.args)
    CHANGES[what](compiling.app)
    compiling.begin_batch()
    assert not compiling.templates.is_current(message)
    by_apply_async, by_template = compiling.make_both(call)
    assert by_template == by_apply_async


class Wrapper:
    """Stands in the place of a function, and is equal to it, as proxies of wrapt are."""

    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        """Receive a signal, or a call."""

    def __eq__(self, _other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


look_on = Wrapper()


#: code that begins to look on between two batches, and what the reason says
WATCHERS: dict[str, Callable[[Compiling, pytest.MonkeyPatch], Any]] = {
    "a receiver of before_task_publish": lambda _, patch: patch.setattr(
        before_task_publish, "receivers", [(1, look_on)]
    ),
    "replaces Task.apply_async": lambda _, patch: patch.setattr(Task, "apply_async", look_on),
    "replaces Producer._publish": lambda _, patch: patch.setattr(Producer, "_publish", look_on),
    "replaces apply_async of one RedBeatScheduler": lambda made, patch: patch.setattr(
        made.scheduler, "apply_async", look_on
    ),
    "a class of entries of its own": lambda made, patch: patch.setattr(
        made.scheduler, "Entry", type("Own", (Entry,), {}), raising=False
    ),
    "replaces send_task of one Celery": lambda made, patch: patch.setattr(made.app, "send_task", look_on),
    "replaces send_task_message of one AMQP": lambda made, patch: patch.setattr(
        made.app.amqp, "send_task_message", look_on
    ),
    "the app has a router of its own": lambda made, patch: patch.setattr(made.app.amqp, "router", look_on),
    "task_routes has a function": lambda made, patch: patch.setattr(
        made.app.amqp.router, "routes", (look_on,)
    ),
    "replaces _put of one FakeChannel": lambda made, patch: patch.setattr(
        made.broker.producer.channel, "_put", look_on
    ),
    "task_always_eager is set": lambda made, _: made.app.conf.update(task_always_eager=True),
    "task_send_sent_event is set": lambda made, _: made.app.conf.update(task_send_sent_event=True),
    "the serializer 'json' isn't kombu's own": lambda _, patch: patch.setitem(
        registry._encoders,  # noqa: SLF001 - it has no public name
        "json",
        registry._encoders["json"]._replace(encoder=look_on),  # noqa: SLF001
    ),
}


@pytest.mark.parametrize("reason", WATCHERS)
def test_code_that_begins_to_look_on_ends_templates_with_the_next_batch(
    app: Celery, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    compiling = Compiling(app)
    compiling.templates = Templates(app, compiling.scheduler)
    for _ in range(2):
        compiling.begin_batch()
        assert compiling.templates.obstacle == ""
    with monkeypatch.context() as patch:
        WATCHERS[reason](compiling, patch)
        compiling.begin_batch()
    assert reason in compiling.templates.obstacle


def test_patched_task_drops_its_templates(compiling: Compiling, monkeypatch: pytest.MonkeyPatch) -> None:
    message = compiled(compiling)
    task = compiling.app.tasks["echo"]
    monkeypatch.setattr(type(task), "apply_async", lambda *args, **kwargs: None, raising=False)
    compiling.begin_batch()
    assert not compiling.templates.is_current(message)
    assert str(compiling.compile(call_of())).endswith("overrides apply_async")


@pytest.mark.parametrize(("lifetime", "queue"), [(None, 0.25), (90, 60), (0.5, 3600.0)])
@pytest.mark.parametrize("options", [{}, {"expires": 100}, {"headers": {"mine": 1}}], ids=str)
def test_message_that_expires_is_that_of_apply_async(
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
def test_task_that_expires_at_a_date_gets_no_template(compiling: Compiling, expires: Any) -> None:
    """When that is earlier than what the policy says depends on the time."""

    @compiling.app.task(name="ending", shared=False, expires=expires)
    def ending() -> None:
        """Never runs here."""

    compiling.begin_batch()
    assert "'expires' isn't a number" in str(compiling.compile(call_of(task="ending", queue_seconds=60)))
    assert isinstance(compiling.compile(call_of(task="ending", lifetime_seconds=60)), MessageTemplate)


@pytest.mark.parametrize(
    "options",
    [
        *({"countdown": 1}, {"eta": "2030-01-01T00:00:00"}, {"link": []}, {"compression": "zlib"}),
        *({"argsrepr": "()"}, {"expires": "2030-01-01T00:00:00"}, {"serializer": "none-such"}),
        *({"task_id": 5}, {"headers": {"id": "x"}}, {"headers": {"redbeat_queue_timeout": 5}}),
        {"headers": {"redbeat_expires_after": 5}},
    ],
)
def test_option_that_a_template_cannot_express_gets_none(
    compiling: Compiling, options: dict[str, Any]
) -> None:
    assert isinstance(compiling.compile(call_of(**options)), str)


def messages_about(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if "aren't compiled" in message]


def test_field_that_changes_with_each_run_is_named_and_gets_no_template(
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
    assert len(compiling.samples) == 2


def patch_headers(monkeypatch: pytest.MonkeyPatch, header_of: Callable[[Any], Any]) -> None:
    """Let kombu add a header to each message; None: not to this one."""
    prepare = Producer._prepare  # noqa: SLF001 - stands for any function that the guard does not know

    def patched(self: Any, body: Any, *args: Any) -> Any:
        header = header_of(body)
        if header is not None:
            args[-1]["patched"] = header
        return prepare(self, body, *args)

    monkeypatch.setattr(Producer, "_prepare", patched)


def test_field_that_depends_on_the_entry_in_an_unknown_way_drops_the_template(
    compiling: Compiling, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    patch_headers(monkeypatch, lambda body: "two" if body[0] == [2] else None)
    first = compiling.compile_only(call_of("first", args=[1]))
    assert isinstance(first, MessageTemplate)
    assert compiling.templates.is_current(first)
    assert "another headers.patched from run to run, or from entry to entry" in str(
        compiling.compile_only(call_of("second", args=[2]))
    )
    assert not compiling.templates.is_current(first)
    assert "headers.patched" in str(compiling.compile_only(call_of("first", args=[1])))
    assert len(messages_about(caplog)) == 1


def test_queue_that_depends_on_the_run_is_named_and_gets_no_template(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = map("q-{}".format, itertools.count())
    monkeypatch.setattr(Channel, "_q_for_pri", lambda *_: next(names))  # as by a tool that the guard misses
    assert "to another queue from run to run" in str(compiling.compile(call_of()))


def test_queue_that_another_entry_binds_drops_the_template_with_the_next_batch(compiling: Compiling) -> None:
    orders = Exchange("orders", type="topic")
    compiling.app.amqp.queues.add(Queue("paid", orders, routing_key="order.paid"))
    compiling.app.amqp.queues.add(Queue("all", orders, routing_key="order.#"))
    paid = call_of(queue="paid", routing_key="order.paid")
    message = compiled(compiling, **paid.options)
    assert compiling.templates.is_current(message)
    other = call_of(queue="all", routing_key="order.new")
    compiling.pushes_of_apply_async(other, values_of(other))
    compiling.begin_batch()
    assert not compiling.templates.is_current(message), "it goes to both now"


def test_template_is_compared_again_after_a_minute(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the guard and the fingerprint do not see changes messages for a minute at most."""
    message = compiled(compiling, args=[1])
    is_odd = True
    patch_headers(monkeypatch, lambda _: "odd" if is_odd else None)
    compiling.begin_batch()
    assert compiling.templates.is_current(message)
    monkeypatch.setattr(templates, "CHECK_SECONDS", 0.0)
    compiling.begin_batch()
    assert not compiling.templates.is_current(message, 0.0)
    by_apply_async, by_template = compiling.make_both(call_of(args=[1]))
    assert json.loads(by_template[0].value)["headers"]["patched"] == "odd"
    assert by_template == by_apply_async
    is_odd = False
    compiling.begin_batch()
    by_apply_async, by_template = compiling.make_both(call_of(args=[1]))
    assert "patched" not in json.loads(by_template[0].value)["headers"]
    assert by_template == by_apply_async


def test_new_json_encoder_drops_templates_with_the_next_batch(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = call_of(args=[datetime(2030, 1, 1, tzinfo=timezone.utc)])
    message = compiled(compiling, args=call.args)
    monkeypatch.setitem(kombu_json._encoders, datetime, ("day", str))  # type: ignore[attr-defined] # noqa: SLF001
    compiling.begin_batch()
    assert not compiling.templates.is_current(message)
    by_apply_async, by_template = compiling.make_both(call)
    assert by_template == by_apply_async


def test_template_that_could_not_be_made_is_tried_again_after_a_minute(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    compiling.app.amqp.queues.create_missing = False
    for name in ("one", "two"):
        assert "QueueNotFound" in str(compiling.compile(call_of(name, queue="missing")))
    compiling.app.amqp.queues.add(Queue("missing"))
    monkeypatch.setattr(time, "monotonic", lambda: now + 2 * templates.CHECK_SECONDS)
    compiled(compiling, queue="missing")


def test_number_of_kinds_is_bounded(compiling: Compiling, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "MAX_KINDS", 5)
    compiling.templates = Templates(compiling.app)
    compiling.begin_batch()
    made = [compiled(compiling, queue=f"queue-{number}") for number in range(8)]
    compiling.begin_batch()
    assert [compiling.templates.is_current(one) for one in made] == [False] * 5 + [True] * 3


def test_forgotten_entries_leave_no_more_memory_than_is_allowed(app: Celery) -> None:
    app.conf.redbeat_message_cache_bytes = 20_000
    names = [f"entry-{number}" for number in range(30)]
    for name in names:
        Entry(name, "echo", 10**9, app=app).save()
    with leader(app) as scheduler:
        context = scheduler._context  # noqa: SLF001 - nothing else shows what is kept
        for _ in range(5):
            make_due(app, *names)
            scheduler.tick()
        kept_bytes = sum(known.size_bytes for known in context.planner._kept.values())  # noqa: SLF001
        assert kept_bytes + context.allowance.left_bytes == 20_000


# -- samples


class OwnBackend(DisabledBackend):
    """A result backend that notes what it is told."""

    told: ClassVar[list[str]] = []

    def on_task_call(self, producer: Any, task_id: str) -> None:
        self.told.append(task_id)


def test_result_backend_that_is_not_celerys_rules_out_templates(compiling: Compiling) -> None:
    compiling.app.conf.result_backend = f"{__name__}:OwnBackend"
    OwnBackend.told.clear()
    compiling.begin_batch()
    reason = str(compiling.compile(call_of()))
    assert reason == "the result backend OwnBackend isn't one of Celery's"
    assert OwnBackend.told == []
    assert isinstance(compiling.compile(call_of(ignore_result=True)), MessageTemplate)


def test_result_backend_of_celery_is_not_called(
    compiling: Compiling, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr("celery.backends.rpc.maybe_declare", lambda *args, **_: told.append(args))
    compiling.app.conf.result_backend = "rpc://"
    compiling.begin_batch()
    compiled(compiling)
    assert told == []


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_failed_attempt_at_a_template_leaves_no_trace(
    compiling: Compiling, broker: Any, error: type[BaseException]
) -> None:
    def fail(values: RunValues) -> None:
        compiling.send(call_of(), values)
        raise error("afterwards")

    assert compiling.templates.find(call_of(), fail) == f"{error.__name__}: afterwards"
    assert "on_task_call" not in vars(compiling.app.backend)
    assert not broker.exists("q")
    compiling.send(call_of(), values_of(call_of()))  # for good
    assert broker.llen("q") == 1


@pytest.mark.parametrize("text", ['{"a":1,"b":2}', '{"a": 1, "b": "ä"}', '{"a": 1, "a": 1, "b": 2}'])
def test_json_that_python_writes_otherwise_gets_no_template(text: str) -> None:
    with pytest.raises(UnfitError, match="writes JSON in an unexpected way"):
        TextTemplate(text, [("a",), ("b",)])
