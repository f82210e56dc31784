"""Small batches of many shards: as many round trips as there are nodes, and each as if it were alone."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from itertools import count
from typing import Any

import pytest
import redis.exceptions
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatSchedulerEntry, schedulers
from redbeat.beat import round as round_module
from redbeat.beat.shard import Shard
from redbeat.beat.shards import Shards
from redbeat.connection.client import get_redis
from redbeat.connection.stream import Stream
from redbeat.errors import RedBeatError
from redbeat.keys import Keys
from redbeat.schedulers import RedBeatScheduler
from redbeat.store import rounds as store_rounds
from redbeat.store.commits import CommitStream
from redbeat.store.nodes import call_on_nodes as call_now
from redbeat.store.records import Claim
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.support.fidelity import counting_round_trips
from tests.support.polling import eventually
from tests.support.servers import Server
from tests.support.shards import app_in, names_in_every_shard, parts_of
from tests.support.ticks import leader, take_messages

SHARDS = 16
DAY = 86_400.0


@pytest.fixture
def server(valkey: Server) -> Server:
    """One kind will do: the scripts are tested with both."""
    return valkey


@pytest.fixture(params=["exactly once", "at least once"])
def app(request: pytest.FixtureRequest, make_app: MakeApp) -> Celery:
    """Messages are pushed by the script that records, or go to a broker elsewhere."""
    settings: dict[str, Any] = {"redbeat_shards": SHARDS}
    if request.param == "at least once":
        settings["broker_url"] = request.getfixturevalue("redis").url(0)
    return make_app(**settings)


def save(app: Celery, names: Sequence[str], **options: Any) -> None:
    RedBeatSchedulerEntry.save_many(
        RedBeatSchedulerEntry(name, "tasks.echo", schedule(DAY), app=app, **options) for name in names
    )


def let_be_due(app: Celery, names: Sequence[str], at: float | None = None) -> None:
    """Let entries be due, since a second ago by default."""
    keys, client = app.redbeat_conf.keys, get_redis(app)
    at = time.time() - 1 if at is None else at
    for name in names:
        client.zadd(keys.home(name).schedule, {keys.entry(name): at})


def sent_by(scheduler: RedBeatScheduler) -> Counter[str]:
    """Tick until nothing more is due; return how often each entry was sent."""
    eventually(lambda: scheduler.tick() > 0)
    return Counter(message.entry for message in take_messages(scheduler.app))


def meddling(monkeypatch: pytest.MonkeyPatch, meddle: Callable[[], None]) -> None:
    """Do something once, just before the commits of the next round go out, which are few."""
    left = [meddle]

    def meddle_before(original: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(*args: Any) -> Any:
            while left:
                left.pop()()
            return original(*args)

        return replaced

    monkeypatch.setattr(round_module, "commit_together", meddle_before(store_rounds.commit_together))
    monkeypatch.setattr(CommitStream, "read_all", meddle_before(CommitStream.read_all))


def end_connections(client: Any) -> None:
    """End all connections to the schedule's server, but for one."""
    client.execute_command("CLIENT KILL TYPE normal SKIPME yes")


# -- round trips


@contextmanager
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """Count round trips, but not those by which beats look at locks: they have times of their own."""
    with monkeypatch.context() as patch, counting_round_trips(monkeypatch) as trips:
        patch.setattr(Shards, "look_at_locks", lambda _shards: [])
        yield trips


