"""Calendars of files: what a plan shows of them, and what applying and pruning does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery
from click.testing import Result

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import EntryChanged, EntryError
from redbeat.manifest.format import read_file
from redbeat.manifest.plan import commit, make_plan
from redbeat.store.owners import CalendarChange, Change, Owners
from redbeat.store.store import Store, Stored, Write
from tests.support.applying import apply, state_of
from tests.support.command_line import call

ENTRY = "entries:\n  report: {task: echo, schedule: {every: 1h}, exclude: holidays}\n"
FILE = f"""\
{ENTRY}calendars:
  holidays: {{about: public, days: {{2098-12-25: Christmas, 2098-12-26: Boxing Day}}}}
"""
CHANGED = f"""\
{ENTRY}calendars:
  holidays: {{about: ours, days: {{2098-12-25: Xmas, 2099-01-01: New Year}}}}
"""
NO_CALENDAR = "entries:\n  report: {task: echo, schedule: {every: 1h}}\n"

Ask = Callable[..., Result]


@pytest.fixture
def ask(app: Celery, tmp_path: Path) -> Ask:
    def run(command: str, text: str, *arguments: str) -> Result:
        (tmp_path / "file.yaml").write_text(f"owner: billing\n{text}")
        return call(app, command, str(tmp_path / "file.yaml"), *arguments)

    return run


@pytest.mark.also_sharded
def test_a_new_calendar_is_shown_with_its_days_and_counted(ask: Ask) -> None:
    shown = ask("plan", FILE)
    assert shown.exit_code == 2
    assert (
        "+ calendar holidays\n    about: public\n    + 2098-12-25: Christmas\n    + 2098-12-26: Boxing Day\n"
    ) in shown.output
    assert "1 to add, 0 to change, 0 to remove, 0 the same.\nCalendars: 1 to add, 0 to change" in shown.output


@pytest.mark.also_sharded
def test_a_changed_calendar_is_shown_with_what_comes_and_what_goes(ask: Ask, app: Celery) -> None:
    apply(app, FILE)
    shown = ask("plan", CHANGED)
    assert shown.exit_code == 2
    assert (
        "~ calendar holidays\n    about: public -> ours\n    ~ 2098-12-25: Christmas -> Xmas\n"
        "    - 2098-12-26: Boxing Day\n    + 2099-01-01: New Year\n"
    ) in shown.output
    assert "0 to add, 0 to change, 0 to remove, 1 the same.\nCalendars: 0 to add, 1 to change" in shown.output
    document = json.loads(ask("plan", CHANGED, "--json").stdout)["calendars"]
    assert document["changed"] == {
        "holidays": {
            "about": {"before": "public", "after": "ours"},
            "2098-12-25": {"before": "Christmas", "after": "Xmas"},
            "2098-12-26": {"before": "Boxing Day", "after": None},
            "2099-01-01": {"before": None, "after": "New Year"},
        }
    }
    assert ask("apply", CHANGED, "--yes").exit_code == 0
    assert ask("plan", CHANGED).exit_code == 0
    assert Calendar.load("holidays", app).days == {"2098-12-25": "Xmas", "2099-01-01": "New Year"}


def test_of_many_days_some_are_shown(ask: Ask) -> None:
    days = ", ".join(f"{year}-01-01" for year in range(2030, 2080))
    shown = ask("plan", f"entries: {{}}\ncalendars: {{years: {{days: [{days}]}}}}\n").output
    assert "    + 2039-01-01\n    and 40 more; --json has all of them\n" in shown
    assert "2040-01-01" not in shown


@pytest.mark.also_sharded
def test_pruning_removes_a_calendar_that_has_left_the_file_and_that_nobody_names(
    ask: Ask, app: Celery, client: redis.Redis
) -> None:
    apply(app, FILE)
    stays = ask("plan", NO_CALENDAR)
    assert "Not in the file any more, and stays without --prune: calendar holidays." in stays.output
    shown = ask("plan", NO_CALENDAR, "--prune")
    assert "- calendar holidays\n    about: public\n    - 2098-12-25: Christmas" in shown.output
    assert "Calendars: 0 to add, 0 to change, 1 to remove, 0 the same." in shown.output
    assert ask("apply", NO_CALENDAR, "--prune", "--yes").exit_code == 0
    assert Calendar.names(app) == []
    assert client.smembers("redbeat::owner:") == set()
    assert ask("plan", NO_CALENDAR, "--prune").exit_code == 0


@pytest.mark.also_sharded
def test_entries_that_are_pruned_at_the_same_time_name_no_calendar(ask: Ask, app: Celery) -> None:
    apply(app, FILE)
    assert ask("apply", "entries: {}\n", "--prune", "--yes").exit_code == 0
    assert (Calendar.names(app), Entry.count(app)) == ([], 0)


@pytest.mark.also_sharded
@pytest.mark.parametrize("whose", ["file", "somebody", "disabled"])
def test_a_calendar_that_an_entry_still_names_stays_and_who_it_is_is_told(
    ask: Ask, app: Celery, whose: str
) -> None:
    apply(app, FILE)
    text = ENTRY if whose == "file" else NO_CALENDAR
    if whose != "file":
        Entry("theirs", "echo", 60, exclude="holidays", enabled=whose != "disabled", app=app).save()
    shown = ask("plan", text, "--prune")
    name = "report" if whose == "file" else "theirs"
    assert f"The calendar holidays isn't in the file any more, and stays: {name} names it." in shown.output
    assert ask("apply", text, "--prune", "--yes").exit_code == 0
    assert Calendar.names(app) == ["holidays"]
    Entry.get(name, app).update(exclude=None)
    assert ask("apply", NO_CALENDAR, "--prune", "--yes").exit_code == 0
    assert Calendar.names(app) == [], "it was still the owner's"


@pytest.mark.also_sharded
def test_a_calendar_that_an_entry_names_by_the_time_it_is_pruned_stays(
    ask: Ask, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the plan and the step another process saves an entry that names it."""
    apply(app, FILE)
    before = Calendar.load("holidays", app)
    plan = make_plan(app, read_file(NO_CALENDAR), "billing", prune=True)
    assert list(plan.calendars.difference.removed) == ["holidays"]
    late = Entry("late", "echo", "0 12 * * *", exclude="holidays", app=app).save()
    commit(plan)
    assert plan.outcome == ["The calendar holidays stays: late names it by now."]
    assert (plan.calendars.difference.removed, plan.calendars.difference.left) == ({}, ["holidays"])
    after = Calendar.load("holidays", app)
    assert (after.days, after.about) == (before.days, before.about)
    assert Entry.get("late", app).state == "scheduled"
    late.delete()
    assert "- calendar holidays" in ask("plan", NO_CALENDAR, "--prune").output, "it is still the owner's"


