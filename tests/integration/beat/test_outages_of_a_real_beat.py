"""A beat is killed, another takes over: of every time in between it is known what became of it, and why."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.diagnostics.facts import read_facts
from redbeat.diagnostics.why import explain
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.schedule import server_now
from tests.support.servers import Server

#: by name: policy, and what is said of the runs that aren't sent
POLICIES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "latest": ({}, {"merged: stands for"}),
    "earliest": ({"misfire": "earliest"}, {"merged: stands for"}),
    "all": ({"misfire": "all"}, set()),
    "three": ({"misfire": "all", "misfire_limit": 3}, {"skipped: older than the limit of 3"}),
    "skip": (
        {"misfire": "skip", "misfire_grace_time": 2},
        {"skipped: older than misfire_grace_time of 2 s", "skipped: only the latest run is sent"},
    ),
    "grace": (
        {"misfire_grace_time": 2},
        {"skipped: older than misfire_grace_time of 2 s", "merged: stands for"},
    ),
    "expires": ({"misfire": "all", "expires_after": 3}, {"skipped: its message would have expired"}),
}
HISTORY = 1000


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("schedule", [0.5, "rule"])
def test_of_every_time_of_an_outage_it_is_known_what_became_of_it(
    server: Server, make_app: MakeApp, client: redis.Redis, tmp_path: Path, schedule: Any
) -> None:
    from redbeat.schedules import rrule

    settings = {"redbeat_history": HISTORY, "redbeat_takeover_after": 5}
    app = make_app(**settings)
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), **settings)
    start = datetime.fromtimestamp(int(server_now(client)), timezone.utc)
    when = rrule("SECONDLY", dtstart=start) if schedule == "rule" else schedule
    for name, (policy, _) in POLICIES.items():
        Entry(name, "echo", when, app=app, **policy).save()

    def has_run(since: datetime, times: int) -> bool:
        return all(
            sum(run.outcome == "sent" and run.due > since for run in Entry.get(name, app).history(HISTORY))
            >= times
            for name in POLICIES
        )

    with celery_beat(tmp_path, "module") as first:
        first.wait_for("beat: Acquired lock")
        eventually(lambda: has_run(start, 2), timeout=60)
        first.kill()
    killed_at = datetime.fromtimestamp(server_now(client), timezone.utc)
    with celery_beat(tmp_path, "module") as second:
        second.wait_for("beat: Acquired lock", timeout=60)
        back_at = datetime.fromtimestamp(server_now(client), timezone.utc)
        eventually(lambda: has_run(back_at, 3), timeout=60)

    for name, (_, words) in POLICIES.items():
        history = Entry.get(name, app).history(HISTORY)
        sent = sorted(run.due for run in history if run.outcome == "sent")
        every = timedelta(seconds=1 if schedule == "rule" else 0.5)
        said = set()
        time = sent[0]
        while time <= sent[-1]:
            about = [run for run in history if run.covers(time, timedelta(milliseconds=1))]
            assert len(about) == 1, f"{name}: {time}: {about}"
            answer = explain(read_facts(app, name), time) if killed_at <= time <= back_at else None
            if about[0].outcome != "sent":
                said.add(f"{about[0].outcome}: {about[0].why}")
            if answer is not None:
                assert answer.verdict == about[0].outcome
            time += every
        spans = [run for run in history if run.outcome != "sent"]
        assert all(run.count == ((run.last or run.due) - run.due) // every + 1 for run in spans), name
        for one in said:
            assert any(
                one.startswith(word)
                or (word == "merged: stands for" and one.startswith("merged: the run of"))
                for word in words
            ), (name, one)
        if words:
            assert said, name
        assert len(spans) <= 4 * sum(run.late_seconds > 0.4 for run in history), "one for each reason"
