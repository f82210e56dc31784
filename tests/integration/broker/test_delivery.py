"""Which guarantee a run gets: by the servers there are, what their users may do, and the setting."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from unittest import mock

import pytest
import redis
from celery import Celery
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler
from redbeat.delivery.broker import Delivery, Mode
from redbeat.errors import StoreUnavailable
from redbeat.scheduler.deliver import Deliverer
from redbeat.store.records import Target
from tests.integration.conftest import MakeScheduler
from tests.support.deadlines import patience
from tests.support.logs import errors_in, warnings_in
from tests.support.proxy import Proxy
from tests.support.schedule import (
    SCHEDULE,
    SELDOM,
    counts_of,
    due_count,
    expected_id,
    field,
    messages,
    monitoring,
    retry_now,
    sent_names,
    write_burst,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import leader, memory_app
from tests.support.topologies import ClusterTopology, SentinelTopology

EXACTLY = ". delivery -> exactly once"
AT_LEAST = ". delivery -> at least once, each run with one task id"
AT_MOST = ". delivery -> at most once"
OF_ANOTHER_SERVER = Target("0" * 40, 1, 0)


@pytest.mark.parametrize("database", [0, 1], ids=["another db", "one db"])
def test_run_on_one_server_is_pushed_and_recorded_by_one_script(
    server: Server, make_scheduler: MakeScheduler, client: redis.Redis, database: int
) -> None:
    scheduler = make_scheduler(broker_url=server.url(database))
    assert EXACTLY in scheduler.info
    write_raw(client, "entry")
    with monitoring(server) as outside_scripts:
        scheduler.tick()
    assert not [command for command in outside_scripts if command.upper().startswith("LPUSH")]
    with server.client(db=database) as broker:
        assert sent_names(broker) == ["entry"]
    assert field(client, "entry", "meta")["total_run_count"] == 1


def test_server_is_identified_by_its_run_id(valkey: Server, make_scheduler: MakeScheduler) -> None:
    by_name = f"redis://localhost:{valkey.port}/0"
    assert EXACTLY in make_scheduler(broker_url=by_name, redbeat_redis_url=valkey.url(1)).info
    with Server(unix_socket=True) as server:
        by_socket = f"redis+socket://{server.socket_path}"
        assert EXACTLY in make_scheduler(broker_url=by_socket, redbeat_redis_url=server.url(1)).info


def test_batch_for_another_server_is_sent_in_one_round_trip_and_then_recorded(
    server: Server, other: Server, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    scheduler = make_scheduler(broker_url=other.url(0))
    assert AT_LEAST in scheduler.info
    write_raw(client, "warm-up", schedule=SELDOM)
    scheduler.tick()
    names = write_burst(client, 20)
    with (
        mock.patch.object(
            redis.client.Pipeline, "execute", autospec=True, side_effect=redis.client.Pipeline.execute
        ) as execute,
        monitoring(other) as commands,
    ):
        scheduler.tick()
    assert execute.call_count == 1
    assert [command.split()[0].upper() for command in commands] == ["LPUSH"] * 20
    with other.client() as broker:
        assert sent_names(broker) == ["warm-up", *names]
    assert {field(client, name, "meta")["total_run_count"] for name in names} == {1}


def test_delivery_in_a_cluster_is_at_least_once(cluster: ClusterTopology) -> None:
    app = memory_app(redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True})
    with leader(app) as scheduler:
        assert AT_LEAST in scheduler.info


def test_delivery_behind_sentinels_is_exactly_once(sentinel: SentinelTopology) -> None:
    app = memory_app(
        broker_url=sentinel.url(db=0), broker_transport_options={"master_name": sentinel.service_name}
    )
    with leader(app) as scheduler:
        assert EXACTLY in scheduler.info
        assert ". messages -> compiled" in scheduler.info


def test_commit_on_another_server_than_intended_pushes_nothing(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    write_raw(client, "before", schedule=SELDOM)
    scheduler.tick()
    after = write_burst(client, 300)  # several recordings

    def choose(delivery: Delivery) -> Mode:
        delivery.target = OF_ANOTHER_SERVER
        return Mode.SCRIPT

    with monkeypatch.context() as after_a_failover:
        after_a_failover.setattr(Delivery, "choose", choose)
        assert scheduler.tick() == 0
    assert (sent_names(broker), client.hget("redbeat:entry-0", "meta")) == (["before"], None)
    assert due_count(client) == len(after)
    scheduler.tick()
    assert sent_names(broker) == ["before", *after]
    assert counts_of(client, after) == {1: len(after)}
    assert caplog.text.count("The schedule is on another server now") == 1


@pytest.mark.parametrize(
    "rights",
    ["~redbeat:* +@all", "~* +@all -info", "~* +@all -select"],
    ids=["no queue", "no INFO", "no SELECT in scripts"],
)
def test_schedule_user_without_rights_to_queues_delivers_at_least_once(
    server: Server,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    rights: str,
) -> None:
    client.execute_command("ACL SETUSER", "limited", "reset", "on", ">secret", "&*", *rights.split())
    home = 0 if "-select" in rights else 1  # without SELECT a client cannot use another database
    url = f"redis://limited:secret@127.0.0.1:{server.port}/{home}"
    scheduler = make_scheduler(redbeat_redis_url=url, broker_url=server.url(1 - home))
    schedule = broker if home == 0 else client
    queues = client if home == 0 else broker
    for name in ("first", "second"):
        write_raw(schedule, name, schedule=SELDOM)
    for _ in range(3):
        scheduler.tick()
    assert sorted(sent_names(queues)) == ["first", "second"]
    assert field(schedule, "first", "meta")["total_run_count"] == 1
    [warning] = [text for text in warnings_in(caplog) if "Runs are delivered at least once" in text]
    assert "may not push messages" in warning


@pytest.mark.parametrize("is_declared", [True, False])
def test_queue_of_the_wrong_type_on_another_server_holds_up_its_own_runs_only(
    make_scheduler: MakeScheduler, other: Server, client: redis.Redis, is_declared: bool
) -> None:
    scheduler = make_scheduler(broker_url=other.url(0))
    write_raw(client, "held", schedule=SELDOM, options={"queue": "spoilt"}, score=1)
    with other.client() as broker:
        if is_declared:
            scheduler.tick()
            client.zadd(SCHEDULE, {"redbeat:held": 1.5})
        broker.set("spoilt", "a string")
        write_raw(client, "free", schedule=SELDOM, score=3)
        scheduler.tick()
        assert sent_names(broker) == ["free"]
        assert "WRONGTYPE" in field(client, "held", "error")["reason"]
        broker.delete("spoilt")
        retry_now(client, "held")
        scheduler.tick()
        [message] = messages(broker, "spoilt")
    assert message["headers"]["id"] == expected_id("held", 1.5 if is_declared else 1)
    assert field(client, "held", "meta")["total_run_count"] == 1 + is_declared


class Ending(RedBeatScheduler):
    """Ends when it is about to send `last`, as a crash would."""

    def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
        if entry.name == "last":
            raise KeyboardInterrupt
        return super().apply_async(entry, *args, **kwargs)


@pytest.fixture(params=["same", "other"])
def at_most_once(
    request: pytest.FixtureRequest, server: Server, other: Server
) -> Iterator[tuple[dict[str, Any], redis.Redis]]:
    """The settings, and a client of the broker."""
    broker_server = server if request.param == "same" else other
    with broker_server.client() as broker:
        yield {"redbeat_delivery": "at_most_once", "broker_url": broker_server.url(0)}, broker


def test_at_most_once_run_is_recorded_before_it_is_sent(
    at_most_once: tuple[dict[str, Any], redis.Redis], make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    settings, broker = at_most_once
    scheduler = make_scheduler(scheduler=Ending, **settings)
    assert AT_MOST in scheduler.info
    write_burst(client, ["first", "last", "unreached"])
    with pytest.raises(KeyboardInterrupt):
        scheduler.tick()
    scheduler.close()
    make_scheduler(**settings).tick()
    assert sent_names(broker) == ["first"]  # the others' runs are lost, and none is doubled
    assert field(client, "last", "meta")["total_run_count"] == 1


def test_at_most_once_entry_deleted_after_the_fetch_is_not_sent(
    at_most_once: tuple[dict[str, Any], redis.Redis], make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    settings, broker = at_most_once
    scheduler = make_scheduler(**settings)
    write_burst(client, ["first", "deleted", "third"])
    deliver = Deliverer.deliver

    def delete_and_deliver(*args: Any) -> None:
        client.delete("redbeat:deleted")
        deliver(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Deliverer, "deliver", delete_and_deliver)
        scheduler.tick()
    assert sent_names(broker) == ["first", "third"]


def test_at_most_once_lost_run_is_named_in_the_log(
    at_most_once: tuple[dict[str, Any], redis.Redis],
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings, broker = at_most_once
    broker.set("spoilt", "a string")
    write_raw(client, "held", schedule=SELDOM, options={"queue": "spoilt"}, score=1)
    write_raw(client, "free", schedule=SELDOM, score=2)
    scheduler = make_scheduler(**settings)
    scheduler.tick()
    scheduler.tick()
    assert sent_names(broker) == ["free"]
    [lost] = [message for message in errors_in(caplog) if "Lost a run" in message]
    assert "held" in lost
    assert "at_most_once" in lost
    assert "WRONGTYPE" in lost


@pytest.mark.parametrize("trouble", ["lost", "late", "missing"])
def test_at_most_once_run_whose_recording_has_no_answer_is_sent_or_named_in_the_log(
    server: Server,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    names = ["first", "second", "third"]
    with Proxy((server.host, server.port)) as way:
        options = {"socket_timeout": 0.5, "retry_period": 2}
        settings = {"redbeat_redis_url": way.url(server.url(1)), "redbeat_redis_options": options}
        scheduler = make_scheduler(**settings, redbeat_delivery="at_most_once")
        write_burst(client, ["before"])
        scheduler.tick()
        write_burst(client, names)
        if trouble == "lost":
            way.cut_on(b"redbeat:second", "reply")
        else:
            frozen = way.freeze_on(b"redbeat:second")
        healing = threading.Thread(target=lambda: frozen.wait(patience()) and (time.sleep(1), way.thaw()))
        if trouble == "late":
            healing.start()
        with suppress(StoreUnavailable):
            scheduler.tick()
        if trouble == "late":
            healing.join()
    lost = [message for message in errors_in(caplog) if "Lost a run" in message]
    if trouble == "missing":
        assert len(lost) == len(names)
        assert all("StoreUnavailable" in message for message in lost)
        assert sent_names(broker) == ["before"]
    else:
        assert lost == []
        assert sent_names(broker) == ["before", *names]
    assert counts_of(client, names) == {1: len(names)}


def said_of_delivery(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log lines about delivery, oldest first."""
    return [record.getMessage() for record in caplog.records if "Delivery: " in record.getMessage()]


