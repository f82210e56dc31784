"""A last run that is moved back, and one-off schedules that begin now, run at once and once."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from functools import partial
from itertools import product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryError
from redbeat.schedules import clocked, rrule
from tests.support.schedule import SCHEDULE, counts_of, due_count, field, score_of, sent_names, server_now

UTC, DAY = timezone.utc, timedelta(days=1)


SCHEDULES: dict[str, Any] = {
    "interval": schedule(3600),
    "relative": schedule(7200, relative=True),
    "crontab": crontab("0", "3"),
    "rrule": rrule("DAILY", dtstart=datetime(2026, 1, 1, 3)),
}


PAST = datetime.now(UTC) - 3 * DAY


MOMENTS: dict[str, datetime | None] = {
    "None": None,
    "past": PAST,
    "naive past": PAST.replace(tzinfo=None),
    "before 1970": datetime(1960, 1, 1, tzinfo=UTC),
    "min": datetime.min,
    "min in New York": datetime.min.replace(tzinfo=ZoneInfo("America/New_York")),
}


POLICIES: dict[str, dict[str, Any]] = {
    "no policy": {},
    "zone": {"timezone": "America/New_York"},
    "skip": {"misfire": "skip"},
    "late": {"misfire_grace_time": 600, "misfire": "all"},
    "jitter": {"jitter": 3000},
    "overlap": {"overlap": "skip"},
}


def assign_to_loaded(made: Entry, moment: datetime | None) -> Entry:
    entry = Entry.from_key(made.save().key, app=made.app)
    entry.last_run_at = moment
    return entry.save()


def assign_to_new(made: Entry, moment: datetime | None) -> Entry:
    made.last_run_at = moment
    return made.save()


def assign_and_change(made: Entry, moment: datetime | None) -> Entry:
    entry = Entry.from_key(made.save().key, app=made.app)
    entry.last_run_at, entry.schedule, entry.args = moment, schedule(4000), [1]
    Entry.save_many([entry])
    return entry


def reschedule(made: Entry, moment: datetime | None) -> Entry:
    if moment is None:
        return assign_to_loaded(made, moment)
    made.save().reschedule(moment)
    return made


WAYS: list[Callable[[Entry, datetime | None], Entry]] = [
    assign_to_loaded, assign_to_new, assign_and_change, reschedule,
]  # fmt: skip


INVALID: dict[str, Any] = {
    "max": datetime.max,
    "max in New York": datetime.max.replace(tzinfo=ZoneInfo("America/New_York")),
    "infinite": math.inf,
    "text": "soon",
}


@pytest.mark.parametrize("moment", INVALID)
def test_invalid_time_is_refused_and_changes_nothing(app: Celery, client: redis.Redis, moment: str) -> None:
    given = INVALID[moment]

    def make(**fields: Any) -> Entry:
        return Entry("entry", "t", 3600, app=app, **fields)

    make().save()
    before = client.hgetall("redbeat:entry"), score_of(client, "entry")
    calls: list[tuple[str, Callable[[], Any]]] = [
        *(("last_run_at must be", partial(way, make(), given)) for way in WAYS),
        ("last_run_at must be", lambda: make().save().next(given)),
        ("last_run_at", lambda: Entry("new", "t", 3600, app=app, last_run_at=given).save()),
        *((name, partial(make, **{name: given})) for name in ("paused_until", "start_time", "end_time")),
        ("paused_until", lambda: make().pause(until=given)),
        ("", lambda: make().next_runs(1, given)),
        ("", lambda: [*make().runs_between(given, given)]),
    ]
    shown = re.escape(repr(given) if isinstance(given, str) else str(given))
    for named, call in calls:
        with pytest.raises(EntryError, match=f"{named}.*{shown}"):
            call()
    assert (client.hgetall("redbeat:entry"), score_of(client, "entry")) == before
    assert client.zcard(SCHEDULE) == 1


@pytest.mark.parametrize("kind", SCHEDULES)
def test_entry_whose_last_run_is_moved_back_runs_at_once(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, kind: str
) -> None:
    names, policies = [], [*POLICIES]
    for (number, way), (place, moment) in product(enumerate(WAYS), enumerate(MOMENTS)):
        policy = policies[(number + place) % len(policies)]
        name = f"{way.__name__}, {moment}, {policy}"
        entry = Entry(name, "t", SCHEDULES[kind], app=scheduler.app, **POLICIES[policy])
        entry = way(entry, MOMENTS[moment])
        names.append(name)
        score, due_at, own_score = score_of(client, name), entry.due_at, entry.score
        now = server_now(client)
        assert score is not None
        assert 0 <= score <= now, name
        assert due_at is not None
        assert due_at.timestamp() <= now
        if MOMENTS[moment] is None:  # now, whenever one asks
            assert score <= own_score <= now
        elif policy not in ("skip", "late", "jitter"):
            assert own_score == due_at.timestamp() == pytest.approx(score, abs=1e-5)
        scheduler.tick()
    assert not due_count(client)
    assert Counter(sent_names(broker)) == dict.fromkeys(names, 1)
    assert counts_of(client, names) == {1: len(names)}


def test_second_save_after_a_moved_run_moves_nothing(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    entry = Entry("entry", "t", 3600, app=scheduler.app).save()
    for moment in (None, PAST.replace(tzinfo=None)):
        entry.last_run_at = moment
        entry.save()
        scheduler.tick()
        ran = field(client, "entry", "meta")
        entry.save()
        assert field(client, "entry", "meta") == ran
        assert score_of(client, "entry") > server_now(client)
    assert sent_names(broker) == ["entry"] * 2


def test_moved_last_run_does_not_run_a_disabled_or_finished_entry(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    Entry("disabled", "t", 3600, enabled=False, app=scheduler.app).save()
    Entry("once", "t", 3600, one_off=True, app=scheduler.app).save()
    client.zadd("redbeat::schedule", {"redbeat:once": 0})
    scheduler.tick()
    for name in ("disabled", "once"):
        entry = Entry.from_key(f"redbeat:{name}", app=scheduler.app)
        entry.last_run_at = None
        entry.save()
    scheduler.tick()
    assert sent_names(broker) == ["once"]
    assert score_of(client, "once") == -1


NOW_ONCE: dict[str, Callable[[datetime], BaseSchedule]] = {
    "count=1": lambda now: rrule("DAILY", dtstart=now, count=1),
    "count=2": lambda now: rrule("DAILY", dtstart=now, count=2),
    "until": lambda now: rrule("DAILY", dtstart=now, until=now + timedelta(hours=1)),
    "clocked": clocked,
}


@pytest.mark.parametrize("kind", NOW_ONCE)
def test_one_off_that_begins_now_runs_once_for_each_new_entry(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, kind: str
) -> None:
    for count in range(1, 5):  # often within one second, in which dtstart is the same
        now = datetime.now(UTC)
        entry = Entry("once", "t", NOW_ONCE[kind](now), app=scheduler.app).save()
        assert score_of(client, "once") <= now.timestamp() + 1
        scheduler.tick()
        scheduler.tick()
        assert sent_names(broker) == ["once"] * count
        if kind != "count=2":
            assert score_of(client, "once") == -1
    entry.args = [1]
    entry.save()
    Entry.from_key(entry.key, app=scheduler.app).save()
    Entry.from_key(entry.key, app=scheduler.app).reschedule()
    entry.reschedule()
    entry.save()
    scheduler.tick()
    assert sent_names(broker) == ["once"] * 4, "it has run"
