"""What the scripts make of a run: begun, renewed, ended, given up, each as the server has it."""

from __future__ import annotations

import json
import random
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import cycle, product
from typing import Any

import pytest
import redis

from redbeat.errors import RedBeatError
from redbeat.runs.deadlines import Action, judge
from redbeat.runs.event import arguments_of
from redbeat.store.records import Fence, Held, TrackedRun
from redbeat.store.run_record import RunRecord, State
from redbeat.store.runs import Answer, Delivery
from tests.support.progress import LEASE_MS, NAMES, Progress
from tests.support.schedule import SCHEDULE

SINCE = datetime(2000, 1, 1, tzinfo=timezone.utc)


def is_holding(run: RunRecord) -> bool:
    """Whether it keeps the next run of its entry from starting, as commit_runs decides."""
    return run.state is not State.ENDED and not run.is_overdue and not run.is_reserved


def nothing_is_left(progress: Progress) -> bool:
    return not progress.client.exists(NAMES.about("job").running, NAMES.deadlines)


@pytest.mark.parametrize("outcome", ["succeeded", "failed", "superseded"])
def test_a_run_that_ends_leaves_its_history_and_nothing_else(progress: Progress, outcome: str) -> None:
    progress.end(progress.started("job", "id-1"), outcome, error="ValueError: no", run_seconds=2.5)
    [record] = progress.history("job")
    assert record["outcome"] == outcome
    assert (record["worker"], record["attempt"], record["ran"]) == ("celery@test", 1, 2.5)
    assert record["error"] == "ValueError: no"
    assert 0 <= record["ended"] - record["at"] < 60
    assert nothing_is_left(progress)
    started, ended = progress.events()
    assert [told["event"] for told in (started, ended)] == ["run_started", "run_ended"]
    assert {(told["entry"], told["task_id"], float(told["due"])) for told in (started, ended)} == {
        ("job", "id-1", 1000)
    }
    assert (started["worker"], started["attempt"], ended["outcome"]) == ("celery@test", 1, outcome)


def test_run_of_a_signal_is_that_of_the_history(progress: Progress, client: redis.Redis) -> None:
    delivery = progress.started("job", "id-1", max=10)
    progress.settle(at=progress.now + 11)
    progress.end(delivery, "failed", error="ValueError: no", run_seconds=2.5)
    found: Any = client.xrange(NAMES.events)
    started, overdue, ended = [arguments_of(fields, NAMES)["run"] for _, fields in found]
    [record] = progress.history("job")
    assert (ended.task_id, ended.due.timestamp(), ended.attempt) == ("id-1", record["due"], record["attempt"])
    assert (ended.outcome, ended.error) == (record["outcome"], record["error"])
    assert (ended.worker, ended.run_seconds) == (record["worker"], record["ran"])
    assert (started.task_id, started.worker, overdue.is_overdue) == ("id-1", record["worker"], True)
    assert started.started_at == overdue.started_at


def test_an_end_that_is_told_twice_counts_once(progress: Progress) -> None:
    delivery = progress.started("job", "id-1")
    for _ in range(2):
        progress.end(delivery, "failed", error="ValueError: no")
    assert "late" not in progress.history("job")[0]
    assert progress.failing("job") == [1]
    assert len(progress.runs.failures(SINCE, 10)) == 1
    assert len(progress.events("run_ended")) == 1


def test_the_wait_on_the_queue_is_from_when_it_was_sent(progress: Progress, client: redis.Redis) -> None:
    progress.send("job", "id-1")
    record = progress.running("job")["id-1"]
    record["sent"] = f"{progress.now - 40:.6f}"
    client.hset(NAMES.about("job").running, "id-1", json.dumps(record))
    progress.begin(delivery := progress.delivery("job", "id-1"))
    progress.end(delivery, "succeeded")
    assert 40 <= progress.history("job")[0]["wait"] < 60


def test_failures_in_a_row_are_counted_until_a_success(progress: Progress) -> None:
    for number, (outcome, expected) in enumerate(
        [("failed", 1), ("failed", 2), ("ignored", 2), ("failed", 3), ("succeeded", 0), ("failed", 1)]
    ):
        progress.end(progress.started("job", f"id-{number}", 1000 + number), outcome)
        assert progress.failing("job", "other") == [expected, 0]
    failed = [run.task_id for run in progress.runs.failures(SINCE, 10)]
    assert failed == ["id-5", "id-3", "id-1", "id-0"]
    assert progress.runs.failures(datetime.now(timezone.utc) + timedelta(hours=1), 10) == []


