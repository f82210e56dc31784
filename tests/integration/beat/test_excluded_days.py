"""Calendars on real servers: entries that refer to them, whoever has written them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import CalendarError, CalendarNotFound, EntryCorrupt, EntryError
from redbeat.store.store import Store
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
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


# -- what is in Redis


def test_a_calendar_is_a_hash_of_days_and_labels(app: Celery, client: redis.Redis) -> None:
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


def test_a_missing_calendar_is_not_an_empty_one(app: Celery) -> None:
    with pytest.raises(CalendarNotFound, match=f"no calendar 'holidays' \\({KEY}\\)") as caught:
        Calendar.load("holidays", app)
    assert (caught.value.name, isinstance(caught.value, KeyError)) == ("holidays", True)
    Calendar("holidays", app=app).save()
    assert Calendar.load("holidays", app).days == {}


def test_a_calendar_that_cannot_be_used_is_said_to_be_so(app: Celery, client: redis.Redis) -> None:
    client.hset(KEY, "25.12.2026", "Christmas")
    with pytest.raises(CalendarError, match=r"holidays: '25\.12\.2026' is not a date"):
        Calendar.load("holidays", app)
    client.delete(KEY)
    client.set(KEY, "x")
    with pytest.raises(CalendarError, match="holds a string, not a hash"):
        Calendar.load("holidays", app)


def test_a_calendar_of_many_days_is_stored_whole(app: Celery, client: redis.Redis) -> None:
    start = datetime(2026, 1, 1).date()
    calendar = Calendar.from_dates("holidays", [start + timedelta(days=2 * n) for n in range(9000)], app=app)
    calendar.save()
    assert client.hlen(KEY) == 9001
    assert Calendar.load("holidays", app) == calendar


# -- saving entries


def test_an_entry_is_saved_at_its_first_time_that_is_not_excluded(app: Celery, client: redis.Redis) -> None:
    Calendar("holidays", [around_today()], app=app).save()
    entry = excluding(app, schedule=crontab(minute="0")).save()
    expected = datetime.fromisoformat(today(2)).replace(tzinfo=UTC)
    assert (entry.due_at, score_of(client, "entry")) == (expected, expected.timestamp())
    assert field(client, "entry", "policy") == {"exclude": "holidays"}
    assert not entry.is_due().is_due


def test_an_entry_whose_calendar_is_unknown_is_not_saved(app: Celery, client: redis.Redis) -> None:
    for save in (Entry.save, lambda entry: Entry.save_many([entry])):
        with pytest.raises(
            EntryError, match="redbeat:entry: policy: exclude: there is no calendar 'holidays'"
        ):
            save(excluding(app))
    assert client.keys() == []
    client.hset(KEY, "oops", "")
    with pytest.raises(EntryError, match="exclude: the calendar 'holidays': 'oops' is not a date"):
        excluding(app).save()


def test_a_saved_entry_asks_for_its_calendar_again(app: Celery) -> None:
    Calendar("holidays", app=app).save()
    entry = excluding(app).save()
    due_at = entry.due_at
    calendar = Calendar("holidays", [around_today()], app=app).save()
    assert due_at < datetime.fromisoformat(today(2)).replace(tzinfo=UTC) <= entry.due_at
    calendar.delete()
    with pytest.raises(EntryCorrupt, match="there is no calendar"):
        entry.due_at  # noqa: B018 - reading it is the test


def test_many_entries_are_saved_with_one_look_at_their_calendars_before_and_after(
    app: Celery, server: Server
) -> None:
    for name in ("holidays", "closed"):
        Calendar(name, app=app).save()
    entries = [excluding(app, f"entry-{n}", exclude=("holidays", "closed")[n % 2]) for n in range(100)]
    with monitoring(server) as commands:
        Entry.save_many(entries)
    assert len(reads_of_calendars(commands)) == 2
    with monitoring(server) as commands:
        excluding(app).save()
    assert len(reads_of_calendars(commands)) == 2
    with monitoring(server) as commands:
        Entry.save_many([Entry(f"free-{n}", "echo", 60, app=app) for n in range(10)])
    assert reads_of_calendars(commands) == []


def test_a_calendar_that_changes_while_an_entry_is_saved_counts(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    Calendar("holidays", [today()], app=app).save()
    write_entries, saves = Store.write_entries, []

    def write(*args: Any, **options: Any) -> Any:
        saves.append(args)
        if len(saves) == 1:
            saves.append("the calendar's own")
            Calendar("holidays", [today(9)], app=app).save()
        return write_entries(*args, **options)

    monkeypatch.setattr(Store, "write_entries", write)
    excluding(app).save()
    assert score_of(client, "entry") == pytest.approx(server_now(client) + 3600, abs=10)


# -- beat


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("is_in_definition", [False, True])
def test_a_calendar_that_changes_between_claim_and_commit_counts(
    scheduler: RedBeatScheduler, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, is_in_definition: bool
) -> None:
    app, commit_runs = scheduler.app, scheduler.store.commit_runs
    Calendar("holidays", [today(-1), today(), today(1)], app=app).save()
    ran_at = meta_json(datetime.now(UTC).replace(tzinfo=None) - timedelta(hours=1, minutes=1), 1)
    write_excluding(client, "entry", meta=ran_at, score=server_now(client) - 1.5)
    if is_in_definition:
        definition = json.loads(client.hget("redbeat:entry", "definition") or "")
        client.hset("redbeat:entry", "definition", json.dumps({**definition, "exclude": "holidays"}))
        client.hdel("redbeat:entry", "policy")

    def commit(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        Calendar("holidays", [today(9)], app=app).save()
        return commit_runs(*args, **options)

    monkeypatch.setattr(scheduler.store, "commit_runs", commit)
    scheduler.tick()
    due = score_of(client, "entry") or 0
    assert due < server_now(client) + 7200, "not after the days of the old calendar"


@EVERY_KIND_OF_LOCK
def test_a_run_that_has_become_excluded_is_skipped(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    client.hset(KEY, mapping={"about": "", around_today(): "Closed"})
    now = server_now(client)
    write_excluding(client, "excluded", score=now - 0.5)
    write_raw(client, "free", score=now - 0.5)
    scheduler.tick()
    assert sent_names(broker) == ["free"]
    due = score_of(client, "excluded")
    assert due >= datetime.fromisoformat(today(2)).replace(tzinfo=UTC).timestamp()
    assert (due - now + 0.5) % 3600 == pytest.approx(0, abs=1e-3), "it keeps its phase"
    assert client.hgetall("redbeat:excluded").keys() == {"definition", "policy"}


def test_runs_that_were_missed_after_an_excluded_one_are_made_up_for(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    client.hset(KEY, mapping={"about": "", today(-3): ""})
    due = datetime.fromisoformat(f"{today(-3)}T12:00:00.500000+00:00").timestamp()
    write_excluding(client, "entry", score=due)
    scheduler.tick()
    assert sent_names(broker) == ["entry"]
    assert (score_of(client, "entry") or 0) - server_now(client) <= 3600


@EVERY_KIND_OF_LOCK
def test_a_missing_calendar_quarantines_only_those_that_name_it_until_it_is_there(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_excluding(client, "one", "two")
    write_raw(client, "three", exclude="other")
    write_raw(client, "free")
    client.hset("redbeat::calendar:other", "oops", "")
    scheduler.tick()
    assert sent_names(broker) == ["free"]
    missing = "policy: exclude: there is no calendar 'holidays'"
    assert missing in field(client, "one", "error")["reason"]
    assert missing in field(client, "two", "error")["reason"]
    assert "policy: exclude: the calendar 'other': 'oops'" in field(client, "three", "error")["reason"]
    assert (score_of(client, "one") or 0) == pytest.approx(server_now(client) + scheduler.max_interval, abs=5)

    client.hset(KEY, "about", "")
    client.zadd(SCHEDULE, {"redbeat:one": 0})
    scheduler.tick()
    assert sent_names(broker) == ["free", "one"]
    assert client.hget("redbeat:one", "error") is None


def test_a_batch_reads_all_its_calendars_in_one_round_trip(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, server: Server
) -> None:
    names = write_burst(client, 20)
    with monitoring(server) as commands:
        scheduler.tick()
    assert reads_of_calendars(commands) == []
    write_burst(client, names)
    for n, name in enumerate(names):
        client.hset(f"redbeat:{name}", "policy", json.dumps({"exclude": f"calendar-{n % 3}"}))
        client.hset(f"redbeat::calendar:calendar-{n % 2}", "2026-12-25", "")
    with monitoring(server) as commands:
        scheduler.tick()
    assert len(reads_of_calendars(commands)) == 1
    quarantined = [name for name in names if client.hexists(f"redbeat:{name}", "error")]
    assert quarantined == [name for n, name in enumerate(names) if n % 3 == 2]


def test_a_calendar_whose_name_is_escaped_in_json_is_found_all_the_same(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_raw(client, "entry", score=server_now(client) - 0.5)
    client.hset("redbeat:entry", "policy", '{"\\u0065xclude": "holidays"}')
    client.hset(KEY, around_today(), "")
    scheduler.tick()
    assert sent_names(broker) == []
    assert client.hget("redbeat:entry", "error") is None


# -- a calendar that changes


def save_due_tomorrow_but_one(app: Celery, client: redis.Redis) -> float:
    """An hourly entry that doesn't run today; returns when it is due."""
    Calendar("holidays", [around_today()], app=app).save()
    excluding(app).save()
    return score_of(client, "entry")


