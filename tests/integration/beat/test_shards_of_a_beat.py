"""A schedule in shards, sent by one beat or several: each run once, in one round trip a node."""

from __future__ import annotations

import re
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
from redbeat.errors import StoreCorrupt
from redbeat.keys import Keys, shard_prefix
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


def test_a_misplaced_entry_waits_until_a_reshard_has_ended_and_is_moved_home_then(make_app: MakeApp) -> None:
    app = make_app(redbeat_shards=4)
    save(app, ["report"])
    client, home = app.redbeat_redis, app.redbeat_conf.keys.home("report")
    other = next(keys for keys in parts_of(app) if keys != home)
    client.hset(other.entry("report"), mapping=client.hgetall(home.entry("report")))
    with leader(app) as scheduler:
        client.zadd(other.schedule, {other.entry("report"): 0})
        client.hset("redbeat::layout", "state", "settling")
        assert not send_all(scheduler)
        assert not client.hexists(other.entry("report"), "error")
        client.hset("redbeat::layout", mapping={"state": "", "swept_until": time.time() + 60})
        eventually(lambda: send_all(scheduler) == ["report"])
        assert not client.exists(other.entry("report"))


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


# -- what goes wrong with one shard, and layouts that change


def test_a_shard_whose_lock_is_taken_is_left_and_the_others_go_on(make_app: MakeApp) -> None:
    app, names = make_app(redbeat_shards=4), names_of(100)
    save(app, names)
    client, lost = app.redbeat_redis, parts_of(app)[2]
    with leader(app) as scheduler:
        client.set(lost.lock, "another")
        let_be_due(app)
        others = [name for name in names if app.redbeat_conf.keys.home(name) != lost]
        assert Counter(send_all(scheduler)) == Counter(others)
        assert [shard.store.keys for shard in shards_of(scheduler).led] == [
            keys for keys in parts_of(app) if keys != lost
        ]
    assert client.get(lost.lock) == "another"


def test_a_shard_that_can_t_be_read_keeps_no_other_one_from_being_sent(make_app: MakeApp) -> None:
    app, names = make_app(redbeat_shards=4), names_of(100)
    save(app, names)
    client, broken = app.redbeat_redis, parts_of(app)[1]
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
def test_a_beat_follows_a_layout_and_sends_what_is_still_where_it_was(
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
        eventually(lambda: scheduler.tick() >= 0 and len(shards) == (after or 1))
        held = [*app.redbeat_redis.scan_iter(match="*::lock")]
        assert sorted(held) == sorted(shard.store.keys.lock for shard in shards), "others are released"
        [*_, name] = names
        save(app, [name])
        app.redbeat_redis.zadd(
            app.redbeat_conf.keys.home(name).schedule if after else "redbeat::schedule",
            {app.redbeat_conf.keys.entry(name): time.time() - 1},
        )
        assert name in send_all(scheduler)


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
        ticks, looks = [], []
        with counting_round_trips(monkeypatch) as count:
            for _ in range(5):
                before = count()
                assert scheduler.tick() > 0
                ticks.append(count() - before)
                assert not shards_of(scheduler).look()
                looks.append(count() - before - ticks[-1])
    assert set(looks) == {3}
    assert min(ticks) == 3
    assert max(ticks) <= 4, "once a second, without a heartbeat, it says that it is there"


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
