"""A program changes its app while beat runs: from the next batch on, messages are as `apply_async` makes.

Also those of runs that were prepared before the change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from tests.integration.beat.test_quick_way import masked, somebody_listening
from tests.integration.conftest import MakeApp, MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, counts_of, messages, sent_names, server_now, write_burst
from tests.support.servers import Server
from tests.support.spikes import LOOKAHEAD, prepare, write_prepared_spike, write_spike

COUNT = 30


def add_header(headers: Any = None, **_: Any) -> None:
    headers["traced"] = "yes"


def replace_task(app: Celery, **options: Any) -> None:
    app.tasks.unregister("echo")
    app.task(name="echo", **options)(echo)


def echo(*args: Any) -> None: ...


def route(app: Celery) -> None:
    app.conf.task_routes = {"echo": {"queue": "routed", "priority": 4}}


def route_anew(app: Celery) -> None:
    """Celery reads its routes once, unless it is told to do so again."""
    app.amqp.flush_routes()
    app.amqp.router = app.amqp.Router()


def set_and_tell(app: Celery, name: str, value: Any) -> None:
    """Celery reads a task's options once, unless it is told to do so again."""
    setattr(app.tasks["echo"], name, value)
    app.tasks["echo"]._exec_options = None  # noqa: SLF001 - it has no public name


CHANGES: dict[str, Callable[[Celery], Any]] = {
    "another route": lambda app: (route(app), route_anew(app)),
    "the route's queue, in place": lambda app: app.conf.task_routes["echo"].update(queue="elsewhere"),
    "the task's queue": lambda app: (app.conf.task_routes.clear(), set_and_tell(app, "queue", "of-the-task")),
    "the task's priority": lambda app: set_and_tell(app, "priority", 7),
    "the task's limit": lambda app: set_and_tell(app, "time_limit", 17),
    "the task unregistered": lambda app: app.tasks.unregister("echo"),
    "the task replaced": lambda app: replace_task(app, serializer="pickle", ignore_result=True),
    "the task's apply_async": lambda app: setattr(
        app.tasks["echo"], "apply_async", lambda *args, **options: app.send_task("other", *args, **options)
    ),
    "a receiver": lambda app: before_task_publish.connect(add_header),
}

#: Celery's messages stay the same: it has read the setting already, and won't again
UNNOTICED: dict[str, Callable[[Celery], Any]] = {
    "routes that aren't read": route,
    "a task's queue that isn't read": lambda app: setattr(app.tasks["echo"], "queue", "of-the-task"),
    "the default queue": lambda app: app.conf.update(task_default_queue="another"),
    "the default serializer": lambda app: app.conf.update(task_serializer="pickle"),
    "compression": lambda app: app.conf.update(task_compression="gzip"),
    "the queue's routing key": lambda app: setattr(app.amqp.queues["first"], "routing_key", "by-key"),
}


@pytest.fixture
def app(make_app: MakeApp) -> Iterator[Celery]:
    app = make_app(task_routes={"echo": {"queue": "first"}})
    app.task(name="echo", ignore_result=True)(echo)  # so a message tells whether the task is known
    yield app
    before_task_publish.disconnect(add_header)


def sent_to(broker: redis.Redis) -> dict[str, list[dict[str, Any]]]:
    """The messages of each queue, without what is random; taken away."""
    queues = [name for name in broker.keys("*") if broker.type(name) == "list"]
    found = {name: [masked(one) for one in messages(broker, name)] for name in queues}
    broker.flushdb()
    return found


def send_all(scheduler: RedBeatScheduler, client: redis.Redis, due: float) -> None:
    eventually(lambda: server_now(client) > due)
    eventually(lambda: scheduler.tick() > 0 and not client.zcount(SCHEDULE, 0, due))


