"""An error of the application's own code skips that run, as in celery-redbeat 2.x."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, Task
from celery.exceptions import WorkerShutdown
from celery.signals import before_task_publish
from kombu.exceptions import OperationalError
from kombu.serialization import registry

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import ConfigurationError, StoreUnavailable
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.apps import run_beat
from tests.support.deadlines import patience
from tests.support.logs import errors_in
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import (
    DEADLINES,
    LOCK,
    field,
    retry_now,
    score_of,
    sent_names,
    server_now,
    write_raw,
)
from tests.support.servers import Server


class AlreadyQueued(Exception):
    """As of celery-once: its text differs each time."""


class Raised:
    """What the hooks of these tests raise for the entry `bad`, and how often they were called for it."""

    def __init__(self) -> None:
        self.error: BaseException = AlreadyQueued("59 seconds left")
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        raise type(self.error)(*self.error.args)


raised = Raised()


class OnceTask(Task):
    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
        raised()


def do_nothing() -> None:
    pass


def by_task(app: Celery) -> None:
    app.task(name="bad", base=OnceTask, shared=False)(do_nothing)


def by_router(app: Celery) -> None:
    def route(name: str, *_args: Any, **_kwargs: Any) -> None:
        if name == "bad":
            raised()

    app.conf.task_routes = (route,)


def by_receiver(_app: Celery) -> None:
    def receive(sender: Any = None, **_: Any) -> None:
        if sender == "bad":
            raised()

    before_task_publish.connect(receive, weak=False, dispatch_uid="by_receiver")


def by_shadow_name(app: Celery) -> None:
    class Named(Task):
        abstract = True

        def shadow_name(self, *_args: Any, **_kwargs: Any) -> str | None:
            return raised()  # type: ignore[func-returns-value]

    app.task(name="bad", base=Named, shared=False)(do_nothing)


def by_eager_task(app: Celery) -> None:
    app.conf.task_always_eager = app.conf.task_eager_propagates = True

    @app.task(name="bad", shared=False)
    def bad() -> None:
        raised()


def by_scheduler(_app: Celery) -> None:
    """`Flaky` raises."""


class Flaky(RedBeatScheduler):
    is_flaky = False

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        if entry.task == "bad" and self.is_flaky:
            raised()
        return super().apply_async(entry, *args, **kwargs)


Hook = Callable[[Celery], None]
HOOKS: list[Hook] = [by_task, by_router, by_receiver, by_shadow_name, by_eager_task, by_scheduler]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    raised.__init__()  # type: ignore[misc]
    yield
    before_task_publish.disconnect(dispatch_uid="by_receiver")


@pytest.fixture
def make(make_scheduler: MakeScheduler) -> Callable[..., RedBeatScheduler]:
    def make(hook: Hook, **settings: Any) -> RedBeatScheduler:
        scheduler = make_scheduler(scheduler=Flaky, **settings)
        scheduler.is_flaky = hook is by_scheduler  # type: ignore[attr-defined]
        hook(scheduler.app)
        return scheduler

    return make


ERRORS: list[BaseException] = [
    AlreadyQueued("59 seconds left"),
    redis.ConnectionError("the lock's Redis is away"),
    redis.BusyLoadingError("Redis is loading the dataset in memory"),
    OSError(101, "the CRM is away"),
    OperationalError("raised by hand"),
    ConfigurationError("raised by hand"),
    StoreUnavailable("raised by hand"),
    SystemExit(3),
    WorkerShutdown(0),
    asyncio.CancelledError(),
    GeneratorExit(),
]


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_of_the_application_skips_that_run(
    make: Any, hook: Hook, settings: dict[str, Any], client: redis.Redis, broker: redis.Redis, caplog: Any
) -> None:
    errors = [exc for exc in ERRORS if hook is not by_receiver or not isinstance(exc, Exception)]
    for error in errors:
        caplog.clear()
        scheduler = make(hook, **settings)
        raised.error, raised.calls = error, 0
        due = server_now(client) - 1
        write_raw(client, "bad", score=due, task="bad")
        write_raw(client, "good", score=due)
        scheduler.tick()
        scheduler.tick()
        # a router is asked for the labels of metrics, too
        assert raised.calls == 1 or hook is by_router, error
        assert score_of(client, "bad") == pytest.approx(due + 3600, abs=1e-4), error
        (run,) = Entry.from_key("redbeat:bad", app=scheduler.app).history()
        assert (run.outcome, run.due.timestamp()) == ("skipped", pytest.approx(due, abs=1e-5))
        words = f"{type(error).__name__}: {error}".rstrip(": ")
        assert words in run.why, error
        (line,) = errors_in(caplog)
        assert "bad" in line, error
        assert words in line, error
        assert client.hget("redbeat:bad", "error") is None
        if hook is not by_eager_task:
            assert sent_names(broker) == ["good"]
        scheduler.close()
        client.flushall()


@pytest.mark.parametrize("hook", HOOKS)
def test_a_one_off_entry_is_retried_unless_its_task_was_executed(
    make: Any, hook: Hook, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    raised.error = SystemExit(3)
    scheduler = make(hook)
    write_raw(client, "bad", score=1, task="bad", one_off=True)
    for _ in range(3):
        scheduler.tick()
        if client.hget("redbeat:bad", "error"):
            retry_now(client, "bad")
    assert raised.calls == (1 if hook is by_eager_task else 3) or hook is by_router
    assert len(errors_in(caplog)) == 1
    if hook is by_eager_task:
        assert (score_of(client, "bad") or -1) < 0
    else:
        assert "SystemExit: 3" in field(client, "bad", "error")["reason"]


@pytest.mark.parametrize("overlap", ["skip", "buffer_one", "replace"])
def test_a_skipped_run_gives_its_reservation_back(
    rabbitmq: RabbitMQ, make: Any, client: redis.Redis, overlap: str
) -> None:
    scheduler = make(by_task, broker_url=rabbitmq.url())
    write_raw(client, "bad", score=1, task="bad", overlap=overlap)
    scheduler.tick()
    assert raised.calls == 1
    assert client.hgetall("redbeat::running:bad") == {}
    assert client.zcard(DEADLINES) == 0


RECEIVER = """
from celery.signals import before_task_publish

