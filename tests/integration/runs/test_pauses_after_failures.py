"""An entry that fails as often in a row as its policy says is paused, as it is then, and that is told."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat.failing import pause_failing
from redbeat.errors import LockLost
from redbeat.store.records import Fence
from redbeat.store.store import Store
from tests.support.apps import celery_beat, celery_worker, write_app
from tests.support.logs import errors_in, has_traceback, warnings_in
from tests.support.polling import eventually
from tests.support.progress import NAMES, Progress
from tests.support.schedule import LOCK, field, sent_names
from tests.support.servers import Server
from tests.support.ticks import leader

KEY = NAMES.about("job").entry


def save(app: Celery, **policy: Any) -> Entry:
    return Entry("job", "echo", 3600, app=app, **{"pause_after_failures": 3, **policy}).save()


def fail(progress: Progress, times: int, outcome: str = "failed", most: int = 3) -> None:
    """Let runs fail, one after the other."""
    for _ in range(times):
        number = progress.leases
        delivery = progress.started("job", f"id-{number}", 1000.0 + number, pause=most)
        progress.end(delivery, outcome, error=f"ValueError: no {number}")


def look(app: Celery, fence: Fence = Fence()) -> None:  # noqa: B008 - immutable
    pause_failing(Store(app), Entry, app, fence, [KEY])


def pauses_told(client: redis.Redis) -> list[dict[str, Any]]:
    found: Any = client.xrange(NAMES.events)
    events = [{**json.loads(values["details"]), **values} for _, values in found if "details" in values]
    return [one for one in events if one["event"] == "entry_paused"]


def test_it_is_paused_with_a_note_that_says_why(
    progress: Progress, app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    save(app)
    fail(progress, 3)
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
    save(app, resume_after=3600)
    fail(progress, 3)
    look(app)
    until = Entry.get("job", app).paused_until
    assert until is not None
    assert timedelta(minutes=59) < until - datetime.now(timezone.utc) <= timedelta(minutes=61)
    assert pauses_told(client)[0]["until"] == until.isoformat()


def test_when_it_is_resumed_counting_starts_anew(progress: Progress, app: Celery) -> None:
    save(app)
    fail(progress, 3)
    look(app)
    assert progress.failing("job") == [0]
    Entry.get("job", app).resume()
    progress.settle()
    fail(progress, 2)
    look(app)
    assert Entry.get("job", app).enabled
    fail(progress, 1)
    look(app)
    assert not Entry.get("job", app).enabled


def test_one_that_somebody_has_paused_keeps_their_note(
    progress: Progress, app: Celery, client: redis.Redis
) -> None:
    save(app)
    fail(progress, 3)
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
    entry = save(app)
    fail(progress, 3)
    if change == "delete":
        entry.delete()
    else:
        entry.update(pause_after_failures=None if change == "no limit" else 4)
    look(app)
    assert bool(client.exists(KEY)) == (change != "delete")
    assert change == "delete" or Entry.get("job", app).enabled
    assert pauses_told(client) == []


def test_a_change_that_comes_in_between_isnt_overwritten(
    progress: Progress, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(app)
    fail(progress, 3)
    changes = iter([{"args": [7], "jitter": 5}])

    class Slow(Entry):
        def plan_save(self, *args: Any) -> Any:
            for change in changes:
                Entry.get("job", app).update(**change)
            return super().plan_save(*args)

    pause_failing(Store(app), Slow, app, Fence(), [KEY])
    entry = Entry.get("job", app)
    assert (entry.args, entry.jitter, entry.paused_by) == ([7], 5, "redbeat")


def test_one_that_can_not_be_read_is_left_alone_and_said(
    progress: Progress, app: Celery, client: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    save(app)
    fail(progress, 3)
    client.hset(KEY, "definition", "{oops")
    look(app)
    assert client.hget(KEY, "definition") == "{oops"
    [error] = errors_in(caplog)
    assert "can't be paused" in error


def test_a_beat_that_does_not_lead_pauses_nobody(
    progress: Progress, app: Celery, client: redis.Redis
) -> None:
    save(app)
    fail(progress, 3)
    client.set(LOCK, "another")
    with pytest.raises(LockLost):
        look(app, Fence(LOCK, "mine", 1000))
    assert Entry.get("job", app).enabled
    assert progress.failing("job") == [3]


def test_a_pause_that_was_not_told_of_is_told_of_again(
    progress: Progress, app: Celery, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(app)
    fail(progress, 3)
    with monkeypatch.context() as patched:
        patched.setattr("redbeat.beat.failing.Events", lambda _store: 1 / 0)  # it is killed there
        with pytest.raises(ZeroDivisionError):
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
    save(app, pause_after_failures=1, overlap="buffer_one")
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
    entry = save(app)
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


TOLD = "redbeat::events-read"

#: a receiver of every signal but leader_changed, and tasks
MODULE = """
import redbeat
from redbeat import signals