@pytest.mark.parametrize("shards", [SHARDS, 64])
@pytest.mark.parametrize(
    ("place", "broker", "most"),
    [
        ("one-server", "own", 2),  # a claim, and a commit that pushes
        ("one-server", "memory", 2),
        ("one-server", "redis", 3),  # and a pipeline to the broker
        ("cluster", "memory", 6),
        ("cluster", "redis", 7),
    ],
)
def test_round_trips_don_t_grow_with_the_number_of_shards(
    place: str,
    broker: str,
    most: int,
    shards: int,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings: dict[str, Any] = {"redbeat_shards": shards}
    if broker != "memory":
        chosen: Server = request.getfixturevalue("valkey" if broker == "own" else "redis")
        settings["broker_url"] = chosen.url(0)
    app = app_in(place, request, **settings)
    names = names_in_every_shard(app)
    save(app, names)
    with leader(app) as scheduler:
        let_be_due(app, names)
        assert sent_by(scheduler) == Counter(names), "each node knows the scripts from now on"
        made = []
        for _ in range(3):
            let_be_due(app, names)
            with counting(monkeypatch) as trips:
                scheduler.tick()
                made.append(trips())
            assert Counter(message.entry for message in take_messages(app)) == Counter(names)
    assert set(made) == {most}


@pytest.mark.parametrize("shards", [SHARDS, 64])
def test_prepared_runs_of_many_shards_are_sent_in_one_round_trip(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, shards: int
) -> None:
    app = make_app(redbeat_shards=shards, redbeat_lookahead=10)
    names = names_in_every_shard(app)
    save(app, names)
    with leader(app) as scheduler:
        let_be_due(app, names)
        assert sent_by(scheduler) == Counter(names)
        due_at = time.time() + 3
        let_be_due(app, names, due_at)
        scheduler.tick()
        shards_ = scheduler._shards  # noqa: SLF001 - it has no name outside
        eventually(lambda: shards_.prepare() and shards_.count_prepared() == len(names))
        assert time.time() < due_at, "preparing took too long"
        eventually(lambda: all(shard.has_prepared for shard in shards_))
        with counting(monkeypatch) as trips:
            scheduler.tick()
            made = trips()
        assert Counter(message.entry for message in take_messages(app)) == Counter(names)
        assert scheduler._figures.used == len(names)  # noqa: SLF001
    assert made == 2, "the runs, and a claim"


# -- the same as one by one


def alone(claims: Sequence[tuple[Shard, Claim]], **_are_pushed: bool) -> Iterator[list[tuple[Shard, Claim]]]:
    for one in claims:
        yield [one]


def write_all_kinds(app: Celery, chance: random.Random, at: float) -> list[str]:
    """Write entries of all kinds into all shards: plain ones, others, and some that can't be sent.

    Returns the keys of those that are gone, but for their places in the schedule.
    """
    names = names_in_every_shard(app, of_each=4)
    kinds = [chance.choice(["plain", "plain", "cron", "limited", "tracked", "gone", "broken"]) for _ in names]
    client, keys = get_redis(app), app.redbeat_conf.keys
    before = datetime.fromtimestamp(at - DAY, timezone.utc)
    for name, kind in zip(names, kinds, strict=True):
        timing = crontab(minute=str(int(at // 60) % 60)) if kind == "cron" else schedule(DAY)
        policy: dict[str, Any] = {"max_runs": 1} if kind == "limited" else {}
        policy |= {"overlap": "skip"} if kind == "tracked" else {}
        RedBeatSchedulerEntry(
            name, "tasks.echo", timing, args=[name], last_run_at=before, app=app, **policy
        ).save()
        if kind == "broken":
            client.hset(keys.entry(name), "definition", "{")
        elif kind == "gone":
            client.delete(keys.entry(name))
    let_be_due(app, names, at)
    return [keys.entry(name) for name, kind in zip(names, kinds, strict=True) if kind == "gone"]


def scored(app: Celery, client: Any, keys: Sequence[str]) -> list[str]:
    """Those that are in the schedule."""
    homes = app.redbeat_conf.keys
    return [key for key in keys if client.zscore(homes.at(key).schedule, key) is not None]


def outcome_of(app: Celery, client: Any) -> tuple[Any, ...]:
    """What was sent, and what Redis holds of it; without the times at which that was done."""
    sent = sorted((message.entry, message.id, message.due) for message in take_messages(app))
    found: dict[str, Any] = {}
    for part in parts_of(app):
        for key, score in client.zrange(part.schedule, 0, -1, withscores=True):
            about = part.about(part.name(key))
            runs = json.loads(client.hget(key, "meta") or "{}").get("total_run_count", 0)
            next_score = score if runs else None
            has_error = client.hexists(key, "error")
            records = client.hkeys(about.running), client.llen(about.history)
            found[key] = runs, next_score, has_error, *records
    return sent, found


@pytest.mark.parametrize("are_large", [False, True], ids=["small", "large"])
def test_a_round_sends_and_records_what_batches_do_alone(
    app: Celery, server: Server, chance: random.Random, monkeypatch: pytest.MonkeyPatch, are_large: bool
) -> None:
    """Also if some of them are planned in several pieces, and what isn't compiled comes in any of these."""
    names, large = names_in_every_shard(app, of_each=250), parts_of(app)[:3]
    plain = [name for name in names if app.redbeat_conf.keys.home(name) in large]
    assert len(plain) == 750
    at, seed = time.time() // 60 * 60 - 60, chance.random()  # a whole minute, for crontabs
    found = []
    with server.client(db=1) as client:
        for is_alone in (True, False):
            client.flushdb()
            if are_large:
                save(app, plain)
                let_be_due(app, plain, at)
            gone = write_all_kinds(app, random.Random(seed), at)
            with monkeypatch.context() as patch, leader(app) as scheduler:
                if is_alone:
                    patch.setattr(schedulers, "rounds_of", alone)
                eventually(lambda: scheduler.tick() > 0 and not scored(app, client, gone))  # noqa: B023
                found.append(outcome_of(app, client))
    (sent_alone, kept_alone), (sent, kept) = found
    assert sent == sent_alone
    assert kept == kept_alone
    assert len(sent) > SHARDS


# -- what goes wrong with one shard


def test_a_lock_that_is_lost_amid_a_round_costs_that_shard_only(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, lost = names_in_every_shard(app, of_each=3), parts_of(app)[5]
    save(app, names)
    let_be_due(app, names)
    others = [name for name in names if app.redbeat_conf.keys.home(name) != lost]
    with leader(app) as scheduler:
        meddling(monkeypatch, lambda: get_redis(app).set(lost.lock, "another"))
        sent = sent_by(scheduler)
        assert sent.keys() >= set(others)
        assert set(sent.values()) == {1}
        assert get_redis(app).zcount(lost.schedule, 0, time.time()) == 3, "the other beat sends them"


def test_a_part_that_can_t_be_written_amid_a_round_keeps_no_other_from_going_on(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, broken, client = names_in_every_shard(app, of_each=3), parts_of(app)[5], get_redis(app)
    save(app, names)
    let_be_due(app, names)

    def meddle() -> None:
        client.rename(broken.schedule, f"{broken.schedule}-kept")
        client.set(broken.schedule, "no sorted set")

    with leader(app) as scheduler:
        meddling(monkeypatch, meddle)
        with pytest.raises(RedBeatError, match="holds something that is no sorted set"):
            scheduler.tick()
        sent = Counter(message.entry for message in take_messages(app))
        assert sent.keys() >= {name for name in names if app.redbeat_conf.keys.home(name) != broken}
        client.rename(f"{broken.schedule}-kept", broken.schedule)
        is_once = app.conf.broker_url.split("/")[2] == app.conf.redbeat_redis_url.split("/")[2]
        together = sent + sent_by(scheduler)
        assert together.keys() == set(names)
        assert not is_once or set(together.values()) == {1}


def test_a_layout_that_changes_amid_a_round_is_followed(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    names, client = names_in_every_shard(app, of_each=3), get_redis(app)
    save(app, names)
    let_be_due(app, names)

    def meddle() -> None:
        """Begin to divide the schedule into twice as many; nothing was moved yet."""
        base = app.redbeat_conf.base_keys
        fields = {"shards": 2 * SHARDS, "generation": 2, "former": SHARDS, "state": "moving"}
        client.hset(base.layout, mapping=fields)
        for shard in range(2 * SHARDS):
            client.set(Keys(f"{{redbeat:{shard}}}:").generation, f"2 {2 * SHARDS}")

    with leader(app) as scheduler:
        meddling(monkeypatch, meddle)
        assert sent_by(scheduler) == Counter(names)


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "not written"])
def test_a_node_that_is_away_amid_a_round_costs_its_own_shard_only(
    make_app: MakeApp, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """Its runs are sent before they are recorded, as the broker is elsewhere."""
    app = make_app(redbeat_shards=SHARDS, broker_url=request.getfixturevalue("redis").url(0))
    names, away = names_in_every_shard(app, of_each=3), parts_of(app)[5]
    save(app, names)
    let_be_due(app, names)
    left = [True]

    def call_on_nodes(client: Any, calls: Any) -> list[Any]:
        places = [place for place, (_, request) in enumerate(calls) if away.schedule in request.keys]
        is_commit = any("total_run_count" in str(one) for one in calls[0][1].args)
        if not (left and is_commit):
            return call_now(client, calls)
        left.clear()
        [place] = places
        replies = call_now(client, [call for call in calls if is_written or call is not calls[place]])
        error = redis.exceptions.ConnectionError("away for a test")
        return [*replies[:place], error, *replies[place + is_written :]]

    monkeypatch.setattr(store_rounds, "call_on_nodes", call_on_nodes)
    with leader(app) as scheduler:
        with pytest.raises(RedBeatError, match="away for a test"):
            scheduler.tick()
        assert not left
        sent = Counter(message.entry for message in take_messages(app))
        assert sent == Counter(names)
        assert sent_by(scheduler) == Counter(), "what was sent was recorded once more as the round ended"


@pytest.mark.parametrize(
    ("when", "of_each"), [("before", 3), ("before", 40), ("amid", 40), ("after", 3), ("after", 40)]
)
def test_a_connection_that_ends_amid_a_round_neither_loses_nor_doubles_a_run(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch, when: str, of_each: int
) -> None:
    """Before anything is sent, when some calls are on their way, or before any reply is read."""
    app = make_app(redbeat_shards=SHARDS)
    names, client = names_in_every_shard(app, of_each=of_each), get_redis(app)
    save(app, names)
    let_be_due(app, names)
    sends, original = [0], Stream.write_all
    end_at = {"before": 1, "amid": 2, "after": None}[when]

    def write_all(stream: Stream, commands: Any) -> None:
        sends[0] += 1
        if sends[0] == end_at:
            end_connections(client)
        original(stream, commands)

    monkeypatch.setattr(Stream, "write_all", write_all)
    with leader(app) as scheduler:
        if when == "after":
            meddling(monkeypatch, lambda: end_connections(client))
        assert sent_by(scheduler) == Counter(names)
    assert sends[0] >= (end_at or 1), "they were streamed"


# -- signals


def test_a_signal_at_any_round_trip_of_a_round_leaves_no_run_lost_or_doubled(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = names_in_every_shard(app)
    save(app, names)
    for step in count(1):
        let_be_due(app, names)
        left = [step]

        def on_round_trip(left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] == 0:
                raise SystemExit

        with leader(app) as scheduler, monkeypatch.context() as patch:
            patch.setattr(Store, "on_round_trip", staticmethod(on_round_trip))
            with suppress(SystemExit):
                scheduler.tick()
        sent = Counter(message.entry for message in take_messages(app))
        with leader(app) as scheduler:
            assert sent + sent_by(scheduler) == Counter(names), f"ended at step {step}"
        if left[0] > 0:  # the tick has ended before
            break
    assert step > 4
