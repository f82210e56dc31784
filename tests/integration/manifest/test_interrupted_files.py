"""Files that are applied over shards or interrupted leave the old or the new state, and can be finished."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import EntryChanged, StoreCorrupt, StoreUnavailable
from redbeat.manifest.format import Declared, read_file
from redbeat.manifest.plan import apply_plan, commit, make_plan
from redbeat.manifest.transfer import export_entries, plan_import
from redbeat.store.owners import names_owned_by, read_calendar_owners
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.faults.children import run_child
from tests.faults.rounds import IS_LONG
from tests.support.applying import apply, many, state_of
from tests.support.schedule import SCHEDULE, field
from tests.support.servers import Server
from tests.support.sharded import TOPOLOGIES, Sharded, sharded
from tests.support.ticks import memory_app


@pytest.mark.long_form
@pytest.mark.parametrize("is_import", [False, True], ids=["apply", "import"])
def test_apply_killed_at_any_round_trip_leaves_the_old_or_the_new_entries(
    make_app: MakeApp, client: redis.Redis, chance: random.Random, is_import: bool
) -> None:
    old, new = many(0 if is_import else 1200, "old"), many(1100, "new")

    def store(app: Celery, declared: Declared) -> None:
        if is_import:
            commit(plan_import(app, declared))
        else:
            apply(app, declared, prune=True)

    store(make_app(), old)
    before = state_of(client)
    store(make_app(), new)
    after = state_of(client)
    stride = 1 if is_import or IS_LONG else 4
    for step in itertools.count(chance.randint(1, stride), stride):
        client.flushdb()
        store(make_app(), old)

        def work(step: int = step) -> None:
            touched = 0

            def touch() -> None:
                nonlocal touched
                touched += 1
                if touched == step:
                    os.kill(os.getpid(), signal.SIGKILL)

            app = make_app()
            Store.on_round_trip = staticmethod(touch)  # type: ignore[method-assign]
            store(app, new)

        code = run_child(work)
        found = state_of(client)
        assert found in (before, after), f"half of it, killed at step {step}"
        if code == 0:
            assert found == after
            break
        assert code == -signal.SIGKILL
    assert step > (2 if is_import else 10)


@pytest.mark.slow
def test_server_killed_during_apply_has_the_old_or_the_new_entries() -> None:
    with Server(appendonly=True, appendfsync="always") as server:
        app = memory_app(redbeat_redis_url=server.url(1))

        def apply_for_ever(task: str) -> None:
            for turn in itertools.count():
                apply(app, many(1000, f"{task}-{turn}"))

        apply(app, many(1000, "old"))
        for number in range(3):
            killer = threading.Timer(0.05 + 0.1 * number, server.kill)
            killer.start()
            with pytest.raises(StoreUnavailable):
                apply_for_ever(f"new-{number}")
            killer.join()
            server.restart()
            with server.client(db=1) as client:
                tasks = {field(client, f"entry-{n}", "definition")["task"] for n in range(1000)}
                assert len(tasks) == 1, tasks
                assert client.zcard(SCHEDULE) == client.scard("redbeat::owner:billing") == 1000


def test_two_owners_applying_at_once_end_with_the_entries_of_both(
    make_app: MakeApp, client: redis.Redis
) -> None:
    def apply_often(owner: str) -> None:
        app = make_app()
        for turn in range(6):
            entries = {f"{owner}-{n}": {"task": f"t{turn}", "schedule": 60} for n in range(20 + turn % 3)}
            apply(app, Declared(entries=entries), owner, prune=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(apply_often, ("a", "b")))
    assert client.zcard(SCHEDULE) == 2 * 22
    assert {field(client, key[8:], "definition")["task"] for key in client.zrange(SCHEDULE, 0, -1)} == {"t5"}


@pytest.fixture(params=TOPOLOGIES, ids=["one server", "cluster"])
def at(request: pytest.FixtureRequest) -> Sharded:
    return sharded(request, *request.param)


@pytest.fixture
def on_one_server(request: pytest.FixtureRequest) -> Sharded:
    return sharded(request, 1, 4)


EXCLUDING = {"task": "echo", "schedule": {"every": "1h"}, "exclude": "holidays"}
FILE = json.dumps(
    {
        "entries": {f"f{number}": EXCLUDING for number in range(12)},
        "calendars": {"holidays": {"days": ["2026-12-25"]}},
    }
)


def test_apply_and_prune_reach_all_shards(at: Sharded) -> None:
    declared = many(500)
    apply(at.app, declared)
    assert Entry.count(at.app) == 500
    assert names_owned_by(at.store, "billing") == {*declared.entries}
    assert all(at.shards_of(":owner:billing")), "each shard has the names of its entries"
    assert not apply(at.app, declared), "nothing differs any more"
    rest = Declared(entries=dict([*declared.entries.items()][:100]))
    assert len(apply(at.app, rest, prune=True).difference.removed) == 400
    assert Entry.count(at.app) == 100
    assert names_owned_by(at.store, "billing") == {*rest.entries}


def test_apply_takes_few_round_trips_a_node(at: Sharded) -> None:
    apply(at.app, many(500), owner="warm")
    apply(at.app, Declared(), owner="warm", prune=True)
    declared = many(500)
    with at.counting() as sent:
        plan = make_plan(at.app, declared, "billing")
        assert sent() <= 8 * at.nodes
    with at.counting() as sent:
        commit(plan)
        assert sent() <= 2 * at.nodes


def test_calendar_is_stored_before_its_entries_and_deleted_after_them(at: Sharded) -> None:
    plan = apply(at.app, FILE)
    assert (len(plan.difference.added), list(plan.calendars.added)) == (12, ["holidays"])
    assert read_calendar_owners(at.store) == {"holidays": {"billing"}}
    apply(at.app, FILE.replace("2026-12-25", "2026-12-24"))
    assert list(Calendar.load("holidays", at.app).days) == ["2026-12-24"]
    plan = make_plan(at.app, read_file(FILE), "billing")
    Calendar("holidays", ["2027-01-01"], app=at.app).save()
    with pytest.raises(EntryChanged, match="calendar:holidays has changed meanwhile; nothing was written"):
        commit(plan)
    apply(at.app, "entries: {}", prune=True)
    assert (Calendar.names(at.app), Entry.count(at.app)) == ([], 0)


def test_apply_with_a_refusing_shard_is_finished_by_the_same_file(at: Sharded) -> None:
    declared = many(60)
    full = at.store.parts.of("entry-0")
    left = [name for name in declared.entries if at.store.parts.of(name).prefix == full.prefix]
    wrong = full.owner("billing")
    plan = make_plan(at.app, declared, "billing")
    at.client.set(wrong, "not a set")
    with pytest.raises(StoreCorrupt, match=r"something that is no set.* Not all was written, only shard"):
        commit(plan)
    assert {entry.name for entry in Entry.list(at.app)} == {*declared.entries} - {*left}
    at.client.delete(wrong)
    plan = apply(at.app, declared)
    assert {*plan.difference.added} == {*left}, "only the rest differs"
    assert Entry.count(at.app) == 60
    assert names_owned_by(at.store, "billing") == {*declared.entries}


def test_apply_stopped_at_any_round_trip_is_finished_by_the_same_file(
    on_one_server: Sharded, monkeypatch: pytest.MonkeyPatch, chance: random.Random
) -> None:
    class Stopped(BaseException):
        pass

    at = on_one_server
    apply(at.app, FILE)
    wanted = sorted((entry.name, entry.task) for entry in Entry.list(at.app))
    stride = 1 if IS_LONG else 3
    for step in range(chance.randint(1, stride), 100, stride):
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
        assert names_owned_by(at.store, "billing") == {name for name, _ in wanted}
    assert step > 8


def test_export_from_shards_is_restored_in_other_shards(
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
