"""Runs leave at their due time by the server's clock: prepared or not, whatever any clock says."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.schedules import schedule as interval

from redbeat import RedBeatScheduler
from redbeat.policy.jitter import delayed
from redbeat.policy.policy import Policy
from tests.support.apps import celery_beat, run_beat, write_app
from tests.support.clocks import ServerClock, lying_clock
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    SELDOM,
    messages,
    meta_json,
    score_of,
    sent_dues,
    sent_names,
    server_now,
    write_raw,
    write_spike,
)
from tests.support.servers import KIND, Server
from tests.support.ticks import look_ahead_of, prepare

COUNT = 100


#: a beat ticks that often while there is something to wait for
TICKS_SECONDS = 0.005


@pytest.fixture
def due(client: redis.Redis) -> float:
    return round(server_now(client) + patience(1), 6)


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


CHANGES: dict[str, Callable[[redis.Redis, str], Any]] = {
    "deleted": lambda client, name: client.delete(f"redbeat:{name}"),
    "put off": lambda client, name: client.zadd(SCHEDULE, {f"redbeat:{name}": server_now(client) + 1000}),
    "taken out": lambda client, name: client.zrem(SCHEDULE, f"redbeat:{name}"),
    "disabled": lambda client, name: write_raw(client, name, score=None, enabled=False),
}


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("change", CHANGES)
def test_entry_changed_after_it_was_prepared_is_not_sent_as_it_was(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float, change: str
) -> None:
    names = write_spike(client, due, 20)
    assert prepare(at_work) == 20
    for name in names[::2]:
        CHANGES[change](client, name)
    tick_until(at_work, client, due)
    assert sent_names(broker) == names[1::2]


def test_prepared_message_expires_counted_from_when_it_is_sent(
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


@pytest.mark.parametrize("options", [{}, {"expires": 2}])
def test_prepared_run_with_jitter_waits_for_its_score(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float, options: dict[str, Any]
) -> None:
    """That is later than the due time that it stands for; what expires counts from it, and isn't prepared."""
    nominal = due - 0.2  # so that all are due by then, and none is beyond what is read ahead
    due_at = datetime.fromtimestamp(nominal, timezone.utc)
    fields = {"policy": '{"jitter": 0.2}', "meta": meta_json(due_at - timedelta(hours=1), 1)}
    pipeline = client.pipeline()  # as it is due in a moment
    for name in (names := write_spike(client, nominal, 10, options=options)):
        sent_at = delayed(f"redbeat:{name}", interval(3600), Policy(jitter=0.2), due_at)
        pipeline.hset(f"redbeat:{name}", mapping=fields).zadd(
            SCHEDULE, {f"redbeat:{name}": sent_at.timestamp()}
        )
    pipeline.execute()
    prepared = prepare(at_work)
    assert prepared == (0 if options else 10)
    look_ahead_of(at_work).clock.offset = nominal - time.monotonic()
    at_work.tick()
    assert len(look_ahead_of(at_work)) == prepared
    tick_until(at_work, client, due)
    assert sorted(sent_names(broker)) == names
    assert set(sent_dues(broker)) == {due_at}


def test_a_clock_that_runs_ahead_lets_nothing_leave_early(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float
) -> None:
    names = write_spike(client, due, COUNT)
    assert prepare(at_work) == COUNT
    look_ahead_of(at_work).clock.offset = due + 1000 - time.monotonic()
    at_work.tick()
    assert broker.llen("celery") == 0
    tick_until(at_work, client, due)
    assert sorted(sent_names(broker)) == names


@pytest.mark.parametrize("policy", ['{"misfire_grace_time": 0.2}', '{"expires_after": 0.2}'])
def test_prepared_run_too_late_by_its_policy_is_not_sent(
    at_work: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, due: float, policy: str
) -> None:
    names = write_spike(client, due, 3)
    for name in names:
        client.hset(f"redbeat:{name}", "policy", policy)
    assert prepare(at_work) == 3
    eventually(lambda: server_now(client) > due + 0.3)
    look_ahead_of(at_work).clock.offset = (
        due + 0.1 - time.monotonic()
    )  # beat's own clock is behind: the server decides
    tick_until(at_work, client, due)
    assert broker.llen("celery") == 0
    assert {score_of(client, name) for name in names} == {due + 3600}


# -- beats and applications whose clocks are wrong


HOUR = 3600.0


def write_lying_app(directory: Path, module: str, server: Server, offsets: Sequence[float]) -> None:
    extra = lying_clock(offsets)
    write_app(directory, module, server.url(0), extra=extra, redbeat_redis_url=server.url(1))


def dues(broker: redis.Redis, name: str) -> list[float]:
    """The due times of an entry's messages, in the order in which they were sent."""
    return [due.timestamp() for due in sent_dues(broker, name)]


