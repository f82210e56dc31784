"""What is left over, and how `doctor --fix` repairs it, on a real server."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner

from redbeat import RedBeatSchedulerEntry
from redbeat.cli import redbeat
from redbeat.diagnostics.checks import examine
from redbeat.diagnostics.fixes import repair
from redbeat.keys import OWN_KINDS, Keys
from tests.conftest import MakeApp
from tests.support.doctoring import (
    BACKFILLED,
    HISTORY,
    LATER,
    Ask,
    everything,
    only,
)
from tests.support.schedule import (
    SCHEDULE,
    STATICS,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import memory_app
from tests.support.topologies import ClusterTopology


def test_what_is_left_over_is_found(findings: Any, sick: None) -> None:
    found = {kind: {one["about"] for one in many} for kind, many in findings().items()}
    assert found == {
        "missing-hash": {"redbeat:gone", "redbeat:gone-too"},
        "orphan-static": {"old"},
        "orphan-key": {f"{HISTORY}old", f"{BACKFILLED}old"},
        "unscheduled": {"lost"},
    }


def test_repairs_are_made_and_told(ask: Ask, findings: Any, client: redis.Redis, sick: None) -> None:
    definitions = {key: client.hgetall(key) for key in client.scan_iter(_type="hash")}
    before = everything(client)
    dry = ask("--fix", "--dry-run")
    assert everything(client) == before
    done = ask("--fix")
    assert done.exit_code == 2
    told = done.output.splitlines()[-5:]
    assert set(told) == {
        "redbeat:gone: taken out of the schedule, as it has no hash.",
        "gone-too: taken out of the schedule, as it has no hash.",
        "old: removed from redbeat::statics.",
        "redbeat::history:old: deleted.",
        "redbeat::backfilled:old: deleted.",
    }
    assert dry.output.count("would be ") == len(told)
    assert {key: client.hgetall(key) for key in client.scan_iter(_type="hash")} == definitions
    assert set(client.zrange(SCHEDULE, 0, -1)) == {"redbeat:well", "bare"}
    assert client.smembers(STATICS) == {"well"}
    assert set(client.scan_iter("redbeat::*")) == {SCHEDULE, STATICS, f"{HISTORY}well", "redbeat::audit"}
    assert client.exists("redbeat:two::schedule", "redbeat:two:lost", "redbeat:text") == 3
    assert set(findings()) == {"unscheduled"}
    assert ask("--fix").output.endswith("There is nothing that --fix can repair.\n")


def test_what_has_changed_meanwhile_is_left_alone(
    app: Celery, client: redis.Redis, sick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examine(app).findings
    write_raw(client, "gone", score=None)
    write_raw(client, "old", score=LATER)
    sentences = list(repair(app, found))
    assert sum("left alone" in sentence for sentence in sentences) == 4
    assert client.zscore(SCHEDULE, "redbeat:gone") == LATER
    assert client.exists(f"{HISTORY}old", f"{BACKFILLED}old") == 2
    assert client.smembers(STATICS) == {"well", "old"}


def test_a_key_that_holds_no_record_is_told_and_left_alone(findings: Any, client: redis.Redis) -> None:
    write_raw(client, "well", score=LATER)
    client.set(f"{HISTORY}well", "text")
    write_raw(client, ":history:gone", score=None)
    client.lpush(f"{BACKFILLED}gone", "x")
    client.rpush(f"{HISTORY}old", "x")
    found = findings("--fix")
    wrong = {one["about"]: (one["severity"], one["fixable"]) for one in found["wrong-type"]}
    about = {f"{HISTORY}well", f"{HISTORY}gone", f"{BACKFILLED}gone"}
    assert wrong == dict.fromkeys(about, ("warning", False))
    assert client.exists(*about) == 3
    assert not client.exists(f"{HISTORY}old")


def test_an_entry_that_was_taken_out_and_cannot_be_used_is_told_of(
    findings: Any, client: redis.Redis
) -> None:
    write_raw(client, "bad", "{}", score=None)
    problem = only(findings(), "unscheduled", "note")["problem"]
    assert problem.endswith("It can't be used either: definition: schedule: is missing.")


def test_a_schedule_of_another_type_is_a_finding(findings: Any, client: redis.Redis) -> None:
    client.set(SCHEDULE, "x")
    assert only(findings(), "wrong-type", "error")["about"] == SCHEDULE


@pytest.mark.parametrize("name", sorted(OWN_KINDS.keys() - {"layout"}))  # that is a finding of its own
def test_each_key_of_redbeat_s_own_that_has_another_type_is_a_finding(
    findings: Any, client: redis.Redis, name: str
) -> None:
    write_raw(client, "well", score=LATER)
    key = Keys().own(name)
    client.delete(key)
    client.rpush(key, "x")  # none of them is a list
    told = findings()["wrong-type"]
    assert [one["about"] for one in told] == [key]
    assert re.search(r"is no (\w+ )?\w+", told[0]["problem"])
    assert client.lrange(key, 0, -1) == ["x"], "it is left alone"


def test_a_cluster_is_examined_and_repaired(cluster: ClusterTopology) -> None:
    app = memory_app(redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True})
    client = cluster.client()
    client.zadd("{redbeat}::schedule", {"{redbeat}:gone": LATER})
    client.rpush("{redbeat}::history:old", "x")
    context = SimpleNamespace(app=app, no_color=True)
    done = CliRunner().invoke(redbeat, ["doctor", "--fix"], obj=context)
    assert [line.partition(": ")[2] for line in done.output.splitlines()[-2:]] == [
        "taken out of the schedule, as it has no hash.",
        "deleted.",
    ]
    assert client.zrange("{redbeat}::schedule", 0, -1) == []
    client.close()


def test_a_member_that_is_a_bare_name_is_listed_as_its_entry(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "bare", score=None)
    client.zadd(SCHEDULE, {"bare": LATER})
    [entry] = RedBeatSchedulerEntry.list(app)
    assert (entry.name, entry.state) == ("bare", "scheduled")


def test_what_is_no_text_is_told_as_well_as_can_be(ask: Ask, server: Server, make_app: MakeApp) -> None:
    raw = redis.Redis(port=server.port, db=1)
    raw.zadd(SCHEDULE, {b"redbeat:\xff": LATER, b"\xfe": LATER, b"": LATER, b"redbeat:\x1b[2J": LATER})
    raw.hset(b"redbeat:\xfd", "definition", "{}")
    raw.rpush(b"redbeat::history:\xfc", "x")
    raw.sadd(STATICS, b"\xfb", b"")
    raw.hset("redbeat:deep", "definition", "[" * 100_000)
    raw.hset("redbeat:utf", "definition", b'{"task": "\xff"}')
    raw.hset("redbeat:broken", mapping={"definition": "[", "meta": "[", "policy": "["})
    raw.zadd(SCHEDULE, {"redbeat:deep": "inf", "redbeat:utf": "-inf", "redbeat:broken": 1e300})
    undecoding = make_app()
    undecoding.redbeat_redis = raw
    for app in (make_app(), undecoding):
        shown, printed = ask(app=app), ask("--json", app=app)
        assert (shown.exit_code, printed.exit_code) == (2, 2), shown.output
        assert "redbeat:\\udcff: It is in the schedule" in shown.output
        assert "\x1b" not in shown.output
        about = {finding["about"] for finding in json.loads(printed.output)["findings"]}
        half = [chr(0xDC00 + byte) for byte in (0xFD, 0xFE, 0xFF)]
        expected = {half[0], f"redbeat:{half[1]}", f"redbeat:{half[2]}", "redbeat:", "deep", "utf", "broken"}
        assert expected <= about
    assert ask("--fix", app=undecoding).exit_code == 2
    assert raw.zscore(SCHEDULE, b"redbeat:\xff") is raw.zscore(SCHEDULE, b"\xfe") is None
    assert raw.exists(b"redbeat::history:\xfc") == 0
    raw.close()
