"""Real beats and real workers with -Q: shared tasks, routers and fan-out, as a shop has them."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.apps import celery_beat, celery_worker, runs, write_app
from tests.support.polling import eventually
from tests.support.rabbitmq import RabbitMQ
from tests.support.schedule import SELDOM, write_raw
from tests.support.servers import Server

pytestmark = pytest.mark.parametrize("server", ["valkey"], indirect=True)

TASKS = """
from celery import shared_task

@shared_task(bind=True, queue="video")
def compress(self):
    from module import note
    note(self, self.request.hostname)

@shared_task(bind=True)
def bill(self):
    from module import note
    note(self, self.request.hostname)
"""

EXTRA = """
from kombu import Exchange, Queue
from kombu.common import Broadcast

class Router:
    def route_for_task(self, task, args=None, kwargs=None):
        return {"queue": "money"} if task.endswith(".bill") else None

app.conf.task_routes = ["module.Router", {"unknown.*": {"queue": "video"}}]
app.conf.task_queues = [
    Queue("celery"), Queue("money"), Broadcast("all"),
    Queue("video", Exchange("media"), routing_key="media.video"),
]
app.autodiscover_tasks(["shop"])

@app.task(name="everywhere", bind=True)
def everywhere(self):
    note(self, self.request.hostname)

@app.task(name="unknown.here", bind=True)
def unknown(self):
    note(self, self.request.hostname)
"""

#: beat's own application hasn't got these, and sends them by name
HIDDEN = 'import os\nif "BEAT" in os.environ:\n    app.tasks.unregister("unknown.here")\n'


@pytest.fixture(params=["redis", "rabbitmq"])
def broker_url(request: pytest.FixtureRequest, server: Server) -> str:
    if request.param == "redis":
        return server.url(0)
    rabbitmq: RabbitMQ = request.getfixturevalue("rabbitmq")
    return rabbitmq.url()


def test_scheduled_tasks_reach_the_workers_of_their_queues_and_nobody_else(
    server: Server, client: redis.Redis, tmp_path: Path, broker_url: str
) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "tasks.py").write_text(TASKS)
    settings: dict[str, Any] = {"redbeat_redis_url": server.url(1), "redbeat_history": 0}
    write_app(tmp_path, "module", broker_url, server.url(2), EXTRA + HIDDEN, **settings)
    expected = {
        "compress": ("shop.tasks.compress", {}, ["video"]),
        "bill": ("shop.tasks.bill", {}, ["money"]),
        "by-name": ("unknown.here", {}, ["video"]),
        "option": ("shop.tasks.compress", {"queue": "celery"}, ["celery"]),
        "broadcast": ("everywhere", {"queue": "all"}, ["celery", "money", "video"]),
    }
    with ExitStack() as stack:
        for queue in ("celery", "video", "money"):
            stack.enter_context(
                celery_worker(tmp_path, "module", "-Q", f"{queue},all", "-n", f"{queue}@here")
            )
        for name, (task, options, _) in expected.items():
            write_raw(client, name, task=task, options=options, schedule=SELDOM, score=1)
        beat = stack.enter_context(celery_beat(tmp_path, "module", env={"BEAT": "1"}))
        noted = stack.enter_context(server.client(db=2))
        wanted = sum(len(queues) for _, _, queues in expected.values())
        eventually(lambda: len(runs(noted)) >= wanted, timeout=30, message=f"{wanted} runs")
        assert beat.stop() == 0
        found = Counter((run.headers["redbeat_entry"], run.args[0].partition("@")[0]) for run in runs(noted))
    assert found == Counter((name, queue) for name, (_, _, queues) in expected.items() for queue in queues)
    assert {name: client.hget(f"redbeat:{name}", "error") for name in expected} == dict.fromkeys(expected)
