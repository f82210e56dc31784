"""`celery redbeat pause, resume, set, trigger, backfill, delete` over many: counted, and asked about."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.cli import confirmation
from tests.integration.cli.conftest import Call
from tests.support.command_line import call
from tests.support.schedule import messages, write_raw

TIMEZONE = "Europe/Berlin"

UTC = timezone.utc
LATER = datetime(2098, 1, 1, tzinfo=UTC)


@pytest.fixture
def schedule(app: Celery) -> dict[str, Any]:
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


# -- pause and resume


def test_what_rests_already_keeps_its_note_and_is_told_in_one_line(
    app: Celery, ask: Call, schedule: dict[str, Any]
) -> None:
    done = ask(
        "pause", "--match", "job-*", "--note", "a move", "--by", "eve", "--until", "2099-01-01", "--yes"
    )
    assert done.stdout == "2 paused, 3 already paused or disabled, left alone.\n"
    assert changed(app, schedule) == ["job-1", "job-2"]
    entry = Entry.get("job-1", app)
    assert (entry.pause_note, entry.paused_by) == ("a move", "eve")
    assert entry.paused_until == datetime(2098, 12, 31, 23, tzinfo=UTC)
    again = ask("pause", "--match", "job-*", "--note", "another")
    assert again.stdout == "0 paused, 5 already paused or disabled, left alone.\n", "and nobody is asked"


def test_what_is_disabled_without_a_pause_stays_so(app: Celery, ask: Call, schedule: dict[str, Any]) -> None:
    done = ask("resume", "--match", "job-*", "--yes")
    assert done.stdout == "2 resumed, 1 disabled without a pause, left alone.\n"
    assert changed(app, schedule) == ["job-3", "job-4"]
    assert not Entry.get("job-5", app).enabled


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (["--note", "a deployment"], ["job-4"]),
        (["--note", "*printer*"], ["job-3"]),
        (["--paused-by", "ada"], ["job-3"]),
        (["--paused-by", "*", "--match", "*-4"], ["job-4"]),
        (["--paused-by", "ada", "--note", "a deployment"], []),
    ],
    ids=str,
)
def test_a_note_and_a_person_select_what_is_resumed(
    app: Celery, ask: Call, schedule: dict[str, Any], selection: list[str], expected: list[str]
) -> None:
    assert ask("resume", *selection, "--yes").stdout == f"{len(expected)} resumed.\n"
    assert changed(app, schedule) == expected


def test_an_entry_that_is_named_is_meant(app: Celery, ask: Call, schedule: dict[str, Any]) -> None:
    ask("resume", "job-5")
    assert Entry.get("job-5", app).enabled, "though nobody had paused it"
    assert "already, and stays so" in ask("pause", "job-3").stdout
    assert fields(app, "job-3") == schedule["job-3"]
    assert "already; changed: job-3 until 2098" in ask("pause", "job-3", "--note", "no paper").stdout
    entry = Entry.get("job-3", app)
    assert (entry.pause_note, entry.paused_by, entry.paused_until) == ("no paper", "ada", LATER)
    Entry.get("job-5", app).update(enabled=False)
    assert "disabled already, and stays so" in ask("pause", "job-5", "--until", "2h").stdout
    assert not Entry.get("job-5", app).paused


def test_who_pauses_is_noted(
    app: Celery, ask: Call, schedule: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "grace")
    ask("pause", "job-1")
    ask("pause", "job-2", "--by", "the deployment")
    assert [Entry.get(name, app).paused_by for name in ("job-1", "job-2")] == ["grace", "the deployment"]


def test_a_note_selects_and_names_name(app: Celery, schedule: dict[str, Any]) -> None:
    done = call(app, "resume", "job-3", "--note", "a deployment", "--yes")
    assert (done.exit_code, "not both" in done.stderr) == (64, True)
    assert changed(app, schedule) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2h", timedelta(hours=2)),
        ("1h30m", timedelta(minutes=90)),
        ("tomorrow", (1, 0, 0)),
        ("tomorrow 9:00", (1, 9, 0)),
        ("Tomorrow at 18:30", (1, 18, 30)),
        ("2099-01-01", datetime(2098, 12, 31, 15, tzinfo=UTC)),
        ("2099-01-01T00:00Z", datetime(2099, 1, 1, tzinfo=UTC)),
    ],
    ids=str,
)
def test_until_when_is_said_as_people_say_it(app: Celery, ask: Call, text: str, expected: Any) -> None:
    """On the clocks of the entry."""
    Entry("one", "echo", 60, timezone="Asia/Tokyo", app=app).save()
    tokyo = ZoneInfo("Asia/Tokyo")
    before = datetime.now(UTC)
    ask("pause", "one", "--until", text)
    after = datetime.now(UTC)
    until = Entry.get("one", app).paused_until
    assert until is not None
    if isinstance(expected, timedelta):
        assert before - timedelta(seconds=5) <= until - expected <= after + timedelta(seconds=5)
    elif isinstance(expected, tuple):
        days, hour, minute = expected
        dates = {(moment.astimezone(tokyo) + timedelta(days)).date() for moment in (before, after)}
        local = until.astimezone(tokyo)
        assert (local.date() in dates, local.hour, local.minute) == (True, hour, minute)
    else:
        assert until == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2020-01-01", r"--until: 2020-01-01 00:00:00 Europe/Berlin is in the past"),
        ("today", "is in the past"),
        ("0s", "is in the past"),
        ("soon", "'soon' is no time; write it as 2h, tomorrow, monday 9:00, 18:30 or 2030-12-24T18:00"),
        ("tomorrow 25:00", "is no time; write it as 2h"),
        ("90", "'90' is no time"),
        ("-2h", "is no time"),
        ("99999999999w", "is more than a hundred years"),
        ("", "is no time"),
    ],
)
@pytest.mark.parametrize("which", [["job-1"], ["--match", "*", "--yes"]], ids=["one", "many"])
def test_a_time_that_is_over_or_none_is_refused_before_anything_is_done(
    app: Celery, schedule: dict[str, Any], which: list[str], text: str, words: str
) -> None:
    done = call(app, "pause", *which, f"--until={text}")
    assert done.exit_code == 64, done.output
    assert re.search(words, done.stderr), done.stderr
    assert changed(app, schedule) == []


# -- questions

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
def test_without_a_terminal_and_a_yes_nothing_is_done(
    app: Celery, broker: redis.Redis, schedule: dict[str, Any], command: list[str]
) -> None:
    done = call(app, *command)
    assert done.exit_code == 64, done.output
    assert "There is no terminal to ask you on: give --yes." in done.stderr
    assert (changed(app, schedule), messages(broker)) == ([], [])


QUESTIONS = [
    r"^Pause 2 entries at redis://\S+ \(job-1, job-2\)\?$",
    r"^Resume 2 entries at redis://\S+ \(job-3, job-4\)\?$",
    r"^Change jitter of 5 entries at redis://\S+ \(job-1, job-2, job-3, job-4, job-5\)\?$",
    r"^Run 5 entries at redis://\S+ \(job-1, job-2, job-3, job-4, job-5\)\?$",
    r"^Send 15 runs of job-1, .*, job-5, due from 2024-01-01 00:00:00 to 2024-01-01 02:00:00 Europe/",
    r"^Send 3 runs of job-1, due from 2024-01-01 00:00:00 to 2024-01-01 02:00:00 Europe/Berlin\?$",
    r"^Delete 5 entries at redis://\S+ \(job-1, job-2, job-3, job-4, job-5\)\?$",
]


@pytest.mark.parametrize(("command", "question"), list(zip(MASS, QUESTIONS, strict=True)))
def test_who_says_no_has_seen_how_many_it_would_be(
    app: Celery,
    broker: redis.Redis,
    schedule: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    question: str,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(confirmation, "is_somebody_there", lambda: True)
    monkeypatch.setattr(confirmation.click, "confirm", lambda text, **_: asked.append(text))
    done = call(app, *command)
    assert (done.exit_code, "Nothing was done." in done.stderr) == (1, True)
    assert len(asked) == 1
    assert re.match(question, asked[0]), asked
    assert (changed(app, schedule), messages(broker)) == ([], [])


@pytest.mark.parametrize("command", MASS, ids=lambda command: " ".join(command[:2]))
def test_a_dry_run_asks_nobody_and_does_nothing(
    app: Celery, ask: Call, broker: redis.Redis, schedule: dict[str, Any], command: list[str]
) -> None:
    done = ask(*command, "--dry-run")
    assert " would be " in done.stderr
    assert done.stdout
    assert (changed(app, schedule), messages(broker)) == ([], [])


# -- what is done


def test_fields_of_many_are_set(app: Celery, ask: Call, schedule: dict[str, Any]) -> None:
    done = ask("set", "--match", "job-*", "--jitter", "5s", "--queue", "slow", "--yes")
    assert done.stdout == "5 changed.\n"
    assert changed(app, schedule) == ["job-1", "job-2", "job-3", "job-4", "job-5"]
    entry = Entry.get("job-3", app)
    assert (entry.jitter, entry.options, entry.pause_note) == (5, {"queue": "slow"}, "the printer is broken")


def test_many_are_run_and_made_up_for(
    app: Celery, ask: Call, broker: redis.Redis, schedule: dict[str, Any]
) -> None:
    assert ask("trigger", "--match", "job-[12]", "--yes").stdout == "Sent 2 runs.\n"
    assert len(messages(broker)) == 2
    span = ["--from", "2024-01-01", "--to", "2024-01-01T02:00", "--yes"]
    assert ask("backfill", "--match", "job-[12]", *span).stderr.startswith("Sent 6 runs. All of them")
    assert len(messages(broker)) == 8
    lines = ask("backfill", "--match", "job-*", *span, "--json").stdout.splitlines()
    assert [len(json.loads(line)["runs"]) for line in lines] == [0, 0, 3, 3, 3]
    refused = call(
        app, "backfill", "--match", "*", "--from", "2024-01-02", "--to", "2024-01-03", "--limit", "30"
    )
    assert (refused.exit_code, "more than 30 runs together" in refused.stderr) == (64, True)


def test_one_that_can_not_be_changed_stops_none_of_the_others(
    app: Celery, client: redis.Redis, schedule: dict[str, Any]
) -> None:
    write_raw(client, "job-0", "no json")
    for command, done in (("set", "5 changed."), ("pause", "2 paused"), ("trigger", "Sent 5 runs.")):
        options = ["--jitter", "5"] if command == "set" else []
        found = call(app, command, "--match", "job-*", *options, "--yes")
        assert found.exit_code == 64, found.output
        assert found.stdout.startswith(done)
        assert "entries couldn't be changed." in found.stderr


def test_programs_get_an_object_a_line_and_the_summary_beside_it(
    app: Celery, ask: Call, schedule: dict[str, Any]
) -> None:
    done = ask("pause", "--match", "job-*", "--yes", "--json")
    assert [json.loads(line)["name"] for line in done.stdout.splitlines()] == ["job-1", "job-2"]
    assert done.stderr == "2 paused, 3 already paused or disabled, left alone.\n"
