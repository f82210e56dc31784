"""A name with half a character in it, as from bytes that were read wrongly: refused, alone, in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry
from redbeat.errors import EntryError, EntryNotFound
from tests.conftest import MakeApp
from tests.integration.conftest import MakeScheduler
from tests.support.schedule import SCHEDULE, STATICS, sent_names

LONE = "half-\ud800"
#: this one has a form in bytes, those that Python reads it from where it may
ESCAPED = "half-\udc80"


def entry(app: Celery, name: str) -> RedBeatSchedulerEntry:
    return RedBeatSchedulerEntry(name, "echo", 60, app=app)


CALLS: dict[str, Callable[[Celery, str], Any]] = {
    "save": lambda app, name: entry(app, name).save(),
    "save_many": lambda app, name: RedBeatSchedulerEntry.save_many([entry(app, "good"), entry(app, name)]),
    "reschedule": lambda app, name: entry(app, name).reschedule(),
    "delete": lambda app, name: entry(app, name).delete(),
    "delete_many": lambda app, name: RedBeatSchedulerEntry.delete_many([name], app=app),
    "from_key": lambda app, name: RedBeatSchedulerEntry.from_key(name, app=app),
    "rank": lambda app, name: entry(app, name).rank,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_name_that_has_no_form_in_bytes_is_an_entry_error(
    app: Celery, client: redis.Redis, call: str
) -> None:
    with pytest.raises(EntryError, match=r"half-\\ud800.* must be UTF-8"):
        CALLS[call](app, LONE)
    assert client.keys() == []


@pytest.mark.parametrize("call", ["save", "save_many"])
def test_a_name_that_is_no_utf8_is_not_saved(app: Celery, client: redis.Redis, call: str) -> None:
    with pytest.raises(EntryError, match=r"name must be UTF-8, not 'half-\\\\udc80'"):
        CALLS[call](app, ESCAPED)
    assert client.keys() == []


def test_a_key_that_is_no_utf8_can_be_deleted(app: Celery, server: Any, client: redis.Redis) -> None:
    with server.client(db=1, decode_responses=False) as raw:
        raw.hset(b"redbeat:half-\x80", mapping={"definition": "{}", "meta": "{}"})
        entry(app, ESCAPED).delete()
        assert raw.keys() == [b"redbeat::unrun"]
        assert raw.zrange("redbeat::unrun", 0, -1) == [b"half-\x80"]
    with pytest.raises(EntryNotFound):
        RedBeatSchedulerEntry.from_key("good", app=app)


@pytest.mark.parametrize("name", [LONE, ESCAPED])
def test_a_static_entry_with_such_a_name_is_skipped_alone_and_said(
    make_app: MakeApp,
    make_scheduler: MakeScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    static = {"task": "echo", "schedule": 0.01}
    app = make_app(beat_schedule={"before": static, name: static, "after": static})
    scheduler = make_scheduler(app)
    assert client.smembers(STATICS) == {"before", "after"}
    assert set(client.zrange(SCHEDULE, 0, -1)) == {"redbeat:before", "redbeat:after"}
    [said] = [record.getMessage() for record in caplog.records if "Skipped" in record.getMessage()]
    assert repr(name) in said
    said.encode()  # a log can hold it
    while not {"before", "after"} <= set(sent_names(broker)):
        scheduler.tick()
