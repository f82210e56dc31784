"""Many entries at once on real servers: what goes over the wire, and what others do meanwhile."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.bulk import SaveResult
from redbeat.errors import StoreUnavailable
from redbeat.schedulers import get_redis
from redbeat.store.notifier import WakeChannel
from tests.support.schedule import SCHEDULE, field, monitoring
from tests.support.servers import Server

SETTING_UP = {"HELLO", "SELECT", "CLIENT", "EVAL"}  # a script goes whole once, when it is unknown
WRITES = {"HSET", "HDEL", "ZADD", "ZREM", "DEL", "PUBLISH"}


def made(app: Celery, number: int, **fields: Any) -> Entry:
    return Entry(**{"name": f"entry-{number}", "task": "t", "schedule": schedule(60), "app": app, **fields})


def words(commands: list[str]) -> Counter[str]:
    return Counter(command.split()[0].upper() for command in commands)


def test_a_chunk_is_a_round_trip_or_two_and_one_wake_up_and_what_is_the_same_one_and_none(
    app: Celery, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.store.store.CLOCK_SECONDS", 3600)  # else a busy machine reads it again
    entries = [made(app, number) for number in range(1600)]
    trips, inside = [], []
    for _ in range(2):
        with monitoring(server) as commands:
            Entry.save_many(entries)
        trips.append(sum(count for word, count in words(commands).items() if word not in SETTING_UP))
        entries = [made(app, number) for number in range(1600)]
    with monitoring(server, with_scripts=True) as commands:
        Entry.save_many([*entries[:700], *(made(app, number, args=[1]) for number in range(700, 1600))])
    inside = words(commands)
    assert trips == [2 + 3, 4], "after new ones nothing is read, until one isn't new"
    assert (inside["HSET"], inside["ZADD"], inside["PUBLISH"]) == (900, 3, 3)
    with monitoring(server, with_scripts=True) as commands:
        Entry.save_many(made(app, number, args=[1] if number >= 700 else None) for number in range(1600))
    assert not WRITES & words(commands).keys()
    with monitoring(server) as commands:
        assert Entry.delete_many((f"entry-{number}" for number in range(1600)), app) == 1600
    assert sum(count for word, count in words(commands).items() if word not in SETTING_UP) == 4


def test_of_programs_that_save_the_same_at_once_one_finds_each_entry_new_and_none_is_lost(
    make_app: Callable[..., Celery], client: redis.Redis
) -> None:
    results: list[SaveResult] = []
    barrier = threading.Barrier(4)

    def save(app: Celery, turn: int) -> None:
        entries = [made(app, number, kwargs={"from": turn}) for number in range(1200)]
        barrier.wait()
        results.append(Entry.save_many(entries))

    threads = [threading.Thread(target=save, args=(make_app(), turn)) for turn in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert client.zcard(SCHEDULE) == 1200
    assert Counter(name for result in results for name in result.new) == dict.fromkeys(
        (f"entry-{number}" for number in range(1200)), 1
    )
    assert [len(result.new + result.changed + result.same) for result in results] == [1200] * 4
    for first in (0, 500, 1000):
        chunk = range(first, min(first + 500, 1200))
        assert len({field(client, f"entry-{n}", "definition")["kwargs"]["from"] for n in chunk}) == 1


def test_a_chunk_in_which_somebody_else_writes_is_not_stored_by_halves(
    app: Celery, client: redis.Redis
) -> None:
    seen: list[int] = []

    class Raced(Entry):
        def plan_save(self, *values: Any) -> Any:
            write = super().plan_save(*values)
            if self.name == "entry-250" and len(seen) < 2:
                client.hset("redbeat:entry-100", "meta", f"{len(seen)}")
                seen.append(client.zcard(SCHEDULE))
            return write

    result = Entry.save_many(Raced(f"entry-{number}", "t", 60, app=app) for number in range(500))
    assert seen == [0, 0]
    assert (len(result.new), result.changed) == (499, ("entry-100",))
    assert client.zcard(SCHEDULE) == 500


def test_bytes_that_are_no_text_are_replaced_like_anything_unusable(app: Celery, client: redis.Redis) -> None:
    client.hset("redbeat:entry-0", mapping={"definition": b"\xff\x00{oops", "meta": b"\xfe"})
    assert Entry.save_many([made(app, 0), made(app, 1)]) == SaveResult(("entry-1",), ("entry-0",))
    assert Entry.save_many([made(app, 0), made(app, 1)]).same == ("entry-0", "entry-1")


def test_a_waiting_beat_is_woken_by_saving_and_by_deleting(app: Celery) -> None:
    channel = WakeChannel(get_redis(app), "redbeat::wake")
    assert not channel.wait(0.1), "it has subscribed now"
    Entry.save_many([made(app, 0)])
    assert channel.wait(5)
    Entry.delete_many(["entry-0"], app)
    assert channel.wait(5)
    channel.close()


def test_a_server_that_goes_away_amid_leaves_whole_chunks_and_the_call_can_be_made_again(
    make_app: Callable[..., Celery], server: Server
) -> None:
    app = make_app(redbeat_redis_options={"retry_period": 0})
    told: list[int] = []

    def stop_after_a_thousand(handled: int) -> None:
        told.append(handled)
        if handled == 1000:
            with server.client(db=1) as client:
                assert client.zcard(SCHEDULE) == 1000
            server.kill()

    with pytest.raises(StoreUnavailable):
        Entry.save_many((made(app, number) for number in range(2000)), progress=stop_after_a_thousand)
    assert told == [500, 1000]
    server.restart()
    assert len(Entry.save_many(made(app, number) for number in range(2000)).new) in (1000, 2000)
    with server.client(db=1) as client:
        assert client.zcard(SCHEDULE) == 2000
