"""`celery redbeat doctor`: each finding provoked on a real server, each repair verified."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import CliRunner, Result

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.cli import redbeat
from redbeat.doctor import examine
from redbeat.repairs import repair
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.integration.test_acl import documented_rules
from tests.support.apps import celery_worker, write_app
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    STATICS,
    TICK,
    field,
    meta_json,
    monitoring,
    score_of,
    server_now,
    write_raw,
)
from tests.support.servers import Server
from tests.support.ticks import make_due, memory_app
from tests.support.topologies import ClusterTopology

HISTORY, BACKFILLED = "redbeat::history:", "redbeat::backfilled:"
#: in the year 2255
LATER = 9e9
TOKEN_OF_2X = "0123456789abcdef0123456789abcdef"
#: what may be done to the schedule's keys by whoever only looks
READING = {
    *(
        "EVALSHA",
        "EVAL",
        "TIME",
        "TYPE",
        "EXISTS",
        "HMGET",
        "HGETALL",
        "ZSCORE",
        "ZCOUNT",
        "ZCARD",
        "ZRANGEBYSCORE",
    ),
    *("GET", "PTTL", "SCAN", "SMEMBERS", "ACL"),
}
Ask = Callable[..., Result]
Findings = dict[str, list[dict[str, Any]]]


@pytest.fixture
def server(valkey: Server) -> Iterator[Server]:
    """One kind is enough; this one keeps what it has."""
    with valkey.client() as admin:
        admin.config_set("save", "3600 1")
        yield valkey
        admin.config_set("save", "")
        admin.config_set("maxmemory-policy", "noeviction")


@pytest.fixture
def ask(make_app: MakeApp) -> Ask:
    """`celery redbeat doctor` of an app, in this process."""

    def run(*arguments: str, app: Celery | None = None, command: str = "doctor", **settings: Any) -> Result:
        context = SimpleNamespace(app=app or make_app(**settings), no_color=True)
        return CliRunner().invoke(redbeat, [command, *arguments], obj=context)

    return run


@pytest.fixture
def findings(ask: Ask) -> Callable[..., Findings]:
    """What it finds, by kind."""

    def run(*arguments: str, **settings: Any) -> Findings:
        done = ask("--json", *arguments, **settings)
        document = json.loads(done.output)
        assert done.exit_code == document["exit_code"]
        found: Findings = {}
        for finding in document["findings"]:
            assert finding["problem"][-1] in ".?", finding
            found.setdefault(finding["kind"], []).append(finding)
        return found

    return run


def only(found: Findings, kind: str, severity: str) -> dict[str, Any]:
    """The one finding, when it is of that kind."""
    assert list(found) == [kind], found
    [finding] = found[kind]
    assert finding["severity"] == severity
    return finding


def everything(client: redis.Redis) -> dict[str, Any]:
    return {key: client.dump(key) for key in client.scan_iter()}


# -- health


def test_a_healthy_new_schedule_has_no_finding(
    ask: Ask, app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    done = ask(app=app)
    assert (done.exit_code, done.output) == (0, "Nothing is wrong; 0 entries looked at.\n")
    app.conf.beat_schedule = {"static": {"task": "celery.ping", "schedule": 3600}}
    Calendar("holidays", ["2026-12-25"], app=app).save()
    RedBeatSchedulerEntry("report", "celery.ping", 3600, exclude="holidays", app=app).save()
    make_due(app, "report")
    scheduler = make_scheduler(app=app)
    scheduler.tick()
    done = ask(app=app)
    assert (done.exit_code, done.output) == (0, "Nothing is wrong; 2 entries looked at.\n")


def test_nothing_is_written_without_fix(
    server: Server, ask: Ask, app: Celery, client: redis.Redis, sick: None
) -> None:
    ask(app=app)
    before = everything(client)
    for arguments in ([], ["--json"], ["--fix", "--dry-run"], ["--workers", "0.1"]):
        with monitoring(server, with_scripts=True) as commands:
            ask(*arguments, app=app)
        on_schedule = [command for command in commands if "redbeat" in command]
        assert {command.split()[0].upper() for command in on_schedule} <= READING, arguments
    assert everything(client) == before


def test_the_codes_are_in_the_help(ask: Ask) -> None:
    assert "0 nothing but notes, 1 warnings, 2 errors" in " ".join(ask("--help").output.split())


def test_a_server_that_is_away_is_one_sentence() -> None:
    context = SimpleNamespace(app=memory_app(redbeat_redis_url="redis://127.0.0.1:1/0"), no_color=True)
    for command in (["doctor"], ["doctor", "--fix"], ["why", "report"]):
        done = CliRunner().invoke(redbeat, command, obj=context)
        assert done.exit_code == 69
        assert done.output.startswith("Error: Redis at redis://127.0.0.1:1/0 can't be used")
        assert done.output.count("\n") == 1


def test_a_server_that_hangs_is_not_waited_for_long(second: Server) -> None:
    app = memory_app(redbeat_redis_url=second.url(0), redbeat_redis_options={"retry_period": -1})
    with second.client() as admin:
        admin.client_pause(8_000)
    began = time.monotonic()
    done = CliRunner().invoke(redbeat, ["doctor"], obj=SimpleNamespace(app=app, no_color=True))
    assert (done.exit_code, time.monotonic() - began < 8) == (69, True)


def test_a_large_schedule_is_left_when_time_is_up(ask: Ask, app: Celery, client: redis.Redis) -> None:
    with client.pipeline(transaction=False) as pipeline:
        for number in range(30_000):
            write_raw(pipeline, f"e{number}", score=LATER + number)
        pipeline.execute()
    found = examine(app, max_seconds=0.2)
    [unseen] = [finding for finding in found.findings if finding.kind == "unseen"]
    assert unseen.problem.startswith("Not all was looked at within 0.2 s:")
    assert f"{30_000 - found.seen} of 30000 entries" in unseen.problem
    assert 0 < found.seen < 30_000
    began = time.monotonic()
    ask("--max-seconds", "1", app=app)
    assert time.monotonic() - began < 6


def test_many_findings_of_a_kind_are_cut_short_for_people(ask: Ask, client: redis.Redis) -> None:
    client.zadd(SCHEDULE, {f"redbeat:gone{number}": LATER for number in range(25)})
    done = ask()
    assert done.output.count("its hash is gone") == 10
    assert "… and 15 more of missing-hash; --all shows them." in done.output
    assert ask("--all").output.count("its hash is gone") == 25


def test_wrong_options_are_64(ask: Ask) -> None:
    assert ask("--dry-run").exit_code == 64
    assert ask("--workers", "-1").exit_code == 64


# -- settings and the server


def test_unknown_settings(findings: Any) -> None:
    found = only(findings(redbeat_lock_timout=5), "unknown-setting", "warning")
    assert found["about"] == "redbeat_lock_timout"
    assert "redbeat_lock_timeout" in found["problem"]


def test_wrong_settings_are_a_finding(findings: Any) -> None:
    found = only(findings(redbeat_lock_timeout="soon"), "setting", "error")
    assert found["about"] == "redbeat_lock_timeout"


def test_a_prefix_without_a_hash_tag_in_a_cluster(findings: Any, cluster: ClusterTopology) -> None:
    options = {"cluster": True}
    settings = {"redbeat_redis_url": cluster.url(), "redbeat_redis_options": options}
    found = only(findings(**settings, redbeat_key_prefix="redbeat:"), "setting", "error")
    assert "hash tag" in found["problem"]


def test_a_server_that_may_evict(findings: Any, server: Server, client: redis.Redis) -> None:
    client.config_set("maxmemory-policy", "allkeys-lru")
    assert "allkeys-lru" in only(findings(), "eviction", "error")["problem"]


def test_a_server_that_keeps_nothing(findings: Any, client: redis.Redis) -> None:
    client.config_set("save", "")
    assert "restart" in only(findings(), "persistence", "warning")["problem"]


def test_a_clock_that_is_wrong(findings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = time.time
    monkeypatch.setattr("redbeat.doctor.server.time", SimpleNamespace(time=lambda: real() - 40))
    found = only(findings(), "clock", "warning")
    assert "40.0 s behind the server's" in found["problem"]


def test_rights_that_beat_lacks(server: Server, findings: Any, sick: None) -> None:
    rules = [*documented_rules("beat"), "+info", "+scan", "+acl|whoami", "+acl|dryrun", ">secret"]
    with server.client() as admin:
        admin.execute_command("ACL SETUSER", "rich", *rules)
        admin.execute_command("ACL SETUSER", "poor", *rules, "-zadd", "-publish")
    as_admin = findings()
    assert findings(redbeat_redis_url=server.url(1).replace("redis://", "redis://rich:secret@")) == as_admin
    found = findings(redbeat_redis_url=server.url(1).replace("redis://", "redis://poor:secret@"))
    assert {finding["severity"]: finding["problem"] for finding in found["rights"]} == {
        "error": "The server doesn't let it do what beat needs: ZADD redbeat::schedule.",
        "warning": "The server doesn't let it do what beat needs for some of its features: "
        "PUBLISH redbeat::wake.",
    }
    assert found["rights"][0]["about"] == "user poor"


def test_a_user_that_may_not_ask_gets_notes(server: Server, findings: Any, client: redis.Redis) -> None:
    write_raw(client, "bad", "{", score=LATER)
    with server.client() as admin:
        admin.execute_command("ACL SETUSER", "shy", *documented_rules("beat"), ">secret", "-config")
    found = findings(redbeat_redis_url=server.url(1).replace("redis://", "redis://shy:secret@"))
    assert found.keys() == {"eviction", "persistence", "rights", "quarantined", "refused"}
    assert {finding["severity"] for kind in found if kind != "quarantined" for finding in found[kind]} == {
        "note"
    }


# -- who leads


def test_no_leader_though_entries_are_due(findings: Any, client: redis.Redis) -> None:
    write_raw(client, "a", score=server_now(client) - 300)
    found = only(findings(), "no-leader", "error")
    assert found["problem"] == "No beat holds the lock, and 1 entry is due, the oldest for 5 min."


def test_a_leader_that_does_not_get_on(
    findings: Any, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    make_scheduler()
    write_raw(client, "a", score=server_now(client) - 300)
    only(findings(), "late", "error")


def test_a_lock_that_never_ends(findings: Any, client: redis.Redis) -> None:
    client.set(LOCK, "somebody")
    found = only(findings(), "lock-for-ever", "error")
    assert found["advice"] == "Delete it: redis-cli DEL redbeat::lock"


def test_a_lock_of_2x_seems_to_be_one(findings: Any, client: redis.Redis) -> None:
    client.set(LOCK, TOKEN_OF_2X, px=90_000)
    assert "seems to be a celery-redbeat 2.x's" in only(findings(), "foreign-leader", "warning")["problem"]
    client.set(LOCK, "words", px=90_000)
    assert "no beat's of RedBeat 3" in only(findings(), "foreign-leader", "warning")["problem"]


def test_a_lock_whose_holder_is_dead(findings: Any, client: redis.Redis) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    client.set(LOCK, f"redbeat:3:{socket.gethostname()}:{ended.pid}:1:ab", px=90_000)
    assert f"process {ended.pid} of this machine" in only(findings(), "dead-leader", "warning")["problem"]
    client.set(TICK, server_now(client) - 1)  # it is in another container, which calls itself so as well
    assert findings() == {}
    client.set(TICK, server_now(client) - 400)
    client.set(LOCK, "redbeat:3:elsewhere:1:1:ab", px=90_000)
    assert "for 7 min" in only(findings(), "silent-leader", "warning")["problem"]


def test_runs_that_2x_seems_to_have_recorded(
    findings: Any, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    now = datetime.now(timezone.utc)
    client.set(TICK, server_now(client))
    since = int(now.timestamp()) - 7200
    client.set(LOCK, f"redbeat:3:web-1:1:{since}:ab", px=90_000)
    write_raw(client, "ran", score=LATER, meta=meta_json(now - timedelta(hours=1), 7))
    write_raw(client, "before", score=LATER, meta=meta_json(now - timedelta(hours=9), 7))
    write_raw(client, "never", score=LATER, meta=meta_json(now - timedelta(hours=1), 0))
    write_raw(client, "ours", score=LATER, meta=meta_json(now - timedelta(hours=1), 7) + " ")
    found = only(findings(), "mixed-versions", "warning")
    assert (found["about"], "seems" in found["problem"]) == ("redbeat:ran", True)


# -- entries


@pytest.mark.parametrize(
    ("definition", "reason", "excerpt"),
    [
        ('{"task": "echo", "schedule": {"__type__": "interval", "every": }}', "no valid JSON", '"every": }}'),
        ('{"schedule": {"__type__": "interval", "every": 5}}', "task: is missing.", '{"schedule"'),
        ('{"task": 5, "schedule": {"__type__": "interval", "every": 5}}', "task: must be", '"task": 5,'),
        (
            '{"task": "echo", "schedule": {"__type__": "crontab", "minute": "61"}}',
            "61 > 59",
            '"crontab", "minute"',
        ),
    ],
)
def test_entries_that_cannot_be_used(
    findings: Any, client: redis.Redis, definition: str, reason: str, excerpt: str
) -> None:
    write_raw(client, "bad", definition, score=LATER)
    found = only(findings(), "quarantined", "error")
    assert found["about"] == "bad"
    assert reason in found["problem"]
    assert excerpt in found["excerpt"]


def test_a_quarantined_entry_says_since_when(
    findings: Any, client: redis.Redis, make_scheduler: MakeScheduler
) -> None:
    write_raw(client, "bad", "{}")
    make_scheduler().tick()
    assert field(client, "bad", "error")["since"][:19] in only(findings(), "quarantined", "error")["advice"]


def test_a_run_that_cannot_be_sent(findings: Any, client: redis.Redis, make_scheduler: MakeScheduler) -> None:
    write_raw(client, "bad", options={"serializer": "yml"})
    make_scheduler().tick()
    found = findings()
    assert "1 times so far" in found.pop("failing")[0]["problem"]
    assert "No encoder installed for yml" in only(found, "unserialisable", "error")["problem"]


@pytest.mark.parametrize(
    "fields",
    [
        {"options": {"expires": "soon"}},
        {"options": {"expires": {"a": 1}}},
        {"options": {"compression": "squeeze"}},
        {"kwargs": {"x": {"__type__": "interval", "every": 5}}},
        {"options": {"headers": {"x": {"__type__": "crontab"}}}},
    ],
)
def test_runs_that_cannot_be_written_as_a_message(
    findings: Any, client: redis.Redis, fields: dict[str, Any]
) -> None:
    write_raw(client, "bad", score=LATER, **fields)
    assert only(findings(), "unserialisable", "error")["about"] == "bad"


def test_missing_calendars(findings: Any, client: redis.Redis) -> None:
    write_raw(client, "bad", score=LATER, exclude="holidays")
    assert "no calendar 'holidays'" in only(findings(), "calendar", "error")["problem"]


def test_mistyped_keys(findings: Any, client: redis.Redis) -> None:
    write_raw(client, "bad", score=LATER, schedule={"__type__": "crontab", "minutes": "5"})
    assert "did you mean minute?" in only(findings(), "unknown-key", "warning")["problem"]


def test_entries_that_never_run_again(findings: Any, client: redis.Redis, app: Celery) -> None:
    entry = RedBeatSchedulerEntry("over", "echo", 60, max_runs=1, app=app).save()
    next(entry)
    assert "max_runs=1" in only(findings(), "never-again", "note")["problem"]
    client.flushdb()
    write_raw(client, "stopped", score=-1)
    assert "though its schedule has a time" in only(findings(), "never-again", "warning")["problem"]
    client.flushdb()
    write_raw(client, "disabled", score=-1, enabled=False)
    assert findings() == {}


def test_schedules_without_a_time(findings: Any, client: redis.Redis) -> None:
    february = {"__type__": "crontab", "minute": "0", "hour": "0", "day_of_month": "30", "month_of_year": "2"}
    write_raw(client, "bad", score=LATER, schedule=february)
    assert only(findings(), "no-time", "warning")["about"] == "bad"


# -- tasks and workers


def test_unknown_tasks(findings: Any, client: redis.Redis, app: Celery) -> None:
    write_raw(client, "a", score=LATER, task="ecko")
    assert findings(app=app) == {}  # it has no tasks of its own where beat runs

    @app.task(name="echo", shared=False)
    def echo() -> None:
        """Do nothing."""

    assert "Did you mean echo?" in only(findings(app=app), "unknown-task", "warning")["problem"]


def test_modules_that_cannot_be_imported(findings: Any) -> None:
    found = only(findings(imports=["there_is_no_such_module"]), "tasks-unknown", "warning")
    assert "there_is_no_such_module" in found["problem"]


def test_queues_that_nobody_consumes(
    tmp_path: Path, server: Server, findings: Any, client: redis.Redis, app: Celery
) -> None:
    app.conf.task_routes = {"routed": {"queue": "special"}}
    write_raw(client, "plain", score=LATER)
    assert only(findings("--workers", "0.5", app=app), "no-worker", "warning")["about"] == "workers"
    write_raw(client, "routed", score=LATER, task="routed")
    write_raw(client, "optional", score=LATER, options={"queue": "other"})
    write_app(tmp_path, "worked", server.url(0))
    with celery_worker(tmp_path, "worked"):
        found = findings("--workers", app=app)
    assert {finding["about"]: finding["problem"] for finding in found.pop("no-consumer")}.keys() == {
        "special",
        "other",
    }
    assert found == {}


# -- what is left over, and repairs


@pytest.fixture
def sick(client: redis.Redis) -> None:
    """One of each that can be repaired, and others that mustn't be touched."""
    write_raw(client, "well", score=LATER)
    client.rpush(f"{HISTORY}well", "x")
    client.sadd(STATICS, "well")
    client.zadd(SCHEDULE, {"redbeat:gone": LATER, "gone-too": -1})
    write_raw(client, "lost", score=None)
    write_raw(client, "bare", score=None)
    client.zadd(SCHEDULE, {"bare": LATER})
    client.sadd(STATICS, "old")
    client.rpush(f"{HISTORY}old", "x")
    client.sadd(f"{BACKFILLED}old", "x")
    client.hset("redbeat:nothing-of-ours", "a", "b")
    client.set("redbeat:text", "x")
    # another schedule, whose prefix begins with ours
    client.zadd("redbeat:two::schedule", {"redbeat:two:other": LATER})
    client.hset("redbeat:two:lost", "definition", "{}")


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
    told = done.output.splitlines()[-6:]
    assert set(told) == {
        "redbeat:gone: taken out of the schedule, as it has no hash.",
        "gone-too: taken out of the schedule, as it has no hash.",
        "redbeat:lost: put into the schedule, at its next time.",
        "old: removed from redbeat::statics.",
        "redbeat::history:old: deleted.",
        "redbeat::backfilled:old: deleted.",
    }
    assert dry.output.count("would be ") == len(told)
    assert {key: client.hgetall(key) for key in client.scan_iter(_type="hash")} == definitions
    assert set(client.zrange(SCHEDULE, 0, -1)) == {"redbeat:well", "bare", "redbeat:lost"}
    assert 3500 < (score_of(client, "lost") or 0) - server_now(client) <= 3600
    assert client.smembers(STATICS) == {"well"}
    assert set(client.scan_iter("redbeat::*")) == {SCHEDULE, STATICS, f"{HISTORY}well"}
    assert client.exists("redbeat:two::schedule", "redbeat:two:lost", "redbeat:text") == 3
    assert findings() == {}
    assert ask("--fix").output.endswith("There is nothing that --fix can repair.\n")


