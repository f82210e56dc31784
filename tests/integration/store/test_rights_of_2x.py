"""A user with exactly the rights that celery-redbeat 2.x needs: one sentence names all that are missing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import StoreRefused
from tests.support.apps import celery_beat, write_app
from tests.support.rights import PASSWORD, Ground
from tests.support.servers import Server

#: what a beat of 2.4.2 and its entries send, by the server's statistics
OF_2X = [
    "~redbeat:*",
    *[
        "+del",
        "+evalsha",
        "+exec",
        "+get",
        "+hello",
        "+hget",
        "+hset",
        "+hsetnx",
        "+multi",
        "+pexpire",
        "+ping",
        "+pttl",
        "+sadd",
    ],
    *[
        "+script|load",
        "+select",
        "+set",
        "+smembers",
        "+srem",
        "+zadd",
        "+zrangebyscore",
        "+zrank",
        "+zrem",
        "+zscore",
    ],
]

WITHOUT_TRANSACTIONS = [right for right in OF_2X if right not in ("+multi", "+exec")] + ["+eval"]


@pytest.fixture
def ground(server: Server) -> Ground:
    return Ground(server, server.client(), "old")


def missing_in(words: str) -> list[str]:
    found = re.search(r"its user old lacks these rights that .* needs: (.*?)\. Add them", words)
    assert found is not None, words
    return found[1].split()


@pytest.mark.parametrize("rights", [OF_2X, WITHOUT_TRANSACTIONS], ids=["2.x", "without MULTI"])
def test_saving_names_all_missing_rights_at_once_and_works_with_them(
    ground: Ground, rights: list[str]
) -> None:
    ground.let(rights)
    entry = RedBeatSchedulerEntry("report", "t", 60, app=ground.app())
    with pytest.raises(StoreRefused) as caught:
        entry.save()
    missing = missing_in(str(caught.value))
    assert {"+time", "+hmget", "+exists", "&redbeat::wake"} <= set(missing)
    assert not set(missing) & set(rights)
    assert ground.admin.dbsize() == 0, "asking writes nothing"
    ground.let([*rights, *missing])
    entry.save()
    entry.save()
    RedBeatSchedulerEntry.from_key("redbeat:report", app=entry.app).delete()
    assert ground.refusals() == []


@pytest.mark.parametrize(
    "more", [{}, {"redbeat_lock_key": None}, {"redbeat_shards": 3}], ids=["lock", "no lock", "shards"]
)
@pytest.mark.parametrize("period", [None, -1])
def test_beat_names_all_missing_rights_at_its_start_and_runs_with_them(
    ground: Ground, tmp_path: Path, more: dict[str, Any], period: float | None
) -> None:
    ground.let(OF_2X)
    options: dict[str, Any] = {"username": "old", "password": PASSWORD}
    if period is not None:
        options["retry_period"] = period
    extra = "app.conf.beat_schedule = {'often': {'task': 'echo', 'schedule': 0.5}}"
    settings = {"redbeat_redis_url": ground.server.url(0), "redbeat_redis_options": options, **more}
    write_app(tmp_path, "module", ground.server.url(1), extra=extra, **settings)
    refused = celery_beat(tmp_path, "module")
    assert refused.wait() != 0
    *_, line = [line for line in refused.output().splitlines() if "lacks these rights" in line]
    ground.let([*OF_2X, *missing_in(line)])
    with celery_beat(tmp_path, "module") as beat:
        beat.wait_for("Sending due task often")
    told = [line for line in beat.output().splitlines() if "lack rights" in line]
    # which needs rights to queues
    assert all("Runs are delivered at least once" in line for line in told), told


def test_a_key_pattern_that_is_missing_is_named(ground: Ground) -> None:
    ground.let(["~other:*", "&*", "+@all"])
    with pytest.raises(StoreRefused, match=r"needs: ~redbeat:\*\. Add"):
        RedBeatSchedulerEntry("report", "t", 60, app=ground.app()).save()
