"""What falls due soon is prepared, leaves at its time and not before, and only as its entry is then."""

from __future__ import annotations

import json
import logging
import signal
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat import RedBeatScheduler
from redbeat.log.logger import logger
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.proxy import Proxy
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    messages,
    monitored,
    score_of,
    sent_names,
    server_now,
    write_raw,
)
from tests.support.servers import Server
from tests.support.spikes import LOOKAHEAD, prepare, write_spike

COUNT = 300
#: a beat ticks that often while there is something to wait for
TICKS_SECONDS = 0.005


@pytest.fixture
def due(client: redis.Redis) -> float:
    return round(server_now(client) + 2, 6)


@pytest.fixture
def at_work(scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis) -> RedBeatScheduler:
    """A scheduler that has found out how runs are delivered."""
    write_raw(client, "first")
    scheduler.tick()
    client.delete("redbeat:first")
    client.zrem(SCHEDULE, "redbeat:first")
    broker.delete("celery")
    return scheduler


def tick_until(scheduler: RedBeatScheduler, client: redis.Redis, moment: float) -> None:
    """Tick until the server's clock shows ``moment``, and once more."""

    def is_over() -> bool:
        is_last = server_now(client) >= moment
        scheduler.tick()
        return is_last

    eventually(is_over, interval=TICKS_SECONDS, retry_on=())


