"""`celery redbeat` on terminals of all widths, over the schedule of a real shop and over a hostile one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab
from click.testing import Result
from rich.cells import cell_len
from rich.text import Text

from redbeat import RedBeatSchedulerEntry
from redbeat.cli import SECTIONS, redbeat
from redbeat.cli.listing import SORT_KEYS, TERMINAL_ROWS
from redbeat.entries.failures import new_failure
from redbeat.entries.query import STATES
from redbeat.schedules import clocked
from tests.conftest import MakeApp
from tests.integration.cli.conftest import FAR, Call
from tests.support.apps import write_app
from tests.support.command_line import Terminal, call, celery_arguments, installed
from tests.support.schedule import server_now, write_raw
from tests.support.servers import Server
from tests.support.shop import AWAY, fill_shop
from tests.support.spinning import SPINNING, know_spinning

TIMEZONE = "Europe/Berlin"

Shown = Callable[..., list[str]]
WIDTHS = (80, 100, 120, 200)
DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


@pytest.fixture
def shop(app: Celery, client: redis.Redis) -> list[str]:
    return fill_shop(app, client)


@pytest.fixture
def on_terminal(server: Server, tmp_path: Path) -> Shown:
    """The lines that a command shows on a real pseudo-terminal, without colours."""
    settings = {"redbeat_redis_url": server.url(1), "timezone": "Europe/Berlin"}
    write_app(tmp_path, "project", server.url(0), **settings)
    env = installed(tmp_path)

    def show(*arguments: str, columns: int = 80) -> list[str]:
        with Terminal(celery_arguments("project", *arguments), tmp_path, env, (60, columns)) as terminal:
            terminal.wait()
            shown = terminal.shown.replace("\r\n", "\n")
        return [Text.from_ansi(line).plain.rstrip() for line in shown.split("\n")]

    return show


def is_shortened_from(shown: str, whole: str) -> bool:
    begin, ellipsis, end = shown.partition("…")
    return shown == whole or (bool(ellipsis) and whole.startswith(begin) and whole.endswith(end))


def rows_of(lines: list[str], names: list[str]) -> dict[str, str]:
    """The rows of a list by the names that they show, each on one line."""
    found: dict[str, str] = {}
    for line in lines:
        shown = re.split(" {2,}", line)[0]
        if shown and any(is_shortened_from(shown, name) for name in names):
            found[shown] = line
    return found


# -- the list


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_list_fits_the_terminal_and_breaks_nothing_in_two(ask: Call, shop: list[str], columns: int) -> None:
    lines = ask("list", columns=columns).stdout.splitlines()
    assert max(map(cell_len, lines)) <= columns
    titles = next(number for number, line in enumerate(lines) if set(line) == {"─"})
    heading = " ".join(lines[:titles])
    for title in ("name", "schedule", "next run", "runs", "state", *(["task"] if columns >= 80 else [])):
        assert title in heading
    rows = [line for line in lines[titles + 1 :] if not line.startswith("  ")]
    assert len(rows) == len(shop), "a line for each entry, and none for the rest of a name"
    for row in rows:
        assert any(is_shortened_from(re.split(" {2,}", row)[0], name) for name in shop), row
        assert re.search(rf" ({'|'.join(STATES)})$", row), row


@pytest.mark.parametrize("columns", WIDTHS)
def test_a_schedule_has_room_for_what_it_says(ask: Call, shop: list[str], columns: int) -> None:
    lines = ask("list", columns=columns).stdout.splitlines()
    titles = next(line for line in lines if "schedule" in line)
    begin = titles.index("schedule")
    room = titles.index("next run") - 2 - begin
    assert room >= 15, titles
    if columns >= 100:
        assert any(line[begin:].startswith("Every 10 minutes") for line in lines)


@pytest.mark.parametrize("columns", WIDTHS)
def test_nothing_is_said_twice_of_what_never_runs_or_is_due_at_once(
    ask: Call, app: Celery, client: redis.Redis, columns: int
) -> None:
    write_raw(client, "over", score=-1)
    write_raw(client, "hasty", score=0)
    rows = {row.split()[0]: row for row in ask("list", columns=columns).stdout.splitlines() if row}
    assert rows["over"].count("never") == 1
    assert rows["hasty"].count("at once") == 1
    assert " now" not in rows["hasty"]


def test_in_a_pipe_the_line_below_the_titles_is_as_long_as_the_rows(
    ask: Call, app: Celery, client: redis.Redis
) -> None:
    RedBeatSchedulerEntry("one", "t", 3600, app=app).save()
    why = "older than its misfire_grace_time of 50 s, and so too late to be sent"
    record = {"due": 1.5e9, "at": 1.5e9, "outcome": "skipped", "why": why, "id": "x"}
    client.rpush("redbeat::history:one", json.dumps(record))
    lines = ask("show", "one").stdout.splitlines()
    at = next(
        number for number, line in enumerate(lines) if line.startswith("─") and "why" in lines[number - 1]
    )
    assert lines[at] == "─" * max(map(len, lines[at - 1 : at + 2]))
    assert why in lines[at + 1]


@pytest.mark.parametrize("columns", WIDTHS)
def test_every_entry_of_a_list_can_be_told_from_the_others(ask: Call, shop: list[str], columns: int) -> None:
    lines = ask("list", columns=columns).stdout.splitlines()
    what = [tuple(re.split(" {2,}", line)[:2]) for line in lines if line[:2].strip()]
    ambiguous = len(what) - len(set(what))
    assert ambiguous == 0, [pair for pair in what if what.count(pair) > 1][:10]


@pytest.mark.parametrize(("columns", "has_dates"), [(80, False), (100, False), (120, True), (200, True)])
def test_times_are_relative_on_a_narrow_terminal_and_dates_from_120_columns_on(
    ask: Call, shop: list[str], columns: int, has_dates: bool
) -> None:
    lines = ask("list", "--match", "*poll-carrier*", columns=columns).stdout.splitlines()
    rows = [line for line in lines if "oll" in line]
    assert rows
    for row in rows:
        assert bool(re.search(DATE, row)) == has_dates, row
        assert has_dates or re.search(r" (in )?\d+ (ms|s|min)( ago)?  ", row) or " now " in row, row
    assert ("Europe/Berlin" in " ".join(lines[:2])) == has_dates


def test_an_error_has_lines_of_its_own_below_its_row(ask: Call, shop: list[str]) -> None:
    lines = ask("list", columns=80).stdout.splitlines()
    at = next(number for number, line in enumerate(lines) if line.endswith("failing"))
    below = [line for line in lines[at + 1 : at + 5] if line.startswith("  ")]
    assert " ".join(" ".join(below).split()) == AWAY, "whole, and wrapped at its words"
    assert "99 > 59" not in lines[at]


def test_in_a_pipe_nothing_is_left_out_or_shortened(ask: Call, shop: list[str]) -> None:
    lines = ask("list").stdout.splitlines()
    assert len(lines) == 2 + len(shop), "a row a line"
    assert sorted(re.split(" {2,}", line)[0] for line in lines[2:]) == sorted(shop)
    assert "…" not in "\n".join(lines)
    assert any(line.endswith(AWAY) for line in lines)
    assert "billing.tasks.invoices.send_monthly_invoices" in "\n".join(lines)


def test_a_name_of_any_length_is_whole_in_a_pipe(ask: Call, app: Celery) -> None:
    name = "n" * 20_000
    RedBeatSchedulerEntry(name, "echo", 3600, app=app).save()
    assert f"{name}  echo" in ask("list").stdout
    assert f"{name}\n" in ask("next", "-n", "1").stdout


def test_more_rows_than_the_widths_were_chosen_by_are_drawn(ask: Call, app: Celery) -> None:
    RedBeatSchedulerEntry.save_many(
        RedBeatSchedulerEntry(f"many-{number}", "echo", 86_400, app=app) for number in range(1100)
    )
    RedBeatSchedulerEntry("the last one, whose name is longer", "echo", clocked(FAR), app=app).save()
    lines = ask("list").stdout.splitlines()
    assert len(lines) == 2 + 1101
    assert lines[-1].startswith("the last one, whose name is longer  echo")
    lines = ask("list", "--limit", "0", columns=80).stdout.splitlines()
    assert len(lines) == 2 + 1101
    assert max(map(len, lines)) <= 80


def test_a_terminal_has_fifty_rows_and_a_word_on_how_to_see_more(on_terminal: Shown, shop: list[str]) -> None:
    lines = on_terminal("list")
    assert len(rows_of(lines, shop)) <= TERMINAL_ROWS == 50
    assert f"50 of {len(shop)} shown; --limit 0 for all, --match PATTERN to choose." in lines
    matched = sum("a" in name for name in shop)
    assert any(line.startswith(f"50 of {matched} shown;") for line in on_terminal("list", "--match", "*a*"))
    offset = on_terminal("list", "--offset", "60")
    assert any(line.startswith(f"61 to 110 of {len(shop)} shown;") for line in offset)
    whole = on_terminal("list", "--limit", "0")
    assert len([line for line in whole if line[:2].strip()]) == len(shop) + 2
    assert not any(" shown;" in line for line in whole)
    assert not any(" shown;" in line for line in on_terminal("list", "--limit", "60"))


@pytest.mark.few_cases(2)
@pytest.mark.parametrize("columns", WIDTHS)
def test_on_a_real_terminal_no_line_is_longer_than_it(
    on_terminal: Shown, shop: list[str], columns: int
) -> None:
    for arguments in (
        ("list", "--limit", "0"),
        ("show", "orders.export-orders-eu-west"),
        ("next", "-n", "30"),
        ("timeline",),
        ("timeline", "--by", "prefix", "--start", "2027-03-27"),
        ("status",),
        ("why", "billing.sync-prices-eu-west"),
        ("doctor",),
        ("show", "there-is-no-such-entry-in-the-schedule"),
        ("--help",),
    ):
        lines = on_terminal(*arguments, columns=columns)
        assert len(lines) > 1, arguments
        assert max(map(cell_len, lines)) <= columns, (arguments, max(lines, key=cell_len))


@pytest.mark.parametrize("columns", [12, 30, 80, 200])
def test_hostile_values_stay_on_their_lines(
    ask: Call, app: Celery, client: redis.Redis, columns: int
) -> None:
    for name in (
        "\x1b[31mred\nforged: line",
        "[bold]x[/bold]",
        "在" * 300,
        "a\u0301" * 200,
        "👩‍👩‍👧" * 80,
        " ",
    ):
        RedBeatSchedulerEntry(name, name, clocked(FAR), app=app).save()
        history = {"due": 1.5e9, "at": 1.5e9, "outcome": name, "why": name * 20, "id": name}
        client.lpush(f"redbeat::history:{name}", json.dumps(history))
    write_raw(client, "broken", json.dumps({"task": "t" * 999, "schedule": "\x1b[2J" * 400}), score=5)
    for arguments in (("list",), ("next",), ("timeline",), ("show", "在" * 300), ("show", "broken")):
        lines = ask(*arguments, columns=columns).stdout.split("\n")
        assert all(line.isprintable() and not line.startswith("forged") for line in lines)
        if arguments[0] == "list":
            assert max(map(cell_len, lines)) <= columns


def test_one_endless_text_does_not_push_the_other_rows_aside(ask: Call, app: Celery) -> None:
    RedBeatSchedulerEntry("e" * 900, "echo", 60, app=app).save()
    RedBeatSchedulerEntry("short", "echo", 60, app=app).save()
    lines = {line.split()[0][:5]: line for line in ask("list").stdout.splitlines()}
    assert "e" * 900 in lines["eeeee"]
    assert len(lines["short"]) < 200


# -- what takes too long


def test_entries_that_take_too_long_are_shown_with_the_reason_and_hold_up_nobody(
    ask: Call, client: redis.Redis
) -> None:
    now = server_now(client)
    write_raw(client, "endless", {"task": "t", "schedule": SPINNING}, score=now + 50)
    write_raw(client, "good", score=now + 60)
    names = {"endless", "good"}
    know_spinning()
    rows = [line for line in ask("list", columns=80).stdout.splitlines()[2:] if line[0] != " "]
    assert {row.split()[0] for row in rows} == names
    upcoming = ask("next", "-n", "3")
    assert {line.split()[-1] for line in upcoming.stdout.splitlines()[2:]} == names
    chart = ask("timeline", "--hours", "8000")
    assert {line.split()[0] for line in chart.stdout.splitlines()} >= names
    for done in (upcoming, chart):
        told = re.findall(r"Not all of its runs are shown: (\w+): its schedule", done.stderr)
        assert told == ["endless"]
    assert "too expensive to compute" in ask("show", "endless").stdout
    assert "too expensive to compute" in ask("next", "endless", code=64).stderr


# -- sorting


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["c", "a", "d", "b"]),
        (["--sort", "next"], ["c", "a", "d", "b"]),
        (["--sort", "name"], ["a", "b", "c", "d"]),
        (["--sort", "name", "--reverse"], ["d", "c", "b", "a"]),
        (["--sort", "task"], ["b", "c", "d", "a"]),
        (["--sort", "runs"], ["d", "b", "c", "a"]),
        (["--sort", "last"], ["b", "d", "c", "a"]),
        (["--sort", "state"], ["c", "a", "d", "b"]),
        (["--sort", "runs", "--limit", "1", "--offset", "1"], ["b"]),
        (["--sort", "name", "--match", "[ab]"], ["a", "b"]),
        (["--reverse"], ["b", "d", "a", "c"]),
    ],
)
def test_a_list_is_sorted_by_what_is_asked_for(
    ask: Call, app: Celery, arguments: list[str], expected: list[str]
) -> None:
    rows = [("a", "z", 2, 0, 0), ("b", "w", 4, 7, 1), ("c", "x", 1, 5, 9), ("d", "y", 3, 8, 4)]
    for name, task, day, runs, hours_ago in rows:
        ran = datetime(2020, 1, 2, tzinfo=timezone.utc) - timedelta(hours=hours_ago)
        past = {"last_run_at": ran, "total_run_count": runs} if runs else {}
        RedBeatSchedulerEntry(name, task, clocked(FAR + timedelta(days=day)), app=app, **past).save()
    listed = ask("list", "--json", *arguments).stdout.splitlines()
    assert [json.loads(line)["name"] for line in listed] == expected
    table = ask("list", *arguments).stdout.splitlines()[2:]
    assert [line.split()[0] for line in table] == expected


def test_a_list_can_be_sorted_by_every_state(ask: Call, app: Celery, client: redis.Redis) -> None:
    now = server_now(client)
    RedBeatSchedulerEntry("scheduled", "t", clocked(FAR), app=app).save()
    RedBeatSchedulerEntry("paused", "t", clocked(FAR), app=app).save().pause()
    write_raw(client, "quarantined", "no json", score=now + 50)
    client.zadd("redbeat::schedule", {"redbeat:missing": now + 60})
    listed = [
        json.loads(line)["state"] for line in ask("list", "--sort", "state", "--json").stdout.splitlines()
    ]
    assert listed == ["quarantined", "missing", "scheduled", "paused"]
    for state in STATES:
        SORT_KEYS["state"](type("Entry", (), {"state": state}))


# -- zones


def test_one_rule_says_in_which_zone_times_are_shown(ask: Call, app: Celery, client: redis.Redis) -> None:
    due = datetime(2099, 7, 1, 12, 0, tzinfo=timezone.utc)
    entry = RedBeatSchedulerEntry("one", "t", clocked(due), app=app, timezone="America/New_York").save()
    broken = {"task": "t", "schedule": {"__type__": "crontab", "minute": "99"}}
    write_raw(client, "broken", json.dumps(broken), score=-5)
    for options, clock, label in (
        ((), "14:00:00", "Europe/Berlin"),
        (("--utc",), "12:00:00", "UTC"),
        (("--tz", "Asia/Kolkata"), "17:30:00", "Asia/Kolkata"),
        (("--utc", "--tz", "Asia/Kolkata"), "17:30:00", "Asia/Kolkata"),
        (("--tz", "Asia/Kolkata", "--utc"), "17:30:00", "Asia/Kolkata"),
    ):
        for command in (("list",), ("show", "one"), ("next",), ("next", "one"), ("why", "one")):
            shown = ask(*command, *options).stdout
            assert f"2099-07-01 {clock}" in shown or f"2099-07-01\n{clock}" in shown, (command, shown)
            assert label in shown, (command, shown)
        (run,) = [json.loads(line) for line in ask("next", "--json", *options).stdout.splitlines()]
        assert datetime.fromisoformat(run["due"]) == due
        assert run["due"][11:19] == clock
        chart = ask("timeline", "--start", f"2099-07-01T{clock}", "--hours", "1", *options).stdout
        assert f"2099-07-01 {clock[:5]} to " in chart
        assert label in chart
        assert "1 runs" in chart
        client.zadd("redbeat::schedule", {entry.key: 1e9})
        status = ask("status", "--late-after", "1e9", *options, code=1).stdout
        at = {"Europe/Berlin": "03:46:40", "UTC": "01:46:40", "Asia/Kolkata": "07:16:40"}[label]
        assert f"2001-09-09 {at} {label}" in status
        client.zadd("redbeat::schedule", {entry.key: due.timestamp()})


@pytest.mark.parametrize(
    ("options", "shown_as", "label"),
    [
        ((), "2099-07-01 14:00:00", "Europe/Berlin"),
        (("--utc",), "2099-07-01 12:00:00", "UTC"),
        (("--tz", "Asia/Kolkata"), "2099-07-01 17:30:00", "Asia/Kolkata"),
    ],
)
def test_commands_that_change_entries_show_times_in_the_same_zone(
    ask: Call, app: Celery, options: tuple[str, ...], shown_as: str, label: str
) -> None:
    given = ("--at", "2099-07-01T21:00", "--timezone", "Asia/Tokyo")
    assert f"Next run: {shown_as} {label}, " in ask("add", "one", "t", *given, *options).stdout
    changed = ask("set", "one", "--at", "2099-07-01T21:00", "--max-runs", "3", *options).stdout
    assert f"Next run: {shown_as} {label}, " in changed, "typed on the entry's clocks"
    assert f"until {shown_as} {label}." in ask("pause", "one", "--until", "2099-07-01T21:00", *options).stdout
    assert f"next run: {shown_as} {label}, " in ask("resume", "one", *options).stdout


def test_a_backfill_is_asked_for_and_shown_in_the_same_zone(ask: Call, app: Celery) -> None:
    RedBeatSchedulerEntry("one", "echo", crontab(minute=0), app=app, timezone="Asia/Tokyo").save()
    span = ("--from", "2024-01-01T10:00", "--to", "2024-01-01T10:30", "--dry-run")
    for options, label in (((), "Europe/Berlin"), (("--tz", "America/New_York"), "America/New_York")):
        shown = ask("backfill", "one", *span, *options).stdout
        assert shown == f"2024-01-01 10:00:00 {label}\n"


def test_a_time_that_is_shown_can_be_typed(ask: Call, app: Celery) -> None:
    RedBeatSchedulerEntry("one", "t", crontab("30", "7"), app=app, timezone="Asia/Tokyo").save()
    for options in ((), ("--utc",), ("--tz", "America/New_York")):
        first, second = (
            re.findall(DATE, line)[0]
            for line in ask("next", "one", "-n", "2", *options).stdout.splitlines()[2:]
        )
        assert second in ask("next", "one", "-n", "1", "--after", first, *options).stdout
        assert "to come" in ask("why", "one", "--at", first, *options).stdout
        assert ask("list", "--due-before", first, *options).stdout
        assert ask("count", "--due-before", first, *options).stdout == "1\n"


def test_an_hour_that_the_clocks_repeat_is_shown_with_its_offset(ask: Call, app: Celery) -> None:
    RedBeatSchedulerEntry("one", "t", crontab("30"), app=app).save()
    shown = ask("next", "one", "-n", "3", "--after", "2027-10-31T00:45").stdout
    assert re.findall(rf"{DATE}(?: \+\d\d:\d\d)?", shown) == [
        "2027-10-31 01:30:00",
        "2027-10-31 02:30:00 +02:00",
        "2027-10-31 02:30:00 +01:00",
    ]


def test_times_in_reasons_and_findings_are_on_the_same_clocks(
    ask: Call, app: Celery, client: redis.Redis
) -> None:
    start = datetime(2099, 1, 1, 12, 0, tzinfo=timezone.utc)
    RedBeatSchedulerEntry("one", "t", 3600, app=app, start_time=start).save()
    assert "2099-01-01 13:00:00 Europe/Berlin" in ask("why", "one", "--at", "2098-01-01T10:00").stdout
    assert "2099-01-01 12:00:00 UTC" in ask("why", "one", "--at", "2098-01-01T10:00", "--utc").stdout
    write_raw(client, "two", score=-1, schedule={"__type__": "crontab", "minute": "0"})
    assert re.search(rf"{DATE} Europe/Berlin", ask("doctor", code=1).stdout)
    assert re.search(rf"{DATE} UTC", ask("doctor", "--utc", code=1).stdout)


def test_the_doctor_says_since_when_an_entry_is_out_of_use_on_the_same_clocks(
    ask: Call, app: Celery, client: redis.Redis
) -> None:
    RedBeatSchedulerEntry("one", "t", 3600, app=app).save()
    stored = RedBeatSchedulerEntry.get("one", app).stored
    since = datetime(2026, 11, 22, 4, 48, 48, tzinfo=timezone.utc)
    client.hset("redbeat:one", "error", new_failure(stored, "it is bad", since.timestamp()).to_json())
    assert "since 2026-11-22 05:48:48 Europe/Berlin." in ask("doctor", code=2).stdout
    assert "since 2026-11-22 13:48:48 Asia/Tokyo." in ask("doctor", "--tz", "Asia/Tokyo", code=2).stdout


def test_a_plan_has_times_on_the_same_clocks(ask: Call, tmp_path: Path) -> None:
    file = tmp_path / "schedule.yaml"
    entry = (
        "{task: t, schedule: 60, start_time: 2099-07-01T12:00:00Z, kwargs: {at: '2099-07-01T12:00:00+00:00'}}"
    )
    file.write_text(f"owner: me\nentries:\n  one: {entry}\n")
    shown = ask("plan", str(file), code=2).stdout
    assert "start_time: 2099-07-01 14:00:00 Europe/Berlin" in shown
    assert '"2099-07-01T12:00:00+00:00"' in shown, "arguments stay as they are"
    assert "start_time: 2099-07-01 12:00:00 UTC" in ask("plan", str(file), "--utc", code=2).stdout
    assert (
        "2099-07-01 21:00:00 Asia/Tokyo" in ask("apply", str(file), "--dry-run", "--tz", "Asia/Tokyo").stdout
    )


def test_a_zone_that_the_application_doesn_t_have_right_is_one_sentence(make_app: MakeApp) -> None:
    done = call(make_app(timezone="Europe/Nowhere"), "list")
    assert done.exit_code == 78
    assert done.stderr.startswith("Error: timezone: ")
    assert done.stderr.count("\n") == 1


# -- what runs next


def test_a_change_of_clocks_is_marked_between_the_runs_that_it_parts(ask: Call, app: Celery) -> None:
    RedBeatSchedulerEntry("one", "t", crontab("0", "9"), app=app).save()

    def changes(*arguments: str) -> list[str | None]:
        found = ask("next", "one", "-n", "3", "--json", *arguments).stdout.splitlines()
        return [json.loads(line)["clocks"] for line in found]

    forward = "clocks go forward here: Europe/Berlin by 60 min, to +02:00"
    assert changes("--after", "2027-03-27") == [None, forward, None]
    assert changes("--after", "2027-03-28") == [None, None, None], "it was before the first run"
    assert changes("--after", "2027-07-01") == [None, None, None], "whatever the clocks are today"
    assert changes("--after", "2027-01-01") == [None, None, None]
    back = "clocks go back here: Europe/Berlin by 60 min, to +01:00"
    assert changes("--after", "2027-10-30") == [None, back, None]
    assert changes("--after", "2027-10-30", "--utc") == [None, back, None], "the entry's clocks"


def test_the_runs_of_all_entries_after_a_time_are_in_order(ask: Call, app: Celery) -> None:
    def add(name: str, schedule: Any, **fields: Any) -> None:
        RedBeatSchedulerEntry(name, "t", schedule, app=app, **fields).save()

    add("daily", crontab("0", "9"))
    add("new york", crontab("30", "3"), timezone="America/New_York")
    add("monthly", crontab("0", "9", day_of_month="1"))
    add("once", clocked(datetime(2099, 5, 1, 8, 30, tzinfo=timezone.utc)))
    add("over by then", clocked(datetime(2098, 5, 1, 8, 30, tzinfo=timezone.utc)))
    add("twice", 3600, max_runs=2)
    add("off", 60, enabled=False)
    found = [
        json.loads(line)
        for line in ask("next", "-n", "6", "--after", "2099-05-01T00:00", "--json").stdout.splitlines()
    ]
    assert [(run["name"], run["due"][:16]) for run in found] == [
        ("daily", "2099-05-01T09:00"),
        ("monthly", "2099-05-01T09:00"),
        ("new york", "2099-05-01T09:30"),
        ("once", "2099-05-01T10:30"),
        ("daily", "2099-05-02T09:00"),
        ("new york", "2099-05-02T09:30"),
    ]
    matched = ask("next", "-n", "2", "--after", "2099-05-01", "--match", "n*", "--json").stdout.splitlines()
    assert [json.loads(line)["name"] for line in matched] == ["new york", "new york"]


def test_runs_before_the_time_asked_for_count_among_those_that_are_left(ask: Call, app: Celery) -> None:
    start = datetime(2099, 1, 1, tzinfo=timezone.utc)
    RedBeatSchedulerEntry("five", "t", crontab("0", "12"), app=app, max_runs=5, start_time=start).save()
    found = ask("next", "-n", "9", "--after", "2099-01-03T12:00", "--json").stdout.splitlines()
    assert [json.loads(line)["due"][:10] for line in found] == ["2099-01-04", "2099-01-05"]


# -- the timeline


def chart_of(done: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_timeline_is_by_load_task_or_prefix(ask: Call, app: Celery) -> None:
    for name, task, seconds in (
        ("billing.a", "t.pay", 3600),
        ("billing.b", "t.send", 600),
        ("orders.c", "t.send", 1800),
        ("lonely", "t.pay", 7200),
    ):
        RedBeatSchedulerEntry(name, task, seconds, app=app).save()
    start = ("--start", "2099-01-01", "--json")
    for by, expected in (
        ("load", ["billing.b", "orders.c", "billing.a", "lonely"]),
        ("task", ["t.send", "t.pay"]),
        ("prefix", ["billing.*", "orders.*", "lonely"]),
    ):
        found = chart_of(ask("timeline", "--by", by, *start))
        assert [row["name"] for row in found["entries"]] == expected
        assert [sum(counts) for counts in zip(*(row["runs"] for row in found["entries"]), strict=True)] == (
            found["total"]
        )
        assert sum(found["total"]) == 24 * (1 + 6 + 2) + 12


def test_a_timeline_begins_where_it_is_asked_to(ask: Call, app: Celery) -> None:
    RedBeatSchedulerEntry("daily", "t", crontab("30", "9"), app=app).save()
    for begin in ("2020-02-03", "2099-02-03"):
        found = chart_of(ask("timeline", "--start", begin, "--json", columns=100))
        assert found["begin"] == f"{begin[:4]}-02-02T23:00:00+00:00"
        column = int((9.5 * 3600) // found["column_seconds"])
        assert [at for at, runs in enumerate(found["total"]) if runs] == [column]
    shown = ask("timeline", "--start", "2099-02-03", columns=80).stdout
    assert shown.startswith("Tuesday 2099-02-03 00:00 to Wednesday 2099-02-04 00:00, Europe/Berlin")
    assert "from 2099-02-03 09:30:00 on" in shown


def test_a_timeline_of_today_has_what_was_and_what_comes_once_each(ask: Call, app: Celery) -> None:
    RedBeatSchedulerEntry("often", "t", 600, app=app).save()
    midnight = datetime.now(timezone.utc).replace(hour=0, minute=0, second=0, microsecond=0)
    found = chart_of(ask("timeline", "--start", midnight.isoformat(), "--utc", "--json"))
    assert sum(found["total"]) == 144


def test_cells_are_shaded_and_the_shades_explained(ask: Call, app: Celery) -> None:
    for name, seconds in (("a", 30), ("b", 300), ("c", 3600)):
        RedBeatSchedulerEntry(name, "t", seconds, app=app).save()
    lines = ask("timeline", "--start", "2099-02-03", columns=80).stdout.splitlines()
    rows = {line.split()[0]: set(line.split()[1]) for line in lines if line[:2] in ("a ", "b ", "c ")}
    assert rows == {"a": {"█"}, "b": {"▒"}, "c": {"░", "·"}}
    legend = next(line for line in lines if line.startswith("· none"))
    assert re.fullmatch(r"· none,  ░ 1 to \d+,  ▒ \d+ to \d+,  ▓ \d+ to \d+,  █ \d+ to 60", legend)


# -- help


def test_every_command_has_its_section_and_one_line(ask: Call) -> None:
    listed = [command.name for section in SECTIONS.values() for command in section]
    assert sorted(map(str, listed)) == sorted(redbeat.commands), "each command stands in one section"
    lines = ask("--help").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    for title, section in SECTIONS.items():
        at = lines.index(f"{title}:")
        for offset, (command, words) in enumerate(section.items(), start=1):
            assert lines[at + offset].split(None, 1) == [command.name, words]


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 160])
def test_the_next_run_of_what_rests_is_never_blank(ask: Call, app: Celery, columns: int) -> None:
    entry = RedBeatSchedulerEntry("resting", "t", 60, app=app).save()
    entry.pause()
    titles, _, row = ask("list", columns=columns).stdout.splitlines()[:3]
    place = titles.index("next run")
    assert row[place:].split()[0] == ("paused" if columns >= 120 else "-")


def test_in_a_pipe_garbage_of_megabytes_is_shortened_and_json_has_all_of_it(
    ask: Call, client: redis.Redis
) -> None:
    garbage = "x" * 100_000
    write_raw(client, "task", task=garbage)
    write_raw(client, "schedule", schedule=garbage)
    write_raw(client, "error", schedule={"__type__": garbage})
    client.hset("redbeat:error", "error", json.dumps({"reason": garbage, "since": 1.0}))
    done = ask("list")
    assert done.exit_code == 0
    assert {len(line) > 5_000 for line in done.stdout.splitlines()} == {False}
    assert garbage in ask("list", "--json").stdout