redbeat.track_runs(app)


def note_all(sender, signal, entry, run=None, **arguments):
    told = {"signal": signal.name, "entry": entry, "run": vars(run) if run else None, **arguments}
    runs_client().rpush("told", json.dumps(told, default=str))


for one in signals.OF_EVENTS.values():
    one.connect(note_all)


@app.task(name="until", bind=True)
def until(self, key):
    note(self, key)
    while not runs_client().exists(key):
        time.sleep(0.05)
"""


@pytest.mark.slow
def test_signals_of_a_real_beat_and_worker_agree_with_the_runs(
    server: Server, client: redis.Redis, broker: redis.Redis, app: Celery, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), extra=MODULE)
    with celery_worker(tmp_path, "module", concurrency=4), celery_beat(tmp_path, "module") as beat:
        eventually(lambda: client.exists(TOLD))
        Entry("good", "echo", 0.1, one_off=True, app=app).save()
        by_hand = Entry("by hand", "echo", 3600, app=app).save().trigger().id
        # the next run is sent when the last one has ended, so that it is three that fail
        policy: dict[str, Any] = {"overlap": "skip", "pause_after_failures": 3, "resume_after": 3600}
        Entry("bad", "fail", 1, app=app, **policy).save()
        Entry("slow", "until", 1, args=["go"], overlap="skip", max_runtime=3, app=app).save()
        eventually(lambda: told(broker, "slow", "run_overdue"))
        broker.set("go", 1)
        eventually(lambda: told(broker, "slow", "run_ended") and told(broker, "bad", "entry_paused"))
        eventually(lambda: len(told(broker, "good")) == 3 and len(told(broker, "by hand")) == 2)
        assert not has_traceback(beat.output()), beat.output()

    sent, started, ended = told(broker, "good")
    assert [one["signal"] for one in (sent, started, ended)] == ["run_sent", "run_started", "run_ended"]
    assert len({(one["run"]["task_id"], one["run"]["due"]) for one in (sent, started, ended)}) == 1
    assert (ended["run"]["outcome"], ended["run"]["attempt"]) == ("succeeded", 1)
    assert {one["run"]["task_id"] for one in told(broker, "by hand")} == {by_hand}
    entry = Entry.get("bad", app)
    [paused] = told(broker, "bad", "entry_paused")
    assert (paused["note"], paused["until"]) == (entry.pause_note, str(entry.paused_until))
    assert 3 <= len(told(broker, "bad", "run_ended")) <= 4, "one may have been on its way"
    [begun, *_], [overdue, *_] = told(broker, "slow", "run_started"), told(broker, "slow", "run_overdue")
    assert overdue["run"]["task_id"] == begun["run"]["task_id"]
    [skipped, *_] = told(broker, "slow", "run_skipped")
    assert begun["run"]["task_id"] in skipped["run"]["why"]


def told(broker: redis.Redis, entry: str, signal: str = "") -> list[dict[str, Any]]:
    found: Any = broker.lrange("told", 0, -1)
    return [one for one in map(json.loads, found) if one["entry"] == entry and signal in ("", one["signal"])]
