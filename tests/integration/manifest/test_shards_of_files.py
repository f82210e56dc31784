"""Files of entries where the schedule is divided into shards: each shard's entries change in one step, and
the same file finishes what has ended in between.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import EntryChanged, FileError, StoreCorrupt
from redbeat.manifest import plan as plan_module
from redbeat.manifest.format import Declared, read_file
from redbeat.manifest.plan import apply_plan, commit, make_plan
from redbeat.manifest.transfer import export_entries, plan_import
from redbeat.store.owners import Owners
from redbeat.store.store import Store
from tests.support.applying import apply, many
from tests.support.command_line import call
from tests.support.sharded import TOPOLOGIES, Sharded, sharded


@pytest.fixture(params=TOPOLOGIES, ids=["one server", "cluster"])
def at(request: pytest.FixtureRequest) -> Sharded:
    return sharded(request, *request.param)


@pytest.fixture
def on_one_server(request: pytest.FixtureRequest) -> Sharded:
    return sharded(request, 1, 4)


FILE = json.dumps(
    {
        "entries": {
            f"f{number}": {"task": "echo", "schedule": {"every": "1h"}, "exclude": "holidays"}
            for number in range(12)
        },
        "calendars": {"holidays": {"days": ["2026-12-25"]}},
    }
)


def names_by_shard(at: Sharded, names: Iterator[str] | list[str]) -> dict[str, list[str]]:
    """The names of entries that are in the shard with this prefix."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(at.store.parts.of(name).keys.prefix, []).append(name)
    return found


def test_a_file_is_applied_over_all_shards_and_pruned_there(at: Sharded) -> None:
    declared = many(500)
    apply(at.app, declared)
    assert Entry.count(at.app) == 500
    assert Owners(at.store).names_of("billing") == {*declared.entries}
    assert all(at.shards_of(":owner:billing")), "each shard has the names of its entries"
    assert not apply(at.app, declared), "nothing differs any more"
    rest = Declared(entries=dict([*declared.entries.items()][:100]))
    assert len(apply(at.app, rest, prune=True).difference.removed) == 400
    assert Entry.count(at.app) == 100
    assert Owners(at.store).names_of("billing") == {*rest.entries}


def test_a_file_takes_round_trips_by_its_size_and_the_nodes_and_not_by_the_shards(at: Sharded) -> None:
    apply(at.app, many(500), owner="warm")
    apply(at.app, Declared(), owner="warm", prune=True)
    declared = many(500)
    with at.counting() as sent:
        plan = make_plan(at.app, declared, "billing")
        assert sent() <= 8 * at.nodes
    with at.counting() as sent:
        commit(plan)
        assert sent() <= 2 * at.nodes


def test_a_calendar_comes_before_its_entries_and_goes_after_them(at: Sharded) -> None:
    plan = apply(at.app, FILE)
    assert (len(plan.difference.added), list(plan.calendars.difference.added)) == (12, ["holidays"])
    assert Owners(at.store).calendars() == {"holidays": {"billing"}}
    changed = FILE.replace("2026-12-25", "2026-12-24")
    before = {entry.name: entry.stored and entry.stored.revision for entry in Entry.list(at.app)}
    Entry("mine", "echo", 60, exclude="holidays", app=at.app).save()
    apply(at.app, changed)
    assert list(Calendar.load("holidays", at.app).days) == ["2026-12-24"]
    assert Entry.count(at.app) == len(before) + 1
    plan = make_plan(at.app, read_file(FILE), "billing")
    Calendar("holidays", ["2027-01-01"], app=at.app).save()
    with pytest.raises(EntryChanged, match="calendar:holidays has changed meanwhile; nothing was written"):
        commit(plan)
    Entry.get("mine", at.app).delete()
    apply(at.app, "entries: {}", prune=True)
    assert Calendar.names(at.app) == []
    assert Entry.count(at.app) == 0


def test_a_shard_that_refuses_is_told_of_and_the_same_file_finishes(at: Sharded) -> None:
    declared = many(60)
    by_shard = names_by_shard(at, [*declared.entries])
    prefix, left = next(iter(by_shard.items()))
    wrong = next(part for part in at.store.parts if part.keys.prefix == prefix).keys.owner("billing")
    plan = make_plan(at.app, declared, "billing")
    at.client.set(wrong, "not a set")
    with pytest.raises(StoreCorrupt, match=r"something that is no set.* Not all was written, only shard"):
        commit(plan)
    assert {entry.name for entry in Entry.list(at.app)} == {*declared.entries} - {*left}
    at.client.delete(wrong)
    plan = apply(at.app, declared)
    assert {*plan.difference.added} == {*left}, "only the rest differs"
    assert Entry.count(at.app) == 60
    assert Owners(at.store).names_of("billing") == {*declared.entries}


def test_an_entry_that_somebody_changes_stops_its_shard_only_and_is_planned_anew(at: Sharded) -> None:
    declared = many(60)
    apply(at.app, declared)
    others = many(60, task="other")
    plan = make_plan(at.app, others, "billing")
    Entry.get("entry-7", at.app).update(args=[1])
    with pytest.raises(EntryChanged, match="entry-7 has changed meanwhile; not all was written, only shard"):
        commit(plan)
    [mine] = [names for names in names_by_shard(at, [*others.entries]).values() if "entry-7" in names]
    tasks = {entry.name: entry.task for entry in Entry.list(at.app)}
    assert tasks == {name: "echo" if name in mine else "other" for name in others.entries}
    apply(at.app, others)
    assert {entry.task for entry in Entry.list(at.app)} == {"other"}


