"""`celery redbeat list, show, count` and `next`: what is shown, on a real server."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab
from click.testing import Result

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.failures import new_failure
from redbeat.entries.query import STATES
from redbeat.schedules import clocked
from tests.integration.cli.conftest import FAR, Call
from tests.support.command_line import call
from tests.support.schedule import server_now, write_raw

TIMEZONE = "Europe/Berlin"


def lines_of(done: Result) -> list[str]:
    """The lines, without the spaces at their ends, and with the same far future every year."""
    return [re.sub(r"in \d\d y", "in 72 y", line.rstrip()) for line in done.stdout.splitlines()]


def documents_of(done: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


# -- list


@pytest.fixture
def three(add: Callable[..., Any], client: redis.Redis) -> None:
    add("report", clocked(FAR), timezone="America/New_York")
    add("[red]x[/red]", clocked(FAR + timedelta(days=1)), task="proj.tasks.send", enabled=False)
    write_raw(client, "spoilt", '{"task": [red]', score=FAR.timestamp() + 1000)


def test_a_wide_table_has_every_column_and_an_error_below_its_row(ask: Call, three: None) -> None:
    title, rule, *rows = lines_of(ask("list", columns=180))
    assert re.split(" {2,}", title) == [
        *("name", "task", "schedule", "next run, Europe/Berlin", "last run", "runs", "state")
    ]
    assert set(rule) == {"─"}
    assert [re.split(" {2,}", row) for row in rows] == [
        [
            *("report", "echo", "At 2099-03-01 10:30:00+01:00"),
            *("2099-03-01 10:30:00", "in 72 y", "0", "scheduled"),
        ],
        ["spoilt", "quarantined", "0", "quarantined"],
        ["", "definition: no valid JSON: Expecting value: line 1 column 11 (char 10)."],
        [
            *("[red]x[/red]", "proj.tasks.send", "At 2099-03-02 10:30:00+01:00"),
            *("disabled", "0", "disabled"),
        ],
    ]


def test_a_narrow_table_has_fewer_columns_and_times_from_now_on(ask: Call, three: None) -> None:
    assert lines_of(ask("list", columns=69)) == [
        "name          next run  state",
        "─" * 35,
        "report        in 72 y   scheduled",
        "spoilt        -         quarantined",
        "  definition: no valid JSON: Expecting value: line 1 column 11 (char",
        "  10).",
        "[red]x[/red]  -         disabled",
    ]


def test_piped_a_table_is_as_wide_as_it_needs_to_be(ask: Call, add: Callable[..., Any]) -> None:
    name = "x" * 400
    add(name)
    assert name in ask("list").stdout


def test_names_give_no_orders_to_the_terminal_and_stay_on_their_line(
    ask: Call, add: Callable[..., Any], client: redis.Redis
) -> None:
    add("a\x1b[31mb\nc")
    assert "a\\x1b[31mb\\nc" in ask("list").stdout
    assert "a\\x1b[31mb\\nc" in ask("show", "a\x1b[31mb\nc").stdout
    assert "a\\x1b[31mb\\nc" in ask("next").stdout


def test_a_name_that_is_no_text_is_shown_and_printed_as_json(app: Celery, client: redis.Redis) -> None:
    key = b"redbeat:caf\xe9"
    client.hset(key, "definition", '{"task": "echo", "schedule": {"__type__": "interval", "every": 60}}')
    client.zadd("redbeat::schedule", {key: 4e9})
    assert "caf\\udce9" in call(app, "list").stdout
    assert json.loads(call(app, "list", "--json").stdout)["name"] == "caf\udce9"
    assert "caf\\udce9" in call(app, "show", "caf\udce9").stdout


def test_the_json_has_an_entry_a_line_with_all_its_fields(ask: Call, three: None, app: Celery) -> None:
    report, spoilt, disabled = documents_of(ask("list", "--json"))
    stored = RedBeatSchedulerEntry.get("report", app)
    assert report == {
        **stored.to_dict(),
        "last_outcome": None,
        "failures_in_a_row": 0,
        "state": "scheduled",
        "next_due_at": FAR.isoformat(),
        "description": "At 2099-03-01 04:30:00-05:00",
        "error": None,
    }
    assert (spoilt["state"], spoilt["schedule"]) == ("quarantined", None)
    assert "no valid JSON" in spoilt["error"]
    assert (disabled["name"], disabled["enabled"]) == ("[red]x[/red]", False)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ["a1", "a2", "b1", "b2"]),
        (["--match", "a*"], ["a1", "a2"]),
        (["--task", "add"], ["b1", "b2"]),
        (["--state", "disabled"], ["a2"]),
        (["--enabled"], ["a1", "b1", "b2"]),
        (["--disabled"], ["a2"]),
        (["--due-before", "2099-03-03T12:00"], ["a1", "a2", "b1"]),
        (["--due-before", "2099-03-03T10:29"], ["a1", "a2"]),  # in the application's zone
        (["--limit", "2"], ["a1", "a2"]),
        (["--limit", "2", "--offset", "1"], ["a2", "b1"]),
        (["--match", "nothing"], []),
    ],
)
def test_a_list_and_a_count_choose_alike(
    app: Celery, ask: Call, add: Callable[..., Any], arguments: list[str], names: list[str]
) -> None:
    for number, (name, task) in enumerate([("a1", "echo"), ("a2", "echo"), ("b1", "add"), ("b2", "add")]):
        add(name, clocked(FAR + timedelta(days=number)), task=task, enabled=name != "a2")
    assert [document["name"] for document in documents_of(ask("list", "--json", *arguments))] == names
    rows = [line.split()[0] for line in ask("list", *arguments).stdout.splitlines()[2:]]
    assert rows == names
    if "--limit" not in arguments:
        assert ask("count", *arguments).stdout == f"{len(names)}\n"
        assert documents_of(ask("count", "--json", *arguments)) == [{"count": len(names)}]


def test_every_state_has_a_row(ask: Call, app: Celery, add: Callable[..., Any], client: redis.Redis) -> None:
    now = server_now(client)
    add("scheduled")
    write_raw(client, "due", score=now - 5)
    add("paused").pause()
    add("disabled", enabled=False)
    write_raw(client, "finished", score=-1)
    write_raw(client, "quarantined", "no json", score=now + 50)
    client.zadd("redbeat::schedule", {"redbeat:missing": now + 60})
    failing = add("failing", 3600)
    record = new_failure(failing.stored, "the broker is away", now).again(
        attempts=3, retry_at=str(now + 30), due=str(now)
    )
    client.hset("redbeat:failing", "error", record.to_json())
    client.zadd("redbeat::schedule", {"redbeat:failing": record.retry_at})
    found = {document["name"]: document["state"] for document in documents_of(ask("list", "--json"))}
    assert found == {state: state for state in STATES if state not in ("unscheduled", "downgraded")}
    assert "the broker is away" in ask("list").stdout


@pytest.mark.parametrize("score", ["inf", "1e18", "1e300", "-inf", "253402300800"])
def test_a_score_that_is_no_date_costs_one_entry_its_next_run_only(
    ask: Call, client: redis.Redis, score: str
) -> None:
    write_raw(client, "odd", score=None)
    write_raw(client, "even", score=4e9)
    client.zadd("redbeat::schedule", {"redbeat:odd": score})
    found = {document["name"]: document["next_due_at"] for document in documents_of(ask("list", "--json"))}
    assert (found["odd"], found["even"]) == (None, "2096-10-02T07:06:40+00:00")
    for command in (["list"], ["show", "odd"], ["next"], ["next", "odd"], ["timeline"], ["pause", "odd"]):
        ask(*command)


def test_the_next_runs_of_an_entry_that_cant_be_used_name_it_once(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "odd", schedule={"__type__": "crontab", "minute": "99"})
    done = call(app, "next", "odd")
    assert (done.exit_code, done.stderr.count("redbeat:odd")) == (64, 1)
    assert "can't be used, so it has no runs: definition: crontab: " in done.stderr


# -- show


def test_show_tells_all_about_an_entry(ask: Call, add: Callable[..., Any]) -> None:
    add(
        "daily",
        crontab(hour=9, minute=30),
        args=[1, "[b]"],
        kwargs={"x": None},
        options={"queue": "fast"},
        start_time=FAR,
        jitter=5,
        timezone="Europe/Berlin",
    ).pause("[bold]holidays[/bold]", until=datetime(2099, 4, 1, tzinfo=timezone.utc))
    lines = lines_of(ask("show", "daily", columns=100))
    fields = dict(line.split(None, 1) for line in lines[: lines.index("")] if line.strip() != "next run")
    assert fields["name"] == "daily"
    assert fields["state"].startswith("paused: somebody has paused it, or RedBeat has")
    assert fields["schedule"].startswith("At 09:30 (Europe/Berlin), not before 2099-03-01 10:30+01:00")
    assert fields["args"] == "[1, '[b]']"
    assert fields["kwargs"] == "{'x': None}"
    assert fields["options"] == "{'queue': 'fast'}"
    assert fields["pause_note"] == "[bold]holidays[/bold]"
    assert fields["paused"] == "yes"
    assert fields["paused_until"] == "2099-04-01 02:00:00 Europe/Berlin"
    assert fields["jitter"] == "5 s"
    start = lines.index("It would run")
    assert lines[start + 3].startswith("2099-04-01 09:30:00      in 72 y")
    assert lines[start + 4].startswith("2099-04-02 09:30:00      in 72 y")
    assert fields["next"].split()[1:3] == ["2099-04-01", "09:30:03"]


def test_show_has_the_last_runs_and_the_next_ones_as_json(
    ask: Call, app: Celery, add: Callable[..., Any]
) -> None:
    entry = add("often", 3600)
    task_id = entry.trigger().id
    found = json.loads(ask("show", "often", "--json").stdout)
    assert found["name"] == "often"
    assert len(found["next_runs"]) == 5
    (run,) = found["history"]
    assert (run["task_id"], run["outcome"], run["is_manual"]) == (task_id, "sent", True)
    assert task_id in ask("show", "often").stdout


def test_a_history_that_is_none_keeps_nobody_from_the_rest(
    ask: Call, add: Callable[..., Any], client: redis.Redis
) -> None:
    add("one")
    client.set("redbeat::history:one", "no list")
    done = ask("show", "one")
    assert "task" in done.stdout
    assert "redbeat::history:one" in done.stderr
    assert json.loads(ask("show", "one", "--json").stdout)["history"] == []


def test_what_is_spoilt_is_shown_with_the_reason(ask: Call, three: None, client: redis.Redis) -> None:
    output = ask("show", "spoilt").stdout
    assert "quarantined" in output
    assert "no valid JSON" in output
    assert re.search(r"next run +quarantined\n", output)
    assert re.search(r"next look +2099-03-01 10:46:40", output)
    assert json.loads(ask("show", "spoilt", "--json").stdout)["next_due_at"] is None
    client.zadd("redbeat::schedule", {"redbeat:gone": 5})
    assert "missing: it is in the schedule, but its hash is gone" in ask("show", "gone").stdout


def test_what_is_due_at_once_has_no_date_of_1970(ask: Call, client: redis.Redis) -> None:
    write_raw(client, "report", score=0)
    assert re.search(r" at once  ", ask("list").stdout)
    assert re.search(r"next run +at once$", ask("show", "report").stdout, re.MULTILINE)


def test_a_pause_that_is_over_is_shown_no_more(ask: Call, client: redis.Redis) -> None:
    write_raw(client, "report", enabled=False, score=server_now(client) + 900)
    policy = {"paused": True, "pause_note": "n", "paused_until": "2020-01-01T00:00:00Z"}
    client.hset("redbeat:report", "policy", json.dumps(policy))
    output = ask("show", "report").stdout
    assert re.search(r"enabled +yes", output)
    assert "paused" not in output
    assert "pause_note" not in output
    assert ask("count", "--disabled").stdout == "0\n"
    assert "report" in ask("list", "--enabled").stdout


# -- next


def test_next_marks_where_the_clocks_change(ask: Call, add: Callable[..., Any]) -> None:
    add("daily", crontab(hour=9, minute=30), timezone="Europe/Berlin")
    done = ask("next", "daily", "-n", "3", "--after", "2099-03-27T12:00", columns=80)
    change = "clocks go forward here: Europe/Berlin by 60 min, to +02:00"
    assert lines_of(done) == [
        "next run, Europe/Berlin",
        "─" * 32,
        "2099-03-28 09:30:00      in 72 y",
        f"  {change}",
        "2099-03-29 09:30:00      in 72 y",
        "2099-03-30 09:30:00      in 72 y",
    ]
    found = documents_of(ask("next", "daily", "-n", "2", "--after", "2099-03-27T12:00", "--json"))
    assert [run["due"] for run in found] == ["2099-03-28T09:30:00+01:00", "2099-03-29T09:30:00+02:00"]
    assert [run["clocks"] for run in found] == [None, change]


def test_the_next_runs_of_all_are_in_the_order_of_time(ask: Call, add: Callable[..., Any]) -> None:
    add("hourly", 3600)
    add("ten", 600)
    add("once", clocked(datetime.now(timezone.utc) + timedelta(minutes=15)))
    add("twice", 60, max_runs=2)
    add("off", 1, enabled=False)
    add("rests", 1).pause()
    found = documents_of(ask("next", "-n", "7", "--json"))
    assert [run["name"] for run in found] == ["twice", "twice", "ten", "once", "ten", "ten", "ten"]
    dues = [run["due"] for run in found]
    assert dues == sorted(dues)
    assert [line.split()[-1] for line in ask("next", "-n", "3").stdout.splitlines()[2:]] == [
        "twice",
        "twice",
        "ten",
    ]


def test_next_says_when_there_is_nothing(ask: Call, add: Callable[..., Any]) -> None:
    assert ask("next").stderr == "Nothing is going to run.\n"
    add("once")
    assert ask("next", "once").stderr == "There are no more runs.\n"
    add("off", enabled=False)
    assert "It is disabled" in ask("next", "off").stderr
