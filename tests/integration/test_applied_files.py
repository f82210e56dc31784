"""Files of entries are applied whole, for an owner, and never at another one's cost."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import EntryChanged, FileError, OwnedByOthers, StoreCorrupt
from redbeat.files import Declared, read_file
from redbeat.plans import Plan, apply_plan, commit, make_plan
from redbeat.store import Store
from tests.conftest import MakeApp
from tests.faults.children import run_child
from tests.support.schedule import SCHEDULE, field, meta_json, score_of, server_now, write_raw
from tests.support.servers import Server

FILE = """
entries:
  one: {task: echo, schedule: {every: 1h}}
  two: {task: echo, schedule: {cron: "0 9 * * *"}, timezone: Europe/Berlin, args: [1]}
"""


def apply(app: Celery, text: str | Declared, owner: str = "billing", **options: Any) -> Plan:
    declared = read_file(text) if isinstance(text, str) else text
    plan = apply_plan(lambda: make_plan(app, declared, owner, **options))
    assert plan is not None
    return plan


def many(count: int, task: str = "echo") -> Declared:
    entry = {"task": task, "schedule": {"every": "1h"}, "kwargs": {"id": 1}}
    return Declared(entries={f"entry-{number}": entry for number in range(count)})


def state_of(client: redis.Redis) -> dict[str, Any]:
    """All there is; scores apart, as those of new entries are counted from now."""
    found: dict[str, Any] = {}
    for key in client.scan_iter():
        kind = client.type(key)
        found[key] = (
            client.hgetall(key)
            if kind == "hash"
            else sorted(client.zrange(key, 0, -1))
            if (kind == "zset")
            else sorted(client.smembers(key))
        )
    return {key: {**value, "meta": ""} if isinstance(value, dict) else value for key, value in found.items()}


def test_a_file_is_applied_and_applied_again_nothing_is_written(app: Celery, client: redis.Redis) -> None:
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


def test_a_plan_writes_nothing(app: Celery, client: redis.Redis) -> None:
    plan = make_plan(app, read_file(FILE), "billing", prune=True)
    assert plan.difference.added["one"] == {"task": "echo", "schedule": {"every": "1h"}}
    assert client.keys() == []


def test_a_changed_entry_keeps_its_bookkeeping(app: Celery, client: redis.Redis) -> None:
    apply(app, FILE)
    ran_at = meta_json(datetime(2024, 5, 6, 7, 8, 9), 12)
    client.hset("redbeat:one", "meta", ran_at)
    client.zadd(SCHEDULE, {"redbeat:one": 1_700_000_000})
    plan = apply(
        app, FILE.replace("{task: echo, schedule: {every: 1h}}", "{task: other, schedule: {every: 1h}}")
    )
    assert plan.difference.changed == {"one": {"task": ("echo", "other")}}
    assert client.hget("redbeat:one", "meta").strip() == ran_at
    assert Entry.get("one", app).total_run_count == 12
    apply(app, FILE.replace("1h", "10m"))
    assert 0 < (score_of(client, "one") or 0) - server_now(client) <= 600
    assert Entry.get("one", app).total_run_count == 12


def test_what_somebody_has_paused_rests_until_the_file_says_otherwise(app: Celery) -> None:
    apply(app, FILE)
    Entry.get("one", app).pause("payment provider is down")
    assert not apply(app, FILE)
    apply(app, FILE.replace("every: 1h", "every: 2h"))
    entry = Entry.get("one", app)
    assert (entry.enabled, entry.paused, entry.pause_note) == (False, True, "payment provider is down")
    apply(app, FILE.replace("{every: 1h}", "{every: 1h}, enabled: true"))
    assert (Entry.get("one", app).enabled, Entry.get("one", app).paused) == (True, False)


def test_pruning_removes_only_what_the_owner_has_applied(app: Celery, client: redis.Redis) -> None:
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


def test_a_name_of_another_owner_is_refused_or_taken_over(app: Celery, client: redis.Redis) -> None:
    apply(app, FILE)
    with pytest.raises(OwnedByOthers, match="line 3: one: belongs to billing, and 1 more") as caught:
        apply(app, FILE, "accounts")
    assert caught.value.owners == {"one": "billing", "two": "billing"}
    assert client.hget("redbeat:one", "owner") == "billing"
    plan = apply(app, FILE, "accounts", take_over=True)
    assert plan.difference.changed["one"] == {"owner": ("billing", "accounts")}
    apply(app, "entries: {}", prune=True)  # billing has none of them any more
    assert client.zcard(SCHEDULE) == 2


def test_what_was_deleted_and_made_anew_by_hand_is_not_pruned(app: Celery, client: redis.Redis) -> None:
    apply(app, FILE)
    Entry.get("one", app).delete()
    Entry("one", "mine", 60, app=app).save()
    assert list(apply(app, "entries: {}", prune=True).difference.removed) == ["two"]
    assert client.zrange(SCHEDULE, 0, -1) == ["redbeat:one"]


def test_an_entry_of_nobody_becomes_the_owners(app: Celery, client: redis.Redis) -> None:
    Entry("one", "echo", 3600, app=app).save()
    before = {name: client.hget("redbeat:one", name) for name in ("definition", "meta")}
    assert apply(app, FILE).difference.changed == {"one": {"owner": (None, "billing")}}
    assert client.hgetall("redbeat:one") == {**before, "owner": "billing"}


def test_a_static_is_refused(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "one", score=4e9)
    client.sadd("redbeat::statics", "one")
    client.sadd("redbeat::static-owners", "shop\tone")
    with pytest.raises(OwnedByOthers, match="one: belongs to the beat_schedule of shop"):
        apply(app, FILE)
    apply(app, FILE, take_over=True)
    assert client.hget("redbeat:one", "owner") == "billing"


def test_entries_of_2x_and_unusable_ones_are_told_from_those_that_are_the_same(
    app: Celery, client: redis.Redis
) -> None:
    write_raw(
        client,
        "one",
        {"task": "echo", "name": "one", "schedule": {"__type__": "interval", "every": 3600}},
        score=4e9,
        meta=meta_json(None),
    )
    write_raw(client, "two", "{oops", score=4e9)
    client.hset("redbeat:one", "owner", "billing")
    plan = apply(app, FILE)
    assert (plan.difference.same, list(plan.difference.changed)) == (["one"], ["two"])
    assert Entry.get("two", app).args == [1]


def test_unknown_keys_of_a_changed_entry_stay(app: Celery, client: redis.Redis) -> None:
    interval = {"__type__": "interval", "every": 60}
    write_raw(client, "one", {"name": "one", "task": "x", "schedule": interval, "team": "a"}, score=4e9)
    apply(app, FILE)
    assert field(client, "one", "definition")["team"] == "a"


def test_a_bad_value_stops_all_of_it(app: Celery, client: redis.Redis) -> None:
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


def test_calendars_come_with_the_file_and_count_at_once(app: Celery, client: redis.Redis) -> None:
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


# -- while others write


def test_a_change_in_between_makes_the_plan_anew_and_says_so(app: Celery, client: redis.Redis) -> None:
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


@pytest.mark.parametrize("meddle", ["save", "delete", "own", "policy"])
def test_a_plan_that_is_out_of_date_writes_nothing(app: Celery, client: redis.Redis, meddle: str) -> None:
    apply(app, FILE)
    plan = make_plan(app, read_file(FILE.replace("every: 1h", "every: 2h")), "billing")
    {
        "save": lambda: Entry("two", "by-hand", 60, app=app).save(),
        "delete": lambda: Entry.get("two", app).delete(),
        "own": lambda: client.hset("redbeat:two", "owner", "accounts"),
        "policy": lambda: client.hset("redbeat:two", "policy", "{}"),
    }[meddle]()
    before = state_of(client)
    with pytest.raises(EntryChanged, match="two has changed meanwhile"):
        commit(plan)
    assert state_of(client) == before


def test_a_run_in_between_is_no_other_plan(app: Celery, client: redis.Redis) -> None:
    apply(app, FILE)
    asked: list[str] = []

    def confirm(plan: Plan, why: str) -> bool:
        asked.append(why)
        client.hset("redbeat:one", "meta", meta_json(datetime(2026, 1, 1), 77))
        return True

    declared = read_file(FILE.replace("every: 1h", "every: 2h"))
    apply_plan(lambda: make_plan(app, declared, "billing"), confirm)
    assert asked == [""]
    assert Entry.get("one", app).total_run_count == 77


def test_two_owners_at_once_end_with_the_entries_of_both(make_app: MakeApp, client: redis.Redis) -> None:
    failures: list[BaseException] = []

    def apply_often(owner: str) -> None:
        app = make_app()
        try:
            for round_ in range(10):
                entries = {
                    f"{owner}-{n}": {"task": f"t{round_}", "schedule": 60} for n in range(30 + round_ % 3)
                }
                apply(app, Declared(entries=entries), owner, prune=True)
        except BaseException as exc:  # noqa: BLE001 - it is shown by the test
            failures.append(exc)

    threads = [threading.Thread(target=apply_often, args=(owner,)) for owner in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert client.zcard(SCHEDULE) == 60
    assert {field(client, f"{owner}-{n}", "definition")["task"] for owner in "ab" for n in range(30)} == {
        "t9"
    }


# -- whole or not at all


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


def test_5000_entries_are_applied_in_one_step(
    app: Celery, client: redis.Redis, server: Server, record_property: Callable[[str, Any], None]
) -> None:
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
