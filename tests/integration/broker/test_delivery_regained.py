"""Exactly once is given up for want of a right only, and for as long as it is wanting."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis

from redbeat import RedBeatScheduler
from redbeat.broker.delivery import Delivery
from redbeat.broker.outbox import Outbox
from redbeat.errors import StoreRefused
from tests.integration.conftest import MakeScheduler
from tests.support.logs import warnings_in
from tests.support.polling import eventually
from tests.support.schedule import SELDOM, sent_names, write_burst, write_raw
from tests.support.servers import Server

EXACTLY = "beat: Delivery: exactly once."
AT_LEAST = "beat: Delivery: at least once, each run with one task id."


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of delivery, oldest first."""
    return [record.getMessage() for record in caplog.records if "Delivery: " in record.getMessage()]


def send(scheduler: RedBeatScheduler, client: redis.Redis, name: str) -> None:
    """Let an entry be due, and tick until it is sent."""
    write_raw(client, name, schedule=SELDOM)
    while not scheduler.tick():
        pass


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """The server runs a script, and refuses everything else."""

    def run_on() -> None:
        with server.client() as client, suppress(redis.exceptions.ResponseError):
            client.eval("while true do end", 0)

    def is_busy() -> bool:
        try:
            return not client.ping()
        except redis.exceptions.ResponseError as exc:
            return str(exc).startswith("BUSY")

    with server.client() as client:
        client.config_set("busy-reply-threshold", 10)
        thread = threading.Thread(target=run_on)
        thread.start()
        try:
            eventually(is_busy)
            yield
        finally:
            client.script_kill()
            thread.join()
            client.config_set("busy-reply-threshold", 5000)


def test_a_schedule_that_is_busy_when_it_is_asked_who_it_is_is_asked_again(
    server: Server,
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_raw(client, "first", schedule=SELDOM)

    target = Delivery.target

    def find_while_busy(delivery: Delivery) -> Any:
        with busy(server):
            return target(delivery)

    with monkeypatch.context() as patched:
        patched.setattr(Delivery, "target", find_while_busy)
        with pytest.raises(StoreRefused, match="BUSY"):
            scheduler.tick()
    send(scheduler, client, "second")
    assert sorted(sent_names(broker)) == ["first", "second"]
    assert (told(caplog), warnings_in(caplog)) == ([EXACTLY], [])


def test_a_broker_that_is_busy_when_it_is_asked_who_it_is_is_asked_again(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server_id, refused = Outbox.server_id, list[str]()

    def refuse_once(outbox: Outbox) -> Any:
        # a moment ago the same server has answered the schedule's client: nothing real is that quick
        if not refused:
            refused.append("BUSY Redis is busy running a script.")
            raise redis.exceptions.ResponseError(refused[0])
        return server_id(outbox)

    monkeypatch.setattr(Outbox, "server_id", refuse_once)
    send(scheduler, client, "first")
    eventually(lambda: not scheduler.tick() or sent_names(broker))
    assert (sent_names(broker), len(refused)) == (["first"], 1)
    assert told(caplog) == [EXACTLY]


@pytest.mark.parametrize(
    "missing", [["-info"], ["-lpush"], ["resetkeys", "~redbeat:*"]], ids=["INFO", "LPUSH", "the queue"]
)
def test_a_right_that_was_missing_is_tried_again_with_the_next_connection_to_the_broker(
    server: Server,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    missing: list[str],
) -> None:
    client.execute_command("ACL SETUSER", "schedule", "reset", "on", ">secret", "~*", "&*", "+@all", *missing)
    scheduler = make_scheduler(redbeat_redis_url=f"redis://schedule:secret@127.0.0.1:{server.port}/1")
    for name in ("first", "second"):
        send(scheduler, client, name)
        scheduler._broker.close()  # noqa: SLF001 - as when it was away; here it is the server of the schedule
    assert told(caplog) == [AT_LEAST]
    warnings = warnings_in(caplog)
    assert len(warnings) == len(set(warnings)), "a right that is still missing is no news"

    client.execute_command("ACL SETUSER", "schedule", "~*", "+@all")
    for name in ("third", "fourth"):
        send(scheduler, client, name)
    assert told(caplog) == [AT_LEAST, EXACTLY]
    assert sent_names(broker) == ["first", "second", "third", "fourth"]


def test_a_server_without_the_command_info_is_delivered_to_at_least_once(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those that are rented, and have it renamed."""

    def refuse(*_args: Any) -> Any:
        raise redis.exceptions.ResponseError("unknown command 'INFO', with args beginning with: 'server'")

    monkeypatch.setattr(scheduler.store.client, "info", refuse)
    for name in ("first", "second"):
        send(scheduler, client, name)
    assert told(caplog) == [AT_LEAST]
    assert sent_names(broker) == ["first", "second"]


# -- the banner promises nothing that may yet be forbidden


IN_THE_BANNER = "    . delivery -> exactly once"
IF_IT_MAY = f"{IN_THE_BANNER}, if the schedule's user may push"


def test_another_user_than_the_brokers_delivers_exactly_once_if_it_may(
    server: Server, make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    client.execute_command("ACL SETUSER", "schedule", "reset", "on", ">secret", "~*", "&*", "+@all")
    scheduler = make_scheduler(redbeat_redis_url=f"redis://schedule:secret@127.0.0.1:{server.port}/1")
    assert IF_IT_MAY in scheduler.info.splitlines()
    write_burst(client, ["entry"])
    for _ in range(2):
        scheduler.tick()
    assert told(caplog) == [EXACTLY]


def test_one_user_for_both_delivers_exactly_once(
    server: Server, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    assert IN_THE_BANNER in make_scheduler().info.splitlines()
    client.execute_command("ACL SETUSER", "both", "reset", "on", ">secret", "~*", "&*", "+@all")
    url = f"redis://both:secret@127.0.0.1:{server.port}"
    scheduler = make_scheduler(broker_url=f"{url}/0", redbeat_redis_url=f"{url}/1", redbeat_lock_key="other")
    assert IN_THE_BANNER in scheduler.info.splitlines()