def send(scheduler: RedBeatScheduler, client: redis.Redis, name: str) -> None:
    """Let an entry be due, and tick until it is sent."""
    write_raw(client, name, schedule=SELDOM)
    while not scheduler.tick():
        pass


@pytest.mark.parametrize("missing", [["-info"], ["resetkeys", "~redbeat:*"]], ids=["INFO", "the queue"])
def test_missing_right_is_tried_again_with_the_next_connection(
    server: Server,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    missing: list[str],
) -> None:
    caplog.set_level(logging.INFO)
    client.execute_command("ACL SETUSER", "schedule", "reset", "on", ">secret", "~*", "&*", "+@all", *missing)
    scheduler = make_scheduler(redbeat_redis_url=f"redis://schedule:secret@127.0.0.1:{server.port}/1")
    for name in ("first", "second"):
        send(scheduler, client, name)
        scheduler._broker.close()  # noqa: SLF001 - as when it was away; here it is the server of the schedule
    assert said_of_delivery(caplog) == ["beat: Delivery: at least once, each run with one task id."]
    warnings = warnings_in(caplog)
    assert len(warnings) == len(set(warnings)), "a right that is still missing is no news"

    client.execute_command("ACL SETUSER", "schedule", "~*", "+@all")
    for name in ("third", "fourth"):
        send(scheduler, client, name)
    assert said_of_delivery(caplog) == [
        "beat: Delivery: at least once, each run with one task id.",
        "beat: Delivery: exactly once.",
    ]
    assert sent_names(broker) == ["first", "second", "third", "fourth"]


def test_banner_names_user_code_that_rules_out_templates_and_escapes_it(app: Celery) -> None:
    def note(**said: Any) -> None: ...

    note.__qualname__ = "note\n    . lock -> none"
    before_task_publish.connect(note)
    try:
        info = Ending(app, lazy=True).info
    finally:
        before_task_publish.disconnect(note)
    [found] = [line for line in info.splitlines() if line.startswith("    . messages -> ")]
    assert f"{__name__}.Ending overrides apply_async" in found
    assert rf"a receiver of before_task_publish: {__name__}.note\n    . lock -> none" in found
