"""A file is applied whole or not at all, whatever is killed; thousands of entries are one step."""

from __future__ import annotations

import os
import signal
import threading

import pytest
import redis
from celery import Celery

from redbeat.manifest.format import Declared
from redbeat.manifest.plan import commit, make_plan
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.faults.children import run_child
from tests.integration.conftest import ONE_SERVER
from tests.support.applying import apply, many, state_of
from tests.support.schedule import SCHEDULE, field
from tests.support.servers import Server
from tests.support.stopwatch import Stopwatch


@ONE_SERVER
def test_killed_at_any_round_trip_it_leaves_the_old_or_the_new(
    make_app: MakeApp, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = many(1200, "old"), many(1100, "new")
    apply(make_app(), old)
    before = state_of(client)
    apply(make_app(), new, prune=True)
    after = state_of(client)
    steps = 0
    while True:
        steps += 1
        client.flushdb()
        apply(make_app(), old)

        def work(step: int = steps) -> None:
            touched = 0

            def touch() -> None:
                nonlocal touched
                touched += 1
                if touched == step:
                    os.kill(os.getpid(), signal.SIGKILL)

            app = make_app()
            Store.on_round_trip = staticmethod(touch)  # type: ignore[method-assign]
            apply(app, new, prune=True)

        code = run_child(work)
        found = state_of(client)
        assert found in (before, after), f"half of it, killed at step {steps}"
        if code == 0:
            assert found == after
            break
        assert code == -signal.SIGKILL
    assert steps > 10


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


def test_5000_entries_are_applied_in_one_step(app: Celery, client: redis.Redis, server: Server) -> None:
    def scripts_run() -> int:
        return sum(
            stats["calls"] - stats.get("failed_calls", 0)  # one that the server doesn't know yet has failed
            for name, stats in client.info("commandstats").items()
            if name in ("cmdstat_evalsha", "cmdstat_eval")
        )

    def apply_all(what: str, declared: Declared) -> float:
        """Return the processor seconds that it took."""
        with Stopwatch() as watch:
            plan = make_plan(app, declared, "billing", prune=True)
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
        apply_all(f"all {size} removed", many(0))
        assert client.zcard(SCHEDULE) == 0
    assert sum(efforts[5000]) < 30 * sum(efforts[500]), "ten times as many cost ten times as much"
