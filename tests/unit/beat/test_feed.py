"""Whatever a receiver of a signal raises, the others are told, and signals go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from redbeat import signals
from redbeat.beat.feed import Feed
from redbeat.keys import Keys
from redbeat.store.records import Fence
from tests.support.polling import eventually

SIGNAL: Any = signals.run_sent


@pytest.fixture(autouse=True)
def nobody_else() -> Iterator[None]:
    before = SIGNAL.receivers
    SIGNAL.receivers = []
    yield
    SIGNAL.receivers = before


@pytest.mark.parametrize(
    "raised", [ValueError("no"), asyncio.CancelledError("no"), KeyboardInterrupt("no"), SystemExit("no")]
)
def test_what_a_receiver_raises_is_its_own_error_and_the_others_are_told(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def broken_receiver(**_: Any) -> None:
        raise raised

    def receiver(entry: str, **_: Any) -> str:
        told.append(entry)
        return "well"

    SIGNAL.connect(broken_receiver)
    SIGNAL.connect(receiver)
    responses = SIGNAL.send(sender=None, entry="report")
    assert told == ["report"]
    assert [response for _, response in responses] == [raised, "well"]
    [record] = [one for one in caplog.records if one.name == "celery.beat"]
    assert "broken_receiver" in record.getMessage()
    assert "run_sent" in record.getMessage()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_of_signals_that_has_died_is_started_again(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    looks = threading.Semaphore(0)
    deaths = [asyncio.CancelledError()]  # as a timeout that a receiver has left behind

    def find_fences() -> dict[Keys, Fence]:
        looks.release()
        if deaths:
            raise deaths.pop()
        return {}

    def receiver(**_: Any) -> None:
        pass

    SIGNAL.connect(receiver)
    feed = Feed(app, find_fences)
    feed.look()
    thread: Any = feed._thread  # noqa: SLF001
    eventually(lambda: not thread.is_running)
    assert looks.acquire(blocking=False)
    feed.look()
    try:
        assert looks.acquire(timeout=60), "it looks again"
        assert "has ended, and is started again" in caplog.text
        feed.look()
        assert caplog.text.count("is started again") == 1
    finally:
        feed.stop()
