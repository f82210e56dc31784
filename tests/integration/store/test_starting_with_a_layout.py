"""Programs that start with settings other than the layout in Redis: they refuse with a sentence if the layout
was never changed, and go on with a warning if the settings may be older.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.config.config import ensure_conf
from redbeat.errors import ConfigurationError
from redbeat.keys import Keys
from redbeat.layout import Layout
from redbeat.reshard.resharding import Resharding
from redbeat.store.layouts import Layouts
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import call, run
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.schedule import write_raw
from tests.support.servers import Server

LAYOUT, GENERATION = Keys().layout, Keys().generation
DIFFERENT = {
    "another number": (4, 16, "redbeat_shards is 4, and the schedule in Redis is divided into 16 shards"),
    "unset": (None, 16, "redbeat_shards isn't set, and the schedule in Redis is divided into 16 shards"),
}
FOLLOWS = "This process uses what is in Redis"
#: the number of shards before and after a reshard
CHANGES = [(None, 8), (4, 8), (8, 4), (8, None)]


def waiting(broker: redis.Redis) -> list[Any]:
    """The arguments of the messages that wait on the queue."""
    bodies = [json.loads(one)["body"] for one in broker.lrange("celery", 0, -1)]
    return [json.loads(b64decode(body))[0] for body in bodies]


def write_layout(client: redis.Redis, shards: int, generation: int = 2, **fields: Any) -> None:
    client.hset(LAYOUT, mapping={"shards": shards, "generation": generation, **fields})


@pytest.mark.parametrize(("ours", "found", "sentence"), DIFFERENT.values(), ids=DIFFERENT)
def test_a_beat_with_another_number_than_the_first_layout_ends_before_anything_is_written(
    valkey: Server, tmp_path: Path, ours: int | None, found: int, sentence: str
) -> None:
    with valkey.client(db=1) as client:
        write_layout(client, found, generation=1)
        write_app(tmp_path, "module", valkey.url(0), redbeat_redis_url=valkey.url(1), redbeat_shards=ours)
        with celery_beat(tmp_path, "module") as beat:
            assert beat.wait() == 78
            assert sentence in beat.output()
            assert not has_traceback(beat.output())
        assert client.keys() == [LAYOUT]


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_programs_with_the_old_number_go_on_after_a_reshard_with_one_warning_each(
    valkey: Server, make_app: MakeApp, tmp_path: Path, old: int | None, new: int | None
) -> None:
    urls = {"broker_url": valkey.url(0), "redbeat_redis_url": valkey.url(1)}
    app = make_app(**urls, redbeat_shards=old)
    names = [f"entry-{number}" for number in range(20)]
    Entry.save_many(Entry(name, "echo", 1, args=[name], app=app) for name in names)
    Resharding(app, new).run()
    statics = {"static": {"task": "echo", "schedule": 1, "args": ["static"]}}
    settings = {"redbeat_redis_url": valkey.url(1), "redbeat_shards": old, "beat_schedule": statics}
    write_app(tmp_path, "module", valkey.url(0), **settings)
    layout = ensure_conf(make_app(**urls, redbeat_shards=new)).layout
    with celery_beat(tmp_path, "module") as beat, valkey.client(db=0) as broker:
        eventually(lambda: {*names, "static"} <= {args[0] for args in waiting(broker)})
        for arguments in (["status"], ["list"], ["pause", "entry-1"], ["resume", "entry-1"], ["count"]):
            done = run([sys.executable, "-m", "celery", "-A", "module", "redbeat", *arguments], cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            assert done.stderr.count(FOLLOWS) == 1, done.stderr
        writer = make_app(**urls, redbeat_shards=old)
        Entry("new", "echo", 1, args=["new"], app=writer).save()
        eventually(lambda: "new" in {args[0] for args in waiting(broker)})
        assert beat.output().count(FOLLOWS) == 1
    assert not has_traceback(beat.output())
    with valkey.client(db=1) as client:
        schedules = set(client.scan_iter("*:schedule", _type="zset"))
        assert schedules <= {keys.schedule for keys in layout.parts}
        members = {key for key_of_part in schedules for key in client.zrange(key_of_part, 0, -1)}
        assert members == {layout.keys.entry(name) for name in [*names, "static", "new"]}


@pytest.mark.parametrize("shards", [4, 16])
def test_while_entries_are_moved_a_beat_may_start_with_either_number(
    make_scheduler: MakeScheduler, client: redis.Redis, shards: int
) -> None:
    write_layout(client, 16, former=4, state="moving")
    scheduler = make_scheduler(redbeat_shards=shards)
    assert {part.guard for part in ensure_conf(scheduler.app).layout.parts} == {"2 16 from 4"}
    assert len(ensure_conf(scheduler.app).layout.parts) == 16
    assert {client.get(key) for key in client.scan_iter(match="*:generation")} == {"2 16 from 4"}


def test_a_beat_that_starts_writes_the_layout_of_a_schedule_without_entries(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    make_scheduler(redbeat_shards=4)
    assert client.hgetall(LAYOUT) == {"shards": "4", "generation": "1"}
    assert {client.get(key) for key in client.scan_iter(match="*:generation")} == {"1 4"}
    assert len([*client.scan_iter(match="*:generation")]) == 5, "also where entries would be without shards"


def test_a_beat_doesn_t_divide_a_schedule_that_has_entries(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    write_raw(client, "report")
    with pytest.raises(ConfigurationError, match=r"celery redbeat reshard --to 4 divides them"):
        make_scheduler(redbeat_shards=4)
    assert not client.exists(LAYOUT, GENERATION)


@pytest.mark.parametrize(("ours", "found", "sentence"), DIFFERENT.values(), ids=DIFFERENT)
@pytest.mark.parametrize("arguments", [("count",), ("list",), ("status",), ("pause", "report")])
def test_a_command_with_another_number_than_the_first_layout_refuses(
    make_app: MakeApp,
    client: redis.Redis,
    ours: int | None,
    found: int,
    sentence: str,
    arguments: tuple[str, ...],
) -> None:
    write_layout(client, found, generation=1)
    done = call(make_app(redbeat_shards=ours), *arguments)
    assert (done.exit_code, done.stdout) == (78, "")
    assert done.stderr.startswith(f"Error: {sentence}")


def test_a_command_doesn_t_show_a_schedule_as_empty_that_isn_t_divided_yet(
    make_app: MakeApp, client: redis.Redis
) -> None:
    write_raw(client, "report")
    done = call(make_app(redbeat_shards=4), "count")
    assert done.exit_code == 78
    assert "celery redbeat reshard --to 4 divides them" in done.stderr


def test_a_url_alone_says_nothing_about_shards_so_the_command_looks(
    make_app: MakeApp, client: redis.Redis, server: Server
) -> None:
    app = make_app(redbeat_shards=4)
    Entry("report", "echo", 3600, app=app).save()
    done = call(Celery(set_as_current=False), "--url", server.url(1), "list", "--json")
    assert (done.exit_code, done.stderr) == (0, "")
    assert '"name": "report"' in done.stdout


def test_commands_that_need_no_schedule_don_t_ask_for_one(make_app: MakeApp) -> None:
    app = make_app(redbeat_redis_url="redis://127.0.0.1:1/0", redbeat_shards=4)
    assert call(app, "monitoring").exit_code == 0


def test_after_its_start_a_program_follows(make_app: MakeApp, client: redis.Redis) -> None:
    app = make_app(redbeat_shards=4)
    Layouts(Store(app)).settle(is_writer=True)
    layout = Layout(Keys(), 16, 2)
    write_layout(client, 16)
    for part in (*Layout(Keys(), 4, 1).parts, *layout.parts):
        client.set(part.generation, layout.guard)
    Entry("report", "echo", 3600, app=app).save()
    assert client.exists(layout.keys.entry("report"))


@pytest.mark.parametrize(
    "fields",
    [{"shards": "many"}, {"shards": "-1"}, {"generation": "0"}, {"shards": "4097"}, {"former": "x"}],
)
def test_a_layout_that_can_t_be_read_is_an_error(
    make_app: MakeApp, client: redis.Redis, fields: dict[str, str]
) -> None:
    client.hset(LAYOUT, mapping={"shards": 4, "generation": 1, **fields})
    with pytest.raises(Exception, match="redbeat::layout holds something that is no layout of a schedule"):
        Entry("report", "echo", 3600, app=make_app(redbeat_shards=4)).save()
    assert client.keys() == [LAYOUT]
