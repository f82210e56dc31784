"""No entry delays another: invalid ones, large and expensive ones, and requests that break the connection."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryCorrupt, EntryError, EntryTooExpensive, RedBeatError, StoreCorrupt
from tests.conftest import MakeApp
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.apps import run_beat
from tests.support.bad_entries import BAD_DEFINITIONS, BAD_METAS
from tests.support.logs import errors_in
from tests.support.polling import eventually
from tests.support.progress import NAMES
from tests.support.proxy import Proxy
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    SELDOM,
    TICK,
    due_count,
    field,
    messages,
    meta_json,
    retry_now,
    score_of,
    sent_names,
    server_now,
    write_burst,
    write_raw,
)
from tests.support.servers import Server
from tests.support.spinning import SPINNING, know_spinning, spinning

#: name to the command that puts something else where the hash should be
OTHER_TYPES: dict[str, tuple[Any, ...]] = {
    "string": ("SET", "redbeat:string", "oops"),
    "list": ("RPUSH", "redbeat:list", "oops"),
    "zset": ("ZADD", "redbeat:zset", 1, "oops"),
    "set": ("SADD", "redbeat:set", "oops"),
    "stream": ("XADD", "redbeat:stream", "*", "a", "b"),
}


HASHES = BAD_DEFINITIONS.keys() | BAD_METAS.keys()


GOOD = '{"task": "echo", "schedule": {"__type__": "interval", "every": 3600}}'


def write_bad_ones(client: redis.Redis, score: float = 1) -> None:
    for name, definition in BAD_DEFINITIONS.items():
        write_raw(client, name, definition, score=score, meta=meta_json(datetime(2024, 1, 1), 3))
    for name, meta in BAD_METAS.items():
        write_raw(client, name, score=score, meta=meta)
    for name, command in OTHER_TYPES.items():
        client.execute_command(*command)
        client.zadd(SCHEDULE, {f"redbeat:{name}": score})


def due_again(client: redis.Redis) -> None:
    for member in client.zrange(SCHEDULE, 0, -1):
        client.zadd(SCHEDULE, {member: 1})


HISTORIES = b"redbeat::history:"


def dump_all(client: redis.Redis) -> dict[str, Any]:
    """Every key of the schedule as bytes, but for the errors noted, histories, the lock and its tick."""
    raw = redis.Redis(host=client.connection_pool.connection_kwargs["host"], **_address(client))
    with raw:
        dumped: dict[str, Any] = {}
        for key in raw.keys("redbeat:*"):
            if key.decode("utf-8", "replace") in (SCHEDULE, LOCK, TICK) or key.startswith(HISTORIES):
                continue
            is_hash = raw.type(key) == b"hash"
            value = raw.hgetall(key) if is_hash else raw.dump(key)
            if is_hash:
                value.pop(b"error", None)
            dumped[key] = value
        return dumped


def _address(client: redis.Redis) -> dict[str, Any]:
    options = client.connection_pool.connection_kwargs
    return {"port": options["port"], "db": options["db"]}


@EVERY_KIND_OF_LOCK
def test_bad_entries_are_kept_out_of_the_way_and_the_good_run(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    write_bad_ones(client)
    before = dump_all(client)
    write_raw(client, "good", score=2, schedule=SELDOM)
    # large ones have turns of their own
    eventually(lambda: (scheduler.tick(), all(field(client, name, "error") for name in HASHES))[1])
    assert sent_names(broker) == ["good"]
    client.delete("redbeat:good")
    client.zrem(SCHEDULE, "redbeat:good")
    assert client.delete(NAMES.figures) == 1, "it was counted"
    assert dump_all(client) == before
    for name in HASHES:
        error = field(client, name, "error")
        assert len(error["reason"]) < 300, name
        assert name not in BAD_DEFINITIONS or "definition" in error["reason"], error
        assert datetime.fromisoformat(error["since"]).tzinfo, name
    for name in HASHES | OTHER_TYPES.keys():
        pause = (score_of(client, name) or 0) - server_now(client)
        assert scheduler.max_interval - 10 < pause <= scheduler.max_interval, name
    assert len(errors_in(caplog)) == len(HASHES | OTHER_TYPES.keys())
    for name in HASHES | OTHER_TYPES.keys():
        words = f"invalid entry {name} (left unchanged): "
        assert any(words in message for message in errors_in(caplog)), name


def test_invalid_entries_are_logged_once(
    make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    write_bad_ones(client)
    logged = len(HASHES | OTHER_TYPES.keys())
    first = make_scheduler(redbeat_lock_key=None)
    eventually(lambda: (first.tick(), due_count(client) == 0)[1])
    assert len(errors_in(caplog)) == logged
    size = sum(len(message) for message in errors_in(caplog))
    print(f"{logged} bad entries, {size} bytes of log")
    assert size < 300 * logged
    scheduler = make_scheduler(redbeat_lock_key=None)
    for _ in range(3):
        due_again(client)
        eventually(lambda: (scheduler.tick(), due_count(client) == 0)[1])
    # where there is no hash there is no place to note that it was logged: once for each beat
    assert len(errors_in(caplog)) == logged + len(OTHER_TYPES)
    since = field(client, "brace", "error")["since"]
    assert datetime.fromisoformat(since).timestamp() <= server_now(client)

    write_raw(client, "brace", "{another")
    eventually(lambda: (scheduler.tick(), due_count(client) == 0)[1])
    assert len(errors_in(caplog)) == logged + len(OTHER_TYPES) + 1


def test_invalid_entry_that_is_corrected_runs(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    for name in ("at-once", "later", "saved"):
        write_raw(client, name, "{oops")
    scheduler.tick()
    for name in ("at-once", "later"):
        client.hset(f"redbeat:{name}", "definition", GOOD)
    client.zadd(SCHEDULE, {"redbeat:at-once": 0})
    scheduler.tick()
    assert sent_names(broker) == ["at-once"]
    assert client.hget("redbeat:at-once", "error") is None
    # without a zadd it is tried again after max_interval, which is now
    retried_at = score_of(client, "later") or 0
    assert retried_at - server_now(client) <= scheduler.max_interval
    client.zadd(SCHEDULE, {"redbeat:later": retried_at - scheduler.max_interval})
    scheduler.tick()
    assert sent_names(broker) == ["at-once", "later"]
    assert client.hget("redbeat:later", "error") is None
    Entry("saved", "echo", 3600, app=scheduler.app).save()
    assert client.hget("redbeat:saved", "error") is None


def test_bytes_that_are_not_text_cost_their_own_entry(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    latin = '{"task": "größe", "schedule": {"__type__": "interval", "every": 60}}'.encode("latin-1")
    write_raw(client, "latin", latin, score=1)
    write_raw(client, "meta", score=1)
    client.hset("redbeat:meta", "meta", b"\xff\xfe")
    client.hset(b"redbeat:\xff", "definition", b"\xff")
    client.zadd(SCHEDULE, {b"redbeat:\xff": 1, b"gone\xfe": 1})
    write_raw(client, "good", score=2, schedule=SELDOM)
    scheduler.tick()
    assert sent_names(broker)[-1] == "good"
    raw: Any = client.execute_command("HGET", "redbeat:latin", "definition", NEVER_DECODE=True)
    assert raw == latin
    assert field(client, "meta", "error")["reason"].startswith("redbeat:meta: meta:")
    assert client.zscore(SCHEDULE, b"redbeat:\xff") > server_now(client)
    assert "\udcff" not in "".join(errors_in(caplog))


@pytest.mark.parametrize("key", [SCHEDULE, LOCK])
def test_key_of_the_schedule_with_wrong_type_is_named(
    make_scheduler: MakeScheduler, client: redis.Redis, key: str
) -> None:
    client.rpush(key, "oops")
    with pytest.raises(StoreCorrupt, match=key) as caught:
        make_scheduler().tick()
    assert isinstance(caught.value, RedBeatError)
    assert "rename or delete" in str(caught.value)
    assert client.lrange(key, 0, -1) == ["oops"]


def test_saving_an_invalid_entry_repairs_it(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_bad_ones(client)
    scheduler.tick()
    for name in HASHES:
        saved_at = server_now(client)  # it keeps its phase: the next minute may begin at any moment
        Entry(name, "echo", 60, app=scheduler.app).save()
        entry = Entry.from_key(f"redbeat:{name}", app=scheduler.app)
        assert entry.total_run_count == (3 if name in BAD_DEFINITIONS else 0), name
        assert client.hget(entry.key, "error") is None, name
        assert saved_at < (score_of(client, name) or 0) <= server_now(client) + 60, name
    for name in OTHER_TYPES:
        with pytest.raises(EntryCorrupt, match=f"redbeat:{name}.*no hash"):
            Entry(name, "echo", 60, app=scheduler.app).save()
        Entry(name, "echo", 60, app=scheduler.app).delete()
        Entry(name, "echo", 60, app=scheduler.app).save()
    assert sent_names(broker) == []


# -- large entries


MEBIBYTE = 1024 * 1024


MAX_BYTES = 20_000


FIELDS = ["definition", "meta", "policy"]


def write_large(client: redis.Redis, name: str, which: str = "definition", size: int = MAX_BYTES) -> None:
    """An entry that is due, and larger than allowed by one of its fields."""
    write_raw(client, name, schedule=SELDOM, score=None)
    client.hset(f"redbeat:{name}", which, json.dumps({"note": "x" * size}))
    client.zadd(SCHEDULE, {f"redbeat:{name}": 1})


def write_canary(client: redis.Redis) -> None:
    write_raw(client, "canary", schedule={"__type__": "interval", "every": 1}, score=server_now(client))


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("which", FIELDS)
def test_entry_that_is_too_large_is_quarantined_and_the_others_run(
    make_scheduler: MakeScheduler,
    settings: dict[str, Any],
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    which: str,
) -> None:
    scheduler = make_scheduler(redbeat_max_entry_bytes=MAX_BYTES, **settings)
    write_large(client, "large", which)
    write_raw(client, "good", schedule=SELDOM, score=2)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    reason = field(client, "large", "error")["reason"]
    assert re.search(r"large: it has [\d,]+ bytes, and redbeat_max_entry_bytes allows 20,000: store", reason)
    assert len(errors_in(caplog)) == 1
    assert (score_of(client, "large") or 0) > server_now(client)
    assert len(client.hget("redbeat:large", which) or "") > MAX_BYTES, "it is kept as it is"
    client.zadd(SCHEDULE, {"redbeat:large": 1})
    scheduler.tick()
    assert len(errors_in(caplog)) == 1, "said once"


def test_saving_an_entry_that_is_too_large_is_refused(make_app: MakeApp, client: redis.Redis) -> None:
    app = make_app(redbeat_max_entry_bytes=MAX_BYTES)
    sentence = r"large: it has [\d,]+ bytes, and redbeat_max_entry_bytes allows 20,000"
    large = Entry("large", "echo", 60, args=["x" * MAX_BYTES], app=app)
    with pytest.raises(EntryError, match=sentence):
        large.save()
    with pytest.raises(EntryError, match=sentence):
        Entry.save_many([Entry("good", "echo", 60, app=app), large])
    small = Entry("large", "echo", 60, app=app).save()
    with pytest.raises(EntryError, match=sentence):
        small.update(kwargs={"data": "ü" * MAX_BYTES})
    assert not field(client, "large", "definition")["args"]


def test_entries_of_five_megabytes_delay_no_other(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    for number in range(5):
        write_raw(client, f"large-{number}", schedule=SELDOM, score=1 + number, args=["x" * 5_000_000])
    scheduler = make_scheduler(redbeat_max_entry_bytes=8 * MEBIBYTE)
    waits = []
    while scheduler.tick() == 0:
        write_raw(client, "canary", schedule=SELDOM, score=server_now(client))
        sent = broker.llen("celery")
        scheduler.tick()
        waits.append(broker.llen("celery") - sent)
        assert json.loads(broker.lindex("celery", 0))["headers"]["redbeat_entry"] == "canary"
    assert max(waits) <= 3, "one batch has a few of them, and the canary"
    assert broker.llen("celery") == 5 + len(waits)


# -- entries that are expensive to compute, and members without a hash


@pytest.fixture(autouse=True)
def _known_kind() -> None:
    know_spinning()


@EVERY_KIND_OF_LOCK
def test_endless_rule_is_postponed_and_then_quarantined(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    write_raw(client, "hostile", score=1, schedule=SPINNING)
    write_raw(client, "good", score=2)
    began = server_now(client)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    put_off = score_of(client, "hostile")
    assert began < put_off <= server_now(client) + 2, "one slow moment is no reason to stop it"
    assert [record.levelname for record in caplog.records if "hostile" in record.getMessage()] == ["WARNING"]
    eventually(lambda: server_now(client) > put_off)
    scheduler.tick()
    error = field(client, "hostile", "error")
    assert "redbeat:hostile" in error["reason"]
    assert "too expensive to compute" in error["reason"]
    assert error["due"] == "1", "its run isn't lost"
    assert (score_of(client, "hostile") or 0) > server_now(client) + scheduler.max_interval - 10
    assert sum("too expensive" in record.getMessage() for record in caplog.records) == 2


@EVERY_KIND_OF_LOCK
def test_many_slow_entries_delay_no_other(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, settings: dict[str, Any]
) -> None:
    """Counted in batches: a good one waits for the end of the one that is planned, however many are slow."""
    slow = {**SPINNING, "seconds": 0.005}
    now = server_now(client)
    for number in range(40):
        write_raw(client, f"slow-{number}", score=now - 50 + number / 10, schedule=slow)
    scheduler = make_scheduler(redbeat_batch_size=10, **settings)
    scheduler.tick()
    batches = 1
    assert 0 < len(sent_names(broker)) <= 10
    for number in range(4):
        write_raw(client, f"good-{number}", score=now - 10 + number)
        for _ in range(1 if number else 2):
            scheduler.tick()
            batches += 1
        assert f"good-{number}" in sent_names(broker)
    while len(sent_names(broker)) < 44 and batches < 50:
        scheduler.tick()
        batches += 1
    assert len(set(sent_names(broker))) == len(sent_names(broker)) == 44, "nothing is lost or doubled"


def test_saving_an_endless_rule_is_refused(app: Celery, client: redis.Redis) -> None:
    entry = Entry("hostile", "echo", spinning(app=app), app=app)
    for save in (entry.save, lambda: Entry.save_many([entry])):
        with pytest.raises(EntryError, match=r"redbeat:hostile: .*too expensive to compute") as caught:
            save()
        assert isinstance(caught.value, EntryTooExpensive)
    assert not client.exists("redbeat:hostile")
    Entry("slow", "echo", spinning(0.001, app=app), app=app).save()
    assert client.exists("redbeat:slow")


@pytest.mark.few_cases(1)
@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("member", ["redbeat:gone-%d", "foreign:%d"])
def test_thousands_of_members_without_a_hash_delay_no_entry(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    member: str,
) -> None:
    count = 5_000
    client.zadd(SCHEDULE, {member % number: 1 for number in range(count)})
    write_raw(client, "canary", schedule=SELDOM, score=server_now(client))
    scheduler.tick()
    assert sent_names(broker) == ["canary"], "it is looked for beyond them"
    ticks = 1

    def are_removed() -> bool:
        nonlocal ticks
        ticks += client.zcount(SCHEDULE, 0, server_now(client)) > 0  # each has a second to appear
        scheduler.tick()
        return client.zcard(SCHEDULE) == 1

    eventually(are_removed)
    print(f"{ticks} ticks")
    assert ticks < 30
    lines = errors_in(caplog)
    assert all(line.startswith("beat: Failed to load") and ", removing" in line for line in lines)
    assert len(lines) < 40
    assert sum(map(len, lines)) < 20_000


# -- a request that is too large ends its connection


LIMIT_BYTES = 1024 * 1024


#: in a message it is a third longer
LARGE = "x" * 900_000


PATIENT = {"redbeat_redis_options": {"retry_period": -1}}


@pytest.fixture
def narrow(valkey: Server) -> Iterator[Proxy]:
    """A proxy in front of the server, which ends connections with requests of more than a megabyte."""
    with Proxy((valkey.host, valkey.port)) as proxy:
        proxy.cut_beyond(LIMIT_BYTES)
        yield proxy


def keeps_sending(broker: redis.Redis, name: str = "canary", more: int = 3) -> None:
    """Wait for some more runs of an entry that is due each second."""
    reached = sent_names(broker).count(name)
    eventually(lambda: sent_names(broker).count(name) >= reached + more, 30, message="it has stopped")


@pytest.mark.slow
@pytest.mark.few_cases(1)
@EVERY_KIND_OF_LOCK
def test_message_that_breaks_the_connection_costs_its_own_entry(
    narrow: Proxy, valkey: Server, tmp_path: Path, settings: dict[str, Any]
) -> None:
    with valkey.client(db=1) as client, valkey.client() as broker:
        names = write_burst(client, 20)
        write_raw(client, "large", score=5.5, schedule=SELDOM, args=[LARGE])
        options = {"redbeat_redis_url": narrow.url(valkey.url(1)), **PATIENT, **settings}
        with run_beat(tmp_path, narrow.url(valkey.url(0)), **options) as beat:
            write_canary(client)
            eventually(lambda: client.hget("redbeat:large", "error"), 30)
            keeps_sending(broker)
            assert field(client, "large", "error")["attempts"] >= 1
            assert "connection ends each time" in field(client, "large", "error")["reason"]
            assert "large" not in sent_names(broker)
            narrow.cut_beyond(None)
            retry_now(client, "large")
            eventually(lambda: "large" in sent_names(broker), 30)
            assert beat.is_running
        sent = [message["headers"] for message in messages(broker)]
        assert len({one["id"] for one in sent}) == len(sent), "one was doubled"
        counted = [name for name in sent_names(broker) if name != "canary"]
        assert sorted(counted) == sorted([*names, "large"])
        assert not client.hexists("redbeat:large", "error")
