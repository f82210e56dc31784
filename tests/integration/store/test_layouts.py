"""The layout in Redis: the first writer writes it, others follow it, and what is out of date is refused."""

from __future__ import annotations

import json
import logging
import random
import sys
import threading
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.config.config import ensure_conf
from redbeat.config.timing import Timing
from redbeat.errors import ConfigurationError, LayoutChanged, StoreRefused
from redbeat.keys import Keys
from redbeat.layout import Layout, shard_of
from redbeat.leadership.election import Election
from redbeat.reshard.resharding import Resharding
from redbeat.store.layouts import look_up_layout, raise_generations
from redbeat.store.members import entry_keys
from redbeat.store.records import Fence
from redbeat.store.schedule import commit_runs
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.store.committing import commits_of, committing, push, target_of
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import run
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.servers import Server

LAYOUT, GENERATION = Keys().layout, Keys().generation
#: what is in one of the first four of 16 shards no more
APART = next(name for name in map(str, range(100)) if shard_of(name, 16) > 3)


def hourly(app: Celery, name: str = "report") -> Entry:
    return Entry(name, "echo", 3600, app=app)


def write_whole_layout(client: redis.Redis, shards: int, generation: int, **fields: Any) -> Layout:
    """Write a layout and the generations of its shards, without moving entries."""
    former = int(fields.get("former", 0)) or None
    layout = Layout(Keys(), shards or None, generation, former, fields.get("state") == "moving")
    client.delete(LAYOUT)
    for former_generation in client.scan_iter(match="*::generation", _type="string"):
        client.set(former_generation, f"{generation} -")
    client.hset(LAYOUT, mapping={"shards": shards, "generation": generation, **fields})
    client.set(GENERATION, layout.guard)
    for part in layout.parts:
        client.set(part.generation, layout.guard)
    return layout


def places_of(client: redis.Redis, name: str = "report") -> list[str]:
    """The keys under which there is an entry of that name, in whatever shard."""
    return sorted(client.scan_iter(match=f"*:{name}", _type="hash"))


def test_first_writer_writes_the_layout_and_the_generations(make_app: MakeApp, client: redis.Redis) -> None:
    app = make_app(redbeat_shards=4)
    hourly(app).save()
    assert client.hgetall(LAYOUT) == {"shards": "4", "generation": "1"}
    home = Layout(Keys(), 4, 1).keys.home("report")
    assert places_of(client) == [home.entry("report")]
    assert (client.get(home.generation), client.get(GENERATION)) == ("1 4", "1 4")


@pytest.mark.parametrize("kept", ["redbeat::schedule", "redbeat::later", "redbeat::downgraded"])
def test_schedule_with_entries_is_not_sharded_by_a_setting(
    make_app: MakeApp, client: redis.Redis, kept: str
) -> None:
    if kept == "redbeat::downgraded":
        client.hset(kept, "redbeat:old", "1")
    else:
        client.zadd(kept, {"redbeat:old": 1})
    with pytest.raises(ConfigurationError, match=r"celery redbeat reshard --to 4 divides them") as caught:
        hourly(make_app(redbeat_shards=4)).save()
    assert caught.value.setting == "redbeat_shards"
    assert client.keys() == [kept]


def test_first_writers_with_different_numbers_of_shards_agree_on_one(
    make_app: MakeApp, client: redis.Redis, chance: random.Random
) -> None:
    apps = [make_app(redbeat_shards=chance.choice([1, 2, 3, 4, 16, 64])) for _ in range(8)]
    together = threading.Barrier(8)

    def save(number: int) -> None:
        together.wait()
        hourly(apps[number], f"entry-{number}").save()

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(save, range(8))]
    found = client.hgetall(LAYOUT)
    assert found.keys() == {"shards", "generation"}
    layout = Layout(Keys(), int(found["shards"]), int(found["generation"]))
    for number in range(8):
        assert places_of(client, f"entry-{number}") == [layout.keys.entry(f"entry-{number}")]
    assert {ensure_conf(app).layout.guard for app in apps} == {layout.guard}


def test_lost_layout_is_written_again_as_its_shards_know_it(make_app: MakeApp, client: redis.Redis) -> None:
    write_whole_layout(client, 4, 7)
    client.delete(LAYOUT, GENERATION)  # the second needn't have been a part of the last layouts
    for shards in (2, 16):
        with pytest.raises(
            StoreRefused, match=r'holds "7 4", and redbeat::layout is missing.*reshard --to 4'
        ):
            hourly(make_app(redbeat_shards=shards)).save()
    assert not client.exists(LAYOUT)
    hourly(make_app(redbeat_shards=4)).save()
    assert client.hgetall(LAYOUT) == {"shards": "4", "generation": "7", "former": "0"}


def test_generation_later_than_the_layout_is_an_error(make_app: MakeApp, client: redis.Redis) -> None:
    write_whole_layout(client, 4, 7)
    client.mset({f"{{redbeat:{shard}}}::generation": "9 4" for shard in range(4)})
    with pytest.raises(StoreRefused, match=r'holds "9 4", and redbeat::layout says "7 4".*reshard --to 4'):
        hourly(make_app(redbeat_shards=4)).save()


