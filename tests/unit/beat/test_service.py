"""Celery's service, as RedBeat has it: how it notes that beat has ended."""

from __future__ import annotations

import sys
import threading
from types import FrameType, SimpleNamespace
from typing import Any

from celery import Celery
from celery.beat import Service

from redbeat.beat.service import BeatService, Ended


def test_a_second_signal_amid_the_handler_of_the_first_waits_for_nothing() -> None:
    """Celery's handler sets what is set here. With an Event it would wait for itself."""
    ended, steps = Ended(), []

    def interrupt(frame: FrameType, what: str, _: Any) -> Any:
        if frame.f_code.co_filename != Ended.set.__code__.co_filename:
            return None
        if what == "line":
            steps.append(frame.f_lineno)
            ended.set()
        return interrupt

    before = sys.gettrace()
    sys.settrace(interrupt)
    try:
        ended.set()
    finally:
        sys.settrace(before)
    assert len(steps) > 2
    assert ended.is_set()
    assert ended.wait()
    assert ended.wait(0)


def test_all_who_wait_for_the_end_of_beat_learn_of_it() -> None:
    ended = Ended()
    assert not ended.wait(0)
    told: list[bool] = []
    threads = [threading.Thread(target=lambda: told.append(ended.wait(60))) for _ in range(3)]
    for thread in threads:
        thread.start()
    ended.set()
    for thread in threads:
        thread.join()
    assert told == [True] * 3


def test_the_service_of_a_beat_in_the_main_thread_has_it() -> None:
    service = Service(Celery(set_as_current=False))
    BeatService(service)
    assert isinstance(service._is_stopped, Ended)  # noqa: SLF001 - Celery's handler sets it
    service._is_stopped.set()  # noqa: SLF001
    service.stop(wait=True)


def test_one_in_a_thread_keeps_the_event_that_somebody_may_wait_for() -> None:
    service = SimpleNamespace(_is_stopped=threading.Event())
    thread = threading.Thread(target=BeatService, args=(service,))
    thread.start()
    thread.join()
    assert isinstance(service._is_stopped, threading.Event)  # noqa: SLF001 - Celery's
