"""Managing a schedule from Python: looking, changing, pausing, running by hand; no beat is needed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.query import PAGE_SIZE
from redbeat.errors import EntryChanged, EntryError, EntryNotFound, LockNotAcquired
from redbeat.policy.headers import NAMES
from tests.faults.children import run_children
from tests.integration.conftest import MakeScheduler
from tests.support.schedule import (
    SCHEDULE,
    field,
    messages,
    monitoring,
    score_of,
    sent_names,
    server_now,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import memory_app

UTC = timezone.utc
HOUR = timedelta(hours=1)
YEAR_BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


def names(entries: Any) -> list[str]:
    return [entry.name for entry in entries]


# -- looking


def test_entries_are_listed_by_their_next_due_time_and_what_never_runs_comes_last(
    app: Celery, client: redis.Redis
) -> None:
    for name, score in (("b", 4e9), ("c", 4.1e9), ("never", -1), ("a", 4e9), ("now", 0), ("before", -7)):
        write_raw(client, name, score=score)
    assert names(Entry.list(app)) == ["now", "a", "b", "c", "before", "never"]
    assert names(Entry.list(app, offset=1, limit=2)) == ["a", "b"]
    assert names(Entry.list(app, due_before=datetime.fromtimestamp(4e9, UTC))) == ["now", "a", "b"]
    assert names(Entry.list(app, match="[ab]*")) == ["a", "b", "before"]
    assert Entry.count(app) == 6
    assert Entry.count(app, match="[ab]*") == 3


@pytest.mark.parametrize("scores", ["different", "equal"])
def test_a_long_schedule_is_listed_page_by_page_and_each_entry_once(
    app: Celery, client: redis.Redis, server: Server, scores: str
) -> None:
    count = 2 * PAGE_SIZE + 7
    with client.pipeline() as pipeline:
        for n in range(count):
            definition = json.dumps({"task": "t", "schedule": {"__type__": "interval", "every": 60}})
            pipeline.hset(f"redbeat:{n:05}", "definition", definition)
            pipeline.zadd(SCHEDULE, {f"redbeat:{n:05}": 4e9 + (n if scores == "different" else 0)})
        pipeline.execute()
    with monitoring(server) as commands:
        listed = names(Entry.list(app))
    assert listed == [f"{n:05}" for n in range(count)]
    reads = [command for command in commands if command.startswith(("ZRANGE", "EVAL"))]
    assert len(reads) <= 2 * 4, "two for each page, and for what never runs again"
    assert names(Entry.list(app, limit=3)) == ["00000", "00001", "00002"]


def test_an_entry_that_runs_while_it_is_listed_is_listed_once(app: Celery, client: redis.Redis) -> None:
    for n in range(2 * PAGE_SIZE):
        client.hset(f"redbeat:{n:05}", "definition", '{"task": "t", "schedule": "@daily"}')
        client.zadd(SCHEDULE, {f"redbeat:{n:05}": 1.5 + n})
    listed = []
    for entry in Entry.list(app):
        listed.append(entry.name)
        client.zadd(SCHEDULE, {entry.key: 4e9 + len(listed)})
    assert sorted(listed) == [f"{n:05}" for n in range(2 * PAGE_SIZE)]


def test_each_state_is_told_and_can_be_asked_for(
    make_scheduler: MakeScheduler, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = make_scheduler()
    app = scheduler.app
    Entry("scheduled", "t", HOUR, app=app).save()
    Entry("disabled", "t", HOUR, app=app, enabled=False).save()
    Entry("paused", "t", HOUR, app=app).save().pause("repairs")
    Entry("finished", "t", "0 0 30 2 *", app=app).save()
    write_raw(client, "due", score=server_now(client) - 1)
    write_raw(client, "quarantined", task=None, score=4e9)
    client.zadd(SCHEDULE, {"redbeat:missing": 4e9})
    write_raw(client, "failing")
    client.hset("redbeat:failing", "policy", json.dumps({"one_off": True}))  # else its run is skipped
    monkeypatch.setattr(
        RedBeatScheduler, "apply_async", lambda *_args, **_options: (_ for _ in ()).throw(RuntimeError("no"))
    )
    client.zadd(SCHEDULE, {"redbeat:due": 4e9})
    scheduler.tick()
    client.zadd(SCHEDULE, {"redbeat:due": server_now(client) - 1})
    found = {entry.name: entry.state for entry in Entry.list(app)}
    assert found == {name: name for name in found}
    assert len(found) == 8
    for state in found:
        assert names(Entry.list(app, state=state)) == [state]
    by_name = {entry.name: entry for entry in Entry.list(app)}
    assert "task: is missing" in by_name["quarantined"].problem
    assert by_name["quarantined"].schedule is None
    assert by_name["failing"].error == "RuntimeError: no"
    assert by_name["paused"].pause_note == "repairs"
    assert by_name["finished"].next_due_at is None
    with pytest.raises(ValueError, match="state: must be one of scheduled, due"):
        Entry.list(app, state="dead")


def test_an_entry_that_is_not_there_is_not_found(app: Celery) -> None:
    with pytest.raises(EntryNotFound, match="redbeat:nobody: there is no such entry"):
        Entry.get("nobody", app)
    with pytest.raises(EntryNotFound):
        Entry("nobody", "t", 60, app=app).update(task="other")


# -- changing


@pytest.mark.also_sharded
def test_an_update_changes_what_it_names_and_leaves_what_others_have_changed(
    app: Celery, client: redis.Redis
) -> None:
    mine = Entry("entry", "t", HOUR, args=[1], app=app, last_run_at=datetime(2026, 1, 1, tzinfo=UTC)).save()
    theirs = Entry.get("entry", app)
    theirs.update(args=[2], jitter=5)
    mine.update(kwargs={"a": 1}, schedule="@daily", timezone="Asia/Tokyo")
    stored = Entry.get("entry", app)
    assert (stored.args, stored.kwargs, stored.jitter, stored.timezone) == ([2], {"a": 1}, 5, "Asia/Tokyo")
    assert (mine.args, mine.jitter) == ([2], 5), "the object follows"
    assert stored.last_run_at == datetime(2026, 1, 1, tzinfo=UTC)
    stored.update(jitter=None, timezone=None)
    assert client.hget("redbeat:entry", "policy") is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shedule": 60}, "redbeat:entry: there is no field 'shedule' to change. Did you mean schedule"),
        ({"name": "x"}, "there is no field 'name' to change"),
        ({"jitter": -1}, "jitter: must be a number of seconds from 0"),
        ({"schedule": "* * *"}, "3 fields instead of five"),
        ({"args": "abc"}, "args must be a list or a tuple"),
    ],
)
def test_an_update_that_is_wrong_changes_nothing(
    app: Celery, client: redis.Redis, changes: dict[str, Any], words: str
) -> None:
    entry = Entry("entry", "t", HOUR, app=app).save()
    before = client.hgetall("redbeat:entry"), score_of(client, "entry")
    with pytest.raises(EntryError, match=words):
        entry.update(task="other", **changes)
    assert (client.hgetall("redbeat:entry"), score_of(client, "entry")) == before


def _edit_often(url: str, writer: int, count: int) -> None:
    app = memory_app(redbeat_redis_url=url)
    for number in range(count):
        while True:
            own = Entry.get("shared", app)
            own.kwargs = {**own.kwargs, f"{writer}-{number}": 1, "sum": own.kwargs["sum"] + number}
            try:
                own.save(if_unchanged=True)
                break
            except EntryChanged:
                pass
        Entry.get("updated", app).update(**{("jitter", "max_runs")[number % 2]: number + 1})
        Entry(f"own-{writer}-{number}", "t", 60, app=app).save()


def test_eight_processes_that_edit_at_once_lose_no_change(app: Celery, server: Server) -> None:
    count = 20
    for name in ("shared", "updated"):
        Entry(name, "t", HOUR, app=app, kwargs={"sum": 0}).save()
    writers = [partial(_edit_often, server.url(1), writer, count) for writer in range(8)]
    assert run_children(writers) == [0] * 8
    found = Entry.get("shared", app).kwargs
    assert found.pop("sum") == 8 * sum(range(count))
    assert len(found) == 8 * count
    updated = Entry.get("updated", app)
    assert (updated.jitter, updated.max_runs) == (count - 1, count)
    assert Entry.count(app, match="own-*") == 8 * count


def test_a_save_if_unchanged_refuses_what_somebody_else_has_changed_made_or_removed(
    app: Celery, client: redis.Redis
) -> None:
    first = Entry("entry", "t", HOUR, app=app).save(if_unchanged=True)
    with pytest.raises(EntryChanged, match="there is such an entry by now"):
        Entry("entry", "other", HOUR, app=app).save(if_unchanged=True)
    loaded = Entry.get("entry", app)
    first.args = [1]
    first.save(if_unchanged=True)
    loaded.args = [2]
    with pytest.raises(EntryChanged, match="somebody has changed it since it was loaded"):
        loaded.save(if_unchanged=True)
    assert field(client, "entry", "definition")["args"] == [1]
    client.hset("redbeat:entry", "policy", '{"jitter": 5}')
    with pytest.raises(EntryChanged):
        first.save(if_unchanged=True)
    Entry.delete_many(["entry"], app)
    with pytest.raises(EntryChanged, match="removed"):
        first.save(if_unchanged=True)
    assert not client.exists("redbeat:entry")


def test_a_run_in_between_is_no_change(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    entry = Entry("entry", "t", HOUR, app=scheduler.app).save()
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    scheduler.tick()
    entry.args = [1]
    entry.save(if_unchanged=True)
    entry.args = [2]
    entry.save(if_unchanged=True)
    assert Entry.get("entry", scheduler.app).total_run_count == 1


# -- pausing


def test_a_paused_entry_rests_until_it_is_resumed(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    entry = Entry("entry", "t", HOUR, app=scheduler.app).save()
    entry.pause("the printer is broken")
    assert field(client, "entry", "definition")["enabled"] is False, "2.x leaves it alone, too"
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    scheduler.tick()
    assert messages(broker) == []
    assert Entry.get("entry", scheduler.app).pause_note == "the printer is broken"
    entry.resume()
    assert client.hget("redbeat:entry", "policy") is None
    now = server_now(client)
    assert now < (score_of(client, "entry") or 0) <= now + 3600
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    scheduler.tick()
    assert sent_names(broker) == ["entry"]


def test_a_pause_ends_by_itself(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    for name, hours in (("over", -1), ("not-yet", 1)):
        entry = Entry(name, "t", HOUR, app=scheduler.app).save()
        until = datetime.fromtimestamp(server_now(client), UTC) + hours * HOUR
        entry.update(enabled=False, paused=True, paused_until=until)
        client.zadd(SCHEDULE, {f"redbeat:{name}": 0})
    scheduler.tick()
    assert sent_names(broker) == ["over"]
    states = {entry.name: entry.state for entry in Entry.list(scheduler.app)}
    assert states == {"over": "scheduled", "not-yet": "paused"}


@pytest.mark.also_sharded
def test_a_pause_that_is_over_is_refused_and_changes_nothing(app: Celery, client: redis.Redis) -> None:
    entry = Entry("entry", "t", HOUR, app=app).save()
    before = client.hgetall("redbeat:entry")
    for past in (datetime(2020, 1, 1, tzinfo=UTC), datetime.fromtimestamp(server_now(client), UTC)):
        with pytest.raises(EntryError, match="is in the past"):
            entry.pause("late", until=past)
    assert client.hgetall("redbeat:entry") == before
    assert (entry.enabled, entry.paused, entry.pause_note) == (True, False, None)


# -- by hand


@pytest.mark.also_sharded
def test_a_triggered_run_is_manual_has_its_own_id_and_leaves_the_schedule_alone(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    headers = {"mine": 1}
    entry = Entry("entry", "t", HOUR, args=[1], app=app, options={"queue": "q", "headers": headers}).save()
    before = client.hgetall("redbeat:entry"), score_of(client, "entry")
    first, second = entry.trigger(), entry.trigger(args=[2], kwargs={"a": 1}, queue="other")
    assert first.id != second.id
    [message] = messages(broker, "q")
    assert message["headers"]["id"] == first.id
    assert (message["headers"]["redbeat_manual"], message["headers"]["mine"]) == (True, 1)
    assert message["headers"]["redbeat_entry"] == "entry"
    [other] = messages(broker, "other")
    assert json.loads(other["headers"]["argsrepr"].replace("(", "[").replace(",)", "]")) == [2]
    assert (client.hgetall("redbeat:entry"), score_of(client, "entry")) == before
    assert [(run.task_id, run.is_manual) for run in entry.history()] == [(second.id, True), (first.id, True)]


def test_a_triggered_run_expires_by_queue_timeout_and_those_of_a_backfill_wait(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    entry = Entry("entry", "t", HOUR, overlap="skip", queue_timeout=60, expires_after=5, app=app).save()
    before = server_now(client)
    for options in ({}, {"countdown": 100}, {"expires": 7}):
        entry.trigger(**options)
        client.delete("redbeat::running:entry")  # it has ended
    limits, told = [], []
    for message in messages(broker):
        headers = message["headers"]
        limits.append(datetime.fromisoformat(headers["expires"]).timestamp() - before)
        told.append({name: headers[name] for name in NAMES if name in headers})
    assert limits == [pytest.approx(seconds, abs=20) for seconds in (60, 160, 7)]
    overlap = {"redbeat_overlap": "skip"}
    assert told == [{**overlap, "redbeat_queue_timeout": 60}] * 2 + [overlap]
    broker.flushdb()
    entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(minutes=59, seconds=59, microseconds=999_999))
    [message] = messages(broker)
    assert message["headers"]["expires"] is None
    assert message["headers"]["redbeat_overlap"] == "skip"


@pytest.mark.parametrize("wrong", [{"args": "ab"}, {"args": {1}}, {"args": 5}, {"kwargs": [1]}])
def test_a_run_by_hand_with_arguments_of_a_wrong_type_is_refused(
    wrong: dict[str, Any], app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    entry = Entry("entry", "t", 60, app=app).save()
    with pytest.raises(EntryError, match=f"{next(iter(wrong))} must be"):
        entry.trigger(**wrong)
    assert messages(broker) == entry.history() == []


def test_of_two_backfills_at_once_one_is_refused_and_no_run_is_sent_twice(
    make_app: Callable[..., Celery], broker: redis.Redis
) -> None:
    apps = [make_app() for _ in range(4)]
    Entry("entry", "t", HOUR, app=apps[0]).save()
    start = threading.Barrier(len(apps))
    outcomes: list[str] = []

    def work(app: Celery) -> None:
        entry = Entry.get("entry", app)
        start.wait()
        for _ in range(5):
            try:
                entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(days=20))
                outcomes.append("done")
            except LockNotAcquired:
                outcomes.append("refused")

    threads = [threading.Thread(target=work, args=(app,)) for app in apps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entry = Entry.get("entry", apps[0])
    entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(days=20))
    ids = [message["headers"]["id"] for message in messages(broker)]
    print(f"{outcomes.count('done')} went through, {outcomes.count('refused')} were refused")
    assert len(ids) == len(set(ids)) in (480, 481)
    assert entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(days=20), dry_run=True) == []
    assert "refused" in outcomes


def test_a_killed_backfill_keeps_others_away_for_a_while_only(app: Celery, client: redis.Redis) -> None:
    entry = Entry("entry", "t", HOUR, app=app).save()
    client.set("redbeat::backfilling:entry", "somebody", px=30_000)
    with pytest.raises(LockNotAcquired, match="another backfill, rerun or trigger of it is at work"):
        entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(hours=2))
    assert entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(hours=2), dry_run=True)
    client.delete("redbeat::backfilling:entry")
    assert entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(hours=2))
    assert not client.exists("redbeat::backfilling:entry")


@pytest.mark.also_sharded
def test_a_span_with_more_runs_than_the_limit_sends_none(app: Celery, broker: redis.Redis) -> None:
    entry = Entry("entry", "t", HOUR, app=app).save()
    with pytest.raises(EntryError, match="more than 5 runs, which is the limit; name a shorter one"):
        entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(days=1), limit=5)
    assert messages(broker) == []
    assert len(entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(hours=4), limit=5)) <= 5


def test_mistyped_words_of_a_run_by_hand_are_told(app: Celery, broker: redis.Redis) -> None:
    entry = Entry("entry", "t", HOUR, app=app).save()
    with pytest.raises(EntryError, match=r"trigger: there is no arg \(did you mean args\?\)"):
        entry.trigger(arg=[5])
    with pytest.raises(EntryError, match="backfill: start must be a datetime, not 'x'"):
        entry.backfill("x", YEAR_BEGIN)  # type: ignore[arg-type]
    assert messages(broker) == []


@pytest.mark.also_sharded
def test_a_backfill_sends_each_run_of_a_span_once_however_often_it_is_called(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    entry = Entry("entry", "t", crontab("0", "*/6"), app=app).save()
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    dues = [start + hours * HOUR for hours in (0, 6, 12, 18, 24)]
    assert list(entry.backfill(start, end, dry_run=True)) == dues
    assert messages(broker) == []
    assert list(entry.backfill(start, end - HOUR)) == dues[:-1]
    assert list(entry.backfill(start, end)) == dues[-1:]
    assert list(entry.backfill(start, end)) == []
    sent = [message["headers"] for message in messages(broker)]
    assert [datetime.fromisoformat(headers["redbeat_due"]) for headers in sent] == dues
    assert len({headers["id"] for headers in sent}) == 5
    assert all(headers["redbeat_manual"] for headers in sent)
    with pytest.raises(EntryError, match="end must not be before start"):
        entry.backfill(end, start)
    later = datetime.fromtimestamp(server_now(client), UTC)
    assert list(entry.backfill(later, later + 100 * HOUR, dry_run=True)) == []


@pytest.mark.parametrize("jitter", [None, 3])
def test_a_backfill_of_an_interval_has_the_times_and_ids_that_beat_has_whatever_its_begin(
    jitter: int | None, scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    app, now = scheduler.app, datetime.fromtimestamp(server_now(client), UTC)
    entry = Entry("entry", "t", 10, app=app, misfire="all", jitter=jitter)
    entry.last_run_at = now - timedelta(seconds=65.25)
    entry.save()
    client.zadd(SCHEDULE, {"redbeat:entry": (now - timedelta(seconds=55.25)).timestamp()})
    for _ in range(5):
        scheduler.tick()
    entry = Entry.get("entry", app)
    ran = {run.due: run.task_id for run in entry.history()}
    assert len(ran) == 5
    for begin in (58, 57.5, 61):
        dues = entry.backfill(now - timedelta(seconds=begin), max(ran), dry_run=True)
        assert set(dues) == set(ran)
    assert len(entry.backfill(now - HOUR, max(ran))) > 300
    assert entry.backfill(now - HOUR / 2 - timedelta(seconds=3.3), max(ran)) == []
    by_hand = {m["headers"]["redbeat_due"]: m["headers"]["id"] for m in messages(broker)[5:]}
    assert [by_hand[due.isoformat(timespec="microseconds")] for due in ran] == list(ran.values())


def test_everything_can_be_cleared(app: Celery, client: redis.Redis) -> None:
    seen: list[int] = []
    Entry.save_many([Entry(f"{n}", "t", HOUR, app=app) for n in range(PAGE_SIZE + 3)])
    client.zadd(SCHEDULE, {"bare": 5, "redbeat:gone": 4e9})
    assert Entry.clear(app, progress=seen.append) == PAGE_SIZE + 5
    assert seen == [PAGE_SIZE, PAGE_SIZE + 5]
    assert client.keys("*") == []
