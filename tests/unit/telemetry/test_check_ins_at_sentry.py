"""Check-ins at Sentry: whose they are, and how many are sent at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from redbeat.telemetry.sentry.sentry import PATIENCE_SECONDS, RETRY_SECONDS, Outlet, send_check_in

sentry_sdk = pytest.importorskip("sentry_sdk")

DUE = datetime(2026, 6, 1, 9, tzinfo=timezone.utc)
DSN = "https://key@sentry.example/1"


@contextmanager
def started(dsn: str = DSN, environment: str = "production") -> Iterator[list[dict[str, Any]]]:
    """The check-ins that are sent meanwhile."""
    sent: list[dict[str, Any]] = []

    class Collector(sentry_sdk.transport.Transport):
        def capture_envelope(self, envelope: Any) -> None:
            sent.extend(item.payload.json for item in envelope.items)

    sentry_sdk.init(dsn=dsn, environment=environment, transport=Collector, default_integrations=False)
    try:
        yield sent
    finally:
        sentry_sdk.init(default_integrations=False)


def id_of(name: str = "report", due: datetime = DUE, **client: str) -> str:
    with started(**client) as sent:
        send_check_in(name, due, "ok", {"schedule": {}})
    [check_in] = sent
    return str(check_in["check_in_id"])


def test_the_same_run_has_the_same_id_in_every_process_and_with_any_key_of_the_project() -> None:
    berlin = timezone(timedelta(hours=2))
    assert id_of() == "56356337074c5796a9ada75b17fdf446"
    assert id_of(due=DUE.astimezone(berlin)) == id_of()
    assert id_of(dsn="https://other@sentry.example/1") == id_of()


def test_whatever_tells_runs_apart_tells_their_ids_apart() -> None:
    others = [
        id_of(name="other"),
        id_of(due=DUE + timedelta(microseconds=1)),
        id_of(dsn="https://key@sentry.example/2"),
        id_of(dsn="https://key@other.example/1"),
        id_of(environment="staging"),
    ]
    assert len({id_of(), *others}) == 6


def test_a_monitor_isnt_changed_by_sentrys_code() -> None:
    monitor = {"schedule": {"type": "interval", "value": 1, "unit": "minute"}}
    with started() as sent:
        send_check_in("report", DUE, "ok", monitor, 1.5)
    assert monitor == {"schedule": {"type": "interval", "value": 1, "unit": "minute"}}
    [check_in] = sent
    assert (check_in["monitor_slug"], check_in["status"], check_in["duration"]) == ("report", "ok", 1.5)
    assert check_in["monitor_config"] == monitor


class Slow:
    """A Sentry that takes what waits in so many seconds, by a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.takes_seconds = 1000.0, 0.0
        self.flushed: list[int] = []
        self._sent: list[dict[str, Any]] = []
        monkeypatch.setattr(sentry_sdk, "flush", self._flush)

    def _flush(self, timeout: float) -> None:
        self.flushed.append(len(self._sent))
        self.now += min(self.takes_seconds, timeout)

    def send(self, outlet: Outlet, count: int) -> None:
        with started() as self._sent:
            for _ in range(count):
                outlet.send("report", DUE, "ok", {}, None)


def test_of_a_burst_no_more_wait_than_sentrys_code_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    sentry = Slow(monkeypatch)
    sentry.send(Outlet(lambda: sentry.now), 60)
    assert sentry.flushed == [1, 26, 51]


def test_what_comes_now_and_then_is_waited_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sentry = Slow(monkeypatch)
    outlet = Outlet(lambda: sentry.now)
    for _ in range(3):
        sentry.send(outlet, 1)
        sentry.now += 60
    assert sentry.flushed == [1, 1, 1]


def test_the_last_ones_are_waited_for_at_the_end_if_sentry_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sentry = Slow(monkeypatch)
    outlet = Outlet(lambda: sentry.now)
    sentry.send(outlet, 3)
    for _ in range(2):
        outlet.stop()
    assert sentry.flushed == [1, 3]
    sentry.takes_seconds = 3600.0
    sentry.send(outlet, 30)
    outlet.stop()
    assert sentry.flushed == [1, 3, 25], "it isn't waited for a second time"


def test_a_sentry_that_takes_nothing_is_waited_for_once_a_minute_and_told_of_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sentry = Slow(monkeypatch)
    sentry.takes_seconds = 3600.0
    outlet = Outlet(lambda: sentry.now)
    began = sentry.now
    for _ in range(3):
        sentry.send(outlet, 1000)
        sentry.now += RETRY_SECONDS
    assert sentry.flushed == [1, 1, 1]
    assert sentry.now == began + 3 * (PATIENCE_SECONDS + RETRY_SECONDS)
    sentry.takes_seconds = 0.0
    sentry.send(outlet, 1)
    assert [one.getMessage() for one in caplog.records] == [
        "beat: Sentry may miss check-ins: it hasn't taken what it was sent within 4 s."
    ]
