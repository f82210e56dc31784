"""Sentry: monitors and check-ins of real beats and workers with its real SDK."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.schedules import rrule
from tests.support.apps import celery_beat, celery_worker, runs, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import messages
from tests.support.servers import Server

sentrys_beat = pytest.importorskip("sentry_sdk.integrations.celery.beat")


#: an application of celery-redbeat 2.x with Sentry's monitors; what it sends to Sentry goes to a file
MODULE = """
import json
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration


class ToFile(sentry_sdk.transport.Transport):
    def capture_envelope(self, envelope):
        with open("sent", "a") as file:
            for item in envelope.items:
                file.write(json.dumps([item.type, item.payload.json], default=str) + "\\n")


crons = CeleryIntegration(monitor_beat_tasks=True, exclude_beat_tasks=["private-.*"])
dsn = "http://key@127.0.0.1:1/42"
sentry_sdk.init(dsn=dsn, traces_sample_rate=1.0, integrations=[crons], transport=ToFile)


@app.task(name="retry", bind=True, default_retry_delay=0, max_retries=5)
def retry(self):
    if not self.request.retries:
        raise self.retry(exc=ValueError("not yet"))
    note(self)
"""
TOLD = "redbeat::events-read"
#: the entries of the first test that have a monitor
MONITORED = {"zoned", "in time", "retried", "bad"}


class Sentry:
    """Check-ins and transactions that the processes of a directory have sent."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "sent"

    def received(self, kind: str) -> list[dict[str, Any]]:
        lines = self._file.read_text().split("\n")[:-1] if self._file.exists() else []
        return [payload for one, payload in map(json.loads, lines) if one == kind]

    def check_ins(self, name: str = "") -> list[dict[str, Any]]:
        return [one for one in self.received("check_in") if name in ("", one["monitor_slug"])]

    def statuses(self, name: str) -> list[str]:
        return [one["status"] for one in self.check_ins(name)]

    def ids(self, name: str) -> set[str]:
        return {one["check_in_id"] for one in self.check_ins(name)}

    def latencies(self, task_id: str) -> list[float | None]:
        """Return how long a message has waited by Sentry's code in workers, ms."""
        spans = [span.get("data", {}) for one in self.received("transaction") for span in one["spans"]]
        name = "messaging.message.receive.latency"
        return [data.get(name) for data in spans if data.get("messaging.message.id") == task_id]

    def monitor(self, name: str) -> dict[str, Any]:
        """Return the monitor in the first check-in of an entry."""
        config: dict[str, Any] = self.check_ins(name)[0]["monitor_config"]
        return config


@pytest.fixture
def sentry(tmp_path: Path) -> Sentry:
    return Sentry(tmp_path)


def save(app: Celery, name: str, task: str, kind: Any = 3600, **fields: Any) -> None:
    """Save an entry that is due now."""
    last_run_at = datetime.now(timezone.utc) - timedelta(days=60)
    Entry(name, task, kind, app=app, **{"last_run_at": last_run_at, **fields}).save()


@contextmanager
def beat_of(
    server: Server, directory: Path, extra: str = "", broker: Server | None = None
) -> Iterator[Process]:
    source = MODULE + extra
    write_app(directory, "module", (broker or server).url(0), redbeat_redis_url=server.url(1), extra=source)
    with celery_beat(directory, "module") as beat:
        beat.wait_for("Sentry's monitors are RedBeat's own")
        with server.client(db=1) as client:
            eventually(lambda: client.exists(TOLD), message="nothing is told before")
        yield beat
        assert not has_traceback(beat.output()), beat.output()


