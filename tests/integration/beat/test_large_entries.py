"""Entries that are too large aren't read, by anybody; large ones that are allowed keep nobody waiting."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat.claims import Claims
from redbeat.errors import EntryCorrupt, EntryError
from tests.conftest import MakeApp
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.apps import run_beat
from tests.support.command_line import call
from tests.support.logs import errors_in
from tests.support.polling import eventually
from tests.support.rights import Ground, documented_rights
from tests.support.schedule import (
    SCHEDULE,
    SELDOM,
    field,
    score_of,
    sent_names,
    server_now,
    write_burst,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import leader

MEBIBYTE = 1024 * 1024
MAX_BYTES = 20_000
FIELDS = ["definition", "meta", "policy"]


@pytest.fixture
def app(make_app: MakeApp, settings: dict[str, Any]) -> Celery:
    return make_app(redbeat_max_entry_bytes=MAX_BYTES, **settings)


@pytest.fixture
def scheduler(app: Celery, make_scheduler: MakeScheduler) -> RedBeatScheduler:
    return make_scheduler(app)


def write_large(client: redis.Redis, name: str, which: str = "definition", size: int = MAX_BYTES) -> None:
    """An entry that is due, and larger than allowed by one of its fields."""
    write_raw(client, name, schedule=SELDOM, score=None)
    client.hset(f"redbeat:{name}", which, json.dumps({"note": "x" * size}))
    client.zadd(SCHEDULE, {f"redbeat:{name}": 1})


def write_canary(client: redis.Redis) -> None:
    write_raw(client, "canary", schedule={"__type__": "interval", "every": 1}, score=server_now(client))


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("which", FIELDS)
def test_an_entry_that_is_too_large_is_quarantined_and_the_others_run(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    which: str,
) -> None:
    write_large(client, "large", which)
    write_raw(client, "good", schedule=SELDOM, score=2)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    reason = field(client, "large", "error")["reason"]
    assert re.search(r"large: it has [\d,]+ bytes, and redbeat_max_entry_bytes allows 20,000: store", reason)
    assert len(errors_in(caplog)) == 1
    assert (score_of(client, "large") or 0) > server_now(client)
    assert len(client.hget("redbeat:large", which) or "") > MAX_BYTES, "it is kept as it is"
    client.zadd(SCHEDULE, {"redbeat:large": 1})
    scheduler.tick()
    assert len(errors_in(caplog)) == 1, "said once"


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("which", ["error", "lease"])
def test_what_is_large_in_the_place_of_ours_is_not_read_and_the_entry_runs(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, which: str
) -> None:
    write_large(client, "large", which, size=3 * MEBIBYTE)
    before = client.info("stats")["total_net_output_bytes"]
    assert not Entry.get("large", scheduler.app).problem
    scheduler.tick()
    assert client.info("stats")["total_net_output_bytes"] - before < MEBIBYTE
    assert sent_names(broker) == ["large"]
    assert not client.hexists("redbeat:large", which)


def test_one_within_the_limit_runs(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_raw(client, "large", schedule=SELDOM, score=1, args=["x" * (MAX_BYTES - 500)])
    scheduler.tick()
    assert sent_names(broker) == ["large"]


def test_whoever_looks_at_it_is_told_its_size_and_loads_nothing_of_it(
    app: Celery, client: redis.Redis, server: Server, tmp_path: Path
) -> None:
    write_large(client, "large", size=3 * MEBIBYTE)
    Entry("good", "echo", 60, app=app).save()
    before = client.info("stats")["total_net_output_bytes"]
    for words in (["list"], ["show", "large"], ["doctor"], ["why", "large"]):
        done = call(app, *words)
        said = "".join((done.stdout + done.stderr).split())  # a table may break it
        assert "redbeat_max_entry_bytes" in said, words
    with pytest.raises(EntryCorrupt, match=r"3,145,7\d\d bytes"):
        Entry.get("large", app)
    done = call(app, "export", str(tmp_path / "all.yaml"))
    assert "redbeat_max_entry_bytes" in " ".join((done.stdout + done.stderr).split())
    assert "large" not in (tmp_path / "all.yaml").read_text("utf-8")
    assert client.info("stats")["total_net_output_bytes"] - before < MEBIBYTE
    assert call(app, "delete", "large", "--yes").exit_code == 0
    assert not client.exists("redbeat:large")


def test_a_record_of_megabytes_in_a_history_is_passed_over(app: Celery, client: redis.Redis) -> None:
    entry = Entry("good", "echo", 60, app=app).save()
    client.lpush("redbeat::history:good", '{"at":2.5,"due":2}', "x" * (3 * MEBIBYTE), '{"at":1.5,"due":1}')
    client.hset("redbeat:good", "owner", "x" * (3 * MEBIBYTE))
    before = client.info("stats")["total_net_output_bytes"]
    assert [record.due.timestamp() for record in entry.history()] == [1, 2]
    for words in (["show", "good"], ["why", "good"], ["doctor"], ["list"]):
        call(app, *words)
    assert client.info("stats")["total_net_output_bytes"] - before < MEBIBYTE


def test_saving_one_that_is_too_large_is_refused_in_every_way(
    app: Celery, client: redis.Redis, tmp_path: Path
) -> None:
    sentence = r"large: it has [\d,]+ bytes, and redbeat_max_entry_bytes allows 20,000"
    large = Entry("large", "echo", 60, args=["x" * MAX_BYTES], app=app)
    with pytest.raises(EntryError, match=sentence):
        large.save()
    with pytest.raises(EntryError, match=sentence):
        Entry.save_many([Entry("good", "echo", 60, app=app), large])
    small = Entry("large", "echo", 60, app=app).save()
    with pytest.raises(EntryError, match=sentence):
        small.update(kwargs={"data": "ü" * MAX_BYTES})
    file = tmp_path / "schedule.json"
    item = {"task": "echo", "schedule": 60, "args": ["x" * MAX_BYTES]}
    file.write_text(json.dumps({"entries": {"large": item}}))
    for words in (["plan", "--owner", "me", str(file)], ["import", "--owner", "me", "--replace", str(file)]):
        done = call(app, *words)
        assert done.exit_code != 0
        assert "redbeat_max_entry_bytes" in " ".join((done.stdout + done.stderr).split()), done.stderr
    assert not field(client, "large", "definition")["args"]


def test_a_static_that_is_too_large_is_skipped(
    make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    statics = {
        "large": {"task": "echo", "schedule": 60, "args": ["x" * MAX_BYTES]},
        "good": {"task": "echo", "schedule": 60},
    }
    make_scheduler(redbeat_max_entry_bytes=MAX_BYTES, beat_schedule=statics)
    assert client.exists("redbeat:good")
    assert not client.exists("redbeat:large")
    [error] = errors_in(caplog)
    assert "redbeat_max_entry_bytes" in error


@pytest.mark.parametrize("which", FIELDS)
def test_saving_over_one_that_is_too_large_repairs_it(
    app: Celery, scheduler: RedBeatScheduler, client: redis.Redis, which: str
) -> None:
    write_large(client, "large", which)
    scheduler.tick()
    Entry("large", "echo", 1, app=app).save()
    stored = Entry.get("large", app)
    assert (stored.task, stored.problem or "") == ("echo", "")
    assert not client.hexists("redbeat:large", "error")


def test_a_file_may_replace_one_that_is_too_large(app: Celery, client: redis.Redis, tmp_path: Path) -> None:
    write_large(client, "large", size=3 * MEBIBYTE)
    file = tmp_path / "schedule.json"
    file.write_text(json.dumps({"entries": {"large": {"task": "echo", "schedule": 60}}}))
    done = call(app, "import", "--owner", "me", "--replace", "--yes", str(file))
    assert done.exit_code == 0, done.stderr
    assert Entry.get("large", app).task == "echo"


@pytest.fixture
def ground(server: Server) -> Iterator[Ground]:
    with server.client(db=0) as admin:
        yield Ground(server, admin, "writer")


def test_users_of_an_earlier_rule_are_protected_as_well(ground: Ground) -> None:
    """As long as they may not ask for lengths, the server reads the fields itself."""
    for user in ("beat", "writer", "viewer"):
        ground.let([right for right in documented_rights(user) if right != "+hstrlen"], user)
    settings = {"redbeat_max_entry_bytes": MAX_BYTES}
    write_large(ground.admin, "large", size=3 * MEBIBYTE)
    app = ground.app("beat", **settings)
    before = ground.admin.info("stats")["total_net_output_bytes"]
    with leader(app) as scheduler:
        ground.make_due("large")
        scheduler.tick()
    for user in ("writer", "viewer"):
        with pytest.raises(EntryCorrupt, match="redbeat_max_entry_bytes"):
            Entry.get("large", ground.app(user, **settings))
    assert "redbeat_max_entry_bytes" in field(ground.admin, "large", "error")["reason"]
    assert ground.admin.info("stats")["total_net_output_bytes"] - before < MEBIBYTE


def peak_mebibytes(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text("utf-8")
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024  # type: ignore[index]


@pytest.mark.parametrize("size", [7_400_000, 100 * MEBIBYTE])
def test_a_large_one_costs_beat_neither_memory_nor_a_run(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path, size: int
) -> None:
    with run_beat(tmp_path, server.url(0), redbeat_redis_url=server.url(1)) as beat:
        write_canary(client)
        eventually(lambda: "canary" in sent_names(broker), 30)
        before = peak_mebibytes(beat.pid)
        write_large(client, "large", size=size)
        eventually(lambda: client.hexists("redbeat:large", "error"), 30)
        reason = field(client, "large", "error")["reason"]
        assert f"it has {size // 1_000_000}" in reason.replace(",", "")
        assert "redbeat_max_entry_bytes allows 1,048,576" in reason
        assert "raise the setting" in reason
        print(f"{before:.0f} MB, then {peak_mebibytes(beat.pid):.0f} MB")
        assert peak_mebibytes(beat.pid) < before + 50
        reached = sent_names(broker).count("canary")
        eventually(lambda: sent_names(broker).count("canary") > reached + 2, 30)


def test_twenty_of_five_megabytes_keep_no_other_waiting(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    for number in range(20):
        write_raw(client, f"large-{number}", schedule=SELDOM, score=1 + number, args=["x" * 5_000_000])
    scheduler = make_scheduler(redbeat_max_entry_bytes=8 * MEBIBYTE)
    waits = []
    while scheduler.tick() == 0:
        write_raw(client, "canary", schedule=SELDOM, score=server_now(client))
        sent = broker.llen("celery")
        scheduler.tick()
        waits.append(broker.llen("celery") - sent)
        assert json.loads(broker.lindex("celery", 0))["headers"]["redbeat_entry"] == "canary"
    assert max(waits) <= 3, "one batch has a few of them, and the canary"
    assert broker.llen("celery") == 20 + len(waits)


@EVERY_KIND_OF_LOCK
def test_many_that_are_not_large_are_claimed_in_portions_of_eight_megabytes(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    names = write_burst(client, 1200, args=["x" * 15_000])
    claimed: list[int] = []
    claim_one = Claims.claim

    def claim_and_count(*args: Any, **kwargs: Any) -> Any:
        claim = claim_one(*args, **kwargs)
        claimed.append(sum(len(row.definition or "") for row in claim.rows))
        return claim

    monkeypatch.setattr(Claims, "claim", claim_and_count)
    scheduler = make_scheduler(redbeat_batch_size=5000, **settings)
    while scheduler.tick() == 0:
        pass
    assert sent_names(broker) == names
    assert max(claimed) < 8.1 * MEBIBYTE
    assert len([size for size in claimed if size]) == 3, "and not in more round trips than that takes"
