"""However requests come and go, a few of them ask Redis at a time, and none waits for another to connect."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from celery import Celery

from redbeat.errors import StoreUnavailable
from redbeat.web import threads
from redbeat.web.threads import THREADS, HastyClient, Threads
from tests.support.dashboards import Browser, dashboard_of
from tests.support.deadlines import patience
from tests.support.polling import eventually


def test_a_request_that_is_cancelled_keeps_its_place_while_its_thread_is_at_work() -> None:
    places, released, counting = Threads(None), threading.Event(), threading.Lock()
    at_work = most = 0

    async def run() -> None:
        begun = asyncio.Semaphore(0)
        loop = asyncio.get_running_loop()

        def work() -> None:
            nonlocal at_work, most
            with counting:
                at_work += 1
                most = max(most, at_work)
            loop.call_soon_threadsafe(begun.release)
            released.wait()
            with counting:
                at_work -= 1

        first = [asyncio.create_task(places.run(work)) for _ in range(THREADS)]
        for _ in first:
            await begun.acquire()
        for task in first:
            task.cancel()
        await asyncio.gather(*first, return_exceptions=True)
        others = [asyncio.create_task(places.run(work)) for _ in range(THREADS)]
        for _ in range(10):  # they would take their places now
            await asyncio.sleep(0)
        assert not any(task.done() for task in others)
        released.set()
        await asyncio.gather(*others)

    asyncio.run(run())
    eventually(lambda: at_work == 0)  # the threads of those that were cancelled end when they do
    assert most == THREADS


def test_no_request_waits_until_another_one_is_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    connecting = threading.Barrier(2, timeout=patience())

    def connect(_app: Any, _seconds: float) -> Any:
        connecting.wait()  # both of them are here at once
        return object()

    monkeypatch.setattr(threads, "get_hasty_redis", connect)
    client = HastyClient(None)

    def ask() -> None:
        with client.in_place():
            pass

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(ask) for _ in range(2)]:
            one.result()
    ask()  # that client is kept


def test_the_page_that_says_that_redis_is_away_does_not_connect_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connected: list[float] = []

    def connect(_app: Any, seconds: float) -> Any:
        connected.append(seconds)  # with a cluster each time takes as long
        raise StoreUnavailable("Redis can't be reached.")

    monkeypatch.setattr(threads, "get_hasty_redis", connect)
    app = Celery("test", broker="memory://", set_as_current=False)
    app.conf.redbeat_redis_url = "redis-cluster://localhost"
    answer = Browser(dashboard_of(app)).get("/")
    assert (answer.status_code, "be reached" in answer.text) == (503, True)
    assert len(connected) == 1