@pytest.mark.parametrize("pool", ["solo", pytest.param("prefork", marks=pytest.mark.slow)])
def test_installation_of_2x_has_a_monitor_for_each_entry_and_one_check_in_a_run(
    server: Server, sentry: Sentry, app: Celery, broker: redis.Redis, tmp_path: Path, pool: str
) -> None:
    with beat_of(server, tmp_path) as beat:
        save(app, "zoned", "echo", "30 7 * * mon-fri", timezone="Europe/Berlin", jitter=90)
        soon = datetime.now(timezone.utc) - timedelta(seconds=7198.5)
        save(app, "in time", "echo", 7200, misfire_grace_time=600, last_run_at=soon)
        save(app, "monthly", "echo", "0 9 L * *")
        save(app, "weekly", "echo", rrule("WEEKLY", dtstart=datetime(2026, 1, 1, tzinfo=timezone.utc)))
        save(app, "odd", "echo", schedule(90))
        save(app, "private-one", "echo")
        save(app, "retried", "retry")
        save(app, "bad", "fail")
        beat.wait_for("beat: Messages: compiled")
        eventually(lambda: broker.llen("celery") == 8)
        sent = {one["headers"]["redbeat_entry"]: [*one["headers"]] for one in messages(broker)}
        assert not any(name.startswith("sentry-monitor-slug") for names in sent.values() for name in names)
        assert not any(name.startswith("sentry") for name in sent["in time"]), "it is compiled"
        assert {name for name in sent if "redbeat_check_in" in sent[name]} == MONITORED
        with celery_worker(tmp_path, "module", "-P", pool):
            eventually(lambda: len(sentry.check_ins()) == 8, message=str(sentry.check_ins()))
            eventually(lambda: len(runs(broker)) == 8)
            eventually(
                lambda: [one["transaction"] for one in sentry.received("transaction")].count("retry") == 2
            )
    [compiled] = [run.id for run in runs(broker) if run.headers["redbeat_entry"] == "in time"]
    waits = sentry.latencies(compiled)
    assert all(wait is not None and 0 < wait < 600_000 for wait in waits), waits
    assert waits or not hasattr(sentrys_beat, "_patch_redbeat_apply_async"), "an old version measures nothing"
    assert sentry.monitor("zoned") == {
        "schedule": {"type": "crontab", "value": "30 7 * * 1,2,3,4,5"},
        "timezone": "Europe/Berlin",
        "checkin_margin": 3,
    }
    assert sentry.monitor("in time") == {
        "schedule": {"type": "interval", "value": 2, "unit": "hour"},
        "timezone": "UTC",
        "checkin_margin": 10,
    }
    for name in MONITORED:
        assert len(sentry.ids(name)) == 1, name
        assert {*sentry.statuses(name)} == {"in_progress", "error" if name == "bad" else "ok"}
    assert {one["monitor_slug"] for one in sentry.check_ins()} == MONITORED
    reasons = ("no L, W and # in crons", "no schedules such as rrule", "and this one has 90 s")
    for name, reason in zip(("monthly", "weekly", "odd"), reasons, strict=True):
        said = [line for line in beat.output().splitlines() if f"{name} has no monitor at Sentry" in line]
        assert len(said) == 1
        assert reason in said[0]
    assert "private-one has no monitor" not in beat.output()


#: tracks runs; once it is armed, beat is killed between sending a run and recording it
TRACKED = """
import os
import redbeat
from redbeat.scheduler import deliver

app.conf.redbeat_run_lease = 1
app.conf.redbeat_takeover_after = 5
redbeat.track_runs(app)


@app.task(name="until", bind=True)
def until(self, key):
    note(self, key)
    while not runs_client().exists(key):
        time.sleep(0.05)


def record(*args, original=deliver.commit_runs, **options):
    if runs_client().getdel("armed"):
        os.kill(os.getpid(), 9)
    return original(*args, **options)


deliver.commit_runs = record
"""


@pytest.mark.slow
def test_tracked_run_has_one_check_in_through_retries_and_kills(
    server: Server, other: Server, sentry: Sentry, app: Celery, tmp_path: Path
) -> None:
    def is_told(name: str, *statuses: str) -> None:
        def is_so() -> bool:
            assert sentry.statuses(name) == [*statuses], name
            return True

        eventually(is_so)

    with (
        beat_of(server, tmp_path, TRACKED, broker=other) as beat,
        celery_worker(tmp_path, "module", concurrency=4) as worker,
        other.client(db=0) as broker,
    ):
        save(app, "long", "until", args=["go"], max_runtime=90)
        save(app, "doomed", "until", args=["never"], max_runtime=90)
        save(app, "bad", "fail", max_runtime=90)
        save(app, "retried", "retry", max_runtime=90)
        is_told("long", "in_progress")
        is_told("doomed", "in_progress")
        is_told("bad", "in_progress", "error")
        is_told("retried", "in_progress", "ok")
        eventually(lambda: len(runs(broker)) == 4)
        broker.set("armed", 1)
        save(app, "twice", "echo")
        beat.wait()
        broker.set("go", 1)
        eventually(lambda: not Entry.get("long", app).running())
        with celery_beat(tmp_path, "module"):
            is_told("long", "in_progress", "ok")
            eventually(lambda: len([one for one in runs(broker) if one.task == "echo"]) == 2)
            eventually(lambda: {*sentry.statuses("twice")} == {"in_progress", "ok"})
            worker.kill()
            is_told("doomed", "in_progress", "error")
    for name in ("long", "doomed", "bad", "retried", "twice"):
        assert len(sentry.ids(name)) == 1, name
    assert sentry.monitor("long")["max_runtime"] == 2
    [ended] = [one for one in sentry.check_ins("long") if one["status"] == "ok"]
    assert ended["duration"] > 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(sentrys_beat, "_patch_redbeat_apply_async"), reason="too old")
def test_redbeat_sentry_off_leaves_check_ins_to_the_sdk(
    server: Server, sentry: Sentry, app: Celery, broker: redis.Redis, tmp_path: Path
) -> None:
    source = MODULE + "\napp.conf.redbeat_sentry = False\n"
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), extra=source)
    save(app, "often", "echo")
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Messages: one by one: sentry_sdk monitors entries")
        eventually(lambda: broker.llen("celery") == 1)
        eventually(lambda: sentry.statuses("often") == ["in_progress"])
    [message] = messages(broker)
    assert message["headers"]["sentry-monitor-slug"] == "often"
    assert "redbeat_check_in" not in message["headers"]
