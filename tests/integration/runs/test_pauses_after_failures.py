"""An entry that fails as often in a row as its policy says is paused, as it is then, and that is told."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any
from unittest.mock import Mock

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.config.config import ensure_conf
from redbeat.errors import LockLost
from redbeat.scheduler.reports import Reports
from redbeat.scheduler.supervision import pause_failing
from redbeat.store.records import Fence
from redbeat.store.store import Store
from tests.support.logs import errors_in, warnings_in
from tests.support.progress import NAMES, Progress
from tests.support.schedule import LOCK, field, sent_names
from tests.support.ticks import leader

KEY = NAMES.about("job").entry


def fail(progress: Progress, times: int) -> None:
    """Let runs fail, one after the other."""
    for _ in range(times):
        number = progress.leases
        delivery = progress.started("job", f"id-{number}", 1000.0 + number, pause=3)
        progress.end(delivery, "failed", error=f"ValueError: no {number}")


def save_failing(app: Celery, progress: Progress, **policy: Any) -> Entry:
    """An entry that has failed three times, as often as it may."""
    entry = Entry("job", "echo", 3600, app=app, pause_after_failures=3, **policy).save()
    fail(progress, 3)
    return entry


def look(app: Celery, fence: Fence = Fence()) -> None:  # noqa: B008 - immutable
    pause_failing(Store(app), Reports(ensure_conf(app)), Entry, fence, [KEY])


def pauses_told(client: redis.Redis) -> list[dict[str, Any]]:
    found: Any = client.xrange(NAMES.events)
    events = [{**json.loads(values["details"]), **values} for _, values in found if "details" in values]
    return [one for one in events if one["event"] == "entry_paused"]


def test_it_is_paused_with_a_note_that_says_why(
    progress: Progress, app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    save_failing(app, progress)
    look(app)
    entry = Entry.get("job", app)
    assert (entry.enabled, entry.state, entry.paused_by) == (False, "paused", "redbeat")
    assert entry.pause_note == "paused after 3 failures in a row; the last: ValueError: no 2"
    assert entry.paused_until is None
    assert entry.pause_after_failures == 3
    [told] = pauses_told(client)
    assert (told["entry"], told["note"], told["by"]) == ("job", entry.pause_note, "redbeat")
    assert warnings_in(caplog) == [f"beat: Paused job: {entry.pause_note}"]


def test_it_goes_on_by_itself_after_resume_after(
    progress: Progress, app: Celery, client: redis.Redis
) -> None:
    save_failing(app, progress, resume_after=3600)
    look(app)
    until = Entry.get("job", app).paused_until
    assert until is not None
    assert timedelta(minutes=59) < until - datetime.now(timezone.utc) <= timedelta(minutes=61)
    assert pauses_told(client)[0]["until"] == until.isoformat()


def test_when_it_is_resumed_counting_starts_anew(progress: Progress, app: Celery) -> None:
    save_failing(app, progress)
    look(app)
    assert progress.failing("job") == [0]
    Entry.get("job", app).resume()
    progress.settle()
    for failures, is_enabled in ((2, True), (1, False)):
        fail(progress, failures)
        look(app)
        assert Entry.get("job", app).enabled is is_enabled


def test_one_that_somebody_has_paused_keeps_their_note(
    progress: Progress, app: Celery, client: redis.Redis
) -> None:
    save_failing(app, progress)
    Entry.get("job", app).pause("the printer is broken", by="ann")
    look(app)
    entry = Entry.get("job", app)
    assert (entry.pause_note, entry.paused_by) == ("the printer is broken", "ann")
    assert [one["by"] for one in pauses_told(client)] == ["ann"]
    assert progress.failing("job") == [0], "when it is resumed, it counts from the beginning"


@pytest.mark.parametrize("change", ["delete", "no limit", "a higher limit"])
def test_one_that_was_deleted_or_given_another_policy_stays_as_it_is(
    progress: Progress, app: Celery, client: redis.Redis, change: str
) -> None:
    entry = save_failing(app, progress)
    if change == "delete":
        entry.delete()
    else:
        entry.update(pause_after_failures=None if change == "no limit" else 4)
    look(app)
    assert bool(client.exists(KEY)) == (change != "delete")
    assert change == "delete" or Entry.get("job", app).enabled
    assert pauses_told(client) == []


def test_a_change_that_comes_in_between_isnt_overwritten(progress: Progress, app: Celery) -> None:
    save_failing(app, progress)
    changes = [{"args": [7], "jitter": 5}]

    class Slow(Entry):
        def plan_save(self, *args: Any) -> Any:
            while changes:
                Entry.get("job", app).update(**changes.pop())
            return super().plan_save(*args)

    pause_failing(Store(app), Reports(ensure_conf(app)), Slow, Fence(), [KEY])
    entry = Entry.get("job", app)
    assert (entry.args, entry.jitter, entry.paused_by) == ([7], 5, "redbeat")


def test_one_that_can_not_be_read_is_left_alone_and_said(
    progress: Progress, app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    save_failing(app, progress)
    client.hset(KEY, "definition", "{oops")
    look(app)
    assert client.hget(KEY, "definition") == "{oops"
    [error] = errors_in(caplog)
    assert "can't be paused" in error


def test_a_beat_that_does_not_lead_pauses_nobody(
    progress: Progress, app: Celery, client: redis.Redis
) -> None:
    save_failing(app, progress)
    client.set(LOCK, "another")
    with pytest.raises(LockLost):
        look(app, Fence(LOCK, "mine", 1000))
    assert Entry.get("job", app).enabled
    assert progress.failing("job") == [3]


def test_a_pause_that_was_not_told_of_is_told_of_again(
    progress: Progress, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_failing(app, progress)
    with monkeypatch.context() as patched:
        killed = Mock(side_effect=KeyboardInterrupt)
        patched.setattr("redbeat.scheduler.supervision.add_paused_events", killed)
        with pytest.raises(KeyboardInterrupt):
            look(app)
    assert not Entry.get("job", app).enabled
    assert pauses_told(client) == []
    look(app)
    [told] = pauses_told(client)
    assert told["note"] == "paused after 3 failures in a row; the last: ValueError: no 2"
    assert field(client, "job", "policy")["pause_note"] == told["note"]
    assert progress.failing("job") == [0]


def test_the_run_that_waited_isnt_sent_when_the_entry_is_paused(
    progress: Progress, app: Celery, client: redis.Redis, broker: redis.Redis
) -> None:
    Entry("job", "echo", 3600, app=app, pause_after_failures=1, overlap="buffer_one").save()
    delivery = progress.started("job", "id-1", 1000.0, pause=1, overlap="buffer_one")
    progress.wait("job", 2000.0)
    progress.end(delivery, "failed", error="ValueError: no")
    with leader(app) as scheduler:
        for _ in range(4):
            scheduler.tick()
    assert not Entry.get("job", app).enabled
    assert sent_names(broker) == []
    assert not client.exists(NAMES.about("job").running, NAMES.deadlines)
    Entry.get("job", app).resume()
    assert Entry.get("job", app).state == "scheduled"


@pytest.mark.parametrize("deleted", ["before", "after"])
def test_an_entry_that_is_deleted_leaves_no_failures_to_one_of_its_name(
    progress: Progress, app: Celery, client: redis.Redis, deleted: str
) -> None:
    entry = Entry("job", "echo", 3600, app=app, pause_after_failures=3).save()
    delivery = progress.started("job", "id-1")
    if deleted == "before":
        entry.delete()
    progress.end(delivery, "failed", error="ValueError: no")
    assert progress.failing("job") == [1]
    if deleted == "after":
        entry.delete()
    with leader(app) as scheduler:
        scheduler.tick()
    assert not client.exists(NAMES.about("job").failing, NAMES.deadlines)
