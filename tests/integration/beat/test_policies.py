"""Policies at work: stored beside the definition, obeyed by beat, and left alone by celery-redbeat 2.x."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryError
from redbeat.schedules import clocked, register_schedule, rrule
from tests.integration.conftest import MakeScheduler
from tests.support.schedule import field, score_of, sent_dues, sent_names, server_time, write_raw

UTC = timezone.utc
HOUR = 3600


def test_a_policy_stands_in_a_field_of_its_own_and_is_read_again(app: Celery, client: redis.Redis) -> None:
    start = datetime(2033, 1, 1, tzinfo=UTC)
    Entry("e", "t", crontab(), app=app, timezone="Europe/Berlin", start_time=start, jitter=5).save()
    assert set(client.hkeys("redbeat:e")) == {"definition", "meta", "meta_sha1", "policy"}
    assert field(client, "e", "policy").keys() == {"timezone", "start_time", "jitter"}
    assert field(client, "e", "definition").keys() == {
        "name", "task", "args", "kwargs", "options", "schedule", "enabled"
    }  # fmt: skip
    found = Entry.from_key("redbeat:e", app=app)
    assert (found.timezone, found.start_time, found.jitter) == ("Europe/Berlin", start, 5)
    found.set_policy(dict.fromkeys(("timezone", "start_time"), None) | {"jitter": 0})
    found.save()
    assert set(client.hkeys("redbeat:e")) == {"definition", "meta", "meta_sha1"}


def test_extensions_in_a_definition_written_by_hand_count_and_move_to_the_policy(
    app: Celery, client: redis.Redis
) -> None:
    write_raw(client, "e", timezone="Asia/Tokyo", max_runs=3)
    found = Entry.from_key("redbeat:e", app=app)
    assert (found.timezone, found.max_runs) == ("Asia/Tokyo", 3)
    found.save()
    assert field(client, "e", "policy") == {"timezone": "Asia/Tokyo", "max_runs": 3}
    assert not {"timezone", "max_runs"} & field(client, "e", "definition").keys()


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"timezone": "Europe/Berln"}, "unknown time zone 'Europe/Berln'. Did you mean Europe/Berlin"),
        ({"max_runs": 0}, "max_runs: must be a whole number from 1"),
        ({"jitter": -1}, "jitter: must be a number of seconds from 0"),
        ({"misfire": "never"}, "misfire: must be one of 'latest', 'all'"),
        ({"start_time": "soon"}, "start_time: 'soon' is no time"),
        ({"one_off": "yes"}, "one_off: must be true or false"),
    ],
)
def test_a_wrong_policy_is_an_error_at_save_and_quarantine_when_it_was_written_raw(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, policy: dict[str, Any], words: str
) -> None:
    with pytest.raises(EntryError) as caught:
        Entry("e", "t", 60, app=scheduler.app, **policy)
    assert words in str(caught.value)
    write_raw(client, "bad")
    client.hset("redbeat:bad", "policy", json.dumps(policy))
    write_raw(client, "good")
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    assert words in field(client, "bad", "error")["reason"]


@pytest.mark.parametrize("way", ["keep", "disable", "delete"])
@pytest.mark.parametrize("limit", [{"one_off": True}, {"max_runs": 1}], ids=["one_off", "max_runs"])
def test_what_has_had_its_last_run_is_kept_disabled_or_deleted(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, limit: dict[str, Any], way: str
) -> None:
    Entry("e", "t", 60, app=scheduler.app, after_finish=way, **limit).save()
    client.zadd("redbeat::schedule", {"redbeat:e": 0})
    scheduler.tick()
    scheduler.tick()
    assert sent_names(broker) == ["e"]
    if way == "delete":
        assert not client.exists("redbeat:e")
        assert client.zscore("redbeat::schedule", "redbeat:e") is None
        return
    assert score_of(client, "e") == -1
    assert field(client, "e", "definition")["enabled"] is (way == "keep")
    assert field(client, "e", "meta")["total_run_count"] == 1


def test_a_run_after_the_end_is_not_sent_and_one_before_it_is_the_last(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    now = server_time(client)
    Entry("e", "t", 60, app=scheduler.app, end_time=now + timedelta(seconds=30)).save()
    assert score_of(client, "e") == -1
    Entry("f", "t", 60, app=scheduler.app, end_time=now + timedelta(seconds=90)).save()
    client.zadd("redbeat::schedule", {"redbeat:f": 0})
    scheduler.tick()
    assert sent_names(broker) == ["f"]
    assert score_of(client, "f") > now.timestamp()


def missed(app: Celery, client: redis.Redis, hours: float, **policy: Any) -> datetime:
    """Store an hourly entry that was due so many hours ago; return when that was."""
    first = server_time(client).replace(microsecond=0) - timedelta(hours=hours)
    Entry("e", "t", schedule(HOUR), app=app, **policy).save()
    client.zadd("redbeat::schedule", {"redbeat:e": f"{first.timestamp():.6f}"})
    return first


def test_the_app_says_what_becomes_of_missed_runs_where_the_entry_does_not(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = make_scheduler(redbeat_misfire="all", redbeat_misfire_limit=3)
    scheduler.stand_for_leader()
    first = missed(scheduler.app, client, 3.5)
    for _ in range(6):
        scheduler.tick()
    assert sent_dues(broker) == [first + timedelta(hours=hour) for hour in (1, 2, 3)]


def test_jitter_delays_a_run_and_its_due_time_is_told_without_it(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    Entry("e", "t", crontab(), app=scheduler.app, jitter=59).save()
    score = score_of(client, "e")
    due = datetime.fromtimestamp(score // 60 * 60, UTC)
    assert due.timestamp() < score < due.timestamp() + 59
    assert Entry.from_key("redbeat:e", app=scheduler.app).score == pytest.approx(score, abs=1e-6)
    earlier = due - timedelta(minutes=5)
    entry = Entry("e", "t", crontab(), app=scheduler.app, jitter=59)
    client.zadd("redbeat::schedule", {"redbeat:e": f"{entry.score_of(earlier):.6f}"})
    client.hset("redbeat:e", "policy", '{"jitter": 59, "misfire": "earliest"}')
    scheduler.tick()
    assert sent_dues(broker) == [earlier]


def test_an_interval_with_jitter_keeps_its_phase(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    first = server_time(client).replace(microsecond=250_000) - timedelta(days=19, hours=12)
    policy = {"jitter": HOUR, "misfire": "all"}
    Entry("e", "t", 86_400, app=scheduler.app, last_run_at=first, **policy).save()
    for _ in range(20):
        scheduler.tick()
    assert sent_dues(broker) == [first + timedelta(days=day) for day in range(1, 20)]


def test_enabled_again_it_waits_for_its_next_time_unless_missed_runs_are_wanted(
    app: Celery, client: redis.Redis
) -> None:
    long_ago = server_time(client) - timedelta(hours=5)
    for name, policy in (("waits", {}), ("makes-up", {"run_missed": True})):
        entry = Entry(name, "t", schedule(HOUR), app=app, enabled=False, last_run_at=long_ago, **policy)
        entry.total_run_count = 1
        entry.save()
        entry.enabled = True
        entry.save()
    now = server_time(client).timestamp()
    assert now < score_of(client, "waits") <= now + HOUR
    assert score_of(client, "makes-up") == pytest.approx((long_ago + timedelta(hours=1)).timestamp())


@pytest.mark.parametrize(
    "written",
    [
        "*/5 * * * *",
        "@daily",
        {"__type__": "cron", "expression": "0 9 LW * *"},
        {"__type__": "crontab", "minute": "0", "hour": "9", "day_of_month": "L"},
        {"__type__": "clocked", "clocked_time": "2033-05-18T03:33:20Z"},
        {"__type__": "solar", "event": "sunrise", "lat": 52.5, "lon": 13.4},
    ],
    ids=str,
)
def test_every_kind_that_is_written_by_hand_runs_and_keeps_its_meaning_when_it_is_saved(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, written: Any
) -> None:
    write_raw(client, "e", schedule=written)
    scheduler.tick()
    assert sent_names(broker) == ["e"]
    upcoming = score_of(client, "e")
    entry = Entry.from_key("redbeat:e", app=scheduler.app)
    entry.args = [1]
    entry.save()
    again = Entry.from_key("redbeat:e", app=scheduler.app)
    assert again.schedule == entry.schedule
    assert score_of(client, "e") == upcoming > server_time(client).timestamp()


def test_a_class_of_one_s_own_is_refused_until_it_is_registered(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    class Doubling(BaseSchedule):
        """Each pause is given by the app's own arithmetic."""

        def __init__(self, factor: int) -> None:
            super().__init__()
            self.factor = factor

        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            return last_run_at + timedelta(seconds=100 * self.factor) - self.now()

    with pytest.raises(EntryError, match="register_schedule"):
        Entry("e", "t", Doubling(2), app=scheduler.app).save()
    register_schedule("doubling", Doubling, lambda one: {"factor": one.factor}, lambda d: Doubling(**d))
    Entry("e", "t", Doubling(2), app=scheduler.app).save()
    assert field(client, "e", "definition")["schedule"] == {"__type__": "doubling", "factor": 2}
    now = server_time(client).timestamp()
    assert score_of(client, "e") == pytest.approx(now + 200, abs=5)
    client.zadd("redbeat::schedule", {"redbeat:e": 0})
    scheduler.tick()
    assert sent_names(broker) == ["e"]


def test_a_zone_of_dtstart_is_kept(app: Celery, client: redis.Redis) -> None:
    from zoneinfo import ZoneInfo

    start = datetime(2026, 1, 1, 9, tzinfo=ZoneInfo("America/New_York"))
    Entry("e", "t", rrule("DAILY", dtstart=start), app=app).save()
    found = Entry.from_key("redbeat:e", app=app)
    assert found.timezone == "America/New_York"
    summer = found.next_runs(1, datetime(2033, 7, 1))
    assert [run.strftime("%H:%M %z") for run in summer] == ["09:00 -0400"]


def test_what_never_comes_is_saved_with_a_warning(
    app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    Entry("e", "t", "0 0 30 2 *", app=app).save()
    Entry("f", "t", clocked(datetime(2020, 1, 1, tzinfo=UTC)), app=app).save()
    assert [score_of(client, name) for name in "ef"] == [-1, -1]
    assert [record.getMessage() for record in caplog.records] == [
        "redbeat:e is saved, and never runs: its schedule has no time after now.",
        "redbeat:f is saved, and never runs: its schedule has no time after now.",
    ]