def test_a_retry_keeps_the_run_until_its_time_and_its_time_on_the_queue(progress: Progress) -> None:
    first = progress.started("job", "id-1", queue=100)
    progress.end(first, "retrying", error="ValueError: no", retry_seconds=50)
    [record] = progress.running("job").values()
    assert (record["state"], record["attempt"]) == ("retrying", 2)
    assert progress.deadline_of("job", "id-1") == pytest.approx(progress.now + 151, abs=30)
    assert "outcome" not in progress.history("job")[0]
    second = progress.delivery("job", "id-1", attempt=2)
    assert progress.begin(second) == "go"
    progress.end(second, "succeeded")
    [record] = progress.history("job")
    assert (record["outcome"], record["attempt"]) == ("succeeded", 2)
    assert nothing_is_left(progress)


def test_a_renewal_moves_all_leases_by_one_command(progress: Progress, client: redis.Redis) -> None:
    held = [(progress.started(f"job-{number}", "id"), 1.0) for number in range(20)]
    for member, _ in list(client.zscan_iter(NAMES.deadlines)):
        client.zadd(NAMES.deadlines, {member: 1})
    client.config_resetstat()
    assert progress.runs.renew(held, LEASE_MS, "celery@test", '"pool":"solo"') == {}
    statistics: Any = client.info("commandstats")
    assert sum(found["calls"] for name, found in statistics.items() if name.startswith("cmdstat_eval")) <= 2
    now = progress.now
    for number in range(20):
        assert progress.deadline_of(f"job-{number}", "id") == pytest.approx(now + 30, abs=20)
    assert progress.runs.workers().keys() == {"celery@test"}
    assert progress.runs.workers()["celery@test"]["pool"] == "solo"
    progress.runs.forget_worker("celery@test")
    assert progress.runs.workers() == {}


def test_a_delivery_whose_run_another_one_has_begun_renews_no_lease(
    progress: Progress, client: redis.Redis
) -> None:
    first = progress.started("job", "id-1")
    [member] = client.zrange(NAMES.deadlines, 0, -1)
    client.zadd(NAMES.deadlines, {member: 1})
    assert progress.begin(progress.delivery("job", "id-1")) == "go"
    client.zadd(NAMES.deadlines, {member: 2})
    progress.runs.renew([(first, 1.0)], LEASE_MS, "celery@test")
    assert progress.deadline_of("job", "id-1") == 2


def test_a_lease_that_ran_out_is_lost_and_its_late_end_is_noted_as_such(progress: Progress) -> None:
    delivery = progress.started("job", "id-1")
    assert progress.is_mine(delivery)
    [decision] = progress.settle()
    assert (decision.action, decision.outcome) == (Action.END, "lost")
    assert progress.history("job")[0]["outcome"] == "lost"
    assert nothing_is_left(progress)
    assert not progress.is_mine(delivery)
    assert progress.runs.renew([(delivery, 1)], LEASE_MS, "w") == {}
    progress.end(delivery, "succeeded")
    [record] = progress.history("job")
    assert (record["outcome"], record["late"]) == ("lost", "succeeded")
    assert [run.outcome for run in progress.runs.failures(SINCE, 10)] == ["lost"]
    assert progress.failing("job") == [1]
    assert [one["outcome"] for one in progress.events("run_ended")] == ["lost"]
    assert nothing_is_left(progress)


def test_a_decision_about_a_run_that_was_renewed_meanwhile_does_nothing(progress: Progress) -> None:
    delivery = progress.started("job", "id-1")
    [deadline] = progress.due_deadlines()
    progress.runs.renew([(delivery, 1)], LEASE_MS, "w")
    decision = judge(deadline, progress.now, 30, 1e9)
    progress.runs.settle(Fence(), [decision.settlement(NAMES)])
    assert progress.running("job")["id-1"]["state"] == "started"


