"""A file is applied whole or not at all, whatever is killed; thousands of entries are one step."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.plans import commit, make_plan
from redbeat.store import Store
from tests.conftest import MakeApp
from tests.faults.children import run_child
from tests.support.applying import apply, many, state_of
from tests.support.schedule import SCHEDULE, field
from tests.support.servers import Server


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
    seconds: dict[str, float] = {}

    def timed(what: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        result = call()
        seconds[what] = round(time.perf_counter() - began, 3)
        return result

    for what, declared in (
        ("new", many(5000)),
        ("changed", many(5000, "other")),
        ("same", many(5000, "other")),
    ):
        plan = timed(f"plan {what}", lambda: make_plan(app, declared, "billing", prune=True))  # noqa: B023
        client.config_resetstat()
        timed(f"commit {what}", lambda: commit(plan))  # noqa: B023
        script = client.info("commandstats")["cmdstat_evalsha"]
        seconds[f"server {what}"] = round(script["usec"] / 1e6, 3)
    plan = timed("plan removed", lambda: make_plan(app, many(0), "billing", prune=True))
    timed("commit removed", lambda: commit(plan))
    print(f"5,000 entries on {server.kind} {server.version}: {seconds}")
    assert client.zcard(SCHEDULE) == 0
    assert max(seconds.values()) < 5
