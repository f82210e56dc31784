"""A pool that can't terminate a task: what replaces a run waits for it, and the worker says so once."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from redbeat import RedBeatSchedulerEntry as Entry
from tests.conftest import MakeApp
from tests.support.apps import celery_beat
from tests.support.logs import has_traceback
from tests.support.polling import eventually
from tests.support.progress import history_of, running_of
from tests.support.servers import Server
from tests.support.tracked import Tracked

WARNING = "This worker's pool can't terminate a task, so a run that is to be replaced"


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_a_run_on_a_worker_that_can_not_end_it_goes_on_and_the_next_one_waits(
    server: Server, client: redis.Redis, make_app: MakeApp, tmp_path: Path, pool: str
) -> None:
    tracked = Tracked.write(tmp_path, server.url(0), server.url(1), client)
    with tracked.worker(pool) as worker, celery_beat(tmp_path, tracked.module) as beat:
        app = make_app()
        Entry("job", "tracked.work_until", 1, args=["go", 600], overlap="replace", app=app).save()
        worker.wait_for(WARNING)
        eventually(lambda: "" in running_of(client, "job"))
        [first] = [one for one in running_of(client, "job") if one]
        client.set("go", 1)
        eventually(lambda: [one["outcome"] for one in history_of(client, "job") if "ended" in one][1:])
        assert worker.output().count(WARNING) == 1
        assert not has_traceback(beat.output())
    ended = [one for one in reversed(history_of(client, "job")) if "ended" in one]
    assert {one["outcome"] for one in ended} == {"succeeded"}
    assert not [one for one in running_of(client, "job") if one == first]
    told = [one for one in history_of(client, "job") if one.get("held_by") == first]
    assert told