@pytest.mark.also_sharded
def test_who_saves_an_entry_while_its_calendar_goes_is_told(app: Celery) -> None:
    apply(app, FILE)
    entry = Entry("late", "echo", "0 12 * * *", exclude="holidays", app=app)
    plan_save = entry.plan_save

    def delete_first(*args: Any) -> Any:
        Calendar("holidays", app=app).delete()
        return plan_save(*args)

    entry.plan_save = delete_first  # type: ignore[method-assign]
    with pytest.raises(EntryError, match=r"late: .* there is no calendar 'holidays'"):
        entry.save()


@pytest.mark.also_sharded
def test_what_no_file_or_another_one_has_applied_isn_t_pruned(ask: Ask, app: Celery) -> None:
    Calendar("by-hand", ["2098-01-01"], app=app).save()
    apply(app, FILE)
    apply(app, FILE.replace("report", "shipping"), owner="shipping")
    assert ask("apply", NO_CALENDAR, "--prune", "--yes").exit_code == 0
    assert Calendar.names(app) == ["by-hand", "holidays"]
    apply(app, "entries: {}\n", owner="shipping", prune=True)
    assert Calendar.names(app) == ["by-hand"]


@pytest.mark.parametrize("text", [CHANGED, NO_CALENDAR], ids=["changed", "removed"])
def test_a_calendar_that_somebody_changes_meanwhile_is_planned_anew(
    app: Celery, client: redis.Redis, text: str
) -> None:
    """Nothing is written by a plan that was made from something else."""
    apply(app, FILE)
    plan = make_plan(app, read_file(text), "billing", prune=True)
    client.hset("redbeat::calendar:holidays", "2097-01-01", "theirs")
    before = state_of(client)
    with pytest.raises(EntryChanged, match=r"^:calendar:holidays has changed meanwhile; nothing"):
        commit(plan)
    assert state_of(client) == before
    apply(app, text, prune=True)
    if text == CHANGED:
        assert Calendar.load("holidays", app).days == {"2098-12-25": "Xmas", "2099-01-01": "New Year"}
    else:
        assert Calendar.names(app) == []


@pytest.mark.parametrize("owner", ["", None])
def test_an_entry_of_nobody_beside_an_owned_calendar_is_not_noted_among_the_calendars(
    app: Celery, client: redis.Redis, owner: str | None
) -> None:
    change = Change("one", Stored("redbeat:one"), Write('{"task": "echo"}'), owner=owner)
    calendar = CalendarChange("holidays", "billing", fields={"about": "days off"}, is_owned=True)
    assert Owners(Store(app)).apply([change], [calendar]).changed is None
    assert client.smembers("redbeat::owner:") == {"billing\tholidays"}
    assert Owners(Store(app)).calendars() == {"holidays": {"billing"}}
