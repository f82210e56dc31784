"""What covers many entries covers all parts of a schedule: here there are two, with a prefix each."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from itertools import chain
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.config.config import ensure_conf
from redbeat.keys import Keys
from redbeat.leadership.status import read_status
from redbeat.store.calendars import Calendars
from redbeat.store.members import Members
from redbeat.store.orphans import Orphans
from redbeat.store.owners import Owners
from redbeat.store.parts import Part, Parts
from redbeat.store.records import Fence, KeyType, Stored, Write
from redbeat.store.store import Store
from tests.support.applying import apply
from tests.support.command_line import call
from tests.support.progress import Progress
from tests.support.schedule import SELDOM, write_raw
from tests.support.ticks import leader, make_due

ONE, OTHER = Part(Keys("redbeat:")), Part(Keys("other:"))
DEFINITION = '{"task": "echo", "schedule": {"__type__": "interval", "every": 60}}'


class TwoParts(Parts):
    """An entry is in the part whose prefix its key has."""

    def of(self, key: str) -> Part:
        return next(part for part in self if key.startswith(part.keys.prefix))


@pytest.fixture
def store(app: Celery, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setattr(Store, "parts", TwoParts([ONE, OTHER]))
    return Store(app)


def add(store: Store, part: Part, scores: dict[str, float]) -> list[str]:
    """Make entries, and members of the schedule; return their keys."""
    keys = [part.keys.about(name).entry for name in scores]
    with store.client.pipeline() as pipeline:
        for key, score in zip(keys, scores.values(), strict=True):
            pipeline.hset(key, "definition", DEFINITION)
            pipeline.zadd(part.keys.schedule, {key: score})
        pipeline.execute()
    return keys


def test_members_come_in_one_order_and_all_of_them(store: Store, chance: random.Random) -> None:
    scores: dict[str, float] = {}
    for part, count in ((ONE, 1_300), (OTHER, 700)):
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
    assert Members(store).slice(1_990, 7) == rows[1_990:1_997]
    assert Members(store).place_after(*rows[900]) == 901
    _, found = store.read_entries([key for key, _ in rows])
    assert [(stored.key, stored.score) for stored in found] == rows, "in the order that was asked for"


def test_entries_are_written_and_removed_where_they_are(store: Store, client: redis.Redis) -> None:
    keys = [part.keys.about(str(number)).entry for number in range(9) for part in (ONE, OTHER)]
    outcomes = store.write_entries(keys, lambda _stored, _now: Write(DEFINITION, "{}", 5.0))
    assert outcomes == ["new"] * 18
    assert (client.zcard(ONE.keys.schedule), client.zcard(OTHER.keys.schedule)) == (9, 9)
    assert Members(store).scores_of(keys) == [5.0] * 18
    assert store.read_entry(keys[1])[1].score == 5.0
    status = read_status(store.config.app)
    assert (status.backlog, status.oldest_due) == (18, datetime.fromtimestamp(5, timezone.utc))
    seen = 0
    while members := Members(store).first(4):
        seen += len(members)
        Members(store).remove(members)
    assert seen == 18
    assert store.delete_entries(keys) == 18
    assert client.keys("*:[0-9]") == []


def test_what_is_noted_of_entries_is_found_in_each_part(store: Store, client: redis.Redis) -> None:
    names = [part.keys.about("static").entry for part in (ONE, OTHER)]  # by which the test tells parts
    Owners(store).change_statics(Fence(), "add", "app", names)
    for part in (ONE, OTHER):
        assert client.scard(part.keys.statics) == 1
        client.sadd(part.keys.owner("team"), f"{part.keys.prefix}filed")
        client.hset(part.keys.calendar("both"), "about", "")
        client.rpush(part.keys.about("gone").history, "{}")
        client.hset(part.keys.downgraded, f"{part.keys.prefix}away", "5")
    statics = Owners(store).statics()
    assert statics.names == set(names)
    assert statics.owners == dict.fromkeys(names, frozenset(["app"]))
    assert Owners(store).names_of("team") == {"redbeat:filed", "other:filed"}
    assert Calendars(store).names() == ["both"]
    assert store.read_downgraded() == {"redbeat:away": 5.0, "other:away": 5.0}
    histories = [part.keys.about("gone").history for part in (ONE, OTHER)]
    assert [one[2] for one in Orphans(store).candidates() if one[0] == "history"] == histories


def test_entries_are_put_away_where_they_are(store: Store, client: redis.Redis) -> None:
    keys = [*add(store, ONE, {"a": 1}), *add(store, OTHER, {"a": 2}), *add(store, ONE, {"b": 3})]
    entries = [(key, Stored(key, DEFINITION, type=KeyType.HASH)) for key in keys]
    assert store.put_away(entries, "mark").results == [True] * 3
    assert client.hgetall(ONE.keys.downgraded) == {"redbeat:a": "1", "redbeat:b": "3"}
    assert client.hgetall(OTHER.keys.downgraded) == {"other:a": "2"}


def test_a_part_is_read_when_it_is_its_turn(app: Celery, client: redis.Redis) -> None:
    read: list[Part] = []

    def note(part: Part) -> list[int]:
        read.append(part)
        return [1, 2]

    items = Parts([ONE, OTHER]).read(note)
    assert (next(items), next(items), read) == (1, 2, [ONE])
    assert (next(items), read) == (1, [ONE, OTHER])


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
