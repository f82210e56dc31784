"""On its way to Redis a message is stored, or the caller is told that it isn't."""

from __future__ import annotations

import asyncio
import threading
from contextlib import nullcontext
from typing import Any

import kombu.exceptions
import pytest
import redis
from celery import Celery, chord
from celery.app.control import Control
from celery.result import AsyncResult

import redbeat.later
from redbeat import RedBeatScheduler
from redbeat.errors import MessageNotStored, MessageRefused, StoreUnavailable
from redbeat.later import batch
from redbeat.later.visibility import find_short_visibility
from tests.conftest import MakeApp
from tests.integration.later.conftest import LATER, install, make_due, queued, stored_ids
from tests.support.schedule import monitoring
from tests.support.servers import Server


def store(app: Celery, task_id: str = "id", **options: Any) -> Any:
    return app.tasks["add"].apply_async((1,), task_id=task_id, **{"countdown": 600, **options})


def test_many_in_a_block_are_stored_in_one_round_trip_when_it_ends(app: Celery, server: Server) -> None:
    store(app, "first")  # now the server knows the script, and the client is connected
    with monitoring(server) as asked:
        store(app, "second")
        with batch():
            for number in range(200):
                store(app, str(number))
            assert stored_ids(app) == ["first", "second"]
    assert [line.split()[0] for line in asked if line.startswith("EVALSHA")] == ["EVALSHA", "EVALSHA"]
    assert len(stored_ids(app)) == 202


def test_of_a_block_that_raises_nothing_is_stored(app: Celery) -> None:
    def fail() -> None:
        with batch():
            store(app)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert stored_ids(app) == []
    store(app)
    assert stored_ids(app) == ["id"], "the block is over"


@pytest.mark.also_sharded
def test_a_block_in_a_block_is_part_of_it_and_each_app_has_its_own(app: Celery, make_app: MakeApp) -> None:
    other = make_app(redbeat_key_prefix="other:", redbeat_durable_after=1)
    redbeat.later.install(other)
    with batch():
        with batch():
            store(app, "inner")
        assert stored_ids(app) == []
        other.send_task("add", countdown=600, task_id="of the other")
    assert (stored_ids(app), stored_ids(other)) == (["inner"], ["of the other"])


def test_other_threads_and_tasks_are_not_in_the_block(app: Celery) -> None:
    async def both() -> None:
        async def other() -> None:
            store(app, "other task")

        before = asyncio.create_task(other())
        with batch():
            await before
            thread = threading.Thread(target=store, args=(app, "other thread"))
            thread.start()
            thread.join()
            store(app, "in it")
            assert set(stored_ids(app)) == {"other task", "other thread"}

    asyncio.run(both())
    assert set(stored_ids(app)) == {"other task", "other thread", "in it"}


def test_redis_that_refuses_or_is_unreachable_fails_as_a_publish_does(
    make_app: MakeApp, second: Server
) -> None:
    app = install(make_app(redbeat_redis_url=second.url(1), redbeat_durable_after=1))
    with second.client(db=1) as admin:
        admin.config_set("maxmemory", "1mb")
        with pytest.raises(MessageNotStored, match="maxmemory"):
            store(app)
        admin.config_set("maxmemory", "0")
        admin.set("redbeat::later", "not a sorted set")
        with pytest.raises(MessageNotStored, match="redbeat::later"):
            store(app)
        admin.delete("redbeat::later")
    second.kill()
    for block in (nullcontext, batch):
        with pytest.raises(kombu.exceptions.OperationalError) as raised, block():
            store(app)
        assert isinstance(raised.value, MessageNotStored)
        assert isinstance(raised.value.__cause__, StoreUnavailable)
    second.restart()
    for block in (nullcontext, batch):
        with block():
            store(app, block.__name__)
    assert set(stored_ids(app)) == {"nullcontext", "batch"}


@pytest.mark.parametrize(
    "options", [{"headers": {"odd": object()}}, {"task_id": "\udcff"}], ids=["header", "id"]
)
def test_a_message_that_cannot_be_stored_is_refused(options: dict[str, Any], app: Celery) -> None:
    with pytest.raises(MessageRefused):
        store(app, **options)
    assert stored_ids(app) == []


def test_what_goes_to_another_broker_is_published_there(
    app: Celery, make_app: MakeApp, server: Server
) -> None:
    elsewhere = make_app(broker_url=server.url(5))
    with elsewhere.connection_for_write() as connection:
        store(app, "by connection", connection=connection)
        with elsewhere.amqp.Producer(connection) as producer:
            store(app, "by producer", producer=producer)
    with app.connection_for_write() as connection:
        store(app, "its own", connection=connection)
    with server.client(db=5) as client:
        assert client.llen("celery") == 2
    assert stored_ids(app) == ["its own"]


@pytest.fixture
def results_app(make_app: MakeApp, server: Server) -> Celery:
    """An app that stores messages, and has results."""
    results = {"result_backend": server.url(0), "accept_content": ["json", "pickle"]}
    return install(make_app(redbeat_durable_after=1, **results))


