"""Beat's banner says which way messages go, and why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, write_app
from tests.support.rabbitmq import RabbitMQ
from tests.support.servers import Server

COMPILED = "compiled, where task and entry allow it"


def line_of(app: Celery, scheduler: type[RedBeatScheduler] = RedBeatScheduler) -> str:
    """The banner's line about messages."""
    lines = scheduler(app, lazy=True).info.splitlines()
    [found] = [line for line in lines if ". messages -> " in line]
    assert found.startswith("    . messages -> ")
    return found.partition(" -> ")[2]


def route(*args: Any, **kwargs: Any) -> None: ...


def test_a_plain_apps_messages_are_compiled(app: Celery) -> None:
    assert line_of(app) == COMPILED


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"redbeat_lock_key": None}, "redbeat_lock_key is None"),
        ({"redbeat_delivery": "at_most_once"}, "redbeat_delivery is 'at_most_once'"),
        ({"task_send_sent_event": True}, "task_send_sent_event is set"),
        ({"task_compression": "zlib"}, "task_compression is 'zlib'"),
        ({"task_routes": [route]}, f"task_routes has a function: {__name__}.route"),
    ],
    ids=["no lock", "at most once", "events", "compression", "a router"],
)
def test_a_setting_that_keeps_messages_from_it_is_named(
    settings: dict[str, Any], reason: str, make_app: MakeApp
) -> None:
    assert line_of(make_app(**settings)) == f"one by one: {reason}"


def test_messages_to_rabbitmq_are_compiled_if_they_are_confirmed(
    make_app: MakeApp, rabbitmq: RabbitMQ
) -> None:
    app = make_app(broker_url=rabbitmq.url())
    assert line_of(app) == COMPILED
    app.conf.broker_transport_options = {"confirm_publish": False}
    assert line_of(app) == "one by one: confirm_publish is False"


def test_another_broker_is_named(make_app: MakeApp) -> None:
    app = make_app(broker_url="memory://")
    assert line_of(app) == "one by one: the broker is neither Redis nor RabbitMQ"


def test_a_scheduler_of_ones_own_is_named(app: Celery) -> None:
    class Shop(RedBeatScheduler):
        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            return super().apply_async(*args, **kwargs)

    assert line_of(app, Shop) == f"one by one: {__name__}.{Shop.__qualname__} overrides apply_async"


def test_a_broker_that_is_away_takes_no_part(make_app: MakeApp) -> None:
    assert line_of(make_app(broker_url="redis://127.0.0.1:1/0")) == COMPILED


@pytest.mark.parametrize(
    ("routes", "reason"),
    [
        ("no.such.module.route", "task_routes has a function: no.such.module.route"),
        ([("proj.*",)], "task_routes can't be used: ValueError: "),
        ({5: "queue"}, "task_routes can't be used: TypeError: "),
    ],
    ids=["no such module", "half a pair", "a number"],
)
def test_routes_that_cannot_be_used_are_no_error_of_the_banner(
    routes: Any, reason: str, make_app: MakeApp
) -> None:
    assert line_of(make_app(task_routes=routes)).startswith(f"one by one: {reason}")


def test_all_that_is_in_the_way_is_named(make_app: MakeApp) -> None:
    app = make_app(task_send_sent_event=True, task_compression="zlib", task_routes=[route])
    with somebody_listening("one"), somebody_listening("two"):
        line = line_of(app)
    assert line == (
        "one by one: task_send_sent_event is set; task_compression is 'zlib'; "
        f"a receiver of before_task_publish: {__name__}.somebody_listening.<locals>.one; "
        f"a receiver of before_task_publish: {__name__}.somebody_listening.<locals>.two; "
        f"task_routes has a function: {__name__}.route"
    )


@contextmanager
def somebody_listening(name: str) -> Iterator[None]:
    def note(**said: Any) -> None: ...

    note.__qualname__ = f"somebody_listening.<locals>.{name}"
    before_task_publish.connect(note)
    try:
        yield
    finally:
        before_task_publish.disconnect(note)


def test_a_receiver_cannot_forge_a_line_of_the_banner(app: Celery) -> None:
    def note(**said: Any) -> None: ...

    note.__qualname__ = "note\n    . lock -> none"
    before_task_publish.connect(note)
    try:
        assert (
            line_of(app)
            == rf"one by one: a receiver of before_task_publish: {__name__}.note\n    . lock -> none"
        )
    finally:
        before_task_publish.disconnect(note)


def test_a_real_beat_shows_it_before_it_starts(server: Server, tmp_path: Path) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Acquired lock")
        assert f"    . messages -> {COMPILED}\n" in beat.output()
