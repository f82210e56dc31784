"""Whatever stands in Redis: beat stays up, good entries run on time, bad ones are kept and reported once."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
import redis

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.errors import EntryCorrupt, RedBeatError, StoreCorrupt
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.bad_entries import BAD_DEFINITIONS, BAD_METAS
from tests.support.logs import errors_in
from tests.support.polling import eventually
from tests.support.progress import NAMES
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    SELDOM,
    TICK,
    field,
    meta_json,
    score_of,
    sent_names,
    server_now,
    write_raw,
)

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


@pytest.mark.parametrize(
    "fields",
    [
        {"options": {"queue": "redbeat::generation"}},
        {"meta": "{x"},
        {"definition": "{"},
        {"schedule": {"__type__": "interval", "every": 0}},
    ],
    ids=["queue", "meta", "definition", "schedule"],
)
def test_a_quarantined_entry_has_one_line_and_does_not_slow_its_task_down(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    fields: dict[str, Any],
) -> None:
    caplog.set_level("INFO")
    write_raw(client, "bad", **fields)
    write_raw(client, "good", schedule=SELDOM)
    scheduler.tick()
    assert sent_names(broker) == ["good"]
    [told] = [one for one in caplog.messages if "bad" in one]
    assert "uarantined" in told
    assert not told.endswith("..")


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


def test_they_are_logged_once_and_not_again_by_the_next_beat(
    make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    write_bad_ones(client)
    make_scheduler(redbeat_lock_key=None).tick()
    logged = len(errors_in(caplog))
    size = sum(len(message) for message in errors_in(caplog))
    print(f"{logged} bad entries, {size} bytes of log")
    assert size < 300 * logged
    scheduler = make_scheduler(redbeat_lock_key=None)
    for _ in range(3):
        due_again(client)
        scheduler.tick()
    # where there is no hash there is no place to note that it was logged: once for each beat
    assert len(errors_in(caplog)) == logged + len(OTHER_TYPES)
    since = field(client, "brace", "error")["since"]
    assert datetime.fromisoformat(since).timestamp() <= server_now(client)

    write_raw(client, "brace", "{another")
    scheduler.tick()
    assert len(errors_in(caplog)) == logged + len(OTHER_TYPES) + 1


def test_a_bad_one_that_is_corrected_runs(
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


def test_a_rule_that_ended_is_no_error_and_never_runs_again(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    ended = {"__type__": "rrule", "freq": 4, "dtstart": 1_577_836_800, "dtstart_tz": 0, "count": 2}
    write_raw(client, "ended", schedule=ended, score=1_577_923_200)
    scheduler.tick()
    assert sent_names(broker) == ["ended"]  # its last run was missed, and made up for
    assert (score_of(client, "ended"), client.hget("redbeat:ended", "error")) == (-1, None)
    assert (scheduler.tick(), errors_in(caplog)) == (scheduler.max_interval, [])


def test_bytes_that_are_no_text_harm_nobody_else(
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
def test_a_key_of_the_schedule_with_another_type_gets_a_sentence(
    make_scheduler: MakeScheduler, client: redis.Redis, key: str
) -> None:
    client.rpush(key, "oops")
    with pytest.raises(StoreCorrupt, match=key) as caught:
        make_scheduler().tick()
    assert isinstance(caught.value, RedBeatError)
    assert "rename or delete" in str(caught.value)
    assert client.lrange(key, 0, -1) == ["oops"]


@pytest.mark.few_cases(24)
@pytest.mark.parametrize("name", sorted(BAD_DEFINITIONS))
def test_reading_a_bad_one_says_what_is_wrong(
    scheduler: RedBeatScheduler, client: redis.Redis, name: str
) -> None:
    write_raw(client, name, BAD_DEFINITIONS[name])
    app = scheduler.app
    with pytest.raises(EntryCorrupt, match=f"^redbeat:{name}: definition: .") as caught:
        Entry.from_key(f"redbeat:{name}", app=app)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value)) < 300
    json.dumps(str(caught.value))


def test_saving_over_a_bad_one_repairs_it(
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


def test_a_hash_without_a_definition_is_kept_and_says_so(
    scheduler: RedBeatScheduler, client: redis.Redis
) -> None:
    client.hset("redbeat:half", "meta", "{}")
    client.zadd(SCHEDULE, {"redbeat:half": 1})
    scheduler.tick()
    assert "no field 'definition'" in field(client, "half", "error")["reason"]
    assert client.hget("redbeat:half", "meta") == "{}"


def test_a_time_outside_all_years_is_told_as_one(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    rule = {"__type__": "rrule", "freq": 3, "dtstart": -62135596800, "dtstart_tz": 0}
    write_raw(client, "early", score=1, schedule=rule)
    client.hset("redbeat:early", "policy", json.dumps({"timezone": "America/New_York"}))
    write_raw(client, "endless", score=1, schedule={"__type__": "interval", "every": 1e300})
    make_scheduler(redbeat_lock_key=None).tick()
    reason = field(client, "early", "error")["reason"]
    assert reason.startswith("redbeat:early: one of its times is outside the years 1 to 9999")
    assert "every: 1e+300 seconds is no length of time" in field(client, "endless", "error")["reason"]
