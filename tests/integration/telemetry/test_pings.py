"""Pings of redbeat_ping_url while all is well, and of ping_url for the runs of an entry."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatScheduler, signals, track_runs
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.process.memory import Memory
from redbeat.runs.run import Run
from redbeat.schedules import register_schedule
from redbeat.telemetry import entry_pings, ping_calls
from redbeat.telemetry.entry_pings import AWAY_SECONDS, EntryPings
from redbeat.telemetry.ping_calls import CALL_SECONDS
from redbeat.telemetry.pings import (
    LOOK_AGAIN_SECONDS,
    PERIOD_SECONDS,
    RETRY_SECONDS,
    STEP_SECONDS,
    Pings,
)
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.command_line import call
from tests.support.polling import eventually
from tests.support.receivers import OK, Receiver
from tests.support.schedule import LOCK, SCHEDULE, write_raw
from tests.support.servers import Server

SECRET = "hidden-in-the-url"
DUE = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


# -- redbeat_ping_url


def pings_of(scheduler: RedBeatScheduler) -> Pings:
    return Pings(scheduler.app, scheduler._health, scheduler._find_fence)  # noqa: SLF001


def events_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    told = [getattr(record, "redbeat", {}).get("event", "") for record in caplog.records]
    return [event for event in told if event.startswith("redbeat.ping.")]


@pytest.mark.slow
def test_leader_calls_and_a_standby_does_after_its_takeover(
    server: Server, tmp_path: Path, receiver: Receiver
) -> None:
    for name in ("first", "second"):
        url = receiver.url(f"{SECRET}/{name}")
        write_app(tmp_path, name, server.url(), redbeat_ping_url=url, redbeat_takeover_after=5)
    with celery_beat(tmp_path, "first") as first:
        eventually(lambda: receiver.paths)
        with celery_beat(tmp_path, "second") as second:
            second.wait_for("beat: Standing by")
            first.kill()
            receiver.behave = lambda _path: receiver.hang()
            second.wait_for("beat: Acquired lock")
            eventually(lambda: len(receiver.paths) > 1)
            seconds = second.seconds_to_end()
    assert receiver.paths == [f"/{SECRET}/first", f"/{SECRET}/second"]
    assert seconds < CALL_SECONDS, "a call that hangs delays the end"
    assert SECRET not in first.output() + second.output()


def test_leader_calls_once_a_minute_and_withholds_calls_during_trouble(
    make_scheduler: MakeScheduler, receiver: Receiver, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = make_scheduler(redbeat_ping_url=receiver.url("x"))
    pings, config, token = pings_of(scheduler), scheduler.config, client.get(LOCK)
    now = int(client.time()[0])  # type: ignore[index]
    assert pings.step() == PERIOD_SECONDS
    client.zadd(SCHEDULE, {"redbeat:late": now - 50})
    assert pings.step() == PERIOD_SECONDS
    client.zadd(SCHEDULE, {"redbeat:late": now - 120})
    assert [pings.step() for _ in range(3)] == [LOOK_AGAIN_SECONDS] * 3
    client.zrem(SCHEDULE, "redbeat:late")
    assert pings.step() == PERIOD_SECONDS
    assert receiver.paths == ["/x"] * 3
    scheduler._broker.is_away = True  # noqa: SLF001
    assert pings.step() == LOOK_AGAIN_SECONDS
    scheduler._broker.is_away = False  # noqa: SLF001
    client.set(LOCK, "another beat", px=60_000)
    assert pings.step() == LOOK_AGAIN_SECONDS
    client.delete(LOCK)
    assert pings.step() == LOOK_AGAIN_SECONDS
    client.set(LOCK, token, px=60_000)  # type: ignore[arg-type]
    config.redis_url, url = "redis://127.0.0.1:1/0", config.redis_url
    assert pings.step() == LOOK_AGAIN_SECONDS
    config.redis_url = url
    assert len(receiver.paths) == 3
    assert pings.step() == PERIOD_SECONDS
    withheld, resumed = "redbeat.ping.withheld", "redbeat.ping.resumed"
    assert events_in(caplog) == [withheld, resumed, *[withheld] * 4, resumed]
    scheduler.close()
    assert pings.step() == STEP_SECONDS, "it does not lead any more"
    assert len(receiver.paths) == 4


def test_service_that_fails_is_retried_and_logged_once(
    make_scheduler: MakeScheduler, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pings = pings_of(make_scheduler(redbeat_ping_url=receiver.url(SECRET)))
    receiver.behave = lambda _path: b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n"
    assert [pings.step() for _ in range(3)] == [RETRY_SECONDS] * 3
    receiver.behave = lambda _path: OK
    assert [pings.step() for _ in range(2)] == [PERIOD_SECONDS] * 2
    assert events_in(caplog) == ["redbeat.ping.failed", "redbeat.ping.back"]
    assert SECRET not in caplog.text


def test_one_of_several_beats_without_a_lock_calls(
    make_scheduler: MakeScheduler, receiver: Receiver, client: redis.Redis
) -> None:
    settings = {"redbeat_ping_url": receiver.url("x"), "redbeat_lock_key": None}
    beats = [make_scheduler(**settings) for _ in range(2)]
    for beat in beats:
        beat.tick()
    first, second = map(pings_of, beats)
    assert (first.step(), second.step()) == (PERIOD_SECONDS, LOOK_AGAIN_SECONDS)
    assert 0 < client.pttl("redbeat::pinged") <= 55_000  # type: ignore[operator]
    assert len(receiver.paths) == 1
    client.delete("redbeat::pinged")
    receiver.behave = lambda _path: b"HTTP/1.1 500 Oh\r\n\r\n"
    assert first.step() == RETRY_SECONDS
    receiver.behave = lambda _path: OK
    assert second.step() == PERIOD_SECONDS, "the first one has given its turn back"


# -- ping_url of an entry


@pytest.fixture
def watched(make_app: MakeApp, receiver: Receiver) -> Celery:
    """An app that tracks runs and whose entries may call the receiver."""
    app = make_app(redbeat_ping_hosts=[receiver.host])
    track_runs(app)
    return app


@contextmanager
def listening(app: Celery) -> Iterator[EntryPings]:
    pings = EntryPings(app)
    pings.look()
    yield pings
    pings.stop()


def tell(app: Celery, signal: Any, entry: str, outcome: str | None = None) -> None:
    """Send a signal as beat's feed does."""
    for _, answer in signal.send(sender=app, entry=entry, run=Run(entry, DUE, "id", outcome=outcome)):
        assert answer is None


