"""Schedules that have a time zone of their own keep it when they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import time_machine
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedstate, schedule
from dateutil.tz import gettz, tzoffset

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.schedules import cron, rrule
from tests.support.ticks import fake_redis_app, leader, take_messages

UTC = timezone.utc


BERLIN = ZoneInfo("Europe/Berlin")


#: a day before the clocks go forward there
BEGIN = datetime(2026, 3, 28, 12, tzinfo=UTC)


class TzAwareCrontab(crontab):
    """Celery's crontab in a zone of its own, as in django-celery-beat."""

    def __init__(self, *fields: Any, tz: tzinfo = UTC, app: Any = None) -> None:
        self.tz = tz
        super().__init__(*fields, nowfun=self._now, app=app)

    def _now(self) -> datetime:
        return datetime.now(self.tz)

    def is_due(self, last_run_at: datetime) -> schedstate:
        last_run_at = self.maybe_make_aware(last_run_at).astimezone(self.tz)
        remaining = self.remaining_estimate(last_run_at).total_seconds()
        return schedstate(remaining <= 0, max(remaining, 0))


class CrontabWithZone(crontab):
    """A subclass that sets its zone, which may be that of Celery's default app."""

    def __init__(self, *fields: Any, tz: tzinfo) -> None:
        super().__init__(*fields)
        self.tz = tz


def now_in(zone: tzinfo | None) -> Callable[[], datetime]:
    return lambda: datetime.now(zone)


#: a day in a zone of dateutil
NEW_YEAR = datetime(2026, 1, 1, 7, tzinfo=gettz("Europe/Berlin"))
AN_OFFSET = timezone(timedelta(hours=5))
#: makes a daily schedule, and when it runs: the hour and the zone
KINDS: dict[str, tuple[Callable[[], BaseSchedule], int, tzinfo]] = {
    "nowfun of zoneinfo": (lambda: crontab("0", "7", nowfun=now_in(BERLIN)), 7, BERLIN),
    "TzAwareCrontab": (lambda: TzAwareCrontab("0", "7", tz=BERLIN), 7, BERLIN),
    "cron": (lambda: cron("0 7 * * *", nowfun=now_in(BERLIN)), 7, BERLIN),
    "a relative day": (lambda: schedule(86_400, relative=True, nowfun=now_in(BERLIN)), 0, BERLIN),
    "a rule of dateutil's zone": (lambda: rrule("DAILY", dtstart=NEW_YEAR), 7, BERLIN),
    "an offset": (lambda: crontab("0", "7", nowfun=now_in(AN_OFFSET)), 7, AN_OFFSET),
    "UTC, as the default app": (lambda: CrontabWithZone("0", "7", tz=UTC), 7, UTC),
}


@pytest.fixture
def app() -> Iterator[Celery]:
    with time_machine.travel(BEGIN, tick=False):
        yield fake_redis_app(timezone="America/New_York")


@pytest.mark.parametrize("kind", KINDS)
def test_runs_are_in_the_zone_of_the_schedule(app: Celery, kind: str) -> None:
    make, hour, zone = KINDS[kind]
    dues = [datetime(2026, 3, day, hour, tzinfo=zone) for day in (29, 30, 31)]
    entry = Entry("x", "t", make(), app=app)
    assert entry.next_runs(3) == dues, "before it is saved"
    entry.save()
    assert entry.next_runs(3) == dues, "as an object that was saved"
    ran = []
    with leader(app) as scheduler:
        for due, following in pairwise(dues):
            with time_machine.travel(due, tick=False):
                scheduler.tick()
                ran += [datetime.fromisoformat(message.due) for message in take_messages(app)]
                assert Entry.from_key("redbeat:x", app=app).next_runs(1) == [following]
    assert ran == dues[:2]


@pytest.mark.parametrize(
    "made",
    [
        crontab("0", "7"),
        TzAwareCrontab("0", "7", tz=ZoneInfo("America/New_York")),
        crontab("0", "7", nowfun=now_in(None)),
        schedule(60, nowfun=now_in(BERLIN)),
    ],
    ids=["plain", "TzAwareCrontab", "naive", "interval"],
)
def test_schedule_in_the_app_zone_stores_no_timezone(app: Celery, made: Any) -> None:
    Entry("x", "t", made, app=app).save()
    assert app.redbeat_redis.hget("redbeat:x", "policy") is None


@pytest.mark.parametrize(
    "made",
    [
        crontab("0", "7", nowfun=now_in(tzoffset("half", 19_800))),
        rrule("DAILY", dtstart=datetime(2026, 1, 1, tzinfo=gettz("EST5EDT,M3.2.0,M11.1.0"))),
    ],
    ids=["crontab", "rrule"],
)
def test_zone_without_iana_name_is_warned_of(
    app: Celery, made: Any, caplog: pytest.LogCaptureFixture
) -> None:
    Entry("x", "t", made, app=app).save()
    assert "has no IANA name and cannot be stored: set timezone" in caplog.text


def test_crontab_subclass_with_its_own_times_is_stored_as_crontab_with_one_warning(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    class Seldom(crontab):
        def remaining_estimate(self, last_run_at: datetime, ffwd: Any = None) -> timedelta:
            return timedelta(days=365)

    for name in ("x", "y"):
        Entry(name, "t", Seldom("0", "7", nowfun=now_in(BERLIN)), app=app).save()
        assert type(Entry.from_key(f"redbeat:{name}", app=app).schedule) is crontab
    [told] = [record.getMessage() for record in caplog.records if "register_schedule" in record.getMessage()]
    assert "Seldom, and is stored as its crontab and time zone" in told
