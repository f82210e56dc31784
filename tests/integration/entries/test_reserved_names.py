"""An entry called like a key of RedBeat's own would overwrite it: it is refused, and harmless when raw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import EntryError, StoreCorrupt
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.schedule import SCHEDULE, field, score_of, sent_names, server_now, write_raw

NAMES = pytest.mark.parametrize("name", [":schedule", ":statics", ":wake", ":lock", "mine"])


@pytest.fixture(params=["mine", "redbeat:mine"])
def lock_key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def app(make_app: MakeApp, lock_key: str) -> Celery:
    return make_app(redbeat_lock_key=lock_key)


def entry(app: Celery, name: str) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry(name, "echo", 60, app=app)


WRITES: list[Callable[[Celery, str], Any]] = [
    lambda app, name: entry(app, name).save(),
    lambda app, name: entry(app, name).delete(),
    lambda app, name: RedBeatSchedulerEntry.save_many([entry(app, name)]),
    lambda app, name: RedBeatSchedulerEntry.delete_many([name], app=app),
    lambda app, name: RedBeatSchedulerEntry.delete_many([f"redbeat:{name}"], app=app),
]


@NAMES
@pytest.mark.parametrize("write", WRITES, ids=["save", "delete", "save_many", "delete_many", "by key"])
def test_no_entry_may_have_the_name_of_a_key_of_our_own(
    app: Celery, client: redis.Redis, write: Callable[[Celery, str], Any], name: str
) -> None:
    client.set("redbeat:mine", "a token")
    with pytest.raises(EntryError, match=f"can't be called '{name}': that key is RedBeat's own"):
        write(app, name)
    assert (client.keys(), client.get("redbeat:mine")) == (["redbeat:mine"], "a token")


def test_another_apps_lock_is_a_name_like_any_other(make_app: MakeApp) -> None:
    app = make_app()
    assert entry(app, "mine").save().rank == 0
    assert RedBeatSchedulerEntry.delete_many(["mine"], app=app) == 1


def test_a_static_entry_with_such_a_name_is_skipped_and_said(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    static = {"task": "echo", "schedule": 60}
    app.conf.beat_schedule = {"mine": static, "good": static}
    scheduler = make_scheduler(app)
    assert scheduler.lock is not None
    assert client.get("redbeat:mine") == scheduler.lock.token
    assert client.zrange(SCHEDULE, 0, -1) == ["redbeat:good"]
    [said] = [record.getMessage() for record in caplog.records if "Skipped" in record.getMessage()]
    assert "that key is RedBeat's own" in said


def test_a_raw_member_with_such_a_name_is_put_off_and_the_others_run(
    app: Celery,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
) -> None:
    scheduler = make_scheduler(app)
    client.zadd(SCHEDULE, {"redbeat:mine": 1})
    write_raw(client, "good")
    scheduler.tick()
    assert scheduler.lock is not None
    assert client.get("redbeat:mine") == scheduler.lock.token
    assert sent_names(broker) == ["good"]
    assert (score_of(client, "mine") or 0) > server_now(client)
    [said] = [record.getMessage() for record in caplog.records if "Quarantined" in record.getMessage()]
    assert "invalid entry mine (left unchanged): a key of RedBeat's own is not an entry" in said


def test_a_raw_hash_under_the_locks_key_is_named(
    app: Celery, make_scheduler: MakeScheduler, client: redis.Redis
) -> None:
    write_raw(client, "mine")
    with pytest.raises(StoreCorrupt, match="redbeat:mine holds something that is no string"):
        make_scheduler(app)
    assert field(client, "mine", "definition")["name"] == "mine"
