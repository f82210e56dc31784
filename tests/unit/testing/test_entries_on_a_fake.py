"""What users' unit tests do with entries: any broker, and a fake that is injected or takes redis-py's
place.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any
from unittest.mock import patch

import fakeredis
import pytest
from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.calendars import Calendar
from redbeat.config import RedBeatConfig, ensure_conf
from redbeat.connection import get_redis
from redbeat.errors import ConfigurationError, EntryNotFound
from redbeat.manifest.format import read_file
from redbeat.manifest.plan import apply_plan, make_plan
from redbeat.schedulers import RedBeatScheduler

BROKERS: list[Any] = [
    "memory://", "amqp://", "pyamqp://guest@localhost//", "sqs://", "filesystem://", "kafka://h", "sqla+sqlite:///x",
    "http://h/", None, "", "nonsense", "://", "foo://bar", "redis://[", "redis://h:port", "redis://h/no-number",
    ["amqp://a//", "amqp://b//"], "amqp://a//;amqp://b//", [None], 5, b"amqp://", (),
]  # fmt: skip


def app_on(broker: Any, client: Any = None) -> Celery:
    app = Celery("users-tests", broker=broker, set_as_current=False)
    if client is not None:
        app.redbeat_redis = client
    return app


@pytest.mark.parametrize("broker", BROKERS, ids=repr)
def test_whatever_the_broker_is_the_configuration_can_be_read(broker: Any) -> None:
    app = app_on(broker)
    assert RedBeatConfig(app).schedule_key == "redbeat::schedule"
    assert ensure_conf(app) is app.redbeat_conf
    assert Entry("report", "proj.report", 60, app=app).key == "redbeat:report"
    with pytest.raises(ConfigurationError, match=r"redbeat_redis_url"):
        get_redis(app)


@pytest.mark.parametrize("options", [{"retry_period": "never"}, {"retry_period": -5}])
def test_options_of_another_kind_of_broker_may_mean_anything(options: dict[str, Any]) -> None:
    app = app_on("sqs://")
    app.conf.broker_transport_options = options
    assert RedBeatConfig(app).redbeat_redis_options == {}
    app.conf.broker_url = "redis://"
    with pytest.raises(ConfigurationError, match="broker_transport_options"):
        RedBeatConfig(app)


@pytest.mark.parametrize("broker", ["memory://", "amqp://", "redis://h"])
@pytest.mark.parametrize("replaced", ["redis.Redis.from_url", "redis.StrictRedis.from_url"])
def test_a_fake_in_the_place_of_from_url_is_used(broker: str, replaced: str) -> None:
    fake, app = fakeredis.FakeRedis(decode_responses=True), app_on(broker)
    with patch(replaced, return_value=fake):
        Entry("report", "proj.report", 60, app=app).save()
    assert fake.exists("redbeat:report")


@pytest.mark.parametrize("decodes", [True, False])
@pytest.mark.parametrize("broker", ["memory://", "amqp://", None])
def test_all_that_an_entry_can_do_it_does_on_an_injected_fake(broker: Any, decodes: bool) -> None:
    app = app_on(broker, fakeredis.FakeRedis(decode_responses=decodes))
    wake = app.redbeat_redis.pubsub()
    wake.subscribe("redbeat::wake")
    long_text = "x" * 10_000  # longer texts are compared by their SHA-1
    entry = Entry("report", "proj.report", crontab("30", "7"), args=["ann", long_text], app=app).save()
    assert any(message["type"] == "message" for message in iter(wake.get_message, None)), "beat is woken"

    found = Entry.get("report", app)
    assert (found.task, found.args, found.state) == ("proj.report", ["ann", long_text], "scheduled")
    assert [one.name for one in Entry.list(app)] == ["report"]
    assert Entry.count(app) == 1
    assert entry.rank == 0
    found.args = ["bob", long_text]
    found.save(if_unchanged=True)
    assert Entry.from_key("redbeat:report", app).args[0] == "bob"
    found.update(kwargs={"a": 1})
    found.pause("not now", by="me", until=datetime(2100, 1, 1, tzinfo=timezone.utc))
    assert Entry.get("report", app).state == "paused"
    found.resume()
    assert Entry.get("report", app).enabled
    ran_at = datetime(2026, 1, 1, tzinfo=timezone.utc)
    found.reschedule(ran_at)
    assert Entry.get("report", app).last_run_at == ran_at
    assert found.history() == []
    assert found.running() == []

    Calendar("holidays", ["2026-12-25"], app=app).save()
    assert Calendar.change("holidays", ["2026-12-26"], app=app).days.keys() == {"2026-12-25", "2026-12-26"}
    off = Entry("off", "proj.off", timedelta(days=1), exclude="holidays", overlap="skip", app=app)
    assert Entry.save_many([off, found]).new == ("off",)
    assert Entry.delete_many(["off"], app) == 1
    file = "entries: {sync: {task: a, schedule: {every: 5m}}, long: {task: b, schedule: {every: 1h}, args: [%s]}}"  # noqa: E501
    for is_new in (True, False):
        plan = apply_plan(lambda: make_plan(app, read_file(file % long_text), "me"))
        assert bool(plan) == is_new
    found.delete()
    with pytest.raises(EntryNotFound):
        Entry.get("report", app)
    Entry.clear(app)
    assert Entry.count(app) == 0


def test_a_beat_goes_by_calendars_on_a_fake(fake_app: Celery) -> None:
    """Which asks the server for the SHA-1 of each, and a fake has none."""
    fake_app.conf.redbeat_lock_key = None
    Calendar("holidays", ["2026-12-25"], app=fake_app).save()
    entry = Entry("report", "proj.report", 60, exclude="holidays", app=fake_app).save()
    fake_app.redbeat_redis.zadd("redbeat::schedule", {entry.key: 0})
    scheduler = RedBeatScheduler(fake_app)
    scheduler.tick()
    scheduler.tick()
    scheduler.close()
    assert [run.outcome for run in entry.history()] == ["sent"]
