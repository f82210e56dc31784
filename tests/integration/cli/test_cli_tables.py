"""Tables and charts: widths, order, choice, time zones, and entries that cannot be shown whole."""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab
from rich.cells import cell_len

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.entries.failures import new_failure
from redbeat.entries.query import STATES
from redbeat.schedules import clocked
from tests.integration.cli.conftest import FAR, Call
from tests.support.bad_entries import HOSTILE_RULES
from tests.support.schedule import server_now, write_raw

TIMEZONE = "Europe/Berlin"


DATE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"


#: the reason of the entry that fails
AWAY = "the broker amqp://rabbit.internal:5672 is unreachable: [Errno 111] Connection refused, " * 2 + "again"


@pytest.fixture
def shop(app: Celery, client: redis.Redis) -> list[str]:
    """Names of entries in every state, some of them long or wide."""
    names = [
        *("größe.café ☃ täglich", "在庫.毎晩の棚卸しレポートを倉庫ごとに作成する", "t", "orders.failing"),
        "billing.send_monthly_invoices_and_reminders_to_all_customers_of_the_old_shop_system",
    ]
    long = {"task": "billing.tasks.invoices.send_monthly_invoices", "timezone": "America/New_York"}
    entries = [Entry(name, schedule=crontab("15", "2,14"), app=app, **long) for name in names]
    Entry.save_many(entries)
    entries[0].pause("prices are being moved", until=FAR)
    entries[1].update(enabled=False)
    due = server_now(client)
    failure = new_failure(Entry.get(names[3], app).stored, AWAY, due)
    client.hset(entries[3].key, "error", failure.again(attempts=3, retry_at=str(due), due="5").to_json())
    client.zadd("redbeat::schedule", {entries[3].key: due})
    write_raw(client, "old.quarantined", {"task": "t", "schedule": "99 * * * *"}, score=due)
    write_raw(client, "old.finished", score=-1)
    client.zadd("redbeat::schedule", {"redbeat:gone": due + 50})
    return [*names, "old.quarantined", "old.finished", "gone"]


def is_shortened_from(shown: str, whole: str) -> bool:
    begin, ellipsis, end = shown.partition("…")
    return shown == whole or (bool(ellipsis) and whole.startswith(begin) and whole.endswith(end))


@pytest.mark.parametrize("columns", [80, 120])
def test_list_fits_the_terminal_with_one_line_an_entry(ask: Call, shop: list[str], columns: int) -> None:
    lines = ask("list", columns=columns).stdout.splitlines()
    assert max(map(cell_len, lines)) <= columns
    titles = next(number for number, line in enumerate(lines) if set(line) == {"─"})
    rows = [line for line in lines[titles + 1 :] if not line.startswith("  ")]
    assert len(rows) == len(shop), "a line for each entry, and none for the rest of a name"
    for row in rows:
        assert any(is_shortened_from(re.split(" {2,}", row)[0], name) for name in shop), row
        assert re.search(rf" ({'|'.join(STATES)})$", row), row


def test_list_leaves_the_task_out_before_it_shortens_a_name(ask: Call, app: Celery) -> None:
    name, task = "billing.send_monthly_invoices_again", "billing.tasks.invoices.send"
    Entry(name, task, crontab("15"), app=app).save()
    for columns, has_task in ((70, False), (80, False), (140, True)):
        shown = ask("list", columns=columns).stdout
        assert (name in shown, task in shown) == (True, has_task), shown


def test_list_in_a_pipe_shortens_nothing(ask: Call, shop: list[str]) -> None:
    lines = ask("list").stdout.splitlines()
    assert sorted(re.split(" {2,}", line)[0] for line in lines[2:]) == sorted(shop)
    assert "…" not in "\n".join(lines)
    assert any(line.endswith(AWAY) for line in lines)