def test_entry_pings_of_a_beat_reach_allowed_hosts_only(
    server: Server, tmp_path: Path, receiver: Receiver, make_app: MakeApp, client: redis.Redis
) -> None:
    settings = {"redbeat_redis_url": server.url(1), "redbeat_ping_hosts": ["hc-ping.com", receiver.host]}
    write_app(tmp_path, "module", server.url(0), **settings)
    with Receiver() as foreign, celery_beat(tmp_path, "module", "-l", "DEBUG") as beat:
        eventually(lambda: client.exists("redbeat::events-read"))  # from now on it is told of runs
        once: dict[str, Any] = {"schedule": 1, "one_off": True, "app": make_app()}
        Entry("good", "echo", ping_url=receiver.url(f"{SECRET}?a=b"), **once).save()
        Entry("foreign", "echo", ping_url=foreign.url(SECRET), **once).save()
        Entry("silent", "echo", **once).save()
        beat.wait_for("isn't in redbeat_ping_hosts")
        eventually(lambda: receiver.paths)
        assert (receiver.paths, foreign.requests) == ([f"/{SECRET}?a=b"], [])
    assert SECRET not in beat.output()


def test_ping_url_is_masked_everywhere_but_in_an_export(
    app: Celery, tmp_path: Path, client: redis.Redis
) -> None:
    url, masked = f"https://hc-ping.com/{SECRET}", "https://hc-ping.com/**"
    entry = Entry("report", "echo", 60, app=app, ping_url=url).save()
    assert SECRET not in repr(entry.policy)
    file = tmp_path / "schedule.yaml"
    declared = {"task": "echo", "schedule": {"every": "1m"}}
    entries = {"report": {**declared, "ping_url": f"{url}2"}, "new": {**declared, "ping_url": url}}
    file.write_text(json.dumps({"owner": "me", "entries": entries}))
    write_raw(client, "broken")
    client.hset("redbeat:broken", "policy", json.dumps({"ping_url": f"ftp://{SECRET}/"}))
    for words in (
        *(["list"], ["list", "--json"], ["list", "--state", "quarantined"], ["show", "report"]),
        *(["show", "report", "--json"], ["plan", str(file)], ["plan", str(file), "--json"]),
        *(["next", "report"], ["why", "report", "--json"], ["doctor"], ["doctor", "--json"]),
        *(["show", "broken"], ["show", "broken", "--json"]),
        ["set", "report", "--jitter", "1", "--json"],
        ["add", "another", "echo", "--every", "1m", "--ping-url", url, "--json"],
        ["set", "report", "--ping-url", f"ftp://{SECRET}/"],
        ["apply", str(file), "--yes", "--take-over", "--json"],
    ):
        done = call(app, *words)
        assert done.output, words
        assert isinstance(done.exception, (SystemExit, type(None))), words
        assert SECRET not in done.output + done.stderr, words
    assert masked in call(app, "show", "report").output
    assert json.loads(call(app, "show", "report", "--json").output)["ping_url"] == masked
    assert entry.from_key(entry.key, app=app).to_dict()["ping_url"] == f"{url}2"
    assert f"{url}2" in call(app, "export").output
    assert call(app, "set", "report", "--ping-url", masked).exit_code == 64


