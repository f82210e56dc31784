"""The service that an entry names is told of its runs, if its host is allowed; its URL is shown nowhere."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import signals, track_runs
from redbeat.runs.run import Run
from redbeat.schedules import register_schedule
from redbeat.telemetry.pings import entry_pings
from redbeat.telemetry.pings.entry_pings import EntryPings
from tests.conftest import MakeApp
from tests.support.apps import celery_beat, celery_worker, write_app
from tests.support.command_line import call
from tests.support.polling import eventually
from tests.support.receivers import OK, Receiver
from tests.support.schedule import write_raw
from tests.support.servers import Server

SECRET = "hidden-in-the-url"
DUE = datetime(2026, 1, 1, tzinfo=timezone.utc)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as made:
        yield made


@pytest.fixture
def other() -> Iterator[Receiver]:
    """One that isn't allowed."""
    with Receiver() as made:
        yield made


@pytest.fixture
def watched(make_app: MakeApp, receiver: Receiver) -> Celery:
    """An app whose runs are tracked, and whose entries may call the receiver."""
    app = make_app(redbeat_ping_hosts=[receiver.host])
    track_runs(app)
    return app


@pytest.fixture
def pings(watched: Celery) -> Iterator[EntryPings]:
    made = EntryPings(watched)
    made.look()
    yield made
    made.stop()


def tell(app: Celery, signal: Any, entry: str, outcome: str | None = None) -> None:
    """Call the receivers of a signal as beat's feed does."""
    for _, answer in signal.send(sender=app, entry=entry, run=Run(entry, DUE, "id", outcome=outcome)):
        assert answer is None


def test_start_success_and_failure_are_told_where_the_host_is_allowed(
    server: Server,
    tmp_path: Path,
    receiver: Receiver,
    other: Receiver,
    make_app: MakeApp,
    client: redis.Redis,
) -> None:
    redirect = f"HTTP/1.1 307 There\r\nLocation: {other.url('stolen')}\r\n\r\n".encode()
    receiver.behave = lambda path: redirect if "moved" in path else OK
    settings = {"redbeat_ping_hosts": ["hc-ping.com", receiver.host], "redbeat_log_format": "json"}
    extra = "import redbeat\nredbeat.track_runs(app)"
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), extra=extra, **settings)
    with (
        celery_worker(tmp_path, "module") as worker,
        celery_beat(tmp_path, "module", "-l", "DEBUG") as beat,
    ):
        eventually(lambda: client.exists("redbeat::events-read"))  # from now on it is told of runs
        app = make_app()
        once: dict[str, Any] = {"schedule": 1, "one_off": True, "app": app}
        Entry("good", "echo", ping_url=receiver.url(f"{SECRET}/good?a=b"), **once).save()
        Entry("bad", "fail", ping_url=receiver.url(f"{SECRET}/bad"), **once).save()
        Entry("moved", "echo", ping_url=receiver.url(f"{SECRET}/moved"), **once).save()
        Entry("foreign", "echo", ping_url=other.url(SECRET), **once).save()
        Entry("silent", "echo", **once).save()
        expected = {
            *(f"/{SECRET}/good{end}" for end in ("/start?a=b", "?a=b")),
            *(f"/{SECRET}/bad/{end}" for end in ("start", "fail")),
            *(f"/{SECRET}/moved{end}" for end in ("/start", "")),
        }
        eventually(lambda: set(receiver.paths) >= expected)
        beat.wait_for("isn't in redbeat_ping_hosts")
        beat.wait_for("redirects aren't followed")
    paths = receiver.paths
    assert set(paths) == expected
    for name, start, end in (("good", "/start?a=b", "?a=b"), ("bad", "/start", "/fail")):
        assert paths.index(f"/{SECRET}/{name}{start}") < paths.index(f"/{SECRET}/{name}{end}")
    assert other.requests == []
    assert SECRET not in beat.output() + worker.output()


def test_no_list_shows_the_url_and_an_export_can_be_applied_again(
    app: Celery, tmp_path: Path, client: redis.Redis
) -> None:
    url = f"https://hc-ping.com/{SECRET}"
    entry = Entry("report", "echo", 60, app=app, ping_url=url).save()
    assert SECRET not in repr(entry.policy)
    file = tmp_path / "schedule.yaml"
    file.write_text(
        f"owner: me\nentries:\n  report: {{task: echo, schedule: {{every: 1m}}, ping_url: '{url}2'}}\n"
        f"  new: {{task: echo, schedule: {{every: 1m}}, ping_url: '{url}'}}\n"
    )
    write_raw(client, "broken")
    client.hset("redbeat:broken", "policy", json.dumps({"ping_url": f"ftp://{SECRET}/"}))
    asked = [
        *(["list"], ["list", "--json"], ["show", "report"], ["show", "report", "--json"]),
        *(["plan", str(file)], ["plan", str(file), "--json"], ["next", "report"], ["doctor", "--json"]),
        ["set", "report", "--jitter", "1", "--json"],
        ["add", "another", "echo", "--every", "1m", "--ping-url", url, "--json"],
        ["set", "report", "--ping-url", f"ftp://{SECRET}/"],
        ["apply", str(file), "--yes", "--take-over", "--json"],
        ["why", "report", "--json"],
        *(["show", "broken"], ["show", "broken", "--json"], ["doctor"], ["list", "--state", "quarantined"]),
    ]
    for words in asked:
        done = call(app, *words)
        assert done.output, words
        assert isinstance(done.exception, (SystemExit, type(None))), words
        assert SECRET not in done.output + done.stderr, words
    assert "https://hc-ping.com/**" in call(app, "show", "report").output
    shown = json.loads(call(app, "show", "report", "--json").output)
    assert shown["ping_url"] == "https://hc-ping.com/**"
    assert entry.from_key(entry.key, app=app).to_dict()["ping_url"] == f"{url}2"
    exported = call(app, "export").output
    assert f"{url}2" in exported
    again = call(app, "set", "report", "--ping-url", shown["ping_url"])
    assert again.exit_code == 64
    assert "is one that was masked" in again.output + again.stderr


