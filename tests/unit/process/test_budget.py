"""The processor time of a call is limited, and signals are held back in a block."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from redbeat.errors import EntryError, EntryTooExpensive
from redbeat.process import budget
from redbeat.process import signals as interrupts
from redbeat.process.budget import limited, limited_steps, limited_twice
from redbeat.process.signals import Postponed, hold_interrupts
from tests.support.processes import Process


def spin() -> None:
    while True:
        pass


def compute(seconds: float) -> float:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass
    return seconds


@contextlib.contextmanager
def logging_by(handler: logging.Handler) -> Iterator[logging.Logger]:
    logger = logging.getLogger("tests.budget")
    logger.addHandler(handler)
    try:
        yield logger
    finally:
        logger.removeHandler(handler)


@contextlib.contextmanager
def signals_handled_by(handle: Callable[[int, Any], object], *numbers: int) -> Iterator[None]:
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def started(count: int, work: Callable[[], object]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads


def test_call_that_never_returns_is_interrupted() -> None:
    began = time.process_time()
    with pytest.raises(EntryTooExpensive, match=r"redbeat:a: .* too expensive to .* 50 ms") as caught:
        limited("redbeat:a", spin)
    assert time.process_time() - began < 5
    assert isinstance(caught.value, EntryError)
    assert caught.value.key == "redbeat:a"


def test_result_or_error_of_a_call_is_passed_on() -> None:
    assert limited("a", compute, 0.001) == 0.001
    with pytest.raises(ZeroDivisionError):
        limited("a", lambda: 1 / 0)
    with pytest.raises(SystemExit):
        limited("a", sys.exit)


def swallow_exceptions() -> None:
    while True:
        try:
            spin()
        except Exception:  # noqa: BLE001 - just that
            continue


def swallow_everything_thrice() -> str:
    for _ in range(3):
        try:
            spin()
        except BaseException:  # noqa: BLE001 - just that
            continue
    return "well"


def turn_it_into_another() -> None:
    try:
        spin()
    except BaseException as exc:
        raise ValueError("a bad value") from exc


@pytest.mark.parametrize("call", [swallow_exceptions, swallow_everything_thrice, turn_it_into_another])
def test_call_that_swallows_the_interruption_fails(call: Callable[[], object]) -> None:
    with pytest.raises(EntryTooExpensive):
        limited("a", call)


def test_no_interruption_arrives_after_the_call() -> None:
    """Calls that end just when they are to be interrupted."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chosen, outcomes = random.Random(seed), set[bool]()
    for _ in range(30):
        try:
            limited("a", compute, chosen.uniform(0.005, 0.045), seconds=0.01)
            outcomes.add(True)
        except EntryTooExpensive:
            outcomes.add(False)
        compute(0.002)
    compute(0.1)
    assert outcomes == {True, False}


def test_waiting_does_not_count() -> None:
    limited("a", time.sleep, 0.3, seconds=0.05)


def test_other_threads_are_not_interrupted_and_do_not_count() -> None:
    is_done, results = threading.Event(), list[object]()

    def work() -> None:
        while not is_done.is_set():
            compute(0.01)
        results.append("well")

    threads = started(3, work)
    try:
        with pytest.raises(EntryTooExpensive):
            limited("a", spin)
        assert limited("b", compute, 0.01, seconds=1) == 0.01
    finally:
        is_done.set()
        for thread in threads:
            thread.join()
    assert results == ["well"] * 3


def test_nested_call_has_a_limit_of_its_own() -> None:
    def outer() -> str:
        with pytest.raises(EntryTooExpensive, match="inner"):
            limited("inner", spin, seconds=0.01)
        return "well"

    assert limited("outer", outer, seconds=5) == "well"
    with pytest.raises(EntryTooExpensive, match="outer"):
        limited("outer", lambda: (limited("inner", compute, 0.001), spin()))


