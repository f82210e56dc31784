"""What the banner and the log say of delivery holds: nothing is promised that may yet be forbidden."""

from __future__ import annotations

import logging

import pytest
import redis

from tests.integration.conftest import ONE_SERVER, MakeScheduler
from tests.support.schedule import write_burst
from tests.support.servers import Server

pytestmark = ONE_SERVER

EXACTLY = "    . delivery -> exactly once"
IF_IT_MAY = f"{EXACTLY}, if the schedule's user may push"


@pytest.mark.parametrize(
    ("rights", "said"),
    [
        ("~* +@all", ["beat: Delivery: exactly once."]),
        ("~redbeat:* +@all", ["beat: Delivery: at least once, each run with one task id."]),
    ],
    ids=["it may", "it may not"],
)
def test_another_user_than_the_brokers_delivers_exactly_once_if_it_may(
    server: Server,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    rights: str,
    said: list[str],
) -> None:
    caplog.set_level(logging.INFO)
    client.execute_command("ACL SETUSER", "schedule", "reset", "on", ">secret", "&*", *rights.split())
    url = f"redis://schedule:secret@127.0.0.1:{server.port}/1"
    scheduler = make_scheduler(redbeat_redis_url=url)
    assert IF_IT_MAY in scheduler.info.splitlines()
    write_burst(client, ["entry"])
    for _ in range(2):
        scheduler.tick()
    told = [record.getMessage() for record in caplog.records if "Delivery: " in record.getMessage()]
    assert told == said


def test_one_user_for_both_delivers_exactly_once(
    server: Server, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    assert EXACTLY in make_scheduler().info.splitlines()
    client.execute_command("ACL SETUSER", "both", "reset", "on", ">secret", "~*", "&*", "+@all")
    url = f"redis://both:secret@127.0.0.1:{server.port}"
    scheduler = make_scheduler(broker_url=f"{url}/0", redbeat_redis_url=f"{url}/1", redbeat_lock_key="other")
    assert EXACTLY in scheduler.info.splitlines()
