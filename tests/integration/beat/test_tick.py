"""One tick after another, on real servers: what is sent, what is recorded, what it costs."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import crontab, schedule

from redbeat import RedBeatScheduler
from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.keys import Keys
from redbeat.store.records import Claimed, Clear, Commit, Fence
from redbeat.store.scripts import commit_runs
from redbeat.task_ids import task_id_of
from tests.integration.conftest import EVERY_KIND_OF_LOCK, MakeScheduler
from tests.support.polling import eventually
from tests.support.schedule import (
    LOCK,
    SCHEDULE,
    SELDOM,
    field,
    messages,
    meta_json,
    monitoring,
    score_of,
    sent_dues,
    sent_names,
    server_now,
    write_raw,
)
from tests.support.servers import Server


def tick_all(scheduler: RedBeatScheduler) -> float:
    """Tick until nothing is due; return the delay of the last tick."""
    while not (delay := scheduler.tick()):
        pass
    return delay


@EVERY_KIND_OF_LOCK
def test_a_due_run_is_sent_once_and_says_whose_it_is(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    due = server_now(client) - 5
    write_raw(client, "entry", args=[1], kwargs={"a": 2}, options={"headers": {"mine": "x"}}, score=due)
    delay = scheduler.tick()
    assert tick_all(scheduler) == pytest.approx(delay, abs=1)
    assert delay == pytest.approx(min(3595, scheduler.max_interval), abs=2)
    (message,) = messages(broker)
    headers = message["headers"]
    assert (headers["task"], headers["redbeat_entry"], headers["mine"]) == ("echo", "entry", "x")
    [sent_due] = sent_dues(broker)
    assert (sent_due.timestamp(), sent_due.utcoffset()) == (pytest.approx(due, abs=1e-5), timedelta())
    assert score_of(client, "entry") == pytest.approx(due + 3600, abs=1e-5)
    assert field(client, "entry", "meta")["total_run_count"] == 1
    assert field(client, "entry", "definition")["options"] == {"headers": {"mine": "x"}}


@EVERY_KIND_OF_LOCK
def test_an_interval_keeps_its_phase_over_fifty_late_runs(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    start = int(server_now(client)) - 10_000_000.5  # a whole second would be read as 2.x's
    write_raw(client, "entry", schedule={"__type__": "interval", "every": 700_000}, score=start)
    scheduler.tick()
    phase = start % 700_000
    for late in range(50):
        assert (score_of(client, "entry") or 0) % 700_000 == pytest.approx(phase, abs=1e-3)
        # the nominal time that was due up to a whole interval ago
        nominal = start + 700_000 * int((server_now(client) - start - late * 13_999) // 700_000)
        client.zadd(SCHEDULE, {"redbeat:entry": nominal})
        scheduler.tick()
    assert len(messages(broker)) == 51
    due = score_of(client, "entry") or 0
    assert server_now(client) < due <= server_now(client) + 700_000
    last = Entry.from_key("redbeat:entry", app=scheduler.app).last_run_at
    assert last.timestamp() == pytest.approx(due - 700_000, abs=1e-3)


@EVERY_KIND_OF_LOCK
def test_missed_runs_are_made_up_for_by_one(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    week_ago = server_now(client) - 7 * 86_400
    write_raw(client, "interval", score=week_ago)
    write_raw(client, "crontab", schedule={"__type__": "crontab", "minute": "*/10"}, score=week_ago + 1)
    tick_all(scheduler)
    assert sent_names(broker) == ["interval", "crontab"]
    assert week_ago + 7 * 86_400 < (score_of(client, "crontab") or 0) <= server_now(client) + 600


def test_an_entry_that_counts_negative_never_runs(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_raw(client, "never", score=-1)
    assert scheduler.tick() == scheduler.max_interval
    assert (messages(broker), score_of(client, "never")) == ([], -1)


def test_a_disabled_entry_is_not_sent_nor_read_again_for_a_minute(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, server: Server
) -> None:
    now = server_now(client)
    write_raw(client, "off", schedule={"__type__": "interval", "every": 1}, score=now, enabled=False)
    assert 59 <= scheduler.tick() <= 61
    assert now + 59 <= (score_of(client, "off") or 0) <= server_now(client) + 61
    assert client.hget("redbeat:off", "meta") is None
    with monitoring(server) as commands:
        scheduler.tick()
    assert len(commands) == 1
    assert messages(broker) == []


def test_an_entry_enabled_again_runs_without_a_restart(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    soon = {"schedule": {"__type__": "interval", "every": 3600}}
    for name in ("saved", "raw"):
        write_raw(client, name, enabled=False, meta=meta_json(datetime(2024, 1, 1), 2), **soon)
    scheduler.tick()
    assert messages(broker) == []
    write_raw(client, "raw", enabled=True, **soon)
    Entry("saved", "echo", schedule(1e-3), app=scheduler.app).save()
    eventually(lambda: (scheduler.tick(), len(messages(broker)) >= 2)[1])
    assert sorted(sent_names(broker)[:2]) == ["raw", "saved"]


def test_a_pause_that_is_over_is_taken_away_with_the_first_run_after_it(
    scheduler: RedBeatScheduler, app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    now = server_now(client)
    until = datetime.fromtimestamp(now - 2, timezone.utc)
    write_raw(client, "entry", enabled=False, score=now - 1)
    policy = {"paused": True, "pause_note": "n", "paused_until": until.isoformat(), "jitter": 0.5}
    client.hset("redbeat:entry", "policy", json.dumps(policy))
    assert [entry.name for entry in Entry.list(app, enabled=True)] == ["entry"]
    assert (Entry.count(app, enabled=True), Entry.count(app, enabled=False)) == (1, 0)
    tick_all(scheduler)
    assert sent_names(broker) == ["entry"]
    assert field(client, "entry", "definition")["enabled"] is True
    assert field(client, "entry", "policy") == {"jitter": 0.5}
    entry = Entry.get("entry", app)
    assert (entry.enabled, entry.paused, entry.pause_note, entry.paused_until) == (True, False, None, None)


@pytest.mark.parametrize("changed", ["definition", "policy"])
def test_an_entry_that_is_changed_as_its_pause_ends_stays_as_it_was_changed(
    client: redis.Redis, changed: str
) -> None:
    score = str(int(server_now(client)) - 1)
    client.zadd(SCHEDULE, {"redbeat:entry": score})
    client.hset("redbeat:entry", mapping={"definition": "d", "policy": "p"})
    claimed = Claimed("redbeat:entry", score, "d", None, "p", score=score)
    ended = Commit(
        claimed, new_score="4000000000", new_meta="m", new_definition="new", new_policy=Clear.FIELD
    )
    client.hset("redbeat:entry", changed, "another")
    before = client.hgetall("redbeat:entry")
    assert commit_runs(client, Keys(), Fence(), [ended]).results == [True]  # the run is recorded
    digest = hashlib.sha1(b"m").hexdigest()
    assert client.hgetall("redbeat:entry") == {**before, "meta": "m", "meta_sha1": digest}
    assert client.zscore(SCHEDULE, "redbeat:entry") == 4e9


def test_a_member_that_is_a_bare_name_is_rewritten_and_runs(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    write_raw(client, "bare", score=None)
    client.zadd(SCHEDULE, {"bare": 0})
    scheduler.tick()
    assert sent_names(broker) == ["bare"]
    assert client.zrange(SCHEDULE, 0, -1) == ["redbeat:bare"]


def test_a_batch_is_no_larger_than_set_and_the_oldest_go_first(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    scheduler = make_scheduler(redbeat_batch_size=4)
    for number in reversed(range(10)):
        write_raw(client, f"entry-{number}", score=1 + number, schedule=SELDOM)
    sizes = []
    while not scheduler.tick():
        sizes.append(len(messages(broker)))
    assert sizes == [4, 8]
    assert sent_names(broker) == [f"entry-{number}" for number in range(10)]


def test_an_idle_tick_is_one_round_trip_and_a_batch_two(
    make_scheduler: MakeScheduler, client: redis.Redis, server: Server
) -> None:
    scheduler = make_scheduler(broker_url="memory://")
    write_raw(client, "first")
    scheduler.tick()  # the scripts and the connection are there now
    with monitoring(server) as idle:
        scheduler.tick()
    for number in range(100):
        write_raw(client, f"entry-{number}")
    with monitoring(server) as batch:
        scheduler.tick()
    assert ([command.split()[0] for command in idle], len(batch)) == (["EVALSHA"], 2)
    assert field(client, "entry-99", "meta")["total_run_count"] == 1


def test_every_dispatch_goes_through_apply_async(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    class Counting(RedBeatScheduler):
        names: tuple[str, ...] = ()

        def apply_async(self, entry: Any, *args: Any, **kwargs: Any) -> Any:
            self.names += (entry.name,)
            return super().apply_async(entry, *args, **kwargs)

    scheduler = make_scheduler(scheduler=Counting)
    write_raw(client, "ticked")
    scheduler.tick()
    write_raw(client, "maybe", meta=meta_json(datetime(2024, 1, 1)), score=1e10)
    scheduler.maybe_due(Entry.from_key("redbeat:maybe", app=scheduler.app))
    assert scheduler.names == ("ticked", "maybe")
    assert [message["headers"]["task"] for message in messages(broker)] == ["echo", "echo"]
    assert field(client, "maybe", "meta")["total_run_count"] == 1


def test_the_schedule_property_shows_the_due_window(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    for name, score in {"due": 1.0, "next": 4e9, "later": 5e9}.items():
        write_raw(client, name, score=score)
    write_raw(client, "bad", "{oops")
    assert set(scheduler.schedule) == {"due", "next"}


def test_a_crontab_is_recorded_as_of_its_run(scheduler: RedBeatScheduler, client: redis.Redis) -> None:
    Entry("cron", "echo", crontab(minute="0"), app=scheduler.app).save()
    client.zadd(SCHEDULE, {"redbeat:cron": 60})
    scheduler.tick()
    read = Entry.from_key("redbeat:cron", app=scheduler.app)
    assert read.last_run_at.timestamp() == pytest.approx(server_now(client), abs=10)
    assert read.score == score_of(client, "cron")


@EVERY_KIND_OF_LOCK
def test_each_run_that_was_asked_for_by_a_zero_has_a_time_and_an_id_of_its_own(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    for _ in range(2):
        client.delete("redbeat:entry")
        write_raw(client, "entry", score=0)
        scheduler.tick()
    sent = [message["headers"] for message in messages(broker)]
    assert [headers["id"] for headers in sent] == [
        task_id_of("redbeat:entry", headers["redbeat_due"]) for headers in sent
    ]
    assert len({headers["id"] for headers in sent}) == 2


def test_a_zero_is_written_over_with_the_time_so_that_a_second_try_has_the_same_id(
    make_scheduler: MakeScheduler, client: redis.Redis, broker: redis.Redis
) -> None:
    class Ending(RedBeatScheduler):
        def apply_async(self, *args: Any, **kwargs: Any) -> Any:
            raise KeyboardInterrupt

    write_raw(client, "entry", score=0)
    before = server_now(client)
    with pytest.raises(KeyboardInterrupt):
        make_scheduler(scheduler=Ending).tick()
    asked_at = score_of(client, "entry") or 0
    assert before <= asked_at <= server_now(client)
    client.delete(LOCK)
    make_scheduler().tick()
    assert [due.timestamp() for due in sent_dues(broker)] == pytest.approx([asked_at], abs=1e-5)
