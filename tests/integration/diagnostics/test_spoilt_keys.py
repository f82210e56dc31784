"""Keys of wrong types, twins and garbage in Redis: beat and the other entries go on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.keys import keys_of
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.apps import celery_beat, write_app
from tests.support.polling import eventually
from tests.support.schedule import LOCK, SCHEDULE, score_of, sent_names, server_now, write_raw
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
@pytest.mark.parametrize("second_score", [10, 4e9], ids=["same", "not due"])
def test_entry_scheduled_by_key_and_bare_name_runs_once(
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


def test_lock_key_of_another_type_is_logged_and_waited_out(
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


def test_definitions_of_megabytes_make_short_log_lines_and_errors(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    large, long_name = "x" * 1_000_000, "long" * 250_000
    write_raw(client, "minute", schedule={"__type__": "crontab", "minute": large * 3}, score=1)
    write_raw(client, "kind", schedule={"__type__": large}, score=1)
    write_raw(client, "task", task=[large], score=1)
    write_raw(client, "json", f'{{"task": {large}', score=1)
    write_raw(client, long_name, "{oops", score=1)
    write_raw(client, "good", score=2)
    tick_all(make_scheduler())
    assert sent_names(broker) == ["good"]
    longest = max(caplog.records, key=lambda record: len(record.getMessage()))
    assert len(longest.getMessage()) < 2000, longest.getMessage()[:200]
    assert len(caplog.records) == 5
    for name in ("minute", "kind", "task", "json", long_name):
        assert 0 < client.hstrlen(f"redbeat:{name}", "error") < 2000, name[:20]


KEYS = keys_of("redbeat:", "", "")
#: what else a program may have written, by mistake or not
WRONG: dict[str, Callable[[redis.Redis, str], object]] = {
    "string": lambda client, key: client.set(key, "oops"),
    "list": lambda client, key: client.rpush(key, "oops"),
    "zset": lambda client, key: client.zadd(key, {"oops": 1}),
}


@pytest.mark.few_cases(12)
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("moment", ["before the start", "under a leader"])
@pytest.mark.parametrize(
    "key",
    [
        *(KEYS.statics, KEYS.static_owners, KEYS.downgraded, KEYS.tick, KEYS.wake, KEYS.released),
        *(KEYS.calendar("c"), KEYS.calendar_owners, *KEYS.about("static")),
        *(KEYS.owner("x"), KEYS.singleton("x"), *KEYS.about("canary")[1:]),
        *(KEYS.about("other").entry, KEYS.deadlines, KEYS.later, KEYS.events, KEYS.figures),
    ],
)
def test_key_of_another_type_stops_no_other_entry(
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


def test_solar_entry_without_ephem_names_the_package(
    app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ephem", None)
    write_raw(client, "evening", schedule={"__type__": "solar", "event": "sunset", "lat": 52.5, "lon": 13.4})
    [entry] = Entry.list(app)
    assert "solar: it needs the package ephem: pip install ephem" in entry.problem