WAYS = {
    "the result": lambda app, one: one.revoke(),
    "the app, of several": lambda app, one: app.control.revoke(["another", one.id]),
    "a broadcast": lambda app, one: app.control.broadcast("revoke", arguments={"task_id": one.id}),
    "redbeat": lambda app, one: redbeat.later.cancel(one.id, app),
}


@pytest.mark.parametrize(("way", "serializer"), [*((way, "json") for way in WAYS), ("redbeat", "pickle")])
def test_a_revoked_message_is_deleted_and_its_result_is_revoked(
    way: str, serializer: str, results_app: Celery, client: redis.Redis
) -> None:
    store(results_app, "other")
    result = store(results_app, "id", serializer=serializer)
    WAYS[way](results_app, result)
    assert stored_ids(results_app) == ["other"]
    assert client.exists("redbeat::later:id", "redbeat::body:id") == 0
    assert result.status == "REVOKED"
    assert redbeat.later.cancel(["id", "other", "unknown"], results_app) == ["other"]
    assert AsyncResult("unknown", app=results_app).status == "PENDING"


def test_the_chord_of_a_revoked_part_fails_as_when_a_worker_revokes_it(
    results_app: Celery, broker: redis.Redis
) -> None:
    add = results_app.tasks["add"]
    parts = [add.s(1, 1).set(task_id=one, countdown=600) for one in ("first", "second")]
    result = chord(parts, add.si(0)).apply_async(task_id="body")
    redbeat.later.cancel("first", results_app)
    with results_app:
        results_app.backend.store_result("second", 4, "SUCCESS")
    redbeat.later.cancel("second", results_app)
    assert result.status == "FAILURE"


def test_a_block_that_has_not_ended_forgets_what_is_revoked_in_it(results_app: Celery) -> None:
    with redbeat.later.batch():
        kept, revoked = store(results_app, "kept"), store(results_app, "revoked")
        revoked.revoke()
    assert stored_ids(results_app) == [kept.id]


@pytest.mark.also_sharded
def test_a_result_that_cannot_be_noted_is_told_of_and_the_message_is_gone(
    results_app: Celery, make_app: MakeApp, caplog: pytest.LogCaptureFixture
) -> None:
    store(results_app, "id")
    elsewhere = make_app(result_backend="redis://:hunter2@127.0.0.1:1/0", result_backend_transport_options={})
    elsewhere.conf.redis_backend_settings = {}
    elsewhere.conf.result_backend_max_retries = 0
    assert redbeat.later.cancel("id", elsewhere) == ["id"]
    assert stored_ids(results_app) == []
    assert "id is taken away, but its result can't say that it is revoked" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("is_used", [False, True])
def test_an_app_keeps_its_own_control_class(make_app: MakeApp, is_used: bool) -> None:
    class Own(Control):
        pass

    app = make_app()
    app.control_cls = Own
    before = app.control if is_used else None
    redbeat.later.install(app)
    redbeat.later.install(app)
    assert isinstance(app.control, Own)
    assert before in (None, app.control)
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


REDIS = "redis://127.0.0.1:1/0"


def timeout(seconds: Any) -> dict[str, Any]:
    return {"broker_transport_options": {"visibility_timeout": seconds}}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"broker_url": REDIS, **timeout(599)}, 599),
        ({"broker_url": ["redis://a", "redis://b"], **timeout(300)}, 300),
        ({"broker_url": "sqs://", **timeout(300)}, 300),
        ({"broker_url": REDIS, **timeout(30), "redbeat_durable_after": 31}, 30),
        # the transports' own defaults
        ({"broker_url": REDIS, "redbeat_durable_after": 3601}, 3600),
        ({"broker_url": REDIS, "redbeat_durable_after": 3600}, None),
        ({"broker_url": REDIS, **timeout(600)}, None),
        ({"broker_url": REDIS, **timeout("soon")}, None),
        ({"broker_url": "amqp://", **timeout(1)}, None),
    ],
)
def test_a_timeout_below_durable_after_is_too_short(settings: Any, expected: float | None) -> None:
    found = find_short_visibility(Celery("app", set_as_current=False, changes=settings))
    assert (found and found.timeout) == expected


@pytest.mark.parametrize(("seconds", "is_configured"), [(60, False), (60, True), (7200, False)])
def test_install_warns_as_soon_as_the_app_is_configured(
    caplog: pytest.LogCaptureFixture, seconds: int, is_configured: bool
) -> None:
    app = Celery("app", set_as_current=False, broker=REDIS)
    app.conf.update(redbeat_redis_url=REDIS, **timeout(seconds))
    if is_configured:
        app.finalize()
        app.conf.broker_url  # noqa: B018 - reading a setting loads the configuration
    redbeat.later.install(app)
    redbeat.later.install(app)
    app.conf.broker_url  # noqa: B018
    said = [one.getMessage() for one in caplog.records if "visibility_timeout" in one.getMessage()]
    assert len(said) == (seconds == 60)
    assert all("Set redbeat_durable_after to 30 or less" in one for one in said)