def test_what_has_changed_meanwhile_is_left_alone(
    app: Celery, client: redis.Redis, sick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examine(app).findings
    write_raw(client, "gone", score=None)
    write_raw(client, "old", score=LATER)
    client.zadd(SCHEDULE, {"redbeat:lost": 5})
    sentences = list(repair(app, found))
    assert sum("left alone" in sentence for sentence in sentences) == 5
    assert (client.zscore(SCHEDULE, "redbeat:gone"), client.zscore(SCHEDULE, "redbeat:lost")) == (LATER, 5)
    assert client.exists(f"{HISTORY}old", f"{BACKFILLED}old") == 2
    assert client.smembers(STATICS) == {"well", "old"}


def test_an_entry_that_cannot_be_used_is_not_put_back(ask: Ask, findings: Any, client: redis.Redis) -> None:
    write_raw(client, "bad", "{}", score=None)
    done = ask("--fix")
    assert "redbeat:bad: left alone, when it is due can't be found" in done.output
    assert score_of(client, "bad") is None


def test_repairs_wake_the_beat(app: Celery, client: redis.Redis, ask: Ask) -> None:
    write_raw(client, "lost", score=None)
    with client.pubsub(ignore_subscribe_messages=True) as channel:
        channel.subscribe("redbeat::wake")
        channel.get_message(timeout=1)
        ask("--fix")
        assert channel.get_message(timeout=1) is not None


def test_a_schedule_of_another_type_is_a_finding(findings: Any, client: redis.Redis) -> None:
    client.set(SCHEDULE, "x")
    assert only(findings(), "wrong-type", "error")["about"] == SCHEDULE


def test_a_cluster_is_examined_and_repaired(cluster: ClusterTopology) -> None:
    app = memory_app(redbeat_redis_url=cluster.url(), redbeat_redis_options={"cluster": True})
    client = cluster.client()
    RedBeatSchedulerEntry("lost", "echo", 60, app=app).save()
    client.zrem("{redbeat}::schedule", "{redbeat}:lost")
    client.zadd("{redbeat}::schedule", {"{redbeat}:gone": LATER})
    client.rpush("{redbeat}::history:old", "x")
    context = SimpleNamespace(app=app, no_color=True)
    done = CliRunner().invoke(redbeat, ["doctor", "--fix"], obj=context)
    assert [line.partition(": ")[2] for line in done.output.splitlines()[-3:]] == [
        "taken out of the schedule, as it has no hash.",
        "put into the schedule, at its next time.",
        "deleted.",
    ]
    assert client.zrange("{redbeat}::schedule", 0, -1) == ["{redbeat}:lost"]
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
        assert "redbeat:\\udcff: It stands in the schedule" in shown.output
        assert "\x1b" not in shown.output
        about = {finding["about"] for finding in json.loads(printed.output)["findings"]}
        half = [chr(0xDC00 + byte) for byte in (0xFD, 0xFE, 0xFF)]
        expected = {half[0], f"redbeat:{half[1]}", f"redbeat:{half[2]}", "redbeat:", "deep", "utf", "broken"}
        assert expected <= about
    assert ask("--fix", app=undecoding).exit_code == 2
    assert raw.zscore(SCHEDULE, b"redbeat:\xff") is raw.zscore(SCHEDULE, b"\xfe") is None
    assert raw.exists(b"redbeat::history:\xfc") == 0
    raw.close()
