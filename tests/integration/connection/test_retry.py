"""`retry_period`: a shorter outage is waited out, a longer one is reported without passwords."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from celery import Celery
from celery.schedules import schedule

from redbeat import RedBeatSchedulerEntry
from redbeat.config.timing import Timing
from redbeat.errors import StoreRefused, StoreUnavailable
from redbeat.leadership.lock import LeaderLock
from redbeat.schedulers import get_redis
from redbeat.store.executor import Stream
from redbeat.store.records import Fence
from redbeat.store.schedule import fetch_due, read_head
from redbeat.store.store import Store
from tests.support.servers import Server
from tests.support.stopwatch import Stopwatch
from tests.support.ticks import leader, make_due, memory_app, take_messages

Call = Callable[[Celery], Any]


PASSWORD = "p@ss:w/rd#%"


@pytest.fixture
def guarded() -> Iterator[Server]:
    """A server that keeps its data when it is restarted, so that what was sent twice would be seen."""
    with Server("valkey", requirepass=PASSWORD, appendonly=True, appendfsync="always") as server:
        yield server


def app_on(server: Server, retry_period: float | None) -> Celery:
    options = {} if retry_period is None else {"retry_period": retry_period}
    return memory_app(redbeat_redis_url=server.url(1), redbeat_redis_options=options)


def pipeline(app: Celery) -> None:
    with get_redis(app).pipeline(transaction=False) as pipe:
        pipe.set("key", "value").get("key")
        assert pipe.execute() == [True, "value"]


def claim_and_commit(app: Celery) -> None:
    store = Store(app)
    assert fetch_due(store, Fence(), limit=10).run().rows == []
    assert read_head(store).run().score is None


def save_and_delete(app: Celery) -> None:
    entry = RedBeatSchedulerEntry("report", "tasks.report", schedule(60), app=app).save()
    assert RedBeatSchedulerEntry.from_key("redbeat:report", app=app).task == "tasks.report"
    entry.delete()
    assert entry.rank is None


def client_lock(app: Celery) -> None:
    held = get_redis(app).lock("key", timeout=60)
    assert held.acquire()
    held.extend(60)
    held.release()


def leader_lock(app: Celery) -> None:
    leadership = LeaderLock(Store(app), "redbeat::lock", Timing(60))
    assert leadership.acquire()
    assert leadership.give_up()


def test_commit_whose_reply_was_lost_counts_once(guarded: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_on(guarded, retry_period=30)
    RedBeatSchedulerEntry("report", "tasks.report", schedule(60), app=app).save()
    lost: list[str] = []
    evalsha = redis.Redis.evalsha

    def lose_each_first_reply(client: redis.Redis, sha1: str, *args: Any) -> Any:
        reply = evalsha(client, sha1, *args)
        if sha1 not in lost:
            lost.append(sha1)
            raise redis.ConnectionError("the reply was lost")
        return reply

    read = Stream.read

    def lose_first_replies(stream: Stream) -> Any:
        reply = read(stream)
        if lost.count("stream") < 2:
            lost.append("stream")
            raise redis.ConnectionError("the reply was lost")
        return reply

    with leader(app) as scheduler:
        make_due(app, "report")
        scheduler.tick()  # the server knows the scripts now
        take_messages(app)
        make_due(app, "report")
        monkeypatch.setattr(redis.Redis, "evalsha", lose_each_first_reply)
        monkeypatch.setattr(Stream, "read", lose_first_replies)
        scheduler.tick()
        scheduler.tick()
        monkeypatch.undo()
    assert len(lost) == 4, "those of the fetch and of the commit, each of which is sent again alone"
    assert [message.entry for message in take_messages(app)] == ["report"]
    assert RedBeatSchedulerEntry.from_key("redbeat:report", app=app).total_run_count == 2


CALLS = pytest.mark.parametrize(
    "call",
    [pipeline, client_lock, claim_and_commit, save_and_delete, leader_lock],
    ids=lambda call: call.__name__,
)


@pytest.mark.few_cases(3)
@CALLS
@pytest.mark.parametrize("retry_period", [30, -1], ids=["30 s", "for ever"])
def test_call_survives_a_server_that_dies_during_it(
    guarded: Server, call: Call, retry_period: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = app_on(guarded, retry_period)
    get_redis(app).ping()
    has_sent = threading.Event()
    send = redis.connection.AbstractConnection.send_packed_command

    def send_and_tell(connection: Any, *args: Any, **kwargs: Any) -> None:
        send(connection, *args, **kwargs)
        has_sent.set()

    monkeypatch.setattr(redis.connection.AbstractConnection, "send_packed_command", send_and_tell)
    guarded.process.signal(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call, app)
        assert has_sent.wait(10), "the call waits for a reply now"
        assert not waiting.done()
        guarded.kill()
        guarded.restart()
        waiting.result(20)


@pytest.mark.few_cases(4)
@CALLS
@pytest.mark.parametrize("retry_period", [None, 0.3])
def test_longer_outage_is_an_error_after_the_period_without_a_password(
    guarded: Server, call: Call, retry_period: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_on(guarded, retry_period)
    get_redis(app)
    guarded.kill()
    with Stopwatch() as watch, pytest.raises(redis.ConnectionError) as caught:
        call(app)
    assert watch.seconds >= (retry_period or 0)
    assert watch.asleep_seconds < 5
    assert "p@ss" not in str(caught.value)
    assert "p%40ss" not in str(caught.value)
    assert caplog.text.count("Retrying") == (0 if retry_period is None else 1)
    if isinstance(caught.value, StoreUnavailable):
        assert f"{guarded.host}:{guarded.port}" in str(caught.value)
    guarded.restart()
    call(app)  # a connection that the server has closed is replaced


def test_wrong_password_is_neither_retried_nor_shown(
    guarded: Server, caplog: pytest.LogCaptureFixture
) -> None:
    app = memory_app(
        redbeat_redis_url=f"redis://:wr%40ng-secret@{guarded.host}:{guarded.port}/1",
        redbeat_redis_options={"retry_period": 30},
    )
    with pytest.raises(StoreRefused, match=str(guarded.port)) as caught:
        save_and_delete(app)
    assert "Retrying" not in caplog.text
    assert "secret" not in str(caught.value) + caplog.text