def test_call_that_is_slow_once_is_repeated() -> None:
    moments = iter([None, 0.001])

    def compute_next() -> None:
        seconds = next(moments)
        spin() if seconds is None else compute(seconds)

    limited_twice("a", compute_next)
    with pytest.raises(EntryTooExpensive):
        limited_twice("a", spin)


def test_each_step_of_an_iterator_is_limited() -> None:
    def steps() -> Iterator[int]:
        for number in range(10):
            yield number
            compute(0.01)
        spin()

    found: list[int] = []
    with pytest.raises(EntryTooExpensive):
        found.extend(limited_steps("a", steps()))
    assert found == list(range(10))
    assert list(limited_steps("a", iter(()))) == []


def test_call_in_a_forked_child_is_interrupted() -> None:
    limited("a", compute, 0.001)
    child = os.fork()
    if not child:
        try:
            limited("a", spin)
        except EntryTooExpensive:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_slow_call_under_gevent_fails_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_is_preemptive", False)  # as under gevent
    assert limited("a", compute, 0.001) == 0.001
    with pytest.raises(EntryTooExpensive):
        limited("a", compute, 0.3)
    limited("a", time.sleep, 0.3)  # waiting isn't too expensive


class Stopped(BaseException):
    """Raised by a handler, as SystemExit is by Celery's."""


def signalled(number: int, call: Callable[..., Any], *arguments: Any) -> None:
    """Make a call, and send this process a signal a moment after that has begun, or shortly before."""
    threading.Timer(0.03, os.kill, (os.getpid(), number)).start()
    call(*arguments)


def test_signal_during_a_waiting_call_arrives_soon() -> None:
    def handle(_number: int, _frame: object) -> None:
        compute(0.15)
        raise Stopped

    with signals_handled_by(handle, signal.SIGTERM):
        began = time.monotonic()
        with pytest.raises(Stopped):
            signalled(signal.SIGTERM, limited, "a", time.sleep, 600)
        assert time.monotonic() - began < 300
    with pytest.raises(EntryTooExpensive):  # and the next one has its budget
        limited("a", spin)


def test_logs_destructors_and_handlers_are_never_interrupted() -> None:
    """Tried with a log handler that takes a lock, destructors, and signals at random times."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chosen, begun, ended = random.Random(seed), Counter[str](), Counter[str]()
    lock = threading.Lock()

    def take_time(what: str) -> None:
        begun[what] += 1
        compute(chosen.uniform(0, 0.004))
        ended[what] += 1

    class Locking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lock.acquire()
            take_time("log")
            lock.release()

    class Dropped:
        def __del__(self) -> None:
            take_time("destructor")

    def work() -> None:
        for _ in range(chosen.randrange(16)):
            chosen.choice([lambda: logger.error("one"), Dropped, lambda: compute(0.004)])()

    def handle(_number: int, _frame: object) -> None:
        take_time("handler")

    def send_signals() -> None:
        thread = random.Random(seed)
        while not is_done.wait(thread.uniform(0, 0.02)):
            os.kill(os.getpid(), thread.choice(numbers))

    is_done, numbers, outcomes = threading.Event(), [signal.SIGUSR1, signal.SIGVTALRM], Counter[bool]()
    with signals_handled_by(handle, *numbers), logging_by(Locking()) as logger:
        [sender] = started(1, send_signals)
        try:
            until = time.process_time() + 1
            while time.process_time() < until:
                try:
                    limited("a", work, seconds=0.001)
                    outcomes[True] += 1
                except EntryTooExpensive:
                    outcomes[False] += 1
                assert not lock.locked()
        finally:
            is_done.set()
            sender.join()
    print(outcomes, ended)
    assert begun == ended
    assert set(ended) == {"log", "destructor", "handler"}
    assert set(outcomes) == {True, False}


# ruff: noqa: PT012 - it is the block that is interrupted


class Ended(Exception):
    """Raised by the handler of these tests, as SystemExit is by beat's."""