@pytest.mark.parametrize("revoke", [0, 1])
def test_a_run_that_takes_too_long_is_overdue_and_holds_nothing(progress: Progress, revoke: int) -> None:
    delivery = progress.started("job", "id-1", max=10, revoke=revoke, overlap="skip")
    assert progress.deadline_of("job", "id-1") == pytest.approx(progress.now + 10, abs=8)
    [decision] = progress.settle(at=progress.now + 11)
    assert decision.action is Action.OVERDUE
    [[run]] = progress.runs.read(["redbeat:job"])
    assert run.is_overdue
    assert not is_holding(run)
    assert run.terminate == ("overdue" if revoke else None)
    assert progress.deadline_of("job", "id-1") == pytest.approx(progress.now + 30, abs=8)
    assert len(progress.events("run_overdue")) == 1
    progress.end(delivery, "succeeded")
    assert progress.history("job")[0]["outcome"] == "succeeded"


def test_the_gate_refuses_a_run_that_was_given_up_if_another_one_holds_the_entry(progress: Progress) -> None:
    progress.send("job", "id-1", 1000, overlap="skip", queue=5)
    progress.settle()
    late = progress.delivery("job", "id-1", 1000, overlap="skip")
    progress.send("job", "id-2", 2000, overlap="skip")
    assert progress.begin(late) == "superseded"
    progress.end(late, "superseded")
    record = progress.history("job")[1]
    assert (record["outcome"], "late" in record) == ("never_started", False)
    assert [*progress.running("job")] == ["id-2"]
    assert progress.failing("job") == [0]


def test_the_gate_keeps_a_second_delivery_of_a_run_at_work_waiting(progress: Progress) -> None:
    progress.started("job", "id-1", overlap="skip")
    begun = progress.runs.begin(progress.delivery("job", "id-1", overlap="skip"), LEASE_MS)
    assert begun.answer is Answer.BUSY
    assert 10 < begun.wait_seconds <= 30


@pytest.mark.parametrize("is_next_over", [False, True])
def test_a_run_that_was_replaced_before_it_began_never_begins(progress: Progress, is_next_over: bool) -> None:
    progress.send("job", "id-1", 1000, overlap="replace", terminate="replaced")
    early = progress.delivery("job", "id-1", 1000, overlap="replace")
    assert progress.begin(early) == "superseded"
    progress.end(early, "superseded")
    assert progress.history("job")[0]["outcome"] == "superseded"
    following = progress.started("job", "id-2", 2000, overlap="replace")
    if is_next_over:
        progress.end(following, "succeeded")
    late = progress.delivery("job", "id-1", 1000, overlap="replace")
    assert progress.begin(late) == "superseded"


def test_run_not_yet_recorded_by_beat_is_kept_for_its_commit(progress: Progress, client: redis.Redis) -> None:
    delivery = progress.delivery("job", "id-1")
    assert progress.begin(delivery) == "go"  # published, and not committed
    progress.end(delivery, "failed", error="ValueError: no")
    [[run]] = progress.runs.read(["redbeat:job"])
    assert (run.state, run.outcome) == (State.ENDED, "failed")
    assert len(progress.events("run_ended")) == 1
    client.lpush(NAMES.about("job").history, '{"at":1001.5,"due":1000,"id":"id-1"}')
    client.zadd(SCHEDULE, {"redbeat:job": 5e9})
    progress.settle()
    assert progress.history("job")[0]["outcome"] == "failed"
    assert progress.failing("job") == [1]
    assert len(progress.events("run_ended")) == 1
    assert nothing_is_left(progress)


def test_end_of_a_run_lets_beat_look_at_the_waiting_one(progress: Progress, client: redis.Redis) -> None:
    delivery = progress.started("job", "id-1", overlap="buffer_one")
    progress.wait("job", 2000)
    client.hset("redbeat:job", "definition", "{}")
    client.zadd(SCHEDULE, {"redbeat:job": 5e9})
    progress.end(delivery, "succeeded")
    [decision] = progress.settle(at=progress.now + 1)
    assert decision.action is Action.LOOK
    score = client.zscore(SCHEDULE, "redbeat:job")
    assert score == pytest.approx(progress.now, abs=30)
    lease = str(client.hget("redbeat:job", "lease")).split()
    assert (float(lease[0]), lease[1:]) == (score, ["2000.000000", "next", "5000000000"])
    assert "" in progress.running("job"), "the commit of the run that waits removes it"
    progress.settle(at=progress.now + 60)  # as that commit hasn't come
    assert client.hget("redbeat:job", "lease") == " ".join(lease), "it is on its way already"


