"""Many entries at once: what becomes of each chunk, and of whom the caller is told what."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import fakeredis
import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat.startup import store_entries
from redbeat.decoder import encode_meta
from redbeat.entries.bulk import SaveResult
from redbeat.errors import EntryCorrupt, EntryError
from redbeat.schedules import rrule
from redbeat.store import scripts as lua
from redbeat.store import store
from redbeat.store.records import Fence
from redbeat.store.store import MAX_SAVE_ATTEMPTS, Store
from tests.support.ticks import memory_app

RAN_AT = datetime.now(timezone.utc) - timedelta(minutes=5)


def made(app: Celery, number: int | str, **fields: Any) -> Entry:
    return Entry(**{"name": f"entry-{number}", "task": "t", "schedule": schedule(3600), "app": app, **fields})


def names(*numbers: int) -> tuple[str, ...]:
    return tuple(f"entry-{number}" for number in numbers)


def stored_names(app: Celery) -> set[str]:
    return {key.removeprefix("redbeat:") for key in app.redbeat_redis.zrange("redbeat::schedule", 0, -1)}


def everything(client: Any) -> dict[str, Any]:
    hashes = {key: client.hgetall(key) for key in client.keys("redbeat:[a-z]*")}
    return {**hashes, "scores": client.zrange("redbeat::schedule", 0, -1, withscores=True)}


def test_what_was_new_changed_and_same_is_told_by_name(fake_app: Celery) -> None:
    assert Entry.save_many(made(fake_app, number) for number in range(3)) == SaveResult(new=names(0, 1, 2))
    again = [made(fake_app, 0), made(fake_app, 1, args=[1]), made(fake_app, 2), made(fake_app, 3)]
    assert Entry.save_many(again) == SaveResult(names(3), names(1), names(0, 2))


def test_nothing_to_save_or_to_delete_is_done_without_a_server(app: Celery) -> None:
    assert Entry.save_many([]) == SaveResult()
    assert Entry.delete_many(iter(()), app) == 0


@pytest.mark.parametrize(
    "rule",
    [schedule(60), schedule(90, relative=True), crontab(minute="*/5"), rrule("HOURLY", dtstart=RAN_AT)],
    ids=lambda rule: type(rule).__name__,
)
def test_what_is_stored_is_to_the_byte_what_save_stores(rule: Any) -> None:
    left = []
    for save in (lambda entries: [entry.save() for entry in entries], Entry.save_many):
        app = memory_app()
        app.redbeat_redis = fakeredis.FakeRedis(decode_responses=True)
        args = [[], [1, "ü"], [RAN_AT]]
        fields = {"schedule": rule, "last_run_at": RAN_AT, "options": {"queue": "q"}}
        for kwargs in ({}, {"x": None}):
            save([made(app, n, args=args[n], kwargs=kwargs, **fields) for n in range(3)])
        left.append(everything(app.redbeat_redis))
    assert left[0] == left[1]


SPOILS: dict[str, Callable[[Any], object]] = {
    "off the schedule": lambda client: client.zrem("redbeat::schedule", "redbeat:entry-0"),
    "due at another time": lambda client: client.zadd("redbeat::schedule", {"redbeat:entry-0": 1}),
    "with a bad meta": lambda client: client.hset("redbeat:entry-0", "meta", "{oops"),
    "with another meta": lambda client: client.hset("redbeat:entry-0", "meta", '{"last_run_at": "x"}'),
    "with an error": lambda client: client.hset("redbeat:entry-0", "error", "{}"),
    "with a bad definition": lambda client: client.hset("redbeat:entry-0", "definition", "{oops"),
    "gone": lambda client: client.delete("redbeat:entry-0"),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_an_entry_that_save_would_mend_is_not_the_same(fake_app: Celery, spoil: str) -> None:
    client = fake_app.redbeat_redis
    Entry.save_many([made(fake_app, 0), made(fake_app, 1)])
    SPOILS[spoil](client)
    result = Entry.save_many([made(fake_app, 0), made(fake_app, 1)])
    assert (result.new + result.changed, result.same) == (names(0), names(1))
    assert sorted(client.hkeys("redbeat:entry-0")) == ["definition", "meta", "meta_sha1"]
    score = client.zscore("redbeat::schedule", "redbeat:entry-0")
    assert Entry.from_key("redbeat:entry-0", app=fake_app).score == score
    assert Entry.save_many([made(fake_app, 0)]).same == names(0)


def test_an_entry_that_others_wrote_without_meta_is_given_one_and_keeps_its_time(fake_app: Celery) -> None:
    client = fake_app.redbeat_redis
    made(fake_app, 0).save()
    client.hdel("redbeat:entry-0", "meta")
    client.zadd("redbeat::schedule", {"redbeat:entry-0": 5})
    assert Entry.save_many([made(fake_app, 0)]).changed == names(0)
    assert client.hget("redbeat:entry-0", "meta")
    assert client.zscore("redbeat::schedule", "redbeat:entry-0") == 5


def test_of_entries_with_one_name_the_last_is_stored_and_the_name_is_told_once(fake_app: Celery) -> None:
    def entries() -> Iterator[Entry]:
        yield made(fake_app, 0, args=["first"])
        yield made(fake_app, 0, args=["second"])
        yield from (made(fake_app, number) for number in range(1, 600))  # the third is in the next chunk
        yield made(fake_app, 0, args=["third"])

    result = Entry.save_many(entries())
    assert Entry.from_key("entry-0", app=fake_app).args == ["third"]
    assert (len(result.new), result.new[0], result.changed, result.same) == (600, "entry-0", (), ())
    assert Entry.save_many([made(fake_app, 0), made(fake_app, 0, args=["third"])]).same == names(0)


def test_progress_is_told_after_each_chunk(fake_app: Celery) -> None:
    told: list[int] = []
    Entry.save_many((made(fake_app, number) for number in range(1001)), progress=told.append)
    assert told == [500, 1000, 1001]
    assert Entry.delete_many((f"entry-{number}" for number in range(1001)), fake_app, progress=told.append)
    assert told == [500, 1000, 1001] * 2


def test_no_more_than_a_chunk_of_entries_is_held(fake_app: Celery) -> None:
    alive: weakref.WeakSet[Entry] = weakref.WeakSet()

    class Held(Entry):
        __hash__ = object.__hash__  # Celery's entries have none

    def entries() -> Iterator[Entry]:
        for number in range(2000):
            assert len(alive) <= 502  # the last one of each chunk may still be in somebody's hands
            entry = Held(f"entry-{number}", "t", 60, app=fake_app)
            alive.add(entry)
            yield entry

    made(fake_app, "first").save()  # the fake keeps the traceback of a script that it didn't know
    assert len(Entry.save_many(entries()).new) == 2000


BAD: dict[str, Callable[[Celery], Any]] = {
    "entry-600: can't be stored as JSON": lambda app: made(app, 600, args=[object()]),
    "entry-600: task must be": lambda app: made(app, 600, task=None),
    "its schedule .* can't be used": lambda app: made(app, 600, schedule=schedule(0)),
    "An entry must have a name": lambda app: made(app, 600, name=""),
    "can't be called ':lock'": lambda app: made(app, 600, name=":lock"),
    "entry-600: belongs to another app": lambda app: made(memory_app(redbeat_redis_url="redis://h"), 600),
    "save_many takes entries": lambda app: {"name": "entry-600", "task": "t", "schedule": 60},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_entry_is_named_and_nothing_of_its_chunk_is_stored(fake_app: Celery, message: str) -> None:
    entries = [made(fake_app, number) for number in range(1100)]
    entries[600] = BAD[message](fake_app)
    told: list[int] = []
    with pytest.raises(EntryError, match=f"{message}.* the 500 before them are done") as caught:
        Entry.save_many(entries, progress=told.append)
    assert (caught.value.done, told) == (500, [500])
    assert stored_names(fake_app) == set(names(*range(500)))


def test_a_key_that_holds_no_hash_is_named_and_left_alone(fake_app: Celery) -> None:
    fake_app.redbeat_redis.set("redbeat:entry-1", "mine")
    with pytest.raises(EntryCorrupt, match="redbeat:entry-1: the key holds no hash") as caught:
        Entry.save_many(made(fake_app, number) for number in range(3))
    assert (caught.value.key, caught.value.done) == ("redbeat:entry-1", 0)
    assert fake_app.redbeat_redis.keys() == ["redbeat:entry-1"]


def test_what_is_taken_for_new_and_is_not_is_read_and_saved_as_ever(fake_app: Celery) -> None:
    made(fake_app, 700, last_run_at=RAN_AT, total_run_count=7).save()
    result = Entry.save_many(made(fake_app, number, args=[1]) for number in range(1600))
    assert (len(result.new), result.changed, result.same) == (1599, names(700), ())
    assert Entry.load_meta("redbeat:entry-700", fake_app) == {"last_run_at": RAN_AT, "total_run_count": 7}


def test_what_is_taken_for_new_and_is_no_hash_is_named_and_left_alone(fake_app: Celery) -> None:
    fake_app.redbeat_redis.set("redbeat:entry-700", "mine")
    with pytest.raises(EntryCorrupt, match="redbeat:entry-700: the key holds no hash") as caught:
        Entry.save_many(made(fake_app, number) for number in range(1100))
    assert (caught.value.key, caught.value.done) == ("redbeat:entry-700", 500)
    assert stored_names(fake_app) == set(names(*range(500)))


@pytest.mark.parametrize(("clock_seconds", "chunks_read"), [(60, [500]), (-1, [500, 500, 100])])
def test_the_servers_clock_counts_and_is_read_again_when_that_is_long_ago(
    fake_app: Celery, monkeypatch: pytest.MonkeyPatch, clock_seconds: float, chunks_read: list[int]
) -> None:
    server_now, sizes, ask = 5e9, [], lua.ask_entries

    def ask_in_2128(schedule_key: str, keys: Any, **options: Any) -> Any:
        sizes.append(len(keys))
        question = ask(schedule_key, keys, **options)
        return replace(question, read=lambda reply: (server_now, question.read(reply)[1]))

    monkeypatch.setattr(lua, "ask_entries", ask_in_2128)
    monkeypatch.setattr(store, "CLOCK_SECONDS", clock_seconds)
    Entry.save_many(made(fake_app, number) for number in range(1100))
    assert sizes == chunks_read
    scores = dict(fake_app.redbeat_redis.zrange("redbeat::schedule", 0, -1, withscores=True)).values()
    assert len(scores) == 1100
    assert server_now + 3600 <= min(scores) <= max(scores) < server_now + 3660


class Meddled(Entry):
    """While it is decided what to write of it, somebody else does ``meddle``, ``times`` times."""

    meddle: Callable[[], object]
    times = 0

    def plan_save(self, *values: Any) -> Any:
        if self.times:
            self.times -= 1
            self.meddle()
        return super().plan_save(*values)


def meddled(app: Celery, number: int, times: int, meddle: Callable[[], object]) -> Meddled:
    entry = Meddled(f"entry-{number}", "t", 60, app=app)
    entry.times, entry.meddle = times, meddle
    return entry


def test_a_chunk_with_an_entry_that_another_wrote_to_is_decided_again(fake_app: Celery) -> None:
    client = fake_app.redbeat_redis
    seen: list[int] = []

    def save_another() -> None:
        seen.append(len(client.zrange("redbeat::schedule", 0, -1)))
        client.hset("redbeat:entry-1", "meta", encode_meta(None, len(seen)))

    entries = [made(fake_app, 0), meddled(fake_app, 1, 3, save_another), made(fake_app, 2)]
    result = Entry.save_many(entries)
    assert result == SaveResult(new=names(0, 2), changed=names(1))
    assert seen == [0, 0, 0], "nothing of the chunk was stored before all of it was"
    assert Entry.load_meta("redbeat:entry-1", fake_app)["total_run_count"] == 3


def test_an_entry_that_is_written_all_the_time_is_given_up_and_named(fake_app: Celery) -> None:
    client, turns = fake_app.redbeat_redis, iter(range(10**6))

    def write() -> None:
        client.hset("redbeat:entry-1", "meta", str(next(turns)))

    entries = [made(fake_app, 0), meddled(fake_app, 1, 10**6, write), made(fake_app, 2)]
    with pytest.raises(EntryError, match="redbeat:entry-1: changed by somebody else 100 times") as caught:
        Entry.save_many(entries)
    assert caught.value.key == "redbeat:entry-1"
    assert next(turns) == MAX_SAVE_ATTEMPTS
    assert stored_names(fake_app) == set()


def test_an_entry_deleted_while_it_is_saved_is_new(fake_app: Celery) -> None:
    Entry.save_many([made(fake_app, 0), made(fake_app, 1)])
    entry = meddled(fake_app, 1, 1, lambda: made(fake_app, 1).delete())
    assert Entry.save_many([made(fake_app, 0), entry]) == SaveResult(new=names(1), same=names(0))


def test_a_bad_static_is_reported_once_and_the_others_are_stored_though_the_chunk_is_decided_again(
    fake_app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {
        "bad": made(fake_app, "bad", name="bad", args=[object()]),
        "good": made(fake_app, "good", name="good"),
        "entry-1": meddled(fake_app, 1, 2, lambda: made(fake_app, 1, args=[1]).next()),
    }
    made(fake_app, 1, args=[1]).save()
    store_entries(Store(fake_app), Fence(), lambda _, entry: entry, entries)
    assert stored_names(fake_app) == {"good", "entry-1"}
    [told] = caplog.messages
    assert told.startswith("beat: Skipped the entry 'bad',")


def test_names_and_keys_are_deleted_and_those_that_were_there_are_counted(fake_app: Celery) -> None:
    Entry.save_many(made(fake_app, number) for number in range(4))
    gone = ["entry-0", "redbeat:entry-1", "entry-0", "nobody", "entry-3"]
    assert Entry.delete_many(iter(gone), fake_app) == 3
    assert fake_app.redbeat_redis.keys("redbeat:[a-z]*") == ["redbeat:entry-2"]
    assert stored_names(fake_app) == set(names(2))


@pytest.mark.parametrize("name", [":schedule", "redbeat::statics", ":lock", ":wake", "", "redbeat:", None, 7])
def test_no_name_and_the_names_of_redbeats_own_keys_are_refused(fake_app: Celery, name: Any) -> None:
    Entry.save_many(made(fake_app, number) for number in range(600))
    fake_app.redbeat_redis.set("redbeat::lock", "a token")
    with pytest.raises(EntryError, match=r"An entry .* the 500 before them are done") as caught:
        Entry.delete_many([*names(*range(550)), name], fake_app)
    assert caught.value.done == 500
    assert stored_names(fake_app) == set(names(*range(500, 600)))
    assert fake_app.redbeat_redis.get("redbeat::lock") == "a token"


def test_one_name_is_not_taken_for_the_names_of_its_letters(fake_app: Celery) -> None:
    made(fake_app, 0, name="a").save()
    with pytest.raises(TypeError, match=r"a list of names, not one name: write \['abc'\]"):
        Entry.delete_many("abc", fake_app)
    assert stored_names(fake_app) == {"a"}
