"""Runs that a program asks for over the REST interface, and what it is told of runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from celery import Celery
from celery.schedules import crontab

from redbeat import RedBeatSchedulerEntry
from redbeat.entries.audit import find_records
from redbeat.store.store import Store
from tests.support.programs import Program

Add = Callable[..., RedBeatSchedulerEntry]
Programs = Callable[..., Program]


def sent(app: Celery, queue: str = "celery") -> int:
    """How many messages are on a queue."""
    with app.connection_for_write() as connection:
        return int(connection.default_channel.client.llen(queue))


def test_a_trigger_that_is_tried_again_with_its_key_sends_one_run(
    program: Programs, app: Celery, add: Add
) -> None:
    add("one")
    one, key = program("run"), {"idempotency-key": "deploy 7f3a"}
    first = one.ask("PUT", "/entries/one/trigger", {"args": [1]}, key).json()
    again = one.ask("PUT", "/entries/one/trigger", {"args": [1]}, key).json()
    assert (again["task_id"], again["is_repeated"], first["is_repeated"]) == (first["task_id"], True, False)
    assert sent(app) == 1
    assert one.ask("PUT", "/entries/one/trigger", {"args": [2]}, key).status_code == 422
    other = program("run").ask("PUT", "/entries/one/trigger", {"args": [1]}, key).json()
    assert other["task_id"] != first["task_id"]
    assert one.put("/entries/one/trigger")["task_id"] != one.put("/entries/one/trigger", {})["task_id"]
    assert sent(app) == 4
    store = Store(app)
    kept = [*store.client.scan_iter(f"{store.keys.prefix}:backfilling:*")]
    assert len(kept) == 2
    assert all(0 < store.client.ttl(name) <= 24 * 3600 for name in kept)
    for wrong in ("x" * 256, "a\tb", " "):
        assert one.ask("PUT", "/entries/one/trigger", {}, {"idempotency-key": wrong}).status_code in (
            200,
            400,
        )
    assert sent(app) <= 5
    assert one.ask("PUT", "/pause", {"names": ["one"]}, key).status_code == 403
    assert program().ask("PUT", "/pause", {"names": ["one"]}, key).status_code == 400


def test_of_eight_tries_of_one_trigger_at_once_one_sends(program: Programs, app: Celery, add: Add) -> None:
    add("one")
    one, answers = program("run"), list[Any]()

    def trigger(another: Program) -> None:
        answers.append(another.ask("PUT", "/entries/one/trigger", {}, {"idempotency-key": "x"}).json())

    threads = [threading.Thread(target=trigger, args=(one.copy(),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({answer["task_id"] for answer in answers}) == 1
    assert sorted(answer["is_repeated"] for answer in answers) == [False, *[True] * 7]
    assert sent(app) == 1


def test_what_no_message_can_hold_is_no_reason_to_try_again(program: Programs, add: Add) -> None:
    add("one", args=[crontab(minute="5")])
    answer = program().ask("PUT", "/entries/one/trigger", {})
    assert (answer.status_code, "can't be sent" in answer.text) == (422, True), answer.text


def test_arguments_and_queue_of_a_run_are_its_own(program: Programs, app: Celery, add: Add) -> None:
    add("one", args=[1])
    one = program()
    one.put("/entries/one/trigger", {"args": [5], "kwargs": {"token": "hunter2"}, "queue": "slow"})
    assert (sent(app), sent(app, "slow")) == (0, 1)
    assert "hunter2" not in one.ask("GET", "/audit").text
    [record] = one.get("/audit", verb="trigger")["records"]
    assert (record["source"], record["host"], record["names"]) == ("api", "127.0.0.1", ["one"])
    for body in ({"args": {}}, {"kwargs": []}, {"queue": ""}, {"queue": 5}, {"nonsense": 1}, {"args": "ab"}):
        answer = one.ask("PUT", "/entries/one/trigger", body)
        assert answer.status_code == 422, body
    assert one.ask("PUT", "/entries/none/trigger").status_code == 404
    assert len(find_records(app, verb="trigger")) == 1


def test_a_backfill_sends_each_run_of_a_span_once(program: Programs, app: Celery, add: Add) -> None:
    entry = add("one", timedelta(hours=1))
    now = entry.seen_at
    assert now is not None
    one = program("run")
    span = {"from": (now - timedelta(hours=5, seconds=-1)).isoformat(), "to": now.isoformat()}
    planned = one.put("/entries/one/backfill", {**span, "dry_run": True})
    assert (len(planned["runs"]), sent(app)) == (5, 0)
    assert one.ask("PUT", "/entries/one/backfill", {**span, "limit": 4}).status_code == 422
    assert one.put("/entries/one/backfill", span)["runs"] == planned["runs"]
    assert one.put("/entries/one/backfill", span)["runs"] == []
    assert sent(app) == 5
    for wrong in (
        {},
        {"from": "yesterday"},
        {"from": "2030-01-01T00:00"},
        {"from": span["to"], "to": span["from"]},
    ):
        assert one.ask("PUT", "/entries/one/backfill", wrong).status_code == 422, wrong
    assert len(one.get("/entries/one/history")["history"]) == 5
    assert (
        one.ask("PUT", "/entries/one/rerun", {"due": planned["runs"][0], "dry_run": True}).json()["task_id"]
        is None
    )
    assert one.put("/entries/one/rerun", {"due": planned["runs"][0]})["rerun_of"]
    assert sent(app) == 6
    assert one.ask("PUT", "/entries/one/rerun").status_code == 422
    assert one.put("/rerun", {"since": "1d"}) == {"sent": 0, "failed": {}, "is_dry_run": False}


def test_runs_in_progress_are_listed_and_given_up(program: Programs, app: Celery, add: Add) -> None:
    add("one", overlap="skip")
    one = program("run")
    task_id = one.put("/entries/one/trigger")["task_id"]
    for path in ("/runs", "/runs?state=sent,overdue", "/entries/one/runs", "/runs?match=o*&since=1d"):
        [run] = one.ask("GET", path).json()["runs"]
        assert (run["task_id"], run["state"]) == (task_id, "sent")
    assert one.get("/runs", state="started,failed")["count"] == 0
    busy = one.ask("PUT", "/entries/one/trigger")
    assert (busy.status_code, busy.json()["task_id"], busy.json()["entry"]) == (409, task_id, "one")
    assert one.ask("DELETE", "/entries/one/runs/other").status_code == 404
    assert one.ask("DELETE", f"/entries/one/runs/{task_id}").json()["count"] == 1
    [run] = one.get("/runs", state="lost")["runs"]
    assert run["task_id"] == task_id
    assert one.ask("DELETE", "/entries/one/runs").json() == {"runs": [], "count": 0}
    assert one.ask("GET", "/runs", state="succeeded").status_code == 400
    assert one.ask("GET", "/entries/none/runs").status_code == 404
    assert one.get("/entries/one/runs", state="succeeded,lost", since="1d")["count"] == 1
