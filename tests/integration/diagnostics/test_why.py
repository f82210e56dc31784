"""`why` about entries in Redis: what a beat has recorded of a run, and how messages are sent."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatScheduler
from tests.conftest import MakeApp
from tests.support.command_line import call
from tests.support.schedule import SCHEDULE, messages, meta_json, monitoring, server_now, write_raw
from tests.support.servers import Server

Answer = Callable[..., dict[str, Any]]
HOURLY = {"__type__": "crontab", "minute": "0"}


@pytest.fixture
def answer(app: Celery) -> Answer:
    """Return what `celery redbeat why --json` answers."""

    def run(*arguments: str, app: Celery = app) -> dict[str, Any]:
        done = call(app, "why", *arguments, "--json")
        assert done.exit_code == 0, done.output
        document: dict[str, Any] = json.loads(done.output)
        return document

    return run


def hour(client: redis.Redis, ago: int = 0) -> datetime:
    """The latest full hour by the server's clock, or so many before it."""
    now = datetime.fromtimestamp(server_now(client), timezone.utc)
    return now.replace(minute=0, second=0, microsecond=0) - timedelta(hours=ago)


def write_hourly(client: redis.Redis, due: datetime, **fields: Any) -> None:
    """The entry `report`: it has run the hour before, and is due at `due`."""
    meta = meta_json(due - timedelta(hours=1), 5)
    write_raw(client, "report", score=due.timestamp() + 1e-3, meta=meta + " ", schedule=HOURLY, **fields)
    client.zadd(SCHEDULE, {"redbeat:report": due.timestamp()})


def test_sent_run_is_found_by_its_due_time(
    answer: Answer, app: Celery, client: redis.Redis, broker: redis.Redis, scheduler: RedBeatScheduler
) -> None:
    write_hourly(client, hour(client))
    scheduler.tick()
    found = answer("report")
    [message] = messages(broker)
    assert (found["verdict"], found["at"]) == ("sent", hour(client).isoformat())
    assert found["run"]["task_id"] == message["headers"]["id"]
    shown = call(app, "why", "report").output
    assert shown.startswith(f"report at {hour(client):%Y-%m-%d %H}:00:00 UTC: sent, it was sent")
    assert message["headers"]["id"] in shown


def test_unsent_and_quarantined_runs_have_their_reason(
    answer: Answer, client: redis.Redis, scheduler: RedBeatScheduler
) -> None:
    write_hourly(client, hour(client), options={"serializer": "yml"})
    scheduler.tick()
    failed = answer("report")
    assert (failed["verdict"], "No encoder installed for yml" in failed["reason"]) == ("unsent", True)
    assert "tried again at" in failed["reason"]
    client.flushdb()
    write_raw(client, "report", "{}", score=hour(client).timestamp())
    scheduler.tick()
    for at in ([], ["--at", hour(client).isoformat()]):
        assert answer("report", *at)["verdict"] == "quarantined"


def test_why_only_reads(
    server: Server, answer: Answer, client: redis.Redis, scheduler: RedBeatScheduler
) -> None:
    write_hourly(client, hour(client))
    scheduler.tick()
    answer("report")
    with monitoring(server, with_scripts=True) as commands:
        answer("report")
    asked = {command.split()[0].upper() for command in commands if "redbeat" in command}
    assert asked <= {
        "EVALSHA", "TYPE", "EXISTS", "HMGET", "HSTRLEN", "ZSCORE", "GET", "PTTL", "LRANGE", "HGETALL",
        "ZCOUNT", "ZRANGE", "ZRANGEBYSCORE",
    }  # fmt: skip


def test_all_reasons_against_compiled_messages_are_named(
    make_app: MakeApp, client: redis.Redis, answer: Answer
) -> None:
    app = make_app(redbeat_templates=False, task_send_sent_event=True, task_compression="zlib")
    write_raw(client, "entry", schedule=HOURLY, options={"task_id": "one", "countdown": 5})
    assert answer("entry", app=app)["messages"]["reason"] == (
        "redbeat_templates is False; task_send_sent_event is set; task_compression is 'zlib'; "
        "the option 'task_id'; the option 'countdown'"
    )


def test_scheduler_of_the_setting_is_judged(make_app: MakeApp, client: redis.Redis, answer: Answer) -> None:
    app = make_app(beat_scheduler=f"{__name__}.ShopScheduler")
    write_raw(client, "entry", schedule=HOURLY)
    reason = f"{__name__}.ShopScheduler overrides apply_async"
    assert answer("entry", app=app)["messages"] == {"compiled": False, "reason": reason}


class ShopScheduler(RedBeatScheduler):
    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply_async(*args, **kwargs)