def test_entry_ping_follows_the_outcome(watched: Celery, receiver: Receiver) -> None:
    Entry("report", "echo", 60, app=watched, ping_url=receiver.url("x?a=b")).save()
    failures = ("failed", "lost", "never_started")
    others = ("revoked", "expired", "rejected", "ignored", "superseded")
    outcomes = {"succeeded": "/x?a=b", **dict.fromkeys(failures, "/x/fail?a=b"), **dict.fromkeys(others, "")}
    with listening(watched):
        tell(watched, signals.run_sent, "report")
        for outcome, path in outcomes.items():
            known = len(receiver.paths)
            tell(watched, signals.run_ended, "report", outcome)
            eventually(lambda: len(receiver.paths) == known + bool(path))  # noqa: B023
        tell(watched, signals.run_started, "report")
        eventually(lambda: receiver.paths[-1:] == ["/x/start?a=b"])
    assert receiver.paths[:-1] == [path for path in outcomes.values() if path]


def test_entry_ping_without_tracking_tells_that_a_run_was_sent(make_app: MakeApp, receiver: Receiver) -> None:
    app = make_app(redbeat_ping_hosts=[receiver.host])
    Entry("report", "echo", 60, app=app, ping_url=receiver.url("x")).save()
    Entry("tracked", "echo", 60, app=app, ping_url=receiver.url("y"), max_runtime=5).save()
    with listening(app) as pings:
        tell(app, signals.run_sent, "tracked")
        tell(app, signals.run_sent, "report")
        eventually(lambda: receiver.paths)
        Entry("report", "echo", 60, app=app).delete()
        known = pings._entries._known  # noqa: SLF001
        known["report"] = known["report"][0], 0.0  # it expires
        tell(app, signals.run_sent, "report")
        eventually(lambda: len(receiver.paths) == 2)
    assert receiver.paths == ["/x", "/x"], "also for an entry that was deleted with its last run"


def test_entry_pings_during_an_outage_of_redis_are_kept_up_to_a_limit(
    watched: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(entry_pings, "MAX_WAITING", 5)
    Entry("report", "echo", 60, app=watched, ping_url=receiver.url("x")).save()
    config, pings = watched.redbeat_conf, EntryPings(watched)
    config.redis_url, url = "redis://127.0.0.1:1/0", config.redis_url
    for what in ("start", *[""] * 9):
        pings._hear("report", what)  # noqa: SLF001
        assert pings.step() == AWAY_SECONDS
    config.redis_url = url
    del pings._entries._store  # noqa: SLF001
    while pings.step() == 0:
        pass
    assert receiver.paths == ["/x/start", "/x"]
    assert "5 events were left out" in caplog.text


def test_calls_of_a_failing_service_wait_once_each_in_order_and_others_are_made(
    make_app: MakeApp, receiver: Receiver
) -> None:
    watched = make_app(redbeat_ping_hosts=[receiver.host, "127.0.0.1:1"])
    Entry("away", "echo", 60, app=watched, ping_url="http://127.0.0.1:1/x").save()
    Entry("report", "echo", 60, app=watched, ping_url=receiver.url("x")).save()
    track_runs(watched)
    pings = EntryPings(watched)
    for name, what in (("away", ""), ("away", "start"), ("report", ""), ("away", ""), ("away", "start")):
        pings._hear(name, what)  # noqa: SLF001
    seconds = 0.0
    while not seconds:
        seconds = pings.step()
    assert receiver.paths == ["/x"]
    [calls] = pings._calls.values()  # noqa: SLF001
    assert [url.target for url in calls] == ["/x", "/x/start"]
    assert 4 < seconds <= 5


def test_services_take_turns_also_where_others_fail_for_longer_than_their_pauses(
    make_app: MakeApp, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PAUSE_SECONDS", "MAX_PAUSE_SECONDS"):
        monkeypatch.setattr(ping_calls, name, 0.0)
    watched = make_app(redbeat_ping_hosts=[receiver.host, "127.0.0.1:1", "127.0.0.1:2"])
    urls = ["http://127.0.0.1:1/x", "http://127.0.0.1:2/x", receiver.url("x")]
    pings = EntryPings(watched)
    for number, url in enumerate(urls):
        Entry(f"entry-{number}", "echo", 60, app=watched, ping_url=url).save()
        pings._hear(f"entry-{number}", "")  # noqa: SLF001
    for _ in urls:
        pings.step()
    assert receiver.paths == ["/x"]


def test_services_are_remembered_up_to_a_limit(app: Celery) -> None:
    pings = EntryPings(app)
    pings._services = Memory(limit=2)  # noqa: SLF001
    for name in "abc":
        assert pings._service(name) is pings._service(name)  # noqa: SLF001
    assert [*pings._services] == ["c"]  # noqa: SLF001


def test_entry_that_cannot_be_read_delays_no_ping(
    watched: Celery, receiver: Receiver, client: redis.Redis
) -> None:
    class Odd(schedule):
        pass

    def decode(_: dict[str, Any]) -> Odd:
        raise RuntimeError("a bug")

    register_schedule("odd", Odd, lambda _: {}, decode)
    write_raw(client, "odd", schedule={"__type__": "odd"})
    client.hset("redbeat:odd", "policy", json.dumps({"ping_url": receiver.url("odd")}))
    Entry("well", "echo", 60, app=watched, ping_url=receiver.url("well")).save()
    pings = EntryPings(watched)
    for name in ("odd", "well"):
        pings._hear(name, "")  # noqa: SLF001
    pings.step()
    assert receiver.paths == ["/well"]
