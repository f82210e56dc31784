"""No entry delays another: invalid ones, large and expensive ones, and requests that break the connection."""

from __future__ import annotations

import json
import re
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import BaseSchedule

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.decoder import RedBeatJSONDecoder
from redbeat.errors import EntryCorrupt, EntryError, RedBeatError, StoreCorrupt
from redbeat.leadership.heartbeat import what_hangs
from redbeat.schedules.occurrences import register_schedule
from redbeat.store.records import Fence
from redbeat.store.schedule import fetch_due
from redbeat.store.store import Store
from tests.conftest import MakeApp
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.bad_entries import BAD_DEFINITIONS, BAD_METAS, HOSTILE_RULES
from tests.support.deadlines import patience
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
from tests.support.scripts import SCRIPTS
from tests.support.servers import Server

#: name to the command that puts something else where the hash should be
OTHER_TYPES: dict[str, tuple[Any, ...]] = {
    "string": ("SET", "redbeat:string", "oops"),
    "list": ("RPUSH", "redbeat:list", "oops"),
    "zset": ("ZADD", "redbeat:zset", 1, "oops"),
    "set": ("SADD", "redbeat:set", "oops"),
    "stream": ("XADD", "redbeat:stream", "*", "a", "b"),
}


HASHES = BAD_DEFINITIONS.keys() | BAD_METAS.keys()


def write_bad_ones(client: redis.Redis, score: float = 1) -> None:
    for name, definition in BAD_DEFINITIONS.items():
        write_raw(client, name, definition, score=score, meta=meta_json(datetime(2024, 1, 1), 3))
    for name, meta in BAD_METAS.items():
        write_raw(client, name, score=score, meta=meta)
    for name, command in OTHER_TYPES.items():
        client.execute_command(*command)
        client.zadd(SCHEDULE, {f"redbeat:{name}": score})


HISTORIES = b"redbeat::history:"

HOURLY = {"task": "echo", "schedule": {"__type__": "interval", "every": 3600}}


def dump_all(server: Server) -> dict[str, Any]:
    """Every key of the schedule as bytes, but for the errors noted, histories, the lock and its tick."""
    with server.client(db=1, decode_responses=False) as raw:
        dumped: dict[str, Any] = {}
        for key in raw.keys("redbeat:*"):
            if key in (SCHEDULE.encode(), LOCK.encode(), TICK.encode()) or key.startswith(HISTORIES):
                continue
            dumped[key] = raw.hgetall(key) if raw.type(key) == b"hash" else raw.dump(key)
            if isinstance(dumped[key], dict):
                dumped[key].pop(b"error", None)
        return dumped


