"""The doctor: a table of faults written raw, with what is found and repaired; and how it goes about it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from celery import Celery
from syrupy.assertion import SnapshotAssertion

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.diagnostics.doctor import examine
from redbeat.diagnostics.fixes import repair
from redbeat.keys import OWN_KINDS, Keys
from redbeat.leadership.status import BROKER_AWAY
from redbeat.store.records import mark_of
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.integration.store.rights import documented_rights
from tests.support.apps import celery_worker, write_app
from tests.support.command_line import call
from tests.support.progress import LEASE_MS, Progress
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    STATICS,
    TICK,
    everything,
    meta_json,
    monitoring,
    server_now,
    write_spike,
)
from tests.support.schedule import write_raw as write
from tests.support.servers import Server
from tests.support.stopwatch import Stopwatch
from tests.support.stored import store
from tests.support.ticks import make_due, memory_app
from tests.support.topologies import ClusterTopology

HISTORY, BACKFILLED = "redbeat::history:", "redbeat::backfilled:"
AFAR = 9e9  #: in the year 2255
#: advice that every schedule of these tests gets
ADVICE = ("retry-period",)
#: commands that only read
READING = (
    "EVAL(SHA)?|TIME|TYPE|EXISTS|H(MGET|STRLEN|GETALL)|Z(SCORE|COUNT|CARD|RANGE|RANGEBYSCORE|SCAN)|GET|PTTL|SCAN"
    "|SMEMBERS|ACL|LRANGE"
)
Doctor = Callable[..., dict[str, Any]]


@pytest.fixture
def server(valkey: Server) -> Iterator[Server]:
    """A Valkey that keeps its data, so that the doctor has nothing to say of it."""
    with valkey.client() as admin:
        admin.config_set("save", "3600 1")
        yield valkey
        admin.config_set("save", "")
        admin.config_set("maxmemory-policy", "noeviction")


@dataclass
class Sick:
    """Where faults are written."""

    app: Celery
    client: redis.Redis

    @property
    def progress(self) -> Progress:
        return Progress(self.app, self.client)

    @property
    def now(self) -> float:
        return server_now(self.client)

    def save(self, name: str, *ends: tuple[str, float], schedule: Any = 300, **fields: Any) -> None:
        """Save an entry whose runs have ended so: outcome and seconds."""
        Entry(name, "echo", schedule, app=self.app, **fields).save()
        for number, (outcome, seconds) in enumerate(ends):
            delivery = self.progress.started(name, f"{name}-{number}", 1000.0 + number)
            self.progress.end(delivery, outcome, run_seconds=seconds, error="ValueError: no numbers")

    def led(self, since: float = 7200) -> None:
        """Let a RedBeat 3 elsewhere hold the lock, and have ticked just now."""
        self.client.set(LOCK, f"redbeat:3:elsewhere:1:{int(self.now - since)}:ab", px=90_000)
        self.client.set(TICK, self.now)

    def tracked(self) -> None:
        """Let a worker that tracks runs be alive."""
        self.progress.runs.renew([], LEASE_MS, "celery@test", '"pool":"prefork"')


def two_of(sick: Sick, *names: str, **fields: Any) -> None:
    """One entry with the fault that needs tracked runs, where a worker tracks them."""
    sick.tracked()
    for name in names:
        sick.save(name, **fields)


def waiting(sick: Sick) -> None:
    two_of(sick, "holds", "young", overlap="skip")
    sick.progress.send("holds", "holds-1", overlap="skip", sent=f"{sick.now - 700:.6f}")
    sick.progress.send("young", "young-1", overlap="skip")


def retrying(sick: Sick) -> None:
    two_of(sick, "stuck", "early", overlap="skip")
    for name, seconds in (("stuck", -400), ("early", 400)):
        delivery = sick.progress.started(name, f"{name}-1", overlap="skip")
        sick.progress.end(delivery, "retrying", retry_seconds=seconds)


def overdue(sick: Sick) -> None:
    two_of(sick, "late", max_runtime=1)
    sick.progress.started("late", "late-1", max=1)
    sick.progress.settle(at=sick.now + 10)


def late_leader(sick: Sick) -> None:
    sick.led()
    write(sick.client, "a", score=sick.now - 300)


def blocked_leader(sick: Sick) -> None:
    sick.led()
    write(sick.client, "a", score=sick.now - 5)
    sick.client.set(TICK, f"{sick.now} {BROKER_AWAY}")


def mixed_versions(sick: Sick) -> None:
    """One run that 2.x has recorded since RedBeat 3 leads; and others that it has not."""
    sick.led()
    at = datetime.fromtimestamp(sick.now, timezone.utc)
    write(sick.client, "ran", score=AFAR, meta=meta_json(at - timedelta(hours=1), 7))
    write(sick.client, "before", score=AFAR, meta=meta_json(at - timedelta(hours=9), 7))
    ours = meta_json(at - timedelta(hours=1), 7)
    write(sick.client, "ours", score=AFAR, meta=ours)
    sick.client.hset("redbeat:ours", "meta_crc32", mark_of(ours))


def spoilt_stored_messages(sick: Sick) -> None:
    store(sick.app, "one", "two", args=["x" * 9000])
    sick.client.zrem("redbeat::later", "redbeat::later:one")


def interval(text: str) -> str:
    return f'{{"task": "echo", "schedule": {{"__type__": "interval", "every": {text}}}}}'


def bad(definition: str | None = None, **fields: Any) -> Callable[[Sick], None]:
    return lambda sick: write(sick.client, "bad", definition, **{"score": AFAR, **fields})


def ends(outcome: str, count: int, **fields: Any) -> Callable[[Sick], None]:
    """An entry whose last runs have all ended so, one of which a later run was better, and one too young."""

    def fault(sick: Sick) -> None:
        sick.save("bad", ("succeeded", 1.0), *[(outcome, 1.0)] * count, **fields)
        sick.save("better", *[(outcome, 1.0)] * count, ("succeeded", 1.0), **fields)
        sick.save("young", *[(outcome, 1.0)] * 2, **fields)
        sick.save("disabled", *[(outcome, 1.0)] * count, enabled=False, **fields)

    return fault


FEBRUARY = {"__type__": "crontab", "minute": "0", "hour": "0", "day_of_month": "30", "month_of_year": "2"}
SLOW = [("succeeded", 500.0)] * 2 + [("failed", 450.0), ("succeeded", 2.0)]
#: the fault, and for each finding: kind, severity, about; "+" marks what --fix repairs
FAULTS: dict[str, tuple[Callable[[Sick], object], list[str]]] = {
    # entries
    "no JSON": (bad(interval("")), ["quarantined error bad"]),
    "no task": (bad('{"schedule": {"__type__": "interval", "every": 5}}'), ["quarantined error bad"]),
    "no hash": (
        lambda s: (s.client.set("redbeat:bad", "x"), zadd(s, "redbeat:bad")),
        ["quarantined error bad"],
    ),
    "expires": (bad(options={"expires": "soon"}), ["unserialisable error bad"]),
    "compression": (bad(options={"compression": "squeeze"}), ["unserialisable error bad"]),
    "a schedule among kwargs": (
        bad(kwargs={"x": {"__type__": "interval", "every": 60}}),
        ["unserialisable error bad"],
    ),
    "no calendar": (bad(exclude="holidays"), ["calendar error bad"]),
    "mistyped key": (bad(schedule={"__type__": "crontab", "minutes": "5"}), ["unknown-key warning bad"]),
    "never again": (bad(score=-1), ["never-again warning bad"]),
    "disabled for good": (bad(score=-1, enabled=False), []),
    "no such day": (bad(schedule=FEBRUARY), ["no-time warning bad"]),
    "ping hosts": (
        lambda s: s.save("a", ping_url="http://pings.local:8000/secret"),
        ["ping-host warning a"],
    ),
    # orphans
    "no hash any more": (lambda s: zadd(s, "redbeat:gone"), ["missing-hash error redbeat:gone +"]),
    "static without entry": (lambda s: s.client.sadd(STATICS, "old"), ["orphan-static warning old +"]),
    "history without entry": (
        lambda s: s.client.rpush(f"{HISTORY}old", "x"),
        [f"orphan-key note {HISTORY}old +"],
    ),
    "not scheduled": (lambda s: write(s.client, "lost", score=None), ["unscheduled note lost"]),
    "no history": (
        lambda s: (write(s.client, "well", score=AFAR), s.client.set(f"{HISTORY}well", "x")),
        [f"wrong-type warning {HISTORY}well"],
    ),
    "taken out for 2.x": (
        lambda s: (
            write(s.client, "away", score=None),
            s.client.hset("redbeat::downgraded", "redbeat:away", "nan"),
        ),
        ["downgraded note redbeat::downgraded"],
    ),
    "stored messages": (spoilt_stored_messages, ["unscheduled-message error :later:one"]),
    "body without message": (
        lambda s: s.client.set("redbeat::body:gone", "{}"),
        ["orphan-body note redbeat::body:gone"],
    ),
    "late messages": (
        lambda s: (store(s.app, "one"), s.client.zadd("redbeat::later", {"redbeat::later:one": 1})),
        ["late-messages error redbeat::later"],
    ),
    # runs
    "slow runs": (lambda s: s.save("slow", *SLOW), ["slow-runs warning slow"]),
    "slow runs of a long interval": (lambda s: s.save("slow", *SLOW, schedule=900), []),
    "too few slow runs": (lambda s: s.save("slow", *SLOW[:2]), []),
    "failed runs": (ends("failed", 4), ["failing-runs warning bad"]),
    "runs that never started": (ends("never_started", 5), ["never-started warning bad"]),
    "rejected runs": (ends("rejected", 3), ["rejected-runs warning bad"]),
    "no worker that tracks": (lambda s: s.save("a", overlap="skip"), ["untracked error workers"]),
    "worker that tracks": (lambda s: s.tracked(), []),
    "overdue run": (overdue, ["overdue-run warning late"]),
    "run that waits": (waiting, ["waiting-run warning holds"]),
    "retry that waits": (retrying, ["waiting-run warning stuck"]),
    # the leader
    "no leader": (lambda s: write(s.client, "a", score=s.now - 300), ["no-leader error redbeat::lock"]),
    "late leader": (late_leader, ["late error redbeat::schedule"]),
    "blocked leader": (blocked_leader, ["blocked error redbeat::schedule"]),
    "two versions": (mixed_versions, ["mixed-versions warning ran"]),
    "lock without end": (lambda s: s.client.set(LOCK, "x"), ["lock-for-ever error redbeat::lock"]),
    "lock of 2.x": (
        lambda s: s.client.set(LOCK, "01" * 16, px=90_000),
        ["foreign-leader warning redbeat::lock"],
    ),
    "silent leader": (
        lambda s: (s.led(), s.client.set(TICK, s.now - 400)),
        ["silent-leader warning redbeat::lock"],
    ),
    # the server
    "eviction": (
        lambda s: s.client.config_set("maxmemory-policy", "allkeys-lru"),
        ["eviction error maxmemory-policy"],
    ),
    "no persistence": (lambda s: s.client.config_set("save", ""), ["persistence warning appendonly, save"]),
}


def zadd(sick: Sick, member: str) -> None:
    sick.client.zadd(SCHEDULE, {member: AFAR})


@pytest.fixture(autouse=True)
def without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other program writes here: the doctor need not wait for one to finish an entry."""
    monkeypatch.setattr("redbeat.diagnostics.fixes.MISSING_GRACE_SECONDS", 0.0)


