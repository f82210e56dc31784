"""The ways by which users of 2.x ask for a run now: last_run_at None or in the past, save() and reschedule().

A stored entry of any kind then has one run at once, and goes on by its schedule.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import cycle, product
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule, solar

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryError
from redbeat.schedules import rrule
from redbeat.schedules.occurrences import clocked, cron
from tests.support.schedule import (
    SCHEDULE,
    counts_of,
    due_count,
    field,
    score_of,
    sent_names,
    server_now,
    server_time,
    write_raw,
)

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
    "past in Berlin": PAST.astimezone(ZoneInfo("Europe/Berlin")),
    "1970": datetime(1970, 1, 1),
    "before 1970": datetime(1960, 1, 1, tzinfo=UTC),
    "min": datetime.min,
    "min in UTC": datetime.min.replace(tzinfo=UTC),
    "min in Berlin": datetime.min.replace(tzinfo=ZoneInfo("Europe/Berlin")),
    "min in New York": datetime.min.replace(tzinfo=ZoneInfo("America/New_York")),
}
POLICIES: dict[str, dict[str, Any]] = {
    "no policy": {},
    "zone": {"timezone": "America/New_York"},
    "skip": {"misfire": "skip"},
    "late": {"misfire_grace_time": 600, "misfire": "all"},
    "expires": {"expires_after": 600},
    "jitter": {"jitter": 3000},
    "counted": {"max_runs": 5},
    "overlap": {"overlap": "skip"},
}


def assign_to_loaded(made: Entry, moment: datetime | None) -> Entry:
    entry = Entry.from_key(made.save().key, app=made.app)
    entry.last_run_at = moment
    return entry.save()


def assign_to_saved(made: Entry, moment: datetime | None) -> Entry:
    made.save().last_run_at = moment
    return made.save()


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


def advance(made: Entry, moment: Any) -> Entry:
    return made.save().next(moment)  # type: ignore[no-any-return]


WAYS: list[Callable[[Entry, datetime | None], Entry]] = [
    assign_to_loaded, assign_to_saved, assign_to_new, assign_and_change, reschedule,
]  # fmt: skip


INVALID: dict[str, Any] = {
    "max": datetime.max,
    "max in UTC": datetime.max.replace(tzinfo=UTC),
    "max in New York": datetime.max.replace(tzinfo=ZoneInfo("America/New_York")),
    "max in Kiritimati": datetime.max.replace(tzinfo=ZoneInfo("Pacific/Kiritimati")),
    "infinite": math.inf,
    "text": "soon",
}


@pytest.mark.parametrize("kind", [*SCHEDULES, "solar", "cron", "clocked"])
@pytest.mark.parametrize("moment", INVALID)
def test_an_invalid_time_raises_entry_error_that_names_it_and_changes_nothing(
    scheduler: RedBeatScheduler, client: redis.Redis, kind: str, moment: str
) -> None:
    more = {"solar": solar("sunset", 52, 13), "cron": cron("0 3 * * *"), "clocked": clocked(PAST + 9 * DAY)}
    given, name = INVALID[moment], f"{kind}, {moment}"

    def make(**fields: Any) -> Entry:
        return Entry(name, "t", {**SCHEDULES, **more}[kind], app=scheduler.app, **fields)

    make().save()
    before = client.hgetall(f"redbeat:{name}"), score_of(client, name)
    shown = repr(given) if isinstance(given, str) else str(given)
    for way in (*WAYS, advance):
        with pytest.raises(EntryError, match=f"last_run_at must be .*{re.escape(shown)}"):
            way(make(), given)
    with pytest.raises(EntryError, match=f"last_run_at .*{re.escape(shown)}"):
        Entry(f"{name}, new", "t", make().schedule, app=scheduler.app, last_run_at=given).save()
    for policy in ("paused_until", "start_time", "end_time"):
        with pytest.raises(EntryError, match=f"{policy}: .*{re.escape(shown)}"):
            make(**{policy: given})
    with pytest.raises(EntryError, match="paused_until"):
        make().pause(until=given)
    for look in (lambda: make().next_runs(1, given), lambda: [*make().runs_between(given, given)]):
        with pytest.raises(EntryError, match=re.escape(shown)):
            look()
    assert (client.hgetall(f"redbeat:{name}"), score_of(client, name)) == before
    assert client.zcard(SCHEDULE) == 1


def test_a_last_run_after_which_an_interval_has_no_time_raises_entry_error(
    scheduler: RedBeatScheduler,
) -> None:
    entry = Entry("far", "t", schedule(36_000 * 86_400), app=scheduler.app).save()
    with pytest.raises(EntryError, match="a time outside the years 1 to 9999, as last_run_at is 9990-01-01"):
        entry.reschedule(datetime(9990, 1, 1))
    with pytest.raises(EntryError, match="a time outside the years 1 to 9999, as last_run_at is 9990-01-01"):
        assign_to_loaded(entry, datetime(9990, 1, 1))


@pytest.mark.parametrize("kind", SCHEDULES)
def test_an_entry_whose_last_run_is_moved_back_runs_once_at_once(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, kind: str
) -> None:
    names = []
    policies = cycle(POLICIES)  # every one with every moment and way, but not with every pair of them
    for way, moment, policy in ((*pair, next(policies)) for pair in product(WAYS, MOMENTS) for _ in range(3)):
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
        elif policy not in ("skip", "late", "expires", "jitter"):
            assert own_score == due_at.timestamp() == pytest.approx(score, abs=1e-5)
        scheduler.tick()
    assert not due_count(client)
    assert Counter(sent_names(broker)) == dict.fromkeys(names, 1)
    assert counts_of(client, names) == {1: len(names)}


def test_saving_again_what_was_moved_and_has_run_moves_nothing(
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


def test_a_last_run_that_is_moved_forwards_moves_the_next_run(app: Celery, client: redis.Redis) -> None:
    entry = Entry("entry", "t", 3600, app=app).save()
    entry.last_run_at = server_time(client) + DAY
    entry.save()
    assert score_of(client, "entry") == pytest.approx(server_now(client) + 90_000, abs=60)
    entry.last_run_at = "yesterday"
    with pytest.raises(EntryError, match="last_run_at must be a datetime, not 'yesterday'"):
        entry.save()


def test_an_entry_that_is_disabled_or_has_had_its_last_run_is_not_run_by_a_moved_last_run(
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


def test_an_entry_that_another_program_asked_to_run_now_is_due_when_it_is_read(
    app: Celery, client: redis.Redis
) -> None:
    write_raw(client, "raw")
    entry = Entry.from_key("redbeat:raw", app=app)
    assert all(entry.is_due().is_due for _ in range(100))