def test_one_service_that_hangs_keeps_no_other_waiting_and_no_receiver(
    watched: Celery, pings: EntryPings, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with Receiver() as dead:
        dead_url = dead.url(SECRET)
    watched.redbeat_conf.ping_hosts = (receiver.host, dead.host)
    pings.stop()
    pings = EntryPings(watched)
    pings.look()
    try:
        Entry("dead", "echo", 60, app=watched, ping_url=dead_url).save()
        Entry("well", "echo", 60, app=watched, ping_url=receiver.url("well")).save()
        for _ in range(20):
            tell(watched, signals.run_started, "dead")
            tell(watched, signals.run_ended, "dead", "succeeded")
        tell(watched, signals.run_ended, "well", "lost")
        eventually(lambda: receiver.paths == ["/well/fail"])
        told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert len([line for line in told if dead.host in line]) == 1
        assert SECRET not in caplog.text
    finally:
        pings.stop()


def test_what_is_told_follows_the_outcome(watched: Celery, pings: EntryPings, receiver: Receiver) -> None:
    Entry("report", "echo", 60, app=watched, ping_url=receiver.url("x")).save()
    outcomes = {
        "succeeded": "/x", "failed": "/x/fail", "lost": "/x/fail", "never_started": "/x/fail", "revoked": "",
        "expired": "", "rejected": "", "ignored": "", "superseded": "",
    }  # fmt: skip
    tell(watched, signals.run_sent, "report")
    for outcome in outcomes:
        tell(watched, signals.run_ended, "report", outcome)
    tell(watched, signals.run_started, "report")
    eventually(lambda: receiver.paths[-1:] == ["/x/start"])
    assert receiver.paths[:-1] == [path for path in outcomes.values() if path]


def test_without_tracking_the_service_hears_that_a_run_was_sent(
    make_app: MakeApp, receiver: Receiver
) -> None:
    app = make_app(redbeat_ping_hosts=[receiver.host])
    pings = EntryPings(app)
    pings.look()
    try:
        Entry("report", "echo", 60, app=app, ping_url=receiver.url("x")).save()
        Entry("tracked", "echo", 60, app=app, ping_url=receiver.url("y"), max_runtime=5).save()
        tell(app, signals.run_sent, "tracked")
        tell(app, signals.run_sent, "report")
        eventually(lambda: receiver.paths)
        Entry("report", "echo", 60, app=app).delete()
        wish = pings._wishes["report"]  # noqa: SLF001
        pings._wishes["report"] = replace(wish, until=0.0)  # noqa: SLF001 - it is read anew
        tell(app, signals.run_sent, "report")
        eventually(lambda: len(receiver.paths) == 2)
        assert receiver.paths == ["/x", "/x"], "also of an entry that went with its last run"
    finally:
        pings.stop()
    assert not signals.run_sent.receivers


def test_what_is_heard_while_redis_is_away_is_told_later_and_is_bounded(
    watched: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(entry_pings, "MAX_HEARD", 5)
    monkeypatch.setattr(entry_pings, "AWAY_SECONDS", 0.01)
    Entry("report", "echo", 60, app=watched, ping_url=receiver.url("x")).save()
    config = watched.redbeat_conf
    config.redis_url, url = "redis://127.0.0.1:1/0", config.redis_url
    pings = EntryPings(watched)
    pings.look()
    try:
        tell(watched, signals.run_started, "report")
        eventually(lambda: pings._store is not None)  # noqa: SLF001 - it has asked in vain
        for _ in range(9):
            tell(watched, signals.run_ended, "report", "succeeded")
        pings._store = None  # noqa: SLF001
        config.redis_url = url
        eventually(lambda: any(path == "/x" for path in receiver.paths))
        eventually(lambda: "4 events nobody was told" in caplog.text)
        eventually(lambda: receiver.paths == ["/x/start", *["/x"] * 5], message=f"told: {receiver.paths}")
    finally:
        pings.stop()


def test_no_event_is_lost_where_more_entries_are_known_than_remembered(
    watched: Celery, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_pings, "MAX_HEARD", 2)
    pings = EntryPings(watched)
    for name in ("first", "second", "third"):
        Entry(name, "echo", 60, app=watched, ping_url=receiver.url(name)).save()
    for together in (["first"], ["second"], ["first", "third"]):
        for name in together:
            pings._hear(name, "")  # noqa: SLF001
        while pings.step() == 0.0:
            pass
    assert sorted(receiver.paths) == ["/first", "/first", "/second", "/third"]


def test_an_entry_that_raises_an_error_when_it_is_read_keeps_no_other_waiting(
    watched: Celery, receiver: Receiver, client: redis.Redis, caplog: pytest.LogCaptureFixture
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
    assert "Nobody is told of the runs of odd (ping_url): RuntimeError: a bug" in caplog.text


def test_an_unexpected_error_is_told_of_once_and_the_thread_goes_on(
    watched: Celery, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pings = EntryPings(watched)
    monkeypatch.setattr(pings, "_waiting", None)  # no bug is known that raises there
    assert [pings.step() for _ in range(3)] == [entry_pings.AWAY_SECONDS] * 3
    [told] = caplog.records
    assert told.getMessage().startswith(
        "beat: The services of entries can't be told now, trying again: Attrib"
    )
    assert told.exc_info is not None