def test_rule_too_sparse_to_compute_is_shown_with_the_reason(ask: Call, client: redis.Redis) -> None:
    now = server_now(client)
    write_raw(client, "sparse", {"task": "t", "schedule": HOSTILE_RULES["sparse"]}, score=now + 50)
    write_raw(client, "good", score=now + 60)
    for command in ("list", "next -n 3", "timeline --hours 8000"):
        done = ask(*command.split())
        assert ("sparse" in done.stdout, "good" in done.stdout) == (True, True)
        told = re.findall(
            r"Not all of its runs are shown: (\w+): its next run can't be computed: rrule: too", done.stderr
        )
        assert told == ([] if command == "list" else ["sparse"])
    assert "too sparse" in ask("next", "sparse", code=64).stderr
    assert "no time" in ask("why", "sparse").stdout
    assert "sparse" in ask("show", "sparse").stdout
    assert "Its next time can't be computed: rrule: too sparse" in ask("doctor", code=2).stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["c", "a", "d", "b"]),
        (["--sort", "task", "--reverse"], ["a", "d", "c", "b"]),
        (["--sort", "runs", "--limit", "1", "--offset", "1"], ["b"]),
        (["--match", "[ab]"], ["a", "b"]),
        (["--task", "y", "--reverse"], ["d"]),
        (["--state", "disabled"], ["d"]),
        (["--due-before", "2099-03-03T10:29"], ["c"]),  # in the application's zone
    ],
)
def test_list_is_sorted_and_chosen_as_asked(
    ask: Call, app: Celery, arguments: list[str], expected: list[str]
) -> None:
    rows = [("a", "z", 2, 0, 0), ("b", "w", 4, 7, 1), ("c", "x", 1, 5, 9), ("d", "y", 3, 8, 4)]
    for name, task, day, runs, hours_ago in rows:
        ran = datetime(2020, 1, 2, tzinfo=timezone.utc) - timedelta(hours=hours_ago)
        past = {"last_run_at": ran, "total_run_count": runs} if runs else {}
        schedule = clocked(FAR + timedelta(days=day))
        Entry(name, task, schedule, app=app, enabled=name != "d", **past).save()
    listed = ask("list", "--json", *arguments).stdout.splitlines()
    assert [json.loads(line)["name"] for line in listed] == expected
    if arguments and not {"--sort", "--reverse"} & {*arguments}:
        assert ask("count", *arguments).stdout == f"{len(expected)}\n"
    table = ask("list", *arguments).stdout.splitlines()[2:]
    assert [line.split()[0] for line in table] == expected


def test_times_are_shown_in_the_zone_that_is_asked_for(ask: Call, app: Celery, client: redis.Redis) -> None:
    due = datetime(2099, 7, 1, 12, 0, tzinfo=timezone.utc)
    entry = Entry("one", "t", clocked(due), app=app, timezone="America/New_York").save()
    broken = {"task": "t", "schedule": {"__type__": "crontab", "minute": "99"}}
    write_raw(client, "broken", json.dumps(broken), score=-5)
    for options, clock, label in (
        ((), "14:00:00", "Europe/Berlin"),
        (("--utc",), "12:00:00", "UTC"),
        (("--tz", "Asia/Kolkata", "--utc"), "17:30:00", "Asia/Kolkata"),
    ):
        for command in (("list",), ("show", "one"), ("next",), ("next", "one"), ("why", "one")):
            shown = ask(*command, *options).stdout
            assert f"2099-07-01 {clock}" in shown or f"2099-07-01\n{clock}" in shown, (command, shown)
            assert label in shown, (command, shown)
        run = json.loads(ask("next", "--json", *options).stdout)
        assert (datetime.fromisoformat(run["due"]), run["due"][11:19]) == (due, clock)
        chart = ask("timeline", "--start", f"2099-07-01T{clock}", "--hours", "1", *options).stdout
        assert (f"2099-07-01 {clock[:5]} to " in chart, label in chart, "1 runs" in chart) == (True,) * 3
        client.zadd("redbeat::schedule", {entry.key: 1e9})
        status = ask("status", "--late-after", "1e9", *options, code=1).stdout
        at = {"Europe/Berlin": "03:46:40", "UTC": "01:46:40", "Asia/Kolkata": "07:16:40"}[label]
        assert f"2001-09-09 {at} {label}" in status
        client.zadd("redbeat::schedule", {entry.key: due.timestamp()})


