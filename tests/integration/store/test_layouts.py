"""The layout in Redis: the first writer writes it, others follow it, and what is out of date is refused."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import threading
from collections.abc import Callable
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
from redbeat.leadership.shares import Shares
from redbeat.leadership.status import read_status
from redbeat.store.layouts import Layouts
from redbeat.store.members import Members
from redbeat.store.parts import Part
from redbeat.store.records import Fence
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.committing import commits_of, committing, push, target_of
from tests.support.polling import eventually
from tests.support.rights import Ground
from tests.support.schedule import write_raw

LAYOUT, GENERATION = Keys().layout, Keys().generation
#: what is in one of the first four of 16 shards no more
APART = next(name for name in map(str, range(100)) if shard_of(name, 16) > 3)


def hourly(app: Celery, name: str = "report") -> Entry:
    return Entry(name, "echo", 3600, app=app)


def write_layout(client: redis.Redis, shards: int, generation: int, **fields: Any) -> Layout:
    """Write a layout, and tell all its parts; nobody expects what those hold that are no more."""
    former = int(fields.get("former", 0)) or None
    layout = Layout(Keys(), shards or None, generation, former, is_moving=fields.get("state") == "moving")
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


def test_the_first_writer_writes_the_layout_and_the_generations_of_what_it_writes_to(
    make_app: MakeApp, client: redis.Redis
) -> None:
    app = make_app(redbeat_shards=4)
    hourly(app).save()
    assert client.hgetall(LAYOUT) == {"shards": "4", "generation": "1"}
    home = Layout(Keys(), 4, 1).keys.home("report")
    assert places_of(client) == [home.entry("report")]
    assert (client.get(home.generation), client.get(GENERATION)) == ("1 4", "1 4")


@pytest.mark.parametrize("kept", ["redbeat::schedule", "redbeat::later", "redbeat::downgraded"])
def test_a_schedule_with_entries_is_divided_by_reshard_alone(
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


def test_of_many_first_writers_with_different_numbers_one_decides(
    make_app: MakeApp, client: redis.Redis, chance: random.Random
) -> None:
    apps = [make_app(redbeat_shards=chance.choice([1, 2, 3, 4, 16, 64])) for _ in range(8)]
    together, errors = threading.Barrier(8), list[BaseException]()

    def save(number: int) -> None:
        try:
            together.wait()
            hourly(apps[number], f"entry-{number}").save()
        except Exception as exc:  # noqa: BLE001 - it is looked at below
            errors.append(exc)

    threads = [threading.Thread(target=save, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = client.hgetall(LAYOUT)
    assert found.keys() == {"shards", "generation"}
    layout = Layout(Keys(), int(found["shards"]), int(found["generation"]))
    for number in range(8):
        assert places_of(client, f"entry-{number}") == [layout.keys.entry(f"entry-{number}")]
    assert {ensure_conf(app).layout.guard for app in apps} == {layout.guard}


def test_without_the_setting_nothing_is_read_or_written_of_layouts(app: Celery, client: redis.Redis) -> None:
    hourly(app).save()
    assert ensure_conf(app).looked_at is None
    assert not client.exists(LAYOUT, GENERATION)


def test_a_layout_that_was_lost_is_written_again_with_a_later_generation(
    make_app: MakeApp, client: redis.Redis
) -> None:
    write_layout(client, 4, 7)
    client.delete(LAYOUT)
    client.delete(GENERATION)  # it needn't have been a part of the last layouts
    hourly(make_app(redbeat_shards=4)).save()
    assert client.hgetall(LAYOUT) == {"shards": "4", "generation": "8"}


def test_a_layout_that_was_lost_is_not_written_with_another_number(
    make_app: MakeApp, client: redis.Redis
) -> None:
    write_layout(client, 4, 7)
    client.delete(LAYOUT, GENERATION)
    for shards in (2, 16):
        with pytest.raises(StoreRefused, match=r'holds "7 4".*redbeat::layout is missing'):
            hourly(make_app(redbeat_shards=shards)).save()
    assert not client.exists(LAYOUT)


def test_a_generation_that_is_later_than_the_layout_is_an_error_that_says_so(
    make_app: MakeApp, client: redis.Redis
) -> None:
    write_layout(client, 4, 7)
    for shard in range(4):
        client.set(f"{{redbeat:{shard}}}::generation", "9 4")
    with pytest.raises(StoreRefused, match=r'holds "9 4", which is later than what redbeat::layout says'):
        hourly(make_app(redbeat_shards=4)).save()


def test_a_writer_with_old_settings_follows_with_one_warning(
    make_app: MakeApp, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    layout = write_layout(client, 16, 3)
    app = make_app(redbeat_shards=4)
    for number in range(5):
        hourly(app, f"entry-{number}").save()
        assert places_of(client, f"entry-{number}") == [layout.keys.entry(f"entry-{number}")]
    told = [one for one in caplog.records if "redbeat_shards" in one.getMessage()]
    assert [one.levelno for one in told] == [logging.WARNING]
    assert told[0].getMessage() == (
        "redbeat_shards is 4, and the schedule in Redis is divided into 16 shards "
        "(redbeat::layout): set redbeat_shards = 16. If it is the schedule that is to change: celery redbeat "
        "reshard --to 4. This process uses what is in Redis."
    )


def test_a_script_that_has_set_up_no_logging_shows_that_warning_once(
    app: Celery, client: redis.Redis, tmp_path: Path
) -> None:
    write_layout(client, 16, 3)
    script = tmp_path / "script.py"
    script.write_text(
        f"""from celery import Celery
