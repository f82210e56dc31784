"""`celery redbeat runs` and `rerun`, and what `list`, `show` and `why` say of runs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import click
import pytest
import redis
from celery import Celery
from click.testing import Result
from rich.cells import cell_len

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.cli.runs import STATES
from redbeat.cli.runs import runs as runs_command
from redbeat.task_ids import rerun_id_of
from tests.support.command_line import Terminal, call, celery_arguments
from tests.support.progress import Progress, history_of, running_of
from tests.support.schedule import messages

Call = Callable[..., Result]
WIDTHS = [60, 80, 100, 120, 200]
CONTEXT = click.Context(runs_command)
OPTION = next(one for one in runs_command.params if one.name == "states")
ERROR = "ValueError: no numbers today"


@pytest.fixture
def progress(app: Celery, client: redis.Redis) -> Progress:
    return Progress(app, client)


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


# -- runs


def test_runs_are_those_in_progress_with_worker_and_age(ask: Call, busy: None) -> None:
    [row] = rows(ask("runs", columns=120))
    assert (row[0], row[1], row[4], row[5]) == ("sync", "started", "celery@test", "sync-1")
    assert re.fullmatch(r"\d+ m?s", row[2])
    [run] = found(ask("runs", "--json"))
    assert (run["name"], run["state"], run["outcome"], run["worker"]) == (
        "sync", "started", None, "celery@test",
    )  # fmt: skip
    assert run["age_seconds"] >= 0


def test_a_state_chooses_runs_in_progress_and_past(ask: Call, busy: None) -> None:
    states = [row[:2] for row in rows(ask("runs", "--state", "failed,running,succeeded", columns=120))]
    assert states == [["sync", "started"], *[["report", "failed"]] * 2, ["report", "succeeded"]]
    assert ERROR in ask("runs", "--state", "failed", columns=80).stdout
    assert [run["task_id"] for run in found(ask("runs", "report", "--state", "failed", "--json"))] == [
        "report-3", "report-2",
    ]  # fmt: skip
    assert ask("runs", "report").stdout == ""
    hint = "--since 1d shows past runs"
    assert f"There are no such runs.\nNone is in progress. {hint}" in ask("runs", "report").stderr
    assert hint not in ask("runs", "report", "--state", "lost").stderr


def test_a_state_in_the_table_chooses_what_is_in_it(ask: Call, busy: None, progress: Progress) -> None:
    for name in ("quiet", "sync"):
        progress.send(name, f"{name}-sent", 6000.0)
    for states in ("sent", "started", "sent,started", "failed,sent"):
        shown = {row[1] for row in rows(ask("runs", "--state", states, columns=120))}
        assert shown == set(states.split(","))
    assert "sent,started" in {one.value for one in STATES.shell_complete(CONTEXT, OPTION, "sent,sta")}
    words = " ".join(ask("runs", "--help").stdout.split())
    assert "running, sent, started, retrying, spawned, overdue" in words


def test_past_runs_are_shown_with_how_long_they_took_and_when_they_ended(ask: Call, busy: None) -> None:
    failed = ("runs", "--state", "failed")
    for columns, titles in {60: ["ended"], 80: ["due,", "ended"], 120: ["due,", "ended,"]}.items():
        shown = ask(*failed, columns=columns).stdout
        assert [word for word in shown.splitlines()[0].split() if word in titles] == titles
        assert {row[2] for row in rows(ask(*failed, columns=columns))} == {"4 s"}
    for run in found(ask(*failed, "--json")):
        assert (run["run_seconds"], run["attempt"]) == (4.0, 1)
        assert None not in (run["sent_at"], run["started_at"], run["wait_seconds"])


def test_task_ids_are_whole_on_any_terminal(ask: Call, add: Callable[..., Any], progress: Progress) -> None:
    add("a-long-name-of-an-entry")
    ids = [str(uuid4()), str(uuid4())]
    delivery = progress.started("a-long-name-of-an-entry", ids[0])
    progress.end(delivery, "failed", error=ERROR)
    progress.started("a-long-name-of-an-entry", ids[1], 2000.0)
    for columns in (*WIDTHS, 10_000):
        lines = ask("runs", "--state", "failed,running", columns=columns).stdout.splitlines()
        assert max(map(cell_len, lines)) <= columns
        text = " ".join(" ".join(lines).split())
        assert all(one in text for one in ids), text
        assert (re.search(f"{ids[0]}( on celery@test)?; {ERROR}", text) is not None) == (columns < 200), text


@pytest.mark.parametrize("columns", [80, 100, 120, 160, 10_000])
@pytest.mark.parametrize("arguments", [["runs", "--state", "failed", "--since", "1d"], ["show", "report"]])
def test_the_due_time_of_a_past_run_can_be_typed_to_send_it_once_more(
    ask: Call, busy: None, columns: int, arguments: list[str]
) -> None:
    for zone in ("UTC", "Asia/Tokyo"):
        shown = ask(*arguments, "--tz", zone, columns=columns).stdout
        line = next(line for line in reversed(shown.splitlines()) if "failed" in line.split())
        [due] = re.findall(r"\d{4}-\d\d-\d\dT[\d:]+", line)
        [run] = found(ask("rerun", "report", "--due", due, "--tz", zone, "--dry-run", "--json"))
        assert run["rerun_of"] == "report-2"


def test_names_are_whole_where_workers_are_below_the_rows(
    ask: Call, add: Callable[..., Any], progress: Progress
) -> None:
    name = "import-all-customers-of-europe-and-asia"
    add(name)
    progress.end(progress.started(name, str(uuid4())), "failed", error=ERROR)
    shown = ask("runs", "--state", "failed", columns=80).stdout
    assert name in shown
    assert "on celery@test; ValueError" in " ".join(shown.split())


def test_runs_of_an_entry_that_is_gone_are_shown_while_there_are_any(
    ask: Call, busy: None, app: Celery
) -> None:
    Entry.get("sync", app).delete()
    assert [run["task_id"] for run in found(ask("runs", "sync", "--json"))] == ["sync-1"]
    assert "There is no entry 'sync'" in ask("runs", "sync", "--state", "succeeded", code=66).stderr


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["--match", "rep*"], 2), (["--match", "s*"], 0), (["--since", "1d"], 2), (["--limit", "1"], 1),
        (["--since", "2099-01-01"], 0), (["--since", "yesterday"], 2), (["--limit", "0"], 2),
    ],
)  # fmt: skip
def test_runs_are_chosen_by_name_time_and_number(
    ask: Call, busy: None, arguments: list[str], count: int
) -> None:
    assert len(found(ask("runs", "--state", "failed", "--json", *arguments))) == count


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["runs", "--state", "faild"], 64, "there is no state 'faild'. Did you mean failed?"),
        (["runs", "--since", "tomorrow"], 64, "'tomorrow' is no time"),
        (["runs", "gone"], 66, "There is no entry 'gone'"),
        (["rerun"], 64, "Give a NAME, or --all-failed --since TIME."),
        (["rerun", "report", "--all-failed", "--since", "1d"], 64, "Give a NAME, or"),
        (["rerun", "--all-failed"], 64, "needs --since"),
        (["rerun", "report", "--since", "1d"], 64, "are for --all-failed"),
        (["runs", "--give-up"], 64, "--give-up needs a NAME"),
        (["runs", "sync", "--give-up", "--since", "1d"], 64, "--give-up needs a NAME"),
        (["runs", "sync", "--give-up", "--state", "failed"], 64, "--give-up is about runs in progress"),
        (["runs", "sync", "--yes"], 64, "--yes and --by are for --give-up"),
        (["runs", "gone", "--give-up", "--yes"], 66, "There is no entry 'gone'"),
        (["rerun", "gone"], 66, "There is no entry 'gone'"),
        (["rerun", "quiet"], 64, "none has failed, was lost or never started."),
        (["rerun", "report", "--due", "2001-01-01"], 64, "no run is known that was due at 2001-01-01"),
        (["rerun", "--all-failed", "--since", "1d"], 64, "There is no terminal to ask you on: give --yes."),
    ],
)
def test_wrong_calls_are_one_sentence_and_a_code(
    ask: Call, busy: None, arguments: list[str], code: int, words: str
) -> None:
    done = ask(*arguments, code=code)
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_since_a_time_all_runs_are_shown_that_are_in_progress_or_have_ended(
    ask: Call, busy: None, client: redis.Redis
) -> None:
    old = {"at": 1000.0, "due": 1000, "outcome": "succeeded", "id": "old", "ended": 1001.0}
    client.rpush("redbeat::history:report", json.dumps(old))

    def ids(*arguments: str) -> list[str]:
        return [run["task_id"] for run in found(ask("runs", "--json", *arguments))]

    assert ids("--since", "1d") == ["sync-1", "report-3", "report-2", "report-1"]
    assert ids("report", "--since", "1d") == ["report-3", "report-2", "report-1"]
    assert ids("--since", "1d", "--state", "running") == ["sync-1"]
    assert ids("--since", "1970-01-01")[-1] == "old"
    assert ids() == ["sync-1"]


def test_a_task_that_the_worker_does_not_know_is_named_in_words(
    ask: Call, add: Callable[..., Any], progress: Progress
) -> None:
    add("nope")
    progress.end(progress.started("nope", "nope-1"), "rejected", error="NotRegistered: proj.nope")
    for arguments in (
        ["runs", "--state", "rejected"],
        ["show", "nope"],
        ["why", "nope", "--at", "1970-01-01T00:16:40"],
    ):
        assert "no such task on the worker: proj.nope" in " ".join(
            ask(*arguments, columns=120).stdout.split()
        )
    [run] = found(ask("runs", "--state", "rejected", "--json"))
    assert run["error"] == "NotRegistered: proj.nope"


def test_why_a_run_was_ended_comes_before_what_it_had_waited_for(
    ask: Call, busy: None, client: redis.Redis
) -> None:
    record = {"at": 6000.5, "due": 6000, "id": "sync-0", "outcome": "revoked", "held_by": "sync-9"}
    record |= {"error": "replaced by the next run", "ended": 6009.0}
    client.lpush("redbeat::history:sync", json.dumps(record))
    for arguments in (["runs", "--state", "revoked"], ["show", "sync"]):
        words = "replaced by the next run; it has waited for the run sync-9"
        assert words in " ".join(ask(*arguments, columns=120).stdout.split())


# -- runs --give-up


def test_a_run_is_given_up_when_somebody_has_read_what_it_does_and_said_yes(
    add: Callable[..., Any], progress: Progress, project: dict[str, str], tmp_path: Path
) -> None:
    add("stuck")
    progress.started("stuck", "one", overlap="skip")
    progress.send("stuck", "two", 2000.0, overlap="skip", queue=3600)
    command = celery_arguments("project", "runs", "stuck", "--give-up", "--by", "ann")
    with Terminal(command, tmp_path, project, (40, 250)) as terminal:
        terminal.wait_for("Give up 2 runs of stuck at redis://")
        lines = terminal.shown
        assert re.search(
            r"one: it is at work on celery@test since .*; it holds the entry until .*lease", lines
        )
        assert re.search(
            r"two: it is on its queue since .*; it holds the entry until .*a worker begins", lines
        )
        terminal.type("y\n")
        assert terminal.wait() == 0, terminal.shown
    assert "Gave up 2 runs." in terminal.shown
    assert {run["error"] for run in history_of(progress.client, "stuck")} == {"given up by ann"}


def test_without_a_terminal_runs_are_given_up_with_yes_only(
    ask: Call, add: Callable[..., Any], progress: Progress
) -> None:
    add("stuck")
    progress.started("stuck", "one", overlap="skip")
    assert "give --yes" in ask("runs", "stuck", "--give-up", code=64).stderr
    assert set(running_of(progress.client, "stuck")) == {"one"}
    [run] = found(ask("runs", "stuck", "--give-up", "--yes", "--json"))
    assert (run["name"], run["task_id"], run["worker"]) == ("stuck", "one", "celery@test")
    assert run["held_until"] is not None
    assert running_of(progress.client, "stuck") == {}
    assert "There are no such runs." in ask("runs", "stuck", "--give-up", "--yes").stderr


def test_a_state_says_which_runs_are_given_up_and_the_entry_may_be_gone(
    ask: Call, add: Callable[..., Any], progress: Progress
) -> None:
    entry = add("stuck")
    progress.started("stuck", "one")
    progress.send("stuck", "two", 2000.0)
    entry.delete()
    assert "Gave up 1 run." in ask("runs", "stuck", "--give-up", "--yes", "--state", "sent").stdout
    assert set(running_of(progress.client, "stuck")) == {"one"}


# -- list, show, why


def test_lengths_of_time_are_shown_with_their_units(ask: Call, add: Callable[..., Any]) -> None:
    add("slow", max_runtime=5400, resume_after=3600, jitter=0.5, pause_after_failures=3)
    shown = " ".join(ask("show", "slow").stdout.split())
    for words in ("max_runtime 1 h 30 min", "resume_after 1 h", "jitter 0.5 s"):
        assert words in shown


@pytest.mark.parametrize("columns", WIDTHS)
def test_tables_of_runs_fit_the_terminal(ask: Call, busy: None, columns: int) -> None:
    for arguments in (["list"], ["runs"], ["runs", "--state", "failed,succeeded"], ["show", "report"]):
        lines = ask(*arguments, columns=columns).stdout.splitlines()
        assert max(map(cell_len, lines)) <= columns, arguments


def test_a_list_has_last_outcomes_and_failures_in_a_row(ask: Call, busy: None) -> None:
    for columns in (80, 120):
        shown = {row[0]: row for row in rows(ask("list", columns=columns))}
        assert "failed (2)" in shown["report"]
        assert "sent" in shown["sync"]
        assert "succeeded (1)" not in ask("list", columns=columns).stdout
    listed = {entry["name"]: entry for entry in found(ask("list", "--json"))}
    assert [(listed[name]["last_outcome"], listed[name]["failures_in_a_row"]) for name in sorted(listed)] == [
        (None, 0), ("failed", 2), ("sent", 0),
    ]  # fmt: skip


def test_a_streak_of_failures_is_shown_behind_a_failure_and_before_what_does_not_count(
    ask: Call, busy: None, progress: Progress, add: Callable[..., Any]
) -> None:
    add("once")
    progress.end(progress.started("once", "once-1"), "failed")
    progress.end(progress.started("report", "report-4", 4000.0), "revoked")
    for columns in (80, 120):
        shown = {row[0]: row for row in rows(ask("list", columns=columns))}
        assert "failed (1)" in shown["once"]
        assert ("revoked, 2 failures before" if columns == 120 else "revoked") in shown["report"]


def test_a_list_without_tracked_runs_has_its_columns_for_other_things(
    ask: Call, add: Callable[..., Any], progress: Progress
) -> None:
    add("one")
    progress.send("one", "id")
    assert "outcome" not in ask("list", columns=120).stdout.splitlines()[0]
    assert " runs " in ask("list", columns=80).stdout.splitlines()[0]


def test_an_entry_shows_its_figures_and_what_is_in_progress(ask: Call, busy: None) -> None:
    shown = ask("show", "report", columns=80).stdout
    for words in (
        "succeeded  1 of the last 3 (33%)",
        "failed     2 in a row",
        "run time   4 s at the median, 4 s at the 95th percentile",
        ERROR,
    ):
        assert words in shown
    document = json.loads(ask("show", "report", "--json").stdout)
    assert document["figures"]["success_rate"] == pytest.approx(1 / 3)
    assert (document["last_outcome"], document["failures_in_a_row"]) == ("failed", 2)
    assert [run["outcome"] for run in document["history"]] == ["failed", "failed", "succeeded"]
    shown = ask("show", "sync", columns=120).stdout
    assert "In progress" in shown
    assert shown.count("sync-1") == 1, "once, among those in progress"
    assert [run["task_id"] for run in json.loads(ask("show", "sync", "--json").stdout)["running"]] == [
        "sync-1"
    ]
    assert "In progress" not in ask("show", "quiet").stdout


def test_why_says_how_far_a_run_is_and_what_became_of_it(ask: Call, busy: None, progress: Progress) -> None:
    def reason(name: str, due: str) -> tuple[str, str]:
        answer = json.loads(ask("why", name, "--at", due, "--json").stdout)
        return answer["verdict"], answer["reason"]

    verdict, words = reason("sync", "1970-01-01T01:23:20")
    assert (verdict, "It is at work on celery@test since" in words) == ("running", True), words
    verdict, words = reason("report", "1970-01-01T00:50:00")
    assert (verdict, f"failed on celery@test after 4 s: {ERROR}." in words) == ("failed", True), words
    progress.send("sync", "sync-2", 6000.0)
    verdict, words = reason("sync", "1970-01-01T01:40:00")
    assert verdict == "sent"
    unknown = "no live worker tracks runs, so nobody knows whether it was begun"
    assert re.search(rf"It is on its queue since .* UTC; {unknown}\.$", words)
    assert unknown in ask("runs").stderr
    progress.runs.renew([], 30_000, "celery@test", '"pool":"prefork"')
    assert "nobody knows" not in reason("sync", "1970-01-01T01:40:00")[1] + ask("runs").stderr


def test_what_is_said_of_a_run_says_until_when_it_holds_its_entry(
    ask: Call, add: Callable[..., Any], progress: Progress
) -> None:
    add("stuck")
    delivery = progress.started("stuck", "one", overlap="skip", queue=3600)
    progress.end(delivery, "retrying", retry_seconds=60)
    for arguments in (["runs"], ["show", "stuck"], ["why", "stuck", "--at", "1970-01-01T00:16:40"]):
        words = " ".join(ask(*arguments, columns=120).stdout.split())
        assert re.search(r"it holds the entry until .* at most, unless a worker begins that attempt", words)
    assert "waits for attempt 2, which may begin from" in words


def test_an_entry_that_redbeat_has_paused_says_so(ask: Call, add: Callable[..., Any]) -> None:
    entry = add("failing")
    entry.pause("paused after 3 failures in a row; the last: ValueError: no", by="redbeat")
    shown = ask("show", "failing", columns=120).stdout
    assert "paused: somebody has paused it, or RedBeat has, as it fails too often" in shown
    assert re.search(r"paused_by +redbeat", shown)
    said = json.loads(ask("why", "failing", "--json").stdout)
    assert said["verdict"] == "paused"
    note = "paused after 3 failures in a row; the last: ValueError: no"
    assert said["reason"] == f"It is paused by redbeat ({note})."


def test_why_names_the_run_in_the_way(ask: Call, busy: None, client: redis.Redis) -> None:
    record = {"at": 6000.5, "due": 6000, "outcome": "skipped", "held_by": "sync-1", "since": 5001}
    record["worker"] = "celery@test"
    client.lpush("redbeat::history:sync", json.dumps(record))
    said = ask("why", "sync", "--at", "1970-01-01T01:40:00").stdout
    assert "the run sync-1 was at work on celery@test since 1970-01-01 01:23:21 UTC" in said


# -- rerun


def test_a_rerun_is_the_run_that_failed_last_with_its_due_time_and_an_id_of_its_own(
    ask: Call, app: Celery, busy: None, broker: redis.Redis
) -> None:
    done = ask("rerun", "report")
    [message] = messages(broker)
    task_id = rerun_id_of("redbeat:report", "1970-01-01T00:50:00.000000+00:00", 1)
    headers = message["headers"]
    assert headers["id"] == task_id
    assert f"due at 1970-01-01 00:50:00 UTC and has failed is sent once more; its task id is {task_id}." in (
        done.stdout
    )
    assert (headers["redbeat_entry"], headers["redbeat_due"]) == (
        "report",
        "1970-01-01T00:50:00.000000+00:00",
    )
    assert (headers["redbeat_rerun_of"], headers["redbeat_manual"]) == ("report-3", True)
    run = Entry.get("report", app).history()[0]
    assert (run.task_id, run.rerun_of, run.is_manual, run.outcome) == (task_id, "report-3", True, "sent")


def test_what_was_sent_once_more_is_not_chosen_again_unless_it_is_named(
    ask: Call, busy: None, broker: redis.Redis
) -> None:
    assert found(ask("rerun", "report", "--json"))[0]["rerun_of"] == "report-3"
    assert found(ask("rerun", "report", "--json"))[0]["rerun_of"] == "report-2"
    assert "all that have failed were sent once more" in ask("rerun", "report", code=64).stderr
    [again] = found(ask("rerun", "report", "--due", "1970-01-01T00:50", "--json"))
    assert again["task_id"] == rerun_id_of("redbeat:report", "1970-01-01T00:50:00.000000+00:00", 2)
    assert len({message["headers"]["id"] for message in messages(broker)}) == 3


def test_a_dry_run_names_the_run_and_sends_nothing(ask: Call, busy: None, broker: redis.Redis) -> None:
    assert "due at 1970-01-01 00:50:00 UTC and has failed would be sent once more." in (
        ask("rerun", "report", "--dry-run").stdout
    )
    [run] = found(ask("rerun", "report", "--dry-run", "--json"))
    assert (run["rerun_of"], run["task_id"]) == ("report-3", None)
    assert len(found(ask("rerun", "--all-failed", "--since", "1d", "--dry-run", "--json"))) == 2
    assert messages(broker) == []


def test_all_that_has_failed_is_sent_once_however_often_it_is_called(
    ask: Call, busy: None, progress: Progress, broker: redis.Redis
) -> None:
    progress.end(progress.started("sync", "sync-0", 4000.0), "failed", error=ERROR)
    every = ("rerun", "--all-failed", "--since", "1d", "--yes")
    assert ask(*every, "--match", "s*").stdout == "Sent 1 run once more.\n"
    assert ask(*every).stdout == "Sent 2 runs once more.\n"
    assert ask(*every).stdout == "Sent 0 runs once more.\n"
    sent = [message["headers"]["redbeat_rerun_of"] for message in messages(broker)]
    assert sent == ["sync-0", "report-2", "report-3"]
    [first, *_] = [message["headers"] for message in messages(broker)]
    again = progress.delivery("sync", first["id"], 4000.0)
    progress.begin(again)
    progress.end(again, "failed", error=ERROR)
    assert ask(*every).stdout == "Sent 1 run once more.\n", "a rerun that has failed itself"
    assert messages(broker)[-1]["headers"]["redbeat_rerun_of"] == first["id"]


def test_a_run_that_has_succeeded_after_it_was_given_up_is_left_out(
    ask: Call, add: Callable[..., Any], progress: Progress, broker: redis.Redis
) -> None:
    add("one")
    delivery = progress.started("one", "id")
    progress.settle(at=progress.deadline_of("one", "id"))
    progress.end(delivery, "succeeded")
    assert [run["outcome"] for run in found(ask("runs", "one", "--state", "lost", "--json"))] == ["lost"]
    assert "it has ended later, as succeeded" in ask("show", "one").stdout
    assert ask("rerun", "--all-failed", "--since", "1d", "--yes").stdout == "Sent 0 runs once more.\n"
    assert messages(broker) == []


def test_entries_that_are_gone_or_spoilt_do_not_stop_the_others(
    ask: Call, busy: None, progress: Progress, client: redis.Redis, broker: redis.Redis
) -> None:
    for name in ("gone", "broken"):
        Entry(name, "echo", 60, app=progress.app).save()
        progress.end(progress.started(name, name), "failed")
    Entry.get("gone", progress.app).delete()
    client.hset("redbeat:broken", "definition", "{")
    done = ask("rerun", "--all-failed", "--since", "1d", "--yes", code=64)
    assert done.stdout == "Sent 2 runs once more.\n"
    assert "1 of 2 entries couldn't be changed." in done.stderr
    assert len(messages(broker)) == 2


def test_what_overlap_holds_back_is_said_before_it_is_left(
    ask: Call, add: Callable[..., Any], progress: Progress, broker: redis.Redis
) -> None:
    def fail(name: str, number: int) -> None:
        delivery = progress.started(name, f"{name}-{number}", 1000.0 * number)
        progress.end(delivery, "failed", run_seconds=4.0)

    add("free")
    add("one", overlap="skip")
    for number in (1, 2):
        fail("free", number)
        fail("one", number)
    every = ("rerun", "--all-failed", "--since", "1d")
    dry = ask(*every, "--dry-run", columns=80)
    assert (
        "4 runs of free, one would be sent once more. At most one of the 2 runs of one can go now"
        in dry.stderr
    )
    assert "overlap is skip" in dry.stderr
    assert {(row[0], row[2], row[3]) for row in rows(dry)} == {
        (name, "4 s", f"1970-01-01T00:{minute}") for name in ("free", "one") for minute in ("16:40", "33:20")
    }
    done = ask(*every, "--yes", code=75)
    assert done.stdout == "Sent 3 runs once more.\n"
    assert "1 run was not sent, as other runs of the same entries are in progress" in done.stderr
    assert len(messages(broker)) == 3
    add("two", overlap="buffer_one")
    for number in (3, 4):
        fail("two", number)
    assert "one can go" not in ask(*every, "--dry-run", "--match", "one").stderr, "one is left of it"
    fail("one", 5)
    assert "At most one each of the 4 runs of one, two can go now" in ask(*every, "--dry-run").stderr


def test_a_question_says_how_many_runs_of_which_entries(
    busy: None, project: dict[str, str], tmp_path: Path, broker: redis.Redis
) -> None:
    command = celery_arguments("project", "rerun", "--all-failed", "--since", "1d")
    with Terminal(command, tmp_path, project) as terminal:
        terminal.wait_for("Send 2 runs of report at redis://")
        terminal.type("n\n")
        assert terminal.wait() == 1, terminal.shown
    assert messages(broker) == []


def test_without_the_application_nothing_can_be_sent_again(app: Celery, busy: None) -> None:
    url = str(app.conf.redbeat_redis_url)
    done = call(app, "--url", url, "rerun", "report")
    assert done.exit_code == 64
    assert "call it as celery -A APP redbeat rerun" in done.stderr
    assert call(app, "--url", url, "runs").exit_code == 0


def test_a_user_who_may_not_send_runs_again_is_told_so_in_one_sentence(
    app: Celery, busy: None, client: redis.Redis
) -> None:
    client.execute_command(
        "ACL", "SETUSER", "reader", "reset", "on", ">secret", "~*", "+@read", "+eval", "+select"
    )
    limited = Celery("limited", broker="memory://", set_as_current=False)
    limited.conf.redbeat_redis_url = app.conf.redbeat_redis_url
    limited.conf.redbeat_redis_options = {"username": "reader", "password": "secret"}
    try:
        for command in (["rerun", "report"], ["rerun", "--all-failed", "--since", "1d", "--yes"]):
            done = call(limited, *command)
            assert done.exit_code == 77, done.output
            [said] = done.stderr.splitlines()
            assert "lacks a right to it; docs: configuration, Users with limited rights" in said
            assert "user_script" not in said
    finally:
        client.execute_command("ACL", "DELUSER", "reader")