def test_waiting_run_goes_if_no_other_run_is_in_progress(progress: Progress, client: redis.Redis) -> None:
    first, second = (progress.started("job", f"id-{n}", 1000 + n, overlap="buffer_one") for n in (1, 2))
    progress.wait("job")
    client.hset("redbeat:job", "definition", "{}")
    client.zadd(SCHEDULE, {"redbeat:job": 5e9})
    progress.end(first, "succeeded")
    progress.settle(at=progress.now + 1)
    assert client.zscore(SCHEDULE, "redbeat:job") == 5e9
    progress.end(second, "succeeded")
    progress.settle(at=progress.now + 1)
    assert client.zscore(SCHEDULE, "redbeat:job") < 5e9


def test_a_workflow_is_over_when_nothing_is_left_of_it(progress: Progress) -> None:
    root = progress.started("job", "root", workflow=1, overlap="skip")
    for child in ("a", "b"):
        progress.runs.note_child(root, child)
    progress.end(root, "succeeded", run_seconds=1)
    children = [progress.delivery("job", child, root="root") for child in ("a", "b")]
    assert [progress.begin(child) for child in children] == ["go", "go"]
    progress.runs.note_child(children[0], "c")
    for child in children:
        progress.end(child, "succeeded")
        assert progress.running("job")["root"]["state"] == "spawned"
        assert "outcome" not in progress.history("job")[0]
    last = progress.delivery("job", "c", root="root")
    assert progress.begin(last) == "go"
    progress.end(last, "failed", error="ValueError: no")
    assert (progress.history("job")[0]["outcome"], progress.history("job")[0]["error"]) == (
        "failed",
        "the task c: ValueError: no",
    )
    assert nothing_is_left(progress)


@pytest.mark.parametrize(("task", "said"), [("proj.part", "proj.part"), ("", "the task a")])
def test_workflow_with_a_lost_task_is_over_and_names_it(progress: Progress, task: str, said: str) -> None:
    root = progress.started("job", "root", workflow=1)
    progress.runs.note_child(root, "a", task)
    progress.end(root, "succeeded")
    progress.begin(progress.delivery("job", "a", root="root"))
    for _ in range(3):
        progress.settle()
    past = progress.history("job")[0]
    assert (past["outcome"], past["error"]) == ("failed", f"{said}: lost")
    assert nothing_is_left(progress)


# -- what comes late, or twice


@pytest.mark.parametrize("outcome", ["succeeded", "failed"])
@pytest.mark.parametrize("is_lost", [True, False])
def test_attempt_that_ends_before_the_end_of_the_one_before_is_told_counts(
    progress: Progress, is_lost: bool, outcome: str
) -> None:
    first = progress.started("job", "id-1", queue=60)
    # the next attempt was begun without asking, as Redis was away
    after = progress.delivery("job", "id-1", attempt=2, worker="celery@other")
    progress.end(after, outcome, error="ValueError: no", run_seconds=2.5)
    assert "outcome" not in progress.history("job")[0]
    assert progress.begin(after) == "over", "the question was asked long ago"
    if is_lost:
        progress.settle()
    else:
        progress.end(first, "retrying", retry_seconds=5.0)
    [record] = progress.history("job")
    expected = {"worker": "celery@other", "attempt": 2, "ran": 2.5, "error": "ValueError: no"}
    assert record.items() >= {**expected, "outcome": outcome, "delivery": after.token}.items()
    assert [one["outcome"] for one in progress.events("run_ended")] == [outcome]
    assert progress.failing("job") == [int(outcome == "failed")]
    assert nothing_is_left(progress)
    progress.end(after, outcome)
    assert "late" not in progress.history("job")[0]


def test_duplicate_delivery_that_ends_first_changes_nothing(progress: Progress) -> None:
    first = progress.started("job", "id-1", overlap="skip")
    progress.end(progress.delivery("job", "id-1"), "failed", error="ValueError: no")
    progress.end(first, "succeeded")
    assert progress.history("job")[0]["outcome"] == "succeeded"
    assert nothing_is_left(progress)
    assert progress.runs.failures(SINCE, 10) == []


@pytest.mark.parametrize("why", ["retrying", "requeued"])
def test_delivery_followed_by_another_takes_no_lease_after_the_end(progress: Progress, why: str) -> None:
    first = progress.started("job", "id-1", overlap="skip")
    progress.end(first, why)
    assert progress.begin(first) == "over"
    following = progress.delivery("job", "id-1", overlap="skip")  # replace() counts from 1 again
    assert progress.begin(following) == "go"
    assert progress.begin(first) == "over"
    assert progress.running("job")["id-1"]["delivery"] == following.token
    progress.end(following, "succeeded")
    assert [progress.begin(one) for one in (first, following)] == ["over", "over"]
    [record] = progress.history("job")
    assert (record["outcome"], "late" in record) == ("succeeded", False)
    assert nothing_is_left(progress)


