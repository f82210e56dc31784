"""Files of thousands of entries: stored whole or not at all, in one step, at a cost for each entry."""

from __future__ import annotations

import cProfile
import itertools
import os
import pstats
import random
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import FileError
from redbeat.manifest import plan as plans
from redbeat.manifest.format import Declared, read_file, write_file
from redbeat.manifest.plan import Plan, commit, make_plan
from redbeat.manifest.transfer import export_entries, plan_import
from redbeat.store.scripts.owners import Script
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.faults.children import run_child
from tests.faults.rounds import IS_LONG
from tests.support.applying import apply, many, state_of
from tests.support.schedule import SCHEDULE, field
from tests.support.servers import Server
from tests.support.stopwatch import Stopwatch


@pytest.mark.long_form
@pytest.mark.parametrize("is_import", [False, True], ids=["apply", "import"])
def test_killed_at_any_round_trip_it_leaves_the_old_or_the_new(
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


def test_a_server_killed_meanwhile_has_the_old_or_the_new() -> None:
    with Server(appendonly=True, appendfsync="always") as server:
        app = Celery("test", set_as_current=False)
        app.conf.update(broker_url=server.url(0), redbeat_redis_url=server.url(1))
        with server.client(db=1) as client:
            apply(app, many(2000, "old"))
            tasks = ["old"]
            for round_ in range(4):
                killer = threading.Timer(0.05 + 0.1 * round_, server.kill)
                plan = make_plan(app, many(2000, f"new{round_}"), "billing")
                killer.start()
                try:
                    while True:
                        commit(plan)
                        plan = make_plan(app, many(2000, f"new{round_}"), "billing")
                        tasks.append(f"new{round_}")
                except Exception as exc:  # noqa: BLE001 - whatever the client says of its server's death
                    print(type(exc).__name__)
                killer.join()
                server.restart()
                found = {field(client, f"entry-{n}", "definition")["task"] for n in range(2000)}
                assert len(found) == 1, found
                assert client.zcard(SCHEDULE) == client.scard("redbeat::owner:billing") == 2000
        app.close()


@pytest.mark.long_form
def test_5000_entries_are_applied_and_imported_in_one_step(
    app: Celery, client: redis.Redis, server: Server
) -> None:
    def scripts_run() -> int:
        return sum(
            stats["calls"] - stats.get("failed_calls", 0)  # one that the server doesn't know yet has failed
            for name, stats in client.info("commandstats").items()
            if name in ("cmdstat_evalsha", "cmdstat_eval")
        )

    def apply_all(what: str, declared: Declared) -> float:
        return store_all(what, declared, lambda: make_plan(app, declared, "billing", prune=True))

    def store_all(what: str, declared: Declared, make: Callable[[], Plan]) -> float:
        """Return the processor seconds that it took."""
        with Stopwatch() as watch:
            plan = make()
            client.config_resetstat()
            commit(plan)
        assert scripts_run() <= 1, what
        print(f"{len(declared.entries)} entries, {what}, on {server.kind} {server.version}: {watch}")
        return watch.processor_seconds

    apply_all("the scripts are known then", many(1))
    efforts = {}
    for size in (500, 5000):
        efforts[size] = [
            apply_all("new", many(size)),
            apply_all("changed", many(size, "other")),
            apply_all("the same", many(size, "other")),
        ]
        assert client.zcard(SCHEDULE) == size
        declared = read_file(write_file(export_entries(app).declared))
        apply_all(f"all {size} removed", many(0))
        assert client.zcard(SCHEDULE) == 0
        efforts[size].append(store_all("imported", declared, lambda of=declared: plan_import(app, of)))
        assert client.zcard(SCHEDULE) == size
        client.flushdb()
    assert sum(efforts[5000]) < 30 * sum(efforts[500]), "ten times as many cost ten times as much"


def test_the_arguments_are_counted_before_they_are_sent(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply(app, many(30))
    entry = {"task": "echo", "schedule": 60, "history": ["x"], "backfilled": ["y"]}
    declared = Declared("file", None, {f"new-{n}": entry for n in range(20)}, {"c": {"days": ["2030-01-01"]}})
    counts: list[int] = []
    call = Script.__call__

    def count(self: Script, called: redis.Redis, keys: list[str], args: list[str], *within: Any) -> object:
        counts.append(len(keys) + len(args))
        return call(self, called, keys, args, *within)

    for plan, least in (
        (make_plan(app, declared, "billing", prune=True), 20 * 12 + 30 * 15 + 8),
        (plan_import(app, declared), 20 * 21 + 8),
    ):
        with monkeypatch.context() as context:
            context.setattr(plans, "MAX_ARGUMENTS", least)
            plans.check_size(plan, declared)
            context.setattr(plans, "MAX_ARGUMENTS", least - 1)
            with pytest.raises(FileError, match=r"^file: one step can't store all of that"):
                plans.check_size(plan, declared)
        with monkeypatch.context() as context:
            context.setattr(Script, "__call__", count)
            commit(plan)
        assert least <= max(counts) <= least + 10
        client.flushdb()
        counts.clear()


def test_a_plan_that_removes_too_many_says_what_to_do(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(app, many(30))
    monkeypatch.setattr(plans, "MAX_ARGUMENTS", 400)
    with pytest.raises(FileError, match="and remove 29 entries: split the file, or delete some of these"):
        make_plan(app, many(1), "billing", prune=True)


ENTRIES = 1_000


def fill(app: Celery) -> None:
    RedBeatSchedulerEntry.save_many(
        RedBeatSchedulerEntry(
            f"shop.job-{number}",
            "shop.work",
            crontab(minute=number % 60, hour=number % 24) if number % 2 else 60 + number % 100,
            args=[number],
            kwargs={"tenant": number},
            timezone=None if number % 3 else "Europe/Berlin",
            app=app,
        )
        for number in range(ENTRIES)
    )


def calls_per_entry(work: Callable[[], object]) -> float:
    """How many functions are called for each entry once what is kept for all of them is kept."""
    work()
    profile = cProfile.Profile()
    profile.runcall(work)
    return pstats.Stats(profile).total_calls / ENTRIES  # type: ignore[attr-defined,no-any-return]


def test_export_and_plan_call_a_few_hundred_functions_an_entry(app: Celery) -> None:
    fill(app)
    declared = read_file(write_file(export_entries(app).declared))
    for fields in declared.entries.values():
        fields["kwargs"] = {"tenant": "another"}

    calls = {
        "export": calls_per_entry(lambda: export_entries(app)),
        "write": calls_per_entry(lambda: write_file(declared)),
        "plan": calls_per_entry(lambda: make_plan(app, declared, "billing")),
    }
    print({name: round(count) for name, count in calls.items()})
    assert len(make_plan(app, declared, "billing").difference.changed) == ENTRIES
    assert calls["export"] < 800
    assert calls["plan"] < 1_300
