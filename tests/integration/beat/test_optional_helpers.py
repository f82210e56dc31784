"""Beat goes on sending while everything that it can do without raises errors that nobody has foreseen."""

from __future__ import annotations

from pathlib import Path

import redis

from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.servers import Server

#: what is raised stands for a bug of redis-py, of RedBeat or of a receiver
BROKEN = """
import threading

from celery.beat import Service

from redbeat.store import beats, events, figures, standbys


def broken(*args, **kwargs):
    raise IndexError("broken")


redis.client.PubSub.get_message = broken
redis.client.PubSub.reset = broken
beats.Beats.noted = standbys.Standbys.note = standbys.Standbys.remove = broken
figures.Figures.read_labels = figures.Figures.take = broken
events.Events.read = broken

start, begun = threading.Thread.start, []


def starting(thread):
    if thread.name.startswith("redbeat-") and thread.name not in begun:
        begun.append(thread.name)
        raise RuntimeError("can't start new thread")
    start(thread)


threading.Thread.start = starting
app.conf.beat_schedule = {"often": {"task": "echo", "schedule": 0.5}}
"""


def count_sent(client: redis.Redis) -> int:
    return int(client.llen("celery"))  # type: ignore[arg-type]


def test_errors_of_all_that_beat_can_do_without_end_neither_leader_nor_standby(
    server: Server, tmp_path: Path
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "redbeat_http": "127.0.0.1:0", "redbeat_lock_timeout": 8}
    write_app(tmp_path, "module", server.url(0), extra=BROKEN, **settings)
    with server.client() as broker, celery_beat(tmp_path, "module") as leader:
        leader.wait_for("beat: Acquired lock")
        with celery_beat(tmp_path, "module") as standby:
            standby.wait_for("beat: Acquiring lock...")
            began = count_sent(broker)
            eventually(lambda: count_sent(broker) > began + 24, timeout=40)  # longer than the lock lives
            assert leader.is_running, leader.output()
            assert standby.is_running, standby.output()
            leader.kill()
            standby.wait_for("beat: Acquired lock")
            began = count_sent(broker)
            eventually(lambda: count_sent(broker) > began + 3)
        assert standby.returncode == 0, standby.output()
        assert "raised exception" not in standby.output() + leader.output()
