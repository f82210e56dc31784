"""The parts of a running beat's telemetry: one that fails keeps nothing else from working."""

from __future__ import annotations

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
    [told] = [record for record in caplog.records if "Failing doesn't work now" in record.getMessage()]
    assert told.exc_info is not None
