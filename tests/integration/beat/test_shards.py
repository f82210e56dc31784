"""A schedule in shards, sent by one beat or several: each run once, in one round trip a node."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.config.timing import Timing
from redbeat.errors import StoreCorrupt
from redbeat.keys import Keys, shard_prefix
from redbeat.layout import shard_of
from redbeat.scheduler.shards import Shards
from redbeat.schedulers import RedBeatScheduler
from redbeat.store.layouts import look_up_layout
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, write_app
from tests.support.deadlines import patience
from tests.support.fidelity import counting_round_trips
from tests.support.polling import eventually
from tests.support.schedule import sent_names
from tests.support.servers import Server
from tests.support.shards import app_in, names_in_every_shard
from tests.support.ticks import leader, memory_app, take_messages

SHARDS = 16


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind will do: the scripts are tested with both."""
    return valkey


def names_of(count: int) -> list[str]:
    return [f"entry-{number}" for number in range(count)]


def save(app: Celery, names: Sequence[str]) -> None:
    """Save an entry for each name that runs each day."""
    RedBeatSchedulerEntry.save_many(
        RedBeatSchedulerEntry(name, "tasks.echo", schedule(86_400), app=app) for name in names
    )


def keys_of(app: Celery) -> tuple[Keys, ...]:
    parts: tuple[Keys, ...] = app.redbeat_conf.layout.parts
    return parts


def let_be_due(app: Celery, at: float | None = None) -> None:
    """Let all entries be due, since a second ago by default."""
    client, at = app.redbeat_redis, time.time() - 1 if at is None else at
    for keys in keys_of(app):
        if members := client.zrange(keys.schedule, 0, -1):
            client.zadd(keys.schedule, dict.fromkeys(members, at))


def send_all(scheduler: RedBeatScheduler) -> list[str]:
    """Tick until nothing more is due; return the names of the entries whose runs were sent."""
    eventually(lambda: scheduler.tick() > 0)
    return [message.entry for message in take_messages(scheduler.app)]


def shards_of(scheduler: RedBeatScheduler) -> Shards:
    return scheduler._shards  # noqa: SLF001 - it has no name outside


def test_no_shard_waits_for_the_backlog_of_another(make_app: MakeApp) -> None:
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


def test_statics_are_stored_and_removed_in_their_shards(make_app: MakeApp) -> None:
    statics = {f"static-{number}": {"task": "tasks.echo", "schedule": 3600} for number in range(40)}
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
    left = [keys.name(key) for keys in keys_of(app) for key in client.zrange(keys.schedule, 0, -1)]
    assert left == ["static-1"]


def test_entry_in_the_wrong_shard_is_moved_home_and_runs_once(make_app: MakeApp) -> None:
    app = make_app(redbeat_shards=4)
    save(app, ["report"])
    client, home = app.redbeat_redis, app.redbeat_conf.keys.home("report")
    other = next(keys for keys in keys_of(app) if keys != home)
    client.hset(other.entry("report"), mapping=client.hgetall(home.entry("report")))
    client.zadd(other.schedule, {other.entry("report"): 0})
    with leader(app) as scheduler:
        send_all(scheduler)
        assert send_all(scheduler) == ["report"]
        assert not client.exists(other.entry("report"))
        assert client.zscore(other.schedule, other.entry("report")) is None
        client.zadd(home.schedule, {home.entry("report"): time.time() - 1})
        assert send_all(scheduler) == ["report"]


def test_shard_whose_lock_is_taken_is_left_to_its_leader(make_app: MakeApp) -> None:
    app, names = make_app(redbeat_shards=4), names_of(100)
    save(app, names)
    client, lost = app.redbeat_redis, keys_of(app)[2]
    with leader(app) as scheduler:
        client.set(lost.lock, "another")
        let_be_due(app)
        others = [name for name in names if app.redbeat_conf.keys.home(name) != lost]
        assert Counter(send_all(scheduler)) == Counter(others)
        assert [shard.store.keys for shard in shards_of(scheduler).led] == [
            keys for keys in keys_of(app) if keys != lost
        ]
    assert client.get(lost.lock) == "another"


