"""Parts of a beat that go on whatever happens: its end, receivers of signals, and the watch over Redis."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery

from redbeat import signals
from redbeat.keys import Keys
from redbeat.scheduler.feed import Feed
from redbeat.scheduler.shard import Watch
from redbeat.store.records import Fence
from tests.support.logs import errors_in
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
def test_error_of_a_receiver_stops_no_other(raised: BaseException, caplog: pytest.LogCaptureFixture) -> None:
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
def test_thread_of_signals_that_died_is_restarted(app: Celery) -> None:
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
    finally:
        feed.stop()


def test_error_in_the_feed_is_logged_and_the_feed_goes_on(
    app: Celery, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("redbeat.scheduler.feed.LOOK_SECONDS", 0.001)
    find_fences = Mock(side_effect=chain([KeyError("a bug")], repeat({})))
    SIGNAL.connect(find_fences)
    feed = Feed(app, find_fences)
    feed.look()
    eventually(lambda: find_fences.call_count > 3)
    feed.stop()
    failed, again = errors_in(caplog)
    assert "KeyError: 'a bug'" in failed
    assert "sent again" in again


def watched(*answers: float, jumps: tuple[float, ...] = ()) -> float:
    """For how long, if Redis has answered at these times, and its clock has jumped before each by so much."""
    times, ahead = iter(answers), 1.5e9
    watch = Watch(3.0, lambda: next(times))
    for place, answered_at in enumerate(answers):
        ahead += jumps[place] if jumps else 0
        watch.note_answer(answered_at + ahead)
    return watch.seconds


def test_watch_begins_anew_after_a_silence() -> None:
    assert watched(100.0, 110.0, 110.5, 112.0) == 2


def test_watch_begins_anew_after_the_clock_jumped() -> None:
    """As then all leases end at once, and workers must have had the time to renew them."""
    assert watched(100.0, 102.0, 104.0, 105.0, jumps=(0, 0, 60, 0)) == 1
    assert watched(100.0, 102.0, 104.0, 105.0, jumps=(0, 0, -60, 0)) == 5
    assert watched(100.0, 102.0, 104.0, 105.0, jumps=(0, 0.2, 0.2, -0.4)) == 5
