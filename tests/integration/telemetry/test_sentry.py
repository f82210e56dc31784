"""A real beat, a real worker and the real SDK of Sentry: what Sentry is told of runs."""

from __future__ import annotations

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
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, celery_worker, runs, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.processes import Process
from tests.support.schedule import messages
from tests.support.sentry import Sentry, receiving
from tests.support.servers import Server

sentrys_beat = pytest.importorskip("sentry_sdk.integrations.celery.beat")
#: an application of celery-redbeat 2.x with Sentry's monitors, and nothing else
MODULE = """
import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration

crons = CeleryIntegration(monitor_beat_tasks=True, exclude_beat_tasks=["private-.*"])
sentry_sdk.init(dsn={dsn!r}, traces_sample_rate=1.0, integrations=[crons])


@app.task(name="retry", bind=True, default_retry_delay=0, max_retries=5)
def retry(self):
    if self.request.retries < 3:
        raise self.retry(exc=ValueError("not yet"))
    note(self)
"""
TOLD = "redbeat::events-read"

#: those of the first test's entries that Sentry has a monitor of
MONITORED = {"zoned", "in time", "retried", "bad"}


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app()


@pytest.fixture
def sentry() -> Iterator[Sentry]:
    with receiving() as receiver:
        yield receiver


def save(app: Celery, name: str, task: str, kind: Any = 3600, **fields: Any) -> None:
    """An entry that is due now."""
    last_run_at = datetime.now(timezone.utc) - timedelta(days=60)
    Entry(name, task, kind, app=app, **{"last_run_at": last_run_at, **fields}).save()


@contextmanager
def beat_of(
    server: Server, directory: Path, sentry: Sentry, extra: str = "", broker: Server | None = None
) -> Iterator[Process]:
    source = MODULE.format(dsn=sentry.dsn) + extra
    write_app(directory, "module", (broker or server).url(0), redbeat_redis_url=server.url(1), extra=source)
    with celery_beat(directory, "module") as beat:
        beat.wait_for("Sentry's monitors are RedBeat's own")
        with server.client(db=1) as client:
            eventually(lambda: client.exists(TOLD), message="nothing is told before")
        yield beat
        assert not has_traceback(beat.output()), beat.output()


def test_an_installation_as_of_2x_has_right_monitors_and_one_check_in_a_run(
    server: Server, sentry: Sentry, app: Celery, broker: redis.Redis, tmp_path: Path
) -> None:
    with beat_of(server, tmp_path, sentry) as beat:
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
        with celery_worker(tmp_path, "module", "-P", "prefork", "-c", "2"):
            eventually(lambda: len(sentry.check_ins()) == 8, message=str(sentry.check_ins()))
            eventually(lambda: len(runs(broker)) == 8)
            eventually(lambda: sentry.transactions().count("retry") == 4, message="Sentry's own work is done")
    [compiled] = [run.id for run in runs(broker) if run.headers["redbeat_entry"] == "in time"]
    waits = sentry.latencies(compiled)
    assert all(wait is not None and 0 < wait < 600_000 for wait in waits), waits
    assert waits or not hasattr(sentrys_beat, "_patch_redbeat_apply_async"), "an old version measures nothing"
    assert sentry.monitor("zoned") == {
        "schedule": {"type": "crontab", "value": "30 7 * * 1-5"},
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


#: an application whose runs are tracked, too; its beat is killed when it is about to record a run that it has
#: sent, once it is armed
TRACKED = """
import os
import redbeat
from redbeat.store.store import Store

app.conf.redbeat_run_lease = 1
app.conf.redbeat_takeover_after = 5
redbeat.track_runs(app)


@app.task(name="until", bind=True)
def until(self, key):
    note(self, key)
    while not runs_client().exists(key):
        time.sleep(0.05)


def record(self, *args, original=Store.commit_runs, **kwargs):
    if runs_client().getdel("armed"):
        os.kill(os.getpid(), 9)
    return original(self, *args, **kwargs)


Store.commit_runs = record
"""


def test_a_tracked_run_has_one_check_in_through_retries_kills_of_beat_and_the_death_of_its_worker(
    server: Server, other: Server, sentry: Sentry, app: Celery, tmp_path: Path
) -> None:
    def is_told(name: str, *statuses: str) -> None:
        def is_so() -> bool:
            assert sentry.statuses(name) == [*statuses], name
            return True

        eventually(is_so)

    with (
        beat_of(server, tmp_path, sentry, TRACKED, broker=other) as beat,
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


@pytest.mark.skipif(not hasattr(sentrys_beat, "_patch_redbeat_apply_async"), reason="too old")
def test_without_the_setting_it_is_left_to_sentrys_own_code(
    server: Server, sentry: Sentry, app: Celery, broker: redis.Redis, tmp_path: Path
) -> None:
    source = MODULE.format(dsn=sentry.dsn) + "\napp.conf.redbeat_sentry = False\n"
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), extra=source)
    save(app, "often", "echo")
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("beat: Messages: one by one: sentry_sdk monitors entries")
        eventually(lambda: broker.llen("celery") == 1)
        eventually(lambda: sentry.statuses("often") == ["in_progress"])
    [message] = messages(broker)
    assert message["headers"]["sentry-monitor-slug"] == "often"
    assert "redbeat_check_in" not in message["headers"]