def test_shard_whose_lock_cannot_be_renewed_keeps_no_other_from_being_prepared(
    server: Server, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timing, "fresh_seconds", -1.0)  # the heartbeat could not renew it either
    app, names = make_app(redbeat_shards=2, broker_url=server.url(1)), names_of(20)
    save(app, names)
    let_be_due(app, time.time() + patience(1))
    with leader(app) as scheduler:
        scheduler.tick()
        shards_of(scheduler).election.keep_alive()
        first, second = shards_of(scheduler)
        lock_key = first.leadership.lock_key
        app.redbeat_redis.delete(lock_key)
        app.redbeat_redis.lpush(lock_key, "no string")
        while shards_of(scheduler).prepare():
            pass
        assert not len(first.look_ahead)
        assert len(second.look_ahead)
        app.redbeat_redis.delete(lock_key)


def test_unreadable_shard_stops_no_other(make_app: MakeApp) -> None:
    app, names = make_app(redbeat_shards=4), names_of(100)
    save(app, names)
    client, broken = app.redbeat_redis, keys_of(app)[1]
    with leader(app) as scheduler:
        let_be_due(app)
        client.rename(broken.schedule, "kept")
        client.set(broken.schedule, "no sorted set")
        others = [name for name in names if app.redbeat_conf.keys.home(name) != broken]
        with pytest.raises(StoreCorrupt, match=re.escape(f"{broken.schedule} holds something that is no")):
            scheduler.tick()
        assert Counter(message.entry for message in take_messages(app)) == Counter(others)
        client.rename("kept", broken.schedule)
        assert Counter(send_all(scheduler)) == Counter(set(names) - set(others))


def write_layout(app: Celery, shards: int, generation: int, **fields: Any) -> None:
    """Write a layout, as whoever divides a schedule anew begins and ends with it."""
    client, base = app.redbeat_redis, app.redbeat_conf.base_keys
    client.delete(base.layout)
    client.hset(base.layout, mapping={"shards": shards, "generation": generation, **fields})
    for keys in {base, *map(Keys, (shard_prefix(base.prefix, shard) for shard in range(SHARDS)))}:
        client.set(keys.generation, f"{generation} {shards}")


@pytest.mark.parametrize(
    ("before", "after"), [(4, 8), (8, 4), (None, 4), (4, None)], ids=["more", "fewer", "divided", "undivided"]
)
def test_beat_follows_a_new_layout_and_sends_what_has_not_moved(
    make_app: MakeApp, before: int | None, after: int | None
) -> None:
    app, names = make_app(redbeat_shards=before), names_of(60)
    save(app, names)
    with leader(app) as scheduler:
        shards = shards_of(scheduler)
        old = {shard.store.keys.prefix: shard.leadership.lock.token for shard in shards}
        let_be_due(app)
        write_layout(app, after or 0, 2, former=before or 0, state="moving")
        assert Counter(send_all(scheduler)) == Counter(names), "none has been moved yet"
        both = {shard.store.keys.prefix: shard.leadership.lock.token for shard in shards}
        assert len(both) == max(before or 0, after or 0) + (None in (before, after))
        assert both.items() >= old.items(), "a lock is kept"

        write_layout(app, after or 0, 2, former=before or 0)
        eventually(lambda: scheduler.tick() >= 0 and len([*shards]) == (after or 1))
        held = [*app.redbeat_redis.scan_iter(match="*::lock")]
        assert sorted(held) == sorted(shard.store.keys.lock for shard in shards), "others are released"
        [*_, name] = names
        save(app, [name])
        app.redbeat_redis.zadd(
            app.redbeat_conf.keys.home(name).schedule if after else "redbeat::schedule",
            {app.redbeat_conf.keys.entry(name): time.time() - 1},
        )
        assert name in send_all(scheduler)


