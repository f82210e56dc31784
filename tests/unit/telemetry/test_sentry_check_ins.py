"""Sentry: which monitor an entry can have, which check-ins beat and workers send, and how many at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import signals, track_runs
from redbeat.policy.policy import NO_POLICY, Policy
from redbeat.runs.run import Run
from redbeat.schedules import clocked, cron, rrule
from redbeat.task_ids import task_id_of
from redbeat.telemetry import check_ins, telemetry
from redbeat.telemetry.check_ins import (
    PATIENCE_SECONDS,
    RETRY_SECONDS,
    SENT_AT,
    CheckIns,
    send_check_in,
)
from redbeat.telemetry.monitors import EXCLUDED, headers_of_check_in, monitor_of
from tests.support.ticks import memory_app

sentry_sdk = pytest.importorskip("sentry_sdk")

DUE = datetime(2026, 6, 1, 9, tzinfo=timezone.utc)


# -- monitors


def monitor(kind: Any, defaults: Policy = NO_POLICY, **policy: Any) -> Any:
    app = memory_app(timezone="Asia/Tokyo", redbeat_redis_url="redis://nowhere")
    entry = Entry("report", "echo", kind, app=app, **policy)
    return monitor_of(entry.schedule, entry.policy, defaults)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("30 7 * * mon-fri", "30 7 * * 1,2,3,4,5"),
        ("5/15 * * * *", "5,20,35,50 * * * *"),
        ("0 22-2 * * *", "0 0,1,2,22,23 * * *"),
        ("0 0 * jan,jul 7", "0 0 * 1,7 0"),
        (crontab("0", "0", day_of_month="1-31"), "0 0 * * *"),
    ],
)
def test_monitor_of_a_crontab_is_in_the_form_of_sentry(kind: Any, value: str) -> None:
    expected = {"schedule": {"type": "crontab", "value": value}, "timezone": "Asia/Tokyo"}
    assert monitor(kind) == expected
    assert monitor(kind, timezone="America/New_York")["timezone"] == "America/New_York"


def test_monitor_of_an_interval_is_in_its_longest_unit() -> None:
    for seconds, value, unit in ((60, 1, "minute"), (5400, 90, "minute"), (604800, 7, "day")):
        assert monitor(schedule(seconds))["schedule"] == {"type": "interval", "value": value, "unit": unit}


class OfficeHours(schedule):  # type: ignore[misc]
    def is_due(self, last_run_at: Any) -> Any:
        return super().is_due(last_run_at)


@pytest.mark.parametrize(
    ("kind", "policy", "reason"),
    [
        ("0 9 L * *", {}, "Sentry knows no L, W and # in crons"),
        ("0 9 1-7 * mon", {}, "in Sentry one of them is enough"),
        (schedule(90), {}, "whole minutes only, and this one has 90 s"),
        (rrule("DAILY", dtstart=datetime(2026, 1, 1, tzinfo=timezone.utc)), {}, "no schedules such as rrule"),
        (clocked(datetime(2030, 1, 1, tzinfo=timezone.utc)), {}, "no schedules such as clocked"),
        (OfficeHours(timedelta(minutes=5)), {}, "no schedules such as OfficeHours"),
        (60, {"exclude": "holidays"}, "no calendars (exclude)"),
        (60, {"one_off": True}, "it ends, and Sentry would go on expecting runs (one_off)"),
        (60, {"max_runs": 3}, "(max_runs)"),
        (60, {"end_time": "2030-01-01"}, "(end_time)"),
    ],
)
def test_schedule_that_sentry_cannot_express_has_a_reason_and_no_monitor(
    kind: Any, policy: dict[str, Any], reason: str
) -> None:
    found = monitor(kind, **policy)
    assert isinstance(found, str)
    assert found.endswith(reason)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({}, {}),
        ({"misfire_grace_time": 600}, {"checkin_margin": 10}),
        ({"misfire_grace_time": 601, "jitter": 60}, {"checkin_margin": 12}),
        ({"misfire_grace_time": 5}, {"checkin_margin": 1}),
        ({"misfire": "skip"}, {"checkin_margin": 1}),
        ({"expires_after": 300}, {"checkin_margin": 5}),
        ({"misfire_grace_time": 10**9}, {"checkin_margin": 40_320}),
        ({"max_runtime": 30}, {"max_runtime": 1}),
        ({"max_runtime": 3601}, {"max_runtime": 61}),
        ({"max_runtime": 10**9}, {"max_runtime": 40_320}),
    ],
)
def test_monitor_margins_follow_the_policy_in_minutes_rounded_up(
    policy: dict[str, Any], expected: dict[str, int]
) -> None:
    found = monitor(crontab("0"), **policy)
    assert {name: found[name] for name in ("checkin_margin", "max_runtime") if name in found} == expected
    if not policy:
        assert monitor(60, Policy(misfire_grace_time=120))["checkin_margin"] == 2


def test_check_in_header_is_in_messages_of_monitored_entries_only(app: Celery) -> None:
    every = schedule(60)
    assert headers_of_check_in(app, "report", every, NO_POLICY) == {}
    vars(app)[EXCLUDED] = ("private-.*",)
    [(name, found)] = headers_of_check_in(app, "report", every, NO_POLICY).items()
    assert name == "redbeat_check_in"
    assert found["schedule"] == {"type": "interval", "value": 1, "unit": "minute"}
    assert headers_of_check_in(app, "private-report", every, NO_POLICY) == {}
    assert headers_of_check_in(app, "private", every, NO_POLICY) != {}
    assert headers_of_check_in(app, "report", cron("0 9 L * *"), NO_POLICY) == {}
    vars(app)[EXCLUDED] = None
    assert headers_of_check_in(app, "report", every, NO_POLICY) == {}


# -- check-ins of beat


class Integration(SimpleNamespace):
    """Stands for the SDK's integration with Celery."""

    def __init__(self, *excluded: str) -> None:
        super().__init__(monitor_beat_tasks=True, exclude_beat_tasks=[*excluded] or None)