def test_failure_told_twice_without_a_history_counts_once(progress: Progress, client: redis.Redis) -> None:
    for name, due in (("job", 1000), ("job", 2000), ("other", 2000)):
        delivery = progress.started(name, "own-id", due)
        client.delete(NAMES.about(name).history)
        for _ in range(2):
            progress.end(delivery, "failed")
    assert progress.runs.failing(["job", "other"]) == [2, 1]
    assert len(progress.runs.failures(SINCE, 10)) == 3
    assert len(progress.events("run_ended")) == 3


def test_an_expired_message_begins_only_a_run_that_was_begun_in_time(progress: Progress) -> None:
    again = progress.delivery("job", "id-1", overlap="skip")
    assert progress.begin(again, is_expired=True) == "expired", "unknown run"
    progress.send("job", "id-1", queue=5)
    assert progress.begin(again, is_expired=True) == "expired", "never begun"
    progress.settle()
    assert progress.history("job")[0]["outcome"] == "never_started"
    assert progress.begin(again, is_expired=True) == "expired"
    progress.started("job", "id-2", overlap="skip")
    progress.settle()
    lost = progress.delivery("job", "id-2", overlap="skip")
    holder = progress.started("job", "id-3", 2000, overlap="skip")
    assert progress.begin(lost, is_expired=True) == "superseded"
    progress.end(holder, "succeeded")
    assert progress.begin(lost, is_expired=True) == "go"
    progress.end(lost, "succeeded")
    record = progress.history("job")[1]
    assert (record["outcome"], record["late"]) == ("lost", "succeeded")
    assert progress.begin(lost, is_expired=True) == "expired", "already done"
    assert nothing_is_left(progress)


@pytest.mark.parametrize(("state", "seconds"), [("sent", 600), ("started", 60), ("retrying", 600)])
def test_a_run_whose_deadline_somebody_has_deleted_holds_its_entry_not_for_ever(
    progress: Progress, client: redis.Redis, state: str, seconds: float
) -> None:
    delivery = progress.started("job", "id-1", overlap="skip", queue=600)
    if state == "retrying":
        progress.end(delivery, "retrying")
    elif state == "sent":
        progress.send("job", "id-1", overlap="skip", queue=600)
    client.delete(NAMES.deadlines)
    held = progress.runs.reserve(NAMES.entry("job"), "id-2", TrackedRun("2000", "", 60, "skip"))
    assert isinstance(held, Held)
    assert progress.deadline_of("job", "id-1") == pytest.approx(progress.now + seconds, abs=30)
    before = progress.deadline_of("job", "id-1")
    progress.runs.reserve(NAMES.entry("job"), "id-2", TrackedRun("2000", "", 60, "skip"))
    assert progress.deadline_of("job", "id-1") == before


def test_a_message_that_comes_once_more_is_not_begun_beside_another_run(progress: Progress) -> None:
    """Its run has ended, and its history no longer has it, or not yet: its record is kept for a minute."""
    first = progress.delivery("job", "id-1", overlap="skip")
    progress.begin(first)
    progress.end(first, "failed")
    assert progress.running("job")["id-1"]["state"] == "ended"
    other = progress.started("job", "id-2", 2000.0, overlap="skip")
    again = progress.delivery("job", "id-1", overlap="skip")
    assert progress.begin(again) == "superseded"
    progress.end(other, "succeeded")
    assert progress.begin(again) == "go"


KEYS_OF_RUNS = {
    **{name: getattr(NAMES.about("job"), name) for name in ("running", "history", "failing")},
    **{name: getattr(NAMES, name) for name in ("deadlines", "events", "failures", "workers")},
}


@pytest.mark.parametrize("spoilt", KEYS_OF_RUNS)
def test_key_of_wrong_type_leaves_nothing_behind(
    progress: Progress, client: redis.Redis, spoilt: str
) -> None:
    progress.send("job", "id-1")
    key = KEYS_OF_RUNS[spoilt]
    client.delete(key)
    client.set(key, "spoilt")
    delivery = progress.delivery("job", "id-1")
    with suppress(RedBeatError):
        progress.begin(delivery)
    with suppress(RedBeatError):
        progress.runs.renew([(delivery, 1)], LEASE_MS, "w", '"pool":"solo"')
    with suppress(RedBeatError):
        progress.end(delivery, "failed")
    client.delete(key)
    progress.settle()
    assert progress.due_deadlines() == []


