"""`celery redbeat add, set, delete, pause, resume, trigger` and `backfill`, on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule, solar

from redbeat import RedBeatSchedulerEntry
from redbeat.calendars import Calendar
from redbeat.cli.options import POLICY, TASK_OPTIONS
from redbeat.entries.forms import arguments_of
from redbeat.entries.wording import when_in
from redbeat.policy.policy import FIELDS, PAUSE_FIELDS
from redbeat.schedules import clocked, cron, rrule
from tests.conftest import MakeApp
from tests.integration.cli.conftest import Call
from tests.integration.conftest import MakeScheduler
from tests.support.command_line import call
from tests.support.schedule import messages, write_raw
from tests.support.servers import Server

TIMEZONE = "Europe/Berlin"

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def get(app: Celery) -> Callable[[str], RedBeatSchedulerEntry]:
    return lambda name: RedBeatSchedulerEntry.get(name, app)


Get = Callable[[str], RedBeatSchedulerEntry]


# -- add


def test_a_service_that_these_settings_keep_beat_from_calling_is_told(make_app: MakeApp) -> None:
    app = make_app(redbeat_ping_hosts=["known.example"])
    there, elsewhere = ("--ping-url", "https://known.example/s"), ("--ping-url", "http://h.local:8000/secret")
    said = "redbeat_ping_hosts doesn't have h.local:8000 in the settings here"
    for command in (("add", "a", "echo", "--every", "60"), ("set", "a"), ("set", "--match", "*", "--yes")):
        assert call(app, *command, *there, *(["--replace"] if "add" in command else [])).stderr == ""
        done = call(app, *command, *elsewhere, *(["--replace"] if "add" in command else []))
        assert done.exit_code == 0
        assert said in done.stderr
        assert "secret" not in done.output
    assert call(app, "set", "a", "--every", "5").stderr == "", "what isn't given isn't told of again"
    assert call(app, "set", "a", "--unset", "ping-url").stderr == ""


def test_a_change_of_an_entry_of_beat_schedule_does_not_last_and_that_is_told(
    make_scheduler: MakeScheduler,
) -> None:
    fields = {"task": "echo", "schedule": 3600}
    app = make_scheduler(beat_schedule={"hourly": fields, "hourly-2": fields}).app
    said = "from beat_schedule: this change lasts until a beat starts or becomes leader"
    assert f"hourly comes {said}" in call(app, "set", "hourly", "--every", "60").stderr
    assert call(app, "add", "own", "echo", "--every", "60").exit_code == 0
    assert call(app, "set", "own", "--every", "30").stderr == ""
    for match, words in {"*y": "hourly comes", "*": "hourly and 1 more come"}.items():
        command = ("set", "--match", match, "--every", "90")
        assert call(app, *command, "--dry-run").stderr.count(said) == 0
        assert f"{words} {said}" in call(app, *command, "--yes").stderr
    assert call(app, "set", "--match", "ow*", "--every", "90", "--yes").stderr == ""


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--every", "30s"], schedule(30)),
        (["--every", "1h30m"], schedule(5400)),
        (["--every", "0.2"], schedule(0.2)),
        (["--cron", "*/5 9 * * mon-fri"], crontab("*/5", "9", "mon-fri")),
        (["--cron", "@daily"], crontab("0", "0")),
        (["--cron", "0 9 L * *"], cron("0 9 L * *")),
        (["--at", "2099-12-24T18:00"], clocked(datetime(2099, 12, 24, 18, tzinfo=BERLIN))),
        (["--at", "2099-12-24T18:00Z"], clocked(datetime(2099, 12, 24, 18, tzinfo=timezone.utc))),
        (
            ["--at", "2099-12-24T18:00", "--timezone", "America/New_York"],
            clocked(datetime(2099, 12, 24, 18, tzinfo=ZoneInfo("America/New_York"))),
        ),
        (["--solar", "sunset,52.5,13.4"], solar("sunset", 52.5, 13.4)),
    ],
)
def test_each_kind_of_schedule_can_be_added(ask: Call, get: Get, options: list[str], expected: Any) -> None:
    ask("add", "one", "echo", *options)
    assert get("one").schedule == expected


def test_a_rule_goes_by_the_clocks_of_the_application(ask: Call, get: Get) -> None:
    ask("add", "one", "echo", "--rrule", "FREQ=DAILY;BYHOUR=9;BYMINUTE=0;BYSECOND=0")
    entry = get("one")
    assert isinstance(entry.schedule, rrule)
    assert {(due.hour, due.utcoffset()) for due in entry.next_runs(300)} == {
        (9, timedelta(hours=1)),
        (9, timedelta(hours=2)),
    }


def test_every_field_has_its_option(ask: Call, get: Get, app: Celery) -> None:
    Calendar("holidays", app=app).save()
    values = {
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
    assert values.keys() == set(POLICY) == set(FIELDS) - set(PAUSE_FIELDS)
    options = [
        word
        for name, (text, _) in values.items()
        for word in [f"--{name.replace('_', '-')}", *([text] if text else [])]
    ]
    own = {
        "queue": "q",
        "exchange": "e",
        "exchange_type": "topic",
        "routing_key": "r",
        "priority": 3,
        "expires": 60,
    }
    assert own.keys() == set(TASK_OPTIONS)
    for name, value in own.items():
        options += [f"--{name.replace('_', '-')}", str(value)]
    options += ["--args", '[1, "a"]', "--kwargs", '{"x": {"y": null}}', "--options", '{"headers": {"a": 1}}']
    ask("add", "one", "echo", "--every", "1d", *options, "--disabled")
    entry = get("one")
    assert {name: getattr(entry, name) for name in values} == {
        name: value for name, (_, value) in values.items()
    }
    assert entry.options == {"headers": {"a": 1}, **own}
    assert (entry.args, entry.kwargs, entry.enabled) == ([1, "a"], {"x": {"y": None}}, False)
    unset = [
        word for name in [*POLICY, *TASK_OPTIONS, "args"] for word in ("--unset", name.replace("_", "-"))
    ]
    ask("set", "one", *unset, "--enabled")
    entry = get("one")
    assert entry.policy == RedBeatSchedulerEntry("two", "echo", 1, app=app).policy
    assert entry.options == {"headers": {"a": 1}}
    assert (entry.args, entry.enabled) == ([], True)


def test_an_entry_that_is_there_is_replaced_only_on_demand(ask: Call, app: Celery, get: Get) -> None:
    ask("add", "one", "echo", "--every", "1h")
    refused = call(app, "add", "one", "echo", "--every", "2h")
    assert refused.exit_code == 64
    assert "There is an entry 'one' already: --replace" in refused.stderr
    assert get("one").schedule == schedule(3600)
    ask("add", "one", "echo", "--every", "2h", "--replace")
    assert get("one").schedule == schedule(7200)


def test_an_entry_that_can_not_be_used_is_replaced(ask: Call, get: Get, client: redis.Redis) -> None:
    write_raw(client, "one", "no json")
    ask("add", "one", "echo", "--every", "2h", "--replace")
    assert get("one").schedule == schedule(7200)


def test_what_was_added_is_told_and_printed_as_json(ask: Call) -> None:
    told = ask("add", "[b]one[/b]", "echo", "--every", "1h").stdout
    assert "Added [b]one[/b]: Every hour\nNext run: " in told
    assert "in 60 min" in told
    printed = json.loads(ask("add", "two", "echo", "--every", "1h", "--json").stdout)
    assert (printed["name"], printed["state"]) == ("two", "scheduled")


# -- set


def test_only_what_is_given_changes(ask: Call, app: Celery, get: Get) -> None:
    entry = RedBeatSchedulerEntry(
        "one", "echo", 60, [1], {"x": 2}, options={"queue": "q", "priority": 1}, jitter=5, max_runs=9, app=app
    ).save()
    before = arguments_of(entry)
    ask("set", "one", "--priority", "7", "--jitter", "2s")
    after = arguments_of(get("one"))
    assert after == {**before, "jitter": 2, "options": {"queue": "q", "priority": 7}}
    ask("set", "one", "--task", "add", "--cron", "0 9 * * *", "--disabled")
    after = get("one")
    assert (after.task, after.schedule, after.enabled) == ("add", crontab("0", "9"), False)
    assert (after.args, after.max_runs) == ([1], 9)


def test_a_time_is_on_the_clocks_of_the_entry(ask: Call, app: Celery, get: Get) -> None:
    RedBeatSchedulerEntry("one", "echo", crontab(), timezone="Asia/Tokyo", app=app).save()
    ask("set", "one", "--end-time", "2099-01-01T09:00")
    assert get("one").end_time == datetime(2099, 1, 1, tzinfo=timezone.utc)
    ask("set", "one", "--at", "2098-01-01T09:00")
    assert get("one").due_at == datetime(2098, 1, 1, tzinfo=timezone.utc)
    ask("pause", "one", "--until", "2097-01-01T09:00")
    assert get("one").paused_until == datetime(2097, 1, 1, tzinfo=timezone.utc)


def test_a_change_by_somebody_else_meanwhile_is_kept(
    app: Celery, get: Get, monkeypatch: pytest.MonkeyPatch
) -> None:
    RedBeatSchedulerEntry("one", "echo", 60, options={"queue": "q"}, app=app).save()
    save, others = RedBeatSchedulerEntry.save, [True]

    def save_late(self: RedBeatSchedulerEntry, *, if_unchanged: bool = False) -> RedBeatSchedulerEntry:
        if others and if_unchanged:
            others.pop()
            get("one").update(options={"queue": "other"}, jitter=3)
        return save(self, if_unchanged=if_unchanged)

    monkeypatch.setattr(RedBeatSchedulerEntry, "save", save_late)
    assert call(app, "set", "one", "--priority", "7").exit_code == 0
    assert (get("one").options, get("one").jitter) == ({"queue": "other", "priority": 7}, 3)


# -- pause and resume


def test_an_entry_is_paused_and_resumed(ask: Call, app: Celery, get: Get) -> None:
    RedBeatSchedulerEntry("one", "echo", 60, app=app).save()
    assert ask("pause", "one", "--note", "why [not]").stdout == "Paused one.\n"
    assert (get("one").paused, get("one").pause_note, get("one").enabled) == (True, "why [not]", False)
    assert ask("resume", "one").stdout.startswith("Resumed one; next run: ")
    assert (get("one").paused, get("one").pause_note, get("one").enabled) == (False, None, True)


def test_many_are_paused_by_a_pattern_and_one_that_is_spoilt_stops_none(
    ask: Call, app: Celery, get: Get, client: redis.Redis
) -> None:
    for name in ("a1", "a2", "b1"):
        RedBeatSchedulerEntry(name, "echo", 60, app=app).save()
    done = ask("pause", "--match", "a*", "--json", "--yes")
    assert [json.loads(line)["state"] for line in done.stdout.splitlines()] == ["paused", "paused"]
    assert get("b1").enabled
    write_raw(client, "a0", "no json")
    done = call(app, "resume", "--match", "a*", "--yes")
    assert done.exit_code == 64
    assert "1 of 3 entries couldn't be changed." in done.stderr
    assert get("a1").enabled
    assert get("a2").enabled


@pytest.mark.parametrize(
    "command",
    [
        ("pause",),
        ("resume",),
        ("resume", "--note", "nobody's"),
        ("set", "--queue", "slow"),
        ("trigger",),
        ("backfill", "--from", "2026-01-01"),
        ("delete",),
    ],
)
@pytest.mark.parametrize("way", ["--yes", "--dry-run"])
def test_a_pattern_that_no_name_matches_is_66_for_every_command_that_changes(
    app: Celery, client: redis.Redis, command: tuple[str, ...], way: str
) -> None:
    write_raw(client, "a1")
    done = call(app, *command, "--match", "nothing*", way)
    assert (done.exit_code, done.stdout) == (66, "")
    assert "No entry's name matches 'nothing*'; nothing was done." in done.stderr


# -- delete


def test_entries_are_deleted_by_name_and_by_pattern(ask: Call, app: Celery, client: redis.Redis) -> None:
    for name in ("a1", "a2", "b1", "b2"):
        RedBeatSchedulerEntry(name, "echo", 60, app=app).save()
    write_raw(client, "spoilt", "no json")
    client.zadd("redbeat::schedule", {"redbeat:gone": 1})
    assert ask("delete", "b1", "--match", "a*", "--yes").stdout == "Deleted 3 entries.\n"
    assert ask("delete", "spoilt", "gone", "--yes").stdout == "Deleted 2 entries.\n"
    assert [entry.name for entry in RedBeatSchedulerEntry.list(app)] == ["b2"]
    assert json.loads(ask("delete", "b2", "--yes", "--json").stdout) == {"deleted": 1, "names": ["b2"]}
    assert client.keys() == ["redbeat::audit"]


def test_nothing_is_deleted_where_nobody_says_yes_or_a_name_is_wrong(app: Celery) -> None:
    RedBeatSchedulerEntry("one", "echo", 60, app=app).save()
    unasked = call(app, "delete", "one")
    assert (unasked.exit_code, "give --yes" in unasked.stderr) == (64, True)
    wrong = call(app, "delete", "one", "two", "--yes")
    assert wrong.exit_code == 66
    assert RedBeatSchedulerEntry.count(app) == 1


# -- trigger and backfill


def test_a_run_by_hand_is_sent(ask: Call, app: Celery, broker: redis.Redis) -> None:
    RedBeatSchedulerEntry("one", "echo", 86_400, [1], options={"queue": "slow"}, app=app).save()
    told = ask("trigger", "one").stdout
    (sent,) = messages(broker, "slow")
    assert f"Sent echo for one; its task id is {sent['headers']['id']}." in told
    printed = json.loads(ask("trigger", "one", "--args", "[2]", "--queue", "fast", "--json").stdout)
    (sent,) = messages(broker, "fast")
    assert sent["headers"]["id"] == printed["task_id"]
    assert sent["headers"]["argsrepr"] == "[2]"


def test_a_backfill_is_shown_sent_and_not_repeated(ask: Call, app: Celery, broker: redis.Redis) -> None:
    entry = RedBeatSchedulerEntry("one", "echo", crontab(minute=0), app=app).save()
    stored_at = when_in(entry.last_run_at or datetime.min, app.timezone)
    early = f" All of them are from before {stored_at}, when it was stored."
    span = ["--from", "2024-01-01T10:00", "--to", "2024-01-01T12:30"]
    lines = [f"2024-01-01 {hour}:00:00 Europe/Berlin" for hour in (10, 11, 12)]
    shown = ask("backfill", "one", *span, "--dry-run")
    assert (shown.stdout.splitlines(), shown.stderr) == (lines, f"3 runs would be sent.{early}\n")
    assert messages(broker) == []
    unasked = call(app, "backfill", "one", *span)
    assert (unasked.exit_code, "give --yes" in unasked.stderr, messages(broker)) == (64, True, [])
    sent = ask("backfill", "one", *span, "--yes")
    assert (sent.stdout.splitlines(), sent.stderr) == (lines, f"Sent 3 runs.{early}\n")
    assert len(messages(broker)) == 3
    assert json.loads(ask("backfill", "one", *span, "--yes", "--json").stdout)["runs"] == []
    assert len(messages(broker)) == 3


def test_a_backfill_says_which_part_of_its_span_is_before_the_entry_began(ask: Call, app: Celery) -> None:
    start = datetime(2024, 1, 1, 11, tzinfo=app.timezone)
    RedBeatSchedulerEntry("started", "echo", crontab(minute=0), start_time=start, app=app).save()
    stored_at = datetime(2024, 1, 1, 10, 30, tzinfo=app.timezone)
    RedBeatSchedulerEntry("new", "echo", crontab(minute=0), last_run_at=stored_at, app=app).save()
    ran = {"last_run_at": stored_at, "total_run_count": 1, "app": app}
    RedBeatSchedulerEntry("ran", "echo", crontab(minute=0), **ran).save()
    span = ["--from", "2024-01-01T10:00", "--to", "2024-01-01T12:30", "--dry-run"]
    begins = "There are none before 2024-01-01 11:00:00 Europe/Berlin, its start_time."
    for name, words in (
        ("started", f"2 runs would be sent. {begins} All of them are from before 2"),
        ("new", "3 runs would be sent. 1 of them is from before 2024-01-01 10:30:00 Europe/Berlin, when"),
        ("ran", "3 runs would be sent.\n"),
    ):
        assert ask("backfill", name, *span).stderr.startswith(words), name
    summary = ask("backfill", "--match", "*", *span).stderr
    assert summary == (
        "8 runs would be sent. There are none before their start_time: 1 entry. "
        "3 of them are from before their entries were stored.\n"
    )


@pytest.mark.parametrize("command", [["trigger", "one"], ["backfill", "one", "--from", "2024-01-01"]])
def test_without_the_application_nothing_is_sent(app: Celery, server: Server, command: list[str]) -> None:
    RedBeatSchedulerEntry("one", "echo", 86_400, app=app).save()
    done = call(app, "--url", server.url(1), *command)
    assert done.exit_code == 64
    assert f"celery -A APP redbeat {command[0]}, without --url" in done.stderr


def test_a_broker_that_is_away_is_69_in_one_sentence(make_app: MakeApp) -> None:
    app = make_app(
        broker_url="amqp://somebody:s3cret@127.0.0.1:1//",
        task_publish_retry=False,
        broker_connection_timeout=1,
    )
    RedBeatSchedulerEntry("one", "echo", 86_400, app=app).save()
    done = call(app, "trigger", "one")
    assert done.exit_code == 69
    assert done.stderr.startswith("Error: The broker amqp://somebody:**@127.0.0.1:1// can't be used: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_task_that_objects_to_its_arguments_is_told_in_one_sentence(app: Celery) -> None:

    @app.task(name="add")
    def add(x: int, y: int) -> None:
        """Take two."""

    RedBeatSchedulerEntry("one", "add", 86_400, [1], app=app).save()
    done = call(app, "trigger", "one")
    assert done.exit_code == 64, done.output
    assert done.stderr.startswith("Error: one can't be sent: TypeError(")
    assert len(done.stderr.splitlines()) == 1
