"""An entry that fails as often in a row as its policy says is paused, as it is then, and that is told."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import redis
from celery import Celery

from redbeat import RedBeatSchedulerEntry as Entry
from redbeat.beat.failing import pause_failing
from redbeat.errors import LockLost
from redbeat.runs.deadlines import Action, judge
from redbeat.store.records import Fence
from redbeat.store.store import Store
from tests.support.logs import errors_in, warnings_in
from tests.support.progress import NAMES, Progress
from tests.support.schedule import LOCK, field, sent_names, write_raw
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


def test_beat_is_to_look_when_the_last_failure_has_come_and_not_before(
    progress: Progress, app: Celery
) -> None:
    save(app)
    fail(progress, 2)
    assert progress.due_deadlines() == []
    fail(progress, 1)
    [deadline] = progress.due_deadlines()
    assert judge(deadline, 2e9, 30, 1e9).action is Action.LOOK


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


def test_a_lost_run_counts_and_is_told_as_lost(progress: Progress, app: Celery) -> None:
    save(app, pause_after_failures=1)
    fail(progress, 1, "lost", most=1)
    look(app)
    note = Entry.get("job", app).pause_note or ""
    assert note.startswith("paused after a failure; the last: ")


@pytest.mark.parametrize("kept", [0, 20], ids=lambda kept: f"history={kept}")
def test_without_a_history_the_note_has_no_last_error(progress: Progress, app: Celery, kept: int) -> None:
    save(app)
    fail(progress, 3)
    if not kept:
        progress.client.delete(NAMES.about("job").history)
    look(app)
    assert ("the last" in (Entry.get("job", app).pause_note or "")) == bool(kept)


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


def test_a_success_in_between_starts_the_count_anew(progress: Progress, app: Celery) -> None:
    save(app)
    for outcome in ("failed", "failed", "succeeded", "failed", "failed"):
        fail(progress, 1, outcome)
    look(app)
    assert Entry.get("job", app).enabled
    assert progress.due_deadlines() == []


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
    has_changed = False

    class Slow(Entry):
        def plan_save(self, *args: Any) -> Any:
            nonlocal has_changed
            if not has_changed:
                has_changed = True
                Entry.get("job", app).update(args=[7], jitter=5)
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


def test_runs_that_fail_when_their_entry_is_paused_already_are_told_of_by_no_second_pause(
    progress: Progress, app: Celery, client: redis.Redis
) -> None:
    save(app)
    for _ in range(3):
        fail(progress, 3)
        look(app)
    assert not Entry.get("job", app).enabled
    assert len(pauses_told(client)) == 1
    assert progress.failing("job") == [0]


def test_many_failures_of_others_cost_one_command(progress: Progress, app: Celery) -> None:
    keys = [NAMES.about(f"entry-{number}").entry for number in range(50)]
    store = Store(app)
    trips: list[int] = []
    store.on_progress = lambda: trips.append(1)
    pause_failing(store, Entry, app, Fence(), keys)
    assert len(trips) == 1


@pytest.mark.parametrize("kept", ["failing", "history", "events"])
def test_a_key_of_another_type_keeps_no_run_from_being_sent(
    app: Celery, client: redis.Redis, broker: redis.Redis, caplog: pytest.LogCaptureFixture, kept: str
) -> None:
    save(app)
    client.set(NAMES.about("job").failing, 3)
    keys = {
        "failing": NAMES.about("job").failing,
        "history": NAMES.about("job").history,
        "events": NAMES.events,
    }
    client.delete(keys[kept])
    client.sadd(keys[kept], "of another type")
    client.zadd(NAMES.deadlines, {f"\0{NAMES.about('job').running}": 1})
    write_raw(client, "other")
    with leader(app) as scheduler:
        for _ in range(2):
            scheduler.tick()
    assert sent_names(broker) == ["other"]
    assert client.zcard(NAMES.deadlines) == 0
    assert Entry.get("job", app).enabled == (kept == "failing")
    assert errors_in(caplog) == []


def test_an_entry_whose_name_is_no_text_keeps_no_run_from_being_sent(
    app: Celery, client: redis.Redis, broker: redis.Redis, server: Server
) -> None:
    with server.client(db=1, decode_responses=False) as raw:
        raw.hset(b"redbeat:half-\x80", "definition", '{"task": "echo", "schedule": 60}')
        raw.set(b"redbeat::failing:half-\x80", 3)
        raw.zadd(NAMES.deadlines, {b"\0redbeat::running:half-\x80": 1})
    write_raw(client, "other")
    with leader(app) as scheduler:
        scheduler.tick()
    assert sent_names(broker) == ["other"]
    assert client.zcard(NAMES.deadlines) == 0


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
