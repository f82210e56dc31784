"""What the doctor says of runs: too slow, failing again and again, overdue, and tracked by nobody."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import track_runs
from redbeat.schedules import cron
from tests.conftest import MakeApp
from tests.support.doctoring import Findings, only
from tests.support.progress import LEASE_MS, Progress
from tests.support.schedule import server_now

Find = Callable[..., Findings]


@pytest.fixture
def progress(app: Celery, client: redis.Redis) -> Progress:
    return Progress(app, client)


@pytest.fixture
def add(app: Celery, progress: Progress) -> Callable[..., Entry]:
    """Save an entry of 5 minutes whose runs have ended so: outcome and seconds."""

    def make(name: str, *ends: tuple[str, float], schedule: Any = 300, **fields: Any) -> Entry:
        entry = Entry(name, "echo", schedule, app=app, **fields).save()
        for number, (outcome, seconds) in enumerate(ends):
            delivery = progress.started(name, f"{name}-{number}", 1000.0 + number)
            progress.end(delivery, outcome, run_seconds=seconds, error="ValueError: no numbers")
        return entry

    return make


@pytest.fixture
def worker(progress: Progress) -> Callable[..., None]:
    """A worker says that it lives."""

    def live(name: str = "celery@test") -> None:
        progress.runs.renew([], LEASE_MS, name, '"pool":"prefork"')

    return live


SLOW = [("succeeded", 500.0)] * 2 + [("failed", 450.0), ("succeeded", 2.0)]


@pytest.mark.parametrize(
    ("overlap", "advice"),
    [
        ("allow", "a longer interval or an overlap"),
        ("skip", "runs are left out as it is"),
        ("replace", "no run of it comes to its end"),
    ],
)
def test_runs_that_take_longer_than_the_interval_are_warned_of(
    findings: Find, add: Callable[..., Entry], worker: Callable[..., None], overlap: str, advice: str
) -> None:
    worker()
    add("slow", *SLOW, overlap=overlap)
    found = findings(redbeat_lock_key=None)
    found.pop("untracked-app")
    finding = only(found, "slow-runs", "warning")
    assert finding["about"] == "slow"
    assert finding["problem"] == "Its runs take 8 min at the median, and the next one is due after 5 min."
    assert advice in finding["advice"]


def test_a_median_and_an_interval_that_differ_are_said_so_that_they_do(
    findings: Find, add: Callable[..., Entry]
) -> None:
    add("slow", *[("succeeded", 120.0)] * 3, schedule=90)
    problem = only(findings(), "slow-runs", "warning")["problem"]
    assert problem == "Its runs take 2 min at the median, and the next one is due after 1 min 30 s."


@pytest.mark.parametrize(
    ("schedule", "ends", "fields"),
    [
        (900, SLOW, {}),
        (300, SLOW[:2], {}),
        (300, SLOW, {"enabled": False}),
        (cron("*/10 * * * *"), SLOW, {}),
        (300, [("succeeded", 299.0)] * 5, {}),
    ],
    ids=["a long interval", "too few runs", "disabled", "a rare cron", "just quick enough"],
)
def test_what_is_quick_enough_is_not_warned_of(
    findings: Find, add: Callable[..., Entry], schedule: Any, ends: Any, fields: dict[str, Any]
) -> None:
    add("quick", *ends, schedule=schedule, **fields)
    assert findings() == {}


def test_the_interval_of_a_cron_is_the_shortest_between_its_next_times(
    findings: Find, add: Callable[..., Entry]
) -> None:
    now = datetime.now(timezone.utc) + timedelta(hours=2)
    add("uneven", *SLOW, schedule=cron(f"0,5 {now.hour} * * *"))
    assert "due after 5 min" in only(findings(), "slow-runs", "warning")["problem"]


def test_entries_that_fail_again_and_again_are_warned_of_with_the_error(
    findings: Find, add: Callable[..., Entry]
) -> None:
    add("bad", *[("failed", 1.0)] * 4)
    add("better", *[("failed", 1.0)] * 4, ("succeeded", 1.0))
    add("unlucky", *[("failed", 1.0)] * 2)
    finding = only(findings(), "failing-runs", "warning")
    assert finding["about"] == "bad"
    assert finding["problem"] == "Its last 4 runs have failed: ValueError: no numbers."


def test_policies_that_need_tracking_are_an_error_where_no_live_worker_tracks(
    findings: Find, add: Callable[..., Entry], worker: Callable[..., None], client: redis.Redis
) -> None:
    add("plain")
    add("rests", overlap="skip", enabled=False)
    assert findings() == {}
    for number in range(7):
        add(f"needs-{number}", overlap="skip")
    finding = only(findings(), "untracked", "error")
    assert "needs-0, needs-1" in finding["problem"]
    assert "and 2 more entries" in finding["problem"]
    assert finding["problem"].startswith("No live worker tracks runs, or no worker runs.")
    assert "redbeat.track_runs(app)" in finding["advice"]
    worker("celery@one")
    assert "untracked" not in findings()
    row = client.hget("redbeat::workers", "celery@one") or ""
    at = f'"at":{server_now(client) - 61:.6f}'
    client.hset("redbeat::workers", "celery@one", f'{{{at},"pool":"prefork"}}')
    assert "pool" in row
    assert "untracked" in findings(), "it has said nothing for more than a minute"


def test_workers_that_track_beside_an_app_that_does_not_are_told(
    findings: Find, make_app: MakeApp, worker: Callable[..., None]
) -> None:
    assert findings() == {}
    worker()
    assert "1 worker tracks runs" in only(findings(), "untracked-app", "note")["problem"]
    app = make_app()
    track_runs(app)
    assert findings(app=app) == {}


def test_runs_that_are_overdue_are_warned_of(
    findings: Find, add: Callable[..., Entry], progress: Progress, worker: Callable[..., None]
) -> None:
    add("late", max_runtime=1)
    worker()
    progress.started("late", "late-1", max=1)
    progress.settle(at=server_now(progress.client) + 10)
    found = findings()
    found.pop("untracked-app")
    finding = only(found, "overdue-run", "warning")
    assert finding["about"] == "late"
    assert finding["problem"].startswith("A run of it, late-1, is at work on celery@test since 20")


def test_an_entry_none_of_whose_last_runs_was_begun_is_warned_of(
    findings: Find, add: Callable[..., Entry]
) -> None:
    never = ("never_started", 0.0)
    add("stuck", ("succeeded", 1.0), *[never] * 5)
    add("begun", *[never] * 5, ("succeeded", 1.0))
    add("young", *[never] * 4)
    add("rests", *[never] * 5, enabled=False)
    finding = only(findings(), "never-started", "warning")
    assert finding["about"] == "stuck"
    assert finding["problem"] == "No worker has begun its last 5 runs within queue_timeout."


def test_an_entry_whose_last_runs_were_all_rejected_is_warned_of(
    findings: Find, add: Callable[..., Entry], progress: Progress
) -> None:
    add("nope", ("succeeded", 1.0))
    for number in range(3):
        delivery = progress.started("nope", f"nope-{number + 1}", 2000.0 + number)
        progress.end(delivery, "rejected", error="NotRegistered: proj.nope")
    add("better", *[("rejected", 1.0)] * 4, ("succeeded", 1.0))
    add("young", *[("rejected", 1.0)] * 2)
    add("rests", *[("rejected", 1.0)] * 4, enabled=False)
    finding = only(findings(), "rejected-runs", "warning")
    assert finding["about"] == "nope"
    assert finding["problem"] == "Its last 3 runs were rejected: no such task on the worker: proj.nope."


def test_a_retry_that_nobody_begins_and_that_holds_its_entry_is_warned_of(
    findings: Find, add: Callable[..., Entry], progress: Progress, worker: Callable[..., None]
) -> None:
    worker()
    for name, seconds in (("stuck", -400), ("early", 400)):
        add(name, overlap="skip")
        progress.end(progress.started(name, f"{name}-1", overlap="skip"), "retrying", retry_seconds=seconds)
    found = findings()
    found.pop("untracked-app")
    finding = only(found, "waiting-run", "warning")
    assert finding["about"] == "stuck"
    assert "stuck-1, waits for attempt 2 and no worker has begun that since" in finding["problem"]
    assert "celery redbeat runs stuck --give-up" in finding["advice"]


def test_a_run_that_waits_long_and_holds_its_entry_is_warned_of(
    findings: Find, add: Callable[..., Entry], progress: Progress, worker: Callable[..., None]
) -> None:
    worker()
    long_ago = server_now(progress.client) - 700
    for name, fields in {
        "holds": {"overlap": "skip", "sent": f"{long_ago:.6f}"},
        "allows": {"sent": f"{long_ago:.6f}"},
        "young": {"overlap": "skip"},
    }.items():
        add(name, overlap=fields.get("overlap", "allow"))
        progress.send(name, f"{name}-1", **fields)
    found = findings()
    found.pop("untracked-app")
    finding = only(found, "waiting-run", "warning")
    assert finding["about"] == "holds"
    since = datetime.fromtimestamp(long_ago, timezone.utc)
    told = f"A run of it, holds-1, was sent and no worker has begun it since {since:%Y-%m-%d %H:%M:%S}"
    assert finding["problem"].startswith(told)
    assert (
        " UTC; with overlap skip it holds back the next one: it holds the entry until " in finding["problem"]
    )
    assert "celery redbeat runs holds --give-up" in finding["advice"]
    assert "visibility timeout" in finding["advice"]
