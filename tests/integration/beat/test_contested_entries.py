"""An entry that changes at each of its runs is tried with pauses, and costs the others nothing."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery.signals import before_task_publish

from redbeat import RedBeatScheduler, RedBeatSchedulerEntry
from redbeat.beat.contention import MAX_TRIES
from tests.support.polling import eventually
from tests.support.schedule import (
    SELDOM,
    field,
    messages,
    meta_json,
    score_of,
    sent_names,
    server_now,
    write_raw,
)

DAILY = {"__type__": "interval", "every": 86400}


@contextmanager
def handling(handler: Callable[..., None]) -> Iterator[None]:
    before_task_publish.connect(handler)
    try:
        yield
    finally:
        before_task_publish.disconnect(handler)


def tick_until(scheduler: RedBeatScheduler, condition: Callable[[], object]) -> int:
    """Tick as beat does, until it is so; return how often."""
    ticks = 0

    def tick() -> object:
        nonlocal ticks
        ticks += 1
        time.sleep(min(scheduler.tick(), 0.05))
        return condition()

    eventually(tick, retry_on=())
    return ticks


def write_meta(client: redis.Redis, _app: Any, tries: int) -> None:
    client.hset("redbeat:own", "meta", json.dumps({"last_run_at": None, "tries": tries}))


def write_definition(client: redis.Redis, _app: Any, tries: int) -> None:
    write_raw(client, "own", schedule=DAILY, args=[tries], score=None)


def save_again(_client: redis.Redis, app: Any, tries: int) -> None:
    entry = RedBeatSchedulerEntry.from_key("own", app=app)
    entry.args = [tries]
    entry.save()


@pytest.mark.few_cases(1)
@pytest.mark.parametrize("rewrite", [write_meta, write_definition, save_again])
def test_a_handler_that_rewrites_its_entry_at_each_run_is_tried_with_pauses(
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    rewrite: Callable[[redis.Redis, Any, int], None],
) -> None:
    due_at = datetime.fromtimestamp(int(server_now(client)) - 9.5, timezone.utc)
    meta = meta_json(due_at - timedelta(days=1))
    write_raw(client, "own", schedule=DAILY, score=due_at.timestamp(), meta=meta)
    write_raw(client, "other", schedule={"__type__": "interval", "every": 0.25}, score=2)
    tries: list[float] = []

    def handler(headers: dict[str, Any], **_: Any) -> None:
        if headers["redbeat_entry"] == "own":
            tries.append(time.monotonic())
            rewrite(client, scheduler.app, len(tries))

    with handling(handler):
        ticks = tick_until(scheduler, lambda: len(tries) >= 2 * MAX_TRIES)
        retry_at = score_of(client, "own") or 0
        sent = sent_names(broker).count("other")
        tick_until(scheduler, lambda: sent_names(broker).count("other") >= sent + 4)
        assert len(tries) == 2 * MAX_TRIES or server_now(client) >= retry_at, "tries come with pauses"
    print(f"{len(tries)} tries and {ticks} ticks")
    assert tries[MAX_TRIES] - tries[MAX_TRIES - 1] > 0.9
    assert "own" not in sent_names(broker)
    told = [record.getMessage() for record in caplog.records if re.search(r"\bown\b", record.getMessage())]
    assert len(told) == 1
    assert "signal handler" in told[0]
    assert "signal handler" in field(client, "own", "error")["reason"]

    tick_until(scheduler, lambda: "own" in sent_names(broker))
    [own] = [run for run in messages(broker) if run["headers"]["redbeat_entry"] == "own"]
    assert own["headers"]["redbeat_due"] == due_at.isoformat(timespec="microseconds")
    assert field(client, "own", "error") is None


def test_an_entry_that_changes_once_while_it_is_sent_is_sent_at_once(
    scheduler: RedBeatScheduler, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    write_raw(client, "own", schedule=SELDOM, score=1)
    tries: list[int] = []

    def handler(**_: Any) -> None:
        tries.append(1)
        if len(tries) == 1:
            write_definition(client, None, 1)

    with handling(handler):
        while scheduler.tick() == 0:
            pass
    assert [run["headers"]["redbeat_entry"] for run in messages(broker)] == ["own"]
    assert len(tries) == 2
    assert "growing pauses" not in caplog.text