def test_changing_commands_show_times_in_the_zone_that_is_asked_for(ask: Call) -> None:
    options, shown_as, label = ("--tz", "Asia/Kolkata"), "2099-07-01 17:30:00", "Asia/Kolkata"
    given = ("--at", "2099-07-01T21:00", "--timezone", "Asia/Tokyo")
    assert f"Next run: {shown_as} {label}, " in ask("add", "one", "t", *given, *options).stdout
    changed = ask("set", "one", "--at", "2099-07-01T21:00", "--max-runs", "3", *options).stdout
    assert f"Next run: {shown_as} {label}, " in changed, "typed on the entry's clocks"
    assert f"until {shown_as} {label}." in ask("pause", "one", "--until", "2099-07-01T21:00", *options).stdout
    assert f"Next run: {shown_as} {label}, " in ask("resume", "one", *options).stdout


def test_shown_time_can_be_typed(ask: Call, app: Celery) -> None:
    Entry("one", "t", crontab("30", "7"), app=app, timezone="Asia/Tokyo").save()
    for options in ((), ("--utc",), ("--tz", "America/New_York")):
        first, second = re.findall(DATE, ask("next", "one", "-n", "2", *options).stdout)
        assert second in ask("next", "one", "-n", "1", "--after", first, *options).stdout
        assert "to come" in ask("why", "one", "--at", first, *options).stdout
        assert ask("count", "--due-before", first, *options).stdout == "1\n"


def test_repeated_hour_is_shown_with_its_offset(ask: Call, app: Celery) -> None:
    Entry("one", "t", crontab("30"), app=app).save()
    shown = ask("next", "one", "-n", "3", "--after", "2027-10-31T00:45").stdout
    assert re.findall(rf"{DATE}(?: \+\d\d:\d\d)?", shown) == [
        "2027-10-31 01:30:00",
        "2027-10-31 02:30:00 +02:00",
        "2027-10-31 02:30:00 +01:00",
    ]


def test_next_names_a_change_of_clocks(ask: Call, app: Celery) -> None:
    Entry("one", "t", crontab("0", "9"), app=app).save()
    found = ask("next", "one", "-n", "3", "--json", "--after", "2027-03-27").stdout.splitlines()
    forward = "clocks go forward here: Europe/Berlin by 60 min, to +02:00"
    assert [json.loads(line)["clocks"] for line in found] == [None, forward, None]


def test_list_of_many_entries_holds_few_at_a_time(
    ask: Call, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    Entry.save_many(Entry(f"{number}", "t", clocked(FAR), app=app) for number in range(1500))
    read, alive, counts = Entry.list, set[int](), [0]

    def read_watched(*arguments: Any, **options: Any) -> Iterator[Entry]:
        for entry in read(*arguments, **options):
            alive.add(id(entry))
            weakref.finalize(entry, alive.discard, id(entry))
            counts.append(len(alive))
            yield entry

    monkeypatch.setattr(Entry, "list", read_watched)
    assert len(ask("list", "--json").stdout.splitlines()) == 1500
    assert max(counts) < 1200, "two chunks"


@pytest.mark.parametrize("score", ["inf", "-inf", "253402300800"])
def test_score_that_is_not_a_date_leaves_the_next_run_out(ask: Call, client: redis.Redis, score: str) -> None:
    write_raw(client, "odd", score=None)
    write_raw(client, "even", score=4e9)
    client.zadd("redbeat::schedule", {"redbeat:odd": score})
    documents = map(json.loads, ask("list", "--json").stdout.splitlines())
    found = {document["name"]: document["next_due_at"] for document in documents}
    assert (found["odd"], found["even"]) == (None, "2096-10-02T07:06:40+00:00")
    for command in (["list"], ["show", "odd"], ["next"], ["next", "odd"], ["timeline"], ["pause", "odd"]):
        ask(*command)
