"""A schedule in shards, sent by one beat or several: each run once, in one round trip a node."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule

import redbeat.later
from redbeat import RedBeatSchedulerEntry
from redbeat.beat.shards import Shards
from redbeat.keys import Keys
from redbeat.layout import shard_of
from redbeat.schedulers import RedBeatScheduler
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, write_app
from tests.support.fidelity import counting_round_trips
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import sent_names
from tests.support.servers import Server
from tests.support.ticks import leader, memory_app, take_messages
from tests.support.topologies import ClusterTopology

SHARDS = 16
HOUR = 3600.0


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind will do: the scripts are tested with both."""
    return valkey


def names_of(count: int) -> list[str]:
    return [f"entry-{number}" for number in range(count)]


def save(app: Celery, names: list[str]) -> None:
    RedBeatSchedulerEntry.save_many(
        RedBeatSchedulerEntry(name, "tasks.echo", schedule(HOUR), app=app) for name in names
    )


def parts_of(app: Celery) -> tuple[Keys, ...]:
    parts: tuple[Keys, ...] = app.redbeat_conf.layout.parts
    return parts


def let_be_due(app: Celery, at: float | None = None) -> None:
    """Let all entries be due, since a second ago by default."""
    client, at = app.redbeat_redis, time.time() - 1 if at is None else at
    for keys in parts_of(app):
        if members := client.zrange(keys.schedule, 0, -1):
            client.zadd(keys.schedule, dict.fromkeys(members, at))


def send_all(scheduler: RedBeatScheduler) -> list[str]:
    """Tick until nothing more is due; return the names of the entries whose runs were sent."""
    eventually(lambda: scheduler.tick() > 0)
    return [message.entry for message in take_messages(scheduler.app)]


# -- one beat, ticked by the test


@pytest.mark.parametrize("shards", [1, SHARDS])
def test_what_is_due_in_all_shards_is_sent_once(make_app: MakeApp, shards: int) -> None:
    app, names = make_app(redbeat_shards=shards), names_of(300)
    save(app, names)
    let_be_due(app)
    with leader(app) as scheduler:
        assert Counter(send_all(scheduler)) == Counter(names)
        assert not send_all(scheduler)


def test_no_shard_waits_until_the_backlog_of_another_one_is_sent(make_app: MakeApp) -> None:
    app, names = make_app(redbeat_shards=2, redbeat_batch_size=10), names_of(200)
    few = [name for name in names if shard_of(name, 2) == 0][:5]
    many = [name for name in names if shard_of(name, 2) == 1]
    save(app, [*few, *many])
    let_be_due(app)
    with leader(app) as scheduler:
        scheduler.tick()
        sent = [message.entry for message in take_messages(app)]
        assert set(few) < set(sent)
        assert len(sent) <= 15, "one batch of each"
        assert Counter([*sent, *send_all(scheduler)]) == Counter([*few, *many])


def test_the_code_s_entries_are_stored_where_they_belong_and_removed_from_there(make_app: MakeApp) -> None:
    statics = {f"static-{number}": {"task": "tasks.echo", "schedule": HOUR} for number in range(40)}
    app = make_app(redbeat_shards=4, beat_schedule=statics)
    with leader(app):
        pass
    client = app.redbeat_redis
    for name in statics:
        keys = app.redbeat_conf.keys.home(name)
        assert client.zscore(keys.schedule, keys.entry(name)) is not None
        assert client.sismember(keys.statics, name)
    app.conf.beat_schedule = {"static-1": statics["static-1"]}
    with leader(app):
        pass
    left = [keys.name(key) for keys in parts_of(app) for key in client.zrange(keys.schedule, 0, -1)]
    assert left == ["static-1"]


def test_an_entry_in_another_shard_than_its_name_s_is_put_aside_and_its_twin_runs(make_app: MakeApp) -> None:
    app = make_app(redbeat_shards=4)
    save(app, ["report"])
    client, home = app.redbeat_redis, app.redbeat_conf.keys.home("report")
    other = next(keys for keys in parts_of(app) if keys != home)
    client.hset(other.entry("report"), mapping=client.hgetall(home.entry("report")))
    client.zadd(other.schedule, {other.entry("report"): 0})
    with leader(app) as scheduler:
        assert not send_all(scheduler)
        assert f"it belongs into shard {shard_of('report', 4)} of 4" in client.hget(
            other.entry("report"), "error"
        )
        client.zadd(home.schedule, {home.entry("report"): time.time() - 1})
        assert send_all(scheduler) == ["report"]


