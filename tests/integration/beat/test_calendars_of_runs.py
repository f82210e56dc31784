"""Calendars of excluded days: as they are stored, as entries refer to them, and as they change."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import CalendarError, CalendarNotFound, EntryCorrupt, EntryError
from redbeat.scheduler import deliver
from redbeat.store.entries import write_entries
from redbeat.store.records import Commit, Fence
from redbeat.store.schedule import commit_runs, fetch_due
from redbeat.store.store import Store
from tests.integration.conftest import EVERY_KIND_OF_LOCK
from tests.support.deadlines import patience
from tests.support.schedule import (
    SCHEDULE,
    field,
    meta_json,
    monitoring,
    score_of,
    sent_names,
    server_now,
    write_burst,
    write_raw,
)
from tests.support.servers import Server

UTC = timezone.utc


KEY = "redbeat::calendar:holidays"


DAY = 86400.0


def today(days: int = 0) -> str:
    return f"{datetime.now(UTC) + timedelta(days=days):%Y-%m-%d}"


#: yesterday included, so that midnight may pass while a test runs
def around_today() -> str:
    return f"{today(-1)}/{today(1)}"


def write_excluding(client: redis.Redis, *names: str, score: float | None = 0, **fields: Any) -> None:
    for name in names:
        write_raw(client, name, score=score, **fields)
        client.hset(f"redbeat:{name}", "policy", json.dumps({"exclude": "holidays"}))


def excluding(app: Celery, name: str = "entry", **fields: Any) -> Entry:
    usual = {"task": "echo", "schedule": schedule(3600.0), "exclude": "holidays"}
    return Entry(name, app=app, **(usual | fields))


def reads_of_calendars(commands: Iterable[str]) -> list[str]:
    return [command for command in commands if re.match(r"EVALSHA \w+ \d+ redbeat::calendar:", command)]


def test_calendar_is_a_hash_of_days_and_labels(app: Celery, client: redis.Redis) -> None:
    days = {"2026-12-25": "Christmas", "2026-12-24T18:00+01:00/2026-12-24T20:00+01:00": ""}
    calendar = Calendar("holidays", days, "public ones", app=app)
    assert calendar.save() is calendar
    assert client.hgetall(KEY) == {"about": "public ones", **days}
    assert client.keys() == [KEY]
    assert Calendar.load("holidays", app) == calendar
    Calendar("holidays", ["2026-12-26"], app=app).save()
    assert client.hgetall(KEY) == {"about": "", "2026-12-26": ""}
    calendar.delete()
    calendar.delete()
    assert client.keys() == []


def test_missing_calendar_is_not_an_empty_one(app: Celery) -> None:
    with pytest.raises(CalendarNotFound, match=f"no calendar 'holidays' \\({KEY}\\)") as caught:
        Calendar.load("holidays", app)
    assert (caught.value.name, isinstance(caught.value, KeyError)) == ("holidays", True)
    Calendar("holidays", app=app).save()
    assert Calendar.load("holidays", app).days == {}


def test_invalid_calendar_raises_its_error(app: Celery, client: redis.Redis) -> None:
    client.hset(KEY, "25.12.2026", "Christmas")
    with pytest.raises(CalendarError, match=r"holidays: '25\.12\.2026' is not a date"):
        Calendar.load("holidays", app)
    client.delete(KEY)
    client.set(KEY, "x")
    with pytest.raises(CalendarError, match="holds a string, not a hash"):
        Calendar.load("holidays", app)


def test_entry_with_an_unknown_calendar_is_not_saved(app: Celery, client: redis.Redis) -> None:
    for save in (Entry.save, lambda entry: Entry.save_many([entry])):
        with pytest.raises(EntryError, match=r"redbeat:entry: policy: exclude: .* 'holidays'"):
            save(excluding(app))
    assert client.keys() == []
    client.hset(KEY, "oops", "")
    with pytest.raises(EntryError, match="exclude: the calendar 'holidays': 'oops'"):
        excluding(app).save()


def test_saved_entry_follows_its_calendar(app: Celery) -> None:
    Calendar("holidays", app=app).save()
    entry = excluding(app).save()
    due_at = entry.due_at
    calendar = Calendar("holidays", [around_today()], app=app).save()
    assert due_at < datetime.fromisoformat(today(2)).replace(tzinfo=UTC) <= entry.due_at
    calendar.delete()
    with pytest.raises(EntryCorrupt, match="there is no calendar"):
        entry.due_at  # noqa: B018 - reading it is the test


def test_calendar_changed_while_an_entry_is_saved_applies(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Calendar("holidays", [today()], app=app).save()
    saves: list[Any] = []

    def write(*args: Any, **options: Any) -> Any:
        saves.append(args)
        if len(saves) == 1:
            saves.append("the calendar's own")
            Calendar("holidays", [today(9)], app=app).save()
        return write_entries(*args, **options)

    monkeypatch.setattr("redbeat.entries.bulk.write_entries", write)
    excluding(app).save()
    assert score_of(client, "entry") == pytest.approx(server_now(client) + 3600, abs=10)


@EVERY_KIND_OF_LOCK
def test_missing_calendar_quarantines_its_entries_until_it_is_saved(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_excluding(client, "one", "two")
    write_raw(client, "three", exclude="other")
    write_raw(client, "free")
    client.hset("redbeat::calendar:other", "oops", "")
    scheduler.tick()
    assert sent_names(broker) == ["free"]
    for name, calendar in {"one": "holidays", "two": "holidays", "three": "other"}.items():
        assert f"calendar '{calendar}'" in field(client, name, "error")["reason"]
    assert (score_of(client, "one") or 0) == pytest.approx(server_now(client) + scheduler.max_interval, abs=5)

    client.hset(KEY, "about", "")
    client.zadd(SCHEDULE, {"redbeat:one": 0})
    scheduler.tick()
    assert sent_names(broker) == ["free", "one"]
    assert client.hget("redbeat:one", "error") is None


def test_batch_reads_all_its_calendars_in_one_round_trip(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, server: Server
) -> None:
    names = write_burst(client, 20)
    for n, name in enumerate(names):
        client.hset(f"redbeat:{name}", "policy", json.dumps({"exclude": f"calendar-{n % 3}"}))
        client.hset(f"redbeat::calendar:calendar-{n % 2}", "2026-12-25", "")
    with monitoring(server) as commands:
        scheduler.tick()
    assert len(reads_of_calendars(commands)) == 1
    quarantined = [name for name in names if client.hexists(f"redbeat:{name}", "error")]
    assert quarantined == [name for n, name in enumerate(names) if n % 3 == 2]


def save_due_tomorrow_but_one(app: Celery, client: redis.Redis) -> float:
    """An hourly entry that doesn't run today; returns when it is due."""
    Calendar("holidays", [around_today()], app=app).save()
    excluding(app).save()
    return score_of(client, "entry")