@EVERY_KIND_OF_LOCK
def test_bad_entries_are_kept_out_of_the_way_and_the_good_run(
    scheduler: RedBeatScheduler,
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    write_bad_ones(client)
    before = dump_all(server)
    write_raw(client, "good", score=2, schedule=SELDOM)
    # large ones have turns of their own
    eventually(lambda: (scheduler.tick(), all(field(client, name, "error") for name in HASHES))[1])
    assert sent_names(broker) == ["good"]
    client.delete("redbeat:good")
    client.zrem(SCHEDULE, "redbeat:good")
    assert client.delete(NAMES.figures) == 1, "it was counted"
    assert dump_all(server) == before
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
    def tick_all(scheduler: RedBeatScheduler) -> int:
        """Let all be due, tick until none is, and return how many errors have been logged."""
        client.zadd(SCHEDULE, dict.fromkeys(client.zrange(SCHEDULE, 0, -1), 1))
        eventually(lambda: (scheduler.tick(), due_count(client) == 0)[1])
        return len(errors_in(caplog))

    write_bad_ones(client)
    logged = len(HASHES) + len(OTHER_TYPES)
    assert tick_all(make_scheduler(redbeat_lock_key=None)) == logged
    assert sum(len(message) for message in errors_in(caplog)) < 300 * logged
    scheduler = make_scheduler(redbeat_lock_key=None)
    for _ in range(3):
        # where there is no hash there is no place to note that it was logged: once for each beat
        assert tick_all(scheduler) == logged + len(OTHER_TYPES)
    write_raw(client, "brace", "{another")
    assert tick_all(scheduler) == logged + len(OTHER_TYPES) + 1


def test_invalid_entry_that_is_corrected_runs(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    names = ["at-once", "later"]
    for name in names:
        write_raw(client, name, "{oops")
    scheduler.tick()
    for name in names:
        write_raw(client, name, score=None)
    client.zadd(SCHEDULE, {"redbeat:at-once": 0})
    scheduler.tick()
    assert sent_names(broker) == ["at-once"]
    # without a zadd it is tried again after max_interval, which is now
    retried_at = score_of(client, "later") or 0
    assert retried_at - server_now(client) <= scheduler.max_interval
    client.zadd(SCHEDULE, {"redbeat:later": retried_at - scheduler.max_interval})
    scheduler.tick()
    assert sent_names(broker) == names
    assert not [name for name in names if client.hexists(f"redbeat:{name}", "error")]


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


@pytest.mark.parametrize("errors", ["ignore", "replace", "surrogateescape"])
def test_entries_keep_their_own_texts_however_a_client_decodes_the_bytes_of_another_one(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, errors: str
) -> None:
    for number, more in enumerate((b"", b"\xff\xfe\xfd", "\u00e9\u00e8".encode(), b"", b"\\u0000", b"")):
        definition = json.dumps({**HOURLY, "args": [number, "more"]}).encode().replace(b"more", more)
        write_raw(client, f"e{number}", definition, score=number + 1)
    client.hset("redbeat:e5", "policy", '{"note": "\x00"}')  # not JSON: between other texts
    scheduler = make_scheduler(redbeat_redis_options={"encoding_errors": errors})
    scheduler.tick()
    sent = [(one["headers"]["redbeat_entry"], one["headers"]["argsrepr"][1]) for one in messages(broker)]
    assert [(name, number) for name, number in sent if name != f"e{number}"] == []
    assert {"e0", "e2", "e3", "e4"} <= {name for name, _ in sent}


def test_task_id_that_is_not_utf8_is_refused_or_quarantined_and_the_others_run(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    options = {"task_id": "half \ud800"}
    with pytest.raises(EntryError, match=r"options: task_id: must be UTF-8, got 'half "):
        Entry("bad", "echo", 60, options=options, app=app).save()
    write_raw(client, "bad", score=1, options=options)
    client.hset("redbeat:bad", "policy", '{"max_runtime": 60}')
    write_raw(client, "good", score=2)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    assert "options: task_id: must be UTF-8" in field(client, "bad", "error")["reason"]


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


def test_saving_over_a_key_of_another_type_is_refused(app: Celery, client: redis.Redis) -> None:
    client.set("redbeat:entry", "mine")
    with pytest.raises(EntryCorrupt, match="redbeat:entry"):
        Entry("entry", "echo", 60, app=app).save()
    assert client.get("redbeat:entry") == "mine"


# -- large entries


MAX_BYTES = 20_000


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("which", ["definition", "meta", "policy"])
def test_entry_that_is_too_large_is_quarantined_and_the_others_run(
    make_scheduler: MakeScheduler,
    settings: dict[str, Any],
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    which: str,
) -> None:
    scheduler = make_scheduler(redbeat_max_entry_bytes=MAX_BYTES, **settings)
    write_raw(client, "large", schedule=SELDOM, score=1)
    client.hset("redbeat:large", which, json.dumps({"note": "x" * MAX_BYTES}))
    write_raw(client, "good", schedule=SELDOM, score=2)
    for _ in range(2):
        scheduler.tick()
        assert sent_names(broker) == ["good"]
        assert "redbeat_max_entry_bytes allows 20,000" in field(client, "large", "error")["reason"]
        assert len(errors_in(caplog)) == 1, "said once"
        assert (score_of(client, "large") or 0) > server_now(client)
        client.zadd(SCHEDULE, {"redbeat:large": 1})
    assert len(client.hget("redbeat:large", which) or "") > MAX_BYTES, "it is kept as it is"


def test_saving_an_entry_that_is_too_large_is_refused(make_app: MakeApp, client: redis.Redis) -> None:
    app = make_app(redbeat_max_entry_bytes=MAX_BYTES)
    large = Entry("large", "echo", 60, args=["x" * MAX_BYTES], app=app)
    small = Entry("large", "echo", 60, app=app).save()
    for save in (
        large.save,
        lambda: Entry.save_many([Entry("good", "echo", 60, app=app), large]),
        lambda: small.update(kwargs={"data": "ü" * MAX_BYTES}),
    ):
        with pytest.raises(EntryError, match=r"large: .* redbeat_max_entry_bytes allows 20,000"):
            save()
    assert not field(client, "large", "definition")["args"]


def test_large_entries_are_fetched_a_few_at_a_time_and_all_are_sent(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    names = [f"large-{number}" for number in range(5)]
    for number, name in enumerate(names):
        write_raw(client, name, schedule=SELDOM, score=1 + number, args=["x" * 3_000_000])
    scheduler = make_scheduler(redbeat_max_entry_bytes=4_000_000)
    fetched = fetch_due(Store(scheduler.app), Fence(), limit=1000).run()
    assert ([row.key for row in fetched.rows], fetched.has_more) == (
        ["redbeat:large-0", "redbeat:large-1"],
        True,
    ), "at most 8 MiB"
    eventually(lambda: scheduler.tick() > 0)
    assert sent_names(broker) == names


# -- entries that are expensive to compute, and members without a hash


@EVERY_KIND_OF_LOCK
def test_hostile_rules_delay_a_canary_by_less_than_a_second(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    for name, rule in HOSTILE_RULES.items():
        write_raw(client, name, score=1, schedule=rule)
    write_raw(client, "canary", score=2)
    began_cpu = time.thread_time()
    scheduler.tick()
    assert time.thread_time() - began_cpu < 1
    assert sent_names(broker) == ["canary"]
    for name in HOSTILE_RULES:
        error = field(client, name, "error")
        assert re.search("rrule: (too sparse|count): ", error["reason"]), name
        assert error["due"] == "1", "its run isn't lost"
        assert (score_of(client, name) or 0) > server_now(client) + scheduler.max_interval - 10


@pytest.mark.parametrize("name", HOSTILE_RULES)
def test_saving_a_hostile_rule_is_refused_and_pausing_one_is_not(
    app: Celery, client: redis.Redis, name: str
) -> None:
    rule = json.loads(json.dumps(HOSTILE_RULES[name]), cls=RedBeatJSONDecoder)
    entry = Entry("hostile", "echo", rule, app=app)
    for save in (entry.save, lambda: Entry.save_many([entry])):
        with pytest.raises(EntryError, match=r"rrule: (too sparse|count): "):
            save()
    assert not client.exists("redbeat:hostile")
    write_raw(client, "hostile", schedule=HOSTILE_RULES[name])
    Entry.get("hostile", app).pause()
    assert field(client, "hostile", "definition")["enabled"] is False


class slow(BaseSchedule):  # noqa: N801 - as Celery's are called
    """Computes for a while."""

    seconds = 0.15
    hanging = ""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        type(self).hanging = what_hangs()
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return timedelta(hours=1)


SLOW = {"__type__": "slow"}


@pytest.fixture(autouse=True)
def _known_kind() -> None:
    register_schedule("slow", slow, lambda _schedule: {}, lambda _fields: slow())


@EVERY_KIND_OF_LOCK
def test_slow_registered_schedule_runs_and_is_named_once_in_a_warning(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for tick in range(2):
        write_raw(client, "slow", score=1, schedule=SLOW)
        scheduler.tick()
        assert sent_names(broker) == ["slow"] * (tick + 1)
    events = [getattr(record, "redbeat", {}) for record in caplog.records if record.levelname == "WARNING"]
    assert [
        (event["entry"], event["schedule"]) for event in events if event.get("event") == "redbeat.entry.slow"
    ] == [("slow", "slow")]
    assert slow.hanging == "the schedule of redbeat:slow", "what is logged if it never returns"
    write_raw(client, "slow", score=1, schedule=SLOW, args=[1])
    scheduler.tick()
    assert caplog.text.count("planning slow took") == 2, "its definition has changed"


@EVERY_KIND_OF_LOCK
def test_thousands_of_members_without_a_hash_delay_no_entry(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    client.zadd(SCHEDULE, {f"{'redbeat:gone' if n % 2 else 'foreign'}-{n}": 1 for n in range(3_000)})
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
    assert ticks < 30


# -- a request that is too large ends its connection


@EVERY_KIND_OF_LOCK
def test_message_that_breaks_the_connection_costs_its_own_entry(
    make_scheduler: MakeScheduler,
    settings: dict[str, Any],
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
) -> None:
    with Proxy((server.host, server.port)) as proxy:
        urls = {"redbeat_redis_url": proxy.url(server.url(1)), "broker_url": proxy.url(server.url(0))}
        scheduler = make_scheduler(redbeat_redis_options={"retry_period": -1}, **urls, **settings)
        names = write_burst(client, 20)
        # in a message it is a third longer
        write_raw(client, "large", score=5.5, schedule=SELDOM, args=["x" * 900_000])
        proxy.cut_beyond(1024 * 1024)
        eventually(lambda: (scheduler.tick(), client.hexists("redbeat:large", "error"))[1])
        eventually(lambda: (scheduler.tick(), len(sent_names(broker)) >= 20)[1])
        assert "connection ends each time" in field(client, "large", "error")["reason"]
        proxy.cut_beyond(None)
        retry_now(client, "large")
        eventually(lambda: (scheduler.tick(), "large" in sent_names(broker))[1])
    assert sorted(sent_names(broker)) == sorted([*names, "large"]), "none was lost or doubled"
    assert not client.hexists("redbeat:large", "error")


@EVERY_KIND_OF_LOCK
def test_fetch_whose_answer_is_lost_twice_is_made_again(
    make_scheduler: MakeScheduler,
    settings: dict[str, Any],
    server: Server,
    client: redis.Redis,
    broker: redis.Redis,
) -> None:
    with Proxy((server.host, server.port)) as proxy:
        options = {"retry_period": -1}
        url = proxy.url(server.url(1))
        scheduler = make_scheduler(redbeat_redis_url=url, redbeat_redis_options=options, **settings)
        scheduler.tick()
        cut = proxy.cut_on(SCRIPTS["fetch_due"].sha1.encode(), "reply", 4)  # the client tries each twice
        scheduler.tick()
        assert cut.wait(patience())
        write_raw(client, "good", score=1)
        eventually(lambda: (scheduler.tick(), sent_names(broker) == ["good"])[1])