def test_stored_messages_of_all_shards_are_sent_and_gone(make_app: MakeApp) -> None:
    app = make_app(redbeat_shards=4, redbeat_durable_after=1)
    redbeat.later.install(app)

    @app.task(name="note", shared=False)
    def note(number: int) -> None: ...

    app.finalize()
    ids = {note.apply_async((number,), countdown=1000).id for number in range(20)}
    stored = {keys.prefix for keys in parts_of(app) if app.redbeat_redis.exists(keys.later)}
    assert len(stored) > 1
    for keys in parts_of(app):
        if members := app.redbeat_redis.zrange(keys.later, 0, -1):
            app.redbeat_redis.zadd(keys.later, dict.fromkeys(members, time.time() - 1))
    with leader(app) as scheduler:
        scheduler.tick()
        assert {message.id for message in take_messages(app)} == ids
    assert not [keys for keys in parts_of(app) if app.redbeat_redis.exists(keys.later)]


def test_beats_without_a_lock_share_all_shards(make_app: MakeApp) -> None:
    settings: dict[str, Any] = {"redbeat_shards": 4, "redbeat_lock_key": None, "redbeat_batch_size": 10}
    one, other, names = make_app(**settings), make_app(**settings), names_of(200)
    save(one, names)
    let_be_due(one)
    with leader(one) as first, leader(other) as second:
        sent: Counter[str] = Counter()
        ticks = 0
        while sent.total() < len(names) and ticks < 100:
            ticks += 1
            for scheduler in (first, second):
                scheduler.tick()
                sent.update(message.entry for message in take_messages(one))
        assert sent == Counter(names)


# -- round trips


@pytest.mark.parametrize("shards", [SHARDS, 64])
def test_an_idle_tick_is_one_round_trip_a_node(
    cluster: ClusterTopology, shards: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = memory_app(
        redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True}, redbeat_shards=shards
    )
    save(app, names_of(3 * shards))
    with leader(app) as scheduler:
        let_be_due(app)
        assert len(send_all(scheduler)) == 3 * shards
        assert not shards_of(scheduler).look(), "each node knows the scripts from now on"
        with counting_round_trips(monkeypatch) as count:
            assert scheduler.tick() > 0
            assert count() == 3, "a tick"
            assert not shards_of(scheduler).look()
            assert count() == 6, "a look"


def shards_of(scheduler: RedBeatScheduler) -> Shards:
    return scheduler._shards  # noqa: SLF001 - it has no name outside


# -- real beats


@contextmanager
def beats(directory: Path, count: int) -> Iterator[list[Process]]:
    with ExitStack() as stack:
        yield [stack.enter_context(celery_beat(directory, "module")) for _ in range(count)]


@pytest.fixture
def settings(server: Server, tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {
        "redbeat_redis_url": server.url(1),
        "redbeat_shards": SHARDS,
        "redbeat_takeover_after": 5,
    }
    write_app(tmp_path, "module", server.url(0), **found)
    return found


def led_by(client: redis.Redis) -> Counter[str]:
    """How many shards each process leads, by its pid as text."""
    tokens = [client.get(f"{{redbeat:{shard}}}::lock") for shard in range(SHARDS)]
    return Counter(token.split(":")[3] for token in tokens if token)


def test_three_beats_send_each_run_once_and_go_on_without_one_that_is_killed(
    server: Server, tmp_path: Path, settings: dict[str, Any]
) -> None:
    app, names = memory_app(**settings), names_of(2000)
    save(app, names)
    with server.client(db=1) as client, server.client(db=0) as broker, beats(tmp_path, 3) as running:
        pids = {str(beat.pid) for beat in running}
        eventually(lambda: led_by(client).keys() == pids and led_by(client).total() == SHARDS)
        print(f"shards of each beat: {led_by(client)}")
        let_be_due(app)
        eventually(lambda: broker.llen("celery") >= len(names))
        assert Counter(sent_names(broker)) == Counter(names)
        for beat in running:
            beat.wait_for("Sending due task")

        broker.delete("celery")
        killed = running[0]
        let_be_due(app, time.time() + 1)
        killed.kill()
        eventually(lambda: broker.llen("celery") >= len(names))
        eventually(lambda: led_by(client).keys() == pids - {str(killed.pid)})
        assert Counter(sent_names(broker)) == Counter(names)
        for beat in running[1:]:
            assert beat.stop() == 0
        assert not led_by(client), "each beat that ends releases its locks"
