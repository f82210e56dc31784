"""Files of entries and calendars: planned, applied, pruned, and kept from running over others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import EntryChanged, FileError, OwnedByOthers, StoreCorrupt
from redbeat.manifest.format import read_file
from redbeat.manifest.plan import Plan, apply_plan, commit, make_plan
from tests.support.applying import apply, state_of
from tests.support.schedule import SCHEDULE, field, meta_json, score_of, server_now, write_raw

FILE = """
entries:
  one: {task: echo, schedule: {every: 1h}}
  two: {task: echo, schedule: {cron: "0 9 * * *"}, timezone: Europe/Berlin, args: [1]}
"""

ENTRY_FILE = "entries:\n  report: {task: echo, schedule: {every: 1h}, exclude: holidays}\n"


CALENDAR_FILE = f"""\
{ENTRY_FILE}calendars:
  holidays: {{about: public, days: {{2098-12-25: Christmas, 2098-12-26: Boxing Day}}}}
"""


NO_CALENDAR = "entries:\n  report: {task: echo, schedule: {every: 1h}}\n"


def test_apply_twice_writes_once(app: Celery, client: redis.Redis) -> None:
    assert list(apply(app, FILE).difference.added) == ["one", "two"]
    assert client.zcard(SCHEDULE) == 2
    assert field(client, "two", "policy") == {"timezone": "Europe/Berlin"}
    assert client.hget("redbeat:one", "owner") == "billing"
    assert client.smembers("redbeat::owner:billing") == {"one", "two"}
    assert score_of(client, "one") == pytest.approx(server_now(client) + 3600, abs=5)
    before = client.hgetall("redbeat:two")
    plan = apply(app, FILE)
    assert not plan
    assert plan.difference.same == ["one", "two"]
    assert client.hgetall("redbeat:two") == before
    assert Entry.get("two", app).args == [1]


def test_changed_entry_keeps_its_runs(app: Celery, client: redis.Redis) -> None:
    apply(app, FILE)
    ran_at = meta_json(datetime(2024, 5, 6, 7, 8, 9), 12)
    client.hset("redbeat:one", "meta", ran_at)
    client.zadd(SCHEDULE, {"redbeat:one": 1_700_000_000})
    plan = apply(app, FILE.replace("one: {task: echo", "one: {task: other"))
    assert plan.difference.changed == {"one": {"task": ("echo", "other")}}
    assert client.hget("redbeat:one", "meta").strip() == ran_at
    assert Entry.get("one", app).total_run_count == 12
    apply(app, FILE.replace("1h", "10m"))
    assert 0 < (score_of(client, "one") or 0) - server_now(client) <= 600
    assert Entry.get("one", app).total_run_count == 12


@pytest.mark.also_sharded
def test_paused_entry_stays_paused_unless_the_file_enables_it(app: Celery) -> None:
    apply(app, FILE)
    Entry.get("one", app).pause("payment provider is down")
    assert not apply(app, FILE)
    apply(app, FILE.replace("every: 1h", "every: 2h"))
    entry = Entry.get("one", app)
    assert (entry.enabled, entry.paused, entry.pause_note) == (False, True, "payment provider is down")
    apply(app, FILE.replace("{every: 1h}", "{every: 1h}, enabled: true"))
    assert (Entry.get("one", app).enabled, Entry.get("one", app).paused) == (True, False)


def test_prune_removes_only_entries_of_the_owner(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "by-hand", score=4e9)
    apply(app, FILE)
    apply(app, "entries: {three: {task: echo, schedule: 60}}", "accounts", prune=True)
    client.rpush("redbeat::history:one", "{}")
    only_two = "entries: {two: {task: echo, schedule: 60}}"
    assert apply(app, only_two).difference.left == ["one"]
    assert client.zcard(SCHEDULE) == 4
    assert list(apply(app, only_two, prune=True).difference.removed) == ["one"]
    assert sorted(client.zrange(SCHEDULE, 0, -1)) == ["redbeat:by-hand", "redbeat:three", "redbeat:two"]
    assert not client.exists("redbeat:one", "redbeat::history:one")
    assert client.smembers("redbeat::owner:billing") == {"two"}
    apply(app, "entries: {}", prune=True)
    assert sorted(client.zrange(SCHEDULE, 0, -1)) == ["redbeat:by-hand", "redbeat:three"]


def test_entry_of_another_owner_is_refused_or_taken_over(app: Celery, client: redis.Redis) -> None:
    apply(app, FILE)
    with pytest.raises(OwnedByOthers, match="line 3: one: belongs to billing, and 1 more") as caught:
        apply(app, FILE, "accounts")
    assert caught.value.owners == {"one": "billing", "two": "billing"}
    assert client.hget("redbeat:one", "owner") == "billing"
    plan = apply(app, FILE, "accounts", take_over=True)
    assert plan.difference.changed["one"] == {"owner": ("billing", "accounts")}
    apply(app, "entries: {}", prune=True)  # billing has none of them any more
    assert client.zcard(SCHEDULE) == 2


def test_entry_created_again_by_hand_is_not_pruned(app: Celery, client: redis.Redis) -> None:
    apply(app, FILE)
    Entry.get("one", app).delete()
    Entry("one", "mine", 60, app=app).save()
    assert list(apply(app, "entries: {}", prune=True).difference.removed) == ["two"]
    assert client.zrange(SCHEDULE, 0, -1) == ["redbeat:one"]


def test_static_entry_is_refused(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "one", score=4e9)
    client.sadd("redbeat::statics", "one")
    client.sadd("redbeat::static-owners", "shop\tone")
    with pytest.raises(OwnedByOthers, match="one: belongs to the code of shop"):
        apply(app, FILE)
    apply(app, FILE, take_over=True)
    assert client.hget("redbeat:one", "owner") == "billing"


def test_invalid_entry_stops_the_whole_file(app: Celery, client: redis.Redis) -> None:
    with pytest.raises(FileError, match="line 5: three: schedule: "):
        apply(app, f"{FILE}  three: {{task: echo, schedule: {{cron: daily}}}}\n")
    assert client.keys() == []
    client.set("redbeat:two", "a string")
    with pytest.raises(FileError, match=r"two: .*delete it first"):
        apply(app, FILE)
    assert client.keys() == ["redbeat:two"]
    client.set("redbeat::owner:billing", "a string")
    with pytest.raises(StoreCorrupt, match="redbeat::owner:billing"):
        apply(app, FILE)


def test_calendar_of_a_file_moves_the_due_time_at_once(app: Celery, client: redis.Redis) -> None:
    text = """
