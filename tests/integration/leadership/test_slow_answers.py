"""A Redis that answers late, and a beat that stood still meanwhile, can be seen in the log."""

from __future__ import annotations

import pytest
import redis

from redbeat.leadership import elector
from tests.integration.conftest import MakeScheduler


def events_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The events about Redis."""
    told = [record.__dict__.get("redbeat") or {"event": ""} for record in caplog.records]
    return [one["event"] for one in told if one["event"].startswith("redbeat.redis.")]


def test_a_late_answer_is_told_of_once(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = make_scheduler()
    scheduler.tick()
    monkeypatch.setattr(elector, "SLOW_SECONDS", 0.3)
    client.client_pause(400)
    for _ in range(3):
        scheduler.tick()
    assert events_in(caplog) == ["redbeat.redis.slow"]
    [record] = caplog.records
    assert "Redis has answered only after 0." in record.getMessage()
    assert 0.3 <= record.__dict__["redbeat"]["seconds"] < 60


def test_an_outage_that_was_told_of_is_no_late_answer(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    options = {"retry_period": -1, "socket_timeout": 0.1}
    scheduler = make_scheduler(redbeat_redis_options=options)
    scheduler.tick()
    caplog.clear()
    monkeypatch.setattr(elector, "SLOW_SECONDS", 0.3)
    client.client_pause(500)
    for _ in range(3):
        scheduler.tick()
    assert events_in(caplog) == ["redbeat.redis.away", "redbeat.redis.back"]
