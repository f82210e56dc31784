"""The documented rules after the documented command for shards: what they allow, and no more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat import later
from redbeat.keys import Keys
from redbeat.layout import Layout, shard_of
from redbeat.leadership.status import read_status
from redbeat.schedulers import get_redis
from redbeat.store.layouts import Layouts
from redbeat.store.runs import Answer, Delivery, End, Runs
from redbeat.store.store import Store
from tests.support import rights
from tests.support.logs import warnings_in
from tests.support.polling import eventually
from tests.support.rights import CLAIMS, Claim, Ground, in_shards, refused_to
from tests.support.stored import store
from tests.support.ticks import leader, take_messages

SHARDS = 7
#: who may read the layout and not write it, as Redis 6.2 can't say
READERS_OF_THE_LAYOUT = ("worker", "later", "viewer", "status", "dashboard_read_only", "dashboard")


@pytest.fixture
def ground(ground: Ground) -> Ground:
    """The documented users, with the rights for shards."""
    if ground.server.version.startswith("6."):
        pytest.skip("Redis 6.2 knows no selectors")
    for user in CLAIMS:
        ground.let(in_shards(user), user)
    return ground


@pytest.mark.few_cases(12)
@pytest.mark.parametrize(
    ("user", "claim"),
    [pytest.param(user, claim, id=f"{user}-{claim.__name__}") for user in CLAIMS for claim in CLAIMS[user]],
)
def test_an_undivided_schedule_needs_no_other_rule(ground: Ground, user: str, claim: Claim) -> None:
    claim(ground.of(user))
    assert ground.refusals() == []


@pytest.mark.parametrize(
    ("user", "command"),
    [
        ("beat", "SET {redbeat:0}::lock x"),
        ("beat", "SET {redbeat:4095}::generation x"),
        ("beat", "PUBLISH {redbeat:12}::wake x"),
        ("writer", "HSET {redbeat:12}:report definition x"),
        ("writer", "HSET {redbeat:0}:a{b}c definition x"),
        ("writer", "ZADD {redbeat:12}::schedule 0 {redbeat:12}:report"),
        ("writer", "PUBLISH {redbeat:12}::wake x"),
        ("writer", "HMGET redbeat::layout shards state former"),
        ("worker", "HSET {redbeat:3}::running:report id x"),
        ("worker", "HMGET redbeat::layout shards generation former state"),
        ("later", "ZADD {redbeat:3}::later 0 {redbeat:3}::later:id"),
        ("viewer", "HGETALL {redbeat:3}:report"),
        ("status", "ZCOUNT {redbeat:3}::schedule 0 1"),
        ("status", "ZRANGE redbeat::beats 0 -1 WITHSCORES"),
        ("dashboard", "HSET {redbeat:3}:report definition x"),
        ("dashboard_read_only", "HGETALL {redbeat:3}:report"),
    ],
)
def test_what_is_allowed_is_allowed_in_each_shard(ground: Ground, user: str, command: str) -> None:
    get_redis(ground.app(user)).execute_command(*command.split())
    assert ground.refusals() == []


@pytest.mark.few_cases(16)
@pytest.mark.parametrize(
    ("user", "command"),
    [
        *((user, "HSET redbeat::layout shards 5") for user in READERS_OF_THE_LAYOUT),
        *((user, "SET {redbeat:0}::generation x") for user in READERS_OF_THE_LAYOUT),
        *((user, "DEL redbeat::generation") for user in READERS_OF_THE_LAYOUT),
        ("writer", "SET {redbeat:0}::lock x"),
        ("writer", "SET {redbeat:0}::tick 1"),
        ("writer", "PUBLISH {redbeat:0}::lock x"),
        ("writer", "SET {redbeat:0}::body:one x"),
        ("worker", "HSET {redbeat:0}:report definition x"),
        ("worker", "ZREM {redbeat:0}::schedule {redbeat:0}:report"),
        ("later", "HGET {redbeat:0}:report definition"),
        ("viewer", "ZREM {redbeat:0}::schedule {redbeat:0}:report"),
        ("status", "HGET {redbeat:0}:report definition"),
        ("dashboard", "SET {redbeat:0}::lock x"),
        ("dashboard_read_only", "HSET {redbeat:0}:report definition x"),
    ],
)
def test_what_is_refused_is_refused_in_each_shard(ground: Ground, user: str, command: str) -> None:
    refused_to(ground, user, command)


@pytest.mark.few_cases(6)
@pytest.mark.parametrize("user", ["beat", "writer", "viewer", "dashboard"])
@pytest.mark.parametrize(
    "key", ["{redbeat:sub:0}:report", "{redbeat}:report", "{redbeat2:0}:report", "{redbeat:0:"]
)
def test_the_shards_of_other_schedules_are_out_of_reach(ground: Ground, user: str, key: str) -> None:
    refused_to(ground, user, f"HGETALL {key}")


def test_a_beat_goes_on_listening_when_it_has_handed_shards_over(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    kept, left = (part.wake for part in Layout(Keys(), 2, 1).parts)
    channel = Store(ground.app("beat")).wake_channel([kept, left])
    channel.wait(0.01)
    channel.listen_to([kept])
    assert channel.wait(0.2) is False

    def is_woken() -> bool:
        ground.admin.publish(kept, "")
        return channel.wait(0.1)

    eventually(is_woken)
    channel.close()
    assert warnings_in(caplog) == []


# -- a schedule in shards


@dataclass(frozen=True)
class ShardedGround(Ground):
    """A server whose schedules are in seven shards, as those know who have all rights."""

    def app(self, user: str = "", database: int = 0, **settings: Any) -> Celery:
        return super().app(user, database, redbeat_shards=SHARDS, **settings)

    def of(self, user: str) -> Ground:
        return ShardedGround(self.server, self.admin, user)


@pytest.fixture
def sharded(ground: Ground) -> ShardedGround:
    """A schedule in two databases, of which each shard has been written to, as by a beat that starts."""
    sharded = ShardedGround(ground.server, ground.admin, "writer")
    for database in (0, 3):
        Layouts(Store(sharded.app("default", database))).settle(is_writer=True)
    return sharded


def it_writes_by_name(ground: Ground) -> None:
    app = ground.app()
    entry = Entry("report", "tasks.report", 60, app=app).save()
    entry.update(args=[1])
    entry.pause("broken")
    entry.resume()
    entry.trigger()
    entry.backfill(datetime.now(timezone.utc) - timedelta(minutes=3), datetime.now(timezone.utc))
    assert len(entry.history()) >= 3
    Entry.get("report", app).delete()
    assert not ground.admin.keys("*:report")


def it_stores_a_message_of_any_kind(ground: Ground) -> None:
    app = ground.app(redbeat_durable_after=1)
    store(app, "json")
    store(app, "pickled", args=[object], serializer="pickle")
    assert later.cancel(["json", "pickled", "gone"], app) == ["json", "pickled"]


def it_tracks_a_run(ground: Ground) -> None:
    app = ground.app()
    part = Layout(Keys(), SHARDS, 1).parts[shard_of("report", SHARDS)]
    run = json.dumps({"due": "1.000000", "state": "sent", "sent": "2.000000"})
    ground.admin.hset(part.about("report").running, "one", run)
    delivery = Delivery("report", "one", "1.000000", "token", "celery@test")
    runs = Runs(Store(app))
    assert runs.begin(delivery, 30_000).answer is Answer.GO
    assert runs.renew([(delivery, 1.0)], 30_000, "celery@test", '"pool":"prefork"') == {}
    runs.end([End(delivery, "failed", "ValueError: no", 1.5)])
    runs.forget_worker("celery@test")
    assert ground.admin.get(part.about("report").failing) == "1"
    assert ground.admin.xlen(part.failures) == 1


def it_asks_who_leads_which_shard(ground: Ground) -> None:
    found = read_status(ground.app())
    assert len(found.shards) == SHARDS
    assert found.beats == []


def it_leads_all_shards(ground: Ground) -> None:
    names = [f"report-{number}" for number in range(20)]
    trusted = ground.app("default")
    Entry.save_many([Entry(name, "tasks.report", 10**9, app=trusted) for name in names])
    for part in Layout(Keys(), SHARDS, 1).parts:
        members = ground.admin.zrange(part.schedule, 0, -1)
        if members:
            ground.admin.zadd(part.schedule, dict.fromkeys(members, 1))
    app = ground.app()
    with leader(app) as scheduler:
        sent: set[str] = set()

        def are_all_sent() -> bool:
            scheduler.tick()
            sent.update(message.entry for message in take_messages(app))
            return sent == {*names}

        eventually(are_all_sent)


#: what asks for no key by its name, besides what is about shards
IN_SHARDS: dict[str, tuple[Claim, ...]] = {
    "writer": (
        *(rights.it_works_in_another_database, rights.it_saves_and_deletes_many, rights.it_keeps_calendars),
        *(rights.it_awaits_entries, rights.it_finds_entries, rights.it_writes_down_who_changes_what),
        *(rights.it_applies_files_and_puts_a_schedule_back, it_writes_by_name),
    ),
    "later": (rights.it_stores_messages_in_another_database, it_stores_a_message_of_any_kind),
    "worker": (it_tracks_a_run,),
    "worker_and_broker": (it_tracks_a_run,),
    "viewer": (
        *(rights.it_looks_at_entries, rights.it_looks_at_calendars, rights.it_looks_at_stored_messages),
        *(rights.it_asks_in_another_database, it_asks_who_leads_which_shard),
    ),
    "status": (rights.it_asks_in_another_database, it_asks_who_leads_which_shard),
    "dashboard": (
        *(rights.it_works_in_another_database, rights.it_saves_and_deletes_many, rights.it_keeps_calendars),
        *(rights.it_applies_files_and_puts_a_schedule_back, it_writes_by_name),
        it_asks_who_leads_which_shard,
    ),
    "beat": (it_leads_all_shards, it_asks_who_leads_which_shard),
    "beat_exactly_once": (it_leads_all_shards,),
    "beat_and_broker": (it_leads_all_shards,),
}


@pytest.mark.few_cases(16)
@pytest.mark.parametrize(
    ("user", "claim"),
    [
        pytest.param(user, claim, id=f"{user}-{claim.__name__}")
        for user in IN_SHARDS
        for claim in IN_SHARDS[user]
    ],
)
def test_a_user_may_do_in_shards_what_is_claimed(sharded: ShardedGround, user: str, claim: Claim) -> None:
    if user not in CLAIMS:  # a name in the documentation for another rule of the same user
        sharded.let(in_shards(user), user)
    claim(sharded.of(user))
    assert sharded.refusals() == []
