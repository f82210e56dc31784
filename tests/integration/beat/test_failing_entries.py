"""A run that fails costs its own entry alone: what the broker refuses, and what the application raises."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import pytest
import redis
from celery import Celery, Task
from celery.schedules import schedule
from celery.signals import before_task_publish
from kombu.exceptions import OperationalError

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import StoreRefused, StoreUnavailable
from redbeat.scheduler.quarantine import MAX_CONFLICTS
from redbeat.store import schedule as schedule_module
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.logs import errors_in
from tests.support.polling import eventually
from tests.support.schedule import (
    DEADLINES,
    SCHEDULE,
    SELDOM,
    counts_of,
    field,
    messages,
    meta_json,
    retry_now,
    score_of,
    sent_dues,
    sent_names,
    server_now,
    write_burst,
    write_raw,
)
from tests.support.ticks import take_messages

#: options of an entry whose messages the broker refuses while that key holds a text
REFUSED = {"queue": "spoilt"}


@EVERY_KIND_OF_LOCK
def test_one_that_cannot_be_sent_backs_off_alone(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    settings: dict[str, Any],
) -> None:
    scheduler = make_scheduler(**settings)
    broker.set("spoilt", "a text")
    due = server_now(client) - 1
    write_raw(client, "bad", score=due, options=REFUSED, meta=meta_json(datetime(2024, 1, 1), 5))
    for round_number, pause in enumerate([1, 2, 4, 8, 16, 32, 60, 60, 60]):
        write_raw(client, f"good-{round_number}", score=due)
        began = server_now(client)
        scheduler.tick()
        score = score_of(client, "bad") or 0
        assert began + pause <= score <= server_now(client) + 1.25 * pause
        retry_now(client, "bad")
    assert sent_names(broker) == [f"good-{number}" for number in range(9)]
    error = field(client, "bad", "error")
    assert error["attempts"] == 9
    assert "WRONGTYPE" in error["reason"]
    assert field(client, "bad", "meta")["total_run_count"] == 5
    assert len(errors_in(caplog)) == 1
    assert "bad" in errors_in(caplog)[0]

    broker.delete("spoilt")
    scheduler.tick()
    [message] = messages(broker, "spoilt")
    sent_due = datetime.fromisoformat(message["headers"]["redbeat_due"])
    assert sent_due.timestamp() == pytest.approx(due, abs=1e-5)
    assert client.hget("redbeat:bad", "error") is None
    assert score_of(client, "bad") == pytest.approx(due + 3600, abs=1e-4)


UNSENDABLE: dict[str, dict[str, Any]] = {
    "countdown": {"options": {"countdown": "five"}},
    "producer": {"options": {"producer": 1}},
    "surrogate": {"options": {"queue": "\ud800"}},
    "retry-policy": {"options": {"retry_policy": "never"}},
}


def test_options_that_celery_refuses_cost_their_own_entry(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    for name, fields in UNSENDABLE.items():
        write_raw(client, name, score=1, **fields)
    write_raw(client, "good", score=2, schedule=SELDOM)
    began = server_now(client)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    for name in UNSENDABLE:
        assert field(client, name, "error")["reason"], name
        assert (score_of(client, name) or 0) > began, name
    eventually(lambda: scheduler.tick() > 0)
    assert len(errors_in(caplog)) == len(UNSENDABLE)


def test_saved_definition_is_tried_at_once(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    broker.set("spoilt", "a text")
    write_raw(client, "bad", options=REFUSED, meta=meta_json(datetime(2024, 1, 1), 5))
    began = server_now(client)
    scheduler.tick()
    assert (score_of(client, "bad") or 0) > began
    Entry("bad", "echo", schedule(3600), args=["fixed"], app=scheduler.app).save()
    scheduler.tick()
    assert sent_names(broker) == ["bad"]
    assert client.hget("redbeat:bad", "error") is None


def test_missing_hash_is_removed_after_a_second_unless_it_appears(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    now = server_now(client)
    client.zadd(SCHEDULE, {"redbeat:gone": now - 1, "redbeat:slow": now - 1})
    waits, due = scheduler.tick(), score_of(client, "gone") or 0
    assert now <= due - 1 <= server_now(client)
    assert due - server_now(client) <= waits <= 1
    assert errors_in(caplog) == []
    write_raw(client, "slow", score=1)
    client.zadd(SCHEDULE, {"redbeat:gone": 1})  # the second has passed
    scheduler.tick()
    assert sent_names(broker) == ["slow"]
    assert score_of(client, "gone") is None
    (error,) = errors_in(caplog)
    assert error.startswith("beat: Failed to load gone, removing")
    assert "evicted" in error
    client.delete("redbeat:slow")
    client.zadd(SCHEDULE, {"redbeat:slow": 1})
    scheduler.tick()
    assert score_of(client, "slow") is not None, "it was there meanwhile, so it is waited for again"


def test_run_that_could_not_be_sent_by_an_earlier_beat_goes_last(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_raw(client, "failed", score=1, schedule=SELDOM)
    client.hset("redbeat:failed", "error", "unreadable")
    write_raw(client, "good", score=2, schedule=SELDOM)
    scheduler.tick()
    assert sent_names(broker) == ["good", "failed"]


def test_unroutable_message_is_a_failure_of_its_entry(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    options = {"exchange": "nobody", "routing_key": "x"}
    write_raw(client, "bad", score=1, schedule=SELDOM, options=options)
    write_raw(client, "good", score=2, schedule=SELDOM)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    assert "no queue is bound to the exchange 'nobody'" in field(client, "bad", "error")["reason"]
    assert client.hget("redbeat:bad", "meta") is None


def test_server_that_refuses_the_login_fails_no_entry(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password that is changed while a batch is sent."""
    asked = []

    def refuse(*args: Any) -> Any:
        asked.append(args)
        raise StoreRefused("Redis refused the connection: invalid password", is_login=True)

    names = write_burst(client, 20)
    with monkeypatch.context() as patched:
        patched.setattr(schedule_module, "committed_of", refuse)
        with pytest.raises(StoreRefused):
            scheduler.tick()
    assert len(asked) <= 2, "no row is asked for alone"
    assert not [name for name in names if client.hexists(f"redbeat:{name}", "error")]
    scheduler.tick()
    assert sent_names(broker) == names