@pytest.mark.parametrize(
    "offsets",
    [
        pytest.param([HOUR], id="an hour ahead", marks=pytest.mark.slow),
        pytest.param([-HOUR], id="an hour behind", marks=pytest.mark.slow),
        pytest.param([0, HOUR, -HOUR, 15, -86_400], id="stepping"),
    ],
)
def test_a_beat_whose_clock_is_wrong_runs_everything_at_the_server_s_time(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path, offsets: list[float]
) -> None:
    write_lying_app(tmp_path, "module", server, offsets)
    start = server_now(client)
    policy = '{"misfire": "all"}'
    for name, schedule, score in (
        ("steady", {"__type__": "interval", "every": 0.5}, start),
        ("later", {"__type__": "interval", "every": HOUR}, start + HOUR / 2),
        ("minutely", {"__type__": "crontab"}, start // 60 * 60 + 60),
    ):
        write_raw(client, name, schedule=schedule, score=score)
        client.hset(f"redbeat:{name}", "policy", policy)
    write_raw(client, "expiring", score=start)
    client.hset("redbeat:expiring", "policy", '{"expires_after": 3000}')
    with celery_beat(tmp_path, "module") as beat:
        seen = 0
        while seen < 6:
            sent = eventually(lambda seen=seen: dues(broker, "steady")[seen:])
            assert sent[-1] <= server_now(client), "sent before its time"
            seen += len(sent)
        assert beat.is_running
    sent = dues(broker, "steady")  # some came while beat was told to stop
    assert sent == pytest.approx([start + 0.5 * n for n in range(len(sent))], abs=1e-3)
    [expiring] = [one for one in messages(broker) if one["headers"]["redbeat_entry"] == "expiring"]
    assert datetime.fromisoformat(expiring["headers"]["expires"]).timestamp() == pytest.approx(start + 3000)
    assert int(expiring["properties"]["expiration"]) == pytest.approx(3_000_000, abs=60_000)
    assert dues(broker, "later") == []
    assert dues(broker, "minutely") in ([], [start // 60 * 60 + 60])
    assert (score_of(client, "later") or 0) == pytest.approx(start + HOUR / 2, abs=1e-3)


def test_entries_saved_under_a_wrong_clock_are_due_by_the_servers(
    server: Server, client: redis.Redis, tmp_path: Path
) -> None:
    write_lying_app(tmp_path, "module", server, [HOUR])
    source = (
        "from module import app, crontab; from redbeat import RedBeatSchedulerEntry as Entry;"
        "Entry('interval', 'echo', 60, app=app).save();"
        "Entry('crontab', 'echo', crontab(), app=app).save();"
        "Entry.from_key('interval', app=app).reschedule()"
    )
    before = server_now(client)
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, check=True, timeout=patience())
    after = server_now(client)
    assert before + 60 <= (score_of(client, "interval") or 0) <= after + 60
    assert before < (score_of(client, "crontab") or 0) <= after + 60
    assert sorted(client.zrange(SCHEDULE, 0, -1)) == ["redbeat:crontab", "redbeat:interval"]


# -- servers whose clocks jump


JUMP_SECONDS = 600


#: much less than the entries here are due in, and much more than a busy machine needs for a look a second
SOON_SECONDS = 15


@pytest.fixture
def jumping(clock: ServerClock) -> Iterator[Server]:
    with Server(KIND, clock=clock) as jumping:
        yield jumping


@pytest.mark.services
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("settings", [{}, {"redbeat_lock_key": None}, {"redbeat_lock_timeout": 60}], ids=str)
def test_run_leaves_when_the_clock_jumps_past_its_time_and_once(
    jumping: Server, clock: ServerClock, tmp_path: Path, settings: dict[str, object]
) -> None:
    """Also where the lock ends by a jump: it is taken back."""
    with (
        jumping.client(db=1) as client,
        jumping.client() as broker,
        run_beat(tmp_path, jumping.url(0), redbeat_redis_url=jumping.url(1), **settings) as beat,
    ):
        start = server_now(client) - 1.5
        write_raw(client, "steady", schedule={"__type__": "interval", "every": 0.5}, score=start)
        client.hset("redbeat:steady", "policy", '{"misfire": "all"}')
        eventually(lambda: len(messages(broker)) > 6, 30)
        token = client.get(LOCK)
        clock.jump(-JUMP_SECONDS)
        eventually(lambda: server_now(client) < start - 500)  # Valkey looks at it once a millisecond
        behind = server_now(client)
        eventually(lambda: (score_of(client, "steady") or 0) > behind + 500)
        reached = len(messages(broker))
        write_raw(client, "new", schedule=SELDOM, score=behind)
        eventually(lambda: "new" in sent_names(broker), SOON_SECONDS)
        eventually(lambda: server_now(client) > behind + 3)
        assert len(messages(broker)) <= reached + 2, "what was committed as the clock jumped, and the new one"
        clock.jump(JUMP_SECONDS)
        eventually(lambda: len(messages(broker)) > reached + 6, SOON_SECONDS)
        assert client.get(LOCK) == token
        assert beat.is_running
        sent = dues(broker, "steady")
        assert sent == sorted(set(sent)), "each run once, in order"
