"""Real beats and real workers with -Q: shared tasks, routers and fan-out, as a shop has them."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Queue

from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, celery_worker, runs, write_app
from tests.support.polling import eventually
from tests.support.schedule import SELDOM, write_raw
from tests.support.servers import Server

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

NEWS = Exchange("news", type="topic")

class Router:
    def route_for_task(self, task, args=None, kwargs=None):
        return {"queue": "money"} if task.endswith(".bill") else None

app.conf.task_routes = ["module.Router", {"unknown.*": {"queue": "video"}}]
app.conf.task_queues = [
    Queue("celery"), Queue("money"), Broadcast("all"),
    Queue("usa", NEWS, routing_key="usa.#"), Queue("weather", NEWS, routing_key="*.weather"),
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


#: an entry's task, its options, and the queues whose workers run it
Expected = tuple[str, dict[str, Any], list[str]]


@pytest.fixture(params=["server", "rabbitmq"])
def broker_url(request: pytest.FixtureRequest, server: Server) -> str:
    return request.getfixturevalue(request.param).url()


def assert_they_run_on(
    workers: dict[str, str],
    expected: dict[str, Expected],
    server: Server,
    client: redis.Redis,
    directory: Path,
    env: dict[str, str] | None = None,
) -> None:
    """Let a beat send each entry once; `workers` are called after a queue, and have all that it names."""
    wanted = Counter((name, queue) for name, (_, _, queues) in expected.items() for queue in queues)
    with ExitStack() as stack:
        for name, queues in workers.items():
            worker = stack.enter_context(
                celery_worker(directory, "module", "-Q", queues, "-n", f"{name}@here")
            )
            stack.callback(worker.kill)  # a warm shutdown of each would take most of the time
        for name, (task, options, _) in expected.items():
            write_raw(client, name, task=task, options=options, schedule=SELDOM, score=1)
        beat = stack.enter_context(celery_beat(directory, "module", env=env))
        noted = stack.enter_context(server.client(db=2))
        eventually(lambda: len(runs(noted)) >= wanted.total(), message=f"{wanted.total()} runs")
        assert beat.stop() == 0
        found = Counter((run.headers["redbeat_entry"], run.args[0].partition("@")[0]) for run in runs(noted))
    assert found == wanted
    assert {name: client.hget(f"redbeat:{name}", "error") for name in expected} == dict.fromkeys(expected)


@pytest.mark.slow
@pytest.mark.few_cases(1)
def test_runs_reach_the_workers_of_their_queues_and_no_others(
    server: Server, client: redis.Redis, tmp_path: Path, broker_url: str
) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "tasks.py").write_text(TASKS)
    settings: dict[str, Any] = {"redbeat_redis_url": server.url(1), "redbeat_history": 0}
    write_app(tmp_path, "module", broker_url, server.url(2), EXTRA + HIDDEN, **settings)
    expected: dict[str, Expected] = {
        "compress": ("shop.tasks.compress", {}, ["video"]),
        "bill": ("shop.tasks.bill", {}, ["money"]),
        "by-name": ("unknown.here", {}, ["video"]),
        "option": ("shop.tasks.compress", {"queue": "celery"}, ["celery"]),
        "one-topic": ("everywhere", {"queue": "usa", "routing_key": "usa.news"}, ["video"]),
        "two-topics": ("everywhere", {"queue": "usa", "routing_key": "usa.weather"}, ["money", "video"]),
        "broadcast": ("everywhere", {"queue": "all"}, ["celery", "money", "video"]),
    }
    workers = {"celery": "celery,all", "video": "video,usa,all", "money": "money,weather,all"}
    assert_they_run_on(workers, expected, server, client, tmp_path, env={"BEAT": "1"})


@pytest.mark.slow
def test_worker_runs_messages_by_their_priority(
    server: Server, make_scheduler: MakeScheduler, client: redis.Redis, tmp_path: Path, broker_url: str
) -> None:
    settings: dict[str, Any] = {"redbeat_redis_url": server.url(1), "worker_prefetch_multiplier": 1}
    names = ["urgent", "usual", "seldom"]
    priorities = [9, 5, 0]
    if broker_url.startswith("redis"):  # kombu counts the other way round there
        priorities.reverse()
        settings["broker_transport_options"] = {
            "priority_steps": [0, 5, 9],
            "queue_order_strategy": "priority",
        }
    queues = 'from kombu import Queue\napp.conf.task_queues = [Queue("celery", max_priority=10)]'
    write_app(tmp_path, "module", broker_url, server.url(2), queues, **settings)
    task_queues = [Queue("celery", max_priority=10)]
    scheduler = make_scheduler(broker_url=broker_url, task_queues=task_queues, **settings)
    for score, (name, priority) in enumerate(zip(reversed(names), reversed(priorities), strict=True), 1):
        write_raw(client, name, options={"priority": priority}, schedule=SELDOM, score=score)
    scheduler.tick()
    with celery_worker(tmp_path, "module"), server.client(db=2) as noted:
        eventually(lambda: len(runs(noted)) == 3)
        assert [run.headers["redbeat_entry"] for run in runs(noted)] == names
