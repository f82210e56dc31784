"""The rights that an operator's user of Redis needs for a reshard are the documented ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

import redbeat
from redbeat.reshard.resharding import Resharding
from tests.conftest import MakeApp
from tests.support.resharded import fill, read_all
from tests.support.servers import Server

RECIPE = Path(redbeat.__file__).parents[1] / "docs" / "recipes" / "resharder.acl"


@pytest.fixture
def operator(server: Server, make_app: MakeApp) -> Iterator[Celery]:
    with server.client() as admin:
        _, name, *rules = RECIPE.read_text("utf-8").split()
        admin.execute_command("ACL", "SETUSER", name, "reset", *rules)
        url = server.url(1).replace("redis://", "redis://resharder:secret@")
        yield make_app(redbeat_redis_url=url)
        admin.execute_command("ACL", "DELUSER", "resharder")


def test_a_user_with_the_documented_rights_may_reshard(
    operator: Celery, server: Server, chance: random.Random
) -> None:
    with server.client(db=1, decode_responses=False) as raw:
        fill(raw, chance, 80)
        raw.hset("redbeat::totals", "a:sent", 5)
        raw.xadd("redbeat::events", {"event": "x"})
        raw.xadd("redbeat::failures", {"entry": "x"})
        raw.set("redbeat::events-read", "0-0")
        before, _ = read_all(raw)
        for shards in (4, 3, 1):  # several parts end, and theirs are added to those of others
            for prefix in (f"{{redbeat:{shard}}}:" for shard in range(shards)):
                raw.hset(f"{prefix}:totals", "a:sent", 5)
                raw.hset(f"{prefix}:minutes", "1", '{"minute":1,"counted":{"sent":1}}')
                raw.xadd(f"{prefix}:events", {"event": "x"})
                raw.xadd(f"{prefix}:failures", {"entry": "x"})
            report = Resharding(operator, shards).run()
            assert report.unmerged == report.unknown == []
        found, wrong = read_all(raw)
        assert [one for one in wrong if not one.startswith("left: ")] == []
        assert {key: value for key, value in found.items() if key in before} == {
            key: value for key, value in before.items() if key in found
        }
