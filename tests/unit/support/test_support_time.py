"""What the suite itself knows about time: what a call cost, and how long to wait."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import pytest

from tests.support.deadlines import Contention, patience
from tests.support.polling import eventually
from tests.support.stopwatch import Stopwatch, effort


def work(seconds: float) -> None:
    """So many seconds of a processor's time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.fixture
def busy_machine() -> object:
    """Two busy loops for each processor, for half a minute at the most."""
    loops = [
        multiprocessing.get_context("spawn").Process(target=work, args=(30,), daemon=True)
        for _ in range(2 * (os.cpu_count() or 1))
    ]
    for loop in loops:
        loop.start()
    eventually(lambda: all(loop.is_alive() for loop in loops))
    yield loops
    for loop in loops:
        loop.kill()
        loop.join()


def test_what_others_take_of_the_processor_is_neither_work_nor_sleep(busy_machine: object) -> None:
    with Stopwatch() as watch:
        work(0.3)
    print(watch)
    assert 0.3 <= watch.processor_seconds < 0.5
    assert watch.asleep_seconds < 0.3 + 0.2 * watch.seconds


def test_waiting_is_sleep_and_no_work() -> None:
    with Stopwatch() as watch:
        threading.Event().wait(0.3)
    assert watch.asleep_seconds > 0.2
    assert watch.processor_seconds < 0.2


def test_effort_grows_with_the_work() -> None:
    assert 3 < effort(lambda: work(0.1)) / effort(lambda: work(0.01)) < 30


def test_the_suite_has_more_patience_on_a_busy_machine(
    busy_machine: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDBEAT_PATIENCE", raising=False)
    eventually(lambda: Contention().look() > 1.3, message="nobody noticed the load")
    monkeypatch.setenv("REDBEAT_PATIENCE", "3")
    assert Contention().look() == 3
    assert patience(10) >= 10
