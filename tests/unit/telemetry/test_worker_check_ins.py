"""What a worker tells Sentry of the runs that it has ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from redbeat import track_runs
from redbeat.telemetry.sentry import worker_check_ins
from redbeat.telemetry.sentry.worker_check_ins import SENT_AT, listen

MONITOR = {"schedule": {"type": "interval", "value": 1, "unit": "hour"}}
RUN = {
    "redbeat_entry": "report",
    "redbeat_due": "2026-06-01T09:00:00.500000+00:00",
    "redbeat_check_in": MONITOR,
}


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(worker_check_ins, "send_check_in", lambda *args: found.append(args))
    monkeypatch.setattr(worker_check_ins, "find_integration", object)
    return found


def task(attributes: dict[str, Any], headers: Any = None) -> Any:
    app = Celery("shop", broker="memory://", set_as_current=False)
    return SimpleNamespace(app=app, request=SimpleNamespace(**attributes, headers=headers))


def end(of_task: Any) -> None:
    worker_check_ins._note_success(sender=of_task)  # noqa: SLF001
    worker_check_ins._note_failure(sender=of_task)  # noqa: SLF001


def test_the_end_of_a_run_is_told_with_its_monitor(told: list[Any]) -> None:
    end(task(RUN))
    assert [(name, due.isoformat(), *more) for name, due, *more in told] == [
        ("report", "2026-06-01T09:00:00.500000+00:00", status, MONITOR) for status in ("ok", "error")
    ]


@pytest.mark.parametrize(
    "headers",
    [{}, {**RUN, "redbeat_check_in": None}, {**RUN, "redbeat_check_in": "yes"}, {**RUN, "redbeat_due": "?"}],
)
def test_other_tasks_and_what_cant_be_read_are_left_alone(headers: dict[str, Any], told: list[Any]) -> None:
    end(task(headers))
    assert told == []


def test_a_worker_that_tracks_runs_leaves_it_to_beat(told: list[Any]) -> None:
    tracked = task(RUN)
    track_runs(tracked.app)
    end(tracked)
    assert told == []


def test_without_sentrys_monitors_nothing_is_told(told: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_check_ins, "find_integration", lambda: None)
    end(task(RUN))
    assert told == []


def test_the_next_attempt_is_known_as_well_where_sentry_has_put_headers_of_its_own() -> None:
    retried, other = task(RUN, headers={SENT_AT: 5.0}), task({}, headers={"mine": 1})
    for one in (retried, other):
        worker_check_ins._complete_headers(task=one)  # noqa: SLF001
    assert retried.request.headers == {**RUN, SENT_AT: 5.0}
    assert other.request.headers == {"mine": 1}


def test_a_message_that_was_compiled_was_sent_when_it_was_due() -> None:
    compiled = task(RUN, headers=dict(RUN))
    worker_check_ins._complete_headers(task=compiled)  # noqa: SLF001
    assert compiled.request.headers == {**RUN, SENT_AT: 1780304400.5}


def test_a_process_listens_once() -> None:
    from celery.signals import task_failure, task_prerun, task_success

    signals, uid = (task_prerun, task_success, task_failure), "redbeat.telemetry.sentry.worker_check_ins"
    for signal in signals:
        signal.disconnect(dispatch_uid=uid)
    before = [len(signal.receivers) for signal in signals]
    try:
        listen()
        listen()
        assert [len(signal.receivers) for signal in signals] == [count + 1 for count in before]
    finally:
        for signal in signals:
            signal.disconnect(dispatch_uid=uid)
