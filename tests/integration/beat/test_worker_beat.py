"""`celery worker -B`: beat inside a worker, in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from redbeat.connection import get_redis
from tests.faults.children import run_child
from tests.integration.conftest import ONE_SERVER
from tests.support.apps import STOP_SECONDS, celery_worker, runs, write_app
from tests.support.polling import eventually
from tests.support.schedule import LOCK, STATICS, write_raw
from tests.support.servers import Server
from tests.support.ticks import memory_app

#: the application talks to Redis before the worker forks, as many do
SAVES_AT_IMPORT = """
from redbeat import RedBeatSchedulerEntry
RedBeatSchedulerEntry("at-import", "echo", 0.3, app=app).save()
"""


@ONE_SERVER
@pytest.mark.parametrize("pool", [["-P", "solo"], ["-P", "prefork", "-c", "1"]], ids=lambda pool: pool[1])
def test_a_worker_with_b_runs_entries(server: Server, tmp_path: Path, pool: list[str]) -> None:
    write_app(
        tmp_path,
        "module",
        server.url(0),
        extra=SAVES_AT_IMPORT,
        redbeat_redis_url=server.url(1),
        beat_schedule={"static": {"task": "echo", "schedule": 0.3, "args": ("static",)}},
    )
    arguments = ["-B", "--scheduler", "redbeat.RedBeatScheduler", "-s", str(tmp_path / "none"), *pool]
    with (
        server.client(db=1) as client,
        server.client() as noted,
        celery_worker(tmp_path, "module", *arguments) as worker,
    ):
        eventually(lambda: {run.headers["redbeat_entry"] for run in runs(noted)} == {"static", "at-import"})
        write_raw(client, "raw")
        eventually(lambda: "raw" in {run.headers["redbeat_entry"] for run in runs(noted)})
        assert client.smembers(STATICS) == {"static"}
        assert client.get(LOCK)
        assert worker.stop(STOP_SECONDS) == 0
        assert "Traceback" not in worker.output()
        eventually(lambda: client.get(LOCK) is None, message="the lock was not released")


def test_a_forked_process_gets_a_client_of_its_own_unless_one_was_injected(valkey: Server) -> None:
    app = memory_app(redbeat_redis_url=valkey.url(1))
    inherited = get_redis(app)
    injected = memory_app(redbeat_redis_url=valkey.url(1))
    injected.redbeat_redis = valkey.client(db=1)

    def check() -> None:
        assert get_redis(app) is not inherited
        assert get_redis(app) is get_redis(app)
        assert get_redis(injected) is injected.redbeat_redis
        assert get_redis(app).ping()

    assert run_child(check) == 0
    assert get_redis(app) is inherited