def test_a_removed_holiday_lets_entries_run_again(app: Celery, client: redis.Redis) -> None:
    excluded_until = save_due_tomorrow_but_one(app, client)
    Calendar("holidays", app=app).save()
    score = score_of(client, "entry")
    assert server_now(client) < score <= server_now(client) + 3600 < excluded_until
    assert Calendar("holidays", [around_today()], app=app).save()
    assert score_of(client, "entry") == pytest.approx(excluded_until, abs=1e-3)


def test_a_day_that_is_over_is_no_missed_run_when_it_is_removed(app: Celery, client: redis.Redis) -> None:
    Calendar("holidays", [f"{today(-2)}/{today(1)}"], app=app).save()
    since = datetime.now(UTC).replace(tzinfo=None) - timedelta(days=2, hours=1)
    write_excluding(client, "entry", score=server_now(client) + 2 * DAY + 0.5, meta=meta_json(since, 3))
    Calendar("holidays", app=app).save()
    score = score_of(client, "entry")
    assert 0 < score - server_now(client) <= 3600
    assert (score - since.replace(tzinfo=UTC).timestamp()) % 3600 == pytest.approx(0, abs=1e-3)


def test_saving_a_calendar_repairs_what_was_quarantined_for_it(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    write_excluding(client, "entry", meta=meta_json(datetime.now(UTC) - timedelta(hours=2), 3))
    scheduler.tick()
    assert client.hexists("redbeat:entry", "error")
    Calendar("holidays", app=app).save()
    assert (score_of(client, "entry") or 0) <= server_now(client), "it has missed a run"
    scheduler.tick()
    assert sent_names(broker) == ["entry"]
    assert not client.hexists("redbeat:entry", "error")


@pytest.mark.parametrize("change", ["due", "held", "leased", "unscheduled", "other", "broken"])
def test_what_has_nothing_to_do_with_the_change_is_left_alone(
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


def test_an_entry_that_could_never_run_can_again(app: Celery, client: redis.Redis) -> None:
    Calendar("holidays", [f"{today()}/9999-12-31"], app=app).save()
    excluding(app, schedule=crontab(minute="0")).save()
    assert score_of(client, "entry") == -1
    Calendar("holidays", app=app).save()
    assert 0 < (score_of(client, "entry") or 0) - server_now(client) <= 3600


def test_all_entries_of_a_large_schedule_are_re_timed(app: Celery, client: redis.Redis) -> None:
    Calendar("holidays", [around_today()], app=app).save()
    Entry.save_many([excluding(app, f"entry-{n}") for n in range(1200)])
    Entry.save_many([Entry(f"free-{n}", "echo", 10 * DAY, app=app) for n in range(300)])
    Calendar("holidays", app=app).save()
    assert client.zcount(SCHEDULE, 0, server_now(client) + 3601) == 1200


def test_one_entry_that_cannot_be_timed_stops_no_other(
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


def test_a_change_wakes_the_beat(app: Celery, client: redis.Redis) -> None:
    with client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe("redbeat::wake")
        channel.get_message(timeout=patience())
        for change in (Calendar("holidays", app=app).save, Calendar("holidays", app=app).delete):
            change()
            assert channel.get_message(timeout=patience())


def test_an_ical_file_is_imported_and_counts(app: Celery, client: redis.Redis) -> None:
    start, end = (f"{datetime.now(UTC) + timedelta(days=days):%Y%m%d}" for days in (-1, 2))
    event = (
        f"BEGIN:VEVENT\r\nUID:1\r\nDTSTART;VALUE=DATE:{start}\r\nDTEND;VALUE=DATE:{end}\r\nSUMMARY:Closed\r\n"
    )
    text = f"BEGIN:VCALENDAR\r\nVERSION:2.0\r\nPRODID:test\r\n{event}END:VEVENT\r\nEND:VCALENDAR\r\n"
    Calendar.from_ical("holidays", text, app=app).save()
    assert client.hgetall(KEY) == {"about": "", around_today(): "Closed"}
    excluding(app).save()
    assert (score_of(client, "entry") or 0) >= datetime.fromisoformat(today(2)).replace(
        tzinfo=UTC
    ).timestamp()


def test_statics_whose_calendar_is_missing_are_skipped_and_the_others_stored(
    make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    fields = {"task": "echo", "schedule": 60}
    make_scheduler(beat_schedule={"bad": {**fields, "exclude": "holidays"}, "good": fields})
    assert client.zrange(SCHEDULE, 0, -1) == ["redbeat:good"]
    assert "there is no calendar 'holidays'" in caplog.text
