"""The processor time of a call is limited, and signals are held back in a block."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from types import SimpleNamespace

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


def swallow_exceptions() -> None:
    while True:
        try:
            spin()
        except Exception:  # noqa: BLE001 - just that
            continue


def turn_it_into_another() -> None:
    try:
        spin()
    except BaseException as exc:
        raise ValueError("a bad value") from exc


@pytest.mark.parametrize("call", [swallow_exceptions, turn_it_into_another])
def test_call_that_swallows_the_interruption_fails(call: Callable[[], object]) -> None:
    with pytest.raises(EntryTooExpensive):
        limited("a", call)


def test_no_interruption_arrives_after_the_call() -> None:
    """Calls that end just when they are to be interrupted."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chosen, outcomes = random.Random(seed), set[bool]()
    for number in range(300):
        if number >= 20 and len(outcomes) == 2:  # a busy machine looks late
            break
        try:
            limited("a", compute, chosen.uniform(0.002, 0.1), seconds=0.005)
            outcomes.add(True)
        except EntryTooExpensive:
            outcomes.add(False)
    compute(0.1)
    assert outcomes == {True, False}


def test_time_of_other_threads_and_of_waiting_does_not_count() -> None:
    is_done = threading.Event()

    def work() -> None:
        while not is_done.is_set():
            compute(0.01)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        limited("a", time.sleep, 0.3, seconds=0.05)
        assert limited("b", compute, 0.01, seconds=1) == 0.01
        assert all(thread.is_alive() for thread in threads)
    finally:
        is_done.set()
        for thread in threads:
            thread.join()


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


def test_nested_call_has_a_limit_of_its_own() -> None:
    def compute_twice() -> None:
        with pytest.raises(EntryTooExpensive, match="inner"):
            limited("inner", spin, seconds=0.01)
        spin()

    with pytest.raises(EntryTooExpensive, match="outer"):
        limited("outer", compute_twice, seconds=0.2)


def test_call_that_is_slow_once_is_repeated() -> None:
    calls = iter([spin, lambda: "well"])
    assert limited_twice("a", lambda: next(calls)()) == "well"  # noqa: PLW0108 - the second try calls the next
    with pytest.raises(EntryTooExpensive):
        limited_twice("a", spin)


def test_each_step_of_an_iterator_has_a_limit() -> None:
    found: list[int] = []
    with pytest.raises(EntryTooExpensive):
        found.extend(limited_steps("a", (number if number < 3 else spin() for number in count())))
    assert found == [0, 1, 2]


def test_slow_call_under_gevent_fails_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "_is_preemptive", False)  # as under gevent
    assert limited("a", compute, 0.001) == 0.001
    with pytest.raises(EntryTooExpensive):
        limited("a", compute, 0.3)
    limited("a", time.sleep, 0.3)  # waiting isn't too expensive


def test_log_handler_is_never_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock would stay locked: tried at random times."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chosen, lock, outcomes = random.Random(seed), threading.Lock(), set[bool]()

    class Locking(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lock.acquire()
            compute(chosen.uniform(0, 0.004))
            lock.release()

    logger = logging.getLogger("tests.budget")
    monkeypatch.setattr(logger, "handlers", [Locking()])
    monkeypatch.setattr(logger, "propagate", False)

    def work() -> None:
        for _ in range(chosen.randrange(8)):
            logger.error("one")
            compute(0.01)

    until = time.process_time() + 0.5
    while time.process_time() < until:
        try:
            limited("a", work, seconds=0.001)
            outcomes.add(True)
        except EntryTooExpensive:
            outcomes.add(False)
        assert not lock.locked()
    assert outcomes == {True, False}


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
def test_signal_during_a_waiting_call_arrives_soon() -> None:
    threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
    began = time.monotonic()
    with pytest.raises(Ended):
        limited("a", time.sleep, 30)
    assert time.monotonic() - began < 20
    with pytest.raises(EntryTooExpensive):  # and the next one has its budget
        limited("a", spin)


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