def test_removed_holiday_lets_entries_run_again(app: Celery, client: redis.Redis) -> None:
    excluded_until = save_due_tomorrow_but_one(app, client)
    Calendar("holidays", app=app).save()
    score = score_of(client, "entry")
    assert server_now(client) < score <= server_now(client) + 3600 < excluded_until
    assert Calendar("holidays", [around_today()], app=app).save()
    assert score_of(client, "entry") == pytest.approx(excluded_until, abs=1e-3)


@pytest.mark.parametrize("change", ["due", "held", "leased", "unscheduled", "other", "broken"])
def test_change_of_a_calendar_leaves_other_entries_alone(
    app: Celery, client: redis.Redis, change: str
) -> None:
    Calendar("holidays", [today(-1)], app=app).save()
    now = server_now(client)
    ran_at = meta_json(datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=1, minutes=1), 1)
    score = {"due": now - 60.5, "held": -1.0, "leased": now + 30, "unscheduled": None}.get(change, now + 9000)
    write_excluding(client, "entry", meta=ran_at, score=score)
    if change == "other":
        client.hset("redbeat:entry", "policy", '{"exclude": "other"}')
    if change == "broken":
        client.hset("redbeat:entry", "definition", '{"exclude": ')
    before = client.hgetall("redbeat:entry")
    Calendar("holidays", [today(-1), today(9)], app=app).save()
    assert score_of(client, "entry") == (None if score is None else pytest.approx(score, abs=1e-6))
    after = client.hgetall("redbeat:entry")
    # another revision, so that a beat that is about to record what the old calendar said sees it
    assert bool(after.pop("revision", "")) == (change in ("due", "leased"))
    assert after == before


