"""What a save writes, of one entry and of many."""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from itertools import count
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.decoder import encode_meta
from redbeat.entries.bulk import SaveResult
from redbeat.errors import EntryCorrupt, EntryError
from redbeat.schedules import rrule
from redbeat.store import entries as rows
from redbeat.store.records import Stored, Write
from tests.support.ticks import fake_redis_app, memory_app

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)


NOW = NOON + timedelta(seconds=20)


RAN = encode_meta(NOON, 7)


def entry_x(app: Celery, **fields: Any) -> Entry:
    return Entry(**{"name": "x", "task": "t", "schedule": schedule(60), "app": app, **fields})


def planned(made: Entry, stored: Stored, now: datetime = NOW) -> Any:
    return made.plan_save(stored, now)


def stored(app: Celery, meta: str | None = RAN, score: float | None = None, **fields: Any) -> Stored:
    """What saving such an entry has left; its meta says it ran at noon."""
    definition = planned(entry_x(app, **fields), Stored("redbeat:x")).definition
    return Stored("redbeat:x", definition, meta, score=NOON.timestamp() + 60 if score is None else score)


def after_noon(seconds: float) -> float:
    return NOON.timestamp() + seconds


def test_new_entry_is_due_one_interval_after_the_server_time(app: Celery) -> None:
    write = planned(entry_x(app), Stored("redbeat:x"))
    assert json.loads(write.definition)["schedule"]["every"] == 60
    assert (write.meta, write.score, write.must_exist) == (encode_meta(NOW, 0), after_noon(80), False)


@pytest.mark.parametrize(("hours", "due"), [(0, 3000), (3, 13_800)])
def test_interval_without_a_run_counts_from_its_start_time(app: Celery, hours: int, due: float) -> None:
    now, start = NOW + timedelta(hours=hours), NOON - timedelta(days=9, minutes=10)
    for before in (Stored("redbeat:x"), stored(app, encode_meta(NOW, 0), schedule=schedule(3600))):
        made = entry_x(app, schedule=schedule(3600), start_time=start)
        assert planned(made, before, now).score == after_noon(due)
        first, second = made.next_runs(2, after=now, tz=timezone.utc)
        assert (first.timestamp(), second - first) == (after_noon(due), timedelta(hours=1))


def test_frequent_saves_do_not_move_the_due_time(app: Celery) -> None:
    for late in range(0, 60, 7):
        assert planned(entry_x(app), stored(app), NOON + timedelta(seconds=late)).score == after_noon(60)


@pytest.mark.parametrize(
    "rule", [crontab(minute="*/5"), schedule(60), rrule("HOURLY", dtstart=NOON, byminute=(1, 2))]
)
def test_overdue_entry_saved_again_stays_overdue(app: Celery, rule: Any) -> None:
    overdue = planned(entry_x(app, schedule=rule), stored(app, schedule=rule), NOW + timedelta(hours=1))
    assert overdue.score < after_noon(3600)


def test_save_leaves_the_score_of_a_leased_run(app: Celery) -> None:
    leased = stored(app, score=after_noon(120))
    assert planned(entry_x(app), leased, NOON + timedelta(seconds=90)).score is None


@pytest.mark.parametrize(
    ("rule", "expected"),
    [(schedule(7), 21), (schedule(3600), 3600), (crontab("*/5"), 300), (rrule("MINUTELY", dtstart=NOON), 60)],
)
def test_changed_schedule_is_due_at_its_next_time(app: Celery, rule: Any, expected: float) -> None:
    app.conf.timezone = "UTC"
    write = planned(entry_x(app, schedule=rule), stored(app))
    assert (write.meta, write.score) == ("", after_noon(expected))


def test_write_changes_what_differs_or_was_written_by_another_program() -> None:
    before = Stored("redbeat:x", "d", "m", 5.0)
    for same in (Write(), Write("d", "m", 5.0), Write("d"), Write(meta="m", score=5.0, must_exist=True)):
        assert not same.changes(before), same
    for other in (Write("e"), Write("d", "n"), Write("d", "m", 5.000001), Write(policy="{}")):
        assert other.changes(before), other
    for spoilt in ({"error": "{}"}, {"score": None}, {"meta_mark": ""}):
        assert Write("d", "m", 5.0).changes(replace(before, **spoilt)), spoilt


def test_entry_enabled_again_skips_the_runs_of_its_pause(app: Celery) -> None:
    write = planned(entry_x(app), stored(app, enabled=False), NOW + timedelta(hours=1))
    assert write.score == after_noon(3660)
    assert planned(entry_x(app, enabled=False), stored(app)).score == after_noon(60)


@pytest.mark.parametrize("invalid", ["{oops", "[1]", '{"task": "t", "last_run_at": "x"}'])
def test_save_over_an_invalid_field_keeps_the_other(app: Celery, invalid: str) -> None:
    write = planned(entry_x(app), Stored("redbeat:x", invalid, RAN, error="{}", score=after_noon(300)))
    assert (write.meta, write.score) == ("", after_noon(60))
    write = planned(entry_x(app), stored(app, meta=invalid))
    assert (json.loads(write.meta)["total_run_count"], write.score) == (0, after_noon(80))


