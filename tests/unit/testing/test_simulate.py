"""What ``simulate`` yields: which runs, in which order, why not; and at which cost."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import EntryError
from redbeat.schedules import clocked
from redbeat.testing import assert_runs, entries_of, simulate
from tests.unit.testing.played import play

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
    assert first.due == first.sent_at == datetime(2026, 3, 27, 6, 30, tzinfo=UTC)
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


def test_a_new_interval_counts_from_the_start(app: Celery) -> None:
    entry = Entry("sync", "proj.sync", 3600, app=app)
    assert times(simulate(entry, "2026-06-01 10:17", "2026-06-01 12:30")) == ["Mon 01 11:17", "Mon 01 12:17"]
    old = Entry("sync", "proj.sync", 3600, last_run_at=datetime(2026, 5, 1, 0, 5), app=app)
    assert times(simulate(old, "2026-06-01 10:17", "2026-06-01 12:00")) == ["Mon 01 11:05"]


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


def test_runs_of_a_paused_or_disabled_entry_are_skipped_with_the_reason(app: Celery) -> None:
    for fields, why in (
        ({}, "disabled"),
        ({"paused": True, "paused_until": "2026-06-03T10:00+00:00"}, "paused until 2026-06-03 10:00:00 UTC"),
    ):
        entry = Entry("report", "proj.report", "0 9 * * *", enabled=False, app=app, **fields)
        assert told(simulate(entry, "2026-06-01", "2026-06-04")) == [
            (f"0{day} 09:00", "skipped", why) for day in (1, 2, 3)
        ]
        later = simulate(entry, "2026-06-04", "2026-06-04 12:00")
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


@pytest.mark.parametrize(
    ("overlap", "fields", "expected"),
    [
        ("allow", {}, ["00 succeeded 00-14", "10 succeeded 10-24", "20 succeeded 20-34"]),
        ("skip", {}, ["00 succeeded 00-14", "10 skipped", "20 succeeded 20-34"]),
        ("buffer_one", {}, ["00 succeeded 00-14", "10 succeeded 14-28", "20 succeeded 28-42"]),
        ("replace", {}, ["00 revoked 00-10", "10 revoked 10-20", "20 succeeded 20-34"]),
        ("skip", {"max_runtime": 300}, ["00 succeeded 00-14", "10 succeeded 10-24", "20 succeeded 20-34"]),
        (
            "skip",
            {"max_runtime": 300, "revoke_overdue": True},
            ["00 revoked 00-05", "10 revoked 10-15", "20 revoked 20-25"],
        ),
    ],
)
def test_durations_decide_what_overlaps(
    app: Celery, overlap: Any, fields: dict[str, Any], expected: list[str]
) -> None:
    entry = Entry("sync", "proj.sync", "*/10 * * * *", overlap=overlap, app=app, **fields)
    durations = {"sync": timedelta(minutes=14)}
    runs = simulate(entry, "2026-06-01 10:00", "2026-06-01 10:20", durations=durations)
    assert [
        f"{run.local:%M} {run.outcome}" + (f" {run.sent_at:%M}-{run.ends_at:%M}" if run.is_sent else "")
        for run in runs
    ] == expected


def test_a_run_that_no_worker_begins_holds_back_others_for_its_queue_timeout(app: Celery) -> None:
    entry = Entry("sync", "proj.sync", "*/10 * * * *", overlap="skip", queue_timeout=900, app=app)
    runs = simulate(entry, "2026-06-01 10:00", "2026-06-01 10:20", durations=lambda _run: None)
    assert [run.outcome for run in runs] == ["never_started", "skipped", "never_started"]


def test_simulate_invalid_entry_raises_entry_error(app: Celery) -> None:
    app.conf.beat_schedule = {"broken": {"task": "t", "schedule": "61 * * * *"}}
    with pytest.raises(EntryError, match="broken"):
        list(simulate(app, "2026-06-01", "2026-06-02"))


def test_an_entry_without_its_calendar_is_refused_by_name(fake_app: Celery) -> None:
    entry = Entry("report", "proj.report", 60, exclude="holidays", app=fake_app)
    with pytest.raises(EntryError, match="report: policy: exclude: there is no calendar 'holidays'"):
        simulate(entry, "2026-06-01", "2026-06-02")
    Calendar("holidays", ["2026-06-01"], app=fake_app).save()
    assert not any(run.is_sent for run in simulate(entry, "2026-06-01", "2026-06-01 23:59"))


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


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"start": "tomorrow"}, "start: 'tomorrow'"),
        ({"end": "2020-01-01"}, "end: 2020-01-01"),
        ({"durations": {"reprot": 1}}, "durations: .*'reprot'"),
        ({"durations": {"report": float("inf")}}, "durations: report"),
        ({"outages": [("2026-06-02", "2026-06-01")]}, "outages: "),
    ],
)
def test_an_invalid_argument_is_named(app: Celery, arguments: dict[str, Any], named: str) -> None:
    entry = Entry("report", "proj.report", 60, app=app)
    with pytest.raises(ValueError, match=named):
        simulate(entry, **{"start": "2026-06-01", "end": "2026-06-02", **arguments})


BERLIN = ZoneInfo("Europe/Berlin")


def report(app: Celery, **fields: Any) -> Entry:
    return Entry("report", "proj.report", "30 7 * * mon-fri", timezone="Europe/Berlin", app=app, **fields)


def test_times_are_in_the_entrys_zone_in_any_form_and_order(app: Celery) -> None:
    friday = datetime(2026, 3, 27, 6, 30, tzinfo=UTC)
    assert_runs(report(app), ["2026-03-31 07:30", friday, datetime(2026, 3, 30, 7, 30)])
    assert_runs(report(app), [friday.astimezone(BERLIN)], start="2026-03-27", end="2026-03-30 07:29")
    assert_runs(report(app), [], start="2026-03-28", end="2026-03-30")


def test_it_says_what_is_missing_and_why_and_what_is_too_many(app: Celery) -> None:
    holidays = {"holidays": Calendar("holidays", ["2026-03-30"])}
    expected = [f"2026-{day} 07:30" for day in ("03-27", "03-28", "03-30", "04-01")]
    with pytest.raises(AssertionError) as caught:
        assert_runs(report(app, exclude="holidays"), expected, calendars=holidays)
    lines = str(caught.value).splitlines()[1:]
    assert [line[:16] for line in lines] == [
        "  Fri 2026-03-27", "- Sat 2026-03-28", "- Mon 2026-03-30", "+ Tue 2026-03-31", "  Wed 2026-04-01",
    ]  # fmt: skip
    assert "calendar holidays" in lines[2]


@pytest.mark.parametrize(
    ("expected", "span", "named"),
    [
        ([], {"start": "2026-06-01"}, "expected: "),
        (["soon"], {}, "expected: 'soon'"),
        ("2026-06-01 07:30", {}, "expected: must be a list"),
        (["2026-06-01 07:30"] * 2, {}, "expected: .*07:30"),
        (["2026-06-01 07:30"], {"end": "2026-05-01", "start": "2026-04-01"}, "between start and end"),
    ],
)
def test_an_invalid_expectation_is_named(
    app: Celery, expected: Any, span: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        assert_runs(report(app), expected, **span)