@pytest.fixture
def app(make_app: MakeApp) -> Celery:
    return make_app(redbeat_redis_options={"retry_period": 5})  # as recommended


@pytest.fixture
def doctor(app: Celery) -> Doctor:
    """What `celery redbeat doctor --json` prints, without the advice that everyone gets."""

    def run(*arguments: str, app: Celery = app) -> dict[str, Any]:
        done = call(app, "doctor", "--json", *arguments)
        document: dict[str, Any] = json.loads(done.stdout)
        assert done.exit_code == document["exit_code"]
        document["findings"] = [one for one in document["findings"] if one["kind"] not in ADVICE]
        return document

    return run


def add_task(app: Celery, name: str) -> None:
    @app.task(name=name, shared=False)
    def task() -> None:
        """Do nothing."""


def in_short(document: dict[str, Any]) -> list[str]:
    return sorted(
        f"{one['kind']} {one['severity']} {one['about']}{' +' * one['fixable']}"
        for one in document["findings"]
    )


def words_of(document: dict[str, Any]) -> list[str]:
    """The sentences, without what differs from run to run."""
    texts = [f"{one['problem']} {one['advice']} {one['excerpt']}" for one in document["findings"]]
    return [
        re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)?|\d+ (s|min)\b|127\.0\.0\.1:\d+", "<...>", text)
        for text in texts
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_found_and_repaired(
    doctor: Doctor, app: Celery, client: redis.Redis, fault: str, snapshot: SnapshotAssertion
) -> None:
    make, expected = FAULTS[fault]
    make(Sick(app, client))
    found = doctor("--fix")
    assert in_short(found) == expected
    assert words_of(found) == snapshot
    assert "secret" not in json.dumps(found)
    if "+" in "".join(expected):
        assert in_short(doctor()) == [one for one in expected if not one.endswith(" +")]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"redbeat_lock_timout": 5}, ["unknown-setting warning redbeat_lock_timout"]),
        ({"redbeat_lock_timeout": "soon"}, ["setting error redbeat_lock_timeout"]),
        ({"imports": ["there_is_no_such_module"]}, ["tasks-unknown warning test"]),
        ({"task_routes": "nosuch.module.Router"}, ["task-routes error task_routes"]),
        ({"redbeat_lock_key": "mine"}, ["open-lock note redbeat_lock_key"]),
        ({"redbeat_lock_key": ":lock"}, []),
        ({"redbeat_ping_hosts": ["known.example"]}, []),
        ({}, ["ping-host warning called"]),
    ],
)
def test_invalid_setting_is_found(
    doctor: Doctor, make_app: MakeApp, settings: dict[str, Any], expected: list[str]
) -> None:
    app = make_app(redbeat_redis_options={"retry_period": 5})
    Entry("called", "echo", 60, ping_url="https://known.example/secret", app=app).save()
    app.conf.update({"redbeat_ping_hosts": ["known.example"]} if settings else {})
    app.conf.update(settings)
    app.redbeat_conf = None
    assert in_short(doctor(app=app)) == expected


