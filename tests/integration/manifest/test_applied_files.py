"""Files of entries are applied whole, for an owner, and never at another one's cost."""

from __future__ import annotations

import threading
from collections import Counter
from datetime import datetime, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.errors import EntryChanged, FileError, OwnedByOthers, StoreCorrupt
from redbeat.manifest.format import Declared, read_file
from redbeat.manifest.plan import Plan, apply_plan, commit, make_plan
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.applying import apply, state_of
from tests.support.schedule import SCHEDULE, field, messages, meta_json, score_of, server_now, write_raw

FILE = """
entries:
  one: {task: echo, schedule: {every: 1h}}
  two: {task: echo, schedule: {cron: "0 9 * * *"}, timezone: Europe/Berlin, args: [1]}
"""


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


@pytest.mark.also_sharded
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


@pytest.mark.also_sharded
def test_what_somebody_has_paused_rests_until_the_file_says_otherwise(app: Celery) -> None:
    apply(app, FILE)
    Entry.get("one", app).pause("payment provider is down")
    assert not apply(app, FILE)
    apply(app, FILE.replace("every: 1h", "every: 2h"))
    entry = Entry.get("one", app)
    assert (entry.enabled, entry.paused, entry.pause_note) == (False, True, "payment provider is down")
    apply(app, FILE.replace("{every: 1h}", "{every: 1h}, enabled: true"))
    assert (Entry.get("one", app).enabled, Entry.get("one", app).paused) == (True, False)


@pytest.mark.also_sharded
def test_a_pause_of_the_file_that_is_over_and_taken_away_is_no_change(app: Celery) -> None:
    paused = "{task: echo, schedule: 60, enabled: false, paused: true, paused_until: '2020-01-01T00:00:00Z'}"
    apply(app, "entries: {one: {task: echo, schedule: 60}}")  # as beat has left it
    assert not apply(app, f"entries: {{one: {paused}}}")
    assert Entry.get("one", app).enabled


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
    before = {name: client.hget("redbeat:one", name) for name in ("definition", "meta", "meta_sha1")}
    assert apply(app, FILE).difference.changed == {"one": {"owner": (None, "billing")}}
    assert client.hgetall("redbeat:one") == {**before, "owner": "billing"}


def test_a_static_is_refused(app: Celery, client: redis.Redis) -> None:
    write_raw(client, "one", score=4e9)
    client.sadd("redbeat::statics", "one")
    client.sadd("redbeat::static-owners", "shop\tone")
    with pytest.raises(OwnedByOthers, match="one: belongs to the code of shop"):
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


def test_a_step_whose_reply_was_lost_is_done(app: Celery, client: redis.Redis) -> None:
    apply(app, FILE)
    text = "entries: {one: {task: other, schedule: 60}, three: {task: echo, schedule: 60}}"
    plan = make_plan(app, read_file(text), "billing", prune=True)
    commit(plan)
    before = state_of(client)
    commit(plan)  # as a client with retry_period does
    assert state_of(client) == before
    Entry.get("three", app).update(task="mine")
    with pytest.raises(EntryChanged):
        commit(plan)


@pytest.mark.also_sharded
def test_a_run_that_is_tried_again_and_one_that_is_still_to_come_stay_the_same(
    app: Celery, client: redis.Redis
) -> None:
    apply(app, FILE)
    client.hset("redbeat:one", "error", '{"reason": "the broker is away"}')
    client.hdel("redbeat:two", "meta")
    assert not apply(app, FILE)
    assert client.hexists("redbeat:one", "error")


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


ROUNDS = 15


@pytest.mark.also_sharded
@pytest.mark.few_cases(1)
@pytest.mark.parametrize("settings", [{}, {"redbeat_lock_key": None}], ids=["lock", "no-lock"])
def test_runs_go_on_and_are_counted_while_files_are_applied(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    settings: dict[str, None],
) -> None:
    app = make_app(**settings)

    def declared(round_: int) -> Declared:
        entry = {"task": "echo", "schedule": {"every": 0.05}, "kwargs": {"round": round_}}
        return Declared(entries={f"entry-{number}": entry for number in range(20)})

    apply_plan(lambda: make_plan(app, declared(0), "billing"))
    scheduler = make_scheduler(**settings)
    failures: list[BaseException] = []
    is_over = threading.Event()

    def apply_often() -> None:
        try:
            for round_ in range(1, ROUNDS):
                apply_plan(lambda round_=round_: make_plan(app, declared(round_), "billing"))  # type: ignore[misc]
        except BaseException as exc:  # noqa: BLE001 - it is shown by the test
            failures.append(exc)
        finally:
            is_over.set()

    thread = threading.Thread(target=apply_often)
    thread.start()
    while not is_over.wait(0.01):
        scheduler.tick()
    thread.join()
    assert failures == []
    while len(messages(broker)) <= 20:  # the files were quick; a test that hangs has a time limit of its own
        scheduler.tick()
    sent = [message["headers"] for message in messages(broker)]
    assert len({headers["id"] for headers in sent}) == len(sent)
    counts = Counter(headers["redbeat_entry"] for headers in sent)
    for number in range(20):
        entry = Entry.get(f"entry-{number}", app)
        assert entry.kwargs == {"round": ROUNDS - 1}
        assert entry.total_run_count == counts[f"entry-{number}"]