# -- all shards at once


@pytest.mark.parametrize(
    ("place", "broker", "most", "idle"),
    [
        ("one-server", "own", 2, 1),  # a claim, and a commit that pushes
        ("one-server", "redis", 3, 1),  # and a pipeline to the broker
        ("cluster", "redis", 7, 3),
    ],
)
def test_round_trips_do_not_grow_with_the_number_of_shards(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    broker: str,
    most: int,
    idle: int,
) -> None:
    chosen: Server = request.getfixturevalue("valkey" if broker == "own" else "redis")
    app = app_in(place, request, redbeat_shards=SHARDS, broker_url=chosen.url(0))
    names = names_in_every_shard(app)
    save(app, names)
    with leader(app) as scheduler:
        # beats look at locks at times of their own
        monkeypatch.setattr(Shards, "stand", lambda _shards: [])
        let_be_due(app)
        assert Counter(send_all(scheduler)) == Counter(names), "each node knows the scripts from now on"
        made = []
        for _ in range(3):
            let_be_due(app)
            for shard in shards_of(scheduler):  # as the heartbeat of a running beat does it
                shard.leadership.confirmed_at = time.monotonic()
            with counting_round_trips(monkeypatch) as trips:
                scheduler.tick()
                busy = trips()
                scheduler.tick()
                made.append((busy, trips() - busy))
            assert Counter(message.entry for message in take_messages(app)) == Counter(names)
    assert set(made) == {(most, idle)}


def test_signal_at_any_round_trip_loses_and_doubles_no_run(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(redbeat_shards=4)
    look_up_layout(Store(app), is_beat=True)
    names = names_in_every_shard(app)
    save(app, names)
    for step in count(1):
        let_be_due(app)
        left = [step]

        def on_round_trip(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise SystemExit

        with leader(app) as scheduler, monkeypatch.context() as patch:
            patch.setattr(Store, "on_round_trip", staticmethod(on_round_trip))
            with suppress(SystemExit):
                scheduler.tick()
        sent = Counter(message.entry for message in take_messages(app))
        with leader(app) as scheduler:
            assert sent + Counter(send_all(scheduler)) == Counter(names), f"ended at step {step}"
        if left[0] > 0:  # the tick has ended before
            break
    assert step > 4


# -- real beats


def led_by(client: redis.Redis) -> Counter[str]:
    """How many shards each process leads, by its pid as text."""
    tokens: list[Any] = [client.get(f"{{redbeat:{shard}}}::lock") for shard in range(6)]
    return Counter(token.split(":")[3] for token in tokens if token)


def test_three_beats_send_each_run_once_and_take_over_the_shards_of_a_killed_one(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "redbeat_shards": 6, "redbeat_lock_timeout": 3}
    write_app(tmp_path, "module", server.url(0), **settings)
    app, names = memory_app(**settings), names_of(200)
    save(app, names)
    with ExitStack() as stack:
        killed, *others = (stack.enter_context(celery_beat(tmp_path, "module")) for _ in range(3))
        pids = {str(beat.pid) for beat in (killed, *others)}
        eventually(lambda: led_by(client).keys() == pids and led_by(client).total() == 6)
        let_be_due(app)
        eventually(lambda: broker.llen("celery") >= len(names))
        assert Counter(sent_names(broker)) == Counter(names)
        broker.delete("celery")
        let_be_due(app, time.time() + patience(1))
        killed.kill()
        eventually(lambda: broker.llen("celery") >= len(names))
        assert Counter(sent_names(broker)) == Counter(names)
        assert led_by(client).keys() == pids - {str(killed.pid)}
        for beat in others:
            beat.wait_for("Sending due task")
            assert beat.stop() == 0
        assert not led_by(client), "each beat that ends releases its locks"