def test_change_of_a_calendar_moves_all_its_entries(app: Celery, client: redis.Redis) -> None:
    Calendar("holidays", [around_today()], app=app).save()
    Entry.save_many([excluding(app, f"entry-{n}") for n in range(1100)])
    Calendar("holidays", app=app).save()
    assert client.zcount(SCHEDULE, 0, server_now(client) + 3601) == 1100


def test_entry_that_cannot_be_computed_does_not_stop_the_change(
    app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    Calendar("holidays", [around_today()], app=app).save()
    Entry.save_many([excluding(app, name) for name in ("a", "b", "c")])
    late = server_now(client) + 5 * DAY
    broken = {"name": "b", "task": "echo", "schedule": {"__type__": "interval", "every": 3e11}}
    client.hset("redbeat:b", "definition", json.dumps(broken))
    client.zadd(SCHEDULE, {"redbeat:b": late})
    Calendar("holidays", app=app).save()
    assert client.zcount(SCHEDULE, 0, server_now(client) + 3601) == 2
    assert score_of(client, "b") == pytest.approx(late, abs=1e-3)
    assert "beat: b keeps its due time" in caplog.text


def test_change_of_a_calendar_wakes_the_beat(app: Celery, client: redis.Redis) -> None:
    with client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe("redbeat::wake")
        channel.get_message(timeout=patience())
        for change in (Calendar("holidays", app=app).save, Calendar("holidays", app=app).delete):
            change()
            assert channel.get_message(timeout=patience())


# -- a calendar that changes after a run was planned: the plan is neither sent nor recorded


REPORT = "redbeat:report"


def write_due(client: redis.Redis, app: Celery) -> None:
    """An entry that names a calendar without days, and is due."""
    Calendar("holidays", {}, app=app).save()
    write_excluding(client, "report", score=int(server_now(client)) - 5 + 0.25)


def exclude_today(app: Celery) -> None:
    Calendar("holidays", {around_today(): "closed"}, app=app).save()


def exclude_and_think_again(app: Celery) -> None:
    """Two changes in a row: what was decided by the first calendar holds again, but for the one between."""
    exclude_today(app)
    Calendar("holidays", {}, app=app).save()


@EVERY_KIND_OF_LOCK
def test_run_planned_before_its_day_was_excluded_is_not_sent(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_due(client, scheduler.app)

    def commit_late(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        exclude_today(scheduler.app)
        return commit_runs(*args, **options)

    monkeypatch.setattr(deliver, "commit_runs", commit_late)
    before = client.hgetall(REPORT)
    scheduler.tick()
    assert deliver.commit_runs is commit_runs, "the calendar was changed"
    assert sent_names(broker) == []
    assert client.hget(REPORT, "meta") is None
    assert before.items() <= client.hgetall(REPORT).items(), "its own texts are left alone"


@pytest.mark.parametrize("change", [exclude_today, exclude_and_think_again])
def test_decision_from_before_a_change_is_not_recorded(
    app: Celery, client: redis.Redis, change: Callable[[Celery], None]
) -> None:
    write_due(client, app)
    store = Store(app)
    [due_entry] = fetch_due(store, Fence(), limit=10).run().rows
    before = score_of(client, "report")
    change(app)
    put_off = Commit(due_entry, "4000000000.5", is_for_this_definition=True)
    assert commit_runs(store, Fence(), [put_off]).run().results == [False]
    assert score_of(client, "report") == before
    [due_entry] = fetch_due(store, Fence(), limit=10).run().rows
    put_off = Commit(due_entry, "4000000000.5", is_for_this_definition=True)
    assert commit_runs(store, Fence(), [put_off]).run().results == [True]
