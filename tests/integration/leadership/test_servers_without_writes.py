"""A server that takes no writes for longer than a takeover takes: the leader stays, as no beat can lead."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.servers import Server

TAKEOVER_SECONDS = 5


@contextmanager
def full_memory(client: redis.Redis, _directory: Path) -> Iterator[None]:
    client.config_set("maxmemory", 1)
    yield
    client.config_set("maxmemory", 0)


@contextmanager
def full_disk(client: redis.Redis, directory: Path) -> Iterator[None]:
    before: Any = client.config_get("dir", "save")
    gone = directory / "gone"
    gone.mkdir()
    client.config_set("dir", str(gone))
    gone.rmdir()
    client.config_set("save", "3600 1")
    client.bgsave()
    eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
    yield
    client.config_set("save", before["save"])
    client.config_set("dir", before["dir"])
    client.bgsave()
    eventually(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "ok")


@contextmanager
def missing_replicas(client: redis.Redis, _directory: Path) -> Iterator[None]:
    client.config_set("min-replicas-to-write", 1)
    yield
    client.config_set("min-replicas-to-write", 0)


def takes_no_writes(client: redis.Redis) -> bool:
    try:
        client.set("written", 1)
    except redis.exceptions.ResponseError:
        return True
    return False


@pytest.fixture(params=["valkey", "redis"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server whose directory may be changed."""
    with Server(request.param, enable_protected_configs="yes") as started:
        yield started


@pytest.mark.parametrize(
    ("freeze", "lock_seconds", "period"),
    [
        (full_memory, 1500, None),
        (full_memory, 6, -1),
        (full_disk, 1500, -1),
        (missing_replicas, 6, None),
    ],
)
@pytest.mark.parametrize("shards", [{}, {"redbeat_shards": 2}], ids=["", "sharded"])
def test_a_leader_whose_server_takes_no_writes_stays_leader_and_sends_afterwards(
    server: Server,
    tmp_path: Path,
    freeze: Callable[..., Any],
    lock_seconds: int,
    period: float | None,
    shards: dict[str, int],
) -> None:
    settings = {
        "redbeat_redis_url": server.url(1),
        "redbeat_lock_timeout": lock_seconds,
        "redbeat_takeover_after": TAKEOVER_SECONDS,
        "redbeat_redis_options": {} if period is None else {"retry_period": period},
        "beat_schedule": {f"often-{n}": {"task": "echo", "schedule": 0.5} for n in range(4)},
        **shards,
    }
    write_app(tmp_path, "module", server.url(0), **settings)
    with server.client() as client, celery_beat(tmp_path, "module") as leader:
        leader.wait_for("beat: Acquired")
        eventually(lambda: int(client.llen("celery")) > 4)  # type: ignore[arg-type]
        with celery_beat(tmp_path, "module") as standby:
            if shards:  # they share them
                standby.wait_for("beat: Acquired")
            else:
                standby.wait_for("beat: Acquiring lock...")
            with freeze(client, tmp_path):
                eventually(lambda: takes_no_writes(client))
                ends_at = time.monotonic() + 2 * TAKEOVER_SECONDS + 1
                while time.monotonic() < ends_at:  # what the test is about takes this long
                    assert leader.is_running, leader.output()
                    assert standby.is_running, standby.output()
                    time.sleep(0.2)
                sent = int(client.llen("celery"))  # type: ignore[arg-type]
            eventually(lambda: int(client.llen("celery")) > sent + 8)  # type: ignore[arg-type]
            assert leader.is_running, leader.output()
            assert "Took" not in standby.output() + leader.output()
            if not shards:
                assert "beat: Acquired lock" not in standby.output()
        messages: Any = client.lrange("celery", 0, -1)
        ids = Counter(json.loads(message)["headers"]["id"] for message in messages)
        assert max(ids.values()) == 1