entries: {yearly: {task: echo, schedule: {cron: "0 0 1 1 *"}, exclude: newyear, timezone: UTC}}
calendars: {newyear: {days: {DAY: closed}}}
"""
    year = datetime.now(timezone.utc).year + 1
    apply(app, text.replace("DAY", f"{year}-01-01"))
    first = score_of(client, "yearly")
    assert Calendar.load("newyear", app).days == {f"{year}-01-01": "closed"}
    assert first == datetime(year + 1, 1, 1, tzinfo=timezone.utc).timestamp()
    apply(app, text.replace("DAY", f"{year}-05-05"))
    assert score_of(client, "yearly") == datetime(year, 1, 1, tzinfo=timezone.utc).timestamp()


def test_concurrent_change_makes_a_new_plan(app: Celery, client: redis.Redis) -> None:
    apply(app, FILE)
    seen: list[tuple[dict[str, Any], str]] = []

    def confirm(plan: Plan, why: str) -> bool:
        seen.append((dict(plan.difference.changed), why))
        if len(seen) == 1:
            Entry("two", "by-hand", 60, app=app).save()
        return True

    text = read_file(FILE.replace("every: 1h", "every: 2h"))
    apply_plan(lambda: make_plan(app, text, "billing"), confirm)
    assert [(list(changed), why) for changed, why in seen] == [
        (["one"], ""),
        (["one", "two"], "two has changed meanwhile; nothing was written."),
    ]
    assert Entry.get("two", app).task == "echo"


def test_plan_that_was_done_in_part_meanwhile_is_not_confirmed_again(app: Celery) -> None:
    apply(app, FILE)
    text, asked = read_file(FILE.replace("every: 1h", "every: 2h").replace("[1]", "[2]")), list[str]()

    def confirm(_plan: Plan, why: str) -> bool:
        asked.append(why)
        Entry.get("one", app).update(schedule=7200)
        return True

    assert apply_plan(lambda: make_plan(app, text, "billing"), confirm)
    assert asked == [""]
    assert (Entry.get("two", app).args, apply(app, FILE.replace("1h", "2h")).difference.same) == (
        [2],
        ["one"],
    )


MEDDLING: dict[str, Callable[[redis.Redis], Any]] = {
    "deleted": lambda client: client.delete("redbeat:report"),
    "owned": lambda client: client.hset("redbeat:report", "owner", "accounts"),
    "policy": lambda client: client.hset("redbeat:report", "policy", "{}"),
    "calendar": lambda client: client.hset("redbeat::calendar:holidays", "2097-01-01", "theirs"),
}


@pytest.mark.parametrize("meddle", MEDDLING)
def test_outdated_plan_writes_nothing(app: Celery, client: redis.Redis, meddle: str) -> None:
    apply(app, CALENDAR_FILE)
    changed = CALENDAR_FILE.replace("Christmas", "Xmas").replace("1h", "2h")
    plan = make_plan(app, read_file(changed), "billing")
    MEDDLING[meddle](client)
    before = state_of(client)
    with pytest.raises(EntryChanged, match=r"(report|:calendar:holidays) has changed meanwhile"):
        commit(plan)
    assert state_of(client) == before
    apply(app, changed, take_over=True)
    assert Calendar.load("holidays", app).days == {"2098-12-25": "Xmas", "2098-12-26": "Boxing Day"}


def test_plan_that_was_carried_out_already_is_done(app: Celery, client: redis.Redis) -> None:
    """The answer of the server was lost, and its client asked again."""
    apply(app, FILE)
    text = read_file("entries: {one: {task: other, schedule: 60}, three: {task: echo, schedule: 60}}")
    plan = make_plan(app, text, "billing", prune=True)
    commit(plan)
    before = state_of(client)
    plans = iter([plan])
    assert apply_plan(lambda: next(plans, None) or make_plan(app, text, "billing", prune=True)) is plan
    assert state_of(client) == before
    Entry.get("three", app).update(task="mine")
    with pytest.raises(EntryChanged):
        commit(plan)


@pytest.mark.also_sharded
def test_prune_removes_a_calendar_when_no_entry_names_it(app: Celery) -> None:
    apply(app, CALENDAR_FILE)
    assert apply(app, NO_CALENDAR).calendars.left == ["holidays"], "without prune"
    plan = make_plan(app, read_file(ENTRY_FILE), "billing", prune=True)
    assert plan.calendars.left == ["holidays"], "the file names it"
    theirs = Entry("theirs", "echo", 60, exclude="holidays", enabled=False, app=app).save()
    assert apply(app, NO_CALENDAR, prune=True).calendars.left == ["holidays"]
    assert Calendar.names(app) == ["holidays"]
    theirs.delete()
    assert list(apply(app, NO_CALENDAR, prune=True).calendars.removed) == ["holidays"]
    assert Calendar.names(app) == []