from celery.schedules import schedule
from redbeat import RedBeatSchedulerEntry as Entry
app = Celery("app", broker="memory://")
app.conf.update(redbeat_redis_url={app.conf.redbeat_redis_url!r}, redbeat_shards=4)
for number in range(5):
    Entry(f"entry-{{number}}", "echo", schedule(60), app=app).save()
"""
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, timeout=60)
    assert [line[:80] for line in ran.stderr.splitlines()] == [
        "redbeat_shards is 4, and the schedule in Redis is divided into 16 shards (redbea"
    ]


@pytest.mark.parametrize("look", [lambda app: len(list(Entry.list(app))), Entry.count], ids=["list", "count"])
def test_a_program_without_the_setting_lists_and_counts_what_is_divided(
    make_app: MakeApp, client: redis.Redis, look: Callable[[Celery], int]
) -> None:
    write_layout(client, 4, 2)
    for number in range(5):
        hourly(make_app(redbeat_shards=4), f"entry-{number}").save()
    assert look(make_app()) == 5


def test_a_writer_without_the_setting_follows_once_it_is_refused(app: Celery, client: redis.Redis) -> None:
    hourly(app, "before").save()
    client.delete("redbeat::schedule", "redbeat:before")
    layout = write_layout(client, 4, 1)
    hourly(app).save()
    assert places_of(client) == [layout.keys.entry("report")]


def test_from_shards_to_none(make_app: MakeApp, client: redis.Redis) -> None:
    app = make_app(redbeat_shards=4)
    entry = hourly(app)
    entry.save()
    client.delete(entry.key)
    write_layout(client, 0, 2)
    entry.save()
    assert places_of(client) == ["redbeat:report"]
    assert client.zcard("redbeat::schedule") == 1
    entry.delete()
    assert places_of(client) == []


def test_a_part_that_doesn_t_know_its_generation_is_told(make_app: MakeApp, client: redis.Redis) -> None:
    layout = write_layout(client, 4, 5)
    home = layout.keys.home("report")
    client.delete(home.generation)
    hourly(make_app(redbeat_shards=4)).save()
    assert client.get(home.generation) == "5 4"
    assert places_of(client) == [home.entry("report")]


def test_an_earlier_generation_is_raised_and_a_later_one_stays(app: Celery, client: redis.Redis) -> None:
    layouts, part = Layouts(Store(app)), Keys("{redbeat:1}:", guard="10 4")
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
        assert layouts.raise_generation(part) == client.get(part.generation) == then


def test_a_store_of_one_part_goes_on_while_the_part_is_one_of_the_layout_s(
    make_app: MakeApp, client: redis.Redis, broker: redis.Redis
) -> None:
    before = write_layout(client, 4, 1)
    app = make_app(redbeat_shards=4)
    whole = Store(app)
    store = whole.of_part(whole.parts[1])
    fence = Fence(before.parts[1].lock, "token", 60_000)
    store.renew_lock(fence)
    write_layout(client, 16, 2, former=4, state="moving")
    store.renew_lock(fence)
    assert store.keys == Keys("{redbeat:1}:", guard="2 16 from 4", shared_prefix="redbeat:")
    write_layout(client, 1, 3)
    with pytest.raises(LayoutChanged, match=r"What is under {redbeat:1}: isn't part of the schedule"):
        store.renew_lock(fence)


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_batch_whose_commits_were_refused_is_committed_all_the_same(
    app: Celery, client: redis.Redis, broker: redis.Redis, is_streamed: bool
) -> None:
    store = Store(app)
    commits = commits_of(client, [[push("queue", number)] for number in range(250)])
    write_layout(client, 4, 1, former=0, state="moving")
    part = store.of_part(Part(Keys()))
    target = target_of(broker)
    if is_streamed:
        with committing(part, Fence(), target) as piecewise:
            for first in range(0, 250, 50):
                piecewise.write(commits[first : first + 50])
            found = piecewise.finish()
    else:
        found = part.commit_runs(Fence(), commits, target)
    assert found.results == [True] * 250
    assert broker.llen("queue") == 250


def test_a_claim_ahead_that_was_refused_is_made_in_the_ordinary_way(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "due")
    write_layout(client, 4, 1, former=0, state="moving")
    part = Store(app).of_part(Part(Keys()))
    ahead = part.claim_ahead(Fence(), 10, (0, 1 << 30), [])
    assert ahead is not None
    assert ahead.read() is None
    assert [row.key for row in part.claim_due(Fence(), 10).rows] == ["redbeat:due"]


def test_a_process_never_sees_that_the_layout_changes_all_the_time(
    make_app: MakeApp, client: redis.Redis, chance: random.Random
) -> None:
    write_layout(client, 4, 1)
    is_over, app, raised = threading.Event(), make_app(redbeat_shards=4), [1]

    def raise_again_and_again() -> None:
        while not is_over.wait(chance.uniform(0, 0.01)):
            raised[0] += 1
            # every part knows of one layout after the other, the layout itself first
            layout = Layout(Keys(), 4, raised[0])
            client.hset(LAYOUT, "generation", raised[0])
            for part in layout.parts:
                Layouts(Store(app)).raise_generation(part)

    other = threading.Thread(target=raise_again_and_again)
    other.start()
    try:
        for number in range(100):
            hourly(app, f"entry-{number}").save()
        eventually(lambda: raised[0] > 20)
        for number in range(0, 100, 2):
            Entry.from_key(ensure_conf(app).keys.entry(f"entry-{number}"), app=app).delete()
    finally:
        is_over.set()
        other.join()
    found = [name for number in range(100) for name in places_of(client, f"entry-{number}")]
    keys = Layout(Keys(), 4, 1).keys
    assert sorted(found) == sorted(keys.entry(f"entry-{number}") for number in range(1, 100, 2))


def test_a_layout_that_is_missing_while_its_parts_know_of_one_is_an_error_that_says_so(
    app: Celery, client: redis.Redis
) -> None:
    client.set(GENERATION, "3 4")
    with pytest.raises(StoreRefused, match=r'redbeat::generation holds "3 4".*redbeat::layout is missing'):
        hourly(app).save()


def test_all_data_may_be_lost_at_any_time(make_app: MakeApp, client: redis.Redis) -> None:
    app = make_app(redbeat_shards=4)
    hourly(app).save()
    write_layout(client, 4, 9)
    hourly(app).save()
    client.flushdb()
    hourly(app).save()
    assert client.hgetall(LAYOUT) == {"shards": "4", "generation": "1"}
    assert len(places_of(client)) == 1


def test_an_entry_is_where_it_was_or_at_home_while_others_are_moved(app: Celery, client: redis.Redis) -> None:
    layout = write_layout(client, 4, 2, former=0, state="moving")
    home = layout.keys.entry
    client.hset("redbeat:left", "definition", "{}")
    client.hset(home("moved"), "definition", "{}")
    store = Store(app)
    Layouts(store).look()
    assert store.locate(["left", "moved", "new"]) == ["redbeat:left", home("moved"), home("new")]


def test_one_on_its_way_is_waited_for(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = write_layout(client, 4, 2, former=0, state="moving")
    client.hset(Keys().moving, "report", "{}")
    store = Store(app)
    Layouts(store).look()
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


def test_who_only_reads_looks_again_for_an_entry_that_isn_t_there(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.store.store.MOVE_LOOK_SECONDS", 0)
    app, other = make_app(redbeat_shards=4), make_app(redbeat_shards=16)
    hourly(app, "first").save()
    write_layout(client, 16, 2)
    hourly(other, APART).save()
    assert Entry.from_key(ensure_conf(app).keys.entry(APART), app=app).name == APART
    assert ensure_conf(app).layout.shards == 16


@pytest.mark.parametrize("shards", [1, 4])
def test_who_only_lists_looks_again_now_and_then(make_app: MakeApp, client: redis.Redis, shards: int) -> None:
    app, other = make_app(redbeat_shards=shards), make_app(redbeat_shards=16)
    config = ensure_conf(app)
    assert [*Members(Store(app)).entries()] == []
    write_layout(client, 16, 2)
    hourly(other, APART).save()
    assert [*Members(Store(app)).entries()] == []
    config.look_seconds = 0.0
    assert [*Members(Store(app)).entries()] == [ensure_conf(other).keys.entry(APART)]


@pytest.mark.parametrize("shards", [1, 4])
def test_who_only_reads_the_status_looks_again_now_and_then(
    make_app: MakeApp, client: redis.Redis, shards: int
) -> None:
    app = make_app(redbeat_shards=shards)
    hourly(app).save()
    assert len(read_status(app).shards) == shards
    write_layout(client, 16, 2)
    ensure_conf(app).look_seconds = 0.0
    assert len(read_status(app).shards) == 16


@pytest.mark.parametrize("shards", [1, 4])
def test_a_beat_that_stands_by_looks_again_now_and_then(
    make_app: MakeApp, client: redis.Redis, shards: int
) -> None:
    """It writes nothing but that it is there."""
    app = make_app(redbeat_shards=shards)
    hourly(app).save()
    store, config = Store(app), ensure_conf(app)
    for part in store.parts:
        client.set(part.keys.lock, "another beat's", px=60_000)
    shares = Shares(store, config.lock_key, Timing(10.0))
    shares.set_parts([store.of_part(part) for part in store.parts])
    assert shares.look() == []
    write_layout(client, 16, 2)
    config.look_seconds = 0.0

    def has_followed() -> bool:
        assert shares.look() == []
        return config.layout.shards == 16

    eventually(has_followed)
    shares.resign()


def test_who_may_not_read_the_layout_asks_once(ground: Ground) -> None:
    ground.let(["+@all", "~redbeat:[^:]*", "~redbeat::schedule"])
    app = ground.app()
    ensure_conf(app).look_seconds = 0.0
    for _ in range(3):
        assert [*Members(Store(app)).entries()] == []
    assert [what for _, what in ground.refusals()] == [LAYOUT]
    hourly(app).save()
    assert places_of(ground.admin) == ["redbeat:report"]
