"""Commands about runs and messages: runs, rerun, route, later."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import Result
from kombu import Queue

import redbeat.later
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.audit import find_records
from redbeat.errors import EntryError, FileError
from redbeat.process import exit_codes as exits
from tests.conftest import MakeApp
from tests.integration.cli.conftest import Call
from tests.integration.later.conftest import add_tasks, queued, stored_ids
from tests.support.applying import apply
from tests.support.command_line import call
from tests.support.progress import Progress, running_of
from tests.support.schedule import SCHEDULE, messages, write_raw
from tests.support.servers import Server
from tests.support.ticks import leader

ERROR = "ValueError: no numbers today"


@pytest.fixture
def busy(add: Callable[..., Any], progress: Progress) -> None:
    """Three entries: one that fails, one at work, and one that nobody tracks."""
    for name in ("report", "sync", "quiet"):
        add(name)
    progress.end(progress.started("report", "report-1", 1000.0), "succeeded", run_seconds=2.0)
    for number in (2, 3):
        delivery = progress.started("report", f"report-{number}", 1000.0 * number)
        progress.end(delivery, "failed", run_seconds=4.0, error=ERROR)
    progress.started("sync", "sync-1", 5000.0)


def found(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def rows(result: Result) -> list[list[str]]:
    """The cells of a table, without titles."""
    lines = result.stdout.splitlines()
    [rule] = [number for number, line in enumerate(lines) if line.startswith("─")]
    return [re.split(r" {2,}", line) for line in lines[rule + 1 :] if line and not line.startswith("  ")]


def test_runs_by_state_finds_runs_in_progress_and_past(ask: Call, busy: None) -> None:
    states = [row[:2] for row in rows(ask("runs", "--state", "failed,running,succeeded", columns=120))]
    assert states == [["sync", "started"], *[["report", "failed"]] * 2, ["report", "succeeded"]]
    assert ERROR in ask("runs", "--state", "failed", columns=80).stdout
    assert [run["task_id"] for run in found(ask("runs", "report", "--state", "failed", "--json"))] == [
        "report-3", "report-2",
    ]  # fmt: skip
    assert ask("runs", "report").stdout == ""
    for chosen, count in ((["--match", "rep*"], 2), (["--limit", "1"], 1), (["--since", "2099-01-01"], 0)):
        assert len(found(ask("runs", "--state", "failed", "--json", *chosen))) == count


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["runs", "--state", "faild"], 64, "there is no state 'faild'. Did you mean failed?"),
        (["runs", "gone"], 66, "There is no entry 'gone'"),
        (["rerun"], 64, "Give a NAME, or --all-failed --since TIME."),
        (["rerun", "--all-failed"], 64, "needs --since"),
        (["runs", "--give-up"], 64, "--give-up needs a NAME"),
        (["runs", "sync", "--yes"], 64, "--yes and --by are for --give-up"),
        (["rerun", "quiet"], 64, "none has failed, was lost or never started."),
        (["rerun", "report", "--due", "2001-01-01"], 64, "no run is known that was due at 2001-01-01"),
        (["rerun", "--all-failed", "--since", "1d"], 64, "There is no terminal to ask you on: give --yes."),
    ],
)
def test_invalid_call_has_its_exit_code(
    ask: Call, busy: None, arguments: list[str], code: int, words: str
) -> None:
    done = ask(*arguments, code=code)
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_give_up_needs_yes_without_a_terminal(ask: Call, add: Callable[..., Any], progress: Progress) -> None:
    add("stuck")
    progress.started("stuck", "one", overlap="skip")
    assert "give --yes" in ask("runs", "stuck", "--give-up", code=64).stderr
    assert set(running_of(progress.client, "stuck")) == {"one"}
    [run] = found(ask("runs", "stuck", "--give-up", "--yes", "--json"))
    assert (run["name"], run["task_id"], run["worker"]) == ("stuck", "one", "celery@test")
    assert run["held_until"] is not None
    assert running_of(progress.client, "stuck") == {}
    assert "There are no such runs." in ask("runs", "stuck", "--give-up", "--yes").stderr


def test_backfill_of_entries_held_by_their_runs_ends_with_75(
    ask: Call, add: Callable[..., Any], progress: Progress, broker: redis.Redis
) -> None:
    for name in ("a1", "a2"):
        add(name, 3600, overlap="skip")
    progress.started("a1", "one", overlap="skip")
    span = ("--from", "2024-01-01T00:30Z", "--to", "2024-01-01T01:30Z")
    assert "a1: its overlap is skip" in ask("backfill", "--match", "a*", *span, "--yes", code=75).stderr
    assert len(messages(broker)) == 1


def test_rerun_sends_one_run_of_an_entry_that_may_not_overlap(
    ask: Call, add: Callable[..., Any], progress: Progress, broker: redis.Redis
) -> None:
    for name, policy in (("free", {}), ("single", {"overlap": "skip"})):
        add(name, **policy)
        for number in (1, 2):
            progress.end(progress.started(name, f"{name}-{number}", 1000.0 * number), "failed")
    every = ("rerun", "--all-failed", "--since", "1d")
    done = ask(*every, "--yes", code=exits.TRY_AGAIN)
    assert (done.stdout, "1 run was not sent" in done.stderr) == ("Sent 3 runs once more.\n", True)
    assert [one["headers"]["redbeat_entry"] for one in messages(broker)].count("single") == 1


FAR = 10**10


QUEUES = [Queue("celery"), Queue("feeds")]


def broken_route(name: str, *rest: Any, **more: Any) -> Any:
    raise KeyError("boom")


@pytest.mark.parametrize(
    ("settings", "words", "code", "sentence"),
    [
        ({"task_create_missing_queues": False}, "plain --queue feds", 78, "Did you mean feeds?"),
        ({"task_routes": (broken_route,)}, "plain", 78, "KeyError('boom')"),
        ({}, "broken", 64, "broken is invalid: "),
    ],
)
def test_route_that_cannot_be_found_has_its_exit_code(
    make_app: MakeApp, client: redis.Redis, settings: dict[str, Any], words: str, code: int, sentence: str
) -> None:
    app = make_app(task_queues=QUEUES, **settings)
    write_raw(client, "broken", "{oops", score=4e9)
    done = call(app, "route", *words.split())
    assert (done.exit_code, done.stdout, sentence in done.stderr) == (code, "", True)


def test_unknown_queue_is_refused_by_everything_that_saves(make_app: MakeApp, client: redis.Redis) -> None:
    app = make_app(task_queues=QUEUES, task_create_missing_queues=False)
    sentence = r"options: queue: there is no queue 'feds' in task_queues.* Did you mean feeds\?"
    wrong = Entry("a", "plain", FAR, options={"queue": "feds"}, app=app)
    for save in (wrong.save, lambda: Entry.save_many([wrong])):
        with pytest.raises(EntryError, match=sentence):
            save()
    with pytest.raises(FileError, match=sentence):
        apply(app, "entries: {a: {task: plain, schedule: 60, options: {queue: feds}}}")
    done = call(app, "add", "a", "plain", "--every", "60", "--queue", "feds")
    assert (done.exit_code, "Did you mean feeds?" in done.stderr) == (64, True)
    assert client.zcard(SCHEDULE) == 0
    Entry("a", "plain", FAR, options={"queue": "feeds"}, app=app).save()
    assert call(app, "set", "a", "--queue", "feds").exit_code == 64
    assert Entry.get("a", app).options == {"queue": "feeds"}


ETA = datetime(2099, 3, 1, 8, 30, tzinfo=timezone.utc)


@pytest.fixture
def stored(app: Celery, server: Server) -> None:
    """Two messages, the later one of them pickled."""
    app.conf.update(redbeat_durable_after=1, result_backend=server.url(0))
    redbeat.later.install(app)
    add_tasks(app)
    add, far = app.tasks["add"], ETA.replace(year=2100)
    add.apply_async((1,), {"y": 2}, task_id="first", eta=ETA, priority=3)
    add.apply_async((3,), task_id="second", eta=far, serializer="pickle")


@pytest.mark.usefixtures("stored")
def test_later_cancel_removes_messages(ask: Call, app: Celery) -> None:
    assert "give --yes" in ask("later", "cancel", "first", code=exits.USAGE).stderr
    assert stored_ids(app) == ["first", "second"]
    ask("later", "cancel", "first", "--yes")
    assert stored_ids(app) == ["second"]
    assert app.AsyncResult("first").status == "REVOKED"
    done = ask("later", "cancel", "second", "third", "second", "--yes", "--json", code=exits.NO_INPUT)
    assert json.loads(done.stdout) == {"cancelled": ["second"], "missing": ["third"]}
    assert ("later cancel", ("first",)) in [(record.verb, record.names) for record in find_records(app)]


@pytest.mark.usefixtures("stored")
def test_later_release_publishes_messages_with_their_etas(
    ask: Call, app: Celery, broker: redis.Redis
) -> None:
    ask("later", "release", code=exits.USAGE)
    assert "give --yes" in ask("later", "release", "--all", code=exits.USAGE).stderr
    assert stored_ids(app) == ["first", "second"]
    ask("later", "release", "first", "--yes")
    assert stored_ids(app) == ["second"]
    ask("later", "release", "--all", "--yes")
    messages = queued(broker, "celery", "celery\x06\x163")
    etas = {one["headers"]["id"]: one["headers"]["eta"][:4] for one in messages}
    assert etas == {"first": "2099", "second": "2100"}
    assert stored_ids(app) == []
    ask("later", "release", "first", "--yes", code=exits.NO_INPUT)


@pytest.mark.usefixtures("stored")
def test_later_release_while_a_beat_leads_ends_with_75(ask: Call, app: Celery, broker: redis.Redis) -> None:
    with leader(app):
        done = ask("later", "release", "--all", "--yes", code=exits.TRY_AGAIN)
    assert "stop all beats" in done.stderr
    assert stored_ids(app) == ["first", "second"]
    assert queued(broker) == []