@pytest.mark.parametrize(("meta", "score"), [(None, 5.0), (encode_meta(None, 0), 5.0), (None, -1.0)])
def test_save_keeps_the_score_of_a_raw_entry_that_never_ran(
    app: Celery, meta: str | None, score: float
) -> None:
    definition = '{"task": "t", "schedule": {"__type__": "interval", "every": 60}}'
    assert planned(entry_x(app), Stored("redbeat:x", definition, meta, score=score)).score is None


def test_save_leaves_the_callers_objects_alone(app: Celery) -> None:
    options = {"queue": "q", "headers": {"mine": 1}}
    given: dict[str, Any] = {"args": [1], "kwargs": {"a": [NOON]}, "options": options}
    before = copy.deepcopy(given)
    planned(entry_x(app, **given), stored(app))
    assert given == before


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


def test_save_many_reports_new_changed_and_same(fake_app: Celery) -> None:
    assert Entry.save_many(made(fake_app, number) for number in range(3)) == SaveResult(new=names(0, 1, 2))
    again = [made(fake_app, 0), made(fake_app, 1, args=[1]), made(fake_app, 2), made(fake_app, 3)]
    assert Entry.save_many(again) == SaveResult(names(3), names(1), names(0, 2))


def test_save_many_stores_the_same_bytes_as_save() -> None:
    left = []
    for save in (lambda entries: [entry.save() for entry in entries], Entry.save_many):
        app = fake_redis_app()
        args = [[], [1, "ü"], [RAN_AT]]
        fields = {"last_run_at": RAN_AT, "options": {"queue": "q"}}
        for kwargs in ({}, {"x": None}):
            save([made(app, n, args=args[n], kwargs=kwargs, **fields) for n in range(3)])
        left.append(everything(app.redbeat_redis))
    assert left[0] == left[1]


SPOILS: dict[str, Callable[[Any], object]] = {
    "off the schedule": lambda client: client.zrem("redbeat::schedule", "redbeat:entry-0"),
    "with a bad meta": lambda client: client.hset("redbeat:entry-0", "meta", "{oops"),
    "with an error": lambda client: client.hset("redbeat:entry-0", "error", "{}"),
    "with a bad definition": lambda client: client.hset("redbeat:entry-0", "definition", "{oops"),
    "gone": lambda client: client.delete("redbeat:entry-0"),
}


@pytest.mark.parametrize("spoil", SPOILS)
def test_save_many_repairs_a_spoilt_entry(fake_app: Celery, spoil: str) -> None:
    client = fake_app.redbeat_redis
    Entry.save_many([made(fake_app, 0), made(fake_app, 1)])
    SPOILS[spoil](client)
    result = Entry.save_many([made(fake_app, 0), made(fake_app, 1)])
    assert (result.new + result.changed, result.same) == (names(0), names(1))
    assert sorted(client.hkeys("redbeat:entry-0")) == ["definition", "meta", "meta_crc32"]
    score = client.zscore("redbeat::schedule", "redbeat:entry-0")
    assert Entry.from_key("redbeat:entry-0", app=fake_app).score == score
    assert Entry.save_many([made(fake_app, 0)]).same == names(0)


def test_save_many_of_one_name_twice_stores_the_last(fake_app: Celery) -> None:
    first, second, third = (made(fake_app, 0, args=[text]) for text in ("first", "second", "third"))
    others = [made(fake_app, number) for number in range(1, 600)]  # the third is in the next chunk
    result = Entry.save_many([first, second, *others, third])
    assert Entry.from_key("entry-0", app=fake_app).args == ["third"]
    assert result == SaveResult(new=names(*range(600)))
    assert Entry.save_many([made(fake_app, 0), made(fake_app, 0, args=["third"])]).same == names(0)


def test_save_many_holds_one_chunk_in_memory(fake_app: Celery) -> None:
    alive: weakref.WeakSet[Entry] = weakref.WeakSet()

    class Held(Entry):
        __hash__ = object.__hash__  # Celery's entries have none

    def entries() -> Iterator[Entry]:
        for number in range(1200):
            assert len(alive) <= 502  # the last one of each chunk may still be in somebody's hands
            entry = Held(f"entry-{number}", "t", 60, app=fake_app)
            alive.add(entry)
            yield entry

    made(fake_app, "first").save()  # the fake keeps the traceback of a script that it didn't know
    assert len(Entry.save_many(entries()).new) == 1200


BAD: dict[str, Callable[[Celery], Any]] = {
    "entry-600: can't be stored as JSON": lambda app: made(app, 600, args=[object()]),
    "its schedule .* can't be used": lambda app: made(app, 600, schedule=schedule(0)),
    "entry-600: belongs to another app": lambda app: made(memory_app(redbeat_redis_url="redis://h"), 600),
    "save_many takes entries": lambda app: {"name": "entry-600", "task": "t", "schedule": 60},
}