@pytest.fixture
def handlers() -> Iterator[None]:
    def end(number: int, _frame: object) -> None:
        raise Ended(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    current = {number: signal.signal(number, handler) for number, handler in before.items()}
    assert set(current.values()) == {end}, "a handler was left behind"


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_arrives_at_the_end_of_the_block(number: signal.Signals) -> None:
    done = False
    with pytest.raises(Ended) as ended, hold_interrupts():
        signal.raise_signal(number)
        done = True
    assert done
    assert ended.value.args == (number,)


@pytest.mark.usefixtures("handlers")
def test_signal_interrupts_a_blocking_call_after_a_while() -> None:
    steps = ["signal"]
    with pytest.raises(Ended), hold_interrupts(patience_seconds=0.1):
        signal.raise_signal(signal.SIGTERM)
        steps.append("call")
        threading.Event().wait(600)
        steps.append("end of the call")
    assert steps == ["signal", "call"]


HOLDING = """
from gevent import monkey; monkey.patch_all()
import signal, sys, time
from redbeat.process.signals import hold_interrupts

marks = []
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
signal.signal(signal.SIGUSR1, lambda *_: marks.append(1))
with hold_interrupts(float(sys.argv[1])):
    print("in the block")
    while not marks:
        time.sleep(0.01)
    print("at its end")
print("after it")
"""


@pytest.mark.slow
@pytest.mark.parametrize("patience_seconds", [600, 0.1])
def test_signal_under_gevent_arrives_at_the_end_of_the_block_or_after_a_while(
    patience_seconds: float,
) -> None:
    pytest.importorskip("gevent")
    command = [sys.executable, "-W", "ignore", "-c", HOLDING, str(patience_seconds)]
    with Process(command) as process:
        process.wait_for("in the block")
        process.signal(signal.SIGTERM)
        if patience_seconds > 1:
            process.signal(signal.SIGUSR1)
        assert process.wait() == 3, process.output()
        expected = ["in the block"] + ["at its end"] * (patience_seconds > 1)
        assert process.output().splitlines() == expected


@pytest.mark.usefixtures("handlers")
def test_second_signal_arrives_at_once() -> None:
    with pytest.raises(Ended) as ended, hold_interrupts(patience_seconds=60):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("it went on")
    assert ended.value.args == (signal.SIGTERM,)


@pytest.mark.usefixtures("handlers")
def test_many_signals_do_not_interrupt_a_firm_block() -> None:
    is_done = False
    with pytest.raises(Ended), hold_interrupts(patience_seconds=60, is_firm=True):
        for _ in range(100):
            signal.raise_signal(signal.SIGINT)
        is_done = True
    assert is_done


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("step", range(1, 12))
def test_signal_at_any_step_of_a_block_is_not_lost_and_leaves_no_handler(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    arrived: list[int] = []

    def end(number: int, _frame: object) -> None:
        arrived.append(number)
        raise Ended(number)

    numbers = (signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGTERM)
    before = {number: signal.signal(number, end) for number in numbers}
    sent: list[int] = []
    try:
        with monkeypatch.context() as patched:
            interrupt_at_step(patched, step, sent)
            with suppress(Ended):
                Postponed().end()
        assert [signal.getsignal(number) for number in numbers] == [end] * 4
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert sorted(arrived) == sorted(sent), "a signal was lost"


def interrupt_at_step(monkeypatch: pytest.MonkeyPatch, step: int, sent: list[int]) -> None:
    """Let SIGINT and SIGTERM come just before a handler is set for the so manyth time."""
    set_now, steps = interrupts.system.signal, 0

    def set_interrupted(number: int, handler: object) -> object:
        nonlocal steps
        steps += 1
        if steps == step:
            sent.append(signal.SIGINT)
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                sent.append(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)
        return set_now(number, handler)

    system = SimpleNamespace(getsignal=interrupts.system.getsignal, signal=set_interrupted)
    monkeypatch.setattr(interrupts, "system", system)
