"""What ``simulate`` yields: which runs, in which order, why not; and at which cost."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import EntryError, EntryTooExpensive
from redbeat.schedules import clocked, rrule
from redbeat.testing import SimulatedRun, entries_of, simulate
from tests.support.played import play

UTC = timezone.utc


@pytest.fixture
def app() -> Celery:
    """Nothing is connected to: there is no Redis."""
    return Celery("users-tests", broker="amqp://", set_as_current=False)


def times(runs: Any) -> list[str]:
    return [f"{run.local:%a %d %H:%M}" for run in runs if run.is_sent]


def told(runs: Any) -> list[tuple[str, str, str]]:
    return [(f"{run.local:%d %H:%M}", run.outcome, run.why) for run in runs]


def test_an_apps_code_is_simulated_without_a_redis(app: Celery) -> None:
    app.conf.timezone = "Europe/Berlin"
    app.conf.beat_schedule = {
        "report": {"task": "proj.report", "schedule": crontab("30", "7", "mon-fri"), "args": ["ann"]},
        "sync": {"task": "proj.sync", "schedule": timedelta(hours=12), "overlap": "skip"},
        "own": Entry("own", "proj.own", "0 0 * * *", app=app),
    }
    runs = list(simulate(app, "2026-03-27", "2026-03-30 09:00"))
    assert [f"{run.local:%a %H:%M} {run.name}" for run in runs] == [
        "Fri 00:00 own", "Fri 07:30 report", "Fri 12:00 sync",
        "Sat 00:00 own", "Sat 00:00 sync", "Sat 12:00 sync",
        "Sun 00:00 own", "Sun 00:00 sync", "Sun 13:00 sync",
        "Mon 00:00 own", "Mon 01:00 sync", "Mon 07:30 report",
    ]  # fmt: skip
    first = runs[1]
    assert (first.due, first.sent_at, first.outcome, first.why) == (first.due, first.due, "sent", "")
    assert first.due == datetime(2026, 3, 27, 6, 30, tzinfo=UTC)
    assert first.entry.args == ["ann"]
    assert repr(first) == "<Fri 2026-03-27 07:30:00 +0100 report sent>"
    assert entries_of(app)["sync"].policy.overlap == "skip"


def test_a_task_id_is_the_one_of_the_real_run(fake_app: Celery) -> None:
    begin, end = datetime(2026, 6, 1, tzinfo=UTC), datetime(2026, 6, 1, 1, tzinfo=UTC)
    [run] = simulate(Entry("report", "proj.report", 3600, app=fake_app), begin, end)
    played = play(fake_app, lambda: Entry("report", "proj.report", 3600, app=fake_app), begin, end)
    assert [run.task_id] == [past.task_id for past in played.history]
    own = Entry("own", "t", 3600, options={"task_id": "mine"}, enabled=True, app=fake_app)
    assert [run.task_id for run in simulate(own, begin, end)] == ["mine"]
    own.enabled = False
    assert [run.task_id for run in simulate(own, begin, end)] == [None]


def test_both_ends_count_as_in_runs_between(app: Celery) -> None:
    entry = Entry("report", "proj.report", "0 0 * * *", timezone="America/New_York", app=app)
    begin, end = datetime(2026, 3, 7, 5, tzinfo=UTC), datetime(2026, 3, 10, 4, tzinfo=UTC)
    assert [run.due for run in simulate(entry, begin, end)] == list(entry.runs_between(begin, end))


def test_a_new_interval_counts_from_the_start(app: Celery) -> None:
    entry = Entry("sync", "proj.sync", 3600, app=app)
    assert times(simulate(entry, "2026-06-01 10:17", "2026-06-01 12:30")) == ["Mon 01 11:17", "Mon 01 12:17"]
    old = Entry("sync", "proj.sync", 3600, last_run_at=datetime(2026, 5, 1, 0, 5), app=app)
    assert times(simulate(old, "2026-06-01 10:17", "2026-06-01 12:00")) == ["Mon 01 11:05"]
    assert entry.last_run_at is not None
    assert entry.last_run_at.year != 2026 or entry.last_run_at.month != 6, "it isn't changed"


def test_naive_times_are_in_the_apps_zone(app: Celery) -> None:
    app.conf.timezone = "Asia/Tokyo"
    entry = Entry("report", "proj.report", "0 9 * * *", app=app)
    [run] = simulate(entry, datetime(2026, 6, 1, 8), datetime(2026, 6, 1, 10, tzinfo=ZoneInfo("Asia/Tokyo")))
    assert run.due == datetime(2026, 6, 1, tzinfo=UTC)


def test_each_time_that_is_left_out_has_its_reason(app: Celery) -> None:
    holidays = Calendar("holidays", ["2026-06-03"])
    entry = Entry(
        "report", "proj.report", "0 9 * * *", exclude="holidays", max_runs=2,
        start_time="2026-06-02T00:00+00:00", end_time="2026-06-06T00:00+00:00", app=app,
    )  # fmt: skip
    runs = simulate(entry, "2026-06-01", "2026-06-07", calendars={"holidays": holidays})
    assert told(runs) == [
        ("01 09:00", "skipped", "before its start_time, 2026-06-02T00:00:00+00:00"),
        ("02 09:00", "sent", ""),
        ("03 09:00", "skipped", "excluded by its calendar holidays"),
        ("04 09:00", "sent", ""),
        ("05 09:00", "skipped", "it has run 2 times (max_runs)"),
        ("06 09:00", "skipped", "after its end_time, 2026-06-06T00:00:00+00:00"),
    ]


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"enabled": False}, "disabled"),
        ({"enabled": False, "paused": True, "pause_note": "no money"}, "paused: no money"),
        (
            {"enabled": False, "paused": True, "paused_until": "2026-06-03T10:00+00:00"},
            "paused until 2026-06-03 10:00:00 UTC",
        ),
    ],
)
def test_a_rest_is_a_reason_too(app: Celery, fields: dict[str, Any], why: str) -> None:
    entry = Entry("report", "proj.report", "0 9 * * *", app=app, **fields)
    runs = list(simulate(entry, "2026-06-01", "2026-06-04"))
    assert told(runs) == [(f"0{day} 09:00", "skipped", why) for day in (1, 2, 3)]
    later = list(simulate(entry, "2026-06-04", "2026-06-04 12:00"))
    assert [run.is_sent for run in later] == ["paused_until" in fields]


def test_missed_runs_are_made_up_for_as_misfire_says(app: Celery) -> None:
    outages = [("2026-06-01 10:30", "2026-06-01 13:30")]
    outcomes = {}
    for misfire in ("latest", "earliest", "all", "skip"):
        entry = Entry("sync", "proj.sync", "0 * * * *", misfire=misfire, app=app)
        runs = list(simulate(entry, "2026-06-01 10:00", "2026-06-01 14:00", outages=outages))
        outcomes[misfire] = [run.outcome for run in runs]
        assert {run.sent_at for run in runs[1:4]} <= {None, datetime(2026, 6, 1, 13, 30, tzinfo=UTC)}
    assert outcomes == {
        "latest": ["sent", "merged", "merged", "sent", "sent"],
        "earliest": ["sent", "sent", "merged", "merged", "sent"],
        "all": ["sent"] * 5,
        "skip": ["sent", "skipped", "skipped", "skipped", "sent"],
    }


def test_missed_runs_beyond_max_runs_have_that_reason(app: Celery) -> None:
    outages = [("2026-06-01 09:30", "2026-06-01 13:30")]
    entry = Entry("sync", "proj.sync", "0 * * * *", misfire="all", max_runs=2, app=app)
    runs = list(simulate(entry, "2026-06-01 09:30", "2026-06-01 14:00", outages=outages))
    over = "it has run 2 times (max_runs)"
    assert [(run.outcome, run.why) for run in runs] == [("sent", "")] * 2 + [("skipped", over)] * 3


def test_run_exactly_as_late_as_allowed_is_skipped_as_beat_looks_a_moment_later(app: Celery) -> None:
    outages = [("2026-06-01 09:30", "2026-06-01 10:01")]
    entry = Entry("sync", "proj.sync", "0 * * * *", misfire="skip", misfire_grace_time=60, app=app)
    runs = list(simulate(entry, "2026-06-01 09:30", "2026-06-01 11:30", outages=outages))
    assert [run.outcome for run in runs] == ["skipped", "sent"]


def test_durations_decide_what_overlaps(app: Celery) -> None:
    def simulated(overlap: Any, **fields: Any) -> list[str]:
        entry = Entry("sync", "proj.sync", "*/10 * * * *", overlap=overlap, app=app, **fields)
        runs = simulate(
            entry, "2026-06-01 10:00", "2026-06-01 10:40", durations={"sync": timedelta(minutes=14)}
        )
        return [
            f"{run.local:%M} {run.outcome}" + (f" {run.sent_at:%M}-{run.ends_at:%M}" if run.is_sent else "")
            for run in runs
        ]

    assert simulated("allow") == [
        "00 succeeded 00-14", "10 succeeded 10-24", "20 succeeded 20-34", "30 succeeded 30-44",
        "40 succeeded 40-54",
    ]  # fmt: skip
    assert simulated("skip") == [
        "00 succeeded 00-14", "10 skipped", "20 succeeded 20-34", "30 skipped", "40 succeeded 40-54",
    ]  # fmt: skip
    assert simulated("buffer_one") == [
        "00 succeeded 00-14", "10 succeeded 14-28", "20 succeeded 28-42", "30 succeeded 42-56", "40 skipped",
    ]  # fmt: skip
    assert simulated("replace") == [
        "00 revoked 00-10", "10 revoked 10-20", "20 revoked 20-30", "30 revoked 30-40", "40 succeeded 40-54",
    ]  # fmt: skip
    assert simulated("skip", max_runtime=300) == [
        "00 succeeded 00-14", "10 succeeded 10-24", "20 succeeded 20-34", "30 succeeded 30-44",
        "40 succeeded 40-54",
    ]  # fmt: skip
    assert simulated("skip", max_runtime=300, revoke_overdue=True)[0] == "00 revoked 00-05"


def test_a_run_that_no_worker_begins_holds_back_others_for_its_queue_timeout(app: Celery) -> None:
    entry = Entry("sync", "proj.sync", "*/10 * * * *", overlap="skip", queue_timeout=900, app=app)
    runs = simulate(entry, "2026-06-01 10:00", "2026-06-01 10:20", durations=lambda _run: None)
    assert told(runs) == [
        ("01 10:00", "never_started", ""),
        (
            "01 10:10",
            "skipped",
            "the run of 2026-06-01 10:00:00 UTC was on its queue since 2026-06-01 10:00:00 UTC",
        ),
        ("01 10:20", "never_started", ""),
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"start": "tomorrow"}, "start: 'tomorrow' is no time"),
        ({"end": 5}, "end: must be a datetime or a text"),
        ({"end": "2020-01-01"}, "end: 2020-01-01 is before start"),
        ({"durations": {"reprot": 1}}, r"durations: none of the entries is called 'reprot'.*report"),
        ({"durations": {"report": -1}}, "durations: report: must be a timedelta, a number of seconds"),
        ({"durations": {"report": float("inf")}}, "durations: report"),
        ({"durations": {"report": timedelta(-1)}}, "durations: report"),
        ({"outages": [("2026-06-02", "2026-06-01")]}, "outages: .* ends before it begins"),
        ({"outages": [("x", "2026-06-01")]}, "outages: 'x' is no time"),
    ],
)
def test_wrong_arguments_are_named(app: Celery, arguments: dict[str, Any], problem: str) -> None:
    entry = Entry("report", "proj.report", 60, app=app)
    with pytest.raises(ValueError, match=problem):
        simulate(entry, **{"start": "2026-06-01", "end": "2026-06-02", **arguments})


@pytest.mark.parametrize("wrong", [None, "report", 5, {"report": 1}, ["report"], [None]])
def test_what_is_no_entry_is_named(wrong: Any) -> None:
    with pytest.raises(ValueError, match="simulate takes a Celery app, an entry or several entries"):
        simulate(wrong, "2026-06-01", "2026-06-02")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"task": "t"}, "broken"),
        ({"task": "t", "schedule": "61 * * * *"}, "broken: .*61"),
        ({"task": "t", "schedule": 60, "colour": "red"}, "broken: .*colour"),
        ({"task": "t", "schedule": 60, "args": [object()]}, "broken"),
        ({"task": "t", "schedule": 60, "overlap": "maybe"}, "broken: overlap"),
        (5, "broken"),
    ],
)
def test_an_entry_that_beat_would_refuse_is_refused_by_name(app: Celery, fields: Any, problem: str) -> None:
    app.conf.beat_schedule = {"broken": fields}
    with pytest.raises(EntryError, match=problem):
        list(simulate(app, "2026-06-01", "2026-06-02"))


def test_an_entry_without_its_calendar_is_refused_by_name(fake_app: Celery) -> None:
    entry = Entry("report", "proj.report", 60, exclude="holidays", app=fake_app)
    with pytest.raises(EntryError, match="report: policy: exclude: there is no calendar 'holidays'"):
        simulate(entry, "2026-06-01", "2026-06-02")
    Calendar("holidays", ["2026-06-01"], app=fake_app).save()
    assert not any(run.is_sent for run in simulate(entry, "2026-06-01", "2026-06-01 23:59"))


def test_a_schedule_that_takes_for_ever_is_interrupted(app: Celery) -> None:
    class endless(BaseSchedule):  # noqa: N801
        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            while True:
                pass

    from redbeat.schedules import register_schedule

    register_schedule("endless", endless, lambda _one: {}, lambda _given: endless())
    with pytest.raises(EntryTooExpensive, match="slow"):
        list(simulate(Entry("slow", "t", endless(), app=app), "2026-06-01", "2026-06-02"))


def test_entries_that_are_stored_go_on_where_they_are(fake_app: Celery) -> None:
    Entry("sync", "proj.sync", 3600, last_run_at=datetime(2026, 1, 1, 0, 5), app=fake_app).save()
    Entry("once", "proj.once", clocked(datetime(2026, 6, 1, 12, 30, tzinfo=UTC)), app=fake_app).save()
    runs = list(simulate(Entry.list(fake_app), "2026-06-01 12:00", "2026-06-01 13:10"))
    assert [f"{run.due:%H:%M} {run.name}" for run in runs] == ["12:05 sync", "12:30 once", "13:05 sync"]
    broken = fake_app.redbeat_redis
    broken.hset("redbeat:broken", "definition", "{")
    broken.zadd("redbeat::schedule", {"redbeat:broken": 1})
    with pytest.raises(EntryError, match="broken: it can't be used"):
        simulate(Entry.list(fake_app), "2026-06-01 12:00", "2026-06-01 13:10")


def test_no_entries_have_no_runs(app: Celery) -> None:
    assert list(simulate([], "2026-06-01", "2026-06-02")) == []
    assert list(simulate(app, "2026-06-01", "2026-06-02")) == []


def test_runs_are_computed_when_they_are_asked_for(app: Celery) -> None:
    app.conf.beat_schedule = {
        f"entry-{number}": {"task": "t", "schedule": 1.0 + number / 1000} for number in range(100)
    }
    began_at = time.process_time()
    runs: list[SimulatedRun] = list(islice(simulate(app, "2026-01-01", "3000-01-01"), 1000))
    assert time.process_time() - began_at < 2, "a thousand years aren't walked through"
    assert [run.due for run in runs] == sorted(run.due for run in runs)


MIX: dict[str, tuple[Any, dict[str, Any]]] = {
    "crontab */5": (crontab("*/5"), {}),
    "crontab workdays": (crontab("0,30", "8-17", "mon-fri"), {}),
    "interval": (schedule(60), {}),
    "rrule": (rrule("MINUTELY", dtstart=datetime(2020, 1, 1), interval=10), {}),
    "in a window": (crontab("*/5"), {"start_time": "2026-01-03T00:00", "end_time": "2026-02-01T00:00"}),
    "with jitter": (crontab("*/5"), {"jitter": 30}),
    "with overlap": (crontab("*/5"), {"overlap": "buffer_one"}),
}


@pytest.mark.parametrize(
    "outages", [[], [("2026-01-05", "2026-01-05 12:00"), ("2026-01-10", "2026-01-10 00:05")]]
)
def test_it_yields_50_000_runs_in_a_second_of_processor_time(app: Celery, outages: Any) -> None:
    """In a zone with summer time; the figures of each kind are printed."""
    entries = [
        Entry(name, "t", rule, timezone="Europe/Berlin", app=app, **fields)
        for name, (rule, fields) in MIX.items()
    ]
    rates = {}
    for name, chosen in {"all of them": entries, **{entry.name: [entry] for entry in entries}}.items():
        durations = {entry.name: 400 for entry in chosen if entry.policy.overlap != "allow"}
        end = "2026-01-20" if name == "all of them" else "2026-01-06"
        began_at = time.process_time()
        count = sum(
            1 for _ in simulate(chosen, "2026-01-01", end, durations=durations or None, outages=outages)
        )
        rates[name] = count / (time.process_time() - began_at)
        print(f"{name:20} {count:8,} runs, {rates[name]:10,.0f} in a second of processor time")
    assert rates["all of them"] > 50_000
