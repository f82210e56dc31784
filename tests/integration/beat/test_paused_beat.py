"""A beat that stood still as a whole, and goes on: what it may say of the time in between."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from tests.integration.conftest import ONE_SERVER
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.schedule import LOCK
from tests.support.servers import Server

pytestmark = ONE_SERVER

LOCK_SECONDS = 5

#: in steps: a sleep goes on through a pause, and this has most of its way to go when the pause is over
SLOW = """
from celery.signals import before_task_publish

@before_task_publish.connect
def take_a_while(**kwargs):
    print("the handler begins")
    for _ in range(80):
        time.sleep(0.01)
"""


def test_a_beat_that_was_paused_does_not_say_that_its_scheduler_hangs(server: Server, tmp_path: Path) -> None:
    settings = {
        "beat_schedule": {"often": {"task": "echo", "schedule": 0.2}},
        "redbeat_lock_timeout": LOCK_SECONDS,
    }
    write_app(tmp_path, "module", server.url(0), extra=SLOW, redbeat_redis_url=server.url(1), **settings)
    with server.client(db=1) as client, server.client() as broker, celery_beat(tmp_path, "module") as beat:
        beat.wait_for("the handler begins")
        token = client.get(LOCK)
        beat.signal(signal.SIGSTOP)
        time.sleep(LOCK_SECONDS + 1.5)  # what this test is about
        assert client.get(LOCK) is None
        sent = broker.llen("celery")
        beat.signal(signal.SIGCONT)
        eventually(lambda: client.get(LOCK) == token)
        eventually(lambda: broker.llen("celery") > sent + 3, message="it didn't go on")
        assert "has done nothing for" not in beat.output()
        assert client.get(LOCK) == token
