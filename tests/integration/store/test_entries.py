"""Scripts that read and write many entries, and the members of the schedule: order, content, shards."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice
from operator import attrgetter
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat.errors import EntryError, LockLost
from redbeat.keys import Keys
from redbeat.store.ahead import fetch_ahead as send_ahead
from redbeat.store.calendars import calendar_names
from redbeat.store.downgrades import put_away as put_away_entries
from redbeat.store.downgrades import read_downgraded
from redbeat.store.entries import delete_entries, read_entries, read_entry, write_call, write_entries
from redbeat.store.later import LaterStore
from redbeat.store.members import (
    count_members,
    first_members,
    members_in_order,
    place_after,
    read_slice,
    remove_members,
    scan_members,
    scores_of,
)
from redbeat.store.messages import MessageTexts, NewMessage, store_call
from redbeat.store.orphans import Remains, find_kept, remove_orphans
from redbeat.store.owners import (
    are_owned_by,
    are_static,
    change_statics,
    names_owned_by,
    read_owners,
    read_static_names,
)
from redbeat.store.records import Change, Commit, Ending, Fence, LockStatus, Stored, Write, mark_of
from redbeat.store.schedule import commit_runs, fetch_due, read_head
from redbeat.store.store import Store, renew_call
from tests.conftest import MakeApp
from tests.support.fetched import fetched
from tests.support.proxy import Proxy
from tests.support.schedule import LOCK, SCHEDULE, calls_of, everything, write_burst
from tests.support.servers import Server

KEYS = Keys()
DEFINITION = json.dumps({"task": "echo", "schedule": {"__type__": "interval", "every": 60}})
#: ordered so that a result for one entry would spoil the next one
NAMES = ("good", "gone", "changed", "text", "good2", "unscheduled", "other-score", "gone2", "list", "last")


def furnish(client: redis.Redis) -> None:
    """Write entries that are unchanged since a fetch, and others that have changed."""
    for name in NAMES:
        entry, history, backfilled = KEYS.about(name)[:3]
        if name.startswith("gone"):
            pass
        elif name in ("text", "list"):
            client.set(entry, "x") if name == "text" else client.rpush(entry, "x")
        else:
            definition = DEFINITION + " " * (name == "changed")
            client.hset(entry, mapping={"definition": definition, "meta": "{}", "error": name, "owner": name})
        client.rpush(history, name)
        client.sadd(backfilled, name)
        client.sadd(KEYS.statics, name)
        client.sadd(KEYS.static_owners, f"app\t{name}")
        if name != "unscheduled":
            client.zadd(KEYS.schedule, {entry: 7 if name == "other-score" else 5})


def commit_all(store: Store, names: list[str]) -> list[Any]:
    endings = {"good2": Ending.DELETE, "last": Ending.UNSCHEDULE}
    commits = [
        Commit(
            fetched(KEYS.about(name).entry, "5", DEFINITION, "{}"),
            endings.get(name, "65"),
            new_meta=json.dumps({"of": name}),
            new_error="" if name == "good" else name,
            is_for_this_definition=True,
        )
        for name in names
    ]
    return commit_runs(store, Fence(), commits).run().results


def read_all(store: Store, names: list[str]) -> list[Any]:
    return read_entries(store, [KEYS.about(name).entry for name in names])[1]


def test_meta_that_another_program_wrote_and_a_revision_are_told_apart(
    app: Celery, client: redis.Redis
) -> None:
    written = {"meta_crc32": mark_of("{}")}
    for fields in ({}, written, {**written, "revision": ""}):
        client.hset(KEYS.entry("one"), mapping={"meta": "{}", **fields})
        [stored] = read_entries(Store(app), [KEYS.entry("one")])[1]
        assert (stored.is_meta_foreign, bool(stored.revision)) == (not fields, "revision" in fields)


def put_all_away(store: Store, names: list[str]) -> list[Any]:
    due_entry = [
        replace(one, definition=DEFINITION) if one.is_hash else one for one in read_all(store, names)
    ]
    return put_away_entries(store, [(one.key, one) for one in due_entry], "mark")[1]


def remove_all_orphans(store: Store, names: list[str]) -> list[Any]:
    remains = [
        Remains(about.entry, about.entry, name, [f"app\t{name}"], about.beside)
        for name, about in zip(names, map(KEYS.about, names), strict=True)
    ]
    return [1] * remove_orphans(store, remains)


def delete_all(store: Store, names: list[str]) -> list[Any]:
    return [1] * delete_entries(store, [KEYS.about(name).entry for name in names])


def read_all_owners(store: Store, names: list[str]) -> list[Any]:
    return read_owners(store, [KEYS.about(name).entry for name in names])


@pytest.mark.parametrize(
    "do", [commit_all, read_all, put_all_away, remove_all_orphans, delete_all, read_all_owners]
)
def test_script_treats_each_of_many_entries_as_if_alone(
    app: Celery, client: redis.Redis, do: Callable[[Store, list[str]], list[Any]]
) -> None:
    store = Store(app)
    furnish(client)
    before = everything(client)
    together = do(store, [*NAMES])
    found = everything(client)
    client.flushdb()
    furnish(client)
    assert [one for name in NAMES for one in do(store, [name])] == together
    assert everything(client) == found
    assert (found == before) == (do in (read_all, read_all_owners)), "it has done something"


META = '{"last_run_at": null, "total_run_count": 0}'

#: fields of an entry's hash, and what a fetch returns besides; most entries have the first
SHAPES: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"definition": DEFINITION, "meta": META}, {}),
    ({"definition": DEFINITION, "meta": META, "meta_crc32": "other", "owner": "me"}, {"meta_mark": "other"}),
    ({"definition": DEFINITION, "meta": ""}, {}),
    ({"definition": DEFINITION, "meta": META, "policy": "{}"}, {}),
    ({"definition": DEFINITION, "meta": META, "error": "{}"}, {}),
    ({"definition": DEFINITION}, {}),
    ({"meta": META}, {}),
    ({"definition": "nul\0", "meta": META}, {}),
    ({"definition": DEFINITION, "meta": "\0\0"}, {}),
    ({"definition": "", "meta": META, "policy": ""}, {}),
    ({"definition": "é\udcff", "meta": META}, {}),
    ({"other": "field"}, {}),
    ({}, {"type": "none"}),
]


def write(client: redis.Redis, key: str, score: float, fields: dict[str, str]) -> None:
    if fields:
        stored = {name: text.encode("utf-8", "surrogateescape") for name, text in fields.items()}
        client.hset(key, mapping=stored)
    client.zadd(SCHEDULE, {key: score})


def test_entries_of_any_content_are_fetched_in_the_order_of_due_times_and_read(
    app: Celery, client: redis.Redis, chance: random.Random
) -> None:
    expected = []
    for number in range(200):
        fields, others = SHAPES[0] if chance.random() < 0.7 else chance.choice(SHAPES)
        key = f"redbeat:entry-{number}" + "\0" * (chance.random() < 0.1)
        write(client, key, number + 1, fields)
        texts = {name: fields.get(name) for name in ("definition", "meta", "policy", "error")}
        expected.append(fetched(key, str(number + 1), **texts, **others))
    assert fetch_due(Store(app), Fence(), limit=1000).run().rows == expected
    found = read_entries(Store(app), [row.key for row in expected])[1]
    texts_of = attrgetter("key", "definition", "meta", "policy", "error", "type")
    assert [*map(texts_of, found)] == [*map(texts_of, expected)]
    scores = [(one.score, one.key) for one in found if one.type == "hash"]
    assert scores == [(float(row.score), row.key) for row in expected if row.type == "hash"]


def test_fetch_merges_a_bare_name_with_its_entry(app: Celery, client: redis.Redis) -> None:
    for number in range(6):
        write(client, f"redbeat:entry-{number}", number + 1, SHAPES[0][0])
    later = 4e9
    client.zadd(SCHEDULE, {"entry-1": 5.5, "entry-2": later, "entry-5": 0.5, "entry-4": 0})
    rows = fetch_due(Store(app), Fence(), limit=4).run().rows
    assert [row.key[8:] for row in rows] == ["entry-4", "entry-5", "entry-0", "entry-1"]
    left = dict(client.zrange(SCHEDULE, 0, -1, withscores=True))
    assert left.keys() == {"entry-2", *(f"redbeat:entry-{number}" for number in range(6))}
    assert left["entry-2"] == later, "it isn't due"


def test_fetch_of_an_entry_whose_name_is_the_key_of_another_leaves_that_one_scheduled(
    app: Celery, client: redis.Redis
) -> None:
    scores = {"redbeat:redbeat:x": 1.0, "redbeat:x": 2.0}
    for key, score in scores.items():
        write(client, key, score, SHAPES[0][0])
    rows = fetch_due(Store(app), Fence(), limit=1).run().rows
    assert [row.key for row in rows] == ["redbeat:redbeat:x"]
    assert dict(client.zrange(SCHEDULE, 0, -1, withscores=True)) == scores


FETCH_FENCE = Fence(LOCK, "mine", 10_000)


@pytest.fixture
def store(app: Celery, client: redis.Redis) -> Store:
    client.set(LOCK, "mine")
    store = Store(app, client)
    fetch_due(store, FETCH_FENCE, limit=1).run()  # now the server knows the script
    return store


def write_due(client: redis.Redis, count: int, is_together: bool) -> list[str]:
    """Write entries that are due, and return their names in the order in which they are claimed."""
    names = write_burst(client, count)
    if is_together:
        client.zadd(SCHEDULE, {f"redbeat:{name}": 1 for name in names})
        names.sort()
    return names


def fetch_ahead(store: Store, count: int, pending: Sequence[Stored] = ()) -> Any:
    ahead = send_ahead(store, FETCH_FENCE, count, pending)
    assert ahead is not None
    return ahead


@pytest.mark.parametrize("is_together", [False, True], ids=["one after the other", "at one due time"])
def test_fetch_ahead_returns_the_entries_after_the_pending_ones(
    store: Store, client: redis.Redis, is_together: bool
) -> None:
    names = write_due(client, 350, is_together)
    pending = fetch_due(store, FETCH_FENCE, limit=50).run().rows
    fetched = fetch_ahead(store, 250, pending).read()
    assert fetched is not None
    assert [row.key for row in fetched.rows] == [f"redbeat:{name}" for name in names[50:-50]]
    assert (fetched.has_more, fetched.is_ahead) == (True, True)
    assert client.zcard("redbeat::schedule") == len(names)


@pytest.mark.parametrize("asked", [30, 100], ids=["the first of them", "all of them"])
def test_fetch_ahead_of_requested_entries_leaves_out_the_pending_ones(
    store: Store, client: redis.Redis, asked: int
) -> None:
    names = write_due(client, 100, is_together=False)
    client.zadd(SCHEDULE, {f"redbeat:{name}": 0 for name in names[:asked]})
    pending = fetch_due(store, FETCH_FENCE, limit=50).run().rows
    fetched = fetch_ahead(store, 20, pending).read()
    assert [row.is_asked for row in pending] == [number < asked for number in range(50)]
    due = {f"redbeat:{name}" for name in names}
    assert {row.key for row in fetched.rows} <= due - {row.key for row in pending}
    assert (len(fetched.rows), fetched.has_more) == (20, True)


@pytest.mark.parametrize("is_together", [False, True], ids=["one after the other", "at one due time"])
@pytest.mark.parametrize("committed", [20, 50])
def test_fetch_ahead_overtaken_by_commits_returns_none(
    store: Store, client: redis.Redis, is_together: bool, committed: int
) -> None:
    """Commands of two connections may arrive in another order than they were sent."""
    write_due(client, 100, is_together)
    pending = fetch_due(store, FETCH_FENCE, limit=50).run().rows
    client.zadd(SCHEDULE, {row.key: 4e9 for row in pending[:committed]})
    fetched = fetch_ahead(store, 10, pending).read()
    assert fetched is not None
    assert (fetched.rows, fetched.has_more) == ([], True), "an ordinary fetch follows"


def test_fetch_ahead_after_a_lost_lock_raises(store: Store, client: redis.Redis) -> None:
    write_burst(client, 3)
    client.set(LOCK, "another's")
    with pytest.raises(LockLost):
        fetch_ahead(store, 10).read()


def test_fetch_ahead_that_is_closed_leaves_no_reply(
    make_app: MakeApp, store: Store, server: Server, client: redis.Redis
) -> None:
    write_burst(client, 3)
    with Proxy((server.host, server.port)) as way:
        far = Store(make_app(redbeat_redis_url=way.url(server.url(1))))
        read_head(far).run()
        way.delay_seconds = 0.2
        made = calls_of(client, "evalsha")
        ahead = fetch_ahead(far, 10)
        ahead.close()
        # a late one would take back the lock that beat has released
        assert calls_of(client, "evalsha") == made + 1
        ahead.close()
        assert far.client.echo("its own reply") == "its own reply"


@pytest.mark.parametrize("never", [0, 3, 40])
def test_page_of_members_starts_at_any_place_and_continues_after_a_moved_one(
    app: Celery, client: redis.Redis, chance: random.Random, never: int
) -> None:
    scores = [-1.0] * (never - never // 2) + [-2.5] * (never // 2) + [0.0] * 5 + [9e9] * 30
    scores += [chance.uniform(0, 1e9) for _ in range(20)]
    client.zadd(SCHEDULE, {f"redbeat:{chance.random()}é": score for score in scores})
    client.zadd(SCHEDULE, {b"redbeat:\xff": 9e9})
    store = Store(app)
    rows = list(chain.from_iterable(members_in_order(store)))
    assert len(rows) == never + 56
    for offset in range(len(rows) + 2):
        count = chance.randint(0, 70)
        assert read_slice(store, offset, count) == rows[offset : offset + count], (offset, count)
    for place in chance.sample(range(len(rows)), 12):
        member, score = rows[place]
        assert place_after(store, member, score) == place + 1
        moved = chance.choice([-3.0, 1.0, 1e10])
        client.zadd(SCHEDULE, {member.encode("utf-8", "surrogateescape"): moved})
        before = sum(1 for row in chain.from_iterable(members_in_order(store)) if row in rows[:place])
        is_before = (moved < 0, moved) < (score < 0, score)
        assert place_after(store, member, score) == before + is_before
        client.zadd(SCHEDULE, {member.encode("utf-8", "surrogateescape"): score})
    client.delete(SCHEDULE)
    assert read_slice(store, 0, 5) == []
    assert place_after(store, "redbeat:gone", 5.0) == 0


PLAIN = '{"task": "echo", "schedule": {"__type__": "interval", "every": 60}}'


@pytest.fixture
def sharded(make_app: Callable[..., Celery]) -> Store:
    return Store(make_app(redbeat_shards=2))


def names_in(part: Keys, sharded: Store, count: int) -> list[str]:
    """Return names whose entries are in a part."""
    names = (str(number) for number in itertools.count())
    return [*islice((name for name in names if sharded.parts.of(name) == part), count)]


def add(sharded: Store, part: Keys, scores: dict[str, float]) -> list[str]:
    """Make entries, and members of the schedule; return their keys."""
    keys = [part.about(name).entry for name in scores]
    with sharded.client.pipeline() as pipeline:
        for key, score in zip(keys, scores.values(), strict=True):
            pipeline.hset(key, "definition", PLAIN)
            pipeline.zadd(part.schedule, {key: score})
        pipeline.execute()
    return keys


def test_members_of_two_shards_come_in_one_order(sharded: Store, chance: random.Random) -> None:
    scores: dict[str, float] = {}
    for part, count in zip(sharded.parts, (1_300, 700), strict=True):
        names = [f"{chance.random()}" for _ in range(count)]
        mine = {name: chance.choice([-1, 0, chance.uniform(-9, 9), 10**9]) for name in names}
        scores |= dict(zip(add(sharded, part, mine), mine.values(), strict=True))
    pages = list(members_in_order(sharded))
    rows = list(chain.from_iterable(pages))
    assert [len(page) for page in pages] == [500] * 4
    assert rows == sorted(scores.items(), key=lambda row: (row[1] < 0, row[1], row[0].encode()))
    due = list(chain.from_iterable(members_in_order(sharded, 5)))
    assert due == [row for row in rows if 0 <= row[1] <= 5]
    assert dict(chain.from_iterable(scan_members(sharded))) == scores
    assert count_members(sharded) == len(scores)
    for place in (0, 1, 7, 60, 500, 900, 1_100, 1_990, 1_999, 2_000):
        assert read_slice(sharded, place, 7) == rows[place : place + 7]
    for place in (0, 70, 900, 1_999):
        member, score = rows[place]
        assert place_after(sharded, member, score) == place + 1
        sharded.client.zrem(sharded.parts.of(member).schedule, member)
        assert place_after(sharded, member, score) == place, "it is gone"
        sharded.client.zadd(sharded.parts.of(member).schedule, {member: score})
    _, found = read_entries(sharded, [key for key, _ in rows])
    assert [(stored.key, stored.score) for stored in found] == rows, "in the order that was asked for"


def test_entries_of_two_shards_are_written_and_removed_in_theirs(sharded: Store, client: redis.Redis) -> None:
    of_each = [[part.entry(name) for name in names_in(part, sharded, 9)] for part in sharded.parts]
    keys = [*chain.from_iterable(zip(*of_each, strict=True))]
    outcomes = write_entries(sharded, keys, lambda _stored, _now: Write(PLAIN, "{}", 5.0))
    assert outcomes == ["new"] * 18
    assert [client.zcard(part.schedule) for part in sharded.parts] == [9, 9]
    assert scores_of(sharded, keys) == [5.0] * 18
    assert read_entry(sharded, keys[1])[1].score == 5.0
    seen = 0
    while members := first_members(sharded, 4):
        seen += len(members)
        remove_members(sharded, members)
    assert seen == 18
    assert delete_entries(sharded, keys) == 18
    assert client.keys("*}:[0-9]*") == []


def test_owners_statics_and_histories_are_found_in_each_shard(sharded: Store, client: redis.Redis) -> None:
    names = [names_in(part, sharded, 3) for part in sharded.parts]
    firsts, filed, gone = zip(*names, strict=True)
    change_statics(sharded, Fence(), "add", "app", firsts)
    for part, (_, named, lost) in zip(sharded.parts, names, strict=True):
        assert client.scard(part.statics) == 1
        client.sadd(part.owner("team"), named)
        client.rpush(part.about(lost).history, "{}")
    client.hset(sharded.keys.calendar("all"), "about", "")
    statics = read_static_names(sharded)
    assert statics.names == set(firsts)
    assert statics.owners == dict.fromkeys(firsts, frozenset(["app"]))
    assert are_static(sharded, [*gone, *firsts]) == [False, False, True, True]
    assert are_owned_by(sharded, "app", [*gone, *firsts]) == [False, False, True, True]
    assert names_owned_by(sharded, "team") == set(filed)
    assert calendar_names(sharded) == ["all"]
    assert read_downgraded(sharded) == {}, "celery-redbeat 2.x reads no shards"
    kept = {name: key for kind, name, key in find_kept(sharded) if kind == "history"}
    assert kept == {name: sharded.keys.about(name).history for name in gone}


# -- whatever is done with an entry, its keys are given by one function of its name


@pytest.mark.parametrize("gone", [[], ["one"]], ids=["all are stored", "one has moved"])
def test_store_messages_that_must_exist_replaces_all_or_none(client: redis.Redis, gone: list[str]) -> None:
    """Messages that are replaced in a former shard must not be stored there again once they have moved."""

    def messages(text: str) -> list[NewMessage]:
        return [NewMessage(one, 9e9, "{}", "{}", text, MessageTexts(text, "")) for one in ("one", "two")]

    store_call(KEYS, messages("old")).run(client)
    for task_id in gone:
        client.delete(KEYS.stored_message(task_id))
        client.zrem(KEYS.later, KEYS.stored_message(task_id))
    before = everything(client)
    assert store_call(KEYS, messages("new"), must_exist=True).run(client) == (0 if gone else 2)
    stored = [client.hget(KEYS.stored_message(task_id), "message") for task_id in ("one", "two")]
    assert everything(client) == before if gone else stored == ["new", "new"]


def test_run_that_was_recorded_since_its_entry_was_read_is_not_undone_by_a_file(
    app: Celery, client: redis.Redis
) -> None:
    key, recorded = KEYS.entry("one"), '{"total_run_count": 1}'
    write(client, key, 5.0, {"definition": DEFINITION, "meta": "{}"})
    [read] = read_entries(Store(app), [key])[1]
    client.hset(key, "meta", recorded)
    change = Change(read, Write(meta='{"total_run_count": 0}'))
    assert write_call(KEYS, Fence(), [change]).run(client).changed == key
    assert client.hget(key, "meta") == recorded


def test_message_that_was_stored_again_since_it_was_seen_is_not_cancelled(
    app: Celery, client: redis.Redis
) -> None:
    texts, store = MessageTexts("{}"), LaterStore(app)
    store_call(KEYS, [NewMessage("one", 9e9, "{}", "{}", "newer", texts)]).run(client)
    assert [store.cancel(["one"], seen) for seen in ("older", "newer")] == [[None], [texts]]


def test_lock_that_a_late_command_takes_back_is_held_for_ten_seconds_at_most(client: redis.Redis) -> None:
    """Its beat may have been killed since, and nobody waits for 25 minutes."""
    assert renew_call(KEYS, Fence(LOCK, "mine", 1_500_000)).run(client) is LockStatus.RETAKEN
    assert 0 < client.pttl(LOCK) <= 10_000


def test_save_of_an_entry_that_another_program_writes_all_the_time_ends_with_an_error(
    app: Celery, client: redis.Redis
) -> None:
    tries: list[int] = []

    def decide(_stored: object, _now: object) -> Write:
        tries.append(client.hincrby(KEYS.entry("one"), "definition", 1))  # as the other program does
        return Write(DEFINITION, "{}", 5.0)

    with pytest.raises(EntryError, match="redbeat:one: changed by somebody else 100 times"):
        write_entries(Store(app), [KEYS.entry("one")], decide)
    assert tries == [*range(1, 101)]
    assert client.hget(KEYS.entry("one"), "definition") == "100"


def test_entry_that_is_there_by_now_stays_scheduled_with_what_is_kept_for_it(
    app: Celery, client: redis.Redis
) -> None:
    """Somebody has found it missing, and removes what is left of it."""
    store, names, keys = Store(app), ("there", "gone"), ("redbeat:there", "redbeat:gone")
    write(client, keys[0], 5.0, SHAPES[0][0])
    client.zadd(SCHEDULE, {keys[1]: 5})
    client.sadd(KEYS.statics, *names)
    beside = [KEYS.beside(key) for key in keys]
    found = zip(keys, keys, names, [()] * 2, beside, strict=True)
    assert remove_orphans(store, [Remains(*one) for one in found]) == 2
    assert (client.zrange(SCHEDULE, 0, -1), client.smembers(KEYS.statics)) == ([keys[0]], {"there"})
