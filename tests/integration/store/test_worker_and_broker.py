"""A worker whose broker is the schedule's own server needs the rights of its rule, and no others."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support.polling import eventually
from tests.support.rights import PASSWORD, Ground, documented_rights
from tests.support.tracked import Tracked

USER = "worker_and_broker"


@pytest.fixture
def tracked(ground: Ground, tmp_path: Path) -> Tracked:
    """The worker uses one user for broker, results and tracking; the test another one."""
    ground.let(documented_rights(USER), USER)
    url = f"redis://{USER}:{quote(PASSWORD, safe='')}@127.0.0.1:{ground.server.port}/0"
    with ground.server.client() as client:
        made = Tracked.write(
            tmp_path,
            url,
            ground.server.url(0),
            client,
            redbeat_redis_url=url,
            result_backend=url,
            worker_send_task_events=True,
            task_send_sent_event=True,
        )
    made.app.conf.broker_url = ground.server.url(0)
    return made


def test_a_worker_does_all_of_celery_with_its_rule(ground: Ground, tracked: Tracked) -> None:
    with tracked.worker("prefork", concurrency=2) as worker:
        names = {
            tracked.send("succeed"): "succeeded",
            tracked.send("fail_badly"): "failed",
            tracked.send("retry", 1, 0.5): "succeeded",
            tracked.send("reject_once"): "succeeded",
            tracked.send("spawn", "group", "go", limits={"workflow": 1}): "succeeded",
        }
        tracked.client.set("go", 1)
        assert {name: tracked.outcome(name)["outcome"] for name in names} == names
        busy = tracked.begun(tracked.send("work_until", "never"))
        with tracked.sender() as app:
            eventually(lambda: app.control.ping(timeout=2))
            assert app.control.inspect(timeout=5).active()
        tracked.revoke(busy, terminate=True)
        assert tracked.outcome(busy)["outcome"] == "revoked"
        assert worker.stop() == 0
    assert ground.refusals() == [], worker.output()
