"""A real beat and a real worker: what is far ahead waits in Redis, and runs once at its time."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import MakeApp
from tests.integration.later.conftest import stored_ids
from tests.support.apps import celery_beat, celery_worker, runs, write_app
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.servers import Server

TASKS = """
from celery import chain, chord, group
import redbeat.later

redbeat.later.install(app)


@app.task(name="again", bind=True, max_retries=3)
def again(self, word):
    note(self, word, self.request.retries)
    if self.request.retries < 1:
        raise self.retry(countdown=2)
    return word


@app.task(name="begin", bind=True)
def begin(self):
    note(self)
    add.apply_async((1, 1), countdown=2)
    (add.s(2, 2).set(countdown=2) | add.s(3).set(countdown=2)).apply_async()
    chord([add.s(1, 2), add.s(3, 4)])(echo.s("chord").set(countdown=2))
    again.delay("word")
    app.send_task("echo", ("by name",), countdown=2)
"""


def test_all_that_a_task_sends_for_later_runs_once_at_its_time(
    server: Server, make_app: MakeApp, tmp_path: Path
) -> None:
    settings = {"result_backend": server.url(0), "redbeat_durable_after": 1}
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), **settings)
    with (tmp_path / "module.py").open("a") as module:
        module.write(TASKS)
    app = make_app()
    with celery_beat(tmp_path, "module") as beat, server.client(db=0) as client:
        with celery_worker(tmp_path, "module", "--pool=solo") as worker:
            app.send_task("begin")
            eventually(lambda: len(runs(client)) == 10, timeout=60)
            eventually(lambda: stored_ids(app) == [])
            found = runs(client)
        assert not has_traceback(worker.output())
    assert not has_traceback(beat.output())
    done = sorted(json.dumps([one.task, one.args]) for one in found)
    assert done == sorted(
        json.dumps(one)
        for one in [
            ["begin", []],
            ["add", [1, 1]],
            ["add", [2, 2]],
            ["add", [4, 3]],
            ["add", [1, 2]],
            ["add", [3, 4]],
            ["echo", [[3, 7], "chord"]],
            ["again", ["word", 0]],
            ["again", ["word", 1]],
            ["echo", ["by name"]],
        ]
    )