def test_a_retry_may_begin_while_the_attempt_that_has_asked_for_it_cleans_up(progress: Progress) -> None:
    first = progress.started("job", "id-1", overlap="skip")
    again = progress.delivery("job", "id-1", overlap="skip")
    assert progress.begin(again) == "busy", "its message was delivered twice"
    second = progress.delivery("job", "id-1", overlap="skip", attempt=2, follows=first.token)
    assert progress.begin(second) == "go"
    twice = progress.delivery("job", "id-1", overlap="skip", attempt=2, follows=first.token)
    assert progress.begin(twice) == "busy", "the retry's message was delivered twice"
    progress.end(first, "retrying")
    assert progress.running("job")["id-1"]["delivery"] == second.token
    progress.end(second, "succeeded")
    assert progress.history("job")[0]["outcome"] == "succeeded"
    assert nothing_is_left(progress)


@pytest.mark.parametrize("is_over", [True, False])
def test_each_attempt_has_max_runtime_for_itself(progress: Progress, is_over: bool) -> None:
    first = progress.started("job", "id-1", overlap="skip", max=5, revoke=1)
    progress.settle(at=progress.now + 6)
    assert progress.running("job")["id-1"]["terminate"] == "overdue"
    if is_over:
        progress.end(first, "retrying")
        assert "overdue" not in progress.running("job")["id-1"], "it holds its entry again"
    second = progress.delivery("job", "id-1", overlap="skip", attempt=2, follows=first.token)
    assert progress.begin(second) == "go"
    record = progress.running("job")["id-1"]
    assert not {"overdue", "terminate"} & record.keys()


@pytest.mark.parametrize("first", ["run", "child"])
def test_task_replaced_by_a_chain_ends_with_the_chain(progress: Progress, first: str) -> None:
    """The last task of the chain has the run's own id; ``first`` is what the main process hears of first."""
    run = progress.started("job", "id-1", workflow=1, overlap="skip")
    progress.runs.note_child(run, "child")
    child = progress.delivery("job", "child", root="id-1", overlap="skip")
    if first == "run":
        progress.end(run, "ignored")
    assert progress.begin(child) == "go"
    progress.runs.note_child(child, "id-1")  # it sends the last one
    progress.end(child, "succeeded")
    if first == "child":
        progress.end(run, "ignored")
    assert progress.running("job")["id-1"]["state"] == "retrying"
    last = progress.delivery("job", "id-1", overlap="skip")
    assert progress.begin(last) == "go"
    progress.end(last, "succeeded")
    assert progress.history("job")[0]["outcome"] == "succeeded"
    assert nothing_is_left(progress)


FIELDS = (
    *(
        "sent",
        "started",
        "queue",
        "max",
        "pause",
        "attempt",
        "wait",
        "ran",
        "delivery",
        "worker",
        "terminate",
    ),
    *("root", "outcome", "error", "overlap", "broken", "over", "after", "overdue", "soft", "unknown"),
)
STATES, VALUES = ("sent", "started", "retrying", "spawned"), ("1e999", "[1]", '"x"', "null")
GARBAGE = ["{", "null", '{"state": 5}', '{"state": "sent", "after": 2}', "\x00"]


def test_invalid_record_holds_nothing_and_is_removed(progress: Progress, client: redis.Redis) -> None:
    running = NAMES.about("job").running
    spoilt = [
        f'{{"state": "{state}", "due": "1000", "{name}": {value}}}'
        for (state, name), value in zip(product(STATES, FIELDS), cycle(VALUES))
    ]
    for number, text in enumerate([*spoilt, *GARBAGE]):
        task_id = f"id-{number}"
        client.hset(running, mapping={task_id: text, "": text})
        members = (f"{task_id}\0{running}", f"\0{running}", "nonsense", "a\0b\0c")
        client.zadd(NAMES.deadlines, dict.fromkeys(members, 1 + number))
        delivery = progress.delivery("job", task_id)
        if text in GARBAGE:
            assert progress.begin(delivery) == "go"
        elif '"sent"' not in text:
            progress.begin(delivery)
        progress.runs.renew([(delivery, 1.0)], LEASE_MS, "w", '"pool":"solo"')
        if '"retrying"' in text:
            progress.end(delivery, "retrying")
    for _ in range(3):
        progress.settle(at=progress.now + LATER)
    assert [*progress.runs.all()] == []
    assert nothing_is_left(progress)