def test_cluster_is_examined_and_repaired(doctor: Doctor, cluster: ClusterTopology) -> None:
    options = {"cluster": True, "retry_period": 5}
    app = memory_app(redbeat_redis_url=cluster.url(), redbeat_redis_options=options)
    with cluster.client() as client:
        client.zadd("{redbeat}::schedule", {"{redbeat}:gone": AFAR})
        client.rpush("{redbeat}::history:old", "x")
        assert len(doctor("--fix", app=app)["repairs"]) == 2
        assert client.keys("{redbeat}:*[!t]") == []


def test_healthy_schedule_has_no_finding(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    app.conf.beat_schedule = {"static": {"task": "celery.ping", "schedule": 3600}}
    Calendar("holidays", ["2026-12-25"], app=app).save()
    Entry("report", "celery.ping", 3600, exclude="holidays", app=app).save()
    make_due(app, "report")
    make_scheduler(app=app).tick()
    done = call(app, "doctor")
    assert (done.exit_code, done.output) == (0, "Nothing is wrong; 2 entries looked at.\n")


def test_doctor_without_fix_only_reads(server: Server, app: Celery, client: redis.Redis) -> None:
    for fault in ("no hash any more", "history without entry", "not scheduled", "no calendar"):
        FAULTS[fault][0](Sick(app, client))
    before = everything(client)
    for arguments in ([], ["--json"], ["--fix", "--dry-run"], ["--workers", "0.1"]):
        with monitoring(server, with_scripts=True) as commands:
            call(app, "doctor", *arguments)
        words = [command.split()[0].upper() for command in commands if "redbeat" in command]
        assert not [word for word in words if not re.fullmatch(READING, word)]
    assert everything(client) == before


def test_fix_leaves_alone_what_has_changed_meanwhile(app: Celery, client: redis.Redis) -> None:
    for fault in ("no hash any more", "history without entry", "static without entry"):
        FAULTS[fault][0](Sick(app, client))
    found = examine(app).findings
    write(client, "gone", score=None)
    write(client, "old", score=AFAR)
    for is_dry in (True, False):
        assert sum("left alone" in sentence for sentence in repair(app, found, is_dry)) == 3
    assert client.exists(f"{HISTORY}old") == client.sismember(STATICS, "old") == 1
    assert client.zscore(SCHEDULE, "redbeat:gone") == AFAR


def test_fix_leaves_other_schedules_and_keys_alone(doctor: Doctor, client: redis.Redis) -> None:
    write(client, "well", score=AFAR)
    client.rpush(f"{HISTORY}well", "x")
    client.zadd(SCHEDULE, {"redbeat:gone": AFAR})
    client.set("redbeat:text", "x")
    client.zadd("redbeat:two::schedule", {"redbeat:two:other": AFAR})
    client.hset("redbeat:two:lost", "definition", "{}")
    before = everything(client)
    doctor("--fix")
    assert {key for key, value in everything(client).items() if before.get(key) != value} == {
        SCHEDULE, "redbeat::audit",
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(OWN_KINDS.keys() - {"layout"}))  # that is a finding of its own
def test_own_key_of_another_type_is_found(doctor: Doctor, client: redis.Redis, name: str) -> None:
    write(client, "well", score=AFAR)
    key = Keys().own(name)
    client.delete(key)
    client.rpush(key, "x")  # none of them is a list
    found = doctor("--fix")["findings"]
    assert [one["about"] for one in found if one["kind"] == "wrong-type"] == [key]
    assert client.lrange(key, 0, -1) == ["x"]


def test_keys_and_texts_that_are_not_utf8_are_found(server: Server, make_app: MakeApp) -> None:
    undecoding, decoding = make_app(), make_app()
    with server.client(db=1, decode_responses=False) as raw:
        raw.zadd(SCHEDULE, {b"redbeat:\xff": AFAR, b"\xfe": AFAR, b"": AFAR, b"redbeat:\x1b[2J": AFAR})
        raw.hset(b"redbeat:\xfd", "definition", "{}")
        raw.rpush(b"redbeat::history:\xfc", "x")
        raw.sadd(STATICS, b"\xfb", b"")
        raw.hset("redbeat:deep", "definition", "[" * 100_000)
        raw.hset("redbeat:utf", "definition", b'{"task": "\xff"}')
        raw.zadd(SCHEDULE, {"redbeat:deep": "inf", "redbeat:utf": "-inf"})
        undecoding.redbeat_redis = raw
        for app in (decoding, undecoding):
            found = json.loads(call(app, "doctor", "--json").stdout)["findings"]
            half = [chr(0xDC00 + byte) for byte in (0xFD, 0xFE, 0xFF)]
            expected = {half[0], f"redbeat:{half[1]}", f"redbeat:{half[2]}", "redbeat:", "deep", "utf"}
            assert expected <= {one["about"] for one in found}
        assert call(undecoding, "doctor", "--fix").exit_code == 2
        assert raw.zscore(SCHEDULE, b"redbeat:\xff") is raw.zscore(SCHEDULE, b"\xfe") is None
        assert raw.exists(b"redbeat::history:\xfc") == 0


def test_many_findings_of_a_kind_are_cut_short_after_the_errors(app: Celery, client: redis.Redis) -> None:
    add_task(app, "known")
    for number in range(12):
        write(client, f"strange{number:02}", score=AFAR, task="workers.only")
    client.zadd(SCHEDULE, {"redbeat:zz-gone": AFAR})
    lines = call(app, "doctor").output.splitlines()
    assert lines[0].startswith("error: redbeat:zz-gone")
    assert "… and 9 more of unknown-task; --all shows them." in lines
    assert call(app, "doctor", "--all").output.count("warning: strange") == 12


@pytest.mark.parametrize(("has_tasks", "severity"), [(False, "WARNING"), (True, "ERROR")])
def test_schedule_of_an_unknown_type_may_be_valid_for_another_application(
    app: Celery, client: redis.Redis, has_tasks: bool, severity: str
) -> None:
    write(client, "registered", schedule={"__type__": "mine", "x": 1}, score=AFAR)
    [found] = [one for one in examine(app, has_tasks=has_tasks).findings if one.kind == "quarantined"]
    assert found.severity.name == severity


def test_large_schedule_is_examined_until_time_is_up(app: Celery, client: redis.Redis) -> None:
    write_spike(client, AFAR, 10_000)
    found = examine(app, max_seconds=0.1)
    assert "unseen" in [finding.kind for finding in found.findings]
    assert 0 < found.seen < 10_000


def test_silent_server_is_not_waited_for_long(second: Server) -> None:
    app = memory_app(redbeat_redis_url=second.url(0), redbeat_redis_options={"retry_period": -1})
    with second.client() as admin:
        admin.client_pause(60_000)
    with Stopwatch() as watch:
        assert call(app, "doctor").exit_code == 69
    assert watch.asleep_seconds < 8


def test_unconsumed_queue_is_found(doctor: Doctor, tmp_path: Path, server: Server, app: Celery) -> None:
    app.conf.task_routes = {"routed": {"queue": "special"}}
    Entry("plain", "echo", 3600, app=app).save()
    assert in_short(doctor("--workers", "0.5")) == ["no-worker warning workers"]
    Entry("routed", "routed", 3600, app=app).save()
    Entry("optional", "echo", 3600, options={"queue": "other"}, app=app).save()
    write_app(tmp_path, "worked", server.url(0))
    with celery_worker(tmp_path, "worked"):
        found = in_short(doctor("--workers"))
    assert found == ["no-consumer warning other", "no-consumer warning special"]


def test_static_entries_are_examined_before_they_are_stored(doctor: Doctor, app: Celery) -> None:
    add_task(app, "echo")
    app.conf.beat_schedule = {
        "wrong": {"task": "echo", "schedule": "61 * * * *"},
        "no-dict": 5,
        "unknown": {"task": "ecco", "schedule": 60},
    }
    found = in_short(doctor())
    assert {one for one in found if one.split()[-1] in app.conf.beat_schedule} == {
        "static error wrong", "static error no-dict", "unknown-task warning unknown",
    }  # fmt: skip


def test_static_entry_removed_by_2x_is_found(doctor: Doctor, make_scheduler: MakeScheduler) -> None:
    statics = {name: {"task": "echo", "schedule": 3600} for name in ("kept", "lost")}
    app = make_scheduler(beat_schedule=statics).app
    assert "removed-static" not in str(doctor())
    app.redbeat_redis.srem(STATICS, "lost")  # as 2.4.2 does it with what it does not have
    app.redbeat_redis.delete("redbeat:lost")
    app.redbeat_redis.zrem(SCHEDULE, "redbeat:lost")
    assert [one for one in in_short(doctor()) if "removed" in one] == ["removed-static warning lost"]


def test_replica_is_found(server: Server, second: Server) -> None:
    app = memory_app(redbeat_redis_url=second.url())
    with second.client() as admin:
        admin.replicaof(server.host, str(server.port))
        found = json.loads(call(app, "doctor", "--json").stdout)["findings"]
    assert "replica" in [one["kind"] for one in found if one["severity"] == "error"]


def test_wrong_clock_is_found(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    real = datetime.now(timezone.utc).timestamp
    monkeypatch.setattr("redbeat.diagnostics.checks.server.time", SimpleNamespace(time=lambda: real() - 40))
    assert in_short(doctor()) == ["clock warning clock"]


def test_missing_rights_are_found(doctor: Doctor, server: Server, make_app: MakeApp) -> None:
    rules = ["on", *documented_rights("beat"), "+info", "+scan", "+acl|whoami", ">secret"]

    def found(user: str, *rights: str) -> list[str]:
        with server.client() as admin:
            admin.execute_command("ACL SETUSER", user, *rules, *rights)
        url = server.url(1).replace("redis://", f"redis://{user}:secret@")
        return in_short(
            doctor(app=make_app(redbeat_redis_url=url, redbeat_redis_options={"retry_period": 5}))
        )

    assert found("rich") == []
    assert found("poor", "-zadd", "-publish") == ["rights error user poor"]
    shy = found("shy", "-config", "-info", "-scan", "-acl")
    assert {one.split()[1] for one in shy} == {"note"}
