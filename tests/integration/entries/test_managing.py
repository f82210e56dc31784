"""Operations on entries: list, change, pause, trigger and backfill, each with its refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.pauses import PauseResult
from redbeat.entries.query import PAGE_SIZE
from redbeat.errors import EntryChanged, EntryError, LockNotAcquired
from redbeat.store.entries import read_entries_at
from redbeat.store.store import Store
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


def names_of(entries: Any) -> list[str]:
    return [entry.name for entry in entries]


def test_list_is_ordered_by_due_time_with_finished_entries_last(app: Celery, client: redis.Redis) -> None:
    for name, score in (("b", 4e9), ("c", 4.1e9), ("never", -1), ("a", 4e9), ("now", 0), ("before", -7)):
        write_raw(client, name, score=score)
    assert names_of(Entry.list(app)) == ["now", "a", "b", "c", "before", "never"]
    assert names_of(Entry.list(app, offset=1, limit=2)) == ["a", "b"]
    assert names_of(Entry.list(app, due_before=datetime.fromtimestamp(4e9, UTC))) == ["now", "a", "b"]
    assert names_of(Entry.list(app, match="[ab]*")) == ["a", "b", "before"]
    assert Entry.count(app) == 6
    assert Entry.count(app, match="[ab]*") == 3


@pytest.mark.parametrize("scores", ["different", "equal"])
def test_long_list_takes_two_round_trips_a_page(
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
        listed = names_of(Entry.list(app))
    assert listed == [f"{n:05}" for n in range(count)]
    reads = [command for command in commands if command.startswith(("ZRANGE", "EVAL"))]
    assert len(reads) <= 2 * 4, "two for each page, and for what never runs again"
    assert names_of(Entry.list(app, limit=3)) == ["00000", "00001", "00002"]


def test_list_by_state_finds_each_state(
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
        assert names_of(Entry.list(app, state=state)) == [state]
    by_name = {entry.name: entry for entry in Entry.list(app)}
    assert "task: is missing" in by_name["quarantined"].problem
    assert by_name["quarantined"].schedule is None
    assert by_name["failing"].error == "RuntimeError: no"
    assert by_name["paused"].pause_note == "repairs"
    assert by_name["finished"].next_due_at is None
    with pytest.raises(ValueError, match="state: must be one of scheduled, due"):
        Entry.list(app, state="dead")


@pytest.mark.also_sharded
def test_update_changes_named_fields_and_keeps_concurrent_changes(app: Celery, client: redis.Redis) -> None:
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
        ({"jitter": -1}, "jitter: must be a number of seconds from 0"),
        ({"schedule": "* * *"}, "3 fields instead of five"),
    ],
)
def test_invalid_update_is_refused_and_changes_nothing(
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
        Entry("run", "t", 60, app=app, kwargs={"from": writer}).save().next()


def test_concurrent_edits_of_eight_processes_are_all_kept(app: Celery, server: Server) -> None:
    count = 10
    for name in ("shared", "updated"):
        Entry(name, "t", HOUR, app=app, kwargs={"sum": 0}).save()
    writers = [partial(_edit_often, server.url(1), writer, count) for writer in range(8)]
    assert run_children(writers) == [0] * 8
    found = Entry.get("shared", app).kwargs
    assert found.pop("sum") == 8 * sum(range(count))
    assert len(found) == 8 * count
    updated = Entry.get("updated", app)
    assert (updated.jitter, updated.max_runs) == (count - 1, count)
    assert Entry.count(app, match="own-*") == Entry.get("run", app).total_run_count == 8 * count


def test_save_if_unchanged_refuses_a_changed_created_or_deleted_entry(
    app: Celery, client: redis.Redis
) -> None:
    first = Entry("entry", "t", HOUR, app=app).save(if_unchanged=True)
    with pytest.raises(EntryChanged, match="there is such an entry by now"):
        Entry("entry", "other", HOUR, app=app).save(if_unchanged=True)
    loaded = Entry.get("entry", app)
    first.args = [1]
    first.save(if_unchanged=True)
    loaded.args = [2]
    with pytest.raises(EntryChanged, match="another program has changed it since it was loaded"):
        loaded.save(if_unchanged=True)
    assert field(client, "entry", "definition")["args"] == [1]
    client.hset("redbeat:entry", "policy", '{"jitter": 5}')
    with pytest.raises(EntryChanged):
        first.save(if_unchanged=True)
    Entry.delete_many(["entry"], app)
    with pytest.raises(EntryChanged, match="removed"):
        first.save(if_unchanged=True)
    assert not client.exists("redbeat:entry")


def test_save_if_unchanged_allows_a_run_in_between(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    entry = Entry("entry", "t", HOUR, app=scheduler.app).save()
    client.zadd(SCHEDULE, {"redbeat:entry": 0})
    scheduler.tick()
    entry.args = [1]
    entry.save(if_unchanged=True)
    entry.args = [2]
    entry.save(if_unchanged=True)
    assert Entry.get("entry", scheduler.app).total_run_count == 1


def test_paused_entry_is_not_sent_until_it_is_resumed(
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


def test_pause_ends_at_paused_until(
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
def test_pause_until_a_past_time_is_refused(app: Celery, client: redis.Redis) -> None:
    entry = Entry("entry", "t", HOUR, app=app).save()
    before = client.hgetall("redbeat:entry")
    for past in (datetime(2020, 1, 1, tzinfo=UTC), datetime.fromtimestamp(server_now(client), UTC)):
        with pytest.raises(EntryError, match="is in the past"):
            entry.pause("late", until=past)
    assert client.hgetall("redbeat:entry") == before
    assert (entry.enabled, entry.paused, entry.pause_note) == (True, False, None)


@pytest.mark.also_sharded
def test_triggered_run_is_manual_and_leaves_the_schedule_alone(
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


@pytest.mark.parametrize("wrong", [{"args": "ab"}, {"kwargs": [1]}])
def test_trigger_with_invalid_arguments_is_refused(
    wrong: dict[str, Any], app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    entry = Entry("entry", "t", 60, app=app).save()
    with pytest.raises(EntryError, match=f"{next(iter(wrong))}: must be"):
        entry.trigger(**wrong)
    assert messages(broker) == entry.history() == []


def test_concurrent_backfills_send_no_run_twice(
    make_app: Callable[..., Celery], client: redis.Redis, broker: redis.Redis
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
                entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(days=3))
                outcomes.append("done")
            except LockNotAcquired:
                outcomes.append("refused")

    with ThreadPoolExecutor(len(apps)) as pool:
        list(pool.map(work, apps))
    entry = Entry.get("entry", apps[0])
    entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(days=3))
    ids = [message["headers"]["id"] for message in messages(broker)]
    assert len(ids) == len(set(ids)) in (72, 73)
    assert entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(days=3), dry_run=True) == []
    assert "refused" in outcomes
    assert not client.exists("redbeat::backfilling:entry")


def test_backfill_that_has_lost_its_lock_sends_no_further_run(
    app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    entry, lock = Entry("entry", "t", HOUR, app=app).save(), "redbeat::backfilling:entry"
    span = YEAR_BEGIN, YEAR_BEGIN + timedelta(hours=5)
    for _ in range(2):  # the second one finds the lock taken
        with pytest.raises(LockNotAcquired):
            entry.backfill(*span, progress=lambda _sent: client.set(lock, "another", px=30_000))
    assert len(messages(broker)) == 1
    assert client.get(lock) == "another"


@pytest.mark.also_sharded
def test_backfill_beyond_its_limit_sends_no_run(app: Celery, broker: redis.Redis) -> None:
    entry = Entry("entry", "t", HOUR, app=app).save()
    with pytest.raises(EntryError, match="more than 5 runs, which is the limit; name a shorter one"):
        entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(days=1), limit=5)
    assert messages(broker) == []
    assert len(entry.backfill(YEAR_BEGIN, YEAR_BEGIN + timedelta(hours=4), limit=5)) <= 5


@pytest.mark.also_sharded
def test_repeated_backfill_sends_each_run_once(app: Celery, client: redis.Redis, broker: redis.Redis) -> None:
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


def test_backfill_of_an_interval_has_the_due_times_and_ids_of_beat(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    app, now = scheduler.app, datetime.fromtimestamp(server_now(client), UTC)
    entry = Entry("entry", "t", 10, app=app, misfire="all", jitter=3)
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
    assert len(entry.backfill(now - HOUR / 10, max(ran))) > 25
    assert entry.backfill(now - HOUR / 20 - timedelta(seconds=3.3), max(ran)) == []
    by_hand = {m["headers"]["redbeat_due"]: m["headers"]["id"] for m in messages(broker)[5:]}
    assert [by_hand[due.isoformat(timespec="microseconds")] for due in ran] == list(ran.values())


LATER = datetime(2098, 1, 1, tzinfo=UTC)


@pytest.fixture
def four(app: Celery) -> list[str]:
    """Two that run, one that is paused with a note, one that is disabled."""
    four = ["run-1", "run-2", "paused", "disabled"]
    Entry.save_many(Entry(name, "echo", 60, enabled=name != "disabled", app=app) for name in four)
    Entry.get("paused", app).pause("the printer is broken", LATER, "ada")
    return four


@pytest.mark.also_sharded
def test_pause_many_leaves_paused_and_disabled_entries_alone(
    app: Celery, client: redis.Redis, four: list[str]
) -> None:
    before = {name: client.hgetall(f"redbeat:{name}") for name in ("paused", "disabled")}
    done = Entry.pause_many(four, app, note="a deployment", until=LATER + timedelta(1), by="bob")
    assert done == PauseResult(("run-1", "run-2"), ("paused", "disabled"))
    assert {name: client.hgetall(f"redbeat:{name}") for name in before} == before
    entry = Entry.get("run-1", app)
    assert (entry.enabled, entry.paused, entry.pause_note, entry.paused_by, entry.paused_until) == (
        False, True, "a deployment", "bob", LATER + timedelta(1),
    )  # fmt: skip


@pytest.mark.also_sharded
@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ({"note": "a deployment"}, ["run-1", "run-2"]),
        ({"note": "*printer*"}, ["paused"]),
        ({"by": "ada"}, ["paused"]),
        ({"note": "a deployment", "by": "ada"}, []),
        ({}, ["run-1", "run-2", "paused"]),
    ],
    ids=str,
)
def test_resume_many_selects_by_note_and_user(
    app: Celery, four: list[str], selection: dict[str, Any], expected: list[str]
) -> None:
    Entry.pause_many(four, app, note="a deployment", by="bob")
    assert list(Entry.resume_many(four, app, **selection).changed) == expected
    assert not Entry.get("disabled", app).enabled
    for name in expected:
        entry = Entry.get(name, app)
        assert (entry.enabled, entry.policy) == (True, Entry("x", "t", 1, app=app).policy)


def test_pause_many_reports_an_invalid_entry_and_pauses_the_others(
    app: Celery, client: redis.Redis, four: list[str]
) -> None:
    write_raw(client, "spoilt", "no json")
    done = Entry.pause_many(["spoilt", "nobody", *four], app)
    assert done.changed == ("run-1", "run-2")
    assert list(done.failed) == ["spoilt"]
    assert "no valid JSON" in done.failed["spoilt"]


Meddle = Callable[[Entry], object]


@pytest.mark.also_sharded
@pytest.mark.parametrize(
    ("meddle", "expected"),
    [
        (lambda entry: entry.pause("mine", by="ada"), PauseResult((), ("run-1",))),
        (lambda entry: entry.update(jitter=5), PauseResult(("run-1",))),
        (lambda entry: entry.delete(), PauseResult()),
    ],
    ids=["pause", "change", "delete"],
)
def test_pause_many_keeps_concurrent_changes(
    app: Celery, four: list[str], monkeypatch: pytest.MonkeyPatch, meddle: Meddle, expected: PauseResult
) -> None:
    """Between the reading and the writing somebody else writes."""
    meddlers = [meddle]

    def read_and_be_late(store: Store, keys: Any) -> Any:
        found = read_entries_at(store, keys)
        if meddlers:
            meddlers.pop()(Entry.get("run-1", app))
        return found

    monkeypatch.setattr("redbeat.store.entries.read_entries_at", read_and_be_late)
    assert Entry.pause_many(["run-1"], app, note="theirs", by="bob") == expected
    stored = list(Entry.list(app, match="run-1"))
    if expected.changed:
        assert (stored[0].pause_note, stored[0].jitter) == ("theirs", 5)
    elif stored:
        assert stored[0].paused_by != "bob"
        assert not stored[0].enabled


def test_get_takes_one_round_trip_and_gives_the_form_of_list_and_from_key(
    app: Celery, client: redis.Redis, server: Server
) -> None:
    until = datetime.fromtimestamp(server_now(client), UTC) + 5 * HOUR
    Entry("entry", "t", "*/5 * * * *", app=app).save().pause("repairs", until=until)
    [listed] = Entry.list(app)
    form = listed.to_dict()
    assert (form["state"], form["description"]) == ("paused", listed.describe())
    assert Entry.from_key("redbeat:entry", app).to_dict() == Entry.get("entry", app).to_dict() == form
    with monitoring(server) as commands:
        assert Entry.get("entry", app).to_dict() == form
    assert [command.split()[0] for command in commands] == ["EVALSHA"]