@before_task_publish.connect
def receive(sender=None, **_):
    if sender == "fail":
        raise SystemExit(3)
"""


def test_a_real_beat_outlives_system_exits_of_a_receiver_and_ends_at_sigterm(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    for number in range(50):
        write_raw(client, f"bad-{number}", task="fail", schedule={"__type__": "interval", "every": 0.2})
    write_raw(client, "good", schedule={"__type__": "interval", "every": 0.2})
    with run_beat(tmp_path, server.url(0), RECEIVER, redbeat_redis_url=server.url(1)) as beat:
        eventually(lambda: broker.llen("celery") >= 10)
        took = beat.seconds_to_end()
        output = beat.output()
    assert set(sent_names(broker)) == {"good"}
    assert took < patience(5)
    assert client.get(LOCK) is None
    assert "SystemExit: 3" in output
    assert len(re.findall("ERROR", output)) < 20, output
    assert "Sending due task bad" not in output


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), GeneratorExit()], ids=repr)
def test_an_entry_class_that_raises_what_is_no_exception_is_that_entrys_error(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    settings: dict[str, Any],
    error: BaseException,
) -> None:
    class Picky(Entry):
        def __init__(self, name: str | None = None, *args: Any, **kwargs: Any) -> None:
            if name == "bad":
                raise type(error)(*error.args)
            super().__init__(name, *args, **kwargs)

    class Scheduler(RedBeatScheduler):
        Entry = Picky

    scheduler = make_scheduler(scheduler=Scheduler, **settings)
    for name in ("bad", "good"):
        write_raw(client, name)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    assert type(error).__name__ in field(client, "bad", "error")["reason"]


@pytest.mark.parametrize("options", [{"expires": "60"}, {"countdown": "soon"}], ids=repr)
def test_an_option_that_celery_cannot_read_is_retried_with_its_reason(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, options: dict[str, Any]
) -> None:
    """2.x stored it unchecked; Celery has dateutil read it, which is not the application's code either."""
    write_raw(client, "bad", options=options)
    write_raw(client, "good")
    make_scheduler().tick()
    assert sent_names(broker) == ["good"]
    assert field(client, "bad", "error")["attempts"] == 1


@pytest.mark.parametrize("error", [SystemExit(3), asyncio.CancelledError(), ValueError("no form")], ids=repr)
def test_a_serializer_that_raises_is_retried_as_arguments_that_cannot_be_encoded(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, error: BaseException
) -> None:
    def encode(_body: Any) -> Any:
        raise type(error)(*error.args)

    registry.register("picky", encode, encode, content_type="application/x-picky")
    try:
        scheduler = make_scheduler(accept_content=["json"])
        write_raw(client, "bad", options={"serializer": "picky"})
        write_raw(client, "good")
        scheduler.tick()
    finally:
        registry.unregister("picky")
    assert sent_names(broker) == ["good"]
    assert field(client, "bad", "error")["attempts"] == 1
