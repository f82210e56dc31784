"""`celery redbeat timeline`: who runs when, on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab
from rich.cells import cell_len

from redbeat.schedules import clocked
from tests.integration.cli.conftest import Call
from tests.support.schedule import server_now, write_raw

TIMEZONE = "Europe/Berlin"


def test_a_timeline_shows_who_runs_when_and_how_many_at_a_time(
    ask: Call, add: Callable[..., Any], client: redis.Redis
) -> None:
    now = datetime.fromtimestamp(server_now(client), timezone.utc)
    hour = now.replace(minute=0, second=0, microsecond=0)
    add("every hour", crontab(minute=30))
    for number in range(12):
        add(f"once {number:02}", clocked(hour + timedelta(hours=5, minutes=10)))
    add("often", 60)
    add("off", 1, enabled=False)
    found = json.loads(ask("timeline", "--json", "--hours", "12", columns=80).stdout)
    step = found["column_seconds"]
    begin = datetime.fromisoformat(found["begin"])
    runs = {entry["name"]: entry["runs"] for entry in found["entries"]}
    assert sum(runs["every hour"]) in (11, 12, 13)
    assert sum(runs["often"]) == pytest.approx(12 * 60, abs=61)
    column = int((hour + timedelta(hours=5, minutes=10) - begin).total_seconds() // step)
    assert [number for number, count in enumerate(runs["once 03"]) if count] == [column]
    assert "off" not in runs
    assert found["total"] == [sum(counts) for counts in zip(*runs.values(), strict=True)]
    lines = ask("timeline", "--hours", "12", "--rows", "3", columns=80).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("and 11 more, in the total") for line in lines)
    assert any(line.startswith("total") for line in lines)


@pytest.mark.parametrize("columns", [20, 40, 80, 200])
@pytest.mark.parametrize("hours", ["0.5", "24", "8784"])
def test_a_timeline_fits_the_terminal(ask: Call, add: Callable[..., Any], columns: int, hours: str) -> None:
    add("a name that is longer than the terminal is wide" * 3, 7200)
    lines = ask("timeline", "--hours", hours, columns=columns).stdout.splitlines()
    assert max(map(cell_len, lines[:-1])) <= columns, "all but the sentence below, which a terminal wraps"


def test_the_runs_of_an_interval_are_counted_as_its_schedule_has_them(
    ask: Call, app: Celery, add: Callable[..., Any]
) -> None:
    entry = add("seven", 7 * 60)
    found = json.loads(ask("timeline", "--json", columns=100).stdout)
    begin, end = (datetime.fromisoformat(found[side]) for side in ("begin", "end"))
    expected = [0] * len(found["total"])
    now = datetime.now(timezone.utc)
    for run in entry.runs_between(now, end - timedelta(microseconds=1)):
        expected[int((run - begin).total_seconds() // found["column_seconds"])] += 1
    assert found["total"] == expected


def test_an_interval_that_is_overdue_keeps_its_phase(ask: Call, client: redis.Redis) -> None:
    now = server_now(client)
    write_raw(client, "seven", schedule={"__type__": "interval", "every": 7200}, score=now - 1800)
    found = json.loads(ask("timeline", "--json", columns=100).stdout)
    begin = datetime.fromisoformat(found["begin"]).timestamp()
    columns = [int((now + 5400 + 7200 * number - begin) // found["column_seconds"]) for number in range(12)]
    assert found["total"][0] == 1
    assert [number for number, runs in enumerate(found["total"]) if runs and number] == [
        column for column in columns if column < len(found["total"])
    ]


def test_an_empty_schedule_has_an_empty_timeline(ask: Call) -> None:
    assert "Nothing is going to run." in ask("timeline").stdout
    assert "There are no such entries." in ask("list").stderr


def test_hours_are_named_also_after_clocks_have_changed_by_half_an_hour(
    ask: Call, add: Callable[..., Any]
) -> None:
    add("half", crontab(minute="*/30"))
    asked = ("timeline", "--start", "2027-04-04T00:00", "--tz", "Australia/Lord_Howe")
    ruler = ask(*asked, columns=120).stdout.splitlines()[1].split()
    assert ruler == [f"{hour:02}" for hour in range(24)]