@pytest.mark.few_cases(10)
@pytest.mark.parametrize("is_prepared", [True, False], ids=["prepared", "sent before"])
@pytest.mark.parametrize("change", [*CHANGES, *UNNOTICED])
def test_messages_are_as_apply_async_makes_them_after_the_change(
    app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    change: str,
    is_prepared: bool,
) -> None:
    scheduler, due = make_scheduler(app), server_now(client) - 10
    write_spike(client, due, COUNT)
    send_all(scheduler, client, due)
    before = sent_to(broker)
    assert {name: len(sent) for name, sent in before.items()} == {"first": COUNT}
    due = round(server_now(client) + (0.7 if is_prepared else -5), 6)
    write_spike(client, due, COUNT)
    if is_prepared:
        assert prepare(scheduler) == COUNT
    {**CHANGES, **UNNOTICED}[change](app)
    send_all(scheduler, client, due)
    found = sent_to(broker)
    scheduler.close()

    client.flushdb()
    write_spike(client, due, COUNT)
    with somebody_listening():
        send_all(make_scheduler(app), client, due)
    expected = sent_to(broker)
    assert sum(map(len, expected.values())) == COUNT
    is_noticed = expected.keys() != {"first"} or looks_of(expected["first"][0]) != looks_of(
        before["first"][0]
    )
    assert is_noticed == (change in CHANGES), "else this test would show nothing"
    assert found == expected


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("is_prepared", [True, False], ids=["prepared", "sent before"])
def test_which_of_a_task_s_expiry_and_queue_timeout_is_earlier_is_asked_anew_after_a_change(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, is_prepared: bool
) -> None:
    scheduler = make_scheduler(app)
    scheduler.tick()
    for expires, seconds in ((None, 60), (30, 30), (90, 60)):
        due = round(server_now(client) + (patience(2) if is_prepared else -5), 6)
        for name in write_spike(client, due, 3):
            client.hset(f"redbeat:{name}", "policy", '{"queue_timeout": 60}')
        if is_prepared:
            assert eventually(lambda: prepare(scheduler)) == 3
        set_and_tell(app, "expires", expires)
        send_all(scheduler, client, due)
        sent_at = server_now(client)
        headers = [message["headers"] for message in messages(broker, "first")]
        broker.flushdb()
        assert len(headers) == 3
        for one in headers:
            left = datetime.fromisoformat(one["expires"]).timestamp() - sent_at
            assert left == pytest.approx(seconds, abs=14)
            assert one.get("redbeat_queue_timeout") == (60 if seconds == 60 else None)


def looks_of(message: dict[str, Any]) -> list[Any]:
    """A message without what is another for each run."""
    of_run = ("id", "root_id", "redbeat_due")
    headers = {name: value for name, value in message["headers"].items() if name not in of_run}
    return [message["body"], message["content-type"], headers]


# -- a beat at work, whose app is changed by a thread at any moment

_CHANGING = """
import threading
from celery.signals import before_task_publish

app.conf.task_routes = {{"echo": {{"queue": "first"}}}}

def change():
    {change}

def change_amid():
    client = redis.Redis.from_url({url!r})
    while client.llen("first") < {at}:
        time.sleep(0.0005)
    change()
    client.set("changed-at", client.llen("first"))

threading.Thread(target=change_amid, daemon=True).start()
"""

AMID = {
    "route": 'app.conf.task_routes["echo"]["queue"] = "celery"',
    "receiver": (
        'before_task_publish.connect(lambda headers=None, **rest: headers.update(traced="yes"), weak=False)'
    ),
    "task's limit": 'app.tasks["echo"].time_limit = 3; app.tasks["echo"]._exec_options = None',
}


def is_changed(message: dict[str, Any]) -> bool:
    return "traced" in message["headers"] or message["headers"]["timelimit"] != [None, None]


@contextmanager
def beat_that_changes(server: Server, folder: Path, change: str, at: int) -> Iterator[None]:
    extra = _CHANGING.format(change=AMID[change], url=server.url(0), at=at)
    settings = {"redbeat_redis_url": server.url(1), "redbeat_lookahead": LOOKAHEAD}
    write_app(folder, "module", server.url(0), extra=extra, **settings)
    with celery_beat(folder, "module") as beat:
        beat.wait_for("beat: Acquired lock")
        yield
        assert "beat: Messages: compiled." in beat.output()
        assert not has_traceback(beat.output()), beat.output()


@pytest.mark.few_cases(1)
@pytest.mark.parametrize(("change", "kind"), [*product(AMID, ["burst", "spike"])])
def test_a_change_by_a_thread_counts_from_the_next_batch_on(
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    tmp_path: Path,
    chance: random.Random,
    change: str,
    kind: str,
) -> None:
    # of a spike 500 are made at once, and 5 calls of 100 are on their way to the server at most
    count, batch = 2_500, 500 if kind == "burst" else 1_000
    at = chance.randint(1, 1_000)
    with beat_that_changes(server, tmp_path, change, at):
        if kind == "burst":
            names = write_burst(client, count)
        else:
            names = write_prepared_spike(client, 3, count).names
        queues = ("first", "celery")
        eventually(lambda: sum(map(broker.llen, queues)) >= count)
        changed_at = int(eventually(lambda: broker.get("changed-at")) or 0)
    sent = messages(broker, "first")
    old = [message for message in sent if not is_changed(message)]
    print(f"{kind}: changed when {changed_at} of {count} were sent; {len(old)} were made before")
    assert sent[: len(old)] == old, "none is made in the old way after one that is made in the new"
    assert at <= len(old) <= changed_at + batch
    assert sorted([*sent_names(broker, "first"), *sent_names(broker)]) == sorted(names)
    assert counts_of(client, names) == {1: count}