@pytest.mark.parametrize("broker_is", ["server", "other", "rabbitmq"])
def test_hundreds_of_failing_entries_delay_no_other_and_are_logged_in_few_lines(
    request: pytest.FixtureRequest,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    broker_is: str,
) -> None:
    scheduler = make_scheduler(
        broker_url=request.getfixturevalue(broker_is).url(), redbeat_publish_timeout=60
    )
    names = [f"{('bad', 'good')[number % 2]}-{number}" for number in range(200)]
    for number, name in enumerate(names):
        own = {"options": {"serializer": "nonexistent"}} if name.startswith("bad") else {}
        write_raw(client, name, score=1 + number, schedule=SELDOM, **own)
    sent: list[str] = []

    def have_all_gone() -> bool:
        scheduler.tick()
        sent.extend(message.entry for message in take_messages(scheduler.app))
        return len(sent) >= 100

    eventually(have_all_gone)
    assert sent == names[1::2]
    assert counts_of(client, names[1::2]) == {1: 100}
    scheduler.close()
    assert len(errors_in(caplog)) < 10  # three have lines of their own
    assert re.search(r"And \d+ more not sent by \w+: bad-", errors_in(caplog)[-1])


def test_entries_that_fail_again_are_put_off_when_there_are_many(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.scheduler.deliver.FAILED_SECONDS", 0)
    names = [f"bad-{number}" for number in range(40)]
    for number, name in enumerate(names):
        write_raw(client, name, score=1 + number, options={"serializer": "nonexistent"})
        client.hset(f"redbeat:{name}", "error", "of an earlier beat")
    write_raw(client, "good", score=50, schedule=SELDOM)
    scheduler = make_scheduler(redbeat_batch_size=20)
    began = server_now(client)
    for _ in range(3):
        scheduler.tick()
    assert sent_names(broker) == ["good"]
    errors = {name: field(client, name, "error") for name in names}
    put_off = [name for name in names if not errors[name]["attempts"]]
    assert len(put_off) == 20, "two batches have tried ten each"
    for name in put_off:
        assert began + 60 <= (score_of(client, name) or 0) <= server_now(client) + 75
        assert float(errors[name]["due"]) == 1 + names.index(name)


# -- errors of the application's own code skip that run, as in celery-redbeat 2.x


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


HOOKS: list[Hook] = [by_task, by_router, by_receiver, by_eager_task, by_scheduler]


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


RAISED: list[BaseException] = [
    AlreadyQueued("59 seconds left"),
    redis.ConnectionError("the lock's Redis is away"),
    StoreUnavailable("raised by hand"),
    OperationalError("raised by hand"),
    SystemExit(3),
]


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("hook", HOOKS)
def test_error_of_the_application_skips_that_run(
    make: Any, hook: Hook, settings: dict[str, Any], client: redis.Redis, broker: redis.Redis, caplog: Any
) -> None:
    errors = [exc for exc in RAISED if hook is not by_receiver or not isinstance(exc, Exception)]
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
def test_one_off_entry_is_retried_unless_its_task_was_executed(
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
def test_skipped_run_returns_its_reservation(make: Any, client: redis.Redis, overlap: str) -> None:
    scheduler = make(by_task, broker_url="memory://")
    write_raw(client, "bad", score=1, task="bad", overlap=overlap)
    scheduler.tick()
    assert raised.calls == 1
    assert client.hgetall("redbeat::running:bad") == {}
    assert client.zcard(DEADLINES) == 0


# -- an entry that changes at each of its runs


def tick_until(scheduler: RedBeatScheduler, condition: Callable[[], object]) -> None:
    """Tick as beat does, until it is so."""

    def tick() -> object:
        time.sleep(min(scheduler.tick(), 0.05))
        return condition()

    eventually(tick, retry_on=())


def test_handler_that_rewrites_its_entry_at_each_run_backs_off(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    due = int(server_now(client)) - 9.5
    write_raw(client, "own", schedule=SELDOM, score=due)
    tries: list[float] = []

    def handler(headers: dict[str, Any], **_: Any) -> None:
        if headers["redbeat_entry"] == "own":
            tries.append(time.monotonic())
            write_raw(client, "own", schedule=SELDOM, args=[len(tries)], score=None)

    before_task_publish.connect(handler)
    try:
        tick_until(scheduler, lambda: len(tries) > MAX_CONFLICTS)
        assert tries[MAX_CONFLICTS] - tries[MAX_CONFLICTS - 1] > 0.9, "tries come with pauses"
        assert "signal handler" in field(client, "own", "error")["reason"]
        write_raw(client, "other", score=2)
        tick_until(scheduler, lambda: "other" in sent_names(broker))
        assert "own" not in sent_names(broker)
    finally:
        before_task_publish.disconnect(handler)
    tick_until(scheduler, lambda: "own" in sent_names(broker))
    assert [sent.timestamp() for sent in sent_dues(broker, "own")] == [due]
    assert field(client, "own", "error") is None
