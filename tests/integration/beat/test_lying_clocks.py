"""Beats and applications whose own clocks are wrong: the server's clock decides."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import pytest
import redis

from tests.support.apps import celery_beat, write_app
from tests.support.clocks import lying_clock
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.schedule import SCHEDULE, messages, score_of, sent_dues, server_now, write_raw
from tests.support.servers import Server

HOUR = 3600.0


def write_lying_app(directory: Path, module: str, server: Server, offsets: Sequence[float]) -> None:
    extra = lying_clock(offsets)
    write_app(directory, module, server.url(0), extra=extra, redbeat_redis_url=server.url(1))


def dues(broker: redis.Redis, name: str) -> list[float]:
    """The due times of an entry's messages, in the order in which they were sent."""
    return [due.timestamp() for due in sent_dues(broker, name)]


@pytest.mark.few_cases(1)
@pytest.mark.parametrize(
    "offsets",
    [[HOUR], [-HOUR], [0, HOUR, -HOUR, 15, -86_400]],
    ids=["an hour ahead", "an hour behind", "stepping"],
)
def test_a_beat_whose_clock_is_wrong_runs_everything_at_the_server_s_time(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path, offsets: list[float]
) -> None:
    write_lying_app(tmp_path, "module", server, offsets)
    start = server_now(client)
    policy = '{"misfire": "all"}'
    for name, schedule, score in (
        ("steady", {"__type__": "interval", "every": 0.5}, start),
        ("later", {"__type__": "interval", "every": HOUR}, start + HOUR / 2),
        ("minutely", {"__type__": "crontab"}, start // 60 * 60 + 60),
    ):
        write_raw(client, name, schedule=schedule, score=score)
        client.hset(f"redbeat:{name}", "policy", policy)
    write_raw(client, "expiring", score=start)
    client.hset("redbeat:expiring", "policy", '{"expires_after": 3000}')
    with celery_beat(tmp_path, "module") as beat:
        seen = 0
        latest = 0.0
        while seen < 10:
            sent = eventually(lambda seen=seen: dues(broker, "steady")[seen:])
            now = server_now(client)
            assert sent[-1] <= now, "sent before its time"
            if seen:  # the first ones waited for the beat to start
                latest = max(latest, now - sent[-1])
            seen += len(sent)
        assert beat.is_running
    sent = dues(broker, "steady")  # some came while beat was told to stop
    assert sent == pytest.approx([start + 0.5 * n for n in range(len(sent))], abs=1e-3)
    [expiring] = [one for one in messages(broker) if one["headers"]["redbeat_entry"] == "expiring"]
    assert datetime.fromisoformat(expiring["headers"]["expires"]).timestamp() == pytest.approx(start + 3000)
    assert int(expiring["properties"]["expiration"]) == pytest.approx(3_000_000, abs=60_000)
    assert dues(broker, "later") == []
    assert dues(broker, "minutely") in ([], [start // 60 * 60 + 60])
    print(f"seen {latest:.3f} s late at the most")
    assert latest < patience(2)
    assert (score_of(client, "later") or 0) == pytest.approx(start + HOUR / 2, abs=1e-3)


def test_a_standby_whose_clock_is_15_s_ahead_takes_over_without_losing_or_doubling_a_run(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    write_lying_app(tmp_path, "behind", server, [0])
    write_lying_app(tmp_path, "ahead", server, [15])
    start = server_now(client)
    write_raw(client, "steady", schedule={"__type__": "interval", "every": 0.5}, score=start)
    client.hset("redbeat:steady", "policy", '{"misfire": "all"}')
    with celery_beat(tmp_path, "behind") as leader:
        leader.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "ahead") as standby:
            eventually(lambda: len(dues(broker, "steady")) > 4)
            leader.kill()
            standby.wait_for("beat: Acquired lock")
            reached = len(dues(broker, "steady"))
            eventually(lambda: len(dues(broker, "steady")) > reached + 4)
    sent = dues(broker, "steady")
    assert sent == pytest.approx([start + 0.5 * n for n in range(len(sent))], abs=1e-3)


@pytest.mark.parametrize("offset", [HOUR, -HOUR])
def test_an_application_whose_clock_is_wrong_saves_entries_that_are_due_by_the_server_s(
    server: Server, client: redis.Redis, tmp_path: Path, offset: float
) -> None:
    write_lying_app(tmp_path, "module", server, [offset])
    source = (
        "from module import app, crontab; from redbeat import RedBeatSchedulerEntry as Entry;"
        "Entry('interval', 'echo', 60, app=app).save();"
        "Entry('crontab', 'echo', crontab(), app=app).save();"
        "Entry.from_key('interval', app=app).reschedule()"
    )
    before = server_now(client)
    subprocess.run([sys.executable, "-c", source], cwd=tmp_path, check=True, timeout=patience())
    after = server_now(client)
    assert before + 60 <= (score_of(client, "interval") or 0) <= after + 60
    assert before < (score_of(client, "crontab") or 0) <= after + 60
    assert sorted(client.zrange(SCHEDULE, 0, -1)) == ["redbeat:crontab", "redbeat:interval"]