def test_prepared_runs_leave_at_their_time_and_not_before(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    names = write_spike(client, due)
    assert prepare(at_work) == COUNT

    def are_sent() -> bool:
        before = server_now(client)
        at_work.tick()
        if before < due and broker.llen("celery"):
            assert server_now(client) >= due, "they left early"
        return bool(broker.llen("celery"))

    eventually(are_sent, interval=TICKS_SECONDS, retry_on=())
    assert sent_names(broker) == names
    history = [json.loads(client.lindex(f"redbeat::history:{name}", 0) or "") for name in names]
    assert all(record["at"] >= record["due"] == due for record in history)
    assert client.zcount(SCHEDULE, due + 3599, due + 3601) == COUNT


CHANGES: dict[str, Callable[[redis.Redis, str], Any]] = {
    "deleted": lambda client, name: (
        client.delete(f"redbeat:{name}"),
        client.zrem(SCHEDULE, f"redbeat:{name}"),
    ),
    "put off": lambda client, name: client.zadd(SCHEDULE, {f"redbeat:{name}": server_now(client) + 1000}),
    "taken out": lambda client, name: client.zrem(SCHEDULE, f"redbeat:{name}"),
    "disabled": lambda client, name: write_raw(client, name, score=None, enabled=False),
    "paused": lambda client, name: client.hset(
        f"redbeat:{name}", "policy", '{"end_time": "2020-01-01T00:00Z"}'
    ),
}


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_since_it_was_prepared_is_not_sent_as_it_was(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float, change: str
) -> None:
    names = write_spike(client, due, 20)
    assert prepare(at_work) == 20
    for name in names[::2]:
        CHANGES[change](client, name)
    tick_until(at_work, client, due)
    assert sent_names(broker) == names[1::2]


@pytest.mark.parametrize("is_withheld", [False, True], ids=["refused", "withheld"])
def test_of_runs_that_fall_due_while_redis_is_away_one_stands_for_all_though_the_first_was_prepared(
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    make_scheduler: MakeScheduler,
    due: float,
    is_withheld: bool,
) -> None:
    every_second = {"__type__": "interval", "every": 1, "relative": False}
    options = {"retry_period": -1}
    with Proxy((server.host, server.port)) as way:
        scheduler = make_scheduler(redbeat_redis_url=way.url(server.url(1)), redbeat_redis_options=options)
        write_raw(client, "first")
        scheduler.tick()
        broker.delete("celery")
        write_raw(client, "often", score=due, schedule=every_second)
        assert prepare(scheduler) == 1
        if is_withheld:  # the commit is on its way all the time
            way.freeze()
        else:
            way.refuse()
            way.drop()
        come_back = way.thaw if is_withheld else way.accept
        away = threading.Timer(max(due - server_now(client), 0) + 2.5, come_back)
        away.start()
        eventually(lambda: scheduler.look_ahead.is_due)
        eventually(lambda: scheduler.tick() is not None and broker.llen("celery"), interval=TICKS_SECONDS)
        away.join()
        back = server_now(client)
        [sent] = messages(broker)
    due_at = datetime.fromisoformat(sent["headers"]["redbeat_due"]).timestamp()
    assert due + 1 < due_at <= back


def test_a_prepared_run_whose_message_is_refused_pauses_as_any_other(
    at_work: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    due: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    [name] = write_spike(client, due, 1)
    assert prepare(at_work) == 1
    broker.set("celery", "no list")
    tick_until(at_work, client, due)
    said = [line for line in caplog.messages if "Couldn't send" in line]
    assert len(said) == 1, said
    assert "WRONGTYPE" in said[0]
    assert "WRONGTYPE" in (client.hget(f"redbeat:{name}", "error") or "")
    broker.delete("celery")
    eventually(lambda: at_work.tick() and sent_names(broker) == [name])


def test_the_log_tells_of_prepared_runs_that_are_sent_and_of_no_others(
    at_work: RedBeatScheduler,
    client: redis.Redis,
    due: float,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    names = write_spike(client, due, 10)
    write_raw(client, "changed", score=due)
    assert prepare(at_work) == 11
    for change, name in zip(CHANGES.values(), names, strict=False):
        change(client, name)
    write_raw(client, "changed", score=None, args=["new"])
    eventually(lambda: at_work.look_ahead.is_due)
    at_work.tick()
    told = [record.args[0] for record in caplog.records if "Sending due task" in record.msg and record.args]
    assert told == [*names[len(CHANGES) :], "changed"]


def test_messages_that_expire_some_time_after_they_are_sent_count_from_the_due_time(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    names = write_spike(client, due, 3, options={"expires": 1})
    assert prepare(at_work) == 3
    tick_until(at_work, client, due)
    found = messages(broker)
    assert [one["headers"]["redbeat_entry"] for one in found] == names
    for one in found:
        assert datetime.fromisoformat(one["headers"]["expires"]).timestamp() == pytest.approx(due + 1)


def test_a_prepared_run_that_is_late_leaves_with_a_message_that_has_not_expired(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    """The option counts from when it is sent, and only its policy lets a run expire by itself."""
    write_spike(client, due, 3, options={"expires": 0.5})
    assert prepare(at_work) == 3
    eventually(lambda: server_now(client) > due + 0.6)
    at_work.tick()
    sent = messages(broker)
    assert len(sent) == 3
    for one in sent:
        assert datetime.fromisoformat(one["headers"]["expires"]).timestamp() > due + 1


def test_new_arguments_are_sent_though_the_run_was_prepared_with_others(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    names = write_spike(client, due, 20, args=["old"])
    assert prepare(at_work) == 20
    for name in names[:10]:
        write_raw(client, name, score=due, args=["new"])
    tick_until(at_work, client, due)
    sent = {one["headers"]["redbeat_entry"]: one["headers"]["argsrepr"] for one in messages(broker)}
    assert sent == {name: "['new']" if name in names[:10] else "['old']" for name in names}


def test_an_entry_that_was_asked_for_meanwhile_is_sent_at_once_and_not_again(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    [name] = write_spike(client, due, 1, schedule={"__type__": "interval", "every": 10**9})
    assert prepare(at_work) == 1
    client.zadd(SCHEDULE, {f"redbeat:{name}": 0})
    at_work.tick()
    assert broker.llen("celery") == 1
    tick_until(at_work, client, due)
    assert broker.llen("celery") == 1


def test_a_beat_that_has_lost_its_lock_sends_nothing_that_it_has_prepared(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    write_spike(client, due)
    assert prepare(at_work) == COUNT
    client.set(LOCK, "another's")
    with pytest.raises(Exception, match="lock"):
        tick_until(at_work, client, due)
    assert broker.llen("celery") == 0


def test_a_clock_that_runs_ahead_lets_nothing_leave_early(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    names = write_spike(client, due + 3)
    assert prepare(at_work) == COUNT
    at_work.look_ahead.note_clock(due + 1000)
    at_work.tick()
    assert broker.llen("celery") == 0
    tick_until(at_work, client, due + 3)
    assert sorted(sent_names(broker)) == names


def test_memory_bounds_what_is_prepared_and_the_rest_is_sent_all_the_same(
    make_scheduler: Any, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    scheduler = make_scheduler(redbeat_message_cache_bytes=200_000)
    write_raw(client, "first", schedule={"__type__": "interval", "every": 10**9})
    scheduler.tick()
    names = write_spike(client, due)
    assert 10 < prepare(scheduler) < COUNT
    tick_until(scheduler, client, due)
    while scheduler.tick() <= 0:
        pass
    assert sorted(sent_names(broker)) == ["entry-000", *names[1:], "first"]


def test_prepared_runs_give_way_to_what_was_due_before_them(
    make_scheduler: Any, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    scheduler = make_scheduler(redbeat_batch_size=10)
    older = [f"older-{number:02}" for number in range(40)]
    for number, name in enumerate(older):
        write_raw(client, name, score=1 + number, schedule={"__type__": "interval", "every": 10**10})
        client.hset(f"redbeat:{name}", "policy", '{"jitter": 0.001}')  # so that it isn't prepared
    scheduler.tick()
    names = write_spike(client, due, 30)
    assert prepare(scheduler) == 30
    eventually(lambda: server_now(client) > due)
    while scheduler.tick() <= 0:
        pass
    assert sent_names(broker) == [*older, *names]


@pytest.mark.parametrize("settings", [{"redbeat_lookahead": LOOKAHEAD}], ids=["far ahead"])
def test_an_entry_that_is_due_again_soon_is_read_again_and_no_other_is(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, server: Server
) -> None:
    pause = patience(2)  # all is read before, and read again after, the next of these times
    due = round(server_now(client) + pause, 6)
    write_spike(client, due + 2 * pause)
    write_raw(client, "often", score=due, schedule={"__type__": "interval", "every": pause})
    assert prepare(at_work) == COUNT + 1
    with monitored(server) as seen:
        tick_until(at_work, client, due)
        at_work.look_ahead.prepare()
    assert sent_names(broker) == ["often"]
    assert len(at_work.look_ahead) == COUNT + 1
    read = {one.command.split()[1] for one in seen if one.command.upper().startswith("HMGET")}
    assert read == {"redbeat:often"}


@pytest.mark.parametrize("settings", [{"redbeat_lookahead": LOOKAHEAD}], ids=["far ahead"])
@pytest.mark.parametrize("others", [0, 1])
def test_a_spike_that_is_due_again_soon_is_prepared_again(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float, others: int
) -> None:
    """Whether what falls due between its two times was read before or not."""
    seconds = LOOKAHEAD // 3  # not over before it is prepared, however busy the machine is
    write_spike(client, due, schedule={"__type__": "interval", "every": seconds})
    for _ in range(others):
        write_raw(client, "other", score=due + seconds + 1)
    assert prepare(at_work) == COUNT + others
    tick_until(at_work, client, due)
    assert broker.llen("celery") == COUNT
    for _ in range(2 + COUNT // 200):
        at_work.look_ahead.prepare()
    assert len(at_work.look_ahead) == COUNT + others


def test_nothing_is_prepared_where_it_is_turned_off(
    make_scheduler: Any, client: redis.Redis, due: float
) -> None:
    scheduler = make_scheduler(redbeat_lookahead=0)
    write_spike(client, due, 3)
    assert prepare(scheduler) == 0


def test_a_running_beat_prepares_a_full_minute_and_sends_it_at_its_time(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    write_raw(client, "first", schedule={"__type__": "interval", "every": 10**9})
    with celery_beat(tmp_path, "module"):
        eventually(lambda: broker.delete("celery"))
        due = int(server_now(client)) + 6
        names = write_spike(client, due, 2_000)
        eventually(lambda: broker.llen("celery"), interval=0.001)
        first_at = server_now(client)
        eventually(lambda: broker.llen("celery") == len(names))
    assert first_at >= due
    ats = [json.loads(client.lindex(f"redbeat::history:{name}", 0) or "")["at"] for name in names]
    lateness_ms = [(at - due) * 1000 for at in ats]
    print(f"{len(names)} runs left {min(lateness_ms):.1f} to {max(lateness_ms):.1f} ms after their time")
    assert min(ats) >= due


@pytest.mark.parametrize("policy", [{"queue_timeout": 1}, {"overlap": "skip", "expires_after": 1}])
def test_the_message_of_a_prepared_run_expires_counted_from_its_due_time(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float, policy: dict[str, Any]
) -> None:
    names = write_spike(client, due, 3)
    for name in names:
        client.hset(f"redbeat:{name}", "policy", json.dumps(policy))
    assert prepare(at_work) == 3
    tick_until(at_work, client, due)
    messages = [json.loads(text) for text in broker.lrange("celery", 0, -1)]
    assert len(messages) == 3
    late = server_now(client) - due  # a claim may have been sooner than the prepared runs
    for one in messages:
        expires = datetime.fromisoformat(one["headers"]["expires"]).timestamp()
        assert due + 1 - 1e-3 <= expires <= due + 1 + late
        assert 999 - 1000 * late <= int(one["properties"]["expiration"]) <= 1000


def test_a_prepared_run_whose_message_would_have_expired_is_sent_anew(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    """Nothing was on a queue yet, so it counts from when it is sent."""
    names = write_spike(client, due, 3)
    for name in names:
        client.hset(f"redbeat:{name}", "policy", '{"queue_timeout": 0.2}')
    assert prepare(at_work) == 3
    eventually(lambda: server_now(client) > due + 1)
    tick_until(at_work, client, due)
    messages = [json.loads(text) for text in broker.lrange("celery", 0, -1)]
    assert len(messages) == 3
    for one in messages:
        assert datetime.fromisoformat(one["headers"]["expires"]).timestamp() > due + 1


@pytest.mark.parametrize("policy", ['{"misfire_grace_time": 0.2}', '{"expires_after": 0.2}'])
def test_a_prepared_run_that_is_too_late_by_its_policy_is_not_sent(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float, policy: str
) -> None:
    names = write_spike(client, due, 3)
    for name in names:
        client.hset(f"redbeat:{name}", "policy", policy)
    assert prepare(at_work) == 3
    eventually(lambda: server_now(client) > due + 0.3)
    tick_until(at_work, client, due)
    assert broker.llen("celery") == 0
    assert {score_of(client, name) for name in names} == {due + 3600}


def test_large_entries_are_not_read_ahead_of_their_time(
    at_work: RedBeatScheduler, client: redis.Redis, due: float, server: Server
) -> None:
    write_spike(client, due, 10, args=["x" * 60_000])
    with monitored(server) as seen:
        assert prepare(at_work) == 0
    assert not [one for one in seen if "HMGET" in one.command.upper()]


def test_an_entry_whose_bare_name_is_due_too_is_sent_once(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    """Programs in other languages write bare names, also of entries that are there already."""
    names = write_spike(client, due, 3)
    client.zadd(SCHEDULE, {names[1]: due})
    assert prepare(at_work) == 2
    tick_until(at_work, client, due)
    assert sorted(sent_names(broker)) == names


def test_runs_that_a_result_backend_is_told_of_are_not_prepared(
    make_scheduler: Any, client: redis.Redis, broker: redis.Redis, second: Server
) -> None:
    scheduler = make_scheduler(result_backend=second.url(0), task_ignore_result=False)

    @scheduler.app.task(name="echo", shared=False)
    def echo(*args: Any) -> None: ...

    write_raw(client, "first")
    scheduler.tick()
    assert broker.llen("celery") == 1
    write_spike(client, round(server_now(client) + 3, 6), 3)
    assert prepare(scheduler) == 0


def test_a_beat_with_nothing_to_prepare_does_not_connect_to_its_broker(
    make_scheduler: Any, client: redis.Redis, second: Server
) -> None:
    scheduler = make_scheduler(broker_url=second.url(0))
    write_raw(client, "later", score=server_now(client) + 1000)
    scheduler.tick()
    with second.client() as asked:
        connections = asked.info("stats")["total_connections_received"]
        prepare(scheduler)
        assert asked.info("stats")["total_connections_received"] == connections


def test_a_broker_that_goes_away_while_runs_are_prepared_is_no_error(
    make_scheduler: Any, client: redis.Redis, second: Server
) -> None:
    scheduler = make_scheduler(broker_url=second.url(0))
    write_spike(client, round(server_now(client) + 3, 6), 3)
    assert scheduler.producer is not None
    second.kill()
    assert prepare(scheduler) == 0
    scheduler.tick()


@pytest.mark.parametrize("is_prepared", [True, False], ids=["prepared", "claimed"])
def test_no_signal_is_handled_amid_a_line_of_the_log(
    at_work: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    due: float,
    is_prepared: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A handler that raises amid logging would leave eventlet's lock of the log locked for ever."""
    is_logging, lines = False, 0
    handled_amid: list[bool] = []

    class Interrupted(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            nonlocal is_logging, lines
            is_logging = True
            lines += "Sending due task" in record.msg
            if lines == 1:
                signal.raise_signal(signal.SIGTERM)
            is_logging = False

    caplog.set_level("INFO")
    names = write_spike(client, due if is_prepared else due - 3, 3)
    if is_prepared:
        assert prepare(at_work) == 3
    before = signal.signal(signal.SIGTERM, lambda *_: handled_amid.append(is_logging))
    handler = Interrupted()
    logger.addHandler(handler)
    try:
        tick_until(at_work, client, due)
    finally:
        logger.removeHandler(handler)
        signal.signal(signal.SIGTERM, before)
    assert sent_names(broker) == names
    assert handled_amid == [False]
