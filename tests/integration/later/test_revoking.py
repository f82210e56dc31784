"""Stored messages are taken away by whoever revokes their tasks, and the results say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery, chord, group
from celery.app.control import Control
from celery.result import AsyncResult

import redbeat.later
from redbeat import RedBeatScheduler
from redbeat.later import DurableTask
from tests.conftest import MakeApp
from tests.integration.later.conftest import LATER, add_tasks, make_due, queued, stored_ids
from tests.support.apps import celery_worker, write_app
from tests.support.polling import eventually
from tests.support.servers import Server


@pytest.fixture
def app(make_app: MakeApp, server: Server) -> Celery:
    """An app that stores messages, and has results."""
    made = make_app(redbeat_durable_after=1, result_backend=server.url(0), accept_content=["json", "pickle"])
    redbeat.later.install(made)
    add_tasks(made)
    return made


def store(app: Celery, task_id: str, **options: Any) -> AsyncResult:
    result: AsyncResult = app.tasks["add"].apply_async((1,), task_id=task_id, countdown=600, **options)
    return result


WAYS = {
    "the result": lambda app, one: one.revoke(),
    "the app": lambda app, one: app.control.revoke(one.id),
    "the app, of several": lambda app, one: app.control.revoke(["another", one.id]),
    "a broadcast": lambda app, one: app.control.broadcast("revoke", arguments={"task_id": one.id}),
    "redbeat": lambda app, one: redbeat.later.cancel(one.id, app),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_a_message_that_is_revoked_is_gone_and_its_result_says_so(
    way: str, serializer: str, app: Celery, client: redis.Redis
) -> None:
    store(app, "other")
    result = store(app, "id", serializer=serializer)
    WAYS[way](app, result)
    assert stored_ids(app) == ["other"]
    assert client.exists("redbeat::later:id", "redbeat::body:id") == 0
    assert result.status == "REVOKED"


def test_what_is_not_stored_is_told_apart(app: Celery) -> None:
    store(app, "id")
    assert redbeat.later.cancel(["id", "unknown"], app) == ["id"]
    assert redbeat.later.cancel("id", app) == []
    assert AsyncResult("unknown", app=app).status == "PENDING"


def test_a_task_whose_result_nobody_wants_has_none(app: Celery) -> None:
    result = app.tasks["note"].apply_async(task_id="id", countdown=600)
    result.revoke()
    assert (stored_ids(app), result.status) == ([], "PENDING")


def test_the_chord_of_a_revoked_part_fails_as_when_a_worker_revokes_it(
    app: Celery, broker: redis.Redis
) -> None:
    add = app.tasks["add"]
    parts = [add.s(1, 1).set(task_id=one, countdown=600) for one in ("first", "second")]
    result = chord(parts, add.si(0)).apply_async(task_id="body")
    redbeat.later.cancel("first", app)
    with app:
        app.backend.store_result("second", 4, "SUCCESS")
    redbeat.later.cancel("second", app)
    assert result.status == "FAILURE"


def test_a_group_is_revoked_with_all_of_its_parts(app: Celery) -> None:
    add = app.tasks["add"]
    result = group(add.s(1, 1), add.s(2, 2)).apply_async(countdown=600)
    assert len(stored_ids(app)) == 2
    result.revoke()
    assert stored_ids(app) == []
    assert {one.status for one in result.results} == {"REVOKED"}


def test_a_block_that_has_not_ended_forgets_what_is_revoked_in_it(app: Celery) -> None:
    with redbeat.later.batch():
        kept, revoked = store(app, "kept"), store(app, "revoked")
        revoked.revoke()
    assert stored_ids(app) == [kept.id]


@pytest.mark.also_sharded
def test_a_result_that_cannot_be_noted_is_told_of_and_the_message_is_gone(
    app: Celery, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    store(app, "id")
    elsewhere = make_app(result_backend="redis://:hunter2@127.0.0.1:1/0", result_backend_transport_options={})
    elsewhere.conf.redis_backend_settings = {}
    elsewhere.conf.result_backend_max_retries = 0
    assert redbeat.later.cancel("id", elsewhere) == ["id"]
    assert stored_ids(app) == []
    assert "id is taken away, but its result can't say that it is revoked" in caplog.text
    assert "hunter2" not in caplog.text


def test_an_app_s_own_class_of_control_and_one_in_use_stay_what_they_are(make_app: MakeApp) -> None:
    class Own(Control):
        def own(self) -> str:
            return "own"

    lazy, used = make_app(), make_app()
    for app in (lazy, used):
        app.control_cls = Own
    before = used.control
    for app in (lazy, used):
        redbeat.later.install(app)
        redbeat.later.install(app)
        assert app.control.own() == "own"
        assert isinstance(app.control, Own)
    assert used.control is before
    for app in (lazy, used):
        app.send_task("x", countdown=6000, task_id="id")
        app.control.revoke("id")
        assert stored_ids(app) == []


@pytest.mark.also_sharded
def test_it_is_taken_away_while_beat_is_about_to_send_it(
    app: Celery,
    scheduler: RedBeatScheduler,
    client: redis.Redis,
    broker: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The script that pushes sees that the entry is gone."""
    store(app, "id")
    make_due(client)
    send = RedBeatScheduler.apply_async

    def revoke_first(self: Any, *args: Any, **options: Any) -> Any:
        redbeat.later.cancel("id", app)
        return send(self, *args, **options)

    monkeypatch.setattr(RedBeatScheduler, "apply_async", revoke_first)
    scheduler.tick()
    assert (queued(broker), client.exists(LATER)) == ([], 0)


@pytest.mark.also_sharded
def test_a_worker_with_durable_tasks_takes_away_what_others_revoke(
    server: Server, make_app: MakeApp, tmp_path: Path
) -> None:
    write_app(tmp_path, "module", server.url(0), redbeat_redis_url=server.url(1), redbeat_durable_after=1)
    with (tmp_path / "module.py").open("a") as module:
        module.write("\nimport redbeat.later\nredbeat.later.install(app)\n")
    elsewhere = make_app()  # it knows nothing of stored messages
    with celery_worker(tmp_path, "module", "--pool=solo") as worker:
        worker.wait_for("ready.")
        app = make_app(redbeat_durable_after=1)
        redbeat.later.install(app)
        app.send_task("add", (1, 2), countdown=600, task_id="id")
        elsewhere.control.revoke("id")
        eventually(lambda: stored_ids(app) == [])
    assert "Traceback" not in worker.output()


@pytest.mark.also_sharded
def test_a_task_of_the_class_is_enough_to_revoke_it(make_app: MakeApp) -> None:
    app = make_app(redbeat_durable_after=1)

    @app.task(name="durable", base=DurableTask)
    def durable() -> None: ...

    result = durable.apply_async(countdown=60)
    result.revoke()
    assert stored_ids(app) == []


def test_what_has_no_message_is_taken_out_of_the_stored_ones_and_nothing_else_is_done(
    app: Celery, client: redis.Redis
) -> None:
    client.set("redbeat::later:wrong type", "text")
    client.hset("redbeat::later:usual", "definition", "{}")
    client.zadd(LATER, {"redbeat::later:wrong type": 5, "redbeat::later:gone": 5})
    ids = ["wrong type", "gone", "usual"]
    assert redbeat.later.cancel(ids, app) == ["wrong type", "gone"]
    assert not client.exists(LATER)
    assert client.exists("redbeat::later:wrong type", "redbeat::later:usual") == 2
