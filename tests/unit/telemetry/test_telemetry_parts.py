"""The parts of a running beat's telemetry: one that fails keeps nothing else from working."""

from __future__ import annotations

import subprocess
import sys

import pytest

from redbeat.telemetry.telemetry import Telemetry


class Counting:
    """A part that counts its calls."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def look(self) -> None:
        self.calls.append("look")

    def stop(self) -> None:
        self.calls.append("stop")


class Failing:
    """A part that never works."""

    def look(self) -> None:
        raise OSError("no such place")

    def stop(self) -> None:
        raise OSError("no such place")


def test_a_part_that_fails_keeps_no_other_from_working_and_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counting = Counting()
    telemetry = Telemetry([Failing(), counting])
    for _ in range(10):
        telemetry.look()
    telemetry.stop()
    assert counting.calls == ["look"] * 10 + ["stop"]
    [told] = [record for record in caplog.records if "Failing failed, beat goes on" in record.getMessage()]
    assert told.exc_info is not None


#: a process in which beat's scheduler is made. (redis-py imports OpenTelemetry by itself)
PROCESS = """
import sys
if {are_missing}:
    sys.modules.update(dict.fromkeys(("prometheus_client", "opentelemetry", "sentry_sdk")))
from celery import Celery
from redbeat import RedBeatScheduler
app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.update(redbeat_redis_url="redis://nowhere", redbeat_http={http!r})
RedBeatScheduler(app, lazy=True)
print(*(name for name in ("prometheus_client", "sentry_sdk") if sys.modules.get(name)))
"""


@pytest.mark.parametrize(("are_missing", "http"), [(True, "127.0.0.1:0"), (False, None)])
def test_optional_packages_may_be_missing_and_are_imported_by_no_beat_that_needs_none(
    are_missing: bool, http: str | None
) -> None:
    command = [sys.executable, "-c", PROCESS.format(are_missing=are_missing, http=http)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "\n", done.stderr
