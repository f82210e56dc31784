"""A background thread is started again when it has died, and ends when it is told to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from redbeat.errors import RedBeatError
from redbeat.log.events import TELEMETRY_FAILED
from redbeat.process.background import BackgroundThread
from redbeat.process.memory import Memory
from tests.support.polling import eventually

LONG_SECONDS = 3600.0

Make = Callable[[Callable[[], None]], BackgroundThread]


@pytest.fixture
def made() -> Iterator[Make]:
    threads: list[BackgroundThread] = []

    def make(work: Callable[[], None]) -> BackgroundThread:
        threads.append(BackgroundThread("redbeat-test", work))
        return threads[-1]

    yield make
    for thread in threads:
        thread.stop(60.0)


def test_thread_started_twice_runs_once_and_stop_waits_for_its_end(made: Make) -> None:
    ended = []

    def work() -> None:
        while not thread.wait(LONG_SECONDS):
            pass
        ended.append(True)

    thread = made(work)
    assert thread.stop(60.0), "what was never started doesn't run"
    thread = made(work)
    for _ in range(3):
        thread.start()
    assert [one.name for one in threading.enumerate()].count("redbeat-test") == 1
    assert thread.is_running
    assert thread.stop(60.0)
    assert ended == [True]
    assert not thread.is_running
    assert thread.wait(LONG_SECONDS), "nothing is waited for any more"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_has_died_is_started_again(made: Make) -> None:
    deaths = [SystemError("as a timeout of gevent's")]

    def work() -> None:
        if deaths:
            raise deaths.pop()
        thread.wait(LONG_SECONDS)

    thread = made(work)
    thread.start()
    eventually(lambda: not thread.is_running)
    assert not deaths
    thread.start()
    assert thread.is_running


def test_wake_ends_a_wait_also_when_it_came_before(made: Make) -> None:
    waits = threading.Semaphore(0)

    def work() -> None:
        while not thread.wait(LONG_SECONDS):
            waits.release()

    thread = made(work)
    thread.wake()
    thread.start()
    assert waits.acquire(timeout=60), "it was woken before it ran"
    thread.wake()
    assert waits.acquire(timeout=60)


def test_error_is_logged_once_until_its_text_changes(caplog: pytest.LogCaptureFixture) -> None:
    thread = BackgroundThread("redbeat-test", lambda: None)
    for exc in (ValueError("a"), ValueError("a"), KeyError("a"), RedBeatError("A sentence.")):
        thread.report("It fails", exc, TELEMETRY_FAILED, part="It")
    thread.report("Another fails", ValueError("a"), TELEMETRY_FAILED, part="It", reason="that's all")
    records = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert [bool(one.exc_info) for one in records] == [True, True, False, True]
    events = [one.redbeat for one in records]  # type: ignore[attr-defined]
    assert events[0] == {"event": TELEMETRY_FAILED.name, "part": "It", "reason": "ValueError: a"}
    assert events[-1]["reason"] == "that's all"


def test_memory_reports_a_text_once_until_it_changes() -> None:
    memory = Memory[str, str]()
    told = [memory.is_news("lock", words) for words in ("gone", "gone", "", "", "gone")]
    assert told == [True, False, True, False, True]
    assert memory.is_news("broker", "gone")


def test_memory_is_emptied_by_one_key_too_many() -> None:
    memory = Memory[int, str](limit=3)
    for number in (1, 2, 3, 3, 2, 1):
        memory[number] = "again"
    assert sorted(memory) == [1, 2, 3]
    memory[4] = "one more"
    assert list(memory) == [4]
    assert memory.is_news(1, "again")
