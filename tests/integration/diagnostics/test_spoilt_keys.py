"""Keys and members that hold something else than RedBeat wrote, and values of megabytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat.errors import StoreCorrupt
from redbeat.keys import keys_of
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    SELDOM,
    STATICS,
    score_of,
    sent_names,
    server_now,
    write_raw,
)
from tests.support.servers import Server

HOURLY = {"task": "echo", "schedule": 3600}


def tick_all(scheduler: RedBeatScheduler) -> int:
    """Tick until nothing is due; return how many ticks said that more is due."""
    for number in range(100):
        if scheduler.tick():
            return number
    raise AssertionError("there is always more due")


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("first", ["key", "name"])
@pytest.mark.parametrize("second_score", [20, 10, 4e9], ids=["later", "same", "not due"])
def test_an_entry_under_its_key_and_its_bare_name_runs_once(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    settings: dict[str, Any],
    first: str,
    second_score: float,
) -> None:
    write_raw(client, "twin", score=None)
    members = ["redbeat:twin", "twin"] if first == "key" else ["twin", "redbeat:twin"]
    client.zadd(SCHEDULE, dict(zip(members, (10, second_score), strict=True)))
    scheduler = make_scheduler(**settings)
    tick_all(scheduler)
    assert sent_names(broker) == ["twin"]
    assert server_now(client) < (score_of(client, "twin") or 0) <= server_now(client) + 3600
    stray = client.zscore(SCHEDULE, "twin")
    assert stray is None or stray == second_score > server_now(client)


@EVERY_KIND_OF_LOCK
@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 20])
def test_twins_in_a_batch_leave_nothing_due_behind(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    settings: dict[str, Any],
    batch_size: int,
) -> None:
    names = [f"entry-{number}" for number in range(6)]
    for number, name in enumerate(names):
        write_raw(client, name, score=10 + 2 * number, schedule=SELDOM)
        client.zadd(SCHEDULE, {name: 9 + 2 * number + 2 * (number % 2)})  # before its key, or after it
    scheduler = make_scheduler(redbeat_batch_size=batch_size, **settings)
    ticks = tick_all(scheduler)
    assert sent_names(broker) == names
    assert client.zrange(SCHEDULE, 0, -1) == [f"redbeat:{name}" for name in names]
    assert ticks <= 12 // batch_size + 1


@EVERY_KIND_OF_LOCK
def test_reserved_names_among_the_statics_delete_nothing(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, settings: dict[str, Any]
) -> None:
    write_raw(client, "dynamic", score=1)
    client.sadd(STATICS, ":schedule", ":statics", ":lock", ":wake", "gone")
    scheduler = make_scheduler(beat_schedule={"hourly": HOURLY}, **settings)
    assert client.zrange(SCHEDULE, 0, -1) == ["redbeat:dynamic", "redbeat:hourly"]
    assert "hourly" in client.smembers(STATICS)
    assert "gone" not in client.smembers(STATICS)
    tick_all(scheduler)
    assert sent_names(broker) == ["dynamic"]


def test_a_string_where_the_statics_should_be_is_one_line_and_the_rest_runs(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), beat_schedule={"x": HOURLY})
    client.set(STATICS, "oops")
    write_raw(client, "dynamic", schedule={"__type__": "interval", "every": 0.2})
    with celery_beat(tmp_path, "module") as beat:
        eventually(lambda: sent_names(broker).count("dynamic") >= 5)
        lines = [line for line in beat.output().splitlines() if STATICS in line]
        assert len(lines) == 1, lines
        assert "beat_schedule isn't stored" in lines[0]
    assert client.get(STATICS) == "oops"


def test_a_hash_where_the_lock_should_be_is_named_and_waited_out(
    server: Server, client: redis.Redis, broker: redis.Redis, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1))
    write_raw(client, "dynamic", schedule={"__type__": "interval", "every": 0.2})
    with celery_beat(tmp_path, "module") as beat:
        eventually(lambda: "dynamic" in sent_names(broker))
        with client.pipeline() as pipeline:
            pipeline.delete(LOCK).hset(LOCK, "a", "b").execute()
        beat.wait_for(f"Nothing can be sent: {LOCK} holds something that is no string")
        assert f"{SCHEDULE} holds" not in beat.output()
        client.delete(LOCK)
        sent = len(sent_names(broker))
        eventually(lambda: len(sent_names(broker)) > sent)
        assert beat.output().count("Nothing can be sent") == 1


def test_statics_come_back_after_a_flush_between_claim_and_commit(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    class Flushed(RedBeatScheduler):
        def apply_async(self, entry: Any, **kwargs: Any) -> Any:
            client.flushdb()
            return super().apply_async(entry, **kwargs)

    scheduler = make_scheduler(scheduler=Flushed, beat_schedule={"hourly": HOURLY})
    client.zadd(SCHEDULE, {"redbeat:hourly": 1.5})
    for _ in range(3):
        scheduler.tick()
    assert client.smembers(STATICS) == {"hourly"}
    assert client.zrange(SCHEDULE, 0, -1) == ["redbeat:hourly"]


def test_a_tick_under_a_lock_that_is_no_string_says_so(
    make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    scheduler = make_scheduler()
    client.delete(LOCK)
    client.hset(LOCK, "a", "b")
    with pytest.raises(StoreCorrupt, match="is no string") as caught:
        scheduler.tick()
    assert caught.value.key == LOCK


def _schedule(text: str) -> str:
    return f'{{"task": "echo", "schedule": {text}}}'


#: name to a definition of megabytes
LARGE: dict[str, str] = {
    "minute": _schedule(json.dumps({"__type__": "crontab", "minute": "x" * 3_000_000})),
    "minutes": _schedule(json.dumps({"__type__": "crontab", "minute": "99," * 300_000 + "1"})),
    "every-digits": _schedule(f'{{"__type__": "interval", "every": {"9" * 1_000_000}}}'),
    "every-text": _schedule(json.dumps({"__type__": "interval", "every": "9" * 1_000_000})),
    "kind": _schedule(json.dumps({"__type__": "x" * 1_000_000})),
    "weekday": _schedule(json.dumps({"__type__": "rrule", "freq": 3, "byweekday": ["x" * 1_000_000]})),
    "zone": _schedule(json.dumps({"__type__": "datetime", "timezone": "x" * 1_000_000})),
    "args": json.dumps(
        {"task": "echo", "schedule": {"__type__": "interval", "every": 9}, "args": "x" * 10**6}
    ),
    "task": json.dumps({"task": ["x" * 10**6], "schedule": {"__type__": "interval", "every": 9}}),
    "json": '{"task": ' + "x" * 1_000_000,
}


def test_megabytes_of_garbage_make_short_lines_and_short_errors(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, definition in LARGE.items():
        write_raw(client, name, definition, score=1)
    write_raw(client, "long" * 250_000, "{oops", score=1)
    write_raw(client, "good", score=2)
    tick_all(make_scheduler())
    assert sent_names(broker) == ["good"]
    longest = max(caplog.records, key=lambda record: len(record.getMessage()))
    assert len(longest.getMessage()) < 2000, longest.getMessage()[:200]
    assert len(caplog.records) == len(LARGE) + 1
    for name in (*LARGE, "long" * 250_000):
        assert 0 < client.hstrlen(f"redbeat:{name}", "error") < 2000, name[:20]


def test_statics_of_megabytes_that_cannot_be_stored_make_short_lines(
    make_app: Callable[..., Celery], caplog: pytest.LogCaptureFixture
) -> None:
    large = {"task": "echo", "schedule": 60, "kwargs": {"at": {"__type__": "datetime", "year": "x" * 10**6}}}
    RedBeatScheduler(make_app(redbeat_lock_key=None, beat_schedule={"large": large})).close()
    (record,) = caplog.records
    assert "the entry 'large'" in record.getMessage()
    assert len(record.getMessage()) < 2000


PUT_AWAY = "redbeat::downgraded"


@pytest.mark.parametrize(
    "text", ["nan", "-nan", "1e999", "0x7fffffff", "1e", "", " static", "\x1b[31m", "1 2"]
)
def test_whatever_stands_for_a_score_in_what_was_put_away_the_entry_comes_back_and_beat_goes_on(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    text: str,
) -> None:
    write_raw(client, "canary", score=1)
    write_raw(client, "away", score=None)
    client.hset(PUT_AWAY, "redbeat:away", text)
    tick_all(make_scheduler())
    assert sorted(sent_names(broker)) == ["away", "canary"]
    assert not client.exists(PUT_AWAY)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(warnings) == 1, warnings
    assert "are due now" in warnings[0]
    assert "away" in warnings[0]


@pytest.mark.parametrize("text", ["9e9", "9000000000.5", "+9000000000", "inf"])
def test_a_score_that_a_zset_takes_comes_back_as_it_was(
    make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    write_raw(client, "away", score=None)
    client.hset(PUT_AWAY, "redbeat:away", text)
    make_scheduler()
    assert score_of(client, "away") == float(text)
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


KEYS = keys_of("redbeat:", "", "")
#: what else a program may have written, by mistake or not
WRONG: dict[str, Callable[[redis.Redis, str], object]] = {
    "string": lambda client, key: client.set(key, "oops"),
    "list": lambda client, key: client.rpush(key, "oops"),
    "zset": lambda client, key: client.zadd(key, {"oops": 1}),
}


@pytest.mark.few_cases(44)
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("moment", ["before the start", "under a leader"])
@pytest.mark.parametrize(
    "key",
    [
        *(KEYS.statics, KEYS.static_owners, KEYS.downgraded, KEYS.tick, KEYS.wake, KEYS.released),
        *(KEYS.calendar("c"), KEYS.calendar_owners, *KEYS.about("static")),
        *(KEYS.owner("x"), KEYS.singleton("x"), *KEYS.about("canary")[1:]),
        KEYS.about("other").entry,
    ],
)
def test_a_key_of_another_type_silences_nobody_else(
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    key: str,
    kind: str,
    moment: str,
) -> None:
    def spoil() -> None:
        client.delete(key)
        WRONG[kind](client, key)

    if moment == "before the start":
        spoil()
    # whoever is due and isn't spoilt himself: one more each time
    write_raw(client, "canary", score=1)
    scheduler = make_scheduler(beat_schedule={"static": {**HOURLY, "exclude": "c"}}, redbeat_history=3)
    tick_all(scheduler)
    if moment == "under a leader":
        spoil()
    client.zadd(SCHEDULE, {"redbeat:other": 1, "redbeat:static": 1})
    for number in range(2):
        write_raw(client, f"later-{number}", score=1)
        tick_all(scheduler)
    assert {"canary", "later-0", "later-1"} <= set(sent_names(broker))
    left_out = [text for text in caplog.messages if "the rest goes on" in text]
    is_told = moment == "before the start" and key in (KEYS.statics, KEYS.static_owners)
    assert len(left_out) == is_told, left_out
