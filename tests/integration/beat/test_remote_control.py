"""`celery inspect ping` reaches real beats, the leader and the standby, however long they have waited."""

from __future__ import annotations

import os
import time
from pathlib import Path

import celery.beat
import pytest
from celery import Celery

from tests.conftest import MakeApp
from tests.integration.conftest import ONE_SERVER
from tests.support.apps import celery_beat, celery_command, write_app
from tests.support.deadlines import patience
from tests.support.polling import eventually
from tests.support.servers import Server

pytestmark = [
    ONE_SERVER,
    pytest.mark.skipif(not hasattr(celery.beat, "BeatPidbox"), reason="this Celery's beat answers no ping"),
]

#: a beat whose last tick is older keeps silent; seconds
MAX_TICK_AGE = 6.0

NODES = {"celerybeat@first", "celerybeat@second"}


def answering(app: Celery, timeout: float = 5.0) -> set[str]:
    """The beats that answer a ping within so many seconds, on a quiet machine; asked by a new connection."""
    with app.connection_for_write() as connection:
        asked = app.control.inspect(
            destination=sorted(NODES), timeout=patience(timeout), limit=len(NODES), connection=connection
        )
        return set(asked.ping() or ())


def test_leader_and_standby_answer_pings_while_nothing_is_due(
    server: Server, tmp_path: Path, make_app: MakeApp
) -> None:
    settings = {
        "redbeat_redis_url": server.url(1),
        "beat_enable_remote_control": True,
        "beat_remote_control_max_tick_age": MAX_TICK_AGE,
    }
    write_app(tmp_path, "module", server.url(0), **settings)
    app = make_app()
    with celery_beat(tmp_path, "module", "--hostname", "celerybeat@first") as first:
        first.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "module", "--hostname", "celerybeat@second") as second:
            second.wait_for("Standing by")
            eventually(lambda: answering(app) == NODES)
            end = time.monotonic() + 2 * MAX_TICK_AGE
            while time.monotonic() < end:
                assert answering(app) == NODES, first.output() + second.output()
                time.sleep(0.5)  # to ask now and then, not to wait for something
            assert "Sending due task" not in first.output(), "nothing was due all the time"

            ping = ["inspect", "--timeout", "20", "--destination", "celerybeat@first", "ping"]
            with celery_command(tmp_path, "module", *ping) as process:
                assert process.wait(60) == 0, process.output()
                assert "pong" in process.output()
            in_vain = ["inspect", "--timeout", "1", "--destination", "celerybeat@third", "ping"]
            with celery_command(tmp_path, "module", *in_vain) as process:
                assert process.wait(60) == os.EX_UNAVAILABLE, process.output()


def test_a_beat_that_hangs_answers_no_ping(server: Server, tmp_path: Path, make_app: MakeApp) -> None:
    settings = {
        "redbeat_redis_url": server.url(1),
        "beat_enable_remote_control": True,
        "beat_remote_control_max_tick_age": MAX_TICK_AGE,
        "beat_schedule": {"often": {"task": "echo", "schedule": 1.0}},
    }
    hanging = """
import os, time
from celery.signals import before_task_publish

@before_task_publish.connect
def hang(**kwargs):
    if os.path.exists("hang"):
        time.sleep(3600)
"""
    write_app(tmp_path, "module", server.url(0), extra=hanging, **settings)
    app = make_app()
    with celery_beat(tmp_path, "module", "--hostname", "celerybeat@first") as beat:
        beat.wait_for("Sending due task")
        eventually(lambda: answering(app, timeout=1.0) == {"celerybeat@first"})
        (tmp_path / "hang").touch()
        eventually(lambda: answering(app, timeout=1.0) == set())
        beat.kill()
