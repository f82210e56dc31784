"""Commands that change entries: every option, many entries at once, questions, and runs by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule, solar
from syrupy.assertion import SnapshotAssertion

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.cli import session
from redbeat.cli.options import POLICY, TASK_OPTIONS
from redbeat.policy.policy import FIELDS, PAUSE_FIELDS
from redbeat.schedules import clocked, cron
from tests.conftest import MakeApp
from tests.integration.cli.conftest import Call
from tests.integration.conftest import MakeScheduler
from tests.support.command_line import call
from tests.support.schedule import messages, write_raw

TIMEZONE = "Europe/Berlin"


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def get(app: Celery) -> Callable[[str], Entry]:
    return lambda name: Entry.get(name, app)


Get = Callable[[str], Entry]


def test_ping_url_of_an_unknown_host_is_warned_of(make_app: MakeApp) -> None:
    app = make_app(redbeat_ping_hosts=["known.example"])
    there, elsewhere = ("--ping-url", "https://known.example/s"), ("--ping-url", "http://h.local:8000/secret")
    adding = ("add", "a", "echo", "--every", "60", "--replace")
    for command in (adding, ("set", "a"), ("set", "--match", "*", "--yes")):
        assert call(app, *command, *there).stderr == ""
        done = call(app, *command, *elsewhere)
        assert (done.exit_code, "h.local:8000" in done.stderr, "secret" in done.output) == (0, True, False)
    assert call(app, "set", "a", "--every", "5").stderr == "", "the URL is not given again"


def test_add_of_an_unknown_task_is_warned_of(app: Celery) -> None:

    @app.task(name="feed.read", shared=False)
    def read() -> None: ...

    done = call(app, "add", "a", "feed.raed", "--every", "60")
    assert (done.exit_code, "Did you mean feed.read?" in done.stderr) == (0, True)
    assert call(app, "add", "b", "feed.read", "--every", "60").stderr == ""


def test_change_of_a_static_entry_is_warned_of(make_scheduler: MakeScheduler) -> None:
    fields = {"task": "echo", "schedule": 3600}
    app = make_scheduler(beat_schedule={"hourly": fields, "hourly-2": fields}).app
    said = "from beat_schedule: this change lasts until a beat starts or becomes leader"
    assert f"hourly comes {said}" in call(app, "set", "hourly", "--every", "60").stderr
    call(app, "add", "own", "echo", "--every", "60")
    told = call(app, "set", "--match", "*", "--every", "90", "--yes").stderr
    assert f"hourly and 1 more come {said}" in told
    assert call(app, "set", "--match", "ow*", "--every", "90", "--yes").stderr == ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--every", "1h30m"], schedule(5400)),
        (["--cron", "*/5 9 * * mon-fri"], crontab("*/5", "9", "mon-fri")),
        (["--cron", "0 9 L * *"], cron("0 9 L * *")),
        (["--at", "2099-12-24T18:00"], clocked(datetime(2099, 12, 24, 18, tzinfo=BERLIN))),
        (
            ["--at", "2099-12-24T18:00", "--timezone", "America/New_York"],
            clocked(datetime(2099, 12, 24, 18, tzinfo=ZoneInfo("America/New_York"))),
        ),
        (["--solar", "sunset,52.5,13.4"], solar("sunset", 52.5, 13.4)),
    ],
)
def test_add_takes_every_kind_of_schedule(ask: Call, get: Get, options: list[str], expected: Any) -> None:
    ask("add", "one", "echo", *options)
    assert get("one").schedule == expected


def test_every_field_has_its_option(ask: Call, get: Get, app: Celery) -> None:
    Calendar("holidays", app=app).save()
    texts = {
        "timezone": ("Asia/Tokyo", "Asia/Tokyo"),
        "start_time": ("2098-01-01", datetime(2097, 12, 31, 15, tzinfo=timezone.utc)),
        "end_time": ("2099-01-01T00:00Z", datetime(2099, 1, 1, tzinfo=timezone.utc)),
        "max_runs": ("7", 7),
        "one_off": (None, True),
        "after_finish": ("disable", "disable"),
        "jitter": ("1m", 60),
        "expires_after": ("2h", 7200),
        "misfire": ("all", "all"),
        "misfire_limit": ("3", 3),
        "misfire_grace_time": ("90", 90),
        "run_missed": (None, True),
        "exclude": ("holidays", "holidays"),
        "overlap": ("buffer_one", "buffer_one"),
        "max_runtime": ("5m", 300),
        "revoke_overdue": (None, True),
        "queue_timeout": ("1h", 3600),
        "metrics": (None, True),
        "pause_after_failures": ("3", 3),
        "resume_after": ("1d", 86400),
        "tracks": ("workflow", "workflow"),
        "ping_url": ("https://hc-ping.com/abc-123", "https://hc-ping.com/abc-123"),
    }
    assert texts.keys() == set(POLICY) == set(FIELDS) - set(PAUSE_FIELDS)
    options: list[str] = []
    for name, (text, _) in texts.items():
        options += [f"--{name.replace('_', '-')}", *([text] if text else [])]
    own: dict[str, Any] = {"queue": "q", "exchange": "e", "exchange_type": "topic", "routing_key": "r"}
    own |= {"priority": 3, "expires": 60}
    assert own.keys() == set(TASK_OPTIONS)
    for name, value in own.items():
        options += [f"--{name.replace('_', '-')}", str(value)]
    options += ["--args", '[1, "a"]', "--kwargs", '{"x": {"y": null}}', "--options", '{"headers": {"a": 1}}']
    ask("add", "one", "echo", "--every", "1d", *options, "--disabled")
    entry = get("one")
    assert {name: getattr(entry, name) for name in texts} == {name: texts[name][1] for name in texts}
    assert entry.options == {"headers": {"a": 1}, **own}
    assert (entry.args, entry.kwargs, entry.enabled) == ([1, "a"], {"x": {"y": None}}, False)
    unset = [f"--unset={name.replace('_', '-')}" for name in (*POLICY, *TASK_OPTIONS, "args")]
    ask("set", "one", *unset, "--enabled")
    entry = get("one")
    assert entry.policy == Entry("two", "echo", 1, app=app).policy
    assert entry.options == {"headers": {"a": 1}}
    assert (entry.args or [], entry.enabled) == ([], True)


def test_add_replaces_an_existing_entry_only_on_demand(ask: Call, get: Get) -> None:
    ask("add", "one", "echo", "--every", "1h")
    ask("add", "one", "echo", "--every", "2h", code=64)
    assert get("one").schedule == schedule(3600)
    ask("add", "one", "echo", "--every", "2h", "--replace")
    assert get("one").schedule == schedule(7200)


def test_naive_time_uses_entry_timezone(ask: Call, app: Celery, get: Get) -> None:
    Entry("one", "echo", crontab(), timezone="Asia/Tokyo", app=app).save()
    ask("set", "one", "--end-time", "2099-01-01T09:00")
    assert get("one").end_time == datetime(2099, 1, 1, tzinfo=timezone.utc)
    ask("set", "one", "--at", "2098-01-01T09:00")
    assert get("one").due_at == datetime(2098, 1, 1, tzinfo=timezone.utc)
    ask("pause", "one", "--until", "2097-01-01T09:00")
    assert get("one").paused_until == datetime(2097, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("command", ["pause", "set --queue slow", "trigger", "delete"])
def test_pattern_without_a_match_ends_with_66(app: Celery, client: redis.Redis, command: str) -> None:
    write_raw(client, "a1")
    done = call(app, *command.split(), "--match", "nothing*", "--yes")
    assert (done.exit_code, done.stdout, "'nothing*'" in done.stderr) == (66, "", True)


def test_delete_by_name_and_pattern(ask: Call, app: Celery, client: redis.Redis) -> None:
    for name in ("a1", "a2", "b1", "b2"):
        Entry(name, "echo", 60, app=app).save()
    write_raw(client, "spoilt", "no json")
    client.zadd("redbeat::schedule", {"redbeat:gone": 1})
    assert "either a NAME or --match" in ask("delete", "b1", "--match", "a*", "--yes", code=64).stderr
    ask("delete", "b1", "--yes")
    ask("delete", "--match", "a*", "--yes")
    ask("delete", "spoilt", "gone", "--yes")
    assert [entry.name for entry in Entry.list(app)] == ["b2"]
    assert json.loads(ask("delete", "b2", "--yes", "--json").stdout) == {"deleted": 1, "names": ["b2"]}
    assert client.keys() == ["redbeat::audit"]


def test_backfill_is_shown_sent_and_not_repeated(ask: Call, app: Celery, broker: redis.Redis) -> None:
    Entry("one", "echo", crontab(minute=0), app=app).save()
    span = ["--from", "2024-01-01T10:00", "--to", "2024-01-01T12:30"]
    lines = [f"2024-01-01 {hour}:00:00 Europe/Berlin" for hour in (10, 11, 12)]
    shown = ask("backfill", "one", *span, "--dry-run")
    assert shown.stdout.splitlines() == lines
    assert "3 runs would be sent. All of them are from before" in shown.stderr
    unasked = ask("backfill", "one", *span, code=64)
    assert ("give --yes" in unasked.stderr, messages(broker)) == (True, [])
    sent = ask("backfill", "one", *span, "--yes")
    assert (sent.stdout.splitlines(), "Sent 3 runs." in sent.stderr) == (lines, True)
    assert len(messages(broker)) == 3
    assert json.loads(ask("backfill", "one", *span, "--yes", "--json").stdout)["runs"] == []
    assert len(messages(broker)) == 3


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [([1, 2], 69, "The broker amqp://me:**@127.0.0.1:1// can't"), ([1], 64, "one can't be sent: TypeError(")],
)
def test_trigger_that_fails_has_its_exit_code(make_app: MakeApp, args: Any, code: int, words: str) -> None:
    url = "amqp://me:s3cret@127.0.0.1:1//"
    app = make_app(broker_url=url, task_publish_retry=False, broker_connection_timeout=1)

    @app.task(name="add")
    def add(x: int, y: int) -> None: ...

    Entry("one", "add", 86_400, args, app=app).save()
    done = call(app, "trigger", "one")
    assert (done.exit_code, words in done.stderr, len(done.stderr.splitlines())) == (code, True, 1)


UTC = timezone.utc


LATER = datetime(2098, 1, 1, tzinfo=UTC)


@pytest.fixture
def five(app: Celery) -> dict[str, Any]:
    """Two that run, two paused ones with notes, a disabled one; and one that is none of `job-*`."""
    names = ["job-1", "job-2", "job-3", "job-4", "job-5", "other"]
    Entry.save_many(
        Entry(name, "echo", crontab(minute=0), enabled=name != "job-5", app=app) for name in names
    )
    Entry.get("job-3", app).pause("the printer is broken", LATER, "ada")
    Entry.get("job-4", app).pause("a deployment", by="bob")
    return {name: fields(app, name) for name in names}


def fields(app: Celery, name: str) -> Any:
    entry = Entry.get(name, app)
    return {**entry.to_dict(), "last_run_at": None}


def changed(app: Celery, before: dict[str, Any]) -> list[str]:
    return [name for name, was in before.items() if fields(app, name) != was]


def test_named_entry_is_changed_though_it_is_disabled_or_paused(
    app: Celery, ask: Call, five: dict[str, Any]
) -> None:
    ask("resume", "job-5")
    assert Entry.get("job-5", app).enabled, "though it was disabled and not paused"
    ask("pause", "job-3")
    assert fields(app, "job-3") == five["job-3"]
    ask("pause", "job-3", "--note", "no paper")
    entry = Entry.get("job-3", app)
    assert (entry.pause_note, entry.paused_by, entry.paused_until) == ("no paper", "ada", LATER)
    Entry.get("job-5", app).update(enabled=False)
    assert "disabled already, and stays so" in ask("pause", "job-5", "--until", "2h").stdout
    assert not Entry.get("job-5", app).paused


def test_pause_of_a_name_that_only_the_index_has_finds_no_entry(app: Celery, client: redis.Redis) -> None:
    client.zadd("redbeat::schedule", {"redbeat:evicted": 4e9})
    done = call(app, "pause", "evicted")
    assert (done.exit_code, "no entry 'evicted'" in done.stderr) == (66, True)


MASS = [
    ["pause", "--match", "job-*"],
    ["resume", "--match", "job-*"],
    ["set", "--match", "job-*", "--jitter", "5s"],
    ["trigger", "--match", "job-*"],
    ["backfill", "--match", "job-*", "--from", "2024-01-01", "--to", "2024-01-01T02:00"],
    ["backfill", "job-1", "--from", "2024-01-01", "--to", "2024-01-01T02:00"],
    ["delete", "--match", "job-*"],
]


@pytest.mark.parametrize("command", MASS, ids=lambda command: " ".join(command[:2]))
def test_command_about_many_asks_first(
    app: Celery,
    broker: redis.Redis,
    five: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
    command: list[str],
) -> None:
    unasked, dry = call(app, *command), call(app, *command, "--dry-run")
    assert (unasked.exit_code, "--yes" in unasked.stderr) == (64, True)
    assert (dry.exit_code, " would be " in dry.stderr) == (0, True)
    asked: list[str] = []
    monkeypatch.setattr(session, "is_interactive", lambda: True)
    monkeypatch.setattr(session.click, "confirm", lambda text, **_: asked.append(text))
    assert call(app, *command).exit_code == 1
    assert [re.sub(r"redis://\S+", "URL", question) for question in asked] == snapshot
    assert (changed(app, five), messages(broker)) == ([], [])


def test_set_repairs_an_invalid_entry(ask: Call, get: Get, client: redis.Redis) -> None:
    definition = {"name": "bad", "task": "echo", "schedule": 5, "args": [7], "enabled": True}
    write_raw(client, "bad", json.dumps(definition))
    ask("set", "bad", "--every", "60")
    entry = get("bad")
    assert (entry.schedule, entry.args) == (schedule(60), [7])


def test_changed_entry_is_exported_as_fields_of_a_file(ask: Call, app: Celery, tmp_path: Path) -> None:
    """What `set` stores means the same as what `add` stores, and applying the file changes nothing."""
    ask("add", "report", "echo", "--cron", "30 7 * * mon-fri", "--timezone", "Europe/Berlin")
    ask("add", "lights", "echo", "--solar", "sunset,52.5,13.4")
    ask("add", "again", "echo", "--rrule", "DTSTART;TZID=Europe/Berlin:20260101T090000\nRRULE:FREQ=DAILY")
    was = [Entry.get(name, app).stored for name in ("report", "lights", "again")]
    ask("set", "--match", "*", "--jitter", "2m", "--yes")
    now = [Entry.get(name, app).stored for name in ("report", "lights", "again")]
    assert [one.definition for one in now if one] == [one.definition for one in was if one]
    file = tmp_path / "exported.yaml"
    ask("export", str(file))
    assert "stored:" not in file.read_text()
    assert Entry.get("again", app).timezone == "Europe/Berlin"


def test_definition_that_cannot_be_read_is_changed_as_a_whole_only(
    ask: Call, get: Get, client: redis.Redis
) -> None:
    write_raw(client, "bad", "{")
    assert "definition is not a JSON object" in ask("set", "bad", "--jitter", "5s", code=64).stderr
    ask("set", "bad", "--task", "echo", "--every", "60")
    assert get("bad").schedule == schedule(60)


def test_entry_without_its_hash_is_not_changed(ask: Call, client: redis.Redis) -> None:
    client.zadd("redbeat::schedule", {"redbeat:gone": 4e9})
    assert "no entry" in ask("set", "gone", "--task", "t", "--every", "1h", code=66).output
    assert not client.exists("redbeat:gone")


def test_entry_without_its_hash_is_not_paused(ask: Call, client: redis.Redis) -> None:
    client.zadd("redbeat::schedule", {"redbeat:gone": 4e9})
    assert "no entry 'gone'" in ask("pause", "gone", code=66).stderr
    assert not client.xlen("redbeat::audit")


def test_resume_names_entries_that_are_invalid(ask: Call, client: redis.Redis) -> None:
    client.hset("redbeat:bad", "definition", "{")
    client.zadd("redbeat::schedule", {"redbeat:bad": 4e9})
    assert "redbeat:bad" in ask("resume", "--match", "b*", "--yes", code=64).output
    assert "0 resumed" in ask("resume", "--paused-by", "nobody", "--yes").output