def test_writer_with_an_outdated_setting_follows_and_warns_once(
    make_app: MakeApp, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    layout = write_whole_layout(client, 16, 3)
    app = make_app(redbeat_shards=4)
    for number in range(5):
        hourly(app, f"entry-{number}").save()
        assert places_of(client, f"entry-{number}") == [layout.keys.entry(f"entry-{number}")]
    [told] = [one for one in caplog.records if "redbeat_shards" in one.getMessage()]
    assert told.levelno == logging.WARNING
    assert "set redbeat_shards = 16" in told.getMessage()


def test_writer_without_the_setting_follows_after_a_refusal(app: Celery, client: redis.Redis) -> None:
    hourly(app, "before").save()
    client.delete("redbeat::schedule", "redbeat:before")
    layout = write_whole_layout(client, 4, 1)
    hourly(app).save()
    assert places_of(client) == [layout.keys.entry("report")]


def test_generation_is_raised_and_never_lowered(app: Celery, client: redis.Redis) -> None:
    store, part = Store(app), Keys("{redbeat:1}:", guard="10 4")
    for held, then in (
        ("9 16", "10 4"),
        ("10 -", "10 -"),
        ("10 7", "10 4"),
        ("11 2", "11 2"),
        (None, "10 4"),
    ):
        client.delete(part.generation)
        if held is not None:
            client.set(part.generation, held)
        raise_generations(store, [part])
        assert client.get(part.generation) == then


def test_store_of_a_shard_raises_when_the_layout_no_longer_has_it(
    make_app: MakeApp, client: redis.Redis, broker: redis.Redis
) -> None:
    before = write_whole_layout(client, 4, 1)
    app = make_app(redbeat_shards=4)
    whole = Store(app)
    store = whole.of_part(whole.parts[1])
    fence = Fence(before.parts[1].lock, "token", 60_000)
    store.renew_lock(fence)
    write_whole_layout(client, 16, 2, former=4, state="moving")
    store.renew_lock(fence)
    assert store.keys == Keys("{redbeat:1}:", guard="2 16 from 4", shared_prefix="redbeat:")
    write_whole_layout(client, 1, 3)
    with pytest.raises(LayoutChanged, match="divided into other shards"):
        store.renew_lock(fence)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_commits_refused_by_a_new_layout_are_committed_again(
    app: Celery, client: redis.Redis, broker: redis.Redis, is_streamed: bool
) -> None:
    store = Store(app)
    commits = commits_of(client, [[push("queue", number)] for number in range(250)])
    write_whole_layout(client, 4, 1, former=0, state="moving")
    part = store.of_part(Keys())
    target = target_of(broker)
    if is_streamed:
        with committing(part, Fence(), target) as piecewise:
            for first in range(0, 250, 50):
                piecewise.write(commits[first : first + 50])
            found = piecewise.finish()
    else:
        found = commit_runs(part, Fence(), commits, target).run()
    assert found.results == [True] * 250
    assert broker.llen("queue") == 250


def test_writer_after_the_loss_of_all_data_writes_a_new_layout(
    make_app: MakeApp, client: redis.Redis
) -> None:
    app = make_app(redbeat_shards=4)
    hourly(app).save()
    write_whole_layout(client, 4, 9)
    hourly(app).save()
    client.flushdb()
    hourly(app).save()
    assert client.hgetall(LAYOUT) == {"shards": "4", "generation": "1"}
    assert len(places_of(client)) == 1


def test_entry_during_a_move_is_located_where_it_exists(app: Celery, client: redis.Redis) -> None:
    layout = write_whole_layout(client, 4, 2, former=0, state="moving")
    home = layout.keys.entry
    client.hset("redbeat:left", "definition", "{}")
    client.hset(home("moved"), "definition", "{}")
    store = Store(app)
    look_up_layout(store)
    assert store.locate(["left", "moved", "new"]) == ["redbeat:left", home("moved"), home("new")]


def test_entry_that_is_being_moved_is_waited_for(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = write_whole_layout(client, 4, 2, former=0, state="moving")
    client.hset(Keys().moving, "report", "{}")
    store = Store(app)
    look_up_layout(store)
    found: list[str] = []
    waiting = threading.Thread(target=lambda: found.extend(store.locate(["report"])))
    waiting.start()
    client.hset(layout.keys.entry("report"), "definition", "{}")
    client.hdel(Keys().moving, "report")
    waiting.join()
    assert found == [layout.keys.entry("report")]
    monkeypatch.setattr("redbeat.store.layouts.MOVE_SECONDS", 0)
    client.hset(Keys().moving, "report", "{}")
    with pytest.raises(LayoutChanged, match=r"report: this entry has been on its way .* goes on with it"):
        store.locate(["report"])


def test_reader_of_a_missing_entry_reads_the_layout_again(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.store.store.MOVE_LOOK_SECONDS", 0)
    app, other = make_app(redbeat_shards=4), make_app(redbeat_shards=16)
    hourly(app, "first").save()
    write_whole_layout(client, 16, 2)
    hourly(other, APART).save()
    assert Entry.from_key(ensure_conf(app).keys.entry(APART), app=app).name == APART
    assert ensure_conf(app).layout.shards == 16


@pytest.mark.parametrize("shards", [1, 4])
def test_lister_reads_the_layout_again_after_a_while(
    make_app: MakeApp, client: redis.Redis, shards: int
) -> None:
    app, other = make_app(redbeat_shards=shards), make_app(redbeat_shards=16)
    config = ensure_conf(app)
    assert [*entry_keys(Store(app))] == []
    write_whole_layout(client, 16, 2)
    hourly(other, APART).save()
    assert [*entry_keys(Store(app))] == []
    config.look_seconds = 0.0
    assert [*entry_keys(Store(app))] == [ensure_conf(other).keys.entry(APART)]


def test_standby_reads_the_layout_again_after_a_while(make_app: MakeApp, client: redis.Redis) -> None:
    """It writes nothing but that it is there."""
    app = make_app(redbeat_shards=4)
    hourly(app).save()
    store, config = Store(app), ensure_conf(app)
    for part in store.parts:
        client.set(part.lock, "another beat's", px=60_000)
    election = Election(store, config.lock_key, Timing(10.0))
    election.set_parts([store.of_part(part) for part in store.parts])
    assert election.look() == []
    write_whole_layout(client, 16, 2)
    config.look_seconds = 0.0

    def has_followed() -> bool:
        assert election.look() == []
        return config.layout.shards == 16

    eventually(has_followed)
    election.resign()


FOLLOWS = "This process uses what is in Redis"
#: the number of shards before and after a reshard
CHANGES = [(None, 8), (8, 4)]


def waiting(broker: redis.Redis) -> list[Any]:
    """The arguments of the messages that wait on the queue."""
    bodies = [json.loads(one)["body"] for one in broker.lrange("celery", 0, -1)]
    return [json.loads(b64decode(body))[0] for body in bodies]


@pytest.mark.parametrize("ours", [4, None])
def test_beat_with_another_number_than_the_first_layout_exits_and_writes_nothing(
    valkey: Server, tmp_path: Path, ours: int | None
) -> None:
    with valkey.client(db=1) as client:
        client.hset(LAYOUT, mapping={"shards": 16, "generation": 1})
        write_app(tmp_path, "module", valkey.url(0), redbeat_redis_url=valkey.url(1), redbeat_shards=ours)
        with celery_beat(tmp_path, "module") as beat:
            assert beat.wait() == 78
            assert "the schedule in Redis is divided into 16 shards" in beat.output()
            assert not has_traceback(beat.output())
        assert client.keys() == [LAYOUT]


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_programs_with_the_former_number_follow_a_reshard_and_warn_once(
    valkey: Server, make_app: MakeApp, tmp_path: Path, old: int | None, new: int | None
) -> None:
    urls = {"broker_url": valkey.url(0), "redbeat_redis_url": valkey.url(1)}
    app = make_app(**urls, redbeat_shards=old)
    names = [f"entry-{number}" for number in range(20)]
    Entry.save_many(Entry(name, "echo", 1, args=[name], app=app) for name in names)
    Resharding(app, new).run()
    statics = {"static": {"task": "echo", "schedule": 1, "args": ["static"]}}
    write_app(tmp_path, "module", **urls, redbeat_shards=old, beat_schedule=statics)
    with celery_beat(tmp_path, "module") as beat, valkey.client(db=0) as broker:
        eventually(lambda: {*names, "static"} <= {args[0] for args in waiting(broker)})
        for arguments in (["status"], ["pause", "entry-1"], ["resume", "entry-1"]):
            done = run([sys.executable, "-m", "celery", "-A", "module", "redbeat", *arguments], cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert done.stderr.count(FOLLOWS) == 1, done.stderr
        assert beat.output().count(FOLLOWS) == 1
    assert not has_traceback(beat.output())
    layout = ensure_conf(make_app(**urls, redbeat_shards=new)).layout
    with valkey.client(db=1) as client:
        for name in [*names, "static"]:
            home = layout.keys.home(name) if new else layout.keys
            assert client.zscore(home.schedule, home.entry(name)) is not None
        assert {*client.scan_iter("*:schedule", _type="zset")} <= {keys.schedule for keys in layout.parts}


@pytest.mark.parametrize(
    "fields",
    [{"shards": "many"}, {"shards": "-1"}, {"generation": "0"}, {"shards": "4097"}, {"former": "x"}],
)
def test_invalid_layout_is_an_error(make_app: MakeApp, client: redis.Redis, fields: dict[str, str]) -> None:
    client.hset(LAYOUT, mapping={"shards": 4, "generation": 1, **fields})
    with pytest.raises(Exception, match="redbeat::layout is not a layout of a schedule"):
        Entry("report", "echo", 3600, app=make_app(redbeat_shards=4)).save()
    assert client.keys() == [LAYOUT]
