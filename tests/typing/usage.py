"""What users write, as `mypy --strict` sees it. Never run: `make check` reads it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

from celery import Celery
from celery.schedules import crontab, schedule
from typing_extensions import assert_type

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry, aio
from redbeat.bulk import SaveResult
from redbeat.calendars import Calendar
from redbeat.config import SETTINGS, Setting
from redbeat.decoder import RedBeatJSONDecoder, to_timestamp
from redbeat.errors import (
    ConfigurationError,
    EntryBusy,
    EntryCorrupt,
    EntryError,
    EntryNotFound,
    LockLost,
    LockNotAcquired,
    RedBeatError,
    StoreUnavailable,
)
from redbeat.runs.figures import Figures
from redbeat.runs.run import Run
from redbeat.schedulers import (
    RedBeatConfig,
    RetryingConnection,
    acquire_distributed_beat_lock,
    ensure_conf,
    get_redis,
)
from redbeat.schedules import rrule
from redbeat.status import Leader
from redbeat.testing import assert_runs, entries_of, simulate
from redbeat.testing.beats import SentRun, TestBeat
from redbeat.testing.clock import TestClock

app = Celery("proj", broker="redis://127.0.0.1:6379/0")


def entries_are_made_saved_and_deleted() -> None:
    entry = RedBeatSchedulerEntry("report", "proj.report", schedule(60), args=["weekly"], app=app)
    assert_type(entry.save(), RedBeatSchedulerEntry)
    assert_type(entry.key, str)
    assert_type(entry.due_at, "datetime | None")
    assert_type(entry.rank, "int | None")
    assert_type(entry.last_run_at, "datetime | None")
    assert_type(entry.next(), RedBeatSchedulerEntry)
    entry.reschedule()
    entry.reschedule(last_run_at=datetime.now(timezone.utc))
    entry.delete()
    is_due, seconds = entry.is_due()
    print(is_due, seconds)


def runs_are_looked_at_and_sent_once_more() -> None:
    entry = RedBeatSchedulerEntry.get("report", app)
    for run in entry.runs(10):
        assert_type(run, Run)
        assert_type(run.started_at, "datetime | None")
        assert_type(run.outcome, "str | None")
    assert_type(entry.running()[0], Run)
    assert_type(entry.figures(), Figures)
    assert_type(entry.figures().success_rate, "float | None")
    entry.rerun()
    entry.rerun(datetime.now(timezone.utc))
    try:
        entry.trigger()
    except EntryBusy as error:
        assert_type(error.task_id, "str | None")
        print(error)


async def entries_are_awaited() -> None:
    entry = OwnEntry("report", "proj.report", 60, app=app)
    assert_type(await entry.asave(if_unchanged=True), OwnEntry)
    assert_type(await OwnEntry.aget("report", app), OwnEntry)
    async for listed in OwnEntry.alist(app):
        assert_type(listed, OwnEntry)
    assert_type(await entry.aruns(), Sequence[Run])
    assert_type(await OwnEntry.asave_many([entry]), SaveResult)
    await entry.aupdate(schedule=30, jitter=5)
    await entry.aupdate(jiter=5)  # type: ignore[call-arg]
    await entry.adelete()
    assert_type(await aio.run(entry.next_runs, 3), list[datetime])


def many_entries_are_saved_and_deleted() -> None:
    names = [f"report-{number}" for number in range(3)]
    result = RedBeatSchedulerEntry.save_many(
        (OwnEntry(name, "proj.report", 60, app=app) for name in names), progress=print
    )
    assert_type(result, SaveResult)
    assert_type(result.new, "tuple[str, ...]")
    try:
        assert_type(RedBeatSchedulerEntry.delete_many(names, app, progress=lambda done: None), int)
        RedBeatSchedulerEntry.delete_many({"report": 1})
    except EntryError as error:
        assert_type(error.done, int)


def schedules_are_given_as_in_celery() -> None:
    RedBeatSchedulerEntry("a", "proj.report", 60, app=app)
    RedBeatSchedulerEntry("c", "proj.report", crontab(hour={7, 13}), kwargs={"full": True}, app=app)
    RedBeatSchedulerEntry("d", "proj.report", rrule("DAILY", count=3), options={"queue": "q"}, app=app)
    RedBeatSchedulerEntry("e", "proj.report", schedule(5), None, None, False, {"priority": 3}, app=app)


def policies_are_given_by_their_names() -> None:
    entry = RedBeatSchedulerEntry(
        "a",
        "proj.report",
        {"cron": "0 9 * * mon-fri"},
        app=app,
        timezone=ZoneInfo("Europe/Berlin"),
        start_time=datetime(2030, 1, 1),
        end_time="2031-01-01",
        max_runs=3,
        jitter=timedelta(minutes=2),
        misfire="all",
        overlap="skip",
        max_runtime=timedelta(minutes=5),
        revoke_overdue=True,
        queue_timeout=60,
        pause_after_failures=3,
        resume_after=1.5,
        tracks="workflow",
        ping_url="https://hc-ping.com/abc-123",
        last_run_at=None,
        total_run_count=0,
    )
    entry.update(schedule="1h30m", jitter=60, misfire=None, enabled=False, args=[1])
    entry.update(OwnEntry("b", "proj.report", 60, app=app))
    config: dict[str, Any] = {"jitter": 5}
    RedBeatSchedulerEntry("c", "proj.report", 60, app=app, **config)
    OwnEntry("d", "proj.report", 60, app=app, one_off=True)
    assert_type(entry.jitter, float)
    assert_type(entry.timezone, "str | None")
    assert_type(entry.paused_until, "datetime | None")
    assert_type(entry.overlap, str)
    assert_type(entry.ping_url, "str | None")
    assert_type(entry.kwargs, "dict[str, Any]")
    assert_type(entry.schedule, Any)
    entry.jitter = timedelta(seconds=5)
    entry.exclude = None


def mistyped_names_and_wrong_types_are_refused(entry: RedBeatSchedulerEntry) -> None:
    RedBeatSchedulerEntry("a", "proj.report", 60, app=app, jiter=3)  # type: ignore[call-arg]
    RedBeatSchedulerEntry("a", "proj.report", 60, app=app, jitter="x")  # type: ignore[arg-type]
    RedBeatSchedulerEntry("a", "proj.report", 60, app=app, misfire="sikp")  # type: ignore[arg-type]
    OwnEntry("a", "proj.report", 60, app=app, jiter=3)  # type: ignore[call-arg]
    entry.update(jiter=3)  # type: ignore[call-arg]
    entry.update(jitter="x")  # type: ignore[arg-type]
    entry.jitter = "x"  # type: ignore[assignment]
    entry.start_time = 5  # type: ignore[assignment]
    entry.overlap = "sometimes"  # type: ignore[assignment]


def entries_are_read() -> None:
    key = RedBeatSchedulerEntry.generate_key(app, "report")
    assert_type(key, str)
    assert_type(RedBeatSchedulerEntry.from_key(key, app=app), RedBeatSchedulerEntry)
    assert_type(RedBeatSchedulerEntry.load_definition(key, app), "dict[str, Any]")
    assert_type(RedBeatSchedulerEntry.decode_meta(None), "dict[str, Any]")


class OwnEntry(RedBeatSchedulerEntry):
    """Entries and schedulers are subclassed."""

    def due_in(self) -> timedelta | None:
        return self.due_at - datetime.now(timezone.utc) if self.due_at else None


class OwnScheduler(RedBeatScheduler):
    Entry = OwnEntry

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:
        return super().apply_async(entry, producer=producer, advance=advance, **kwargs)


def a_scheduler_is_ticked() -> None:
    scheduler = OwnScheduler(app, lock_key="mine", lock_timeout=60.0, max_interval=5, lazy=True)
    assert_type(scheduler.tick(), float)
    assert_type(scheduler.lock_key, "str | None")
    assert_type(scheduler.info, str)
    assert_type(scheduler.schedule, "dict[str, Any]")
    scheduler.update_from_dict({"report": {"task": "proj.report", "schedule": 60}})
    scheduler.setup_schedule()
    scheduler.close()
    acquire_distributed_beat_lock(sender=None)


def times_recur() -> None:
    rule = rrule("WEEKLY", dtstart=datetime.now(timezone.utc), byweekday=[0, 4], until=None)
    assert_type(rule.occurrence(datetime.now(timezone.utc), inclusive=True), "datetime | None")
    assert_type(to_timestamp(datetime.now(timezone.utc)), int)
    assert_type(RedBeatJSONDecoder().decode("{}"), Any)


def the_configuration_is_looked_at() -> None:
    config = ensure_conf(app)
    assert_type(config, RedBeatConfig)
    assert_type(config.key_prefix, str)
    assert_type(config.schedule_key, str)
    assert_type(config.lock_key, "str | None")
    assert_type(config.batch_size, int)
    assert_type(SETTINGS, dict[str, Setting])
    RetryingConnection(-1, get_redis(app)).ping()


def errors_are_caught_and_asked() -> None:
    try:
        entries_are_read()
    except EntryNotFound as error:
        assert_type(error.key, str)
        caught_as_in_2x: KeyError = error
        print(caught_as_in_2x)
    except (EntryCorrupt, EntryError) as error:
        print(error.key)
    except ConfigurationError as error:
        assert_type(error.setting, "str | None")
    except (LockLost, LockNotAcquired) as error:
        assert_type(error.lock_key, "str | None")
    except (StoreUnavailable, RedBeatError) as error:
        print(error)


def the_leader_is_asked_for() -> None:
    leader = RedBeatScheduler.leader(app)
    assert_type(leader, Leader | None)
    if leader is not None:
        assert_type(leader.host, "str | None")
        assert_type(leader.since, "datetime | None")
        assert_type(leader.ttl_seconds, "float | None")


def a_schedule_is_tested(entry: RedBeatSchedulerEntry, redbeat_app: Celery) -> None:
    durations = {"report": 5, "sync": None}
    for run in simulate(redbeat_app, "2026-06-01", datetime(2026, 7, 1), durations=durations):
        assert_type(run.due, datetime)
        assert_type(run.sent_at, "datetime | None")
        assert_type(run.task_id, "str | None")
    simulate([entry], "2026-06-01", "2026-06-02", durations=lambda run: timedelta(minutes=run.due.hour))
    outages = [("2026-06-01", datetime(2026, 6, 2))]
    simulate(entries_of(redbeat_app).values(), "2026-06-01", "2026-06-03", outages=outages)
    simulate(entry, "2026-06-01", "2026-06-02", calendars={"holidays": Calendar("holidays", ["2026-06-01"])})
    assert_runs(entry, ["2026-06-01 07:30", datetime(2026, 6, 2, 7, 30)], end="2026-06-03")
    assert_runs(entry, [5])  # type: ignore[list-item]


def fixtures_are_used(redbeat_beat: TestBeat, redbeat_clock: TestClock) -> None:
    redbeat_clock.travel("2026-06-01 12:00", ZoneInfo("Europe/Berlin"))
    redbeat_clock.shift(hours=1)
    assert_type(redbeat_clock.run_until("2026-06-02"), list[SentRun])
    assert_type(redbeat_beat.tick()[0].args, list[Any])