@pytest.mark.parametrize("message", BAD)
def test_save_many_with_an_invalid_entry_stores_nothing_of_its_chunk(fake_app: Celery, message: str) -> None:
    entries = [made(fake_app, number) for number in range(650)]
    entries[600] = BAD[message](fake_app)
    told: list[int] = []
    with pytest.raises(EntryError, match=f"{message}.* the 500 before them are done") as caught:
        Entry.save_many(entries, progress=told.append)
    assert (caught.value.done, told) == (500, [500])
    assert stored_names(fake_app) == set(names(*range(500)))


def test_save_many_keeps_the_meta_of_an_entry_among_new_ones(fake_app: Celery) -> None:
    made(fake_app, 550, last_run_at=RAN_AT, total_run_count=7).save()
    result = Entry.save_many(made(fake_app, number, args=[1]) for number in range(600))
    assert (len(result.new), result.changed, result.same) == (599, names(550), ())
    assert Entry.load_meta("redbeat:entry-550", fake_app) == {"last_run_at": RAN_AT, "total_run_count": 7}


def test_save_many_leaves_a_key_of_another_type_alone(fake_app: Celery) -> None:
    fake_app.redbeat_redis.set("redbeat:entry-550", "mine")
    with pytest.raises(EntryCorrupt, match="redbeat:entry-550: the key holds no hash") as caught:
        Entry.save_many(made(fake_app, number) for number in range(600))
    assert (caught.value.key, caught.value.done) == ("redbeat:entry-550", 500)
    assert stored_names(fake_app) == set(names(*range(500)))


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


def test_save_many_plans_a_chunk_again_after_a_concurrent_write(fake_app: Celery) -> None:
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


def test_save_many_gives_up_on_an_entry_that_changes_each_time(
    fake_app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MAX_SAVE_ATTEMPTS", 9)
    client, turns = fake_app.redbeat_redis, iter(range(10**6))

    def write() -> None:
        client.hset("redbeat:entry-1", "meta", str(next(turns)))

    with pytest.raises(EntryError, match="redbeat:entry-1: changed by somebody else 9 times") as caught:
        Entry.save_many([made(fake_app, 0), meddled(fake_app, 1, 10**6, write)])
    assert (caught.value.key, next(turns), stored_names(fake_app)) == ("redbeat:entry-1", 9, set())


@pytest.mark.parametrize(("clock_seconds", "passed"), [(60, 0), (-1, 7200)])
def test_save_many_uses_the_server_clock_and_reads_an_old_one_again(
    fake_app: Celery, monkeypatch: pytest.MonkeyPatch, clock_seconds: float, passed: int
) -> None:
    server_times, ask = count(5e9, 7200), rows.read_call

    def ask_in_2128(*args: Any, **options: Any) -> Any:
        question = ask(*args, **options)
        return replace(question, read=lambda reply: (next(server_times), question.read(reply)[1]))

    monkeypatch.setattr(rows, "read_call", ask_in_2128)
    monkeypatch.setattr(rows, "CLOCK_SECONDS", clock_seconds)
    Entry.save_many(made(fake_app, number) for number in range(600))
    for number, later in ((0, 0), (599, passed)):
        score = fake_app.redbeat_redis.zscore("redbeat::schedule", f"redbeat:entry-{number}")
        assert 0 <= score - 5e9 - 3600 - later < 60


def test_save_many_recreates_an_entry_deleted_meanwhile(fake_app: Celery) -> None:
    Entry.save_many([made(fake_app, 0), made(fake_app, 1)])
    entry = meddled(fake_app, 1, 1, lambda: made(fake_app, 1).delete())
    assert Entry.save_many([made(fake_app, 0), entry]) == SaveResult(new=names(1), same=names(0))


def test_delete_many_counts_existing_names_and_keys(fake_app: Celery) -> None:
    Entry.save_many(made(fake_app, number) for number in range(4))
    gone = ["entry-0", "redbeat:entry-1", "entry-0", "nobody", "entry-3"]
    assert Entry.delete_many(iter(gone), fake_app) == 3
    assert fake_app.redbeat_redis.keys("redbeat:[a-z]*") == ["redbeat:entry-2"]
    assert stored_names(fake_app) == set(names(2))


@pytest.mark.parametrize("name", [":schedule", "redbeat::lock", "", None])
def test_delete_many_refuses_invalid_and_reserved_names(fake_app: Celery, name: Any) -> None:
    Entry.save_many(made(fake_app, number) for number in range(600))
    fake_app.redbeat_redis.set("redbeat::lock", "a token")
    with pytest.raises(EntryError, match=r"An entry .* the 500 before them are done") as caught:
        Entry.delete_many([*names(*range(550)), name], fake_app)
    assert caught.value.done == 500
    assert stored_names(fake_app) == set(names(*range(500, 600)))
    assert fake_app.redbeat_redis.get("redbeat::lock") == "a token"