def test_runs_that_may_overlap_begin_before_beat_has_recorded_them(progress: Progress) -> None:
    both = [progress.delivery("job", f"id-{number}", 1000 * number) for number in (1, 2)]
    assert [progress.begin(one) for one in both] == ["go", "go"]


ENTRIES = ["a", "b"]
FINAL = ["succeeded", "failed", "ignored", "rejected", "revoked"]
LATER = 1e6  # seconds: all deadlines have come


@dataclass
class Chaos:
    """What beat and workers do, one thing after the other; entries have the overlap policy skip."""

    progress: Progress
    client: redis.Redis
    chance: random.Random
    sent: list[tuple[str, str, float]] = field(default_factory=list)
    at_work: list[Delivery] = field(default_factory=list)

    def send(self) -> None:
        name = self.chance.choice(ENTRIES)
        [records] = self.progress.runs.read([f"redbeat:{name}"])
        if not any(map(is_holding, records)):  # as commit_runs decides
            run = (name, f"id-{len(self.sent)}", 1000.0 + len(self.sent))
            self.progress.send(*run, overlap="skip", queue=60)
            self.sent.append(run)

    def begin(self) -> None:
        if not self.sent:
            return
        name, task_id, due = self.chance.choice(self.sent[-6:])
        delivery = self.progress.delivery(name, task_id, due, overlap="skip")
        if self.progress.begin(delivery) == "go":
            self.at_work.append(delivery)

    def begin_once_more(self) -> None:
        if self.at_work:  # the reply got lost
            delivery = self.chance.choice(self.at_work)
            if self.progress.is_mine(delivery):
                assert self.progress.begin(delivery) == "go"

    def end(self) -> None:
        if self.at_work:
            delivery = self.at_work.pop(self.chance.randrange(len(self.at_work)))
            outcome = self.chance.choice(FINAL)
            for _ in range(self.chance.choice([1, 1, 2])):
                self.progress.end(delivery, outcome)

    def retry(self) -> None:
        if self.at_work:
            delivery = self.at_work.pop(self.chance.randrange(len(self.at_work)))
            self.progress.end(delivery, self.chance.choice(["retrying", "requeued"]), retry_seconds=1)

    def renew(self) -> None:
        held = [(delivery, 1.0) for delivery in self.at_work]
        assert self.progress.runs.renew(held, LEASE_MS, "celery@test") == {}

    def give_up(self) -> None:
        self.progress.settle(at=self.progress.now + LATER)

    def check(self) -> None:
        """At most one delivery of an entry may think that the lease is its own."""
        holders = Counter(one.name for one in self.at_work if self.progress.is_mine(one))
        assert not holders or max(holders.values()) == 1
        for records in self.progress.runs.read([f"redbeat:{name}" for name in ENTRIES]):
            assert sum(record.state is State.STARTED for record in records) <= 1


@pytest.mark.parametrize("turn", range(4))
def test_runs_in_any_order_end_once_and_leave_nothing(
    progress: Progress, client: redis.Redis, chance: random.Random, turn: int
) -> None:
    chaos = Chaos(progress, client, chance)
    deeds = [
        chaos.send,
        chaos.begin,
        chaos.begin_once_more,
        chaos.end,
        chaos.retry,
        chaos.renew,
        chaos.give_up,
    ]
    for _ in range(150):
        chance.choices(deeds, [4, 5, 1, 3, 2, 1, 1])[0]()
        chaos.check()
    for delivery in chaos.at_work:
        progress.end(delivery, "succeeded")
    chaos.give_up()
    records = [record for name in ENTRIES for record in progress.history(name)]
    assert chaos.sent
    assert len(records) == len(chaos.sent)
    assert all("outcome" in record for record in records)
    told = Counter(event["task_id"] for event in progress.events("run_ended"))
    assert set(told.values()) == {1}
    assert told.keys() == {task_id for _, task_id, _ in chaos.sent}
    assert not client.exists(NAMES.deadlines, *(NAMES.about(name).running for name in ENTRIES))