@pytest.mark.parametrize("is_counted", [True, False], ids=["a run is counted", "an entry is changed"])
def test_the_rest_is_confirmed_again_only_if_it_is_another(
    on_one_server: Sharded, monkeypatch: pytest.MonkeyPatch, is_counted: bool
) -> None:
    at = on_one_server
    declared, others = many(40), many(40, task="other")
    apply(at.app, declared)
    asked: list[tuple[int, str]] = []
    key, is_over = at.store.keys.entry("entry-3"), False

    def make() -> Any:
        nonlocal is_over
        plan = make_plan(at.app, others, "billing")
        if not is_over:  # after the plan was made, and before it is carried out
            field = "meta" if is_counted else "policy"
            at.client.hset(key, field, '{"total_run_count": 5}' if is_counted else '{"max_runs": 3}')
            is_over = True
        return plan

    def confirm(plan: Any, why: str) -> bool:
        asked.append((plan.number, why))
        return True

    plan = apply_plan(make, confirm)
    assert plan is not None
    assert {entry.task for entry in Entry.list(at.app)} == {"other"}
    if is_counted:
        assert [number for number, _ in asked] == [40], "beat has only counted a run"
        assert plan.number == 40, "the whole plan is shown as done"
    else:
        (number, _), (_, why) = asked
        assert number == 40
        assert "only shard" in why


@pytest.mark.parametrize("is_replacing", [True, False])
def test_an_import_that_goes_on_counts_nothing_of_its_own_as_changed_by_others(
    on_one_server: Sharded, is_replacing: bool
) -> None:
    at, declared = on_one_server, many(40)
    Entry("entry-3", "old", 60, app=at.app).save()
    if not is_replacing:
        Entry.get("entry-3", at.app).delete()
    asked: list[tuple[list[str], list[str], str]] = []
    is_over = False

    def make(done: Any = ()) -> Any:
        nonlocal is_over
        plan = plan_import(at.app, declared, replace_existing=is_replacing, done=done)
        if not is_over:  # after the plan was made, and before it is carried out
            Entry("entry-5", "theirs", 60, app=at.app).save()
            is_over = True
        return plan

    def confirm(plan: Any, why: str) -> bool:
        asked.append((sorted(plan.difference.changed), sorted(plan.difference.added), why))
        return True

    if not is_replacing:
        with pytest.raises(FileError, match=r"entry-5: is stored already; --replace .*not all was"):
            apply_plan(make, confirm, make_rest=make)
        return
    assert apply_plan(make, confirm, make_rest=make)
    (changed, added, _), (again, rest, why) = asked
    assert (changed, len(added)) == (["entry-3"], 39)
    assert "entry-5 has changed meanwhile; not all was written, only shard" in why
    [mine] = [names for names in names_by_shard(at, [*declared.entries]).values() if "entry-5" in names]
    assert sorted([*again, *rest]) == sorted(mine), "the others are written already"
    assert set(again) <= {"entry-3", "entry-5"}
    assert {entry.task for entry in Entry.list(at.app)} == {"echo"}


def test_stopped_at_any_round_trip_the_same_file_finishes(
    on_one_server: Sharded, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(BaseException):
        pass

    at = on_one_server
    apply(at.app, FILE)
    wanted = sorted((entry.name, entry.task) for entry in Entry.list(at.app))
    for step in range(1, 100):
        at.client.flushdb()
        left = step

        def touch() -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Stopped

        with monkeypatch.context() as patch:
            patch.setattr(Store, "on_round_trip", staticmethod(touch))
            try:
                apply(at.app, FILE)
            except Stopped:
                pass
            else:
                break
        apply(at.app, FILE)
        assert sorted((entry.name, entry.task) for entry in Entry.list(at.app)) == wanted
        assert Calendar.names(at.app) == ["holidays"]
        assert Owners(at.store).names_of("billing") == {name for name, _ in wanted}
    assert step > 8


def test_what_is_exported_from_shards_is_the_same_in_others(
    request: pytest.FixtureRequest, on_one_server: Sharded
) -> None:
    at = on_one_server
    Calendar("holidays", ["2026-12-25"], app=at.app).save()
    for number in range(30):
        Entry(f"e{number}", "echo", 60, exclude="holidays", app=at.app).save().trigger()
    exported = export_entries(at.app, with_history=True).declared
    for shards in (3, 7):
        other = sharded(request, 1, shards)
        other.client.flushdb()
        apply_plan(lambda other=other: plan_import(other.app, exported))
        assert export_entries(other.app, with_history=True).declared == exported
        assert len(Entry.get("e7", other.app).history()) == 1


def test_the_command_line_says_which_shards_are_done(
    on_one_server: Sharded, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, path = on_one_server, tmp_path / "file.json"
    path.write_text(FILE)
    part = at.store.parts.of("f1")

    def commit_late(*args: Any) -> None:
        at.client.set(part.keys.owner("billing"), "not a set")
        commit(*args)

    with monkeypatch.context() as patch:
        patch.setattr(plan_module, "commit", commit_late)
        told = call(at.app, "apply", str(path), "--owner", "billing", "--yes")
    assert told.exit_code != 0
    said = f"{told.output}{getattr(told, 'stderr', '')}"
    done = [str(shard) for shard, other in enumerate(at.store.parts) if other.keys != part.keys]
    assert f"Not all was written, only shards {', '.join(done)} and calendars: " in said
    assert "do the same again" in said
    at.client.delete(part.keys.owner("billing"))
    assert call(at.app, "apply", str(path), "--owner", "billing", "--yes").exit_code == 0
    assert Entry.count(at.app) == 12