Told = list[tuple[str, str]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """Collect (minute of the run, or name if it is not report; status) of each check-in."""
    found: Told = []

    def note(name: str, due: datetime, status: str, *_more: Any) -> None:
        found.append((f"{due.minute}" if name == "report" else name, status))

    monkeypatch.setattr(check_ins, "send_check_in", note)
    monkeypatch.setattr(sentry_sdk, "flush", lambda timeout: None)
    return found


@pytest.fixture
def beat(fake_app: Celery, told: Told, monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """Return an app whose beat sends check-ins of the entry report."""
    made = Integration("private-.*")
    monkeypatch.setattr(check_ins, "find_integration", lambda: made)
    Entry("report", "echo", 60, app=fake_app).save()
    part = CheckIns(fake_app)
    part.look()
    yield fake_app
    part.stop()


def run(minute: int = 0, name: str = "report", **fields: Any) -> Run:
    due = DUE + timedelta(minutes=minute)
    task_id = task_id_of(f"redbeat:{name}", due.isoformat(timespec="microseconds"))
    return Run(name, due, **{"task_id": task_id, **fields})


def tell(app: Celery, signal: Any, told_of: Run) -> None:
    """Send a signal as beat's feed does."""
    responses = signal.send(sender=app, entry=told_of.name, run=told_of)
    assert [response for _, response in responses] == [None], "an error counts as told"


def test_every_outcome_but_success_and_ignored_is_an_error(beat: Celery, told: Told) -> None:
    outcomes = ("succeeded", "ignored", "failed", "lost", "never_started", "revoked", "expired", "rejected")
    for outcome in outcomes:
        Entry(outcome, "echo", 60, app=beat).save()
        tell(beat, signals.run_sent, run(name=outcome))
        tell(beat, signals.run_ended, run(name=outcome, outcome=outcome))
    ends = dict.fromkeys(outcomes, "error") | {"succeeded": "ok", "ignored": "ok"}
    assert told == [pair for name in outcomes for pair in ((name, "in_progress"), (name, ends[name]))]


def test_attempts_of_a_run_have_one_check_in_unless_it_begins_late(
    beat: Celery, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell(beat, signals.run_sent, run())
    for attempt in range(1, 6):
        tell(beat, signals.run_started, run(state="started", attempt=attempt))
    tell(beat, signals.run_ended, run(outcome="succeeded"))
    assert told == [("0", "in_progress"), ("0", "ok")]
    monkeypatch.setattr(check_ins, "MINUTE", 0.0)
    tell(beat, signals.run_sent, run(5))
    tell(beat, signals.run_started, run(5, state="started"))
    assert told[2:] == [("5", "in_progress")] * 2


def test_triggered_run_has_no_check_in_and_an_own_task_id_has_one(beat: Celery, told: Told) -> None:
    tell(beat, signals.run_started, run(task_id="mine", state="started"))
    tell(beat, signals.run_ended, run(task_id="mine", outcome="failed"))
    assert told == []
    Entry("own", "echo", 60, options={"task_id": "mine"}, app=beat).save()
    tell(beat, signals.run_sent, run(name="own", task_id="mine"))
    assert told == [("own", "in_progress")]


def test_check_in_of_a_deleted_entry_is_ended(beat: Celery, told: Told) -> None:
    tell(beat, signals.run_sent, run())
    Entry.get("report", beat).delete()
    tell(beat, signals.run_ended, run(outcome="succeeded"))
    tell(beat, signals.run_ended, run(name="never was", outcome="succeeded"))
    assert told == [("0", "in_progress"), ("0", "ok")]


def test_missing_monitor_is_logged_once_for_each_entry_that_may_have_one(
    beat: Celery, told: Told, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "KEPT_SECONDS", 0.0)
    for name in ("odd-1", "odd-2", "private-one"):
        Entry(name, "echo", 90, app=beat).save()
        for minute in range(2):
            tell(beat, signals.run_sent, run(minute, name=name))
    assert [record.args[0] for record in caplog.records] == ["odd-1", "odd-2"]  # type: ignore[index]
    assert told == []


def test_monitors_of_the_sdk_are_off_while_beat_has_them(
    fake_app: Celery, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Integration("private-.*"), Integration()
    present: list[Any] = [first]
    monkeypatch.setattr(check_ins, "find_integration", lambda: present[0])
    part = CheckIns(fake_app)
    part.look()
    assert first.exclude_beat_tasks == [r"(?s).*"]
    part.look()
    assert vars(fake_app)[EXCLUDED] == ("private-.*",)
    present[0] = second  # Sentry was started once more
    part.look()
    assert (first.exclude_beat_tasks, second.exclude_beat_tasks) == (["private-.*"], [r"(?s).*"])
    present[0] = None
    part.look()
    assert second.exclude_beat_tasks is None
    assert vars(fake_app)[EXCLUDED] is None
    assert not signals.is_wanted("run_sent", "run_started", "run_ended")
    present[0] = first
    part.look()
    assert first.exclude_beat_tasks == [r"(?s).*"]
    fake_app.redbeat_conf.sentry = False
    part.look()
    assert first.exclude_beat_tasks == ["private-.*"]
    assert not signals.is_wanted("run_sent", "run_started", "run_ended")


# -- ids and bursts


DSN = "https://key@sentry.example/1"


@contextmanager
def started(dsn: str = DSN, environment: str = "production") -> Iterator[list[dict[str, Any]]]:
    """Start the SDK; yield the check-ins that are sent."""
    sent: list[dict[str, Any]] = []

    class Collector(sentry_sdk.transport.Transport):
        def capture_envelope(self, envelope: Any) -> None:
            sent.extend(item.payload.json for item in envelope.items)

    sentry_sdk.init(dsn=dsn, environment=environment, transport=Collector, default_integrations=False)
    try:
        yield sent
    finally:
        sentry_sdk.init(default_integrations=False)


def test_check_in_id_is_that_of_the_run_project_and_environment() -> None:
    def id_of(name: str = "report", due: datetime = DUE, **client: str) -> str:
        with started(**client) as sent:
            send_check_in(name, due, "ok", {"schedule": {}})
        return str(sent[0]["check_in_id"])

    assert id_of() == "56356337074c5796a9ada75b17fdf446"
    assert id_of(due=DUE.astimezone(timezone(timedelta(hours=2)))) == id_of()
    assert id_of(dsn="https://other@sentry.example/1") == id_of()
    others = [
        id_of(name="other"),
        id_of(due=DUE + timedelta(microseconds=1)),
        id_of(dsn="https://key@sentry.example/2"),
        id_of(dsn="https://key@other.example/1"),
        id_of(environment="staging"),
    ]
    assert len({id_of(), *others}) == 6


def test_bursts_are_flushed_in_pieces_and_a_slow_sentry_is_not_waited_for_again_in_a_minute(
    beat: Celery, told: Told, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, takes_seconds, flushed = 1000.0, 0.0, list[int]()

    def flush(timeout: float) -> None:
        nonlocal now
        flushed.append(len(told))
        now += min(takes_seconds, timeout)

    def send(count: int) -> None:
        for _ in range(count):
            tell(beat, signals.run_ended, run(outcome="succeeded"))

    monkeypatch.setattr(check_ins.time, "monotonic", lambda: now)
    monkeypatch.setattr(sentry_sdk, "flush", flush)
    send(60)
    assert flushed == [25, 50]
    takes_seconds = 3600.0
    for _ in range(3):
        send(100)
        now += RETRY_SECONDS
    assert flushed[2:] == [75, 161, 261]
    assert now == 1000.0 + 3 * (PATIENCE_SECONDS + RETRY_SECONDS)
    assert len(caplog.records) == 3


# -- check-ins of workers without tracking


MONITOR = {"schedule": {"type": "interval", "value": 1, "unit": "hour"}}


RUN = {
    "redbeat_entry": "report",
    "redbeat_due": "2026-06-01T09:00:00.500000+00:00",
    "redbeat_check_in": MONITOR,
}


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the check-ins of a worker."""
    found: list[Any] = []
    monkeypatch.setattr(check_ins, "send_check_in", lambda *args: found.append(args))
    monkeypatch.setattr(check_ins, "find_integration", object)
    return found


def task(attributes: dict[str, Any], headers: Any = None) -> Any:
    return SimpleNamespace(app=memory_app(), request=SimpleNamespace(**attributes, headers=headers))


def end(of_task: Any) -> None:
    for status in ("ok", "error"):
        check_ins._end(of_task, status)  # type: ignore[arg-type]  # noqa: SLF001


def test_worker_sends_the_end_of_a_run_with_its_monitor(ended: list[Any]) -> None:
    end(task(RUN))
    assert [(name, due.isoformat(), *more) for name, due, *more in ended] == [
        ("report", "2026-06-01T09:00:00.500000+00:00", status, MONITOR) for status in ("ok", "error")
    ]


def test_worker_sends_nothing_for_other_or_unreadable_messages(ended: list[Any]) -> None:
    for more in ({"redbeat_check_in": None}, {"redbeat_check_in": "yes"}, {"redbeat_due": "?"}):
        end(task({**RUN, **more}))
    end(task({}))
    assert ended == []


def test_worker_sends_nothing_when_it_tracks_runs_or_has_no_monitors(
    ended: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked = task(RUN)
    track_runs(tracked.app)
    end(tracked)
    monkeypatch.setattr(check_ins, "find_integration", lambda: None)
    end(task(RUN))
    assert ended == []


def test_worker_completes_headers_for_the_next_attempt_and_the_time_of_sending() -> None:
    retried, other, compiled = task(RUN, {SENT_AT: 5.0}), task({}, {"mine": 1}), task(RUN, dict(RUN))
    for one in (retried, other, compiled):
        check_ins._complete_headers(task=one)  # noqa: SLF001
    assert retried.request.headers == {**RUN, SENT_AT: 5.0}
    assert other.request.headers == {"mine": 1}
    assert compiled.request.headers == {**RUN, SENT_AT: 1780304400.5}
