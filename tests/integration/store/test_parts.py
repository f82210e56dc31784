"""What covers many entries covers all parts of a schedule: here there are two shards."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from itertools import chain, islice
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.config.config import ensure_conf
from redbeat.keys import Keys
from redbeat.store.calendars import Calendars
from redbeat.store.members import Members
from redbeat.store.orphans import Orphans
from redbeat.store.owners import Owners
from redbeat.store.parts import Part, Parts
from redbeat.store.records import Fence, Write
from redbeat.store.store import Store
from tests.support.applying import apply
from tests.support.command_line import call
from tests.support.progress import Progress
from tests.support.schedule import SELDOM, write_raw
from tests.support.ticks import leader, make_due

DEFINITION = '{"task": "echo", "schedule": {"__type__": "interval", "every": 60}}'


@pytest.fixture
def store(make_app: Callable[..., Celery]) -> Store:
    return Store(make_app(redbeat_shards=2))


@pytest.fixture
def one(store: Store) -> Part:
    return store.parts[0]


@pytest.fixture
def other(store: Store) -> Part:
    return store.parts[1]


def names_in(part: Part, store: Store, count: int) -> list[str]:
    """Return names whose entries are in a part."""
    names = (str(number) for number in itertools.count())
    return [*islice((name for name in names if store.parts.of(name) == part), count)]


def add(store: Store, part: Part, scores: dict[str, float]) -> list[str]:
    """Make entries, and members of the schedule; return their keys."""
    keys = [part.keys.about(name).entry for name in scores]
    with store.client.pipeline() as pipeline:
        for key, score in zip(keys, scores.values(), strict=True):
            pipeline.hset(key, "definition", DEFINITION)
            pipeline.zadd(part.keys.schedule, {key: score})
        pipeline.execute()
    return keys


def test_members_come_in_one_order_and_all_of_them(
    store: Store, one: Part, other: Part, chance: random.Random
) -> None:
    scores: dict[str, float] = {}
    for part, count in ((one, 1_300), (other, 700)):
        names = [f"{chance.random()}" for _ in range(count)]
        mine = {name: chance.choice([-1, 0, chance.uniform(-9, 9), 10**9]) for name in names}
        scores |= dict(zip(add(store, part, mine), mine.values(), strict=True))
    pages = list(Members(store).in_order())
    rows = list(chain.from_iterable(pages))
    assert [len(page) for page in pages] == [500] * 4
    assert rows == sorted(scores.items(), key=lambda row: (row[1] < 0, row[1], row[0].encode()))
    due = list(chain.from_iterable(Members(store).in_order(5)))
    assert due == [row for row in rows if 0 <= row[1] <= 5]
    assert dict(chain.from_iterable(Members(store).scan())) == scores
    assert Members(store).count() == len(scores)
    for place in (0, 1, 7, 60, 500, 900, 1_100, 1_990, 1_999, 2_000):
        assert Members(store).slice(place, 7) == rows[place : place + 7]
    for place in (0, 70, 900, 1_999):
        member, score = rows[place]
        assert Members(store).place_after(member, score) == place + 1
        store.client.zrem(store.parts.of(member).keys.schedule, member)
        assert Members(store).place_after(member, score) == place, "it is gone"
        store.client.zadd(store.parts.of(member).keys.schedule, {member: score})
    _, found = store.read_entries([key for key, _ in rows])
    assert [(stored.key, stored.score) for stored in found] == rows, "in the order that was asked for"


def test_entries_are_written_and_removed_where_they_are(
    store: Store, one: Part, other: Part, client: redis.Redis
) -> None:
    of_each = [[part.keys.entry(name) for name in names_in(part, store, 9)] for part in (one, other)]
    keys = [*chain.from_iterable(zip(*of_each, strict=True))]
    outcomes = store.write_entries(keys, lambda _stored, _now: Write(DEFINITION, "{}", 5.0))
    assert outcomes == ["new"] * 18
    assert (client.zcard(one.keys.schedule), client.zcard(other.keys.schedule)) == (9, 9)
    assert Members(store).scores_of(keys) == [5.0] * 18
    assert store.read_entry(keys[1])[1].score == 5.0
    seen = 0
    while members := Members(store).first(4):
        seen += len(members)
        Members(store).remove(members)
    assert seen == 18
    assert store.delete_entries(keys) == 18
    assert client.keys("*}:[0-9]*") == []


def test_what_is_noted_of_entries_is_found_in_each_part(
    store: Store, one: Part, other: Part, client: redis.Redis
) -> None:
    names = [names_in(part, store, 3) for part in (one, other)]
    firsts, filed, gone = zip(*names, strict=True)
    Owners(store).change_statics(Fence(), "add", "app", firsts)
    for part, (_, named, lost) in zip((one, other), names, strict=True):
        assert client.scard(part.keys.statics) == 1
        client.sadd(part.keys.owner("team"), named)
        client.rpush(part.keys.about(lost).history, "{}")
    client.hset(store.keys.calendar("all"), "about", "")
    statics = Owners(store).statics()
    assert statics.names == set(firsts)
    assert statics.owners == dict.fromkeys(firsts, frozenset(["app"]))
    assert Owners(store).static_among([*gone, *firsts]) == [*firsts]
    assert Owners(store).are_of("app", [*gone, *firsts]) == [False, False, True, True]
    assert Owners(store).names_of("team") == set(filed)
    assert Calendars(store).names() == ["all"]
    assert store.read_downgraded() == {}, "celery-redbeat 2.x reads no shards"
    kept = {name: key for kind, name, key in Orphans(store).candidates() if kind == "history"}
    assert kept == {name: store.keys.about(name).history for name in gone}


def test_a_part_is_read_when_it_is_its_turn(app: Celery, client: redis.Redis) -> None:
    read: list[Part] = []

    def note(part: Part) -> list[int]:
        read.append(part)
        return [1, 2]

    parts = [Part(Keys("redbeat:")), Part(Keys("other:"))]
    items = Parts(parts).read(note)
    assert (next(items), next(items), read) == (1, 2, parts[:1])
    assert (next(items), read) == (1, parts)


def test_a_schedule_is_one_part_with_the_configured_keys(app: Celery, client: redis.Redis) -> None:
    config = ensure_conf(app)
    config.schedule_key = "elsewhere"
    write_raw(client, "report", schedule=SELDOM, score=None)
    client.zadd("elsewhere", {"redbeat:report": 5})
    (part,) = Store(app).parts
    assert part.keys is config.keys
    assert list(Members(Store(app)).in_order()) == [[("redbeat:report", 5.0)]]


# -- whatever is done with an entry, its keys are given by one function of its name


#: the schedule's own keys, which name every entry
OWN = {
    f"redbeat::{name}"
    for name in (
        *("schedule", "statics", "static-owners", "downgraded", "lock", "released", "tick"),
        *("owner:", "owner:team", "deadlines", "events", "failures", "audit"),
        *("figures", "expected", "streaks"),
    )
}


def live(app: Celery) -> None:
    """Do with entries all that can be done."""
    now = datetime.now(timezone.utc)
    Calendar("holidays", ["2026-12-25"], app=app).save()
    entry = Entry("report", "tasks.report", 60, exclude="holidays", jitter=1, max_runtime=60, app=app).save()
    entry.update(args=[1])
    entry.pause("broken", until=now + timedelta(days=1))
    entry.resume()
    entry.trigger()
    entry.backfill(now - timedelta(minutes=3), now)
    Entry("broken", "tasks.report", 60, app=app).save()
    app.redbeat_redis.hset("redbeat:broken", "definition", "{oops")
    file = "entries: {filed: {task: tasks.report, schedule: 60}}\ncalendars: {filed: {days: [2026-12-26]}}"
    apply(app, file, owner="team")
    progress = Progress(app, app.redbeat_redis)
    progress.end(progress.started("report", "task-1"), "failed", error="OSError: oops")
    with leader(app) as scheduler:
        for _ in range(2):
            make_due(app, "report", "broken", "filed", "static")
            scheduler.tick()
    assert call(app, "downgrade", "--yes").exit_code == 0
    with leader(app) as scheduler:
        scheduler.tick()


def test_every_key_is_the_schedule_s_own_or_given_by_one_function_of_a_name(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()
    monkeypatch.setattr(Store, "on_round_trip", staticmethod(lambda: seen.update(client.keys("*"))))
    app.conf.beat_schedule = {"static": {"task": "tasks.report", "schedule": 60}}
    live(app)
    names = ("report", "broken", "filed", "static")
    about: dict[str, Any] = {name: app.redbeat_conf.keys.about(name) for name in names}
    calendars = {"redbeat::calendar:holidays", "redbeat::calendar:filed"}
    assert seen <= OWN | calendars | {key for keys in about.values() for key in keys}
    assert seen >= set(about["report"]), "all there are have been there"
    assert seen >= calendars | OWN
